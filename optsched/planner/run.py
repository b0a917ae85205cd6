"""Plans for one task, until time is up."""

from __future__ import annotations

from functools import partial
from itertools import chain
from threading import Event

import numpy as np

from optsched.model.result import Badge
from optsched.planner.neighbourhood import Neighbourhood
from optsched.planner.search import RuleSearch
from optsched.planner.sizes import TooLargeToPlanError
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError
from optsched.solvers.interrupt import wait_interruptibly
from optsched.stopwatch import now_s


def plan(task: Task) -> Outcome:
    """Look for better schedules of a monotone objective until time is up, or one is good enough.

    Raises
    ------
    UnsupportedError
        If numbers are too large.
    """
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
