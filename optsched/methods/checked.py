"""Nothing leaves a method before the independent checker has seen it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optsched.check import UnprovedError, check_schedule, proved_bound
from optsched.model.cluster_metrics import cluster_metrics
from optsched.model.errors import DefectError
from optsched.model.instance import Instance
from optsched.model.metrics import Tally, metrics, tally_of
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result
from optsched.model.schedule import Schedule


class DefectFoundError(DefectError):
    """One of several methods contradicts the checker, or another method.

    Parameters
    ----------
    defects
        What is wrong, a sentence each.
    result
        What the other methods found. The claims that are wrong are not part of it; its message names them.
    """

    def __init__(self, defects: Sequence[str], result: Result) -> None:
        super().__init__("; ".join(defects))
        self.defects = tuple(defects)
        self.result = result


class IllegalScheduleError(DefectError):
    """A schedule breaks a rule of the instance or leaves its class.

    Parameters
    ----------
    origin
        What made it.
    violations
        What the checker says; at least one.
    """

    def __init__(self, origin: str, violations: list[str]) -> None:
        super().__init__(f"{origin} made an illegal schedule: {violations[0]} ({len(violations)} violations)")
        self.violations = violations


def checked_metrics(
    instance: Instance, schedule: Schedule, origin: str, restrictions: Restrictions, tally: Tally | None = None
) -> dict[str, Any]:
    """Return the metrics of a schedule that the checker finds legal; of its tally, where there is one.

    The instance is one machine without a cache; of others `checked_cluster_metrics` has the metrics.

    Raises
    ------
    IllegalScheduleError
        If the schedule breaks a rule; what it is allowed to cost at most is no rule.
    DefectError
        If the checker computes other metrics than the producer.
    """
    recomputed = _recomputed(instance, schedule, origin, restrictions)
    if tally is None:
        tally = tally_of(instance, schedule)
    return _agreed(metrics(instance, tally), recomputed, origin)


def checked_cluster_metrics(
    instance: Instance, schedule: Schedule, origin: str, restrictions: Restrictions
) -> dict[str, Any]:
    """Return the metrics of a schedule of several machines, or of one with a cache, as `checked_metrics` does."""
    recomputed = _recomputed(instance, schedule, origin, restrictions)
    return _agreed(cluster_metrics(instance, schedule), recomputed, origin)


def _recomputed(
    instance: Instance, schedule: Schedule, origin: str, restrictions: Restrictions
) -> dict[str, Any] | None:
    """Return the metrics that the checker computes of a legal schedule."""
    violations, recomputed = check_schedule(instance, schedule, restrictions)
    if violations:
        raise IllegalScheduleError(origin, violations)
    return recomputed


def _agreed(found: dict[str, Any], recomputed: dict[str, Any] | None, origin: str) -> dict[str, Any]:
    if found != recomputed:
        raise DefectError(f"{origin}: the checker computes other metrics of the same schedule")
    return found


def is_proved(
    instance: Instance, restrictions: Restrictions, objective: Objective, bound: int, certificate: dict[str, Any] | None
) -> bool:
    """Return whether the checker proves a bound from its certificate."""
    try:
        return proved_bound(instance, restrictions, objective, certificate) >= bound
    except UnprovedError:
        return False
