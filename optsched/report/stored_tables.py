"""Bound tables of pages, from a store: a page says itself which tables it has.

A section begins with the mark ``<!-- begin table SUITE OBJECTIVE SETUPS -->``, setups joined by commas, and ends with
the mark ``end`` of the same text. A setup is a policy; or on several machines ROUTER+POLICY, and with a choice of cache
ROUTER+POLICY+EVICTOR. What is between the marks is written from the store: the best value and the best bound of all
attempts, and what each setup gives with the installed code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from optsched.library import load_suite
from optsched.model.domain import replace
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, find_objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result, Status
from optsched.report.bound_sheet import make_sheet
from optsched.report.formats import as_markdown
from optsched.report.section import replace_section
from optsched.study.bound_table import BoundTable, Row
from optsched.study.setups import Setups
from optsched.study.store import EVEN_FAILURES, Store
from optsched.study.trial import solving

_MARK = re.compile(r"<!-- begin (table (\S+) (\S+) (\S+)) -->")


@dataclass(frozen=True)
class StoredTable:
    """A table that a page asks for.

    Parameters
    ----------
    mark
        The text of the marks.
    suite, objective, setups
        Its instances, and what is compared on them.
    """

    mark: str
    suite: str
    objective: Objective
    setups: tuple[Setups, ...]


def tables_of(page: str) -> Iterator[StoredTable]:
    """Yield the tables that the text of a page asks for."""
    for mark, suite, objective, setups in _MARK.findall(page):
        yield StoredTable(mark, suite, find_objective(objective), tuple(map(_setup, setups.split(","))))


def _setup(stated: str) -> Setups:
    """Return one setup: POLICY, ROUTER+POLICY or ROUTER+POLICY+EVICTOR."""
    first, *rest = stated.split("+")
    if not rest:
        return Setups.named([first])
    policy, *evictors = rest
    return Setups.named([policy], routers=[first], evictors=evictors or [None])


def filled(page: str, store: Store) -> str:
    """Return the text of a page with all its tables from a store.

    Raises
    ------
    InputError
        If the store lacks a result, or the page the end of a section.
    """
    for asked in tables_of(page):
        page = replace_section(page, asked.mark, as_markdown(make_sheet(stored_table(asked, store))))
    return page


def stored_table(asked: StoredTable, store: Store) -> BoundTable:
    """Return a bound table from a store."""
    suite = load_suite(asked.suite)
    rows = tuple(_row(instance, asked, store) for instance in suite.instances)
    labels = tuple(label for setup in asked.setups for label in setup.labels)
    return BoundTable(suite.name, suite.description, asked.objective, Restrictions(), labels, rows)


def _row(instance: Instance, asked: StoredTable, store: Store) -> Row:
    best = best_known(instance, asked.objective, store)
    problem = instance, asked.objective, Restrictions()
    trials = [trial for setup in asked.setups for trial in setup.trials(problem)]
    found = [store.find(trial, EVEN_FAILURES) for trial in trials]
    outcomes = [attempt.outcome.result for attempt in found if attempt is not None]
    results = tuple(result for result in outcomes if result is not None)
    if best is None or len(results) < len(trials):
        reason = f"not all of {asked.mark} on {instance.name}"
        raise InputError("", Said(reason), "what `optsched table` with --results has kept", str(store.path))
    return Row(instance, best, results)


def best_known(instance: Instance, objective: Objective, store: Store) -> Result | None:
    """Return the best schedule that a store has of an instance, with the best bound, of whatever methods."""
    value, bound = store.best(solving(instance, objective))
    if value is None or bound is None or bound.bound is None:
        return bound if value is None else value
    if value.bound is not None and value.bound >= bound.bound:
        return value
    return replace(
        value,
        status=Status.OPTIMAL if value.value == bound.bound else Status.FEASIBLE,
        badge=bound.badge,
        bound=bound.bound,
        certificate=bound.certificate,
        found_by=value.found_by | {"bound": bound.found_by.get("bound", bound.method)},
    )
