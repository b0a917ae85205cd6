"""Studies: running them, and looking into their store."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import click

from optsched.cli.group import cli
from optsched.cli.options import blaming, file_option, integer_option, ledger_option, naming_options
from optsched.cli.step_bar import StepBar
from optsched.cli.stores import open_store
from optsched.cli.terminal import terminal_width
from optsched.cli.types import FILE
from optsched.model.documents import read_bytes, results_text, write_text
from optsched.model.errors import InputError, Said, printable
from optsched.report.formats import as_text, simple_table
from optsched.report.stored_tables import filled
from optsched.report.study import changes, study_sheet
from optsched.study import ledger as ledgers
from optsched.study.cluster import runner_of
from optsched.study.drive import run
from optsched.study.frame import Row, as_csv, rows_of, write_parquet
from optsched.study.record import Ended, Record
from optsched.study.runner import Runner
from optsched.study.store import EVEN_FAILURES, Attempt, Store
from optsched.study.study_file import StudyFile, read_study
from optsched.study.trial import Kind, Trial, digest

_SHOWN = 20
"""Most failures and changes that are named one by one."""


class _DefaultGroup(click.Group):
    """A group whose first argument may also be the argument of its command ``run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``run`` before an argument that is no command."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@cli.group(cls=_DefaultGroup)
def study() -> None:
    """Run the trials of a study into one store (docs/study.md): `optsched study FILE.toml`."""


class OpenedStudy:
    """A study file and its store."""

    def __init__(self, source: str) -> None:
        path = Path(source)
        with blaming(source=source):
            self.file: StudyFile = read_study(path)
            self.trials = self.file.trials()
        self.store_path = path.with_suffix(".sqlite") if self.file.store is None else Path(self.file.store)

    def store(self) -> Store:
        """Open the store; its folder is made if it does not exist."""
        with suppress(OSError):  # opening the store says so
            self.store_path.parent.mkdir(parents=True, exist_ok=True)
        return open_store(self.store_path)


@study.command("run")
@click.argument("file", type=FILE)
@click.option("--dry-run", is_flag=True, help="Say what would run, and how long it may take; run nothing.")
@integer_option("--slots", 1, 100_000, None, "Trials at once.  [default: the file's, or one per core]")
@click.option("--runner", metavar="RUNNER", help="processes, dask:ADDRESS or ray:ADDRESS.  [default: the file's]")
@file_option("--out", "Write a row for each trial (.csv or .parquet).")
def run_study(file: str, dry_run: bool, slots: int | None, runner: str | None, out: str | None) -> int:
    """Run what the store does not have yet; Ctrl-C keeps what is finished."""
    _require_rows(out)
    opened = OpenedStudy(file)
    if dry_run:
        with opened.store() as store, blaming(source=str(opened.store_path)):
            _tell_plan(opened, store, slots)
        return 0
    with naming_options() if runner is not None else blaming(source=file):
        engine = runner_of(runner or opened.file.runner, opened.file.allowance, slots or opened.file.slots)
    with closing(engine), opened.store() as store, blaming(source=str(opened.store_path)):
        store.enter(opened.file.name, opened.trials)
        order = {trial.key: place for place, trial in enumerate(opened.trials)}
        records = sorted(_carried_out(opened, store, engine), key=lambda pair: order[pair[0].key])
        rows = rows_of(records, store.best)
    if out is not None:
        _write_rows(rows, out)
    click.echo(as_text(study_sheet(opened.file.name, rows), terminal_width()), nl=False)
    _tell_failures([record for _, record in records])
    return 0


