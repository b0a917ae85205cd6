"""What a method says about an instance: a schedule, a bound, and what backs them."""

from __future__ import annotations

import platform
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from optsched.model.display import html_table, one_line
from optsched.model.domain import domain
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, gap, in_seconds, require_objective
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule

if TYPE_CHECKING:
    from optsched.model.served import ServedRequest


class Status(StrEnum):
    """How a method ended.

    ``optimal``: value and bound are equal, exact integers. ``feasible``: a schedule, perhaps a bound below
    it. ``bound_only``: a bound, no schedule. ``infeasible``: no schedule exists. ``unknown``: neither found.
    ``failed``: a policy could not serve the instance.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    BOUND_ONLY = "bound_only"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    FAILED = "failed"


class Badge(StrEnum):
    """What backs the bound.

    ``certified``: `optsched.check` recomputes it from the certificate. ``solver_claimed``: a solver says so.
    ``heuristic``: there is no bound.
    """

    CERTIFIED = "certified"
    SOLVER_CLAIMED = "solver_claimed"
    HEURISTIC = "heuristic"


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that may influence a result."""
    found = {"python": platform.python_version()}
    for package in ("optsched", "ortools", "highspy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


_BY_NAME = Field(strict=False)
"""Lets a member of an enumeration be given by its value."""


@domain
class Result:
    """One method's answer on one instance (interfaces.md, Result document).

    Parameters
    ----------
    instance, restrictions
        The problem; with restrictions, schedule and bound are those of the smaller class of schedules.
    method
        The formulation's, the bound's or the policy's name.
    objective
        What was minimised, or is reported.
    status, badge
        How it ended and what backs the bound.
    value
        Objective of ``schedule``: ps, for means the integer sum over requests; None without a schedule.
    bound
        Proved lower bound in the same unit; None if there is none.
    schedule, metrics
        The schedule and what `optsched.model.metrics.evaluate` says of it.
    certificate
        What `optsched.check` needs to re-prove the bound.
    message
        Why there is no schedule, or the search ended early, for people.
    options
        What was chosen of the method's options, such as ``{"solver": "cbc"}``; empty for its defaults.
    found_by
        Which policy, bound or formulation gave ``schedule`` and ``bound``, where several were tried.
    runtime_s, seed, versions
        How it was made.
    time_limit_s
        The limit of the search, None if it had none.
    """

    instance: Instance
    method: str
    objective: Annotated[Objective, _BY_NAME]
    status: Annotated[Status, _BY_NAME]
    badge: Annotated[Badge, _BY_NAME] = Badge.HEURISTIC
    value: Annotated[int, Field(ge=0)] | None = None
    bound: Annotated[int, Field(ge=0)] | None = None
    runtime_s: Annotated[float, Field(ge=0)] = 0.0
    seed: int = 0
    versions: dict[str, str] = Field(default_factory=lambda: dict(versions()))
    schedule: Schedule | None = None
    metrics: dict[str, Any] | None = None
    certificate: dict[str, Any] | None = None
    message: str | None = None
    restrictions: Restrictions = Restrictions()
    time_limit_s: Annotated[float, Field(ge=0)] | None = None
    options: dict[str, str] = Field(default_factory=dict)
    found_by: dict[str, str] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        require_objective(self.instance, self.objective)

    @property
    def gap(self) -> float | None:
        """``(value - bound) / value``, 0 if equal, None if either is missing."""
        return gap(self.value, self.bound)

    @property
    def value_s(self) -> float | None:
        """The value in seconds, of means the mean over requests; None without one, and for ``slo_misses``."""
        return in_seconds(self.instance, self.objective, self.value)

    @property
    def bound_s(self) -> float | None:
        """The bound as `value_s`."""
        return in_seconds(self.instance, self.objective, self.bound)

    @property
    def value_requests(self) -> int | None:
        """The value where it counts requests, as ``slo_misses`` does; None where it is a time."""
        return self.value if self.objective == Objective.SLO_MISSES else None

    @property
    def bound_requests(self) -> int | None:
        """The bound as `value_requests`."""
        return self.bound if self.objective == Objective.SLO_MISSES else None

    def requests(self) -> tuple[ServedRequest, ...]:
        """Return a row for each request: machine, hits, TTFT, e2e latency, TPOT, evictions, moves.

        Nothing without a schedule.
        """
        from optsched.model.served import served_requests  # noqa: PLC0415  # asked for by few

        return () if self.schedule is None else served_requests(self.instance, self.schedule)

    def facts(self) -> dict[str, str]:
        """Return what a line or a row of a table says of it, by column."""
        return {
            "instance": self.instance.name,
            "method": self.method,
            "objective": self.objective.value,
            "status": self.status.value,
            "value": _quantity(self.value_s, self.value_requests),
            "bound": _quantity(self.bound_s, self.bound_requests),
            "gap": "" if self.gap is None else f"{self.gap:.2%}",
            "bound is": "" if self.bound is None else self.badge.value,
        }

    def __repr__(self) -> str:
        return one_line("Result", "", self.facts())

    def _repr_html_(self) -> str:
        return html_table([self.facts()])


def _quantity(seconds: float | None, requests: int | None) -> str:
    """Write a value with its unit."""
    if requests is not None:
        return f"{requests} requests"
    return "" if seconds is None else f"{seconds:.6g} s"


class Results(list[Result]):
    """A list of results that a notebook shows as a table."""

    def __repr__(self) -> str:
        return "\n".join(["Results([", *(f"  {result!r}," for result in self), "])"])

    def _repr_html_(self) -> str:
        return html_table(result.facts() for result in self)
