"""Bounds on the makespan from parts of an instance: some requests alone, solved by methods in turn.

A part comes with a theorem of its formulation: its makespan, and what is added, is no more than that of the whole.
Each search looks only for schedules of the part that leave a better one of the whole possible. As soon as there is no
such schedule, the best one of the whole is optimal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optsched.model.instance import Instance
from optsched.model.result import Badge
from optsched.solvers.formulation import (
    Formulation,
    Outcome,
    ProgressEvent,
    Task,
    Termination,
    UnsupportedError,
)
from optsched.solvers.interrupt import until_interrupted
from optsched.stopwatch import now_s


@dataclass(frozen=True)
class Part:
    """Some requests alone.

    Parameters
    ----------
    instance
        They, with the arrivals that the theorem gives them.
    added
        What their makespan lacks to a bound on that of the whole, in ps.
    certificate
        The whole's certificate, but for ``certificate``, that of the part.
    """

    instance: Instance
    added: int
    certificate: dict[str, Any]


class PartBounds:
    """The best bound so far on the makespan of a task's instance.

    Parameters
    ----------
    task
        The whole.
    methods
        Asked for every part in turn, until one has solved it.
    share
        Of the time left that a part may take with each method.
    """

    def __init__(self, task: Task, methods: Sequence[Callable[[], Formulation]], share: float) -> None:
        self._task, self._methods, self._share = task, methods, share
        self._started = now_s()
        self._bound = task.bound
        self._badge = Badge.HEURISTIC
        self._certificate: dict[str, Any] | None = None
        # A bound that settles the task.
        value, at_most = task.incumbent_value, task.restrictions.at_most
        enough = [] if value is None else [value]
        self._enough = min(enough if at_most is None else [*enough, at_most + 1], default=None)

    def best(self, parts: Iterable[Part], only_while_solved: bool) -> Outcome:
        """Return the best bound that parts prove in time; perhaps no part after the first that is not solved."""
        task = self._task

        def solve_all(came: threading.Event) -> None:
            for part in parts:
                solved = self._solve(part, came)
                if self._over(came) or (only_while_solved and not solved):
                    break

        until_interrupted(solve_all)
        bound = None if self._badge == Badge.HEURISTIC else self._bound
        outcome = Outcome(Termination.LIMIT, None, bound, self._badge, self._certificate)
        at_most, value = task.restrictions.at_most, task.incumbent_value
        if value is not None and bound == value:
            return replace(outcome, termination=Termination.OPTIMAL, schedule=task.incumbent)
        if at_most is not None and bound is not None and bound > at_most:
            return replace(outcome, termination=Termination.INFEASIBLE)
        return outcome

    def _over(self, interrupted: threading.Event) -> bool:
        """Return whether no part can say more, or there is no time."""
        settled = self._enough is not None and self._bound >= self._enough
        return settled or interrupted.is_set() or self._left() <= 0

    def _left(self) -> float:
        return self._task.time_limit_s - (now_s() - self._started)

    def _solve(self, part: Part, interrupted: threading.Event) -> bool:
        """Let methods bound a part; return whether one has solved it."""
        for method in self._methods:
            if self._over(interrupted):
                return False
            outcome = self._ask(method(), part, self._share * self._left())
            if outcome is None:
                continue
            if outcome.bound is not None:
                self._offer(part, outcome)
            if outcome.termination != Termination.LIMIT:
                return True
        return False

    def _ask(self, method: Formulation, part: Part, seconds: float) -> Outcome | None:
        """Look for schedules of a part that leave a better schedule of the whole possible; None if it cannot."""
        task = self._task
        at_most = None if self._enough is None else self._enough - 1 - part.added
        if at_most is not None and at_most < 0:
            return None
        try:
            return method.solve(
                replace(
                    task.about(part.instance),
                    restrictions=replace(task.restrictions, at_most=at_most),
                    time_limit_s=seconds,
                )
            )
        except UnsupportedError:
            return None

    def _offer(self, part: Part, outcome: Outcome) -> None:
        """Take a bound if it is better."""
        assert outcome.bound is not None
        bound = part.added + outcome.bound
        if bound <= self._bound:
            return
        self._bound, self._badge = bound, outcome.badge
        self._certificate = None
        if outcome.badge == Badge.CERTIFIED and outcome.certificate is not None:
            self._certificate = part.certificate | {"certificate": outcome.certificate}
        elapsed = now_s() - self._started
        self._task.progress(ProgressEvent(elapsed, self._task.incumbent_value, bound))
