"""The instance library: suites that ship with optsched, and files that users name instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from optsched.calibrate.library import cost_model, find_cost
from optsched.model.documents import (
    INSTANCE_FORMAT,
    SUITE_FORMAT,
    ClaimedResult,
    ProfileLookup,
    Suite,
    dump,
    instance_document,
    parse_instance,
    parse_results,
    parse_suite,
    read_bytes,
    results_text,
    write_text,
)
from optsched.model.errors import InputError, Said, did_you_mean, one_of, require_type
from optsched.model.instance import Instance
from optsched.model.result import Result


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


def suite_overview() -> Mapping[str, tuple[int, str]]:
    """Return of every shipped suite how many instances it has, and its description; no instance is built."""
    found = {name: json.loads(read_bytes(path)) for name, path in suite_files().items()}
    return {name: (len(suite["instances"]), suite["description"]) for name, suite in found.items()}


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
            instance = parse_instance(data, _profiles_beside(name))
            return Suite(instance.name, "A single instance.", (instance,))
        if found not in {SUITE_FORMAT, None}:
            raise InputError("format", found, f"'{SUITE_FORMAT}' or '{INSTANCE_FORMAT}'")
        return parse_suite(data, _profiles_beside(name))
    except InputError as error:
        raise error.located(name) from None


def load_instance(source: str | Path) -> Instance:
    """Return an instance: a shipped one by name, or read from a file; ``-`` is standard input."""
    name = str(source)
    if not _is_file(name):
        if name in suite_names():
            names = [instance.name for instance in _shipped(name).instances]
            raise InputError("INSTANCE", Said(f"the suite {name}"), f"one of its instances: {', '.join(names)}")
        for suite in suite_names():
            # A shipped instance is called after its suite, so only that suite need be read.
            if name.startswith(suite):
                for instance in _shipped(suite).instances:
                    if instance.name == name:
                        return instance
        expected = "a file, or an instance of the library (see: optsched instances list)"
        raise InputError("INSTANCE", name, expected + _meant(name))
    data = _read(name, "INSTANCE")
    try:
        return _parse(data, name)
    except InputError as error:
        raise error.located(name) from None


def _meant(name: str) -> str:
    """Ask if the instance that is spelled most like ``name`` is meant, of suites that are spelled like its start."""
    near = [suite for suite in suite_names() if did_you_mean(name[: len(suite)], [suite])]
    return did_you_mean(name, (instance.name for suite in near for instance in _shipped(suite).instances))


def save_instance(instance: Instance, target: str | Path) -> None:
    """Write an instance document to a file, which `load_instance` reads; ``.gz`` packs it, ``-`` is standard output."""
    require_type("instance", instance, Instance, "an Instance")
    write_text(target, dump(instance_document(instance)))


def _profiles_beside(file: str) -> ProfileLookup:
    """Return what finds the profiles that a file names: shipped ones, and files in its folder."""
    return partial(find_cost, folder=Path() if file == "-" else Path(file).parent)


def _parse(data: bytes, file: str) -> Instance:
    if _format(data) == SUITE_FORMAT:
        raise InputError("format", SUITE_FORMAT, f"'{INSTANCE_FORMAT}' (one instance, not a suite)")
    return parse_instance(data, _profiles_beside(file))


def load_instances(source: str | Path) -> tuple[Instance, ...]:
    """Return the instances of a suite, shipped or in a file, or an instance alone."""
    name = str(source)
    if not _is_file(name):
        return _shipped(name).instances if name in suite_names() else (load_instance(name),)
    data = _read(name, "INSTANCE")
    try:
        if _format(data) == SUITE_FORMAT:
            return parse_suite(data, _profiles_beside(name)).instances
        return (_parse(data, name),)
    except InputError as error:
        raise error.located(name) from None


def load_results(source: str | Path) -> list[ClaimedResult]:
    """Return the result documents in a file, as claims: `optsched.check` says whether they hold."""
    data = _read(source, "RESULT")
    try:
        return parse_results(data, cost_model)
    except InputError as error:
        raise error.located(str(source)) from None


def load_result(source: str | Path) -> ClaimedResult:
    """Return the only result document in a file, as a claim: `optsched.check_result` says whether it holds."""
    found = load_results(source)
    if len(found) > 1:
        expected = "one result (load_results reads several)"
        raise InputError("RESULT", Said(f"{len(found)} results"), expected, str(source))
    return found[0]


def save_result(result: Result | Sequence[Result], target: str | Path) -> None:
    """Write a result document, or a list of several, to a file, which `load_results` reads; as `save_instance`."""
    several = (result,) if isinstance(result, Result) else result
    require_type("result", several, Sequence, "a Result, or a sequence of them")
    if not several:
        raise InputError("result", Said("nothing"), "at least one Result")
    for number, each in enumerate(several):
        require_type(f"result[{number}]", each, Result, "a Result")
    write_text(target, results_text(result))


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
