r"""Some requests alone, and what the others take at least: bounds on the makespan of requests that arrive over time.

*Theorem.* Let S be a *core* of the requests, and prefills run whole. Let :math:`w_q(k)` be what the first k tokens of
request q take at least beyond a batch's base, in first fills and decodes, W that of all tokens of all requests that are
not in S, and b what a batch takes at least. Let each core request r arrive earlier by what others can do before,

.. math:: T'_r = \max\Bigl(t_0,\ T_r - \sum_{q ∉ S,\ T_q < T_r}
          w_q\bigl(\min(O_q, ⌈(T_r - T_q) / b⌉)\bigr)\Bigr),

with :math:`t_0` the earliest arrival. If nothing is evicted, or all refills of S are *dear* (`refills`), then with
:math:`z(S, T')` the core's optimal makespan for these arrivals, counted from the earliest of them,

.. math:: \mathrm{makespan} ≥ W + \min_{r ∈ S} T'_r - t_0 + z(S, T').

*Proof sketch.* Take the others out of a schedule, and let every batch begin as much earlier as the others have worked
before it. Each batch takes that much less, so that none overlaps the next; batches that then run nothing are left out,
as in `last_arrivals`. Before :math:`T_r` no more batches begin than b allows, so others have worked no more than is
taken off there, and every later batch begins at :math:`T'_r` or later. The core's schedule ends W earlier than the
whole. `optsched.check.certificates.core_alone` has the whole proof, and tests what it needs. ∎

`last_arrivals` is the case of a core that arrives last, with no work of others in pauses of the core. Where few large
requests decide, they are the core: the small ones fill the room that large ones leave, and take little but their own
time. So requests are ranked by the memory that they hold, times the batches for which they hold it, and by their output
tokens; cores are the first in these orders, equal ones together, the smallest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from optsched.model.instance import Instance, Request
from optsched.model.objectives import Objective
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, UnsupportedError
from optsched_formulations.batching.free_pauses import FreePauses
from optsched_formulations.batching.parts import Part, PartBounds
from optsched_formulations.batching.refills import least_beyond_ps
from optsched_formulations.batching.state_search import StateSearch

_SHARE = 0.4
"""Share of the time left that a core may take with each method."""
_LEAST, _MOST = 1 / 4, 3 / 4
"""Parts of the requests between which the size of a core is."""
_GROWTH = 1.25
"""How much larger a core is than the one before of the same order."""


class CoreAlone:
    """The method of this module, as `optsched.solvers.formulation.Formulation`; it finds bounds only."""

    declaration = Declaration(
        sequential=True, turns=(Turn(41, 0.7, (Regime.FEW_ARRIVING,)), Turn(41, 0.5, (Regime.MANY_ARRIVING,)))
    )
    """Where requests arrive, large ones may decide alone."""

    def solve(self, task: Task) -> Outcome:
        """Bound the makespan of an instance with arrivals.

        Raises
        ------
        UnsupportedError
            For another objective, if all requests arrive together, with an order of first runs, or if prefills may be
            chunked, or what a batch takes depends on how many wait.
        """
        instance = task.instance
        if task.objective != Objective.MAKESPAN:
            raise UnsupportedError(f"objective {task.objective.value}, it bounds the makespan")
        if instance.offline:
            raise UnsupportedError("requests that arrive together, it is for arrivals")
        if task.restrictions.first_runs(instance):
            raise UnsupportedError("an order of first runs")
        if instance.rules.chunked_prefill:
            raise UnsupportedError("chunked prefill, it runs prefills whole (forbid chunked)")
        if instance.cost.cpu_request:
            raise UnsupportedError("batches that take longer the more requests wait")
        methods = (StateSearch, lambda: FreePauses(held=False))
        return PartBounds(task, methods, _SHARE).best(_parts(instance), only_while_solved=False)


def _parts(instance: Instance) -> Iterator[Part]:
    """Yield cores without cheap refills, the smallest first."""
    blocks = instance.limits.blocks
    held = [sum(blocks(each.input + k) for k in range(each.output)) for each in instance.requests]
    output = [request.output for request in instance.requests]
    cores = {*_first_in_order(held), *_first_in_order(output)}
    for core in sorted(cores, key=lambda core: (len(core), core)):
        part = core_part(instance, core)
        if least_beyond_ps(part.instance) >= 0:
            yield part


def _first_in_order(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the requests of the highest ranks, each time a good deal more, those of equal rank together."""
    former = 0.0
    for rank in sorted(set(ranks), reverse=True):
        core = tuple(request for request, own in enumerate(ranks) if own >= rank)
        if max(_LEAST * len(ranks), _GROWTH * former) <= len(core) <= _MOST * len(ranks):
            former = len(core)
            yield core


def core_part(instance: Instance, core: tuple[int, ...]) -> Part:
    """Return a core with earlier arrivals, and what the others take at least."""
    requests, chosen = instance.requests, set(core)
    others = [(requests[q], _least_works(instance, requests[q])) for q in range(len(requests)) if q not in chosen]
    least, first = instance.cost.linear_ps(1), instance.start_ps

    def earlier(request: Request) -> Request:
        before = 0
        for other, works in others:
            if other.arrival_ps < request.arrival_ps:
                batches = -((other.arrival_ps - request.arrival_ps) // least) if least else other.output
                before += works[min(other.output, batches)]
        return replace(request, arrival_ps=max(first, request.arrival_ps - before))

    part = replace(
        instance, name=f"{instance.name}, {len(core)} alone", requests=tuple(earlier(requests[r]) for r in core)
    )
    added = sum(works[-1] for _, works in others) + part.start_ps - first
    return Part(part, added, {"kind": "core_alone", "requests": list(core)})


def _least_works(instance: Instance, request: Request) -> list[int]:
    """Return what the first k tokens of a request take at least beyond a batch's base, k = 0, …, O."""
    cost, limits = instance.cost, instance.limits
    slope = min(token for _, token in cost.affine)

    def generated(held: int) -> int:
        filled = slope * held + cost.prefill_ps(held, 0)
        decoded = slope + cost.decode_ps(held - 1)
        if held == request.input:
            return filled
        return min(filled, decoded) if instance.rules.eviction and held <= limits.prefill_tokens else decoded

    return list(accumulate((generated(request.input + k) for k in range(request.output)), initial=0))
