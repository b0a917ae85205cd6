"""Bounds alone, at any size: each by name, or all of them and the best."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from optsched.bounds.bound import Bound
from optsched.bounds.catalogue import BOUNDS, bound_method, bound_of_several, bounds_for
from optsched.failures import FAILURES, failure_text
from optsched.methods.arguments import read_problem, require_coverable
from optsched.methods.checked import DefectFoundError, is_proved
from optsched.methods.question import Question
from optsched.model.domain import replace
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Results, Status

BEST, ALL = "best", "all"


@dataclass(frozen=True)
class BoundRun:
    """What one method says.

    Parameters
    ----------
    name, bound
        The method, and its bound; None if it says nothing about the objective.
    runtime_s
        How long it took.
    failure
        What its code raised, and where; None if it ended.
    """

    name: str
    bound: Bound | None
    runtime_s: float
    failure: str | None = None


def bound_names() -> tuple[str, ...]:
    """Return ``best``, ``all`` and the names of the bounds."""
    return (BEST, ALL, *BOUNDS)


def run_bound(instance: Instance, objective: Objective, name: str) -> BoundRun:
    """Return what a bound says of an instance, restrictions applied.

    A method whose code raises says nothing but that.
    """
    started = time.perf_counter()
    found, failure = None, None
    try:
        found = (bound_of_several if instance.is_cluster else bound_method)(name)(instance, objective)
    except FAILURES as error:
        failure = f"{name}: {failure_text(error)}"
    return BoundRun(name, found, time.perf_counter() - started, failure)


def bound(
    instance: Instance | str | Path,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    method: str = BEST,
    restrictions: Restrictions | None = None,
) -> Result:
    """Bound an objective from below; the checker confirms the best bound before it is called certified.

    A method that raises is named in the result's message, and the others count.

    Parameters
    ----------
    instance, objective
        The problem: an instance, or the name or file of one.
    method
        ``best`` or ``all``, which run the same, or one bound's name.
    restrictions
        The class of schedules.

    Returns
    -------
    Result
        ``bound_only`` with the best bound; ``unknown`` if no method has one; or ``infeasible``.

    Raises
    ------
    InputError
        For an unknown method, instance or objective.
    DefectFoundError
        If the checker does not confirm a bound that is better than the best one that it confirms; the latter is the
        error's ``result``.
    """
    return best_bound(*read_problem(instance, objective, restrictions, clusters=True), method)[0]


def all_bounds(
    instance: Instance | str | Path,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    restrictions: Restrictions | None = None,
) -> Results:
    """Return what `bound` says, or raises, with each method by itself; ``unknown`` where a method says nothing."""
    problem = read_problem(instance, objective, restrictions, clusters=True)
    return Results(best_bound(*problem, name)[0] for name in bounds_for(problem[0]))


def best_bound(
    instance: Instance, objective: Objective, restrictions: Restrictions, method: str = BEST
) -> tuple[Result, list[BoundRun]]:
    """Return the best bound (see `bound`), and what every method said, whether the checker confirms it or not."""
    known = bounds_for(instance)
    if method not in (BEST, ALL, *known):
        if method in BOUNDS:
            instance.require_plain()
        raise InputError("method", method, one_of(method, (BEST, ALL, *known)))
    if instance.is_cluster:
        require_coverable(instance, objective, restrictions)
    question = Question(instance, objective, restrictions)
    started = time.perf_counter()
    result = Result(
        instance=instance, method=method, objective=objective, status=Status.UNKNOWN, restrictions=restrictions
    )

    def ended(**found: object) -> Result:
        return replace(result, runtime_s=time.perf_counter() - started, **found)

    if question.infeasibility is not None:
        return ended(status=Status.INFEASIBLE, message=question.infeasibility.message), []
    names = tuple(known) if method in {BEST, ALL} else (method,)
    runs = [run_bound(question.restricted, objective, name) for name in names]
    failures = [run.failure for run in runs if run.failure is not None]
    found = [(run.name, run.bound) for run in runs if run.bound is not None]
    if not found and not failures:
        return ended(message=f"{method} says nothing about {objective.value}"), runs
    defects = []
    for name, best in sorted(found, key=lambda pair: pair[1].value, reverse=True):
        try:
            confirmed, why = is_proved(instance, restrictions, objective, best.value, best.certificate), ""
        except FAILURES as error:
            confirmed, why = False, f": {failure_text(error)}"
        if confirmed:
            proved = ended(
                method=name,
                status=Status.BOUND_ONLY,
                badge=Badge.CERTIFIED,
                bound=best.value,
                certificate=best.certificate,
                found_by={"bound": name},
            )
            break
        defects.append(f"{name}: the checker does not confirm the bound {best.value}{why}")
    else:
        proved = ended()
    proved = replace(proved, message="; ".join((*failures, *defects)) or None)
    if defects:
        raise DefectFoundError(defects, proved)
    return proved, runs
