"""Several machines without moves: what `joint` and `assignment` work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from optsched.model.cost import CostModel
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request, Rules


@dataclass(frozen=True)
class Machine:
    """One machine.

    Parameters
    ----------
    limits, rules, cost
        As those of an instance.
    """

    limits: Limits
    rules: Rules
    cost: CostModel


@dataclass(frozen=True)
class Fleet:
    """Machines that serve requests; each request is served by one of them, from its arrival on.

    Parameters
    ----------
    name
        What messages call it.
    machines
        At least one.
    requests
        At least one.
    """

    name: str
    machines: tuple[Machine, ...]
    requests: tuple[Request, ...]

    def __post_init__(self) -> None:
        for field, items in (("machines", self.machines), ("requests", self.requests)):
            if not items:
                raise InputError(field, "none", "at least one")

    def on(self, machine: int, requests: Sequence[int]) -> Instance:
        """Return the problem of one machine that serves these requests, and no other."""
        one = self.machines[machine]
        served = tuple(self.requests[request] for request in requests)
        return Instance(name=self.name, limits=one.limits, rules=one.rules, cost=one.cost, requests=served)

    def fits(self, machine: int, request: int) -> bool:
        """Return whether a machine can serve a request."""
        return not self.on(machine, [request]).infeasibilities()

    @property
    def start_ps(self) -> int:
        """The earliest arrival, in ps."""
        return min(request.arrival_ps for request in self.requests)

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """For every machine the first that is equal to it."""
        return tuple(self.machines.index(machine) for machine in self.machines)

    @cached_property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """Requests that differ in nothing but their names, in order of arrival."""
        groups: dict[tuple[int | None, ...], list[int]] = {}
        for index, request in enumerate(self.requests):
            key = (
                *(request.arrival_ps, request.input, request.output, request.weight),
                *(request.slo_ttft_ps, request.slo_e2e_ps),
            )
            groups.setdefault(key, []).append(index)
        by_arrival = sorted(groups.values(), key=lambda group: self.requests[group[0]].arrival_ps)
        return tuple(map(tuple, by_arrival))
