"""What the answer of a formulation must be, whichever it is."""

from __future__ import annotations

from typing import Any

from brute_force import optimum

from optsched import Instance, Objective, Restrictions, check_schedule
from optsched.check import proved_bound
from optsched.model.metrics import evaluate
from optsched.model.result import Badge
from optsched.model.schedule import Schedule
from optsched.solvers.formulation import Formulation, Outcome, Task, Termination

FREE = Restrictions()


def legal_value(
    instance: Instance,
    schedule: Schedule | None,
    objective: Objective = Objective.MAKESPAN,
    allowed: Restrictions = FREE,
) -> int:
    """Return the value of a schedule that must be there and legal."""
    assert schedule is not None
    violations, _ = check_schedule(instance, schedule, allowed)
    assert violations == []
    value: int = evaluate(instance, schedule)["objectives"][objective.value]
    assert isinstance(value, int)
    return value


def exact_value(
    instance: Instance, outcome: Outcome, objective: Objective = Objective.MAKESPAN, allowed: Restrictions = FREE
) -> int:
    """Return the value of an outcome that must be optimal and legal."""
    assert outcome.termination == Termination.OPTIMAL
    assert outcome.badge in {Badge.SOLVER_CLAIMED, Badge.CERTIFIED}
    value = legal_value(instance, outcome.schedule, objective, allowed)
    assert value == outcome.bound
    return value


def exact(
    formulation: Formulation,
    instance: Instance,
    objective: Objective = Objective.MAKESPAN,
    allowed: Restrictions = FREE,
    **start: Any,
) -> int:
    """Solve with the formulation alone, without policy or bound to help it, and return the optimum that it proves."""
    outcome = formulation.solve(Task(allowed.apply(instance), objective, allowed, **start))
    return exact_value(instance, outcome, objective, allowed)


def require_bound_below_optimum(instance: Instance, outcome: Outcome) -> None:
    """Hold a bound on the makespan against brute force, and its certificate against the checker."""
    best = optimum(instance)
    assert best is not None
    assert outcome.bound is None or outcome.bound <= best
    if outcome.badge == Badge.CERTIFIED:
        assert outcome.bound is not None
        assert proved_bound(instance, FREE, Objective.MAKESPAN, outcome.certificate) >= outcome.bound
