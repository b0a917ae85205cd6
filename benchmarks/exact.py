"""Exact methods side by side on a suite.

    python benchmarks/exact.py --methods auto,token_cpsat --n 4,6 --time-limit 10

The methods run one after another in a process beside this one. What is finished stays in the store; the same command
goes on where it was killed. Then it prints tables, and with --readme and --plot writes them.
"""

from __future__ import annotations

import datetime
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click

from method_tables import common_runs, methods_sheet, provenance, sizes_sheet
from optsched import library
from optsched.cli import run_program
from optsched.cli.options import (
    blaming,
    file_option,
    ledger_option,
    objective_option,
    read_objective,
    seed_option,
    time_limit_option,
    workers_option,
)
from optsched.cli.stores import open_store
from optsched.methods.plan import AUTO, method_names
from optsched.model.documents import check_writable
from optsched.model.domain import replace
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance
from optsched.report.figure import check_plot
from optsched.report.formats import as_markdown, as_text
from optsched.study import ledger as ledgers
from optsched.study.drive import Done, run
from optsched.study.runner import Processes
from optsched.study.store import EXACT, Store
from optsched.study.trial import Trial, solving
from profile_figure import plot_profile
from sections import write_section

_HERE = Path(__file__).resolve().parent
_WIDTH = 120


def _instances(suite: str, sizes: str | None) -> tuple[Instance, ...]:
    found = library.load_suite(suite).instances
    if sizes is None:
        return found
    try:
        wanted = {int(part) for part in sizes.split(",")}
    except ValueError:
        raise InputError("--n", sizes, "numbers of requests joined by commas, such as 4,6") from None
    have = sorted({len(instance.requests) for instance in found})
    for number in sorted(wanted - set(have)):
        raise InputError("--n", number, f"one of {', '.join(map(str, have))}")
    return tuple(instance for instance in found if len(instance.requests) in wanted)


def _methods(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in method_names():
            raise InputError("--methods", name, one_of(name, method_names()))
    return names


def _commit() -> str:
    """Return the checkout's commit, with -dirty if files differ from it."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=_HERE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@click.command(help=__doc__)
@click.option("--suite", default="ladder", show_default=True, help="A suite of the library, or a file.")
@click.option("--n", "sizes", metavar="4,6", help="Only instances of these numbers of requests.")
@click.option("--methods", default=AUTO, show_default=True, metavar="NAMES", help="Names joined by commas.")
@objective_option
@time_limit_option
@workers_option
@seed_option
@click.option("--store", "kept", metavar="FILE", help="Finished runs.  [default: results/exact-SUITE.sqlite]")
@click.option("--report", is_flag=True, help="Run nothing, append nothing: report what is finished.")
@ledger_option
@file_option("--readme", "Put the tables into this Markdown file.")
@click.option("--plot", metavar="FILE", help="Draw the performance profile (.svg, .png, .pdf).")
@click.option("--commit", help="What was measured.  [default: what git says]")
def main(
    suite: str,
    sizes: str | None,
    methods: str,
    objective: str,
    time_limit: float,
    workers: int | None,
    seed: int,
    kept: str | None,
    report: bool,
    ledger: str | None,
    readme: str | None,
    plot: str | None,
    commit: str | None,
) -> None:
    """Run the benchmark and report it."""
    goal, names, instances = read_objective(objective), _methods(methods), _instances(suite, sizes)
    if time_limit == float("inf"):
        raise InputError("--time-limit", time_limit, "a finite number > 0")
    if plot is not None:
        with blaming("--plot"):
            check_plot(Path(plot))
    if ledger is not None:
        with blaming("--ledger"):
            ledgers.read_if_there(Path(ledger))
    title = library.load_suite(suite).name
    file = Path(kept) if kept is not None else _HERE.parent / "results" / f"exact-{title}.sqlite"
    trials = [
        solving(instance, goal, method=name, time_limit=time_limit, workers=workers, seed=seed)
        for instance in instances
        for name in names
    ]
    with blaming("--store"):
        if kept is None:
            file.parent.mkdir(exist_ok=True)
        check_writable(file)
        store = open_store(file, commit or _commit())
    with store, blaming("--store"):
        store.enter(title, trials)
        for done in [] if report else _run(trials, store):
            if done.kept is None:
                _say(done)
            if ledger is not None and done.result is not None and not done.outcome.defects:
                with blaming("--ledger"):
                    ledgers.record(Path(ledger), [done.result], datetime.datetime.now(datetime.UTC).date())
        attempts = [attempt for attempt in map(store.last, trials) if attempt is not None]
    with blaming("--store", str(file)):
        runs = common_runs([replace(attempt.record, suite=title) for attempt in attempts], names)
    sheets = (methods_sheet(runs), sizes_sheet(runs))
    click.echo("\n".join(as_text(sheet, _WIDTH) for sheet in sheets))
    click.echo(provenance(runs))
    if plot is not None:
        plot_profile(runs, Path(plot))
    if readme is not None:
        name = f"{title}-{goal.value}"
        parts = [f"## {title}, {goal.value}", *map(as_markdown, sheets), provenance(runs)]
        if plot is not None:
            place = os.path.relpath(Path(plot).resolve(), Path(readme).resolve().parent)
            parts.append(f"![Performance profile of {name}]({Path(place).as_posix()})")
        write_section("--readme", readme, name, "\n\n".join(part.strip() for part in parts))


def _run(trials: list[Trial], store: Store) -> Iterator[Done]:
    """Yield what the store has, or what is run now, one after another."""
    with closing(Processes(1)) as runner:
        yield from run(trials, runner, store, wanted=EXACT)


def _say(done: Done) -> None:
    """Print a finished run on a line."""
    points, result = done.outcome.points, done.result
    state = f"{done.outcome.ended.value}: {done.outcome.message}" if result is None else result.status.value
    time = f"{points[-1][0] if points else 0:8.2f} s"
    click.echo(f"{time}  {done.trial.method:<16} {done.trial.instance.name}: {state}", err=True)


if __name__ == "__main__":
    run_program(main, "exact.py")
