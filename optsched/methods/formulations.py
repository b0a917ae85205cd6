"""Formulations by name, with the options that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, isclass, signature
from typing import Any

from optsched.catalogue import FORMULATION_GROUP, BrokenEntryError, entries, in_file, lookup
from optsched.failures import FAILURES
from optsched.model.errors import InputError
from optsched.solvers.declaration import Declaration, declaration_of
from optsched.solvers.formulation import Exporter, Formulation

Options = Mapping[str, str]
"""Options of a formulation by name, such as ``{"solver": "cbc"}``: the keyword arguments of its class."""


def make_formulation(name: str, options: Options) -> Formulation:
    """Return the formulation of that name, or the one that ``FILE.py:NAME`` means.

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
    if in_file(name):
        if not issubclass(formulation_in_file(name), Exporter):
            raise InputError("method", name, "a class with export")
    elif name not in (exporters := _those(lambda factory: issubclass(factory, Exporter))):
        raise InputError("method", name, f"a method whose model can be exported: {', '.join(exporters)}")
    made: Exporter = _factory(name)()
    return made


def formulation_in_file(name: str, field: str = "method") -> type[Formulation]:
    """Return the class that ``FILE.py:NAME`` means.

    Raises
    ------
    InputError
        For ``field``, if the file cannot be read or run, or NAME is no formulation.
    """
    found: type[Formulation] = lookup(FORMULATION_GROUP, name, field)
    if not isclass(found) or not callable(getattr(found, "solve", None)):
        raise InputError(field, name, "a class with solve")
    given = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
    if any(each.default is Parameter.empty and each.kind not in given for each in signature(found).parameters.values()):
        raise InputError(field, name, "a class whose arguments all have defaults")
    return found


def require_options(method: str, options: Options) -> None:
    """Raise `InputError` if a method, a formulation or a plan of several, does not take the options.

    What cannot be made at all takes anything: `optsched.methods.plan.plan_solve` says so, and does without it.
    """
    try:
        if _is_formulation(method):
            make_formulation(method, options)
        _require_taken(method, options)
    except InputError:
        raise
    except FAILURES:
        return


def _require_taken(method: str, options: Options) -> None:
    for option, value in options.items():
        if not _is_formulation(method) or not _takes(option, _factory(method)):
            takers = _those(partial(_takes, option))
            others = f", only with {', '.join(takers)}" if takers else ""
            expected = f"no {option} with method {method}{others}"
            raise InputError(option, value, expected)


def _takes(option: str, factory: Any) -> bool:
    return option in signature(factory).parameters


def _is_formulation(name: str) -> bool:
    """Whether it is the name of one formulation, or of one in a file."""
    return in_file(name) or name in entries(FORMULATION_GROUP)


def _factory(name: str) -> Any:
    return formulation_in_file(name) if in_file(name) else lookup(FORMULATION_GROUP, name, "method")


def _those(fits: Callable[[Any], bool]) -> list[str]:
    """Return the formulations that fit; none that cannot be imported does."""

    def loads(name: str) -> bool:
        try:
            return fits(_factory(name))
        except BrokenEntryError:
            return False

    return list(filter(loads, entries(FORMULATION_GROUP)))
