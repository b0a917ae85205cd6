"""The last arrivals alone: a bound below every optimum, exact where they decide, and certificates that say so."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import exact_value
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(instances(online=True))
def test_bounds_never_exceed_the_optimum(instance: Instance) -> None:
    """Whatever the rules are, and certificates prove what they say."""
    assume(not instance.offline)
    outcome = LastArrivals().solve(Task(instance, Objective.MAKESPAN))
    best = optimum(instance)
    assert outcome.bound is not None
    assert best is not None
    assert outcome.bound <= best
    if outcome.badge == Badge.CERTIFIED:
        assert proved_bound(instance, FREE, Objective.MAKESPAN, outcome.certificate) >= outcome.bound


@settings(max_examples=60, deadline=None)
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
