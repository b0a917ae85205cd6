"""The checker of clusters against the plainest replay there is: the same legality, the same metrics."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from brute_cluster import World, judged, optima, random_schedule
from brute_force import MONOTONE
from clusters import brute_force, cluster_of
from tiny_clusters import mutated, random_tiny

from optsched import CostModel, Instance, Limits, Link, MachineGroup, Objective, Request, Role, Rules, check_schedule


def _drawn(seed: int) -> tuple[random.Random, Instance, World | None]:
    rng = random.Random(seed)
    instance = random_tiny(rng)
    return rng, instance, None if instance.infeasibilities() else random_schedule(instance, rng)


def assert_same(metrics: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    """Compare what the plain replay knows."""
    assert metrics is not None
    assert {name: metrics[name] for name in expected if name != "objectives"} == {
        name: value for name, value in expected.items() if name != "objectives"
    }
    found = metrics["objectives"]
    assert {name: found[name] for name in expected["objectives"]} == expected["objectives"]


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_random_schedules_and_their_mutations_are_judged_alike(block: int) -> None:
    """10 x 40 clusters, one legal schedule of each, and 8 random changes of it."""
    seen: Counter[str] = Counter()
    for seed in range(40 * block, 40 * block + 40):
        rng, instance, world = _drawn(seed)
        if world is None:
            continue
        schedule = world.schedule()
        violations, metrics = check_schedule(instance, schedule)
        assert violations == [], seed
        assert_same(metrics, world.metrics())
        seen["hits"] += sum(bool(batch.hits) for batch in schedule.batches)
        seen["drops"] += sum(bool(batch.drop) for batch in schedule.batches)
        seen["moves"] += len(schedule.moves)
        for _ in range(8):
            changed = mutated(schedule, rng, instance)
            expected = judged(instance, changed)
            violations, metrics = check_schedule(instance, changed)
            if isinstance(expected, str):
                assert violations, (seed, expected, changed)
                assert not any("\n" in violation for violation in violations)
                seen["refused"] += 1
            else:
                assert violations == [], (seed, changed)
                assert_same(metrics, expected)
    assert min(seen["hits"], seen["drops"], seen["moves"], seen["refused"]) > 0


@pytest.mark.parametrize("seed", range(12))
def test_every_schedule_of_a_tiny_cluster_is_legal(seed: int) -> None:
    """Two requests of a few tokens: all schedules are accepted, with the same values."""
    rng = random.Random(seed)
    while True:
        instance = random_tiny(rng, requests=2, longest=2)
        if instance.infeasibilities() or sum(request.output for request in instance.requests) > 3:
            continue
        break
    count = 0
    for world in _some(instance, 150):
        violations, metrics = check_schedule(instance, world.schedule())
        assert violations == []
        assert_same(metrics, world.metrics())
        count += 1
    assert count > 0
