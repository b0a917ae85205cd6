"""What callers of the public functions may give: names for objects, numpy's numbers for Python's; else `InputError`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from optsched.library import load_instance
from optsched.model.cluster import Role
from optsched.model.domain import plain
from optsched.model.errors import InputError, require_type
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, find_objective, require_objective
from optsched.model.restrictions import Restrictions

_MOST_SEED = 2**31 - 1


def read_problem(
    instance: Instance | str | Path,
    objective: Objective | str,
    restrictions: Restrictions | None,
    *,
    clusters: bool = False,
) -> tuple[Instance, Objective, Restrictions]:
    """Return an instance, given itself or by name or file; an objective, also by name; restrictions.

    The instance has one machine and no cache, unless ``clusters``.
    """
    if isinstance(instance, str | Path):
        instance = load_instance(instance)
    require_type("instance", instance, Instance, "an Instance, or the name or file of one")
    if not clusters:
        instance.require_plain()
    if restrictions is None:
        restrictions = Restrictions()
    require_type("restrictions", restrictions, Restrictions, "Restrictions")
    goal = find_objective(objective)
    require_objective(instance, goal)
    return instance, goal, restrictions


def read_seed(seed: Any) -> int:
    """Return a random seed."""
    return read_integer("seed", seed, 0, _MOST_SEED)


def read_integer(field: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an integer of a range, Python's or numpy's."""
    number = plain(value)
    if type(number) is not int or number < least or (most is not None and number > most):
        expected = f"an integer ≥ {least}" if most is None else f"an integer from {least} to {most}"
        raise InputError(field, value, expected)
    return number


def read_seconds(field: str, value: Any) -> float:
    """Return a time limit; infinity is none."""
    number = plain(value)
    if type(number) not in {int, float} or not number >= 0:
        raise InputError(field, value, "a number of seconds ≥ 0")
    return float(number)


def require_coverable(instance: Instance, objective: Objective, restrictions: Restrictions) -> None:
    """Raise `InputError` for moves, classes of schedules and objectives that nothing covers here yet."""
    for number, machine in enumerate(instance.machines):
        if machine.role is not Role.BOTH and instance.is_cached:
            expected = "both: nothing here covers moves together with caches yet"
            raise InputError(f"machines[{number}].role", machine.role.value, expected)
        if machine.rules.migration:
            raise InputError("rules.migration", True, "false: nothing here covers moves yet")
    if restrictions != Restrictions():
        names = (each.name for each in fields(Restrictions))
        stated = next(name for name in names if getattr(restrictions, name) != getattr(Restrictions(), name))
        raise InputError(
            stated, getattr(restrictions, stated), "no restrictions: nothing here covers several machines, or caches"
        )
    covered = [each for each in Objective if each.is_largest or each.is_sum]
    covered += [Objective.MAX_LOAD] if instance.is_cached else []
    if objective not in covered:
        what = "caches" if instance.is_cached else "several machines"
        raise InputError("objective", objective.value, f"for {what} one of {', '.join(covered)}")
