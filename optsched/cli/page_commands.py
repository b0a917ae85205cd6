"""Commands that make pages: the report of a study."""

from __future__ import annotations

from pathlib import Path

import click

from optsched.cli.group import cli
from optsched.cli.options import blaming, file_option
from optsched.cli.study_commands import OpenedStudy, existing_store
from optsched.model.documents import write_text
from optsched.model.errors import printable
from optsched.study.store import EVEN_FAILURES, Attempt, Store
from optsched.study.trial import digest


@cli.command()
@click.argument("study")
@file_option("--out", "Page to write.  [default: the study's name with .html]")
def report(study: str, out: str | None) -> None:
    """Write one page about a study, FILE.toml or its store (.sqlite): tables, figures, schedules, provenance.

    The page needs neither a network nor a server. It needs jinja2: pip install 'optsched[report]'.
    """
    from optsched.pages.report import report_page  # noqa: PLC0415  # only a page loads what draws

    target = out or str(Path(study).with_suffix(".html"))
    command = f"optsched report {study} --out {target}"
    if study.endswith(".toml"):
        opened = OpenedStudy(study)
        name, (attempts, missing) = opened.file.name, _of_study(opened)
    else:
        with existing_store(study) as store:
            name, attempts, missing = " and ".join(store.studies) or Path(study).stem, _latest(store), 0
    with blaming(source=study):
        page = report_page(name, attempts, missing, printable(command))
    with blaming("--out"):
        write_text(target, page)
    click.echo(f"{printable(target)}: {len(attempts)} trials, {len(page.encode()) // 1024} KiB")


def _of_study(opened: OpenedStudy) -> tuple[list[Attempt], int]:
    """Return what the store has of a study's trials, with the installed code, and how many are missing."""
    different = list({trial.key: trial for trial in opened.trials}.values())
    with opened.store() as store:
        found = [store.find(trial, EVEN_FAILURES) or store.last(trial) for trial in different]
    attempts = [attempt for attempt in found if attempt is not None]
    return attempts, len(different) - len(attempts)


def _latest(store: Store) -> list[Attempt]:
    """Return of each trial in a store what the latest code gave; of several attempts the last with a result."""
    latest: dict[str, Attempt] = {}
    for attempt in store.attempts():
        trial = digest({name: part for name, part in attempt.trial.about.items() if name != "code"})
        before = latest.get(trial)
        same = before is not None and before.trial.code == attempt.trial.code
        if not (same and attempt.outcome.result is None):
            latest[trial] = attempt
    return list(latest.values())
