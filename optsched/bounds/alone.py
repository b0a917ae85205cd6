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

So every objective has a bound, its value at these latencies, since all of them rise with every latency: the makespan as
the largest :math:`T_r` + e2e, and the requests whose SLO is out of reach.

*Conditions.* None: other requests only make batches longer, and a pause only adds time. Where an evicted request is
refilled at once, which no schedule may do, the claim still holds. The checker computes all of it anew
(`optsched.check.alone.alone_bound`).
"""

from __future__ import annotations

from dataclasses import dataclass

from optsched.bounds.bound import Bound
from optsched.bounds.own import fewest_steps, may_refill
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, misses_slo, value_at


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


def alone_bound(instance: Instance, objective: Objective) -> Bound:
    """Bound any objective by what requests take alone."""
    least = alone(instance)
    return Bound(value_at(instance, objective, least.ttft, least.e2e), {"kind": "alone"})


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
    # Both grow with the size: if the cheapest refill costs no less than the dearest decode, none is worth it.
    if not count or _fill_ps(instance, prompt + 1) >= decode + cost.decode_kv * (prompt + count - 1):
        return count * decode + cost.decode_kv * (count * prompt + count * (count - 1) // 2)
    total = 0
    for size in range(prompt + 1, prompt + output):
        token = decode + cost.decode_kv * (size - 1)
        total += min(token, _fill_ps(instance, size)) if may_refill(instance, size) else token
    return total
