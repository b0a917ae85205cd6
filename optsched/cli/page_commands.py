"""Commands that make pages: the report of a study, and results of policies."""

from __future__ import annotations

from pathlib import Path

import click

from optsched.cli.group import cli
from optsched.cli.options import blaming, file_option
from optsched.cli.study_commands import OpenedStudy, existing_store
from optsched.library import load_suite, suite_names
from optsched.model.documents import instance_sha256, write_text
from optsched.model.errors import InputError, Said, printable
from optsched.model.objectives import Objective
from optsched.study.ledger import shipped
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


@cli.command()
@click.argument("store")
@click.option("--out", default="docs/results", show_default=True, metavar="FOLDER", help="Folder for the pages.")
def pages(store: str, out: str) -> None:
    """Write how far from optimal each policy is on each suite of the library: Markdown, and the numbers as CSV."""
    from optsched.pages import results  # noqa: PLC0415  # only pages load what they compare

    folder = Path(out)
    with existing_store(store) as opened:
        attempts = [(attempt.trial, attempt.record) for attempt in _latest(opened)]
    by_instance = results.policy_rows(attempts, shipped())
    found: dict[tuple[str, Objective], list[results.PolicyRow]] = {}
    descriptions = {}
    for suite in suite_names():
        loaded = load_suite(suite)
        descriptions[suite] = loaded.description
        for objective in Objective:
            rows = [
                row
                for instance in loaded.instances
                for row in by_instance.get((instance_sha256(instance), objective), ())
            ]
            if rows:
                found[suite, objective] = rows
    if not found:
        raise InputError("", Said("no trial of a policy on a suite of the library"), "a store with some", store)
    folder.mkdir(parents=True, exist_ok=True)
    for (suite, objective), rows in found.items():
        base = folder / results.file_name(suite, objective)
        write_text(f"{base}.csv", results.as_csv(rows))
        write_text(f"{base}.md", results.suite_page(suite, descriptions[suite], objective, rows))
    write_text(str(folder / "index.md"), results.index_page(found, printable(f"optsched pages {store}")))
    click.echo(f"{printable(str(folder))}: {len(found)} suites, {sum(len(rows) for rows in found.values())} numbers")
