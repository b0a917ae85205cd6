"""Formulations by name, with the options that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

from optsched.catalogue import FORMULATION_GROUP, BrokenEntryError, entries, lookup
from optsched.failures import FAILURES
from optsched.model.errors import InputError
from optsched.solvers.declaration import Declaration, declaration_of
from optsched.solvers.formulation import Exporter, Formulation

Options = Mapping[str, str]
"""Options of a formulation by name, such as ``{"solver": "cbc"}``: the keyword arguments of its class."""


def make_formulation(name: str, options: Options) -> Formulation:
    """Return the formulation of that name.

    Raises
    ------
    InputError
        If there is none, it does not take an option, or an option has a wrong value.
    BrokenEntryError
        If it cannot be imported.
    """
    factory = _factory(name)
    _require_taken(name, options)
    made: Formulation = factory(**options)
    return made


def declaration_named(name: str) -> Declaration:
    """Return what the formulation of that name declares, without making it.

    Raises
    ------
    BrokenEntryError
        If it cannot be imported.
    TypeError
        If its declaration is of a wrong type.
    """
    return declaration_of(_factory(name))


def make_exporter(name: str) -> Exporter:
    """Return the formulation of that name, whose model can be written down.

    Raises
    ------
    InputError
        If there is none, or its model cannot.
    """
    exporters = _those(lambda factory: issubclass(factory, Exporter))
    if name not in exporters:
        raise InputError("method", name, f"a method whose model can be exported: {', '.join(exporters)}")
    made: Exporter = _factory(name)()
    return made


def require_options(method: str, options: Options) -> None:
    """Raise `InputError` if a method, a formulation or a plan of several, does not take the options.

    What cannot be made at all takes anything: `optsched.methods.plan.plan_solve` says so, and does without it.
    """
    try:
        if method in entries(FORMULATION_GROUP):
            make_formulation(method, options)
        _require_taken(method, options)
    except InputError:
        raise
    except FAILURES:
        return


def _require_taken(method: str, options: Options) -> None:
    for option, value in options.items():
        if method not in entries(FORMULATION_GROUP) or not _takes(option, _factory(method)):
            takers = _those(partial(_takes, option))
            expected = f"no {option} with method {method}, only with {', '.join(takers)}"
            raise InputError(option, value, expected)


def _takes(option: str, factory: Any) -> bool:
    return option in signature(factory).parameters


def _factory(name: str) -> Any:
    return lookup(FORMULATION_GROUP, name, "method")


def _those(fits: Callable[[Any], bool]) -> list[str]:
    """Return the formulations that fit; none that cannot be imported does."""

    def loads(name: str) -> bool:
        try:
            return fits(_factory(name))
        except BrokenEntryError:
            return False

    return list(filter(loads, entries(FORMULATION_GROUP)))
