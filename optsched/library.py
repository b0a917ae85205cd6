"""The instance library: suites that ship with optsched, and files that users name instead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from optsched.calibrate.library import cost_model
from optsched.model.documents import (
    INSTANCE_FORMAT,
    SUITE_FORMAT,
    ClaimedResult,
    Suite,
    parse_instance,
    parse_results,
    parse_suite,
    read_bytes,
)
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance


@cache
def instances_directory() -> Path:
    """Return the folder of the shipped suites: in an installed package, else in the checkout."""
    installed = Path(str(files("optsched"))) / "_instances"
    return installed if installed.is_dir() else Path(str(files("optsched"))).parent / "instances"


@cache
def suite_files() -> Mapping[str, Path]:
    """Return the shipped suites, ascending by name, and the file of each."""
    found = (path for pattern in ("*.json", "*.json.gz") for path in instances_directory().glob(pattern))
    return MappingProxyType(dict(sorted((path.name.partition(".")[0], path) for path in found)))


def suite_names() -> tuple[str, ...]:
    """Return the names of the shipped suites."""
    return tuple(suite_files())


@cache
def _shipped(name: str) -> Suite:
    return parse_suite(read_bytes(suite_files()[name]), cost_model)


def _is_file(source: str) -> bool:
    return source == "-" or "/" in source or source.endswith((".json", ".json.gz")) or Path(source).is_file()


def load_suite(source: str | Path) -> Suite:
    """Return a suite: a shipped one by name, or read from a file.

    A file may also hold a single instance, which makes a suite of one.
    """
    name = str(source)
    if not _is_file(name):
        if name not in suite_names():
            raise InputError("SUITE", name, f"a file, or {one_of(name, suite_names())}")
        return _shipped(name)
    data = _read(name, "SUITE")
    try:
        found = _format(data)
        if found == INSTANCE_FORMAT:
            instance = parse_instance(data, cost_model)
            return Suite(instance.name, "A single instance.", (instance,))
        if found not in {SUITE_FORMAT, None}:
            raise InputError("format", found, f"'{SUITE_FORMAT}' or '{INSTANCE_FORMAT}'")
        return parse_suite(data, cost_model)
    except InputError as error:
        raise error.located(name) from None


def load_instance(source: str | Path) -> Instance:
    """Return an instance: a shipped one by name, or read from a file; ``-`` is standard input."""
    name = str(source)
    if not _is_file(name):
        for suite in suite_names():
            # A shipped instance is called after its suite, so only that suite need be read.
            if name.startswith(suite):
                for instance in _shipped(suite).instances:
                    if instance.name == name:
                        return instance
        raise InputError("INSTANCE", name, "a file, or an instance of the library (see: optsched instances list)")
    data = _read(name, "INSTANCE")
    try:
        return _parse(data)
    except InputError as error:
        raise error.located(name) from None


def _parse(data: bytes) -> Instance:
    if _format(data) == SUITE_FORMAT:
        raise InputError("format", SUITE_FORMAT, f"'{INSTANCE_FORMAT}' (one instance, not a suite)")
    return parse_instance(data, cost_model)


def load_instances(source: str | Path) -> tuple[Instance, ...]:
    """Return the instances of a suite, shipped or in a file, or an instance alone."""
    name = str(source)
    if not _is_file(name):
        return _shipped(name).instances if name in suite_names() else (load_instance(name),)
    data = _read(name, "INSTANCE")
    try:
        return parse_suite(data, cost_model).instances if _format(data) == SUITE_FORMAT else (_parse(data),)
    except InputError as error:
        raise error.located(name) from None


def load_results(source: str | Path) -> list[ClaimedResult]:
    """Return the result documents in a file, as claims: `optsched.check` says whether they hold."""
    data = _read(source, "RESULT")
    try:
        return parse_results(data, cost_model)
    except InputError as error:
        raise error.located(str(source)) from None


def _read(source: str | Path, argument: str) -> bytes:
    try:
        return read_bytes(source)
    except InputError as error:
        raise error.within(argument) from None


class _Headed(BaseModel):
    """A document of any format."""

    format: Any = None


def _format(data: bytes) -> str | None:
    """Return the ``format`` field of a JSON object, None if there is none."""
    try:
        found = _Headed.model_validate_json(data).format
    except ValidationError:
        return None
    return found if isinstance(found, str) else None
