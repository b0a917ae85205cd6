r"""Dear refills: what a refill takes beyond the decode that it replaces.

With f(x) the non-attention time of x tokens, the refill of n tokens alone in its batch takes

.. math:: f(n) - f(1) + \mathrm{prefill\_sq}\, n^2 + \mathrm{prefill\_req}
          - \mathrm{decode\_kv}\,(n-1) - \mathrm{decode\_req}

more than a decode alone in its batch. f is convex, so that in a larger batch the difference is no less. A refill is
*dear* if it is ≥ 0.
"""

from __future__ import annotations

from bisect import bisect_left

from optsched.model.instance import Instance


def least_beyond_ps(instance: Instance) -> int:
    """Return the least that a whole refill takes beyond a decode, in ps; 0 if nothing can be refilled.

    The difference is convex in n: it is least where it first does not fall.
    """
    cost, least = instance.cost, 0

    def beyond(tokens: int) -> int:
        step = cost.prefill_ps(tokens, 0) - cost.decode_ps(tokens - 1)
        return cost.linear_ps(tokens) - cost.linear_ps(1) + step

    if instance.rules.eviction:
        for request in set(instance.requests):
            first = request.input + 1
            last = min(request.peak_tokens, instance.limits.prefill_tokens)
            if first <= last:
                sizes = range(first, last)
                place = bisect_left(sizes, 0, key=lambda tokens: beyond(tokens + 1) - beyond(tokens))
                least = min(least, beyond(first + place))
    return least
