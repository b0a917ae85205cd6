"""Runs of other systems with several replicas or prefix caches, replayed with our caches, routers and policies.

    python benchmarks/cluster_runs.py ../shared/data/cluster_runs [--data ../shared/data] [--kind sglang_radix]

Every file of a known kind under the folder is replayed, by the settings that stand in it: what it holds says its kind,
not its name. A line for each says how many batches, operations, decisions or requests are the same, and the first that
is not. `--data` is the folder of public data that some runs were made from. Exit code 1 if anything differs.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import time
from pathlib import Path
from typing import Any

import click

from cluster.kinds import KINDS
from cluster.outcome import Sources
from optsched.cli import run_program

_ENDINGS = (".json", ".jsonl", ".csv")


def read(path: Path) -> Any:
    """Return the document of a file: JSON, a list of JSON lines, or a list of the rows of a table."""
    name = path.name.removesuffix(".gz")
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    if name.endswith(".csv"):
        return list(csv.DictReader(io.StringIO(text)))
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return json.loads(text)


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="Folder of public data.  [default: FOLDER/..]")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only this kind; repeatable.")
def main(folder: Path, data: Path | None, kinds: tuple[str, ...]) -> None:
    """Replay every file under a folder."""
    differs = False
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or not path.name.removesuffix(".gz").endswith(_ENDINGS):
            continue
        document = read(path)
        for name in kinds or KINDS:
            kind = KINDS[name]
            if not document or not kind.recognises(document):
                continue
            started = time.perf_counter()
            for outcome in kind.outcomes(document, Sources(path.parent, data or folder.parent)):
                run = f", {outcome.run}" if outcome.run else ""
                taken = time.perf_counter() - started
                click.echo(
                    f"{path.relative_to(folder)} ({name}{run}): {outcome.same:,} of {outcome.total:,} {outcome.unit} "
                    f"[{taken:.1f} s]" + (f"; first different: {outcome.difference}" if outcome.difference else "")
                )
                differs |= outcome.same < outcome.total
            break
        else:
            if not kinds:
                click.echo(f"{path.relative_to(folder)}: no kind of run that is known")
    if differs:
        raise SystemExit(1)


if __name__ == "__main__":
    run_program(main, "cluster_runs.py")
