"""Reinsertion: a move finds the best of all places for two requests; schedules are legal, and optimal where tiny."""

from __future__ import annotations

from dataclasses import replace as changed
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import legal_value
from strategies import assume_only_memory_binds, memory_only

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules
from optsched.model.cost import CostModel
from optsched.model.ints import Ints
from optsched.solvers.formulation import Outcome, Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.reinsertion import Reinsertion
from optsched_formulations.batching.search.reinsertion_kernel import (
    PICKS,
    Scratch,
    Tokens,
    ending,
    move_pairs,
)
from optsched_formulations.batching.search.token_places import UNITS, TokenPlaces

TEN = CostModel(base=10, token=0)
LADDER = ladder("a100-llama2-7b-linear").instances
WHOLE = Rules(chunked_prefill=False)


def ask(instance: Instance, **more: Any) -> Outcome:
    return Reinsertion().solve(changed(Task(instance, Objective.MAKESPAN, time_limit_s=20), **more))


def paid(tokens: Tokens, at: Ints, capacity: int, price: Ints) -> int:
    """When the last batch ends, and what blocks that are too much cost."""
    held = np.bincount(at, tokens.size, len(price)).astype(np.int64)
    return int(ending(tokens, at, np.zeros((3, len(price)), dtype=np.int64))) + int(
        price @ np.maximum(0, held - capacity)
    )


def scratch(batches: int, tokens: int, states: int) -> Scratch:
    return Scratch(
        np.zeros(batches, dtype=np.int64),
        np.zeros(4 * states, dtype=np.int64),
        np.zeros((3, batches), dtype=np.int64),
        np.zeros(tokens, dtype=np.int64),
    )


def places(output: int, batches: int) -> list[tuple[int, ...]]:
    return list(combinations(range(batches), output))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_move_finds_the_best_places_for_both(data: st.DataObject) -> None:
    outputs = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    batches = data.draw(st.integers(max(outputs), 5))
    first = np.concatenate([[0], np.cumsum(outputs)])
    numbers = st.lists(st.integers(1, 4), min_size=int(first[-1]), max_size=int(first[-1]))
    size, work, extra = (np.array(data.draw(numbers)) for _ in range(3))
    tokens = Tokens(first, size, work, extra, np.zeros(len(outputs), dtype=np.int64), 10)
    # No refill for first tokens.
    tokens.extra[first[:-1]] = 0
    capacity = data.draw(st.integers(2, 9))
    price = np.array(data.draw(st.lists(st.integers(1, 20), min_size=batches, max_size=batches)))
    at = np.array([t for output in outputs for t in data.draw(st.sampled_from(places(output, batches)))])
    draws = np.array([[0.99, *(data.draw(st.floats(0, 0.99)) for _ in range(PICKS - 1 + batches))]])
    before, written = at.copy(), scratch(batches, len(at), 512)
    over = move_pairs(tokens, capacity, at, price, 0, written, draws)
    one = int(draws[0, 1] * len(outputs))
    other = int(draws[0, 3] * (len(outputs) - 1))
    other += other >= one
    slices = [slice(first[r], first[r + 1]) for r in (one, other)]
    least = paid(tokens, at, capacity, price)
    for ways in product(*(places(outputs[r], batches) for r in (one, other))):
        tried = before.copy()
        for mine, way in zip(slices, ways, strict=True):
            tried[mine] = way
        assert paid(tokens, tried, capacity, price) >= least
    stay = np.ones(len(at), dtype=bool)
    for mine in slices:
        stay[mine] = False
        assert (np.diff(at[mine]) > 0).all()
    assert (at[stay] == before[stay]).all()
    held = np.bincount(at, tokens.size, batches)
    assert over == np.maximum(0, held - capacity).sum()
    assert (written.room == capacity - held).all()


