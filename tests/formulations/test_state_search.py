"""State search on the graph of resident sets: equal to brute force, and to the other formulations."""

from __future__ import annotations

from dataclasses import replace as changed

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import exact
from strategies import assume_only_memory_binds, memory_only

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, check_schedule, replace, simulate
from optsched.model.cost import CostModel
from optsched.model.metrics import evaluate
from optsched.solvers.formulation import Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.node_space import node_space
from optsched_formulations.batching.search.resident_graph import build_graph, growing_graphs
from optsched_formulations.batching.search.resident_walk import evaluate as evaluate_prices
from optsched_formulations.batching.search.resident_walk import price
from optsched_formulations.batching.search.state_space import States
from optsched_formulations.batching.state_search import StateSearch

SEARCH = StateSearch()
LADDER = {instance.name: instance for instance in ladder("a100-llama2-7b-linear").instances}


def on_nodes(instance: Instance, tracked: frozenset[int]) -> int:
    """Return the optimal makespan by the search on the graph of resident sets alone, by its own best schedule."""
    classes = Classes(instance)
    graph = build_graph(classes, tracked, 100_000)
    prices = price(graph, 60, 1)
    assert prices is not None
    if not instance.offline:
        graph = build_graph(classes, tracked, 100_000, pauses=True)
        prices = evaluate_prices(graph, prices.item, np.zeros(len(graph.nodes), dtype=np.int64))
        assert prices is not None
    space = node_space(instance, graph, prices)
    states = States(space, 1 << 60)
    while states.expand(1000):
        pass
    assert states.finished
    return space.value_of(states.budget)


QUICK = settings(
    deadline=None, max_examples=90, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@pytest.mark.slow
@QUICK
@given(memory_only(), st.sets(st.integers(0, 1)))
def test_search_on_nodes_equals_brute_force(instance: Instance, tracked: set[int]) -> None:
    assume_only_memory_binds(instance)
    assert on_nodes(instance, frozenset(tracked & set(range(len(Classes(instance).kinds))))) == optimum(instance)


@pytest.mark.slow
@QUICK
@given(memory_only(online=True, most_requests=3))
def test_search_on_nodes_with_arrivals_equals_brute_force(instance: Instance) -> None:
    assume_only_memory_binds(instance)
    assert on_nodes(instance, frozenset()) == optimum(instance)


def test_with_arrivals_a_request_may_have_to_pause() -> None:
    """It starts early because the machine is idle, and must not grow while another starts.

    Base 10, 3 a prefill, M = 5, no eviction; A and B: I = 1, O = 2 at 0 and 5, C: I = 2, O = 2 at 25. Wait for B: A and
    B are filled from 5 to 5 + 10 + 6 = 21. At 25 C is filled and A ends, while B pauses: 2 + 2 + 1 tokens, until 38.
    C ends with B: 3 + 2 tokens, until 48. Both cannot end with C's first token, 2 + 2 + 2 tokens. Ending them before
    C begins takes until 31 or later, for B's second batch after 21: then C's two batches end at 54. Or A first: until
    13; A's second token and B's first until 26; C's first with B's second until 39, C's second until 49.
    """
    cost = CostModel(base=10, token=0, prefill_req=3)
    requests = (Request(1, 2), Request(1, 2, arrival_ps=5), Request(2, 2, arrival_ps=25))
    instance = Instance("pause", Limits(5, 99, 99), Rules(chunked_prefill=False, eviction=False), cost, requests)
    assert exact(SEARCH, instance) == on_nodes(instance, frozenset()) == optimum(instance) == 48


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(memory_only(), st.data())
def test_walk_bounds_never_exceed_the_optimum_and_grow_with_what_is_tracked(
    instance: Instance, data: st.DataObject
) -> None:
    assume_only_memory_binds(instance)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n08-I4-O8-k8", "n04-LILO+SISO-k2", "n08-LISO+SISO-k2", "n04-LILO+LISO-k2"])
def test_more_memory_never_hurts_and_forbidding_never_helps(name: str) -> None:
    instance = LADDER[f"ladder-{name}"]
    best = exact(SEARCH, instance)
    without = exact(SEARCH, Restrictions(("eviction",)).apply(instance))
    roomier = exact(SEARCH, replace(instance, limits=replace(instance.limits, kv_tokens=instance.limits.kv_tokens + 4)))
    assert roomier <= best <= without


def test_one_request_after_another_by_hand() -> None:
    """Two requests with I = 3, O = 2 and M = 4: each fills the cache in its second batch, so they take turns.

    Base 10, token 1, decode 2 per KV token, prefill 5 per request: a prefill takes 3 + 5, a decode 1 + 3 · 2. Four
    batches: 40 + 2 (8 + 7) = 70. Starting the second with the first would need 6 tokens of memory.
    """
    cost = CostModel(base=10, token=1, decode_kv=2, prefill_req=5)
    instance = Instance("turns", Limits(4, 99, 99), Rules(chunked_prefill=False), cost, (Request(3, 2),) * 2)
    assert exact(SEARCH, instance) == 70


@pytest.mark.slow
def test_interrupted_by_the_clock_it_keeps_a_bound_and_the_incumbent() -> None:
    instance = LADDER["ladder-n32-SILO+SISO-k2"]
    start = simulate(instance, "vllm")
    task = Task(instance, Objective.MAKESPAN, incumbent=start.schedule, incumbent_value=start.value, time_limit_s=5)
    outcome = StateSearch().solve(task)
    assert outcome.termination == Termination.LIMIT
    assert outcome.schedule is not None
    assert outcome.bound is not None
    assert check_schedule(instance, outcome.schedule)[0] == []
    assert outcome.bound < evaluate(instance, outcome.schedule)["objectives"]["makespan"]


def test_what_it_does_not_cover_is_refused() -> None:
    instance = LADDER["ladder-n04-I4-O8-k2"]
    task = Task(instance, Objective.MAKESPAN)
    refused = [
        changed(task, objective=Objective.MAX_TTFT),
        changed(task, instance=replace(instance, rules=Rules(chunked_prefill=True))),
        changed(task, instance=replace(instance, rules=Rules(hybrid=False, chunked_prefill=False))),
        changed(task, instance=replace(instance, cost=replace(instance.cost, pieces=((1, 1),)))),
        changed(task, instance=replace(instance, cost=replace(instance.cost, decode_req=10**12))),
        changed(task, instance=replace(instance, limits=replace(instance.limits, batch_requests=3))),
        changed(task, instance=replace(instance, limits=replace(instance.limits, prefill_tokens=20))),
        changed(
            task,
            objective=Objective.WEIGHTED_E2E,
            instance=replace(instance, requests=(*instance.requests, Request(1, 1, arrival_ps=9, weight=2))),
        ),
        changed(task, instance=replace(instance, requests=(Request(1, 64),))),
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
    assert sum(node[0] == () for node in graph.nodes) >= 33
