"""The ledger replayed: every problem of its rows solved anew, checked, and held against what the rows say.

    python benchmarks/replay.py --records results/replay.jsonl --most 20 --readme benchmarks/README.md

A row has no schedule, so its problem is solved again, in as long as the row took and a half more, at most ``--most``
seconds. The result goes through the checker. A bound above a row's value, or a value below a row's bound, refutes the
row or the code, and the command ends with 1. Rows that rest on `last_arrivals` have their condition tested. What is
finished stays in the records file, and the same command goes on where it was killed.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from optsched import library
from optsched.check import UnprovedError, check_result
from optsched.check.certificates.last_arrivals import require_separable
from optsched.check.problem import problem_of
from optsched.cli import run_program
from optsched.cli.options import file_option
from optsched.library import instances_directory
from optsched.methods.checked import DefectFoundError
from optsched.methods.solve import solve
from optsched.model.documents import ClaimedResult, instance_sha256
from optsched.model.instance import Instance
from optsched.model.lines import append_lines
from optsched.model.restrictions import Restrictions
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Cell, Column, Sheet
from optsched.study import ledger as ledgers
from optsched.study.ledger import Kind, Ledger, Row
from sections import write_section

Record = dict[str, Any]
_LEAST_S = 2.0


def _shipped_instances() -> dict[str, Instance]:
    """Return the instances of all shipped suites by hash."""
    suites = sorted(path for path in instances_directory().iterdir() if path.name.endswith((".json", ".json.gz")))
    return {instance_sha256(found): found for suite in suites for found in library.load_instances(suite)}


def _problems(ledger: Ledger) -> Iterator[tuple[str, list[Row]]]:
    """Yield every problem's key and rows."""
    rows: dict[str, list[Row]] = {}
    for row in ledger.rows:
        key = f"{row.instance_sha256} {row.objective.value} {row.restrictions}"
        rows.setdefault(key, []).append(row)
    yield from rows.items()


def _separable(instance: Instance) -> bool:
    """Whether `last_arrivals` holds of an instance, by the checker's own test of its condition."""
    problem = problem_of(instance, Restrictions())
    try:
        require_separable(problem)
    except UnprovedError:
        return False
    return not problem.swap


def _replayed(key: str, instance: Instance, rows: list[Row], most: float) -> Record:
    """Solve a problem anew and say how its rows fare."""
    objective, restrictions = rows[0].objective, rows[0].restrictions
    values = [row.value for row in rows if row.kind == Kind.VALUE]
    bounds = [row.value for row in rows if row.kind == Kind.BOUND]
    limit = min(most, max(_LEAST_S, 1.5 * max(row.runtime_s for row in rows)))
    violations: list[str] = []
    try:
        found = solve(instance, objective, restrictions=restrictions, time_limit=limit)
    except DefectFoundError as defect:
        violations.append(str(defect))
        found = defect.result
    violations += check_result(ClaimedResult(found, instance_sha256(instance), found.gap)).violations
    if found.bound is not None and values and found.bound > min(values):
        violations.append(f"bound {found.bound} of {found.found_by['bound']} exceeds the row's value {min(values)}")
    if found.value is not None and bounds and found.value < max(bounds):
        violations.append(f"value {found.value} of {found.found_by['schedule']} is below the row's bound {max(bounds)}")
    if any("last_arrivals" in row.method for row in rows) and not _separable(instance):
        violations.append("a row rests on last_arrivals, whose condition fails")
    return {
        "key": key,
        "instance": instance.name,
        "suite": instance.name.split("-")[0],
        "rows": len(rows),
        "value": (found.value is not None and found.value <= min(values)) if values else None,
        "bound": (found.bound is not None and found.bound >= max(bounds)) if bounds else None,
        "seconds": round(found.runtime_s, 1),
        "violations": violations,
    }


def _sheet(records: list[Record]) -> Sheet:
    """Return how many problems of each family of instances are reproduced, and how many refuted."""
    families = sorted({record["suite"] for record in records})
    groups = [[record for record in records if record["suite"] == family] for family in families]

    def reached(group: list[Record], part: str) -> str:
        return f"{sum(bool(record[part]) for record in group)} of {sum(record[part] is not None for record in group)}"

    parts: dict[str, list[str | int]] = {
        "instances": list(families),
        "problems": [len(group) for group in groups],
        "rows": [sum(record["rows"] for record in group) for group in groups],
        "best value reached": [reached(group, "value") for group in groups],
        "best bound reached": [reached(group, "bound") for group in groups],
        "refuted": [sum(bool(record["violations"]) for record in group) for group in groups],
    }
    columns = [
        Column(name, name, tuple(Cell(str(value), value) for value in values), key=not place, left=not place)
        for place, (name, values) in enumerate(parts.items())
    ]
    return Sheet("The ledger replayed", "", tuple(columns), ())


@click.command()
@click.option("--records", type=str, default="results/replay.jsonl", help="JSON lines of what is finished.")
@click.option("--most", type=click.FloatRange(min=1), default=20.0, help="Most seconds for a problem, 20.")
@file_option("--readme", "Markdown file whose section `replay` is written anew.")
def main(records: str, most: float, readme: str | None) -> None:
    """Replay the shipped ledger."""
    file = Path(records)
    file.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    if file.exists():
        done = {record["key"]: record for record in map(json.loads, file.read_text(encoding="utf-8").splitlines())}
    instances = _shipped_instances()
    for key, rows in _problems(ledgers.shipped()):
        if key not in done:
            done[key] = _replayed(key, instances[rows[0].instance_sha256], rows, most)
            append_lines(file, [json.dumps(done[key])])
            click.echo(f"{done[key]['instance']}: {done[key]['violations'] or 'consistent'}", err=True)
    sheet = _sheet(list(done.values()))
    click.echo(as_text(sheet, 120))
    if readme is not None:
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        said = f"## The ledger replayed\n\n{as_markdown(sheet)}\n\n{day}, at most {most:g} s a problem."
        write_section("--readme", readme, "replay", said)
    refuted = [record for record in done.values() if record["violations"]]
    for record in refuted:
        click.echo(f"{record['instance']}: {'; '.join(record['violations'])}", err=True)
    if refuted:
        sys.exit(1)


if __name__ == "__main__":
    run_program(main, "replay.py")
