"""The bounds by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from optsched.bounds.alone import alone_bound
from optsched.bounds.bound import Bound, BoundMethod
from optsched.bounds.late import late_bound
from optsched.bounds.machine import machine_bound
from optsched.bounds.volume import volume_bound
from optsched.model.instance import Instance
from optsched.model.objectives import Objective


def _volume(instance: Instance, objective: Objective) -> Bound | None:
    if objective != Objective.MAKESPAN:
        return None
    found = volume_bound(instance)
    return Bound(found.value, found.certificate)


BOUNDS: Mapping[str, BoundMethod] = MappingProxyType(
    {"volume": _volume, "alone": alone_bound, "machine": machine_bound, "late": late_bound}
)
"""The quick ones first."""
