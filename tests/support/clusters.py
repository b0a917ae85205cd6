"""Tiny clusters at random, and the best of all assignments with exhaustive search on each machine."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import cache

from brute_force import optimum

from optsched import CostModel, Instance, Limits, MachineGroup, Request, Rules, replace
from optsched.model.objectives import Objective

MAXIMA = (Objective.MAKESPAN, Objective.MAX_E2E, Objective.MAX_TTFT)


def cluster_of(machines: Sequence[MachineGroup], requests: Sequence[Request]) -> Instance:
    """Return an instance of machines that have limits, rules and cost of their own."""
    limits, rules, cost = machines[0].limits, machines[0].rules, machines[0].cost
    assert limits is not None
    assert rules is not None
    assert cost is not None
    return Instance("cluster", limits, rules, cost, tuple(requests), machine_groups=tuple(machines))


def random_cluster(rng: random.Random) -> Instance:
    requests = []
    for _ in range(rng.randint(1, 2)):
        prompt, output, arrival = rng.randint(1, 3), rng.randint(1, 2), rng.choice([0, 0, rng.randint(1, 40)])
        slo = rng.choice([None, rng.randint(10, 60)])
        requests.append(Request(prompt, output, arrival, weight=rng.randint(0, 2), slo_e2e_ps=slo))
        if rng.random() < 0.3:
            requests.append(requests[-1])
    machines: list[MachineGroup] = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        # The first machine has room for any request.
        capacity = rng.randint(5, 9) if not machines else rng.randint(2, 9)
        rules = Rules(hybrid=rng.random() < 0.8, chunked_prefill=False, eviction=rng.random() < 0.5)
        cost = CostModel(base=rng.randint(1, 9), token=rng.randint(0, 3), prefill_sq=rng.randint(0, 1))
        machines.append(MachineGroup(limits=Limits(capacity, 100, 100), rules=rules, cost=cost))
        if rng.random() < 0.4:
            machines.append(machines[-1])
    return cluster_of(machines[:3], requests)


@cache
def least_value(instance: Instance, objective: Objective) -> int:
    return optimum(instance, objective)


def brute_force(cluster: Instance, objective: Objective) -> int:
    """All assignments; the makespan is counted from the earliest arrival of all requests."""
    start = min(request.arrival_ps for request in cluster.requests)

    def least(machine: int, mine: tuple[int, ...]) -> float:
        if not mine:
            return 0
        instance = replace(cluster.on(machine, mine), name="one for all machines that are equal")
        if instance.infeasibilities():
            return float("inf")
        later = min(request.arrival_ps for request in instance.requests) - start
        return least_value(instance, objective) + (later if objective is Objective.MAKESPAN else 0)

    best = float("inf")
    for choice in itertools.product(range(len(cluster.machines)), repeat=len(cluster.requests)):
        parts = [
            least(machine, tuple(r for r, at in enumerate(choice) if at == machine))
            for machine in range(len(cluster.machines))
        ]
        best = min(best, max(parts) if objective in MAXIMA else sum(parts))
    return int(best)


def all_machines(cluster: Instance) -> list[Instance]:
    """Return the problem of every machine if it served all requests."""
    return [cluster.on(machine, range(len(cluster.requests))) for machine in range(len(cluster.machines))]
