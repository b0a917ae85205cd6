"""Finding policies, formulations, routers: by name, also other packages' (entry points), or as ``FILE.py:NAME``."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from optsched.failures import FAILURES, ReportedFailureError, failure_text
from optsched.model.documents import read_bytes
from optsched.model.errors import InputError, did_you_mean, one_of

POLICY_GROUP = "optsched.policies"
FORMULATION_GROUP = "optsched.formulations"
ROUTER_GROUP = "optsched.routers"
OWN_PACKAGES = frozenset({"optsched", "optsched_formulations"})
"""Our packages; other packages cannot replace their names."""
_IN_FILE = re.compile(r"(.+\.py)(?::(.*))?")


class BrokenEntryError(ReportedFailureError):
    """An entry point's object cannot be loaded; the message says why."""


@dataclass(frozen=True)
class _Offered:
    """Name → ``module:attribute``, and the errors of entry points that could not be read."""

    targets: Mapping[str, str]
    broken: tuple[str, ...]


@cache
def _installed() -> Mapping[str, Iterable[EntryPoint]]:
    """Return the entry points of each group, from one look through all that is installed."""
    found = entry_points()
    return {group: found.select(group=group) for group in (POLICY_GROUP, FORMULATION_GROUP, ROUTER_GROUP)}


@cache
def _offered(group: str) -> _Offered:
    targets: dict[str, str] = {}
    broken: list[str] = []
    for point in sorted(_installed()[group], key=_precedence):
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


def in_file(name: object) -> bool:
    """Whether this is a name of the form ``FILE.py:NAME``; without ``:NAME`` `lookup` says what is missing."""
    return isinstance(name, str) and _IN_FILE.fullmatch(name) is not None


def file_version(name: str) -> dict[str, str]:
    """Return the file's name and the start of its SHA-256 for ``FILE.py:NAME``; nothing for other names."""
    if not in_file(name):
        return {}
    file, _ = _parts(name)
    return {Path(file).name: hashlib.sha256(read_bytes(file)).hexdigest()[:12]}


def _parts(name: str) -> tuple[str, str]:
    """Return file and attribute of ``FILE.py:NAME``."""
    found = _IN_FILE.fullmatch(name)
    assert found is not None
    return found[1], found[2] or ""


def _file_module(name: str) -> ModuleType:
    """Run a file as a module of its own; once, until its text changes.

    The module's name has a digest of place and text, so that no other module is called like it.
    """
    file, _ = _parts(name)
    text = read_bytes(file)
    digest = hashlib.sha256(bytes(Path(file).resolve()) + text).hexdigest()[:12]
    called = f"{re.sub(r'[^A-Za-z0-9]', '_', Path(file).stem)}_{digest}"
    if called in sys.modules:
        return sys.modules[called]
    module = ModuleType(called)
    module.__file__ = file
    sys.modules[called] = module  # dataclasses look their module up
    try:
        exec(compile(text, file, "exec"), vars(module))
    except FAILURES as error:
        del sys.modules[called]
        raise InputError("", name, f"a file that Python can run: {failure_text(error, called)}") from error
    return module


def package_of(group: str, name: str) -> str:
    """Return the top-level package, or the file's module, that defines ``name`` in ``group``."""
    return _file_module(name).__name__ if in_file(name) else _package(entries(group)[name])


def lookup(group: str, name: str, field: str) -> Any:
    """Return the object called ``name`` in ``group``, or the one that ``FILE.py:NAME`` means.

    Raises
    ------
    InputError
        For ``field``, if there is no such name; or a file cannot be read or run, or does not define it.
    BrokenEntryError
        If the module of a name cannot be imported or does not have it.
    """
    if in_file(name):
        return _lookup_in_file(name, field)
    offered = entries(group)
    if name not in offered:
        raise InputError(field, name, one_of(name, offered))
    module, _, attribute = offered[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except FAILURES as error:
        reason = failure_text(error, _package(module))
        raise BrokenEntryError(f"{offered[name]} cannot be loaded: {reason}") from error


def _lookup_in_file(name: str, field: str) -> Any:
    file, attribute = _parts(name)
    try:
        names = vars(_file_module(name))
    except InputError as error:
        raise InputError(field, error.value, error.expected, error.source) from None
    if attribute not in names:
        raise InputError(field, name, f"{file}:NAME, where {file} defines NAME{did_you_mean(attribute, names)}")
    return names[attribute]
