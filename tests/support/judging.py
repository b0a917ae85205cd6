"""The checker beside the plain replay, on random tiny clusters and random changes of their schedules.

    PYTHONPATH=tests/support python tests/support/judging.py 0 2000

compares on as many clusters as asked for, from the first seed on.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

from brute_cluster import judged, random_schedule
from tiny_clusters import mutated, random_tiny

from optsched import check_schedule


def assert_same(metrics: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    """Compare what the plain replay knows."""
    assert metrics is not None
    assert {name: metrics[name] for name in expected if name != "objectives"} == {
        name: value for name, value in expected.items() if name != "objectives"
    }
    found = metrics["objectives"]
    assert {name: found[name] for name in expected["objectives"]} == expected["objectives"]


def compared(seed: int, changes: int) -> Counter[str]:
    """Compare a random schedule and changes of it, and count what was seen; fails where the two disagree."""
    seen: Counter[str] = Counter()
    rng = random.Random(seed)
    instance = random_tiny(rng)
    world = None if instance.infeasibilities() else random_schedule(instance, rng)
    if world is None:
        return seen
    schedule = world.schedule()
    violations, metrics = check_schedule(instance, schedule)
    assert violations == [], seed
    assert_same(metrics, world.metrics())
    seen["schedules"] += 1
    seen["hits"] += sum(bool(batch.hits) for batch in schedule.batches)
    seen["drops"] += sum(bool(batch.drop) for batch in schedule.batches)
    seen["moves"] += len(schedule.moves)
    for _ in range(changes):
        changed = mutated(schedule, rng, instance)
        expected = judged(instance, changed)
        violations, metrics = check_schedule(instance, changed)
        assert not any("\n" in violation for violation in violations)
        if isinstance(expected, str):
            assert violations, (seed, expected, changed)
            seen["refused"] += 1
        else:
            assert violations == [], (seed, changed)
            assert_same(metrics, expected)
            seen["legal changes"] += 1
    return seen


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:3])
    totals: Counter[str] = Counter()
    for number in range(first, first + count):
        totals += compared(number, 12)
    sys.stdout.write(", ".join(f"{amount} {name}" for name, amount in totals.items()) + "\n")
