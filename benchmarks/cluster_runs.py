"""Runs of other systems with several replicas or prefix caches, replayed with our caches, routers and policies.

    python benchmarks/cluster_runs.py ../shared/data/cluster_runs [--data ../shared/data] [--kind sglang_radix]

Every file of a known kind under the folder is replayed with the settings in it. Its kind is known by its contents, not
by its name. A line for each gives how many batches, operations, decisions or requests are the same, and the first that
is not. `--data` is the folder of public data that some runs were made from. Exit code 1 if anything differs.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cluster.kinds import KINDS
from cluster.outcome import Sources
from optsched.cli import run_program
from optsched.model.errors import InputError, Said

_ENDINGS = (".json", ".jsonl", ".csv")
_OURS = Path(__file__).resolve().parents[2] / "shared/data"


def read(path: Path) -> Any:
    """Return the document of a file: JSON, a list of JSON lines, or a list of the rows of a table."""
    name = path.name.removesuffix(".gz")
    content = path.read_bytes()
    try:
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        if name.endswith(".csv"):
            return list(csv.DictReader(io.StringIO(text)))
        if name.endswith(".jsonl"):
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return json.loads(text)
    except (OSError, EOFError, ValueError) as error:
        raise InputError("", Said(str(error)), "JSON, JSON lines or a table", str(path)) from error


def replay(path: Path, shown: str, sources: Sources, kinds: Sequence[str]) -> bool:
    """Replay a file and print what is found; return whether all is the same."""
    document = read(path)
    name = next((name for name in KINDS if document and KINDS[name].recognises(document)), None)
    if name is None:
        click.echo(f"{shown}: no kind of run that is known")
        return True
    same = True
    started = time.perf_counter()
    for outcome in KINDS[name].outcomes(document, sources) if name in kinds else ():
        run = f", {outcome.run}" if outcome.run else ""
        taken = time.perf_counter() - started
        difference = f"; first different: {outcome.difference}" if outcome.difference else ""
        counted = f"{outcome.same:,} of {outcome.total:,} {outcome.unit}"
        click.echo(f"{shown} ({name}{run}): {counted} [{taken:.1f} s]{difference}")
        same &= outcome.same == outcome.total
    return same


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="Folder of public data.  [default: FOLDER/.. and ours]")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only this kind; repeatable.")
def main(folder: Path, data: Path | None, kinds: tuple[str, ...]) -> None:
    """Replay every file under a folder."""
    public = (data,) if data else (folder.parent, _OURS)
    same = True
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or not path.name.removesuffix(".gz").endswith(_ENDINGS):
            continue
        shown = str(path.relative_to(folder))
        try:
            same &= replay(path, shown, Sources(path.parent, public), kinds or tuple(KINDS))
        except InputError as error:
            click.echo(f"{shown}: not replayed: {error}")
            same = False
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    run_program(main, "cluster_runs.py")