def _carried_out(opened: OpenedStudy, store: Store, engine: Runner) -> Iterator[tuple[Trial, Record]]:
    """Yield the trials as they end, with a bar of those that are left."""
    started, fresh, failed = time.monotonic(), 0, 0
    with StepBar(opened.file.name) as bar:
        for number, done in enumerate(run(opened.trials, engine, store, wanted=EVEN_FAILURES), 1):
            failed += done.result is None
            fresh += done.kept is None
            left = (len(opened.trials) - number) * (time.monotonic() - started) / fresh if fresh else 0.0
            state = f"about {_duration(left)} left" + (f", {failed} without a result" if failed else "")
            bar.show(number, len(opened.trials), state)
            yield done.trial, done.record(opened.file.name)


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def _tell_plan(opened: OpenedStudy, store: Store, slots: int | None) -> None:
    """Print what is there and what would run: at most so long, or as long as such trials took before."""
    different = {trial.key: trial for trial in opened.trials}.values()
    missing = [trial for trial in different if store.find(trial, EVEN_FAILURES) is None]
    there = f"{len(different) - len(missing)} in {opened.store_path}, {len(missing)} to run"
    click.echo(f"{opened.file.name}: {len(different)} trials, {there}")
    counts: dict[tuple[str, str], int] = {}
    for trial in missing:
        counts[trial.kind.value, trial.label] = counts.get((trial.kind.value, trial.label), 0) + 1
    for (kind, label), count in counts.items():
        click.echo(f"  {count} × {kind} {label}")
    once = {name: store.seconds_of(name) for name in {trial.method for trial in missing}}
    expected = [once[trial.method] for trial in missing]
    known = sum(seconds for seconds in expected if seconds is not None)
    most = sum(trial.time_limit_s or 0.0 for trial in missing if trial.kind is Kind.SOLVE)
    lanes = slots or opened.file.slots or os.cpu_count() or 1
    if most:
        click.echo(f"Searches: at most {_duration(most / lanes)} in all, {lanes} at once.")
    if known:
        unknown = sum(seconds is None for seconds in expected)
        rest = f", without {unknown} trials of methods that the store has not run" if unknown else ""
        click.echo(f"As long as such trials took before: {_duration(known / lanes)}{rest}.")


def _tell_failures(records: Sequence[Record]) -> None:
    """Name what gave no result on stderr, and why."""
    failed = [record for record in records if record.ended in {Ended.FAILED, Ended.LOST} or record.status == "failed"]
    for record in failed[:_SHOWN]:
        reason = record.message or record.ended.value
        click.echo(printable(f"optsched: {record.instance}: {record.method}: {reason}"), err=True)
    if len(failed) > _SHOWN:
        click.echo(f"optsched: and {len(failed) - _SHOWN} more", err=True)


@study.command()
@click.argument("source", type=FILE)
def status(source: str) -> None:
    """Say what a study file or a store (.sqlite) has, and what is missing."""
    if not source.endswith(".toml"):
        with existing_store(source) as store:
            rows = [[name, str(members)] for name, members in store.studies.items()]
            counts: dict[str, int] = {}
            for attempt in store.attempts():
                counts[attempt.record.ended.value] = counts.get(attempt.record.ended.value, 0) + 1
            click.echo(simple_table(["study", "trials"], rows, terminal_width(), left=(0,)), nl=False)
            click.echo(f"Attempts: {', '.join(f'{count} {ended}' for ended, count in counts.items()) or 'none'}.")
            _tell_soundness(store)
        return
    opened = OpenedStudy(source)
    with opened.store() as store:
        _tell_plan(opened, store, None)
        _tell_soundness(store)


def _tell_soundness(store: Store) -> None:
    click.echo(f"The file is {'sound' if store.is_sound() else 'damaged'}.")


def existing_store(source: str) -> Store:
    """Open a store that has to be there."""
    path = Path(source)
    if not path.is_file():
        raise InputError("", Said("a folder" if path.is_dir() else "no such file"), "a store", source)
    return open_store(path)


def _opened_store(source: str) -> Store:
    """Open the store of a study file, or a store itself."""
    return existing_store(str(OpenedStudy(source).store_path)) if source.endswith(".toml") else existing_store(source)


