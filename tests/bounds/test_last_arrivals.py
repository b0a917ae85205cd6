"""The last arrivals alone: a bound below every optimum, exact where they decide, and certificates that say so."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import exact_value, require_bound_below_optimum
from strategies import instances

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace, simulate
from optsched.check import UnprovedError, proved_bound
from optsched.model.cost import CostModel
from optsched.model.result import Badge
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError
from optsched_formulations.batching.last_arrivals import LastArrivals

FREE = Restrictions()

# A batch takes 10. One cached token: one request at a time. Requests of one token arrive at 5, 100, 101 and 102: the
# last three queue up, 100-110, 110-120, 120-130, and end 125 after the first arrival. Alone, the last ends at
# 102 + 10 = 112, the last two at 101 + 20 = 121, the last three at 100 + 30 = 130.
QUEUE = Instance(
    "queue",
    Limits(1, 8, 8),
    Rules(chunked_prefill=False, eviction=False),
    CostModel(base=10, token=0),
    tuple(Request(1, 1, arrival_ps=time) for time in (100, 5, 102, 101)),
)


def ask(**more: Any) -> tuple[Outcome, list[ProgressEvent]]:
    events: list[ProgressEvent] = []
    task = Task(QUEUE, Objective.MAKESPAN, progress=events.append)
    return LastArrivals().solve(changed(task, **more)), events


def test_worked_example() -> None:
    outcome, events = ask()
    assert outcome.termination == Termination.LIMIT
    assert outcome.bound == 125 == optimum(QUEUE)
    assert [event.bound for event in events] == [107, 116, 125]
    assert outcome.badge == Badge.CERTIFIED
    assert outcome.certificate is not None
    assert outcome.certificate["from_ps"] == 100
    assert proved_bound(QUEUE, FREE, Objective.MAKESPAN, outcome.certificate) == 125


def test_a_schedule_that_the_bound_meets_is_optimal() -> None:
    run = simulate(QUEUE, "vllm")
    outcome, events = ask(incumbent=run.schedule, incumbent_value=125)
    assert exact_value(QUEUE, outcome) == 125
    assert outcome.schedule == run.schedule
    assert len(events) == 3


@pytest.mark.parametrize(("at_most", "end"), [(124, Termination.INFEASIBLE), (125, Termination.LIMIT)])
def test_a_value_that_is_out_of_reach(at_most: int, end: Termination) -> None:
    outcome, _ = ask(restrictions=Restrictions(at_most=at_most))
    assert outcome.termination == end
    assert outcome.bound == min(125, at_most + 1)


def test_without_time_there_is_no_bound() -> None:
    outcome, events = ask(time_limit_s=0.0)
    assert (outcome.bound, outcome.badge, events) == (None, Badge.HEURISTIC, [])


def test_what_it_does_not_cover_is_refused() -> None:
    together = replace(QUEUE, requests=(Request(1, 1), Request(1, 1)))
    for refused in (
        {"objective": Objective.MEAN_E2E},
        {"instance": together},
        {"restrictions": Restrictions(order=(0, 1, 2, 3))},
    ):
        with pytest.raises(UnsupportedError):
            ask(**refused)


# A decode takes a billion, a refill one: the early request's batch is the pause in which the late one is evicted.
# Together: 100,000 to 100,011 the late one's fill of 1 token, to 100,022 the early one's batch while the late one is
# evicted, to 100,034 its refill of 2 tokens. Alone it has to decode.
PAUSED = Instance(
    "paused",
    Limits(64, 64, 64),
    Rules(chunked_prefill=False),
    CostModel(base=10, token=1, decode_req=1_000_000_000),
    (Request(1, 1), Request(1, 2, arrival_ps=100_000)),
)
INNER = {"kind": "volume", "piece_weights": [1], "release_ps": 100_000}


def test_where_refills_are_cheap_the_last_alone_are_no_bound() -> None:
    assert optimum(PAUSED) == 100_034
    task = Task(PAUSED, Objective.MAKESPAN)
    assert LastArrivals().solve(task).bound is None
    reason = "generating token 2 of an input of 1 tokens takes 999999999 ps less by a refill"
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(PAUSED, FREE, Objective.MAKESPAN, ask_from(100_000))
    # One ps less than a refill: base and token 10 + 1 and attention; f(2) - f(1) = 1.
    dear = replace(PAUSED, cost=replace(PAUSED.cost, decode_req=1))
    assert LastArrivals().solve(Task(dear, Objective.MAKESPAN)).bound == optimum(dear) == 100_023


def ask_from(moment: int) -> dict[str, Any]:
    return {"kind": "last_arrivals", "from_ps": moment, "certificate": INNER}


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (Rules(), "needs whole prefills where requests may be evicted"),
        (Rules(chunked_prefill=False, swap=True), "does not cover swapping"),
        (Rules(eviction=False, swap=True), "does not cover swapping"),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(rules: Rules, reason: str) -> None:
    dear = replace(PAUSED, rules=rules, cost=CostModel(base=10, token=1))
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(dear, FREE, Objective.MAKESPAN, ask_from(100_000))


def test_without_evictions_prefills_may_be_chunked() -> None:
    # One batch a token: 10 + 1 for the prompt and 10 + 1 for the decode, whatever a refill would take.
    still = replace(PAUSED, rules=Rules(eviction=False), cost=CostModel(base=10, token=1, decode_req=5))
    assert proved_bound(still, FREE, Objective.MAKESPAN, ask_from(100_000)) == 100_000 + 11 + 16


def test_dear_refills_are_found_where_the_difference_is_least() -> None:
    # f(n) - f(1) + n² - 9 (n - 1) for n = 2, …, 9: with token 0 it is n² - 9 n + 9, least at 4 and 5: -11.
    parabola = replace(
        PAUSED,
        cost=CostModel(base=10, token=0, decode_kv=9, prefill_sq=1),
        requests=(Request(1, 9), Request(1, 9, arrival_ps=5)),
    )
    with pytest.raises(UnprovedError, match="token 4 of an input of 1 tokens takes 11 ps less"):
        proved_bound(parabola, FREE, Objective.MAKESPAN, ask_from(5) | {"certificate": INNER | {"release_ps": 5}})
    # Refills beyond P are none: with P = 1 there is no refill at all.
    assert proved_bound(
        replace(parabola, limits=Limits(64, 64, 1)),
        FREE,
        Objective.MAKESPAN,
        ask_from(5) | {"certificate": INNER | {"release_ps": 5}},
    )
    # A second piece makes tokens dear enough: f(n) - f(1) is 9 (n - 1) more.
    dear = replace(parabola, cost=replace(parabola.cost, pieces=((1, 9),)))
    assert proved_bound(
        dear,
        FREE,
        Objective.MAKESPAN,
        ask_from(5) | {"certificate": INNER | {"piece_weights": [1, 0], "release_ps": 5}},
    )


@pytest.mark.slow
@settings(max_examples=73, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(instances(online=True))
def test_bounds_never_exceed_the_optimum(instance: Instance) -> None:
    """Whatever the rules are, and certificates prove what they say."""
    assume(not instance.offline)
    assume(not (instance.rules.eviction and instance.rules.chunked_prefill))
    require_bound_below_optimum(instance, LastArrivals().solve(Task(instance, Objective.MAKESPAN)))


@pytest.mark.slow
@settings(max_examples=52, deadline=None)
@given(st.data())
def test_a_certificate_proves_no_more_than_the_optimum(data: st.DataObject) -> None:
    """From whatever arrival on it is stated, also where requests are added."""
    certificate = ask()[0].certificate
    assert certificate is not None
    requests = list(QUEUE.requests)
    requests += data.draw(st.lists(st.builds(Request, st.just(1), st.just(1), st.integers(0, 130)), max_size=2))
    instance = replace(QUEUE, requests=tuple(requests))
    moment = data.draw(st.sampled_from([request.arrival_ps for request in requests]))
    try:
        proved = proved_bound(instance, FREE, Objective.MAKESPAN, certificate | {"from_ps": moment})
    except UnprovedError:
        return
    best = optimum(instance)
    assert best is not None
    assert proved <= best


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"from_ps": 99}, "from_ps is 99, expected the arrival time of a request"),
        ({"from_ps": None}, "from_ps is None, expected the arrival time of a request"),
        ({"certificate": 1}, "certificate is 1, expected one of another kind"),
        ({"certificate": {"kind": "last_arrivals"}}, "expected one of another kind"),
        ({"certificate": {"kind": "hope"}}, "kind is 'hope'"),
    ],
)
def test_certificates_are_read_strictly(change: dict[str, Any], reason: str) -> None:
    certificate = ask()[0].certificate
    assert certificate is not None
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(QUEUE, FREE, Objective.MAKESPAN, certificate | change)


def test_it_bounds_the_makespan_only() -> None:
    with pytest.raises(UnprovedError, match="kind last_arrivals bounds the makespan"):
        proved_bound(QUEUE, FREE, Objective.MEAN_E2E, ask()[0].certificate)
