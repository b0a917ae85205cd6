"""The bounds by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import cast

from optsched.bounds.bound import Bound, BoundMethod
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

BOUNDS: Mapping[str, str] = MappingProxyType(
    {
        "volume": "optsched.bounds.volume:makespan_bound",
        "alone": "optsched.bounds.alone:alone_bound",
        "machine": "optsched.bounds.machine:machine_bound",
        "late": "optsched.bounds.late:late_bound",
        "congestion": "optsched.bounds.congestion:congestion_bound",
        "waiting": "optsched.bounds.waiting:waiting_bound",
        "percentile": "optsched.bounds.percentile:percentile_bound",
        "inflow": "optsched.bounds.inflow:inflow_bound",
        "ramp": "optsched.bounds.ramp:ramp_bound",
    }
)
"""Name → ``module:function``, resolved when it is asked for; the quick ones first."""

BOUNDS_OF_SEVERAL: Mapping[str, str] = MappingProxyType(
    {
        "alone": "optsched.bounds.alone:alone_bound_of_several",
        "assignment": "optsched_formulations.routing.assignment:cluster_bound",
        "chains": "optsched.bounds.chains:makespan_bound",
        "worth": "optsched.bounds.worth:makespan_bound",
        "congestion": "optsched.bounds.congestion:congestion_bound",
    }
)
"""The same for several machines without caches and moves."""

BOUNDS_WITH_CACHES: Mapping[str, str] = MappingProxyType(
    {"prefixed": "optsched_formulations.routing.prefixed:prefixed_bound"}
)
"""The same for machines, one or several, of which one caches prefixes; without moves."""

BOUNDS_WITH_ROLES: Mapping[str, str] = MappingProxyType({"roles": "optsched_formulations.routing.roles:roles_bound"})
"""The same for machines of which some only prefill or only decode; without caches."""


def bounds_for(instance: Instance) -> Mapping[str, str]:
    """Return the bounds that cover an instance with as many machines and caches."""
    if instance.is_cached:
        return BOUNDS_WITH_CACHES
    if instance.has_roles:
        return BOUNDS_WITH_ROLES
    return BOUNDS_OF_SEVERAL if instance.is_distributed else BOUNDS


def bound_method(name: str) -> BoundMethod:
    """Return the bound of a name of `BOUNDS`; it raises `InputError` for an instance of several machines."""
    module, _, function = BOUNDS[name].partition(":")
    method = cast(BoundMethod, getattr(import_module(module), function))

    def bound(instance: Instance, objective: Objective) -> Bound | None:
        instance.require_plain()
        return method(instance, objective)

    return bound


def bound_of_several(name: str) -> BoundMethod:
    """Return the bound of a name of `BOUNDS_OF_SEVERAL`, `BOUNDS_WITH_CACHES` or `BOUNDS_WITH_ROLES`."""
    module, _, function = {**BOUNDS_OF_SEVERAL, **BOUNDS_WITH_CACHES, **BOUNDS_WITH_ROLES}[name].partition(":")
    return cast(BoundMethod, getattr(import_module(module), function))
