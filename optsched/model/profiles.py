"""The cost models of the shipped profiles, by name; `optsched.calibrate.library` reads the rest of a profile."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from importlib.resources.abc import Traversable

from optsched.model.cost import CostModel
from optsched.model.errors import InputError, one_of

_SUFFIX = ".json"


def _folder() -> Traversable:
    return files("optsched") / "calibrate" / "profiles"


@functools.cache
def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles, sorted."""
    return tuple(sorted(e.name.removesuffix(_SUFFIX) for e in _folder().iterdir() if e.name.endswith(_SUFFIX)))


def profile_file(name: str) -> Traversable:
    """Return the file of the shipped profile called ``name``; `InputError` lists the names if there is none."""
    if name not in profile_names():
        raise InputError("profile", name, one_of(name, profile_names()))
    return _folder() / f"{name}{_SUFFIX}"


@functools.cache
def shipped_cost(name: str) -> CostModel:
    """Return the cost model of the shipped profile called ``name``."""
    return CostModel(**json.loads(profile_file(name).read_text(encoding="utf-8"))["coefficients"])
