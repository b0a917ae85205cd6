r"""Large neighbourhoods of a plan: some requests are taken out and placed anew, all at once, by an exact model.

Requests F that start at about the same time may start at any other, and then run without pause; others stay where they
are and leave :math:`R_b` of the cache in each of a few stretches of batches b. Let :math:`x_{rs}` say that r
starts in stretch s, :math:`d_{rj}` how much it holds in its j-th stretch, and :math:`w_{rs}` the cost of that start:

.. math::

    \min \sum_{r, s} w_{rs} x_{rs} \quad \text{with} \quad \sum_s x_{rs} = 1 \ (r ∈ F), \qquad
    \sum_{r, s} d_{r, b-s} x_{rs} ≤ R_b \ \text{for every stretch b},

over stretches s in which r has arrived. For sums of e2e latencies w is the time at which r then ends, by the plan's
clock, times its weight; for the makespan it is the sum over stretches of the stretch times what r holds, so that memory
is used early. CP-SAT solves it in milliseconds. Its answer is an order; list scheduling makes a plan of that, exactly,
and the search keeps it if it is better.

Reference: Shaw 1998 (CP) for taking out related requests; here those that compete for the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from ortools.sat.python import cp_model

from optsched.model.ints import Ints
from optsched.model.objectives import Objective
from optsched.planner.backward import backward
from optsched.planner.forward import forward
from optsched.planner.plan import ScheduleArrays
from optsched.planner.search import Candidate
from optsched.solvers.cpsat import minimize_cpsat
from optsched.solvers.formulation import Task

_FREE = 12
"""Requests that are taken out."""
_STRETCHES = 48
"""Stretches of batches from the first start to the last end of those taken out; half as many follow."""
_EFFORT = 0.02
"""CP-SAT's deterministic limit."""
_BITS = 50
"""Bits of a cost; CP-SAT adds costs up."""
_FINE = 10**6
"""Units of time in the length of the plan."""


