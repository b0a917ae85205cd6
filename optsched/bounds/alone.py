r"""Each request by itself: the least latencies, were the machine its own from its arrival on.

*Theorem.* The first token of r comes no earlier than

.. math:: \mathrm{first}_r = \max_i (s\, \mathrm{base}_i + \mathrm{token}_i I_r) + \mathrm{prefill\_sq}\, I_r^2
          + s\, \mathrm{prefill\_req}, \qquad s = \lceil I_r / P \rceil \text{ (1 if prefills are whole)}

after its arrival, and the last no earlier than :math:`\mathrm{first}_r + \sum_{k≥2} \min(\mathrm{decode}_k,
\mathrm{refill}_k)`, a decode alone in its batch, :math:`\max_i (\mathrm{base}_i + \mathrm{token}_i)` and its attention,
or where it is allowed a refill, timed as the first token with I + k − 1 for I.

*Proof.* The batches that run r do not overlap and begin after its arrival, and each lasts at least as long as if it ran
r alone. The prompt takes s' ≥ s prefill steps of :math:`c_1, …, c_{s'}` tokens; their non-attention times add up to at
least :math:`s' \mathrm{base}_i + \mathrm{token}_i \sum c` for every piece i, and their quadratic terms telescope. Each
later token ends a batch of its own, by a decode or as the last of a refill's steps. ∎

So every objective that rises with every latency has a bound, its value at these latencies: the makespan as the largest
:math:`T_r` + e2e, and the requests whose SLO is out of reach.

*Times between tokens.* Let :math:`\mathrm{least}_k = \min(\mathrm{decode}_k, \mathrm{refill}_k)`. Between token k − 1
and token k ≥ 2 of r at least :math:`\mathrm{least}_k` passes. So the TPOT of r, rounded down, is at least
:math:`⌊\sum_k \mathrm{least}_k / (O_r - 1)⌋`, which gives ``mean_tpot``; and ``p99_tbt`` is at least the
:math:`⌈99 n / 100⌉`-th smallest of all n least times. Both are 0 if no request has a second token.

*Proof.* The batch that decodes token k starts when token k − 1 exists, and so do all batches of a refill that ends with
token k: all of them end by then. They do not overlap, and take :math:`\mathrm{least}_k` or more as above. If each of n
numbers is at least another, so is the i-th smallest of them. ∎

Both are attained where no refill is cheaper than a decode: one request after another, each alone and without a pause.
As nothing is said of first tokens, that is optimal however long others wait for theirs. Least times rise with k, by
decodes and by refills, and refills are allowed up to some k. So among the tokens of r those with
:math:`\mathrm{least}_k ≤ x` are as many as the larger of two numbers, of the decodes and of the refills with that, and
the percentile is found by bisection.

*Several machines.* Each request is served by one of them, so that its latencies are at least the least of those that
it fits, of TTFT and of e2e latency each for itself. Objectives that rise with every latency have their value at these.

*Conditions.* None: other requests only make batches longer, and a pause only adds time. Where an evicted request is
refilled at once, which no schedule may do, the claim still holds. The checker computes all of it anew
(`optsched.check.certificates.alone.alone_bound`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import partial

from optsched.bounds.bound import Bound
from optsched.bounds.own import fewest_steps, least_later, may_refill
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, misses_slo, percentile_rank, value_of


@dataclass(frozen=True)
class Alone:
    """The least latencies of every request, ps."""

    ttft: tuple[int, ...]
    e2e: tuple[int, ...]


def alone(instance: Instance) -> Alone:
    """Return the least latencies (see the module's theorem)."""
    known: dict[tuple[int, int], tuple[int, int]] = {}
    found = []
    for request in instance.requests:
        key = request.input, request.output
        if key not in known:
            first = _fill_ps(instance, request.input)
            known[key] = first, first + _later_ps(instance, *key)
        found.append(known[key])
    return Alone(tuple(first for first, _ in found), tuple(last for _, last in found))


def alone_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the objectives of the theorem by what requests take alone."""
    if objective is Objective.P99_TBT:
        return Bound(_least_between(instance, 99), {"kind": "alone"})
    if not (objective.is_monotone or objective is Objective.MEAN_TPOT):
        return None
    least = alone(instance)
    return Bound(value_of(instance.requests, objective, least.ttft, least.e2e), {"kind": "alone"})


def alone_bound_of_several(instance: Instance, objective: Objective) -> Bound | None:
    """Bound objectives that rise with latencies by what requests take alone on the machine where that is least."""
    if not objective.is_monotone:
        return None
    options: list[list[tuple[int, int]]] = [[] for _ in instance.requests]
    for machine in map(instance.machines.index, dict.fromkeys(instance.machines)):
        whole = instance.on(machine)
        serves_all, least = not whole.infeasibilities(), alone(whole)
        for index, latencies in enumerate(zip(least.ttft, least.e2e, strict=True)):
            if serves_all or not instance.on(machine, [index]).infeasibilities():
                options[index].append(latencies)
    ttft, e2e = ([min(each[of] for each in choice) for choice in options] for of in (0, 1))
    return Bound(value_of(instance.requests, objective, ttft, e2e), {"kind": "alone"})


def out_of_reach(instance: Instance) -> list[bool]:
    """Return for every request whether it misses an SLO even alone."""
    least = alone(instance)
    return list(map(misses_slo, instance.requests, least.ttft, least.e2e))


def _fill_ps(instance: Instance, tokens: int) -> int:
    cost, steps = instance.cost, fewest_steps(instance, tokens)
    shared = max(steps * base + token * tokens for base, token in cost.affine)
    return shared + cost.prefill_sq * tokens**2 + steps * cost.prefill_req


def _later_ps(instance: Instance, prompt: int, output: int) -> int:
    """Return the least time of tokens 2 to O."""
    cost, count = instance.cost, output - 1
    decode = cost.linear_ps(1) + cost.decode_req
    if not _refills_pay(instance, prompt, output):
        return count * decode + cost.decode_kv * (count * prompt + count * (count - 1) // 2)
    return least_later(instance, prompt, output, partial(_fill_ps, instance), partial(_decode_ps, instance))


def _decode_ps(instance: Instance, size: int) -> int:
    """Return what a decode takes alone in its batch, after which a request has that number of cached tokens."""
    return instance.cost.linear_ps(1) + instance.cost.decode_ps(size - 1)


def _refills_pay(instance: Instance, prompt: int, output: int) -> bool:
    """Whether a refill may cost less than a decode; both grow with the size: the cheapest against the dearest."""
    return output > 1 and _fill_ps(instance, prompt + 1) < _decode_ps(instance, prompt + output - 1)


def _least_between(instance: Instance, q: int) -> int:
    """Return percentile q of the least times between tokens, 0 if there are none."""
    shapes = Counter((request.input, request.output) for request in instance.requests if request.output > 1)
    kinds = [
        (count, range(prompt + 1, prompt + output), _refills(instance, prompt, output))
        for (prompt, output), count in shapes.items()
    ]
    decode, refill = partial(_decode_ps, instance), partial(_fill_ps, instance)
    needed = percentile_rank(q, sum(count * len(decodes) for count, decodes, _ in kinds))

    def within(most: int) -> int:
        """Return how many of the least times are not above this."""
        return sum(
            count * max(bisect_right(decodes, most, key=decode), bisect_right(refills, most, key=refill))
            for count, decodes, refills in kinds
        )

    low, high = 0, max((decode(decodes[-1]) for _, decodes, _ in kinds), default=0)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) >= needed else (middle + 1, high)
    return low


def _refills(instance: Instance, prompt: int, output: int) -> range:
    """Return the sizes of refills that may generate tokens from the second on, and may cost less than a decode."""
    sizes = range(prompt + 1, prompt + output if _refills_pay(instance, prompt, output) else prompt + 1)
    return sizes[: bisect_left(sizes, True, key=lambda size: not may_refill(instance, size))]
