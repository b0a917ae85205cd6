"""The bound of rents: as the hand says, below every optimum, and recounted by the checker."""

from __future__ import annotations

from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched import (
    Instance,
    Limits,
    Objective,
    Request,
    Restrictions,
    Rules,
    load_instance,
    replace,
    simulate,
)
from optsched.bounds.catalogue import BOUNDS, bound_method
from optsched.bounds.inflow import inflow_bound
from optsched.bounds.rented.windows import leased_bound
from optsched.check import UnprovedError, proved_bound
from optsched.model.cost import CostModel

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
STAY = Rules(chunked_prefill=False, eviction=False)
Document = dict[str, Any]


def proved(instance: Instance, certificate: Document) -> int:
    return proved_bound(instance, Restrictions(), Objective.MAKESPAN, certificate)


# By hand ---------------------------------------------------------------------------------------------------

# Prompts of one token, two to a batch, of 10 each. Six would fill three batches, 30 in all; but until 5 there is one
# alone, which wastes half of a batch or waits.
PAIRS = Instance(
    "pairs", Limits(2, 9, 9), STAY, CostModel(10, 0), tuple(Request(1, 1, at) for at in (0, 5, 10, 15, 20, 20))
)
# At twice the price from 5 on, 10 a token held leave nothing of 2·10 for rent; before, memory is free and the one that
# is there pays all 10 for a run. So each takes 10 wherever it runs, 60 in all: 5 before 5, and 55 / 2 after.
RENTED: Document = {
    "kind": "inflow",
    "prefill_step_ps": 0,
    "starts": [0, 5],
    "time": [1, 2],
    "memory": [0, 10],
    "groups": [0, 1, 1, 1, 1, 1],
    "rents": [[10, 0], [0]],
}


def test_worked_rents() -> None:
    assert proved(PAIRS, RENTED) == 5 + 28
    assert optimum(PAIRS) == 35
    # At one price for all time, nothing is known of arrivals.
    assert proved(PAIRS, RENTED | {"starts": [0], "time": [2], "memory": [10], "rents": [[0], [0]]}) == 30


def test_rents_of_all_that_are_there_leave_nothing_of_a_batch() -> None:
    with pytest.raises(UnprovedError, match="rents of window 0 are 11, but a batch has 10 left"):
        proved(PAIRS, RENTED | {"rents": [[11, 0], [0]]})
    two = replace(PAIRS, requests=(Request(1, 1), *PAIRS.requests))
    # Two pay 5 each while they are alone.
    with pytest.raises(UnprovedError, match="rents of window 0 are 20"):
        proved(two, RENTED | {"groups": [0, *RENTED["groups"]]})
    assert proved(two, RENTED | {"groups": [0, *RENTED["groups"]], "rents": [[5, 0], [0]]}) == 5 + 28


def test_worked_evictions() -> None:
    """A decode holds two tokens, 2·5, and takes 10; or a refill of both, which takes 2 for its step: 12 is less."""
    cost = CostModel(10, 0, decode_req=10, prefill_req=2)
    instance = Instance("two", Limits(4, 9, 9), Rules(chunked_prefill=False), cost, (Request(1, 2), Request(1, 2, 1)))
    priced: Document = {
        "kind": "inflow",
        "prefill_step_ps": 2,
        "starts": [0],
        "time": [2],
        "memory": [5],
        "groups": [0, 0],
        "rents": [[0]],
    }
    # Each: a prompt 5 + 2·2, then 2·5 + 2·2 by a refill or 2·5 + 2·10 by a decode. 2 (9 + 14) / 2.
    assert proved(instance, priced) == 23
    assert proved(replace(instance, rules=STAY), priced) == 9 + 30
    best = optimum(instance)
    assert best is not None
    assert best >= 23


