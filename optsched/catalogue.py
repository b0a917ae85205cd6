"""Finding policies and formulations by name, also those that other packages add through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from optsched.failures import FAILURES, ReportedFailureError, failure_text
from optsched.model.errors import InputError, one_of

POLICY_GROUP = "optsched.policies"
FORMULATION_GROUP = "optsched.formulations"
OWN_PACKAGES = frozenset({"optsched", "optsched_formulations"})
"""Our packages; other packages cannot replace their names."""


class BrokenEntryError(ReportedFailureError):
    """An entry point's object cannot be loaded; the message says why."""


@dataclass(frozen=True)
class _Offered:
    """Name → ``module:attribute``, and the errors of entry points that could not be read."""

    targets: Mapping[str, str]
    broken: tuple[str, ...]


@cache
def _offered(group: str) -> _Offered:
    targets: dict[str, str] = {}
    broken: list[str] = []
    for point in sorted(entry_points(group=group), key=_precedence):
        try:
            offered = dict(point.load())
            if not all(isinstance(text, str) for pair in offered.items() for text in pair):
                raise TypeError("expected a dictionary from names to 'module:attribute'")
        except FAILURES as error:
            reason = failure_text(error, _package(point.value))
            broken.append(f"entry point {point.name} = {point.value} of {group} is left out: {reason}")
            continue
        for name, target in offered.items():
            targets.setdefault(name, target)
    return _Offered(targets, tuple(broken))


def _package(target: str) -> str:
    return target.partition(":")[0].partition(".")[0]


def _precedence(point: EntryPoint) -> tuple[bool, str, str]:
    return _package(point.value) not in OWN_PACKAGES, point.name, point.value


def entries(group: str) -> Mapping[str, str]:
    """Return name → ``module:attribute`` of everything that installed packages offer in ``group``.

    An entry point of the group points at such a dictionary. A name that two packages offer is ours if we offer it, else
    it belongs to the package whose entry point comes first in alphabetical order. An entry point that cannot be loaded
    offers nothing (`broken_entries`).
    """
    return _offered(group).targets


def broken_entries(group: str) -> tuple[str, ...]:
    """Return a sentence for each entry point of ``group`` that cannot be loaded."""
    return _offered(group).broken


def package_of(group: str, name: str) -> str:
    """Return the top-level package that defines ``name`` in ``group``."""
    return _package(entries(group)[name])


def lookup(group: str, name: str, field: str) -> Any:
    """Return the object called ``name`` in ``group``.

    Raises
    ------
    InputError
        For ``field``, if there is no such name.
    BrokenEntryError
        If its module cannot be imported or does not have it.
    """
    offered = entries(group)
    if name not in offered:
        raise InputError(field, name, one_of(name, offered))
    module, _, attribute = offered[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except FAILURES as error:
        reason = failure_text(error, _package(module))
        raise BrokenEntryError(f"{offered[name]} cannot be loaded: {reason}") from error
