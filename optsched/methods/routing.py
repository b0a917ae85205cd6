"""Which router an instance of several machines has."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from optsched.catalogue import ROUTER_GROUP, entries, in_file, lookup
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance
from optsched.routers import ROUTERS
from optsched.routers import find_router as own_router
from optsched.routers.router import Router, RouterFactory

DEFAULT = "round_robin"


@dataclass(frozen=True)
class Routing:
    """Routers of a run.

    Parameters
    ----------
    name
        What results call them.
    factory
        Makes each.
    routers
        How many there are.
    """

    name: str
    factory: RouterFactory
    routers: int = 1

    @property
    def options(self) -> dict[str, str]:
        """What results state of it."""
        return {"router": self.name} | ({"routers": str(self.routers)} if self.routers > 1 else {})


def router_names() -> tuple[str, ...]:
    """Return the names of all installed routers: ours, and those of other packages' entry points."""
    return tuple(dict.fromkeys((*ROUTERS, *entries(ROUTER_GROUP))))


def read_routing(instance: Instance, router: str | RouterFactory | None, routers: int) -> Routing | None:
    """Return the routers of an instance of several machines; None for one machine, which has none.

    Raises
    ------
    InputError
        For an unknown router, or one where there is one machine.
    """
    if not instance.is_distributed:
        if router is not None or routers > 1:
            name = router if isinstance(router, str) else type(router).__name__
            raise InputError("router", name, "no router, as the instance has one machine (replicas, machines)")
        return None
    if router is None:
        router = DEFAULT
    if not isinstance(router, str):
        return Routing(getattr(router, "__name__", type(router).__name__), router, routers)
    return Routing(router, find_router(router), routers)


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