def test_in_a_window_of_batches_no_move_costs_more() -> None:
    instance = LADDER[0]
    places_of = TokenPlaces(instance, Classes(instance))
    tokens, rng = places_of.tokens, np.random.default_rng(0)
    outputs, batches, most = np.diff(tokens.first), 40, 200
    at = np.concatenate([np.sort(rng.choice(batches, output, replace=False)) for output in outputs])
    # 41 × 9 × 9 states would be all; windows have no more than 200.
    assert outputs.min() >= 2
    price, written = np.full(batches, UNITS // 50), scratch(batches, len(at), most)
    costs = [paid(tokens, at, instance.limits.kv_blocks, price)]
    for _ in range(300):
        draws = rng.random((1, PICKS + batches))
        move_pairs(tokens, instance.limits.kv_blocks, at, price, 0, written, draws)
        costs.append(paid(tokens, at, instance.limits.kv_blocks, price))
    assert costs == sorted(costs, reverse=True)
    always = batches * UNITS + int(tokens.work.sum())
    assert costs[-1] - always < (costs[0] - always) / 2


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_with_arrivals_no_move_costs_more(data: st.DataObject) -> None:
    outputs = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    batches, first = data.draw(st.integers(max(outputs), 8)), np.concatenate([[0], np.cumsum(outputs)])
    numbers = st.lists(st.integers(1, 4), min_size=int(first[-1]), max_size=int(first[-1]))
    size, work, extra = (np.array(data.draw(numbers)) for _ in range(3))
    arrival = np.array(data.draw(st.lists(st.integers(0, 60), min_size=len(outputs), max_size=len(outputs))))
    tokens = Tokens(first, size, work, extra, arrival, 10)
    at = np.array([t for output in outputs for t in data.draw(st.sampled_from(places(output, batches)))])
    price, rng = np.full(batches, 3), np.random.default_rng(data.draw(st.integers(0, 9)))
    for _ in range(5):
        before = paid(tokens, at, 8, price)
        written = scratch(batches, len(at), 1024)
        move_pairs(tokens, 8, at, price, 0, written, rng.random((1, PICKS + batches)))
        assert paid(tokens, at, 8, price) <= before
        assert all((np.diff(at[begin:end]) > 0).all() for begin, end in pairwise(first))
        assert (written.room == 8 - np.bincount(at, size, batches)).all()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(memory_only(online=True, most_requests=3))
def test_with_arrivals_schedules_are_legal_and_never_better_than_the_optimum(instance: Instance) -> None:
    assume(instance.cost.affine[0][0] > 0 and len(instance.requests) > 1)
    assume_only_memory_binds(instance)
    best = optimum(instance)
    outcome = ask(instance, time_limit_s=0.2, bound=best)
    assert legal_value(instance, outcome.schedule) >= best


def test_the_clock_is_that_of_the_schedule() -> None:
    # Whole bases and tokens, so that nothing is rounded: the second request arrives while the machine is idle.
    cost = CostModel(base=10, token=1, prefill_req=2)
    instance = Instance(
        "two", Limits(9, 64, 64), WHOLE, cost, (Request(3, 2, arrival_ps=5), Request(4, 3, arrival_ps=70))
    )
    places_of = TokenPlaces(instance, Classes(instance))
    at = np.array([0, 1, 2, 3, 4])
    ends = int(ending(places_of.tokens, at, np.zeros((3, 5), dtype=np.int64)))
    assert legal_value(instance, places_of.schedule(at)) == ends * 10 // UNITS


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(memory_only(), st.booleans())
def test_it_finds_the_optimum_of_tiny_instances(instance: Instance, eviction: bool) -> None:
    instance = changed(instance, rules=changed(instance.rules, eviction=eviction))
    assume(instance.cost.affine[0][0] > 0 and len(instance.requests) > 1)
    assume_only_memory_binds(instance)
    best = optimum(instance)
    # It ends with the optimum, or after 20 s without.
    outcome = ask(instance, bound=best)
    assert outcome.bound is None
    assert legal_value(instance, outcome.schedule) == best


def test_only_better_schedules_are_looked_for() -> None:
    # Two requests of 4 blocks at their ends, one after the other in 8: 2 batches for both, 20 ps.
    instance = Instance("two", Limits(8, 64, 64), WHOLE, TEN, (Request(3, 2),) * 2)
    assert optimum(instance) == 20
    assert ask(instance, incumbent_value=20, time_limit_s=0.1).schedule is None
    at_most = Restrictions(at_most=19)
    assert ask(instance, restrictions=at_most, time_limit_s=0.1).schedule is None
    outcome = ask(instance, bound=20)
    assert outcome.termination == Termination.LIMIT
    assert legal_value(instance, outcome.schedule) == 20


def test_places_are_those_of_the_schedule() -> None:
    # 6 blocks hold no two requests of 3 + 1 tokens at a time; the first is evicted for the second.
    instance = Instance("two", Limits(6, 64, 64), WHOLE, TEN, (Request(3, 2),) * 2)
    places_of = TokenPlaces(instance, Classes(instance))
    at = np.array([0, 3, 1, 2])
    schedule = places_of.schedule(at)
    assert legal_value(instance, schedule) == 40
    assert [batch.evict for batch in schedule.batches] == [(), (0,), (), ()]
    assert (places_of.of(schedule) == at).all()


@pytest.mark.parametrize(
    ("name", "best"), [("n12-LILO+LISO-k8", 100_034_287_134), ("n12-LILO+SISO-k8", 119_301_210_146)]
)
def test_optima_that_others_prove_are_found(name: str, best: int) -> None:
    # It begins with one request after another.
    instance = next(each for each in LADDER if each.name == f"ladder-{name}")
    assert legal_value(instance, ask(instance, bound=best).schedule) == best


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objective": Objective.MEAN_TTFT}, "mean_ttft"),
        ({"objective": Objective.MEAN_E2E}, "mean_e2e"),
        ({"deterministic_limit": 1.0}, "deterministic"),
    ],
)
def test_what_it_does_not_cover(change: dict[str, Any], said: str) -> None:
    instance = Instance("two", Limits(8, 64, 64), WHOLE, TEN, (Request(3, 2),) * 2)
    with pytest.raises(UnsupportedError, match=said):
        ask(instance, **change)


def test_what_it_does_not_cover_of_instances() -> None:
    two = Instance("two", Limits(8, 64, 64), WHOLE, TEN, (Request(3, 2),) * 2)
    for instance, said in (
        (changed(two, requests=(Request(3, 2),)), "single"),
        (changed(two, cost=CostModel(base=0, token=1)), "base"),
        (changed(two, rules=Rules()), "chunked"),
        (changed(two, cost=CostModel(base=1, token=0, prefill_req=10**15)), "64 bits"),
    ):
        with pytest.raises(UnsupportedError, match=said):
            ask(instance)
