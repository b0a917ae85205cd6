"""The planner as a formulation: good schedules at any size, and no bound."""

from __future__ import annotations

from functools import partial
from itertools import chain
from threading import Event

import numpy as np

from optsched.model.result import Badge
from optsched.planner.neighbourhood import Neighbourhood
from optsched.planner.search import RuleSearch
from optsched.planner.sizes import TooLargeToPlanError
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError, require_monotone
from optsched.solvers.interrupt import wait_interruptibly
from optsched.stopwatch import now_s


class Planner:
    """List scheduling and large-neighbourhood search, as `optsched.solvers.formulation.Formulation`.

    Its schedules have no swaps. It claims no bound, so that it also covers instances that allow swaps.
    """

    declaration = Declaration(
        covers=("swap",),
        before_policies=True,
        sequential=True,
        turns=(Turn(20, 0.03), Turn(20, 0.85, (Regime.LARGE,))),
    )
    """First for a schedule to beat, and alone on large instances, where it leaves time to check the schedules."""

    def solve(self, task: Task) -> Outcome:
        """Look for better schedules until time is up, or one is as good as ``at_most`` or the bound.

        A deterministic limit counts millions of runs in the plans that are tried.

        Raises
        ------
        UnsupportedError
            For times between tokens, or if numbers are too large.
        """
        require_monotone(task.objective)
        started = now_s()
        try:
            search = RuleSearch.of(task.instance, task.objective, task.restrictions, np.random.default_rng(task.seed))
        except TooLargeToPlanError as error:
            raise UnsupportedError(str(error)) from None
        stopped = Event()
        # Ctrl-C on the way into compiled code, which the search enters all the time, may crash the process.
        wait_interruptibly(partial(_search, task, search, started, stopped), stopped.set)
        best = search.best
        if best is None or (task.incumbent_value is not None and task.incumbent_value <= best.value):
            return Outcome(Termination.LIMIT, task.incumbent, None, Badge.HEURISTIC)
        return Outcome(Termination.LIMIT, best.plan.schedule(), None, Badge.HEURISTIC)


def _search(task: Task, search: RuleSearch, started: float, stopped: Event) -> None:
    """Search until time is up, a plan is good enough, or Ctrl-C."""
    enough = max(task.bound, task.restrictions.at_most or 0)
    value = task.incumbent_value
    neighbourhood = Neighbourhood(task, np.random.default_rng([task.seed, 1]))
    for found in chain(search.start(), search.improve(neighbourhood)):
        elapsed = now_s() - started
        if value is None or found.value < value:
            value = found.value
            task.progress(ProgressEvent(elapsed, value, task.bound))
        if value <= enough or elapsed > task.time_limit_s or stopped.is_set():
            return
        if task.deterministic_limit is not None and search.work > task.deterministic_limit * 1e6:
            return
