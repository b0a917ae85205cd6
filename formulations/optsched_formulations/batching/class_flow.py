"""Integer flows of interchangeable requests, for the makespan offline with whole prefills: CP-SAT and MIP.

The mathematics is with its parts: variables, rows and what the reduced model leaves out in `model`, the
inequality that strengthens memory in `packing`, solvers and what is believed of them in
`engines`.

The number of batches is free, up to what the best schedule known leaves room for: every batch costs at least a base, so
J ≤ (value − least work) / base (`costs.Horizon`). Fixing J, from below, one number after the other, was tried: it
refutes a small J faster, but for many instances the least refill cost at one such J is harder to prove than the
optimum over all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from optsched.bounds.volume import volume_bound
from optsched.solvers.claims import claim
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, nothing_better
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import Costs, Horizon, value_to_beat
from optsched_formulations.batching.flow.engines import Answer, minimize_with_cpsat, minimize_with_highs
from optsched_formulations.batching.flow.model import FlowModel, find_packing, require_flows

Engine = Callable[[FlowModel, Task, int], Answer]
"""Minimises a model's objective for a task, among schedules of at most a value."""

_PACKING_SHARE = 0.05
"""Share of the time limit that the packing inequality may take."""


class ClassFlow:
    """Flows on CP-SAT, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(
        turns=(
            Turn(60, 0.6, (Regime.FEW_RESIDENT, Regime.FEW_TOGETHER)),
            Turn(60, 0.85, (Regime.MANY_TOGETHER,)),
        )
    )
    """It finds schedules that the state search does not reach and patterns only bound."""

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan of an offline instance with whole prefills.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it.

        Raises
        ------
        UnsupportedError
            For any other task, if the numbers could overflow, or the model would be too large to build.
        """
        return _solve(task, minimize_with_cpsat)


class ClassFlowMip:
    """Flows on HiGHS, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(baseline=True)

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan of an offline instance with whole prefills.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it.

        Raises
        ------
        UnsupportedError
            For any other task, for a limit in deterministic time, or if the model would be too large to build.
        """
        return _solve(task, minimize_with_highs)


def _solve(task: Task, engine: Engine) -> Outcome:
    require_flows(task)
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
