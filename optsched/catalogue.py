"""Finding policies and formulations by name, also those that other packages add through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from optsched.model.errors import InputError

POLICY_GROUP = "optsched.policies"
FORMULATION_GROUP = "optsched.formulations"


@cache
def entries(group: str) -> Mapping[str, str]:
    """Return name → ``module:attribute`` of everything that installed packages offer in ``group``.

    An entry point of the group points at such a dictionary. A name that two packages offer belongs to the
    one whose entry point comes first in alphabetical order.
    """
    found: dict[str, str] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        offered: Mapping[str, str] = point.load()
        for name, target in offered.items():
            found.setdefault(name, target)
    return found


def lookup(group: str, name: str, field: str) -> Any:
    """Return the object called ``name`` in ``group``; an unknown name raises `InputError` for ``field``."""
    offered = entries(group)
    if name not in offered:
        raise InputError(field, name, f"one of {', '.join(offered)}")
    module, _, attribute = offered[name].partition(":")
    return getattr(import_module(module), attribute)