@study.command()
@click.argument("source", type=FILE)
def diff(source: str) -> None:
    """Compare the last two versions of the code that ran each trial: values, bounds and times; what got worse first."""
    with _opened_store(source) as store:
        history: dict[str, dict[str, Attempt]] = {}
        for attempt in store.attempts():
            about = {name: value for name, value in attempt.trial.about.items() if name != "code"}
            history.setdefault(digest(about), {})[attempt.trial.code] = attempt
    by_age = [sorted(by_code.values(), key=lambda attempt: attempt.number) for by_code in history.values()]
    pairs = [(attempts[-2].record, attempts[-1].record) for attempts in by_age if len(attempts) > 1]
    found = changes(pairs)
    worse = sum(change.worse for change in found)
    others = len(found) - worse
    click.echo(f"{len(pairs)} trials run by two versions of the code: {worse} changes for the worse, {others} others")
    rows = [
        [each.instance, each.method, each.part, each.before, each.after, "worse" if each.worse else ""]
        for each in found
    ]
    if rows:
        headers = ["instance", "method", "what", "before", "after", ""]
        click.echo(simple_table(headers, rows, terminal_width(), left=(0, 1, 2)), nl=False)


@study.command()
@click.argument("source", type=FILE)
@file_option("--out", "Rows of all attempts (.csv, .parquet), or their result documents (.json, .json.gz).")
@file_option("--page", "Write the bound tables of this page that it has marks for (docs/study.md).")
@ledger_option
def export(source: str, out: str | None, page: str | None, ledger: str | None) -> None:
    """Write what a store holds: rows, documents, tables of a page, or what improves on a ledger."""
    if out is None and page is None and ledger is None:
        raise InputError("--out", Said("none of --out, --page and --ledger"), "what to write")
    documents = out is not None and out.removesuffix(".gz").endswith(".json")
    if not documents:
        _require_rows(out)
    with _opened_store(source) as store:
        if page is not None:
            with blaming("--page"):
                write_text(page, filled(read_bytes(page).decode(), store))
        attempts = [] if out is None and ledger is None else list(store.attempts())
    results = [attempt.outcome.result for attempt in attempts if attempt.outcome.result is not None]
    if ledger is not None:
        with blaming("--ledger"):
            today = datetime.datetime.now(datetime.UTC).date()
            new = ledgers.record(Path(ledger), results, today)
        click.echo(f"{len(new)} rows added to {printable(ledger)}")
    if out is None:
        return
    if documents:
        with blaming("--out"):
            write_text(out, results_text(results))
        return
    _write_rows(rows_of((attempt.trial, attempt.record) for attempt in attempts), out)


def _require_rows(out: str | None) -> None:
    if out is not None and not out.endswith((".csv", ".parquet")):
        raise InputError("--out", out, "a file name that ends in .csv or .parquet")


def _write_rows(rows: Sequence[Row], out: str) -> None:
    with blaming("--out"):
        if out.endswith(".parquet"):
            write_parquet(rows, Path(out))
        else:
            write_text(out, as_csv(rows))


@study.command()
@click.argument("source", type=FILE)
@click.option("--method", metavar="NAME", help="Attempts of this method.")
@click.option("--instance", metavar="NAME", help="Attempts on this instance.")
@click.option("--outdated", is_flag=True, help="Attempts by other code than the installed.")
@click.option("--failed", is_flag=True, help="Attempts without a result.")
def forget(source: str, method: str | None, instance: str | None, outdated: bool, failed: bool) -> None:
    """Delete attempts from a store: those for which all that is given holds."""
    wanted: list[Callable[[Attempt], bool]] = []
    if method is not None:
        wanted.append(lambda attempt: attempt.trial.method == method)
    if instance is not None:
        wanted.append(lambda attempt: attempt.trial.instance.name == instance)
    if outdated:
        wanted.append(lambda attempt: attempt.trial.code != attempt.trial.installed_code)
    if failed:
        wanted.append(lambda attempt: attempt.outcome.result is None)
    if not wanted:
        raise InputError("--method", Said("nothing to choose by"), "--method, --instance, --outdated or --failed")
    with _opened_store(source) as store:
        numbers = [attempt.number for attempt in store.attempts() if all(holds(attempt) for holds in wanted)]
        store.forget(numbers)
    click.echo(f"{len(numbers)} attempts forgotten")
