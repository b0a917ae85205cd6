"""The planner: legal whatever the rules, never below brute force, optimal where that is easily said."""

from __future__ import annotations

import time
from dataclasses import replace as changed
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from brute_force import MONOTONE, optimum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import FREE, legal_value
from pair import BEST, PAIR, STAY, WORK
from patience import PATIENCE_S, interrupts, with_time_enough
from strategies import instances, restrictions

from optsched import (
    Instance,
    Limits,
    Objective,
    Request,
    Restrictions,
    Rules,
    Status,
    check_schedule,
    load_instance,
    replace,
    simulate,
    solve,
)
from optsched.methods.policies import policy_names
from optsched.model.cost import CostModel
from optsched.model.metrics import evaluate
from optsched.model.schedule import Schedule, timed
from optsched.planner.backward import backward
from optsched.planner.first_tokens import first_tokens
from optsched.planner.formulation import Planner
from optsched.planner.forward import forward
from optsched.planner.neighbourhood import Neighbourhood
from optsched.planner.search import Candidate, Recipe, RuleSearch, Scheme
from optsched.planner.sizes import TooLargeToPlanError, arrays_to_plan
from optsched.planner.steps import ListRule
from optsched.solvers.formulation import ProgressEvent, Task, Termination, UnsupportedError

QUICK = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def searched(instance: Instance, objective: Objective, allowed: Restrictions = FREE) -> RuleSearch:
    """Return a search that has made its start and a few changes, every plan of which is legal and of its value."""
    search = RuleSearch.of(allowed.apply(instance), objective, allowed, np.random.default_rng(0))
    for found in chain(search.start(), islice(search.improve(), 12)):
        schedule = found.plan.schedule()
        objects = Schedule(schedule.batches)
        # The compiled loops' own clock, by which plans are compared, agrees: they start batches just as early.
        assert timed(instance, objects.assignments()) == objects
        violations, values = check_schedule(instance, schedule, allowed)
        assert (violations, values) == check_schedule(instance, objects, allowed)
        assert violations == []
        metrics = evaluate(instance, schedule)
        assert metrics == evaluate(instance, objects)
        assert metrics["objectives"][objective.value] == found.value
    return search


@pytest.mark.slow
@QUICK
@given(st.data(), instances(online=True), st.sampled_from(MONOTONE))
def test_every_plan_is_legal_and_no_better_than_the_optimum(
    data: st.DataObject, instance: Instance, objective: Objective
) -> None:
    allowed = data.draw(restrictions(instance))
    best = optimum(instance, objective, restrictions=allowed)
    if best is None:
        return  # the class is empty
    search = searched(instance, objective, allowed)
    assert search.best is not None
    assert search.best.value >= best


@pytest.mark.slow
@QUICK
@given(instances(most_requests=3), st.sampled_from(MONOTONE))
def test_offline_too(instance: Instance, objective: Objective) -> None:
    search = searched(instance, objective)
    assert search.best is not None
    assert search.best.value >= optimum(instance, objective)


LINEAR = CostModel(base=100, token=3, decode_kv=1, decode_req=2, prefill_sq=1, prefill_kv=1, prefill_req=5)


def planned(instance: Instance, objective: Objective = Objective.MAKESPAN, **given: Any) -> int:
    """Return what the planner alone makes of an instance in a fixed effort."""
    outcome = Planner().solve(changed(Task(instance, objective, deterministic_limit=0.002), **given))
    assert (outcome.termination, outcome.bound) == (Termination.LIMIT, None)
    return legal_value(instance, outcome.schedule, objective)


@pytest.mark.slow
def test_one_request_runs_as_fast_as_it_can() -> None:
    """I = 3, O = 3 in one piece: (100 + 9 + 9 + 5) + (100 + 3 + 3 + 2) + (100 + 3 + 4 + 2)."""
    alone = Instance("alone", Limits(5, 9, 9), Rules(), LINEAR, (Request(3, 3, arrival_ps=50),))
    for objective in MONOTONE:
        expected = 0 if objective == Objective.SLO_MISSES else 123 + (0 if "ttft" in objective else 108 + 109)
        assert planned(alone, objective) == expected


@pytest.mark.slow
def test_the_shortest_goes_first() -> None:
    """One at a time, prompts of 5, 1 and 3 and one output token each: a batch takes 100 + 3 I + I² + 5.

    109, 123 and 145 in this order end at 109, 232 and 377. Two in a batch would need more memory than there is.
    """
    requests = (Request(5, 1), Request(1, 1), Request(3, 1))
    instance = Instance("spt", Limits(5, 5, 5, batch_requests=1), Rules(chunked_prefill=False), LINEAR, requests)
    assert planned(instance, Objective.MEAN_E2E) == planned(instance, Objective.MEAN_TTFT) == 109 + 232 + 377
    assert planned(instance, Objective.MAKESPAN) == planned(instance, Objective.MAX_E2E) == 377