class Neighbourhood:
    """Proposes other orders, as `optsched.planner.search.Propose`.

    Parameters
    ----------
    task
        The planner's task.
    rng
        Draws which requests are taken out.
    """

    def __init__(self, task: Task, rng: np.random.Generator) -> None:
        self._rng, self._objective = rng, task.objective
        self._solver_task = replace(task.about(task.instance), workers=1, deterministic_limit=_EFFORT)
        requests, limits = task.instance.requests, task.instance.limits
        self._arrival = np.array([request.arrival_ps for request in requests], np.int64)
        self._input = np.array([request.input for request in requests], np.int64)
        weighted = task.objective is Objective.WEIGHTED_E2E
        self._weight = np.array([request.weight if weighted else 1 for request in requests], np.int64)
        self._capacity = limits.kv_blocks * limits.kv_block

    def __call__(self, found: Candidate) -> Ints | None:
        """Return another order for a plan's recipe; None where there is no model of it."""
        sums = self._objective in {Objective.MEAN_E2E, Objective.WEIGHTED_E2E}
        if found.recipe.scheme not in {forward, backward} or not (sums or self._objective is Objective.MAKESPAN):
            return None
        stays = _residency(found.plan)
        pivot = int(self._rng.integers(len(found.plan.start_ps)))
        free = np.sort(np.argsort(np.abs(stays.start - pivot), kind="stable")[:_FREE])
        starts = self._placed(found.plan, stays, free, sums=sums)
        if starts is None:
            return None
        start = stays.start.copy()
        start[free] = starts
        if found.recipe.scheme is backward:
            # The last to end is placed first.
            order = np.lexsort((found.recipe.rank, -(start + stays.length)))
        else:
            order = np.lexsort((found.recipe.rank, start))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return rank

    def _placed(self, plan: ScheduleArrays, stays: _Residency, free: Ints, *, sums: bool) -> Ints | None:
        """Return the batches in which those taken out start at the least cost; None if CP-SAT finds nothing."""
        begin = int(stays.start[free].min())
        width = -(-int((stays.start + stays.length)[free].max() - begin) // _STRETCHES)
        count = _STRETCHES + _STRETCHES // 2
        now = np.rint((stays.start[free] - begin) / width).astype(np.int64)
        demands = [self._demand(r, int(stays.length[r]), stays, width) for r in free.tolist()]
        taken = np.zeros(count + _STRETCHES + 1, np.int64)
        for place, demand in zip(now.tolist(), demands, strict=True):
            taken[place : place + demand.size] += demand
        others = _held(stays, self._input) - _held(stays.of(free), self._input[free], len(plan.start_ps))
        middles = begin + width * np.arange(taken.size) + width // 2
        room = self._capacity - np.where(middles < others.size, others[np.minimum(middles, others.size - 1)], 0)
        room = np.maximum(room, taken)
        ends = _Clock(plan)
        unit = max(1, int(plan.end_ps[-1] - plan.start_ps[0]) // _FINE)
        model, costs, placed = cp_model.CpModel(), [], []
        loads: list[list[cp_model.LinearExprT]] = [[] for _ in range(taken.size)]
        for r, demand, place in zip(free.tolist(), demands, now.tolist(), strict=True):
            first = int(np.searchsorted(plan.start_ps, self._arrival[r])) - begin
            least = min(max(0, -(-first // width)), place)
            chosen = {s: model.new_bool_var("") for s in range(least, count)}
            model.add_exactly_one(chosen.values())
            for s, var in chosen.items():
                if sums:
                    end = ends.at(begin + s * width + int(stays.length[r]) - 1)
                    cost = int(self._weight[r]) * (end - int(plan.start_ps[begin])) // unit
                else:
                    cost = int((demand * (s + np.arange(demand.size))).sum())
                costs.append((cost, var))
                for b, load in enumerate(demand.tolist(), start=s):
                    if b < len(loads):
                        loads[b].append(load * var)
                model.add_hint(var, s == place)
            placed.append(chosen)
        for load, most in zip(loads, room.tolist(), strict=True):
            if load:
                model.add(sum(load) <= most)
        # Of large weights the upper bits decide.
        shift = max(0, max(cost for cost, _ in costs).bit_length() - _BITS)
        answer = minimize_cpsat(model, sum((cost >> shift) * var for cost, var in costs), self._solver_task, int)
        if answer.value_of is None:
            return None
        return begin + width * np.array(
            [next(s for s, var in chosen.items() if answer.value_of(var)) for chosen in placed], np.int64
        )

    def _demand(self, request: int, length: int, stays: _Residency, width: int) -> Ints:
        """Return what a request holds in the middle of each stretch of its batches."""
        middles = np.minimum(width * np.arange(-(-length // width)) + width // 2, length - 1)
        held: Ints = self._input[request] + np.maximum(middles - stays.fill[request], 0)
        return held


@dataclass(frozen=True)
class _Residency:
    """When requests hold KV: first batches, numbers of batches, and how many of them come before the first token."""

    start: Ints
    length: Ints
    fill: Ints

    def of(self, requests: Ints) -> _Residency:
        return _Residency(self.start[requests], self.length[requests], self.fill[requests])


def _residency(plan: ScheduleArrays) -> _Residency:
    start = plan.first.copy()
    np.minimum.at(start, plan.chunks[:, 0], plan.chunks[:, 1])
    return _Residency(start, plan.last - start + 1, plan.first - start)


def _held(stays: _Residency, prompt: Ints, batches: int | None = None) -> Ints:
    """Return what requests hold in every batch: their prompts from the first on, and what they have generated."""
    end = stays.start + stays.length
    size = (int(end.max()) if batches is None else batches) + 2
    change, growth = np.zeros(size, np.int64), np.zeros(size, np.int64)
    first = stays.start + stays.fill
    np.add.at(change, stays.start, prompt)
    np.add.at(change, end, -(prompt + end - 1 - first))
    np.add.at(growth, first + 1, 1)
    np.add.at(growth, end, -1)
    held: Ints = np.cumsum(change + np.cumsum(growth))
    return held


class _Clock:
    """Ends of batches; batches beyond the last one take as long as the mean."""

    def __init__(self, plan: ScheduleArrays) -> None:
        self._end: Ints = plan.end_ps
        self._mean = int(plan.end_ps[-1] - plan.start_ps[0]) // len(plan.end_ps)

    def at(self, batch: int) -> int:
        """Return the end of a batch."""
        beyond = max(0, batch - len(self._end) + 1)
        return int(self._end[min(batch, len(self._end) - 1)]) + beyond * self._mean
