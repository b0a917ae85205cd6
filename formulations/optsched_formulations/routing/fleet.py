"""Several machines without moves: what `joint` and `assignment` ask of an instance."""

from __future__ import annotations

from optsched.model.cluster import Role
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.solvers.formulation import UnsupportedError


def require_independent(instance: Instance, *, caches: bool = False) -> None:
    """Raise `UnsupportedError` unless machines have nothing in common but the requests that they share out.

    With ``caches`` they may cache prefixes, each for itself.
    """
    machines = instance.machines
    if any(machine.role is not Role.BOTH for machine in machines):
        raise UnsupportedError("a machine has a role, so that requests move")
    if any(machine.rules.migration for machine in machines):
        raise UnsupportedError("the rule migration lets requests move")
    if instance.is_cached and not caches:
        raise UnsupportedError("a machine caches prefixes")


def require_places(instance: Instance) -> None:
    """Raise `InputError` if a request fits no machine."""
    first = set(equal_machines(instance))
    for request in range(len(instance.requests)):
        if not any(fits(instance, machine, request) for machine in first):
            raise InputError(f"requests[{request}]", Said(instance.label(request)), "one that fits a machine")


def fits(instance: Instance, machine: int, request: int) -> bool:
    """Return whether a machine can serve a request."""
    return not instance.on(machine, [request]).infeasibilities()


def equal_machines(instance: Instance) -> tuple[int, ...]:
    """Return for every machine the first that is equal to it."""
    machines = instance.machines
    return tuple(machines.index(machine) for machine in machines)


def equal_requests(instance: Instance) -> tuple[tuple[int, ...], ...]:
    """Return the requests in groups that differ in nothing but their names, in order of arrival."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, request in enumerate(instance.requests):
        key = (
            *(request.arrival_ps, request.input, request.output, request.weight),
            *(request.slo_ttft_ps, request.slo_e2e_ps, request.prefix),
        )
        groups.setdefault(key, []).append(index)
    by_arrival = sorted(groups.values(), key=lambda group: instance.requests[group[0]].arrival_ps)
    return tuple(map(tuple, by_arrival))
