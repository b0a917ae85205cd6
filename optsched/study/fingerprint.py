"""Fingerprints of code: which sources and packages a result depends on, without importing them.

A method depends on the module that defines it and on all that this module imports, directly or not, also inside of
functions. Of our own packages, of the package of a plug-in and of the folder of a user's file the sources count; of all
others the version. So the edit of a policy changes the fingerprint of that policy, of the policies that are built on
it, and of the exact methods that start from it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from optsched.bounds.catalogue import BOUNDS
from optsched.catalogue import FORMULATION_GROUP, OWN_PACKAGES, POLICY_GROUP, ROUTER_GROUP, entries, in_file
from optsched.methods.plan import AUTO
from optsched.model.documents import read_bytes
from optsched.policies import STARTING
from optsched.routers import ROUTERS

_CATALOGUES = frozenset({"optsched", "optsched.policies", "optsched.routers", "optsched_formulations"})
"""Modules that name all others: what a name means there counts, not what else they name."""


_BODIES = ("body", "orelse", "handlers", "finalbody", "cases")
"""Where nodes of a syntax tree have statements, or what holds some."""


class _Source(NamedTuple):
    """A module: its text's hash, and the names of the modules that it may import."""

    sha256: str
    imports: frozenset[str]


def code_of_policy(policy: str, predicting: bool, router: str | None = None) -> str:
    """Return the fingerprint of what runs a policy, with its predictor and its router, if it has them.

    Policy and router are names or ``FILE.py:NAME``.
    """
    roots = ["optsched.methods.simulate", *(["optsched.policies.predictors"] if predicting else [])]
    files = [name for name in (policy, router) if name is not None and in_file(name)]
    if policy not in files:
        roots.append(entries(POLICY_GROUP).get(policy, policy))
    if router is not None and router not in files:
        roots.append(ROUTERS.get(router) or entries(ROUTER_GROUP).get(router, router))
    return _hashed({"named": _of_targets(tuple(roots))} | {name: _of_file(name) for name in files})


def _of_file(name: str) -> str:
    """Return the fingerprint of ``FILE.py:NAME``."""
    file, _, attribute = name.rpartition(":")
    source = _read(read_bytes(file), "")
    parts = _parts(source.imports, OWN_PACKAGES, Path(file).parent)
    return _hashed(parts | {"file": f"{source.sha256}:{attribute}"})


def code_of_method(method: str) -> str:
    """Return the fingerprint of a search: a formulation, or all of them, with the bounds and policies at its start."""
    offered = entries(FORMULATION_GROUP)
    if method == AUTO:
        formulations = list(offered.values())
    else:
        formulations = [] if in_file(method) else [offered.get(method, method)]
    starting = [entries(POLICY_GROUP)[name] for name in STARTING]
    named = _of_targets(("optsched.methods.solve", *formulations, *BOUNDS.values(), *starting))
    return _hashed({"named": named, method: _of_file(method)}) if in_file(method) else named


def code_of_bound() -> str:
    """Return the fingerprint of the bounds; they are so quick that they share one."""
    return _of_targets(("optsched.methods.bound", *BOUNDS.values()))


@cache
def _of_targets(targets: tuple[str, ...]) -> str:
    """Return the fingerprint of modules, or ``module:attribute`` of them: our code stays as it is in this process."""
    names = [target.partition(":")[0] for target in targets]
    return _hashed(_parts(names, OWN_PACKAGES | {_top(name) for name in names}) | {"targets": " ".join(targets)})


def _hashed(parts: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _parts(roots: Iterable[str], packages: frozenset[str], folder: Path | None = None) -> dict[str, str]:
    """Return the hash of every source that modules depend on, by module, and the versions of other packages.

    Sources count of ``packages``, and of what is in ``folder``.
    """
    found = {"python": platform.python_version()}
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        top = _top(name)
        if top in packages:
            source = _module(name)
        elif folder is not None and _file(name, [folder]) is not None:
            path = _file(name, [folder])
            source = None if path is None else _read(path.read_bytes(), name)
        else:
            found |= _version(top)
            continue
        if source is not None:
            found[name] = source.sha256
            todo.extend(source.imports)
    return found


def _top(name: str) -> str:
    return name.partition(".")[0]


@cache
def _version(package: str) -> dict[str, str]:
    """Return the version of what a top-level package is of; nothing for Python's own, or for what is not installed."""
    if package in sys.stdlib_module_names:
        return {}
    with suppress(PackageNotFoundError):
        return {f"version of {package}": version(package)}
    return {f"version of {name}": version(name) for name in _distributions().get(package, ())}


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


@cache
def _module(name: str) -> _Source | None:
    """Return a module of an installed package; None if there is none of that name, or a catalogue."""
    try:
        spec = find_spec(_top(name))  # of a top-level package it imports nothing
    except (ImportError, ValueError):
        return None
    if spec is None or name in _CATALOGUES:
        return None
    if spec.submodule_search_locations is None:
        return _read(Path(spec.origin).read_bytes(), name) if spec.origin is not None else None
    path = _file(name, [Path(place).parent for place in spec.submodule_search_locations])
    return None if path is None else _read(path.read_bytes(), name, package=path.name == "__init__.py")


def _file(name: str, folders: Iterable[Path]) -> Path | None:
    """Return the source of a module below one of the folders."""
    for folder in folders:
        base = folder.joinpath(*name.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def _read(text: bytes, name: str, *, package: bool = False) -> _Source:
    """Read a source; one that Python cannot read imports nothing."""
    try:
        imports = frozenset(_imported(ast.parse(text), name, package))
    except (SyntaxError, ValueError):
        imports = frozenset()
    return _Source(hashlib.sha256(text).hexdigest()[:16], imports)


def _imported(tree: ast.AST, name: str, package: bool) -> Iterator[str]:
    """Yield what a module imports anywhere; ``from a import b`` may mean the module a.b."""
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -(node.level - package) or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from _with_parents(base)
            for alias in node.names:
                yield _offered_by_us().get(alias.name, base) if base == "optsched" else f"{base}.{alias.name}"


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements, and what holds some; expressions, which are most of a tree, hold none."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        for name in _BODIES:
            todo.extend(getattr(node, name, ()))


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


@cache
def _offered_by_us() -> Mapping[str, str]:
    """Return for each name that ``optsched`` offers the module that defines it."""
    spec = find_spec("optsched")
    assert spec is not None
    assert spec.origin is not None
    nodes = ast.parse(Path(spec.origin).with_suffix(".pyi").read_bytes()).body
    return {
        alias.name: f"optsched.{node.module}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
