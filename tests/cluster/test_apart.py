"""Bounds of a process of its own, beside the planner."""

from __future__ import annotations

import time

import pytest
from clusters import cluster_of
from patience import with_time_enough

from optsched import (
    CostModel,
    Instance,
    Limits,
    MachineGroup,
    Objective,
    Request,
    Result,
    Rules,
    bound,
    check_result,
    solve,
)
from optsched.bounds import worth
from optsched.methods.apart import BoundsApart

LIMITS, COST = Limits(6_000, 8_000, 8_000), CostModel(base=9_000, token=1)


def alike(machines: int = 2) -> Instance:
    """Return requests for machines that ramp up."""
    return cluster_of((MachineGroup(machines, limits=LIMITS, rules=Rules(), cost=COST),), [Request(10, 90)] * 240)


def waited_for(process: BoundsApart) -> BoundsApart:
    """Return a process that has ended."""
    limit = time.monotonic() + 120
    while not process.has_ended and time.monotonic() < limit:
        process.look(0.1)
    process.end()
    return process


def test_the_process_goes_on_where_one_call_ends() -> None:
    one = worth.makespan_bound(alike(), Objective.MAKESPAN)
    assert one is not None
    process = waited_for(BoundsApart("optsched.bounds.worth:makespan_bounds", alike(), Objective.MAKESPAN))
    rounds = list(worth.makespan_bounds(alike(), Objective.MAKESPAN))
    found = [each for each in rounds if each is not None]
    assert [each.value for each in found] == sorted({each.value for each in found})
    assert (process.best, process.rounds, process.failure) == (found[-1], len(rounds), "")
    assert found[-1].value >= one.value


@pytest.mark.parametrize(
    ("target", "reason"),
    [("optsched.bounds.worth:nothing", "AttributeError"), ("os:_exit", "TypeError")],
)
def test_a_process_that_fails_says_why(target: str, reason: str) -> None:
    process = waited_for(BoundsApart(target, alike(), Objective.MAKESPAN))
    assert process.failure.startswith(reason)
    assert process.best is None


def test_a_process_that_is_lost_is_a_failure() -> None:
    process = BoundsApart("optsched.bounds.worth:makespan_bounds", alike(), Objective.MAKESPAN)
    process._process.kill()
    assert waited_for(process).failure == "its process has ended"


@pytest.mark.parametrize("workers", [1, 2])
def test_solve_proves_as_much_beside_the_planner_as_before_it(workers: int) -> None:
    alone = bound(alike(), "makespan", method="worth").bound
    assert alone is not None

    def attempt(seconds: float) -> Result:
        return solve(alike(), "makespan", time_limit=seconds, workers=workers)

    found = with_time_enough(attempt, lambda found: found.bound is not None and found.bound >= alone, 6)
    assert found.bound is not None
    assert found.bound >= alone
    assert found.found_by["bound"] == "worth"
    assert "worth" not in (found.message or "")
    assert check_result(found).violations == ()
