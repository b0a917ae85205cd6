"""Whether a refill is dear: no cheaper, in any batch, than the decode that it replaces."""

from __future__ import annotations

from optsched.check.problem import Problem, tokens_ps
from optsched.check.reading import UnprovedError


def require_dear_refills(kind: str, problem: Problem) -> None:
    """Refuse problems with whole prefills in which a refill may be cheaper than the decode that it replaces.

    With f(x) the non-attention time of x tokens, the refill of n = I + k - 1 tokens that generates token k ≥ 2 is dear
    if::

        f(n) - f(1) + prefill_sq n² + prefill_req ≥ decode_kv (n - 1) + decode_req.

    f is a maximum of affine functions with slopes ≥ 0, thus convex: in a batch of x ≥ n tokens f(x) - f(x - n + 1) is
    at least f(n) - f(1), so that a refill which is dear alone is dear in every batch. Without evictions, and for
    refills that exceed P, which cannot run whole, there is nothing to ask. The difference of both sides is convex in n,
    so that it is least where it stops falling, which bisection finds.
    """
    if not problem.eviction:
        return
    for prompt, output in sorted({(request.input, request.output) for request in problem.requests}):
        low, high = prompt + 1, min(prompt + output - 1, problem.limits.prefill_tokens)
        if low > high:
            continue
        first, last = low, high
        while first < last:
            middle = (first + last) // 2
            if _beyond(problem, middle + 1) < _beyond(problem, middle):
                first = middle + 1
            else:
                last = middle
        if (less := _beyond(problem, first)) < 0:
            raise UnprovedError(
                f"kind {kind} needs refills that take no less time than decodes, but generating token "
                f"{first - prompt + 1} of an input of {prompt} tokens takes {-less} ps less by a refill"
            )


def _beyond(problem: Problem, tokens: int) -> int:
    """Return what a refill of ``tokens`` tokens takes beyond the decode in its place, each alone in its batch."""
    cost = problem.cost
    alone, single = tokens_ps(cost, tokens), tokens_ps(cost, 1)
    fill = cost.prefill_sq * tokens**2 + cost.prefill_req
    return alone - single + fill - cost.decode_kv * (tokens - 1) - cost.decode_req
