"""The contract of a formulation: a task, progress during the search, an outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from optsched.model.instance import Instance
from optsched.model.objectives import Objective, gap
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge
from optsched.model.schedule import Schedule
from optsched.solvers.declaration import declaration_of


class Termination(StrEnum):
    """Why a solver stopped; schedule and bound are separate fields."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    LIMIT = "limit"


@dataclass(frozen=True)
class ProgressEvent:
    """State of a search at some moment; objective values in the objective's unit."""

    elapsed_s: float
    incumbent: int | None
    bound: int | None

    @property
    def gap(self) -> float | None:
        """``(incumbent - bound) / incumbent``; None if either is missing."""
        return gap(self.incumbent, self.bound)


Progress = Callable[[ProgressEvent], None]


def silent(event: ProgressEvent) -> None:
    """Ignore progress."""


def nothing_beside() -> int | None:
    """Return that no schedule has been found beside a search."""
    return None


@dataclass(frozen=True)
class Task:
    """Input of a formulation.

    Parameters
    ----------
    instance
        The problem on one machine, restrictions already applied to its rules.
    objective
        Objective to minimise.
    restrictions
        Restrictions beyond the rules: first-run order, number of evictions, a value not to exceed. A formulation
        that does not cover one that is set raises `UnsupportedError`.
    incumbent, incumbent_value
        A legal schedule to start from, and its objective value; None if there is none.
    bound
        A proved lower bound; 0 if nothing is known.
    time_limit_s
        Wall-clock limit in seconds.
    deterministic_limit
        Limit in the solver's deterministic time; None for none.
    workers, seed
        Threads and random seed of the solver.
    progress
        Called whenever incumbent or bound improves.
    value_beside
        Returns the value of the best schedule that satisfies the restrictions and is known by now, for searches beside
        this one find some, too; None if there is none. Bounds up to it are enough.
    """

    instance: Instance
    objective: Objective
    restrictions: Restrictions = field(default_factory=Restrictions)
    incumbent: Schedule | None = None
    incumbent_value: int | None = None
    bound: int = 0
    time_limit_s: float = 60.0
    deterministic_limit: float | None = None
    workers: int = 1
    seed: int = 0
    progress: Progress = silent
    value_beside: Callable[[], int | None] = nothing_beside

    def __post_init__(self) -> None:
        self.instance.require_plain()

    def about(self, instance: Instance) -> Task:
        """Return the same task about an instance of which nothing is known, and whose progress is not told."""
        return replace(
            self,
            instance=instance,
            incumbent=None,
            incumbent_value=None,
            bound=0,
            progress=silent,
            value_beside=nothing_beside,
        )


@dataclass(frozen=True)
class Outcome:
    """Result of a formulation.

    Parameters
    ----------
    termination
        Why it stopped. ``OPTIMAL`` means that ``bound`` equals the schedule's value.
    schedule
        The best schedule found, None if none was.
    bound
        The best lower bound proved, None if none was.
    badge, certificate
        What backs the bound.
    """

    termination: Termination
    schedule: Schedule | None
    bound: int | None
    badge: Badge
    certificate: dict[str, Any] | None = None


class UnsupportedError(Exception):
    """The formulation does not cover this task; the message says which part of it."""


class SolverCrashError(Exception):
    """A solver crashed; the message says how. Its intermediate results are discarded."""


def require_covered(formulation: object, instance: Instance) -> None:
    """Raise `UnsupportedError` where the instance has an added rule that the formulation does not declare to cover."""
    for rule in instance.rules.added:
        if rule not in declaration_of(formulation).covers:
            raise UnsupportedError("swapping (forbid swap)" if rule == "swap" else f"the rule {rule}")


def require_seconds(task: Task) -> None:
    """Raise `UnsupportedError` for a limit in deterministic time."""
    if task.deterministic_limit is not None:
        raise UnsupportedError("a deterministic limit, it knows seconds only")


def require_monotone(objective: Objective) -> None:
    """Raise `UnsupportedError` for an objective that may decrease if a batch is delayed."""
    if not objective.is_monotone:
        raise UnsupportedError(f"objective {objective.value}, it starts batches as early as possible")


def nothing_better(task: Task) -> Outcome:
    """Return the outcome for a solver that proves that no schedule reaches ``at_most``, or the value of the incumbent.

    Unless ``at_most`` is below the incumbent's value, such a schedule exists (the incumbent, or one request after
    another): then the solver is wrong, and its claim is dropped.
    """
    at_most = task.restrictions.at_most
    if at_most is not None and (task.incumbent_value is None or task.incumbent_value > at_most):
        return Outcome(Termination.INFEASIBLE, None, max(task.bound, at_most + 1), Badge.SOLVER_CLAIMED)
    return Outcome(Termination.LIMIT, None, None, Badge.HEURISTIC)


class Formulation(Protocol):
    """An exact model of the scheduling problem.

    The keyword arguments of its class are its options, such as ``solver``; all have defaults and take text.
    Its class may have an attribute ``declaration`` (`optsched.solvers.declaration.Declaration`).
    """

    def solve(self, task: Task) -> Outcome:
        """Solve the task, or raise `UnsupportedError` before doing anything.

        Ctrl-C raises `KeyboardInterrupt` in here. An implementation that catches it should return what has been found
        so far (`Termination.LIMIT`).
        """
        ...


class ModelFormat(StrEnum):
    """File formats of mixed-integer programmes that solvers read."""

    LP = "lp"
    MPS = "mps"


@runtime_checkable
class Exporter(Protocol):
    """A formulation whose model can be written down, for other solvers."""

    def export(self, task: Task, style: ModelFormat) -> str:
        """Return the model of the task as the text of a file, or raise `UnsupportedError`."""
        ...
