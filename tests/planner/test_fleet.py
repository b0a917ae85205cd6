"""The planner of several machines: its schedules are each machine's own, and its values theirs."""

from __future__ import annotations

import random
from itertools import islice

import numpy as np
import pytest
from clusters import brute_force, random_cluster

from optsched import CostModel, Instance, Limits, Request, Rules, Schedule, check_schedule
from optsched.model.domain import replace
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.planner.machines import FleetSearch, joined
from optsched_formulations.routing.fleet import require_places

OBJECTIVES = (Objective.MAKESPAN, Objective.MEAN_E2E, Objective.MAX_TTFT, Objective.WEIGHTED_E2E, Objective.SLO_MISSES)


def on_machine(cluster: Instance, schedule: Schedule, machine: int) -> tuple[Instance, Schedule] | None:
    """Return what one machine does as an instance and a schedule of its own; None if it does nothing."""
    mine = [request for request, at in enumerate(schedule.routes) if at == machine]
    if not mine:
        return None
    own = {request: number for number, request in enumerate(mine)}
    batches = tuple(
        replace(
            batch,
            replica=0,
            run=tuple((own[request], tokens) for request, tokens in batch.run),
            evict=tuple(own[request] for request in batch.evict),
        )
        for batch in schedule.batches
        if batch.replica == machine
    )
    return cluster.on(machine, mine), Schedule(batches)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_plans_are_schedules_of_every_machine(objective: Objective) -> None:
    rng, optimal = random.Random(objective.value), 0
    for _ in range(6):
        cluster = random_cluster(rng)
        require_places(cluster)
        search = FleetSearch(cluster, objective, np.random.default_rng(0))
        for _ in islice(search.search(), 200):
            pass
        schedule, values = search.schedule(), []
        assert list(schedule.batches) == sorted(schedule.batches, key=lambda batch: (batch.start_ps, batch.replica))
        for machine in range(len(cluster.machines)):
            own = on_machine(cluster, schedule, machine)
            if own is not None:
                assert check_schedule(*own)[0] == []
                later = own[0].start_ps - cluster.start_ps if objective is Objective.MAKESPAN else 0
                values.append(evaluate(*own)["objectives"][objective.value] + later)
        assert search.value == (max(values) if objective.is_largest else sum(values))
        best = brute_force(cluster, objective)
        assert search.value >= best
        optimal += search.value == best
    assert optimal >= 3


def test_equal_requests_are_shared_out() -> None:
    """Four requests of 50 tokens, and four of 1, on two machines with memory for all.

    Two long ones on each: 50 batches, the first with two short ones, too. With three long ones it is 50 × 103.
    """
    cluster = Instance(
        "apart",
        Limits(10_000, 1_000, 1_000),
        Rules(),
        CostModel(base=100, token=1),
        (Request(1, 50),) * 4 + (Request(1, 1),) * 4,
        replicas=2,
    )
    search = FleetSearch(cluster, Objective.MAKESPAN, np.random.default_rng(0))
    for _ in islice(search.search(), 2000):
        pass
    assert search.value == 104 + 49 * 102
    assert sorted(search.schedule().routes[:4]) == [0, 0, 1, 1]


def test_no_schedule_without_batches_is_joined() -> None:
    assert joined([((1, 0), None), ((), None)]) == Schedule((), (0, 0))
