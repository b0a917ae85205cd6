"""Exact methods side by side on a suite.

    python benchmarks/exact.py --methods auto,token_cpsat --n 4,6 --time-limit 10

Every method runs on every instance in a process of its own. What is finished stays in the records file; the same
command goes on where it was killed. Then it prints tables, and with --readme and --plot writes them.
"""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path

import click

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
from optsched.methods.plan import AUTO, method_names
from optsched.model.documents import check_writable, write_text
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance
from optsched.model.result import Result
from optsched.report.benchmark import common_runs, methods_sheet, provenance, replace_section, sizes_sheet
from optsched.report.formats import as_markdown, as_text
from optsched.report.profile_plot import check_plot, plot_profile
from optsched.study import ledger as ledgers
from optsched.study.benchmark import Record, Records, Trial, side_by_side

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
@click.option("--n", "sizes", metavar="4,6", help="Only instances of so many requests.")
@click.option("--methods", default=AUTO, show_default=True, metavar="NAMES", help="Names joined by commas.")
@objective_option
@time_limit_option
@workers_option
@seed_option
@click.option("--records", metavar="FILE", help="Finished runs.  [default: results/exact-SUITE.jsonl]")
@click.option("--report", is_flag=True, help="Run nothing: report what is finished.")
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
    records: str | None,
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
    file = Path(records) if records is not None else _HERE.parent / "results" / f"exact-{title}.jsonl"
    with blaming("--records"):
        if records is None:
            file.parent.mkdir(exist_ok=True)
        check_writable(file)
        kept = Records(file)
    threads = workers or os.cpu_count() or 1
    trials = [Trial(title, instance, goal, name, time_limit, threads, seed) for instance in instances for name in names]

    def finished(record: Record, result: Result | None) -> None:
        _say(record)
        if ledger is not None and result is not None:
            with blaming("--ledger"):
                ledgers.record(Path(ledger), [result], datetime.datetime.now(datetime.UTC).date())

    if report:
        found = [record for record in map(kept.find, trials) if record is not None]
    else:
        with blaming("--records"):
            found = list(side_by_side(trials, kept, commit or _commit(), finished))
    with blaming("--records", str(file)):
        runs = common_runs(found, names)
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
        with blaming("--readme"):
            text = Path(readme).read_text(encoding="utf-8") if Path(readme).exists() else "# Benchmarks\n"
            write_text(readme, replace_section(text, name, "\n\n".join(part.strip() for part in parts)))


def _say(record: Record) -> None:
    """Print a finished run on a line."""
    time = f"{record.runtime_s:8.2f} s"
    state = record.status.value if record.message is None else f"{record.ended.value}: {record.message}"
    click.echo(f"{time}  {record.method:<16} {record.instance}: {state}", err=True)


if __name__ == "__main__":
    run_program(main, "exact.py")
