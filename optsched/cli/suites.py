"""Suites as ``optsched instances make`` generates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optsched.cli.options import naming_options, refuse_options
from optsched.model.documents import suite_document
from optsched.model.errors import InputError, one_of
from optsched.traces.families import Family, Generator
from optsched.traces.infermax import GROUPS
from optsched.traces.suites import SUITES


def made_suite(name: str, groups: str | None, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a suite of the library, or of instances that a generator draws.

    Parameters
    ----------
    name
        The suite, or the generator.
    groups
        What ``--groups`` says; None for nothing.
    drawn
        The other options of generators, None for those that were not given.
    """
    if name in set(Generator):
        given = {option: value for option, value in drawn.items() if value is not None}
        with naming_options():
            family = Family(Generator(name), **given | ({"groups": _two_groups(groups)} if groups else {}))
            return suite_document(family.suite(), family.profile)
    refuse_options("SUITE", ("groups", *drawn), f"{' or '.join(Generator)} with it")
    if name not in SUITES:
        raise InputError("SUITE", name, one_of(name, (*SUITES, *Generator)))
    found = SUITES[name]
    return suite_document(found.make(found.profile), found.profile)


def _two_groups(given: str) -> tuple[str, ...]:
    names = tuple(given.split(","))
    if len(names) != 2:
        raise InputError("--groups", given, f"two of {', '.join(GROUPS)}, joined by a comma")
    return names
