"""Prices first, then CP-SAT on what they leave, as `pair_flow` says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ortools.sat.python import cp_model

from optsched.bounds.volume import volume_bound
from optsched.model.metrics import evaluate
from optsched.planner.formulation import Planner
from optsched.solvers.claims import claim
from optsched.solvers.cpsat import minimize_cpsat
from optsched.solvers.deadline import Deadline, OutOfTimeError
from optsched.solvers.formulation import (
    Outcome,
    ProgressEvent,
    Task,
    Termination,
    UnsupportedError,
    nothing_better,
    silent,
)
from optsched.solvers.interrupt import until_interrupted
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import value_to_beat
from optsched_formulations.batching.flow.engines import add_row
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.objective import Goal, bounded
from optsched_formulations.batching.packing import HeldClass, packing
from optsched_formulations.batching.pairs.model import PairModel
from optsched_formulations.batching.pairs.prices import Priced, Relaxed
from optsched_formulations.batching.pattern.cuts import violated_packings

_MOST_COEFFICIENTS, _SMALL = 2_000_000, 50_000
"""Of the programme; up to the latter CP-SAT is asked whatever the gap."""
_PRICES_SHARE, _CUTS_SHARE = 0.8, 0.1
"""Shares of the time that prices may take, and of that each search for packing inequalities."""
_BASIC_SHARE = 0.3
"""Share of the time left that a basic solution, whose prices are exact but for rounding, may take."""
_MOST_ROUNDS, _CUTS = 24, 12
"""Rounds of prices, and packing inequalities that each adds at most."""
_PROGRESS = 0.01
"""Share of the gap that a round has to close for another one."""
_FEW = 0.15
"""Violated rows, as a share of the pairs, up to which the rows that are priced say nearly all."""
_MOST_GAP = 0.03
"""Share of the value up to which CP-SAT is asked."""
_PLAN_SHARE, _WORTH = 0.05, 200
"""Share of the time left in which the planner may look for a schedule, one by less than a 200th above the bound."""
_FEWEST_RESIDENT = 4
"""κ from which on the relaxation is strong."""
_MORE_BATCHES, _SHARE_MORE = 3, 8
"""Batches beyond those of the best schedule known, at least, and what part of these."""


def minimize(task: Task) -> Outcome:
    """Solve a task that `pair_flow` covers, in more and more batches until none is late.

    Raises
    ------
    UnsupportedError
        If the programme would be too large.
    """
    classes = Classes(task.instance, task.objective)
    most = sum(request.output for request in task.instance.requests)
    horizon, deadline = min(_horizon(task, classes), most), Deadline.of(task)
    if PairModel.size_of(classes, horizon) > _MOST_COEFFICIENTS:
        raise UnsupportedError(f"{horizon} batches of its programme, which would be too large")
    if task.instance.kappa < _FEWEST_RESIDENT and PairModel.size_of(classes, horizon) > _SMALL:
        raise UnsupportedError(f"a cache of {task.instance.kappa:.3g} requests, of which its relaxation says little")
    outcome = claim(task, [], None)
    while True:
        try:
            solution = _Solution(task, classes, horizon, deadline)
        except OutOfTimeError:
            return outcome
        outcome = solution.solve()
        longer = min(2 * horizon, most)
        large = PairModel.size_of(classes, longer) > _MOST_COEFFICIENTS
        if not solution.late or longer <= horizon or large or not deadline.left_s():
            return outcome
        horizon = longer


class _Solution:
    """One task and horizon: the programme, built before a deadline, and what prices prove of it.

    Attributes
    ----------
    late
        Whether the best solution has a late request.
    """

    def __init__(self, task: Task, classes: Classes, horizon: int, deadline: Deadline) -> None:
        self._task, self._deadline = task, deadline
        self._started = now_s()
        self._classes = classes
        self._upper = value_to_beat(task)
        self._small = PairModel.size_of(classes, horizon) < _SMALL
        self._model = PairModel(classes, horizon, deadline)
        self._priced = Priced(self._model.program, self._model.pairs)
        self.late = False

    def solve(self) -> Outcome:
        """Find prices, then ask CP-SAT."""
        if until_interrupted(lambda _: self._find_prices()) or self._hopeless:
            return claim(self._task, [], self._bound)
        if self._bound > self._upper:
            return nothing_better(self._task)
        return self._solve_rest()

    @property
    def _bound(self) -> int:
        """No schedule is better than this, or than the value to beat."""
        return self._model.constant + self._priced.bound

    @property
    def _hopeless(self) -> bool:
        """Whether prices leave too much for CP-SAT."""
        return self._upper - self._bound > _MOST_GAP * self._upper and not self._small

    def _find_prices(self) -> None:
        """Raise the bound by prices; ask the planner where it is hopeless with the best schedule known."""
        ended = self._price()
        if self._hopeless:
            self._plan()
        if ended and not self._hopeless:
            self._take_prices(_BASIC_SHARE * self._deadline.left_s(), basic=True)

    def _plan(self) -> None:
        """Let the planner look for a better schedule: what one that runs beside this finds does not come here."""
        close = -(-self._bound * _WORTH // (_WORTH - 1))
        # The planner ends at its task's bound. This one is not proved, so that nothing is to be told of it.
        wanted = replace(self._task, bound=close, time_limit_s=_PLAN_SHARE * self._deadline.left_s(), progress=silent)
        planned = Planner().solve(wanted)
        if planned.schedule is not None:
            value = int(evaluate(self._task.instance, planned.schedule)["objectives"][self._task.objective.value])
            if self._task.incumbent_value is None or value < self._task.incumbent_value:
                self._task = replace(self._task, incumbent=planned.schedule, incumbent_value=value)
                self._upper = min(self._upper, value_to_beat(self._task))
                self._task.progress(ProgressEvent(now_s() - self._started, value, self._bound))

    def _price(self) -> bool:
        """Find prices and packing inequalities, round by round, while they help; return whether there was time."""
        until = _PRICES_SHARE * self._deadline.left_s()
        classes = self._classes
        held = [
            HeldClass(len(members), [classes.size[first + k] for k in range(kind[1])])
            for first, members, kind in zip(classes.first, classes.members, classes.kinds, strict=True)
        ]
        all_held = packing(held, classes.capacity, _CUTS_SHARE * until)
        if all_held is not None:
            self._model.add_packing(all_held)
        for _ in range(_MOST_ROUNDS):
            before = self._bound
            relaxed = self._take_prices(until - (now_s() - self._started))
            gap = self._upper - self._bound
            if relaxed is None or gap <= 0 or self._bound - before < _PROGRESS * gap:
                return relaxed is not None
            amounts = {place: np.array(of) for place, of in self._model.held(relaxed.values.__getitem__).items()}
            deadline = now_s() + _CUTS_SHARE * until
            found = violated_packings(held, classes.capacity, amounts, _CUTS, deadline)
            for inequality in found:
                self._model.add_packing(inequality)
        return True

    def _take_prices(self, seconds: float, *, basic: bool = False) -> Relaxed | None:
        """Solve the linear relaxation, more and more of its rows, and take what prices prove."""
        until = now_s() + seconds
        while True:
            relaxed = self._priced.relaxed(until - now_s(), basic=basic)
            if relaxed is None:
                return None
            self._priced.narrow(relaxed.prices, self._upper - self._model.constant)
            self._task.progress(ProgressEvent(now_s() - self._started, self._task.incumbent_value, self._bound))
            few = self._priced.price_violated(relaxed.values) <= _FEW * len(self._model.pairs)
            if few or basic or self._bound > self._upper:
                return relaxed

    def _solve_rest(self) -> Outcome:
        """Solve what prices leave with CP-SAT."""
        task, priced, cp = self._task, self._priced, cp_model.CpModel()
        variables = [
            cp.new_int_var(lower, upper, "")
            for lower, upper in zip(priced.lower.tolist(), priced.upper.tolist(), strict=True)
        ]
        for row in priced.rows():
            terms = [variables[x] for _, x in row.terms]
            add_row(cp, row, cp_model.LinearExpr.weighted_sum(terms, [factor for factor, _ in row.terms]))
        objective = self._model.program.objective
        total = cp_model.LinearExpr.weighted_sum([variables[x] for _, x in objective], [cost for cost, _ in objective])
        known = replace(task, bound=max(task.bound, self._bound), time_limit_s=self._deadline.left_s())
        goal = bounded(cp, Goal(total, 1, self._model.constant), known, self._upper)
        answer = minimize_cpsat(cp, goal.expression, known, goal.to_value, linear=True)
        if answer.termination == Termination.INFEASIBLE:
            return nothing_better(task)
        value_of = answer.value_of
        schedule = None
        if value_of is not None:
            schedule = self._model.schedule(task.instance, lambda x: value_of(variables[x]))
            self.late = schedule is None and answer.termination == Termination.OPTIMAL
        bound = self._bound if answer.bound is None else max(self._bound, goal.to_value(answer.bound))
        return claim(task, [schedule], bound)


def _horizon(task: Task, classes: Classes) -> int:
    """Return a number of batches within which good schedules end."""
    known = task.incumbent
    least = volume_bound(task.instance).batches if known is None else known.length
    longest = max(output for _, output, _ in classes.kinds)
    return max(least, longest) + max(_MORE_BATCHES, least // _SHARE_MORE)
