r"""Schedules in which every request runs in successive batches: few batches, by a search over where requests begin.

Offline, a schedule without pauses and evictions is no more than a first batch for each request. With :math:`x_{ct}`
requests of class c (input I and output O) that begin in batch t of J, memory asks for

.. math:: \sum_{c,k < O_c} ⌈(I_c + k)/b⌉\, x_{c,j-k} ≤ M/b, \qquad 0 ≤ j < J, \qquad \sum_t x_{ct} = n_c,

and so do C, P and N with what the requests run in batch j. That is far smaller than a model of evictions (`flow`), and
where many requests share the cache an optimal schedule mostly needs none. J falls by one as long as a schedule is
found; where the batch time has one piece all schedules without refills differ in J alone. So a schedule may not be
optimal, and nothing is bounded.

*CP-SAT* has a second for each J, in which it refutes most of those that have no schedule. *A walk* goes on where that
says neither (tabu search: Glover, "Tabu search, part I", ORSA Journal on Computing 1, 1989; the prices are those of the
breakout method: Morris, AAAI 1993). All requests begin somewhere, and what batches take beyond their limits has a
price. A step takes the requests of one such batch, looks at all places of each and at all its exchanges with other
requests, and makes the one that costs least, be it more than before; where a request began it does not begin again
for a few steps. Where no step lowers the cost, prices rise in the batches that are too full. Again and again it begins
anew. 32 requests in 34 batches, of which 97 % of the memory is needed, take seconds (`ladder-n32-LILO+LISO-k8`), where
CP-SAT finds nothing in minutes.
"""

from __future__ import annotations

from optsched.model.objectives import Objective
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import (
    Outcome,
    Task,
    UnsupportedError,
    require_seconds,
)


class Unbroken:
    """The method of this module, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(sequential=True, turns=(Turn(35, 0.25, (Regime.MANY_TOGETHER,)),))
    """Where few requests share the cache the best schedules evict."""

    def solve(self, task: Task) -> Outcome:
        """Look for schedules of an offline instance with few batches; it bounds nothing.

        Raises
        ------
        UnsupportedError
            For another objective than the makespan, arrivals, batches of one kind, prompts that no batch holds whole,
            an order of first runs, a limit in deterministic time, or if the model would be too large to build.
        """
        _require(task)
        from optsched_formulations.batching.search.beginnings import Beginnings  # noqa: PLC0415  # loads compiled code

        return Beginnings(task).best()


def _require(task: Task) -> None:
    instance, limits = task.instance, task.instance.limits
    if task.objective != Objective.MAKESPAN:
        raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan")
    if not instance.offline:
        raise UnsupportedError("requests that arrive over time, it is for those that arrive together")
    if not instance.rules.hybrid:
        raise UnsupportedError("batches of one kind, it needs hybrid ones")
    if max(request.input for request in instance.requests) > min(limits.prefill_tokens, limits.batch_tokens):
        raise UnsupportedError("prompts that no batch holds whole")
    if task.restrictions.first_runs(instance):
        raise UnsupportedError("an order of first runs")
    require_seconds(task)
