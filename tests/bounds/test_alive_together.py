"""How many requests are surely alive: the bound and the checker count alike, and no schedule has fewer."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace
from optsched.bounds.alone import alone
from optsched.bounds.congested.terms import alive_at
from optsched.bounds.congested.together import SurelyAlive
from optsched.bounds.own import plain_rate, single_pieces, with_steps_in_prompts
from optsched.check.certificates.alone import latencies_alone
from optsched.check.certificates.shared.alive_together import Alive as Counted
from optsched.check.certificates.shared.alive_together import Times, least_alive
from optsched.check.problem import problem_of
from optsched.model.cost import CostModel
from optsched.model.ints import Ints

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def checked(instance: Instance, window_ps: int, windows: int) -> Counted:
    """Return what the checker counts."""
    problem = problem_of(instance, Restrictions())
    arrival = np.array(instance.arrivals_ps, np.int64)
    first, last = (arrival + np.array(each) for each in zip(*latencies_alone(problem), strict=True))
    return least_alive(problem, Times(arrival, first, last), window_ps, windows)


def fewest_at(instance: Instance, time_ps: int) -> int:
    """Return the least number alive just before a time from the first arrival on, in any schedule.

    That many miss it, if it is the SLO of all that have arrived; but one that arrives just then has no SLO that is 0.
    """
    last = instance.start_ps + time_ps - 1
    earlier = tuple(
        replace(request, slo_e2e_ps=last - request.arrival_ps)
        for request in instance.requests
        if request.arrival_ps < last
    )
    just_then = zip(instance.requests, alone(instance).e2e, strict=True)
    begun = sum(request.arrival_ps == last and least > 0 for request, least in just_then)
    return begun + (optimum(replace(instance, requests=earlier), Objective.SLO_MISSES) if earlier else 0)


# Batches of 10; each run takes 5 more, whatever it is. Tokens take nothing.
COST = CostModel(10, 0, decode_req=5, prefill_req=5)


def pair(*, later_ps: int, output: int) -> Instance:
    requests = Request(1, 3), Request(1, output, arrival_ps=later_ps)
    return Instance("pair", Limits(8, 8, 8), Rules(eviction=False), COST, requests)


@pytest.mark.parametrize(
    ("instance", "both_ps"),
    [
        # Three batches of 10, and six runs; alone each could have ended at 45.
        (pair(later_ps=0, output=3), 3 * 10 + 6 * 5),
        # Alone the second ends at 66. The first has a token at 15 or later, and one at most by a batch that begins then
        # and before 21: from 21 on there are three batches, with three runs of the second and one of the first.
        (pair(later_ps=21, output=3), 21 + 3 * 10 + 4 * 5),
        # Two batches may begin before 26, so that nothing need be left of the first; but its three batches have a
        # fourth run beside its own, while the second alone ends at 41.
        (pair(later_ps=26, output=1), 3 * 10 + 4 * 5),
    ],
)
def test_worked_pairs(instance: Instance, both_ps: int) -> None:
    """Windows of 1 ps: the first in which both may have ended is that from when they may on."""
    number = SurelyAlive(instance).by_windows(1, 100).by_window.tolist()
    assert number[:-1] == checked(instance, 1, 100).by_window
    assert number.index(0) == both_ps
    assert fewest_at(instance, both_ps) >= 1


@settings(QUICK, max_examples=200)
@given(
    st.tuples(st.integers(0, 60), st.integers(0, 9)),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=3),
    st.integers(0, 40),
    st.tuples(st.integers(1, 14), st.integers(1, 14)),
)
def test_batches_have_time_for_their_prompts(
    first: tuple[int, int], others: list[tuple[int, int]], step: int, sizes: tuple[int, int]
) -> None:
    """Whatever a batch is made of, bases, decodes and prompts by the rate are no more than it takes; and not less."""
    most, prefill = max(sizes), min(sizes)
    cost = CostModel(*first, pieces=tuple(others), prefill_req=step)
    instance = Instance("rate", Limits(99, most, prefill), Rules(), cost, (Request(1, 1),))
    for weights in single_pieces(instance):
        rate = with_steps_in_prompts(instance, plain_rate(instance, weights))
        spare = [
            (cost.linear_ps(x) + step - rate.base - rate.decode * (x - z)) // z
            for x in range(1, most + 1)
            for z in range(1, min(x, prefill) + 1)
        ]
        assert rate.prompt == min(spare)
        assert rate.step_ps == 0


@pytest.mark.slow
@settings(QUICK, max_examples=150)
@given(instances(online=True), st.data())
def test_no_schedule_has_fewer_alive(instance: Instance, data: st.DataObject) -> None:
    latest = max(at + least for at, least in zip(instance.arrivals_ps, alone(instance).e2e, strict=True))
    window = data.draw(st.integers(max(1, latest // 12), max(1, latest)))
    counted = SurelyAlive(instance).by_windows(window, 3)
    number = counted.by_window.tolist()
    assert number == [*checked(instance, window, 3).by_window, 0]
    place = data.draw(st.integers(0, 2))
    time = data.draw(st.integers(window * place + 1, window * (place + 1)))
    fewest = fewest_at(instance, time)
    assert number[place] <= fewest
    # Requests that have arrived by then in the same window count on as many, or on themselves.
    since = [
        least
        for least, arrival in zip(counted.since.tolist(), instance.arrivals_ps, strict=True)
        if window * place <= arrival < time
    ]
    assert max(since, default=0) <= max(1, fewest)


@settings(QUICK, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(0, 400)), min_size=1, max_size=90),
    st.integers(0, 9),
    st.integers(1, 60),
    st.booleans(),
)
def test_the_checker_counts_alike(sizes: list[tuple[int, int, int]], kv: int, window: int, eviction: bool) -> None:
    cost = CostModel(10, 1, pieces=((4, 3),), decode_kv=kv, decode_req=2, prefill_sq=1, prefill_req=3)
    requests = tuple(Request(prompt, output, arrival_ps=at) for prompt, output, at in sizes)
    instance = Instance("many", Limits(200, 64, 64), Rules(eviction=eviction), cost, requests)
    counted = SurelyAlive(instance).by_windows(window, 20)
    by_checker, by_window = checked(instance, window, 20), counted.by_window
    assert by_window.tolist() == [*by_checker.by_window, 0]
    arrival = np.array(instance.arrivals_ps)
    begins = np.minimum(arrival // window, 20)
    assert counted.since.tolist() == np.maximum(np.maximum(1, by_window[begins]), by_checker.since).tolist()
    ends = arrival + np.array(alone(instance).e2e)
    assert (by_window[:-1] >= least_by_window(arrival, ends, window, 20)).all()


def least_by_window(arrival: Ints, ends: Ints, window: int, windows: int) -> Ints:
    """Return how many of requests that end at the earliest are alive, at any time of a window, one ps after another."""
    number: Ints = alive_at(np.arange(window * windows), arrival, ends).reshape(windows, window).min(axis=1)
    return number
