"""Tiny clusters at random, and the best of all assignments with exhaustive search on each machine."""

from __future__ import annotations

import itertools
import random
from functools import cache

from brute_force import optimum

from optsched import CostModel, Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched_formulations.routing.fleet import Fleet, Machine

MAXIMA = (Objective.MAKESPAN, Objective.MAX_E2E, Objective.MAX_TTFT)


def random_fleet(rng: random.Random) -> Fleet:
    requests = []
    for _ in range(rng.randint(1, 2)):
        prompt, output, arrival = rng.randint(1, 3), rng.randint(1, 2), rng.choice([0, 0, rng.randint(1, 40)])
        slo = rng.choice([None, rng.randint(10, 60)])
        requests.append(Request(prompt, output, arrival, weight=rng.randint(0, 2), slo_e2e_ps=slo))
        if rng.random() < 0.3:
            requests.append(requests[-1])
    machines: list[Machine] = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        # The first machine has room for any request.
        capacity = rng.randint(5, 9) if not machines else rng.randint(2, 9)
        rules = Rules(hybrid=rng.random() < 0.8, chunked_prefill=False, eviction=rng.random() < 0.5)
        cost = CostModel(base=rng.randint(1, 9), token=rng.randint(0, 3), prefill_sq=rng.randint(0, 1))
        machines.append(Machine(Limits(capacity, 100, 100), rules, cost))
        if rng.random() < 0.4:
            machines.append(machines[-1])
    return Fleet("fleet", tuple(machines[:3]), tuple(requests))


@cache
def least_value(instance: Instance, objective: Objective) -> int:
    return optimum(instance, objective)


def brute_force(fleet: Fleet, objective: Objective) -> int:
    """All assignments; the makespan is counted from the earliest arrival of all requests."""
    start = min(request.arrival_ps for request in fleet.requests)

    def least(machine: int, mine: tuple[int, ...]) -> float:
        if not mine:
            return 0
        instance = fleet.on(machine, mine)
        if instance.infeasibilities():
            return float("inf")
        later = min(request.arrival_ps for request in instance.requests) - start
        return least_value(instance, objective) + (later if objective is Objective.MAKESPAN else 0)

    best = float("inf")
    for choice in itertools.product(range(len(fleet.machines)), repeat=len(fleet.requests)):
        parts = [
            least(machine, tuple(r for r, at in enumerate(choice) if at == machine))
            for machine in range(len(fleet.machines))
        ]
        best = min(best, max(parts) if objective in MAXIMA else sum(parts))
    return int(best)


def all_machines(fleet: Fleet) -> list[Instance]:
    """Return the problem of every machine if it served all requests."""
    return [fleet.on(machine, range(len(fleet.requests))) for machine in range(len(fleet.machines))]
