"""The checker of clusters against the plainest replay there is: the same legality, the same metrics."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from brute_cluster import TooManyError, best, random_schedule
from clusters import brute_force, cluster_of
from judging import assert_same, compared
from tiny_clusters import random_tiny

from optsched import CostModel, Limits, MachineGroup, Objective, Request, Rules, check_schedule, replace


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_random_schedules_and_their_mutations_are_judged_alike(block: int) -> None:
    """10 x 30 clusters, one legal schedule of each, and 8 random changes of it."""
    seen: Counter[str] = Counter()
    for seed in range(30 * block, 30 * block + 30):
        seen += compared(seed, 8)
    assert min(seen["hits"], seen["drops"], seen["moves"], seen["refused"], seen["legal changes"]) > 0


@pytest.mark.slow
def test_repeated_batches_are_the_same_as_one_by_one() -> None:
    """Also where a move starts, ends or goes on while batches are repeated."""
    repeats = interrupted = 0
    for seed in range(150):
        rng = random.Random(seed)
        instance = random_tiny(rng, requests=2, longest=3, outputs=8)
        world = None if instance.infeasibilities() else random_schedule(instance, rng)
        if world is None:
            continue
        schedule = world.repeated()
        violations, metrics = check_schedule(instance, schedule)
        assert violations == [], seed
        assert metrics == check_schedule(instance, world.schedule())[1]
        assert_same(metrics, world.metrics())
        for batch in schedule.batches:
            repeats += batch.repeat > 1
            interrupted += batch.repeat > 1 and any(
                batch.start_ps < time < batch.end_ps and batch.replica in (move.source, move.target)
                for move in schedule.moves
                for time in (move.start_ps, move.end_ps)
            )
    assert min(repeats, interrupted) > 10


OBJECTIVES = ("makespan", "mean_ttft", "max_ttft", "mean_e2e", "weighted_e2e", "slo_misses", "p50_e2e", "max_load")


@pytest.mark.slow
def test_best_schedules_are_legal_and_no_random_one_is_better() -> None:
    """Clusters of at most 2 requests that arrive at 0, as far as all schedules can be tried."""
    found = 0
    for seed in range(24):
        rng = random.Random(seed)
        drawn = random_tiny(rng, requests=2, longest=2)
        instance = replace(drawn, requests=tuple(replace(request, arrival_ps=0) for request in drawn.requests))
        if instance.infeasibilities():
            continue
        objective = OBJECTIVES[seed % len(OBJECTIVES)]
        try:
            world = best(instance, objective, 1000)
        except TooManyError:
            continue
        found += 1
        violations, metrics = check_schedule(instance, world.schedule())
        assert violations == [], seed
        assert_same(metrics, world.metrics())
        assert metrics is not None
        for _ in range(20):
            other = random_schedule(instance, rng)
            if other is not None:
                _, others = check_schedule(instance, other.schedule())
                assert others is not None
                assert metrics["objectives"][objective] <= others["objectives"][objective], seed
    assert found >= 8


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.MEAN_E2E, Objective.MAX_TTFT])
def test_without_caches_and_moves_the_best_is_that_of_all_assignments(objective: Objective) -> None:
    """The exhaustive search of one machine, which is older and shares nothing with this one, finds the same."""
    requests = (Request(2, 1), Request(1, 2), Request(1, 1))
    machines = [
        MachineGroup(limits=Limits(capacity, 9, 9), rules=Rules(chunked_prefill=False, eviction=False), cost=cost)
        for capacity, cost in ((4, CostModel(2, 1)), (3, CostModel(1, 2)))
    ]
    instance = cluster_of(machines, requests)
    expected = brute_force(instance, objective)
    assert best(instance, objective.value, 50_000).metrics()["objectives"][objective.value] == expected
