"""What a method says about an instance: a schedule, a bound, and what backs them."""

from __future__ import annotations

import platform
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from pydantic import Field

from optsched.model.domain import domain
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, gap
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule


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
    objective: Objective
    status: Status
    badge: Badge = Badge.HEURISTIC
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

    @property
    def gap(self) -> float | None:
        """``(value - bound) / value``, 0 if equal, None if either is missing."""
        return gap(self.value, self.bound)
