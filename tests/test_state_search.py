"""State search on the graph of resident sets: equal to brute force, and to the other formulations."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import costs

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, check_schedule, replace
from optsched.model.cost import CostModel
from optsched.model.objectives import evaluate
from optsched.model.result import Badge
from optsched.solvers.formulation import Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.resident_graph import (
    Classes,
    build_graph,
    growing_graphs,
    price,
    require_memory_only,
)
from optsched_formulations.batching.state_search import StateSearch

LADDER = {instance.name: instance for instance in ladder("a100-llama2-7b-linear").instances}


@st.composite
def memory_only(draw: st.DrawFn) -> Instance:
    """Draw an instance in which nothing but memory binds, of at most two kinds of requests."""
    kinds = [Request(draw(st.integers(1, 4)), draw(st.integers(1, 3))) for _ in range(draw(st.integers(1, 2)))]
    requests = tuple(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)))
    block = draw(st.sampled_from([1, 1, 2]))
    peak = max(-(-request.peak_tokens // block) * block for request in requests)
    limits = Limits(draw(st.integers(peak, peak + 6)), 64, 64, kv_block=block)
    rules = Rules(chunked_prefill=False, eviction=draw(st.booleans()))
    instance = Instance("random", limits, rules, draw(costs(pieces=0)), requests)
    try:
        require_memory_only(Task(instance, Objective.MAKESPAN))
    except UnsupportedError:
        assume(False)
    return instance


def exact(instance: Instance) -> int:
    outcome = StateSearch().solve(Task(instance, Objective.MAKESPAN))
    assert outcome.termination == Termination.OPTIMAL
    assert outcome.schedule is not None
    violations, _ = check_schedule(instance, outcome.schedule)
    assert violations == []
    value = evaluate(instance, outcome.schedule)["objectives"]["makespan"]
    assert value == outcome.bound
    assert isinstance(value, int)
    return value


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(memory_only())
def test_state_search_equals_brute_force(instance: Instance) -> None:
    assert exact(instance) == optimum(instance)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(memory_only(), st.data())
def test_walk_bounds_never_exceed_the_optimum_and_grow_with_what_is_tracked(
    instance: Instance, data: st.DataObject
) -> None:
    best = optimum(instance)
    classes = Classes(instance)
    everything = frozenset(range(len(classes.kinds)))
    some = data.draw(st.sets(st.sampled_from(sorted(everything))))
    bounds = []
    for tracked in (frozenset(), frozenset(some), everything):
        prices = price(build_graph(classes, tracked, 100_000), 60, 1)
        assert prices is not None
        assert prices.reduced.min() >= 0
        bounds.append(prices.bound_ps)
        assert prices.bound_ps <= best
    # Tracking only removes walks; 1e-6 is what the shrinking of prices may take.
    assert bounds[0] * (1 - 1e-6) - 1 <= bounds[1] <= bounds[2] * (1 + 1e-6) + 1


@pytest.mark.parametrize("name", ["n08-I4-O8-k8", "n04-LILO+SISO-k2", "n08-LISO+SISO-k2", "n04-LILO+LISO-k2"])
def test_more_memory_never_hurts_and_forbidding_never_helps(name: str) -> None:
    instance = LADDER[f"ladder-{name}"]
    best = exact(instance)
    without = exact(Restrictions(("eviction",)).apply(instance))
    roomier = exact(replace(instance, limits=replace(instance.limits, kv_tokens=instance.limits.kv_tokens + 4)))
    assert roomier <= best <= without


def test_one_request_after_another_by_hand() -> None:
    """Two requests with I = 3, O = 2 and M = 4: each fills the cache in its second batch, so they take turns.

    Base 10, token 1, decode 2 per KV token, prefill 5 per request: a prefill takes 3 + 5, a decode 1 + 3 · 2. Four
    batches: 40 + 2 (8 + 7) = 70. Starting the second with the first would need 6 tokens of memory.
    """
    cost = CostModel(base=10, token=1, decode_kv=2, prefill_req=5)
    instance = Instance("turns", Limits(4, 99, 99), Rules(chunked_prefill=False), cost, (Request(3, 2),) * 2)
    assert exact(instance) == 70


def test_interrupted_by_the_clock_it_keeps_a_certified_bound_and_the_incumbent() -> None:
    instance = LADDER["ladder-n16-I4-O8-k2"]
    outcome = StateSearch().solve(Task(instance, Objective.MAKESPAN, time_limit_s=8))
    assert outcome.termination == Termination.LIMIT
    assert outcome.schedule is not None
    assert outcome.bound is not None
    assert check_schedule(instance, outcome.schedule)[0] == []
    assert outcome.bound < evaluate(instance, outcome.schedule)["objectives"]["makespan"]
    assert outcome.badge in {Badge.CERTIFIED, Badge.SOLVER_CLAIMED}


def test_what_it_does_not_cover_is_refused() -> None:
    instance = LADDER["ladder-n04-I4-O8-k2"]
    task = Task(instance, Objective.MAKESPAN)
    refused = [
        changed(task, objective=Objective.MEAN_E2E),
        changed(task, instance=replace(instance, rules=Rules(chunked_prefill=True))),
        changed(task, instance=replace(instance, rules=Rules(hybrid=False, chunked_prefill=False))),
        changed(task, instance=replace(instance, cost=replace(instance.cost, pieces=((1, 1),)))),
        changed(task, instance=replace(instance, cost=replace(instance.cost, decode_req=10**12))),
        changed(task, instance=replace(instance, limits=replace(instance.limits, batch_requests=3))),
        changed(task, instance=replace(instance, limits=replace(instance.limits, prefill_tokens=20))),
        changed(task, instance=replace(instance, requests=(*instance.requests, Request(1, 1, arrival_ps=9)))),
        changed(task, restrictions=Restrictions(max_evictions=1)),
        changed(task, restrictions=Restrictions(("reordering",))),
    ]
    for other in refused:
        with pytest.raises(UnsupportedError):
            StateSearch().solve(other)


def test_the_largest_graph_tracks_identical_requests() -> None:
    plain, graph = growing_graphs(Classes(LADDER["ladder-n32-I32-O8-k2"]), deadline=float("inf"))
    assert plain.tracked == frozenset()
    assert graph.tracked == {0}
    # after(∅) exists once for each number of requests that are still to come.
    assert sum(items == () for items, _ in graph.nodes) >= 33
