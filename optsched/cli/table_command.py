"""The command that prints a bound table."""

from __future__ import annotations

import datetime
from contextlib import nullcontext
from pathlib import Path

import click

from optsched import library
from optsched.cli.group import cli
from optsched.cli.layout import TEXT, Layout, layout_options
from optsched.cli.live import LiveLine
from optsched.cli.machines import on_machines
from optsched.cli.options import (
    blaming,
    cache_option,
    ledger_option,
    machines_option,
    method_option,
    naming_options,
    objective_option,
    out_option,
    policies_option,
    profile_option,
    read_evictors,
    read_objective,
    read_policies,
    read_routers,
    require_method,
    restriction_options,
    results_option,
    router_option,
    seed_option,
    suite_argument,
    time_limit_option,
    workers_option,
    write_out,
)
from optsched.cli.result_output import warn
from optsched.cli.stores import results_store
from optsched.cli.terminal import WIDE, terminal_width
from optsched.model.documents import Suite, write_text
from optsched.model.domain import replace
from optsched.model.errors import DefectError, InfeasibleInstanceError, InputError, Said, printable
from optsched.model.feasibility import infeasibility
from optsched.model.restrictions import Restrictions
from optsched.report.bound_sheet import make_sheet
from optsched.report.formats import FORMATS, as_text
from optsched.report.sheet import Sheet
from optsched.study import ledger as ledgers
from optsched.study.bound_table import Row, TableTask, finish, table_rows

_SUFFIXES = {"text": "txt", "md": "md", "csv": "csv", "latex": "tex"}


@cli.command()
@suite_argument
@policies_option("standard")
@router_option
@machines_option
@cache_option
@objective_option
@profile_option
@method_option
@layout_options
@time_limit_option
@restriction_options
@workers_option
@seed_option
@out_option
@results_option
@ledger_option
@click.option(
    "--resume",
    is_flag=True,
    help="Take finished results from --results instead of computing them again, if made with the same versions and "
    "seed and, where nothing is proved, the same time limit.",
)
def table(
    suite: str,
    policies: tuple[str, ...],
    routers: tuple[str, ...],
    machines: int | None,
    caches: tuple[str, ...],
    objective: str,
    profile: str | None,
    method: str,
    layout: Layout,
    time_limit: float,
    restrictions: Restrictions,
    workers: int | None,
    seed: int,
    out: str | None,
    results: str | None,
    ledger: str | None,
    resume: bool,
) -> None:
    """Print a bound table: optimum or bound of every instance, and each policy's gap to it.

    Of several routers, policies or caches each is run with each of the others.
    """
    require_method(method)
    if resume and results is None:
        raise InputError("--resume", Said("no --results"), "--results FOLDER to resume from")
    task = TableTask(
        suite=_suite_on_machines(suite, profile, machines, caches),
        policies=read_policies(policies),
        routers=read_routers(routers),
        evictors=read_evictors(caches),
        objective=read_objective(objective),
        restrictions=restrictions,
        method=method,
        time_limit=time_limit,
        workers=workers,
        seed=seed,
    )
    layout.require(name for column in make_sheet(finish(task, ())).columns for name in column.names)
    _require_feasible(task, suite)
    if ledger is not None:
        with blaming("--ledger"):
            ledgers.read_if_there(Path(ledger))
    with blaming("--results"):
        store = results_store(Path(results), resume, workers) if results is not None else None
    rows: list[Row] = []
    defects: list[str] = []
    with (
        store or nullcontext(),
        LiveLine(task.suite.name, task.objective, steps=len(task.suite.instances)) as live,
        blaming("--results", suite),
        naming_options(),
    ):
        for row in table_rows(task, store, live.watch, resume=resume):
            rows.append(row)
            defects += [f"{row.instance.name}: {defect}" for defect in row.defects]
            if ledger is not None and not row.defects:
                found = (row.best, *row.policies)
                try:
                    with blaming("--ledger"):
                        ledgers.record(Path(ledger), found, datetime.datetime.now(datetime.UTC).date())
                except DefectError as defect:
                    defects.append(str(defect))
            live.advance()
            warn(row.best)
    sheet = make_sheet(finish(task, rows))
    if store is not None:
        with blaming("--results"):
            for name, render in FORMATS.items():
                write_text(store.path.with_name(f"table.{_SUFFIXES[name]}"), render(sheet))
    _print_table(sheet, layout, out)
    if store is not None and out != "-" and layout.style == TEXT:
        files = ", ".join(f"table.{suffix}" for suffix in _SUFFIXES.values())
        click.echo(f"\n{store.path.name} with all results, {files}: {printable(str(store.path.parent))}/")
    if defects:
        raise DefectError("; ".join(defects))


def _suite_on_machines(suite: str, profile: str | None, machines: int | None, caches: tuple[str, ...]) -> Suite:
    """Return a suite on the machines that ``--profile``, ``--machines`` and ``--cache`` name; without them as it is."""
    found = library.load_suite(suite)
    return replace(found, instances=tuple(on_machines(each, profile, machines, caches) for each in found.instances))


def _print_table(sheet: Sheet, layout: Layout, out: str | None) -> None:
    """Print a table, or write it to ``--out``; what took long to compute is also printed if that fails."""
    width = terminal_width() if out is None else WIDE
    text = as_text(sheet, width)
    try:
        text = layout.render(sheet, width)
        if out is not None:
            write_out(out, text)
            return
    except InputError:
        click.echo(text, nl=False)
        raise
    click.echo(text, nl=False)


def _require_feasible(task: TableTask, source: str) -> None:
    for instance in task.suite.instances:
        with blaming(source=f"{source}: {instance.name}"), naming_options():
            found = infeasibility(instance, task.restrictions)
        if found is not None:
            raise InfeasibleInstanceError(tuple(f"{instance.name}: {text}" for text in found.reasons), found.remedy)