def test_starts_are_staggered() -> None:
    """Twelve requests with I = 1, O = 4 in M = 10: in any three batches in a row one starts in each, and ends in each.

    Sizes 1 + 2 + 3 + 4 = 10 fill the cache, so a start in every batch takes 12 + 3 batches; lockstep lets two run at a
    time, and takes 6 × 4 = 24. Their sizes add up to 120, so no schedule has fewer than 12 batches; backward the first
    comes when the cache holds no request, so two may come at once where one is small: 14 would need 140 / 10 and three
    batches that are not full at the start.
    """
    instance = Instance("stairs", Limits(10, 99, 99), Rules(), CostModel(base=100, token=0), (Request(1, 4),) * 12)
    assert planned(instance) <= 1500


def test_the_level_rises_with_the_queue() -> None:
    """Level 4, and 2 tokens for each that waits: of prompts of 4 tokens eight wait, then four, two and one."""
    rules, limits = Rules(hybrid=True, chunked_prefill=True, eviction=False), Limits(64, 64, 64)
    instance = Instance("queue", limits, rules, CostModel(10, 1), (Request(4, 1),) * 8)
    arrays = arrays_to_plan(instance, FREE)
    for ahead, batches in ((0, [4] * 8), (2, [16, 8, 4, 4])):
        plan = forward(arrays, ListRule(4, 4, 1, ahead), np.arange(8))
        assert np.bincount(plan.chunks[:, 1], plan.chunks[:, 2]).tolist() == batches


def test_eviction_or_waiting_by_cost() -> None:
    """The pair with its arithmetic: with evictions three batches and a refill, else four batches."""
    assert planned(PAIR) == BEST
    assert planned(replace(PAIR, rules=STAY)) == WORK + 400
    dear = replace(PAIR, cost=replace(PAIR.cost, prefill_req=107))
    assert planned(dear) == WORK + 2 * 100 + 400  # a refill is 138 more than a decode step now, a batch 100


def test_first_tokens_come_before_anything_else() -> None:
    """Twenty prompts of 10, M = 30: all first tokens in a row, two prompts a batch where that pays, evictions between.

    A decode step in between would delay those behind. Every request alone takes 100 + 30 + 100 + 5 = 235.
    """
    instance = Instance("first", Limits(30, 10, 10), Rules(), LINEAR, (Request(10, 20),) * 20)
    assert planned(instance, Objective.MEAN_TTFT, deterministic_limit=0.01) == sum(235 * k for k in range(1, 21))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["infermax-b32-I32-O32", "ladder-n16-LILO+SISO-k2-poisson"])
@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.MEAN_E2E, Objective.MAX_TTFT, Objective.P95_TTFT])
def test_it_is_no_worse_than_any_policy(name: str, objective: Objective) -> None:
    instance = load_instance(name)
    best = min(
        value
        for policy in policy_names()
        if policy != "planner" and (value := simulate(instance, policy, objective).value) is not None
    )
    played = simulate(instance, "planner", objective).value
    assert played is not None
    assert planned(instance, objective, deterministic_limit=1.0) <= min(best, played)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.MEAN_E2E, Objective.MEAN_TTFT])
def test_the_same_seed_gives_the_same_schedule(objective: Objective) -> None:
    instance = load_instance("ladder-n16-LILO+SISO-k2-poisson")
    task = Task(instance, objective, deterministic_limit=0.3, seed=5)
    one, other = (Planner().solve(task).schedule for _ in range(2))
    assert one == other


@QUICK
@given(st.data(), instances(online=True, most_requests=5))
def test_the_order_of_requests_makes_no_difference_to_the_rules(data: st.DataObject, instance: Instance) -> None:
    """Without ties among requests every order sees the same ranks, so the fixed start makes the same plans."""
    distinct = tuple(
        replace(request, arrival_ps=7 * k + request.arrival_ps, input=request.input)
        for k, request in enumerate(dict.fromkeys(instance.requests))
    )
    order = data.draw(st.permutations(range(len(distinct))))
    values = []
    for requests in (distinct, tuple(distinct[k] for k in order)):
        search = RuleSearch.of(replace(instance, requests=requests), Objective.MAX_TTFT, FREE, np.random.default_rng(0))
        values.append(min(found.value for found in search.start()))
    assert len({request.arrival_ps for request in distinct}) < len(distinct) or values[0] == values[1]


@pytest.mark.slow
def test_it_starts_from_the_incumbent_and_reports_progress() -> None:
    instance = load_instance("infermax-fig15-I4")
    best = solve(instance)
    assert best.status == Status.OPTIMAL
    events: list[ProgressEvent] = []
    known = Task(
        instance,
        Objective.MAKESPAN,
        incumbent=best.schedule,
        incumbent_value=best.value,
        deterministic_limit=0.01,
        progress=events.append,
    )
    assert Planner().solve(known).schedule == best.schedule
    assert events == []
    Planner().solve(Task(instance, Objective.MAKESPAN, deterministic_limit=0.01, progress=events.append))
    values = [event.incumbent for event in events if event.incumbent is not None]
    assert 0 < len(values) == len(events)
    assert values == sorted(values, reverse=True)


