"""The gap of R machines beside that of one, on the stand-in for Azure's conversations.

``python benchmarks/machines.py --requests 400 --machines 4 --seconds 60``: for the makespan and the mean e2e latency,
all requests at once and as they arrive (R times as fast on R machines), what `optsched.solve` finds and proves. One
machine serves all of them, and then every R-th, from each of the first R on, as fast as R machines would get these: as
much work as each of the R has. Last comes the mean gap of those R.
"""

from __future__ import annotations

import argparse
import sys
from statistics import fmean

from optsched import Instance, Objective, load_instance, replace, solve


def cut(requests: int, machines: int, *, offline: bool) -> Instance:
    """Return the first requests of the stand-in on some machines, at once or R times as fast as they came."""
    whole = load_instance("azure-conv-1")
    chosen = tuple(
        replace(request, arrival_ps=0 if offline else request.arrival_ps // machines)
        for request in whole.requests[:requests]
    )
    when = "at once" if offline else "as they arrive"
    return replace(whole, name=f"{requests} on {machines}, {when}", requests=chosen, replicas=machines)


def share(instance: Instance, first: int) -> Instance:
    """Return one of the machines with its share of the requests: every R-th, from ``first`` on."""
    machines = instance.replicas
    name = f"1 in {machines} of {instance.name}, from {first}"
    return replace(instance, name=name, requests=instance.requests[first::machines], replicas=1)


def row(instance: Instance, objective: Objective, seconds: float) -> float | None:
    """Print what is found and proved; return the gap."""
    found = solve(instance, objective, time_limit=seconds)
    value, bound = (0.0 if each is None else each for each in (found.value_s, found.bound_s))
    gap = "" if found.gap is None else f"{found.gap:.2%}"
    cells = instance.name, objective, instance.replicas, f"{value:.4f}", f"{bound:.4f}", gap
    print("|", " | ".join(map(str, (*cells, ", ".join(found.found_by.values())))), "|", flush=True)
    return found.gap


def main(arguments: list[str]) -> None:
    """Print a row for each instance, objective and number of machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[400, 2000])
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--objectives", nargs="+", default=["makespan", "mean_e2e"], choices=[*Objective])
    given = parser.parse_args(arguments)
    print("| requests | objective | machines | value, s | bound, s | gap | schedule, bound by |")
    print("|---|---|---|---|---|---|---|")
    for requests in given.requests:
        for objective in given.objectives:
            for offline in (True, False):
                several = cut(requests, given.machines, offline=offline)
                row(cut(requests, 1, offline=offline), objective, given.seconds)
                row(several, objective, given.seconds)
                gaps = [row(share(several, first), objective, given.seconds) for first in range(given.machines)]
                known = [gap for gap in gaps if gap is not None]
                if len(known) == len(gaps):
                    print(f"| the mean of these | {objective} | 1 | | | {fmean(known):.2%} | |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
