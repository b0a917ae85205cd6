"""Results for the shipped ledger."""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from optsched import library
from optsched.check import check_result
from optsched.cli.group import cli
from optsched.cli.options import blaming
from optsched.cli.types import FILE, FOLDER
from optsched.library import instances_directory
from optsched.model.documents import instance_sha256, results_text, write_text
from optsched.model.errors import InputError, printable
from optsched.study import ledger as ledgers
from optsched.study.ledger import SHIPPED

_DIGITS = 12
"""Digits of the hash in an instance's short name."""


@cli.command()
@click.argument("result", type=FILE)
@click.option(
    "--folder",
    type=FOLDER,
    metavar="FOLDER",
    help="Folder of the suites whose ledger the rows are added to.  [default: the installed one]",
)
def submit(result: str, folder: str | None) -> int:
    """Check a result document, and add what it improves to the ledger: the change of a pull request.

    The rows go to ledger.jsonl, the documents, with schedules and certificates, to submissions/ in the same folder.
    """
    place = instances_directory() if folder is None else Path(folder)
    known = {instance_sha256(each) for suite in library.suite_names() for each in library.load_suite(suite).instances}
    today = datetime.datetime.now(datetime.UTC).date()
    for position, claimed in enumerate(library.load_results(result)):
        found = claimed.result
        for violation in check_result(claimed).violations:
            click.echo(printable(f"{result}: {violation}"))
            return 1
        sha256 = instance_sha256(found.instance)
        if sha256 not in known:
            raise InputError(f"[{position}].instance", found.instance.name, "an instance of the library", result)
        with blaming("--folder"):
            rows = ledgers.record(place / SHIPPED, [found], today)
            if rows:
                kept = place / "submissions"
                kept.mkdir(exist_ok=True)
                name = f"{sha256[:_DIGITS]}-{found.objective.value}-{found.method}-{today.isoformat()}.json.gz"
                write_text(kept / name.replace("/", "_"), results_text(found))
        about = f"optsched:{sha256[:_DIGITS]} {found.instance.name}, {found.objective.value}"
        for row in rows:
            click.echo(printable(f"{about}: {row.kind.value} {row.value} ({row.badge.value}) by {row.method}"))
        if not rows:
            click.echo(printable(f"{about}: nothing that the ledger does not have"))
    return 0
