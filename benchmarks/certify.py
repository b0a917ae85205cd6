"""Certificates for the optima of the ledger that are only claimed.

    python benchmarks/certify.py ladder --n 4,6,8 --time-limit 60 --ledger instances/ledger.jsonl

For every optimum of a suite whose bound a solver only claims, certificates are made of the known bound, and the checker
tries them (`optsched_formulations.batching.search.optimum_certificates`). Those that it proves become rows of the
ledger. A line for each says how long that took, and how long the search had taken that found the bound.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from optsched import library
from optsched.check import UnprovedError, proved_bound
from optsched.cli import run_program
from optsched.cli.options import read_objective
from optsched.model.documents import instance_sha256
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status, versions
from optsched.study import ledger as ledgers
from optsched_formulations.batching.search.optimum_certificates import optimum_certificates

METHOD = "certify"
_OBJECTIVES = [Objective.MAKESPAN, Objective.MEAN_E2E]


@click.command(help=__doc__)
@click.argument("suite")
@click.option("--n", "sizes", metavar="4,6", help="Only instances of these numbers of requests.")
@click.option("--time-limit", type=float, default=60.0, show_default=True, help="Seconds for each optimum.")
@click.option("--ledger", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The ledger's file.")
@click.option("--objective", "names", multiple=True, help="Of which objectives; makespan and mean_e2e by default.")
@click.option("--only", default="", metavar="TEXT", help="Only instances whose name contains this.")
def main(suite: str, sizes: str | None, time_limit: float, ledger: Path, names: tuple[str, ...], only: str) -> None:
    """Certify what is claimed."""
    wanted = None if sizes is None else {int(size) for size in sizes.split(",")}
    instances = [
        instance
        for instance in library.load_suite(suite).instances
        if (wanted is None or len(instance.requests) in wanted) and only in instance.name
    ]
    objectives = [read_objective(name) for name in names] or _OBJECTIVES
    for objective in objectives:
        for instance, bound, claimed_s in _claimed(ledger, instances, objective):
            started = time.perf_counter()
            found, said = _certified(instance, objective, bound, time_limit)
            made_s = time.perf_counter() - started
            click.echo(f"{instance.name} {objective.value}: {said}; {made_s:.2f} s in all, found in {claimed_s} s")
            if found is not None:
                ledgers.record(ledger, [found], datetime.datetime.now(datetime.UTC).date())
    for objective in objectives:
        click.echo(f"{objective.value}: {_counts(ledger, instances, objective)}")


def _claimed(ledger: Path, instances: list[Instance], objective: Objective) -> Iterator[tuple[Instance, int, float]]:
    """Yield the optima whose bound no checker has proved, and how long their proof took."""
    known = ledgers.read(ledger)
    for instance in instances:
        row = known.best(instance_sha256(instance), objective)
        if row.status == Status.OPTIMAL and row.badge == Badge.SOLVER_CLAIMED:
            assert row.bound is not None
            assert row.proof_s is not None
            yield instance, row.bound, row.proof_s


def _certified(instance: Instance, objective: Objective, bound: int, seconds: float) -> tuple[Result | None, str]:
    """Return a result with a certificate that the checker accepts, and what to say of it."""
    said = "no certificate"
    started = time.perf_counter()
    for certificate in optimum_certificates(instance, objective, bound, seconds, 1):
        checked = time.process_time()
        try:
            proved = proved_bound(instance, Restrictions(), objective, certificate)
        except UnprovedError as error:
            said = f"{certificate['kind']}: {error}"
            continue
        said = f"{certificate['kind']} checked in {time.process_time() - checked:.2f} s"
        if proved < bound:
            said += f" proves {proved} of {bound}"
            continue
        result = Result(
            instance,
            METHOD,
            objective,
            Status.BOUND_ONLY,
            Badge.CERTIFIED,
            bound=bound,
            runtime_s=time.perf_counter() - started,
            versions=dict(versions()),
            certificate=certificate,
        )
        return result, said
    return None, said


def _counts(ledger: Path, instances: list[Instance], objective: Objective) -> str:
    known = ledgers.read(ledger)
    rows = [known.best(instance_sha256(instance), objective) for instance in instances]
    badges = Counter(row.badge.value for row in rows if row.status == Status.OPTIMAL)
    return ", ".join(f"{count} optima {badge}" for badge, count in sorted(badges.items())) or "no optima"


if __name__ == "__main__":
    run_program(main, "certify.py")
