"""One task as flows, for a solver to minimise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from optsched.bounds.volume import volume_bound
from optsched.solvers.claims import claim
from optsched.solvers.formulation import Outcome, Task, nothing_better
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import Costs, Horizon, value_to_beat
from optsched_formulations.batching.flow.engines import Answer, minimize_with_cpsat, minimize_with_highs
from optsched_formulations.batching.flow.model import FlowModel, find_packing

Engine = Callable[[FlowModel, Task, int], Answer]
"""Minimises a model's objective for a task, among schedules of at most a value."""

_PACKING_SHARE = 0.05
"""Share of the time limit that the packing inequality may take."""


def minimize_on_cpsat(task: Task) -> Outcome:
    """Minimise the makespan of a task that flows cover with CP-SAT."""
    return _minimize(task, minimize_with_cpsat)


def minimize_on_highs(task: Task) -> Outcome:
    """Minimise the makespan of a task that flows cover with HiGHS."""
    return _minimize(task, minimize_with_highs)


def _minimize(task: Task, engine: Engine) -> Outcome:
    started = now_s()
    upper, costs = value_to_beat(task), Costs(task.instance)
    most = Horizon(costs, task.objective, upper, len(costs.tokens)).batches
    packing = find_packing(task, _PACKING_SHARE * task.time_limit_s)
    fewest = max(volume_bound(task.instance).batches, 0 if packing is None else packing.batches)
    if fewest > most:
        # Every schedule with that few batches, or that many, is too bad.
        return nothing_better(task)
    model = FlowModel(task, fewest, most, packing)
    left = task.time_limit_s - (now_s() - started)
    answer = engine(model, replace(task, time_limit_s=left), upper)
    return nothing_better(task) if answer.infeasible else claim(task, [answer.schedule], answer.bound)
