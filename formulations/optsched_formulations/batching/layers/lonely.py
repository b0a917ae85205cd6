"""Requests that leave no room for any other."""

from __future__ import annotations

from dataclasses import dataclass

from optsched.model.domain import replace as replace_model
from optsched.model.instance import Instance
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.state_steps import FILL, RUN


@dataclass(frozen=True)
class Lonely:
    """Requests that leave no room for any other, and the rest.

    Parameters
    ----------
    classes
        Of all requests.
    rest
        The instance without them.
    kinds
        Their classes.
    """

    classes: Classes
    rest: Instance
    kinds: tuple[int, ...]

    @property
    def batches(self) -> int:
        """How many batches they take."""
        return sum(self.classes.kinds[kind][1] * len(self.classes.members[kind]) for kind in self.kinds)

    @property
    def constant_ps(self) -> int:
        """What every schedule takes beyond the base of the rest's batches, and refills."""
        return self.classes.constant_ps + self.classes.base_ps * self.batches

    @property
    def steps(self) -> list[tuple[int, int]]:
        """What they do, one after another."""
        steps: list[tuple[int, int]] = []
        for kind in self.kinds:
            for _ in self.classes.members[kind]:
                steps += [(FILL, self.classes.first[kind]), *[(RUN, -1)] * self.classes.kinds[kind][1]]
        return steps


def lonely_of(instance: Instance) -> Lonely:
    """Tell requests that leave no room for any other, unless all do."""
    classes = Classes(instance)
    sizes = [classes.size[first] for first in classes.first]
    kinds = tuple(kind for kind, size in enumerate(sizes) if size + min(sizes) > classes.capacity)
    if len(kinds) == len(sizes):
        kinds = ()
    alone = {request for kind in kinds for request in classes.members[kind]}
    rest = tuple(request for number, request in enumerate(instance.requests) if number not in alone)
    return Lonely(classes, instance if not kinds else replace_model(instance, requests=rest), kinds)
