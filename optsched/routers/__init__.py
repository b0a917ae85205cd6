"""Routers: which machine a request goes to. Found by name, like policies."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType

from optsched.model.errors import InputError, one_of
from optsched.routers.router import RouterFactory

_FAMILIES = {
    "simple": (
        *("round_robin", "random", "direct", "session", "p2c", "p2c_tokens", "p2c_replacement"),
        *("least_requests", "least_tokens", "least_kv", "least_work"),
    ),
    "sal": ("sal",),
    "e2": ("e2",),
    "e2_code": ("e2_code",),
    "cache_aware": ("cache_aware",),
    "hashing": ("prefix_hash", "bounded_consistent"),
    "scores": ("dynamo_kv", "score_mix", "vllm_dp", "lmetric", "aibrix_prefix", "conductor"),
    "oracle": ("oracle_partition",),
    "llumnix": ("llumnix",),
    "disaggregated": ("disaggregated", "splitwise"),
}

ROUTERS = MappingProxyType(
    {name: f"optsched.routers.{family}:{name}" for family, names in _FAMILIES.items() for name in names}
)
"""Router name → ``module:attribute`` of its factory, resolved when it is asked for."""


def find_router(name: str) -> RouterFactory:
    """Return the factory of the router called ``name``.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in ROUTERS:
        raise InputError("router", name, one_of(name, ROUTERS))
    module, _, attribute = ROUTERS[name].partition(":")
    factory: RouterFactory = getattr(import_module(module), attribute)
    return factory
