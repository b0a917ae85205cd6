"""No false claim: a trial of optima, bounds, certificates and documents against an exhaustive search of its own.

    python benchmarks/soundness.py run results/soundness --minutes 40
    python benchmarks/soundness.py report results/soundness --page benchmarks/README.md
    python benchmarks/soundness.py faults results/soundness-faults --page benchmarks/README.md

What is done stays in the folder: killed, the same command goes on, and several of them may share a folder. What is
found stands in ``found`` there, a document for each; ``again SORT SEED`` repeats a chunk.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import click

from optsched.cli import run_program
from optsched.cli.options import file_option
from sections import write_section
from trial.faults import Verdict, plant, read_faults
from trial.store import Store
from trial.table import faults_table, trial_table
from trial.trials import TRIALS, run_trial

SHARES: Mapping[str, int] = {
    "optima": 560,
    "optima, in floats": 200,
    "optima, requests alike": 150,
    "bounds": 280,
    "bounds, many requests": 180,
    "bounds, several": 60,
    "bounds, many requests on several": 60,
    "documents": 280,
    "climb, bounds": 60,
    "climb, formulations": 120,
    "several machines": 300,
    "several machines, prefixes": 1000,
    "roles": 1000,
    "placements": 100,
    "caches": 100,
    "pooled caches": 100,
    **{sort: 90 for sort in TRIALS if sort.startswith("certificates")},
}
"""Chunks of each sort in a whole trial."""


@click.group()
def cli() -> None:
    """Try claims against an exhaustive search."""


_folder = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_page = file_option("--page", "Markdown page whose section is replaced; printed by default.")


@cli.command()
@_folder
@click.option("--minutes", type=float, default=60.0, show_default=True, help="Wall-clock time, in minutes.")
@click.option("--sort", "sorts", multiple=True, type=click.Choice(list(TRIALS)), help="Sort of trials; all by default.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Multiple of the usual number of chunks.")
def run(folder: Path, minutes: float, sorts: tuple[str, ...], scale: float) -> None:
    """Run chunks of all sorts in turn until each has its share, or time is up."""
    store, until = Store(folder), time.monotonic() + 60 * minutes
    shares = {sort: max(1, round(scale * SHARES[sort])) for sort in sorts or SHARES}
    while time.monotonic() < until:
        claimed = store.claim(shares)
        if claimed is None:
            break
        sort, seed = claimed
        started = time.process_time()
        tally = run_trial(sort, seed)
        seconds = time.process_time() - started
        store.finish(sort, seed, seconds, tally)
        for name, _ in tally.found:
            click.echo(f"{sort}, seed {seed}: {name}")


@cli.command()
@click.argument("sort", type=click.Choice(list(TRIALS)))
@click.argument("seed", type=int)
def again(sort: str, seed: int) -> None:
    """Repeat one chunk and print what it counts and finds."""
    tally = run_trial(sort, seed)
    for name, content in tally.found:
        click.echo(json.dumps({"finding": name} | content))
    click.echo(json.dumps(tally.counts, indent=1))


@cli.command()
@_folder
@_page
def report(folder: Path, page: str | None) -> None:
    """Write the table of what was tried."""
    _publish(page, "soundness", trial_table(Store(folder).done(), date.today().isoformat()))


@cli.command()
@_folder
@_page
@click.option("--fault", "names", multiple=True, help="Name of a fault, or part of one; all by default.")
@click.option("--minutes", type=float, default=10.0, show_default=True, help="CPU time for each fault, in minutes.")
def faults(folder: Path, page: str | None, names: tuple[str, ...], minutes: float) -> None:
    """Plant faults one by one in a copy of the package and say which are found; what has been found stays in FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / "faults.jsonl"
    known = {}
    if record.exists():
        for line in record.read_text(encoding="utf-8").splitlines():
            verdict = Verdict(**json.loads(line))
            known[verdict.name] = verdict
    planted = read_faults()
    for fault in planted:
        wanted = not names or any(part in fault.name for part in names)
        if wanted and fault.name not in known:
            verdict = plant(fault, 60 * minutes)
            known[verdict.name] = verdict
            with record.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(verdict._asdict()) + "\n")
            click.echo(f"{fault.name}: {'found' if verdict.found else 'NOT FOUND'} in {verdict.seconds:.0f} s")
    table = faults_table([(fault, known[fault.name]) for fault in planted if fault.name in known])
    _publish(page, "soundness-faults", table)


@cli.command()
@click.argument("sorts", nargs=-1, type=click.Choice(list(TRIALS)))
@click.option("--minutes", type=float, default=10.0, show_default=True, help="CPU time, in minutes.")
def hunt(sorts: tuple[str, ...], minutes: float) -> None:
    """Run chunks of some sorts in turn, of all by default, and print what is found, a line for each chunk."""
    seed = 0
    while time.process_time() < 60 * minutes:
        for sort in sorts or TRIALS:
            tally = run_trial(sort, seed, first_only=True)
            if tally.found:
                click.echo(json.dumps([sort, seed, tally.found[0][0]]))
                sys.stdout.flush()
        seed += 1


def _publish(page: str | None, section: str, text: str) -> None:
    if page is None:
        click.echo(text)
        return
    write_section("--page", page, section, text)


if __name__ == "__main__":
    run_program(cli, "soundness.py")