def test_it_stops_when_a_schedule_is_as_good_as_asked() -> None:
    instance = load_instance("infermax-b32-I32-O32")
    allowed = Restrictions(at_most=10**15)
    events: list[ProgressEvent] = []
    Planner().solve(Task(instance, Objective.MAKESPAN, allowed, progress=events.append))
    assert len(events) == 1


@pytest.mark.slow
def test_ctrl_c_keeps_the_plan() -> None:
    instance = load_instance("infermax-b32-I32-O32")
    with interrupts(1) as progress:
        began = time.perf_counter()
        task = Task(instance, Objective.MEAN_E2E, time_limit_s=2 * PATIENCE_S, progress=progress)
        outcome = Planner().solve(task)
        assert time.perf_counter() - began < PATIENCE_S
    legal_value(instance, outcome.schedule, Objective.MEAN_E2E)


def test_times_beyond_64_bits_are_refused() -> None:
    huge = Instance("huge", Limits(9, 9, 9), Rules(), CostModel(base=2**62, token=0), (Request(1, 2),) * 2)
    with pytest.raises(TooLargeToPlanError, match="64 bits"):
        arrays_to_plan(huge, FREE)
    with pytest.raises(UnsupportedError, match="64 bits"):
        Planner().solve(Task(huge, Objective.MAKESPAN))
    assert simulate(huge, "planner").status == Status.FAILED


@pytest.mark.slow
def test_auto_plans_where_exact_models_end() -> None:
    instance = load_instance("infermax-b32-I128-O128")
    result = with_time_enough(
        lambda limit: solve(instance, time_limit=limit), lambda result: result.found_by["schedule"] == "planner", 3.0
    )
    vllm = simulate(instance, "vllm")
    assert result.found_by["schedule"] == "planner"
    assert result.value is not None
    assert vllm.value is not None
    assert result.value <= vllm.value


# Neighbourhoods --------------------------------------------------------------------------------------------

# They hold 10 to 19 and 10 to 11 of 20 tokens, so that one waits until the other has ended.
ONE_AT_A_TIME = Instance("two", Limits(20, 64, 64), Rules(eviction=False), LINEAR, (Request(10, 10), Request(10, 2)))


def listed(instance: Instance, scheme: Scheme, rank: list[int], objective: Objective) -> Candidate:
    """Return what list scheduling makes of an order."""
    rule, ranks = ListRule(64, 16, 1, 0), np.array(rank, dtype=np.int64)
    plan = scheme(arrays_to_plan(instance, FREE), rule, ranks)
    assert plan is not None
    return Candidate(Recipe(scheme, rule, ranks), plan, legal_value(instance, plan.schedule(), objective))


def test_a_neighbourhood_is_placed_anew() -> None:
    """The short request ends first, whichever went first; with weights of 9 and 1 it is the long one."""
    for weights, objective, first in (((1, 1), Objective.MEAN_E2E, 1), ((9, 1), Objective.WEIGHTED_E2E, 0)):
        requests = tuple(replace(r, weight=w) for r, w in zip(ONE_AT_A_TIME.requests, weights, strict=True))
        instance = replace(ONE_AT_A_TIME, requests=requests)
        propose = Neighbourhood(Task(instance, objective), np.random.default_rng(0))
        best = optimum(instance, objective) if objective is Objective.MEAN_E2E else None
        for rank in ([0, 1], [1, 0]):
            order = propose(listed(instance, forward, rank, objective))
            assert order is not None
            assert int(np.argmin(order)) == first
            found = listed(instance, forward, order.tolist(), objective)
            assert best is None or found.value == best


def test_whoever_has_not_arrived_waits() -> None:
    late = replace(ONE_AT_A_TIME.requests[1], arrival_ps=10**6)
    instance = replace(ONE_AT_A_TIME, requests=(ONE_AT_A_TIME.requests[0], late))
    propose = Neighbourhood(Task(instance, Objective.MEAN_E2E), np.random.default_rng(0))
    order = propose(listed(instance, forward, [1, 0], Objective.MEAN_E2E))
    assert order is not None
    assert order.tolist() == [0, 1]


@pytest.mark.parametrize("scheme", [forward, backward])
def test_a_proposal_is_an_order_and_the_same_for_a_seed(scheme: Scheme) -> None:
    requests = tuple(Request(1 + 3 * i % 17, 1 + 7 * i % 13) for i in range(40))
    instance = Instance("many", Limits(60, 64, 64), Rules(eviction=False), LINEAR, requests)
    found = listed(instance, scheme, list(range(40)), Objective.MAKESPAN)
    one, other = (Neighbourhood(Task(instance, Objective.MAKESPAN), np.random.default_rng(3))(found) for _ in range(2))
    assert one is not None
    assert other is not None
    assert sorted(one.tolist()) == list(range(40))
    assert one.tolist() == other.tolist()


def test_there_is_no_model_of_other_ways_and_objectives() -> None:
    instance = replace(ONE_AT_A_TIME, rules=Rules())
    for scheme, objective in ((first_tokens, Objective.MEAN_E2E), (forward, Objective.MEAN_TTFT)):
        propose = Neighbourhood(Task(instance, objective), np.random.default_rng(0))
        assert propose(listed(instance, scheme, [0, 1], objective)) is None
