"""Which router an instance of several machines has, and how its caches are kept."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optsched.cache.blocks import CacheSetting
from optsched.catalogue import ROUTER_GROUP, entries, in_file, lookup
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance
from optsched.routers import ROUTERS
from optsched.routers import find_router as own_router
from optsched.routers.router import Router, RouterFactory
from optsched.routers.simple import round_robin

DEFAULT = "round_robin"


@dataclass(frozen=True)
class Routing:
    """Routers and caches of a run.

    Parameters
    ----------
    name
        What results call the router; None where there is one machine, which needs none.
    factory
        Makes each router; not called without a name.
    routers
        How many routers there are.
    setting
        How machines keep their caches.
    options
        What results state of all this.
    asked
        Whether the router was asked for; if not, a policy that assigns requests itself needs none.
    """

    name: str | None
    factory: RouterFactory
    routers: int
    setting: CacheSetting
    options: Mapping[str, str]
    asked: bool = False


def router_names() -> tuple[str, ...]:
    """Return the names of all installed routers: ours, and those of other packages' entry points."""
    return tuple(dict.fromkeys((*ROUTERS, *entries(ROUTER_GROUP))))


def read_routing(
    instance: Instance, router: str | RouterFactory | None, evictor: str | None = None, routers: int | None = None
) -> Routing | None:
    """Return routers and caches of an instance; None for one machine without a cache.

    Raises
    ------
    InputError
        For an unknown router or evictor, a router where there is one machine, or an evictor where nothing is cached.
    """
    if evictor is not None and not instance.is_cached:
        raise InputError("evictor", evictor, "none: no machine of the instance caches anything (cache.mode)")
    if not instance.is_distributed:
        if router is not None or (routers or 1) > 1:
            given = router if isinstance(router, str) else type(router).__name__
            raise InputError("router", given, "none: the instance has one machine (replicas, machines)")
        if not instance.is_cached:
            return None
    setting = CacheSetting() if evictor is None else CacheSetting.named(evictor)
    routers = instance.view.routers if routers is None else routers
    options = {"evictor": setting.name} if instance.is_cached else {}
    if not instance.is_distributed:
        return Routing(None, round_robin, 1, setting, options)
    asked = router is not None
    router = DEFAULT if router is None else router
    if router == "direct":
        raise InputError("router", router, "another router: the machine of each request can be given in Python only")
    if isinstance(router, str):
        name, factory = router, find_router(router)
    else:
        name, factory = getattr(router, "__name__", type(router).__name__), router
    more = {"routers": str(routers)} if routers > 1 else {}
    return Routing(name, factory, routers, setting, {"router": name} | more | options, asked)


def find_router(name: str, field: str = "router") -> RouterFactory:
    """Return what makes the router of that name, or the one that ``FILE.py:NAME`` means.

    Raises
    ------
    InputError
        For ``field``, if there is none.
    """
    if not in_file(name) and name not in router_names():
        raise InputError(field, name, one_of(name, router_names()))
    found: Any = own_router(name) if name in ROUTERS else lookup(ROUTER_GROUP, name, field)
    if inspect.isclass(found) and issubclass(found, Router):
        return lambda _: found()
    if not callable(found):
        raise InputError(field, name, "a Router without parameters, or a function of a RouterSetting")
    factory: RouterFactory = found
    return factory