def test_a_bound_may_end_before_the_last_window() -> None:
    later = RENTED | {"starts": [0, 5, 1000], "time": [1, 2, 3], "memory": [0, 10, 15], "rents": [[10, 0, 0], [0, 0]]}
    assert proved(PAIRS, later) == 33
    assert proved(PAIRS, later | {"memory": [0, 0, 0]}) == 0  # and at prices of nothing, nothing is proved


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"starts": [0, 0]}, "starts is .*, expected ascending numbers from 0"),
        ({"starts": [1, 5]}, "starts is .*, expected ascending numbers from 0"),
        ({"time": [1, 0]}, "time is 0 in the last window, expected more"),
        ({"time": [1]}, "time is .*, expected 2 integers ≥ 0"),
        ({"memory": [0, -1]}, "memory is .*, expected 2 integers ≥ 0"),
        ({"groups": [0, 1]}, "groups is .*, expected 6 integers ≥ 0"),
        ({"groups": [0] * 6}, "rents is .*, expected a list with one for each group"),
        ({"rents": [[10], [0]]}, "rents is .*, expected 2 integers ≥ 0"),
        ({"prefill_step_ps": 1}, "prefill_step_ps is 1, expected an integer from 0 to 0"),
    ],
)
def test_what_is_no_certificate(changed: Document, message: str) -> None:
    with pytest.raises(UnprovedError, match=message):
        proved(PAIRS, RENTED | changed)


# Below optima ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(QUICK, max_examples=100)
@given(instances(online=True, swap=True))
def test_what_is_found_is_no_more_than_the_optimum(instance: Instance) -> None:
    found, best = leased_bound(instance), optimum(instance)
    assert best is not None
    if found is not None:
        assert found.value <= best
        assert proved(instance, found.certificate) == found.value


@st.composite
def streams(draw: st.DrawFn) -> Instance:
    """Draw more requests than a batch holds, of few tokens, soon after each other."""
    shapes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 80))
    requests = tuple(Request(*shape) for shape in draw(st.lists(shapes, min_size=10, max_size=30)))
    rules = Rules(chunked_prefill=draw(st.booleans()), eviction=draw(st.booleans()))
    cost = CostModel(
        draw(st.integers(1, 20)),
        draw(st.integers(0, 2)),
        decode_kv=draw(st.integers(0, 1)),
        decode_req=draw(st.integers(0, 3)),
        prefill_sq=draw(st.integers(0, 1)),
        prefill_req=draw(st.integers(0, 5)),
    )
    limits = Limits(draw(st.integers(6, 20)), 12, 12, draw(st.sampled_from([None, 3])), draw(st.sampled_from([1, 2])))
    return Instance("stream", limits, rules, cost, requests)


@pytest.mark.slow
@settings(QUICK, max_examples=25)
@given(streams(), st.sampled_from(["vllm", "sarathi_nocp", "srtf", "planner"]))
def test_no_policy_is_below(instance: Instance, policy: str) -> None:
    found, reached = leased_bound(instance), simulate(instance, policy).value
    assert found is not None
    assert proved(instance, found.certificate) == found.value
    if reached is not None:
        assert found.value <= reached


# At scale --------------------------------------------------------------------------------------------------


def conversations(count: int) -> Instance:
    """Return the first conversations of the stand-in, half as soon again as they came."""
    whole = load_instance("azure-conv-1")
    requests = tuple(replace(r, arrival_ps=r.arrival_ps * 2 // 3) for r in whole.requests[:count])
    return replace(whole, requests=requests)


def test_more_than_other_bounds_know_of_conversations_that_come_in() -> None:
    instance = conversations(40)
    found = inflow_bound(instance, Objective.MAKESPAN)
    assert found is not None
    assert proved(instance, found.certificate) == found.value
    others = [bound_method(name)(instance, Objective.MAKESPAN) for name in BOUNDS if name != "inflow"]
    assert found.value > 1.02 * max(other.value for other in others if other is not None)
    reached = simulate(instance, "planner").value
    assert reached is not None
    assert found.value <= reached


def test_nothing_is_said_of_other_objectives_or_together_or_few() -> None:
    instance = conversations(40)
    assert inflow_bound(instance, Objective.MEAN_E2E) is None
    together = replace(instance, requests=tuple(replace(r, arrival_ps=0) for r in instance.requests))
    assert inflow_bound(together, Objective.MAKESPAN) is None
    assert inflow_bound(PAIRS, Objective.MAKESPAN) is None


def test_of_very_many_requests_nothing_is_said() -> None:
    instance = conversations(2000)
    later = (replace(r, arrival_ps=r.arrival_ps + k * 241 * 10**12) for k in range(2) for r in instance.requests)
    assert inflow_bound(replace(instance, requests=tuple(later)), Objective.MAKESPAN) is None


def test_numbers_beyond_64_bits_prove_nothing() -> None:
    huge = replace(conversations(40), cost=CostModel(2**61, 1, decode_req=2**61))
    assert inflow_bound(huge, Objective.MAKESPAN) is None
