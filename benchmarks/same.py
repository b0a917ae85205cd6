"""Whether two versions of the code say the same: fingerprints of results, to compare before and after a rewrite.

    python benchmarks/same.py BEFORE.json          # in the old tree
    python benchmarks/same.py AFTER.json --against BEFORE.json

A fingerprint is the SHA-256 of a result document without what may change: running time, versions, message. There is
one for each policy on each instance of the shipped suites, simulated; for each bound of each objective; and for each
method on the smallest instances, under a deterministic limit with one worker. What is in the file already is not
computed again, so that a killed run goes on. Ends with 1 if a fingerprint of both files differs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from optsched.bounds.catalogue import BOUNDS
from optsched.cli import run_program
from optsched.library import instances_directory, load_instances
from optsched.methods.bound import bound
from optsched.methods.plan import method_names
from optsched.methods.policies import policy_names
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.documents import result_document
from optsched.model.instance import Instance
from optsched.model.objectives import PLAIN_OBJECTIVES, Objective
from optsched.model.result import Result

_MOST_SERVED, _MOST_BOUNDED, _MOST_SOLVED = 2_000, 200, 4
"""Requests of an instance up to which policies, bounds and methods run."""
_DETERMINISTIC = 2.0
_OBJECTIVES = (Objective.MAKESPAN, Objective.MEAN_E2E, Objective.MAX_TTFT)


def _fingerprint(result: Result) -> str:
    """Return the hash of what a rewrite must not change."""
    document = result_document(result)
    for varying in ("runtime_s", "versions", "message", "time_limit_s"):
        document.pop(varying, None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _tasks(instances: dict[str, Instance]) -> Iterator[tuple[str, Instance, str, str, Objective]]:
    """Yield key, instance, what to do, its name and the objective."""
    for place, instance in instances.items():
        count = len(instance.requests)
        if count <= _MOST_SERVED:
            for policy in policy_names():
                yield f"simulate {policy} {place}", instance, "simulate", policy, Objective.MAKESPAN
        for objective in PLAIN_OBJECTIVES if count <= _MOST_BOUNDED else ():
            for name in BOUNDS:
                yield f"bound {name} {objective.value} {place}", instance, "bound", name, objective
        for objective in _OBJECTIVES if count <= _MOST_SOLVED else ():
            for method in method_names():
                yield f"solve {method} {objective.value} {place}", instance, "solve", method, objective


def _result(instance: Instance, what: str, name: str, objective: Objective) -> Result:
    if what == "simulate":
        return simulate(instance, name, objective)
    if what == "bound":
        return bound(instance, objective, method=name)
    return solve(instance, objective, method=name, time_limit=600, deterministic_limit=_DETERMINISTIC, workers=1)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--against", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Fingerprints to compare."
)
@click.option("--only", default="", help="Only tasks whose key has this text.")
def main(file: Path, against: Path | None, only: str) -> None:
    """Write fingerprints, and compare them."""
    suites = sorted(path for path in instances_directory().iterdir() if path.name.endswith((".json", ".json.gz")))
    instances = {f"{suite.name.split('.')[0]}/{each.name}": each for suite in suites for each in load_instances(suite)}
    found: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    todo = [task for task in _tasks(instances) if only in task[0] and task[0] not in found]
    with click.progressbar(todo, file=sys.stderr) as bar:
        for number, (key, instance, what, name, objective) in enumerate(bar):
            try:
                found[key] = _fingerprint(_result(instance, what, name, objective))
            except ValueError as error:  # an InputError: this method says nothing of this instance
                found[key] = str(error)
            if number % 100 == 0:
                file.write_text(json.dumps(found))
    file.write_text(json.dumps(found, indent=0))
    click.echo(f"{len(found)} fingerprints in {file}")
    if against is not None:
        before = json.loads(against.read_text())
        differing = sorted(key for key in before.keys() & found.keys() if before[key] != found[key])
        click.echo(f"{len(differing)} of {len(before.keys() & found.keys())} differ")
        click.echo("\n".join(differing))
        sys.exit(bool(differing))


if __name__ == "__main__":
    run_program(main, "same.py")
