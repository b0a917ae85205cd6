"""The end of a task's time, at which builders of large models look: a solver only keeps what is left of it."""

from __future__ import annotations

from dataclasses import dataclass

from optsched.solvers.formulation import Task
from optsched.stopwatch import now_s


class OutOfTimeError(Exception):
    """A model was not built in time."""


@dataclass(frozen=True)
class Deadline:
    """When time is up.

    Parameters
    ----------
    until_s
        On the clock of `optsched.stopwatch`.
    """

    until_s: float

    @classmethod
    def of(cls, task: Task) -> Deadline:
        """Return that of a task that begins now."""
        return cls(now_s() + task.time_limit_s)

    def left_s(self) -> float:
        """Return the seconds left, 0 at least."""
        return max(self.until_s - now_s(), 0.0)

    def require(self) -> None:
        """Raise `OutOfTimeError` when time is up."""
        if now_s() > self.until_s:
            raise OutOfTimeError
