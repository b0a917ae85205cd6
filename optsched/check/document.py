"""What a result document states: all of it has to be consistent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from optsched.check.certificates.proofs import proved_bound
from optsched.check.problem import feasible, feasible_cluster, problem_of
from optsched.check.reading import UnprovedError, shown
from optsched.check.schedule.check import check_schedule
from optsched.model.documents import ClaimedResult, instance_sha256
from optsched.model.errors import require_type
from optsched.model.result import Badge, Result, Status

_STATISTICS = ("mean", "max", "p50", "p95", "p99")
_FIRST_OBJECTIVES = frozenset(
    {"makespan", "weighted_e2e", "slo_misses", *(f"{each}_{of}" for each in _STATISTICS for of in ("ttft", "e2e"))}
)
"""Objectives that every version has known, which no document's metrics may lack."""


@dataclass(frozen=True)
class Report:
    """What the checker found wrong.

    Parameters
    ----------
    violations
        One sentence for each violation; empty if everything holds.
    """

    violations: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return not self.violations


def check_result(claimed: ClaimedResult | Result) -> Report:
    """Check everything that a result document states, or that the document of a result would.

    That is: the instance's hash, schedule, value and metrics, bound and gap, status, badge and certificate.
    """
    if isinstance(claimed, Result):
        claimed = ClaimedResult(claimed, instance_sha256(claimed.instance), claimed.gap)
    require_type("claimed", claimed, ClaimedResult, "a result, or one of load_results")
    result = claimed.result
    return Report(
        (
            *_check_hash(claimed),
            *_check_solution(result),
            *_check_gap(result, claimed.gap),
            *_check_status(result),
            *_check_badge(result),
        )
    )


def _check_hash(claimed: ClaimedResult) -> Iterator[str]:
    expected = instance_sha256(claimed.result.instance)
    if claimed.instance_sha256 != expected:
        yield f"instance_sha256 is {shown(claimed.instance_sha256)}, the instance has {expected}"


def _check_solution(result: Result) -> Iterator[str]:
    """Check schedule, value and metrics, which are there together or not at all."""
    if result.schedule is None:
        if result.value is not None:
            yield f"value is {result.value}, but there is no schedule that has it"
        if result.metrics is not None:
            yield "metrics are stated, but there is no schedule that has them"
        return
    violations, metrics = check_schedule(result.instance, result.schedule, result.restrictions)
    yield from violations
    if result.value is None:
        yield "value is null, but there is a schedule"
    if result.metrics is None:
        yield "metrics is null, but there is a schedule"
    if metrics is None:
        return
    value = metrics["objectives"].get(result.objective.value)
    if value is None:
        yield f"objective is {result.objective.value}, which only instances of several machines have"
        return
    if result.value is not None and result.value != value:
        yield f"value is {result.value}, but {result.objective.value} of the schedule is {value}"
    at_most = result.restrictions.at_most
    if at_most is not None and value > at_most:
        yield f"{result.objective.value} of the schedule is {value}, at most {at_most} is allowed"
    if result.metrics is not None:
        # What a document leaves out it does not claim: earlier versions knew fewer metrics.
        stated = {name: found for name, found in metrics.items() if name in result.metrics}
        objectives = result.metrics.get("objectives")
        if isinstance(objectives, dict):
            unknown = set(stated["objectives"]) - _FIRST_OBJECTIVES - set(objectives)
            stated["objectives"] = {name: found for name, found in stated["objectives"].items() if name not in unknown}
        yield from _differences("metrics", result.metrics, stated)


def _differences(path: str, claimed: object, expected: object) -> Iterator[str]:
    """Say where claimed metrics differ from the expected ones."""
    if not isinstance(expected, dict):
        # True equals 1 for Python, not for a reader of the document
        if isinstance(claimed, bool) or claimed != expected:
            yield f"{path} is {shown(claimed)}, of the schedule it is {expected}"
    elif not isinstance(claimed, dict):
        yield f"{path} is {shown(claimed)}, expected an object"
    else:
        for key, value in expected.items():
            if key in claimed:
                yield from _differences(f"{path}.{key}", claimed[key], value)
            else:
                yield f"{path}.{key} is missing, of the schedule it is {value}"
        for key in claimed:
            if key not in expected:
                yield f"{path}.{shown(key)} is stated, but there is no such metric"


def _check_gap(result: Result, gap: float | None) -> Iterator[str]:
    """Check that the bound is not above the value, and the gap between them."""
    value, bound = result.value, result.bound
    if value is None or bound is None:
        if gap is not None:
            yield f"gap is {gap}, but without both value and bound it must be null"
    elif bound > value:
        yield f"bound is {bound}, at most the value {value} is possible"
    else:
        expected = float(Fraction(value - bound, value)) if bound < value else 0.0
        if gap != expected:
            yield f"gap is {gap}, expected (value - bound) / value = {expected}"


def _check_status(result: Result) -> Iterator[str]:
    """Check that the status says what value, bound, schedule and instance say."""
    status, value, bound = result.status, result.value, result.bound
    proved = value is not None and value == bound
    at_most = result.restrictions.at_most
    too_much = at_most is not None and bound is not None and bound > at_most
    match status:
        case Status.OPTIMAL if not proved:
            yield f"status is optimal, but value {value} and bound {bound} are not two equal numbers"
        case Status.FEASIBLE if value is None or result.schedule is None:
            yield "status is feasible, but value or schedule is null"
        case Status.BOUND_ONLY if bound is None or result.schedule is not None:
            yield "status is bound_only, but the bound is null or there is a schedule"
        case Status.BOUND_ONLY if too_much:
            yield f"status is bound_only, but the bound {bound} exceeds the {at_most} allowed, which is infeasible"
        case Status.INFEASIBLE if not too_much and _is_feasible(result):
            claim = "status is infeasible, but each request can be served, so one after another is a schedule"
            yield claim if at_most is None else f"{claim}, and the bound {bound} does not exceed the {at_most} allowed"
        case Status.UNKNOWN if bound is not None:
            yield f"status is unknown, but there is a bound of {bound}"
    if proved and status is not Status.OPTIMAL:
        yield f"status is {status.value}, but value and bound are both {value}, which is optimal"
    if value is not None and status in {Status.INFEASIBLE, Status.FAILED, Status.UNKNOWN}:
        yield f"status is {status.value}, but there is a value of {value}"


def _is_feasible(result: Result) -> bool:
    instance, restrictions = result.instance, result.restrictions
    if instance.is_distributed or instance.is_cached:
        return feasible_cluster(instance, restrictions)
    return feasible(problem_of(instance, restrictions))


def _check_badge(result: Result) -> Iterator[str]:
    """Check what backs the bound; a certificate is looked at only if the badge points to it."""
    if (result.bound is None) != (result.badge is Badge.HEURISTIC):
        yield f"badge is {result.badge.value}, but the bound is {result.bound}; heuristic means no bound"
    elif result.badge is Badge.CERTIFIED and result.bound is not None:
        try:
            proved = proved_bound(result.instance, result.restrictions, result.objective, result.certificate)
        except UnprovedError as error:
            yield f"certificate: {error}"
        except Exception as error:
            # Whatever it is, a certificate that breaks the checker proves nothing.
            yield f"certificate: the checker failed, which proves nothing ({type(error).__name__}: {shown(str(error))})"
        else:
            if proved < result.bound:
                yield f"certificate: it proves a bound of {proved}, less than the stated {result.bound}"
