"""The planner (`optsched.planner`) as a formulation: good schedules at any size, and no bound.

List scheduling in hindsight, then a search that changes rules and orders at random, and places a neighbourhood of
requests anew by an exact model (`planning.neighbourhood`).
"""

from __future__ import annotations

import time
from functools import partial
from itertools import chain
from threading import Event

import numpy as np

from optsched.model.result import Badge
from optsched.planner.problem import TooLargeError
from optsched.planner.search import Search, compile_loops
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError, require_monotone
from optsched.solvers.interrupt import wait_interruptibly
from optsched_formulations.batching.planning.neighbourhood import Neighbourhood


class Planner:
    """List scheduling in hindsight and large-neighbourhood search, as `optsched.solvers.formulation.Formulation`.

    It swaps nothing, but claims no bound either, so that instances that allow it are covered.
    """

    declaration = Declaration(
        covers=("swap",), before_policies=True, turns=(Turn(20, 0.01), Turn(20, 0.6, (Regime.LARGE,)))
    )
    """It soon finds a schedule to beat. Large instances are its alone; it leaves time to check their schedules."""

    def solve(self, task: Task) -> Outcome:
        """Look for better schedules until time is up, or one is as good as ``at_most`` or the bound.

        A deterministic limit counts millions of runs in the plans that are tried.

        Raises
        ------
        UnsupportedError
            For times between tokens, or if numbers are too large.
        """
        require_monotone(task.objective)
        started = time.perf_counter()
        try:
            search = Search(task.instance, task.objective, task.restrictions, np.random.default_rng(task.seed))
        except TooLargeError as error:
            raise UnsupportedError(str(error)) from None
        stopped = Event()
        # Ctrl-C on the way into compiled code, which the search enters all the time, may crash the process.
        wait_interruptibly(partial(_search, task, search, started, stopped), stopped.set)
        best = search.best
        if best is None or (task.incumbent_value is not None and task.incumbent_value <= best.value):
            return Outcome(Termination.LIMIT, task.incumbent, None, Badge.HEURISTIC)
        return Outcome(Termination.LIMIT, best.plan.schedule(), None, Badge.HEURISTIC)


def _search(task: Task, search: Search, started: float, stopped: Event) -> None:
    """Go on until time is up, a plan is good enough, or somebody says stop."""
    compile_loops()
    enough = max(task.bound, task.restrictions.at_most or 0)
    value = task.incumbent_value
    neighbourhood = Neighbourhood(task, np.random.default_rng([task.seed, 1]))
    for found in chain(search.start(), search.improve(neighbourhood)):
        elapsed = time.perf_counter() - started
        if value is None or found.value < value:
            value = found.value
            task.progress(ProgressEvent(elapsed, value, task.bound))
        if value <= enough or elapsed > task.time_limit_s or stopped.is_set():
            return
        if task.deterministic_limit is not None and search.work > task.deterministic_limit * 1e6:
            return
