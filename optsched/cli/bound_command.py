"""The command that proves a lower bound alone."""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from optsched import library
from optsched.cli.group import cli
from optsched.cli.options import (
    blaming,
    instance_argument,
    json_option,
    ledger_option,
    naming_options,
    objective_option,
    on_profile,
    out_option,
    profile_option,
    read_objective,
    restriction_options,
)
from optsched.cli.result_output import deliver, warn
from optsched.cli.terminal import terminal_width
from optsched.cli.types import OneOf
from optsched.methods.bound import ALL, BEST, BoundRun, best_bound, bound_names
from optsched.methods.checked import DefectFoundError
from optsched.model.documents import instance_sha256
from optsched.model.errors import DefectError, InfeasibleInstanceError
from optsched.model.restrictions import Restrictions
from optsched.model.result import Status
from optsched.report.summary import bound_text
from optsched.study import ledger as ledgers
from optsched.study.ledger import Ledger


@cli.command()
@instance_argument
@objective_option
@profile_option
@click.option(
    "--method",
    type=OneOf(bound_names()),
    default=BEST,
    show_default=True,
    metavar="NAME",
    help=f"One of {', '.join(bound_names())}.",
)
@restriction_options
@ledger_option
@out_option
@json_option
def bound(
    instance: str,
    objective: str,
    profile: str | None,
    method: str,
    restrictions: Restrictions,
    ledger: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Prove a lower bound alone, at any size."""
    goal = read_objective(objective)
    problem = on_profile(library.load_instance(instance), profile)
    known = ledgers.shipped()
    if ledger is not None:
        with blaming("--ledger"):
            known = Ledger([*known.rows, *ledgers.read_if_there(Path(ledger)).rows])
    defect: DefectFoundError | None = None
    runs: list[BoundRun] = []
    with blaming(source=instance), naming_options():
        try:
            result, runs = best_bound(problem, goal, restrictions, method)
        except DefectFoundError as found:
            defect, result = found, found.result
    value = known.best(instance_sha256(problem), goal, restrictions).value
    refuted = value is not None and result.bound is not None and result.bound > value
    best = None if refuted else value
    deliver([result], out, as_json, bound_text(result, runs, best, terminal_width(), every=method == ALL))
    if defect is not None:
        raise defect
    if refuted:
        claim = f"a ledger has the value {value}, below the bound {result.bound}, which the checker proves"
        raise DefectError(f"{problem.name}: {claim}")
    if ledger is not None:
        with blaming("--ledger"):
            ledgers.record(Path(ledger), [result], datetime.datetime.now(datetime.UTC).date())
    if result.status == Status.INFEASIBLE:
        raise InfeasibleInstanceError((result.message or problem.name,))
    if any(run.failure is not None for run in runs):
        warn(result)
