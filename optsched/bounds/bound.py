"""What a bound is: a value that no schedule undercuts, and what proves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from optsched.model.instance import Instance
from optsched.model.objectives import Objective


@dataclass(frozen=True)
class Bound:
    """A lower bound on an objective.

    Parameters
    ----------
    value
        In the objective's unit: ps, for means the sum over requests, or a number of requests.
    certificate
        What `optsched.check` recomputes the bound from.
    """

    value: int
    certificate: dict[str, Any]


class BoundMethod(Protocol):
    """A way to bound objectives from below."""

    def __call__(self, instance: Instance, objective: Objective) -> Bound | None:
        """Return the bound of an instance, restrictions applied; None if it says nothing about the objective."""
        ...
