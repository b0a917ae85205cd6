"""Small instances are settled at once: the optimum by hand, by the ledger, by other methods, and without policies.

`test_agreement` holds the method against brute force on random instances.
"""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import exact, exact_value
from strategies import assume_only_memory_binds, memory_only

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, Status, load_suite, replace, solve
from optsched.model.cost import CostModel
from optsched.model.result import Badge
from optsched.solvers.formulation import Task, Termination, UnsupportedError
from optsched_formulations.batching.small_search import SmallSearch
from optsched_formulations.batching.state_search import StateSearch

SEARCH = SmallSearch()
LADDER = {instance.name: instance for instance in load_suite("ladder").instances}
TEN = CostModel(base=10, token=0)


def whole(memory: int, cost: CostModel, *requests: Request, eviction: bool = True) -> Instance:
    """Return an instance in which only memory binds."""
    rules = Rules(chunked_prefill=False, eviction=eviction)
    return Instance("small", Limits(memory, 64, 64), rules, cost, requests)


def test_an_eviction_saves_a_batch() -> None:
    """Two requests (2, 2), M = 4; a batch takes 10, and 1 a token.

    Together both fill 4 tokens, in 14. In the next batch they would hold 6, or 5 if one pauses. So one goes on alone,
    in 11; the other is evicted, and refilled with its 3 tokens in 13: 38. One after the other takes 2 (12 + 11) = 46.
    """
    both = whole(4, CostModel(base=10, token=1), Request(2, 2), Request(2, 2))
    assert exact(SEARCH, both) == 38
    assert exact(SEARCH, replace(both, rules=replace(both.rules, eviction=False))) == 46


def test_with_arrivals_it_may_be_best_to_wait_or_to_pause() -> None:
    """`test_state_search` has the arithmetic: A waits for B, and B pauses while C is filled."""
    cost = CostModel(base=10, token=0, prefill_req=3)
    requests = (Request(1, 2), Request(1, 2, arrival_ps=5), Request(2, 2, arrival_ps=25))
    instance = whole(5, cost, *requests, eviction=False)
    assert exact(SEARCH, instance) == 48


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    memory_only(most_requests=6) | memory_only(online=True, most_requests=4),
    st.sampled_from([Objective.MAKESPAN, Objective.MEAN_E2E, Objective.WEIGHTED_E2E]),
)
def test_it_agrees_with_the_compiled_search(instance: Instance, objective: Objective) -> None:
    assume_only_memory_binds(instance, objective)
    found = SEARCH.solve(Task(instance, objective))
    if found.termination == Termination.OPTIMAL:
        assert exact_value(instance, found, objective) == exact(StateSearch(), instance, objective)


def test_the_ledger_has_its_values() -> None:
    """Of InferMax's experiment `auto` settles all but the one whose token budgets may bind at once, and proves them."""
    for instance in load_suite("infermax-fig15").instances[:10]:
        for objective in (Objective.MAKESPAN, Objective.MEAN_E2E):
            found = solve(instance, objective, workers=1)
            assert (found.status, found.badge) == (Status.OPTIMAL, Badge.CERTIFIED)
            assert found.found_by == {"schedule": "small_search", "bound": "small_search"}
            known = solve(instance, objective, method="token_cpsat", workers=1)
            assert (known.status, known.value) == (Status.OPTIMAL, found.value)


def test_no_policy_is_played_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optsched.methods.stages.served_alone", None)
    monkeypatch.setattr("optsched.methods.stages.run_bound", None)
    one, two = (solve("infermax-fig15-I8", workers=workers) for workers in (1, 2))
    assert one.message is None
    assert changed(one, runtime_s=0.0) == changed(two, runtime_s=0.0)


@pytest.mark.parametrize(("at_most", "status"), [(37, Status.INFEASIBLE), (38, Status.OPTIMAL), (50, Status.OPTIMAL)])
def test_what_exceeds_a_value_is_certified(at_most: int, status: Status) -> None:
    """The optimum is 38, as above."""
    instance = whole(4, CostModel(base=10, token=1), Request(2, 2), Request(2, 2))
    found = solve(instance, restrictions=Restrictions(at_most=at_most))
    assert (found.status, found.badge, found.bound) == (status, Badge.CERTIFIED, 38)


def test_what_is_not_small_is_left_to_others() -> None:
    hard = LADDER["ladder-n04-LILO+SILO-k2"]
    assert SEARCH.solve(Task(hard, Objective.MAKESPAN)).termination == Termination.LIMIT
    late = Task(LADDER["ladder-n04-LISO+SISO-k2"], Objective.MAKESPAN, time_limit_s=0)
    assert SEARCH.solve(late).termination == Termination.LIMIT
    for many in (whole(9, TEN, *[Request(1, 1)] * 9), whole(99, TEN, Request(1, 63), Request(1, 2))):
        with pytest.raises(UnsupportedError, match="more than 8 requests or 64 output tokens"):
            SEARCH.solve(Task(many, Objective.MAKESPAN))
    with pytest.raises(UnsupportedError, match="token budgets that may bind"):
        SEARCH.solve(Task(whole(99, TEN, Request(60, 2), Request(9, 2)), Objective.MAKESPAN))
    with pytest.raises(UnsupportedError, match="times beyond 64 bits"):
        SEARCH.solve(Task(whole(9, CostModel(base=2**62, token=0), Request(1, 2)), Objective.MAKESPAN))
