"""The waiting bound: no prices prove more than the optimum, those chosen more than others do where prompts queue."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import instances
from test_congestion import busy

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, load_instance, replace, simulate
from optsched.bounds.alone import alone_bound
from optsched.bounds.bound import Bound
from optsched.bounds.congestion import congestion_bound
from optsched.bounds.machine import machine_bound, most_needs
from optsched.bounds.queued.long_queues import long_queue_bound
from optsched.bounds.queued.prices import priced_bound
from optsched.bounds.queued.served import busy_prices
from optsched.bounds.waiting import prompts_lead, queueing, waiting_bound
from optsched.check import UnprovedError, proved_bound
from optsched.check.certificates import waiting
from optsched.compiled import uncompiled
from optsched.model.cost import CostModel
from optsched.stopwatch import STOPWATCH

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
E2E = Objective.MEAN_E2E


def proved(instance: Instance, certificate: dict[str, Any]) -> int:
    return proved_bound(instance, Restrictions(), E2E, certificate)


# Batches of 10; each run takes 5 more, whatever it is. β is (10 + 5)/8, rounded down: a prompt needs 1.
PAIR = Instance(
    "pair",
    Limits(8, 8, 8),
    Rules(eviction=False),
    CostModel(10, 0, decode_req=5, prefill_req=5),
    (Request(1, 3),) * 2,
)


@pytest.mark.parametrize(
    ("terms", "prices", "value"),
    [
        # ε = 0, no prices: F is 1 after T, and a decode is worth min over y of y (10/y + 5), 15 if it is alone.
        ((60, 0, 0), [], 2 * (1 + 2 * 15)),
        # ε = 1, δ = 0, no prices: decodes are worth nothing where L is 0.
        ((60, 64, 0), [], 2 * 1),
        # ε = 1, δ = 12, no prices: 12 by L, and decodes may be there at F.
        ((60, 64, 12), [], 2 * (1 + 2 * 12)),
        # A price of 1 for 60 ps. With ε = 0 all windows are open, and 1 is too little to wait for its end with the
        # prompt: F = 1, P = 1. Decodes go behind: 15 each. Less 60.
        ((60, 0, 0), [64], 2 * (2 + 2 * 15) - 60),
        # With ε = 1, δ = 100 that costs nothing else, as the window after the one that follows F is open.
        ((60, 64, 100), [64], 2 * (2 + 2 * 15) - 60),
    ],
)
def test_worked_prices(terms: tuple[int, int, int], prices: list[int], value: int) -> None:
    named = dict(zip(("window_ps", "kept", "short_ps"), terms, strict=True)) | {"blocks": 8, "parts": 1, "slope_ps": 1}
    certificate = {"kind": "waiting", **named, "prices": prices, "memory": [0] * len(prices)}
    assert proved(PAIR, certificate) == value <= 2 * 60 == optimum(PAIR, E2E)


def _certificate(instance: Instance, data: st.DataObject) -> dict[str, Any]:
    single = instance.cost.linear_ps(1)
    price = st.one_of(st.just(0), st.integers(0, 64), st.integers(0, 1000))
    prices = data.draw(st.lists(price, max_size=16))
    rent = st.one_of(st.just(0), st.integers(0, 64 * single))
    cost, tokens = instance.cost, range(1, instance.limits.batch_tokens + 1)
    steepest = min((cost.linear_ps(x) + cost.prefill_req) // x for x in tokens)
    return {
        "kind": "waiting",
        "window_ps": data.draw(st.integers(1, 6 * single)),
        "kept": data.draw(st.integers(0, 64)),
        "short_ps": data.draw(st.integers(0, 4 * single)),
        "blocks": data.draw(st.integers(1, 4)),
        "parts": data.draw(st.integers(1, 5)),
        "slope_ps": data.draw(st.one_of(st.just(steepest), st.integers(0, steepest))),
        "prices": prices,
        "memory": data.draw(st.lists(rent, min_size=len(prices), max_size=len(prices))),
    }


@pytest.mark.slow
@settings(QUICK, max_examples=66)
@given(instances(online=True), st.data())
def test_whatever_prices_are_stated_no_more_than_the_optimum_is_proved(instance: Instance, data: st.DataObject) -> None:
    assume(instance.cost.linear_ps(1) > 0)
    best = optimum(instance, E2E)
    assert best is not None
    assert proved(instance, _certificate(instance, data)) <= best


def queued(count: int) -> Instance:
    """Return long prompts with few tokens, of which groups of ten come at once."""
    calm = busy(count)
    requests = tuple(
        Request(200 + 70 * i % 400, 2 + 5 * i % 7, arrival_ps=1_200_000_000 * (i // 10)) for i in range(count)
    )
    return replace(calm, requests=requests)


@cache
def queued_bound() -> Bound:
    found = waiting_bound(queued(100), E2E)
    assert found is not None
    return found


@pytest.mark.slow
def test_more_is_proved_than_by_others_where_prompts_queue() -> None:
    code = load_instance("azure-code-0.5")
    instance = replace(code, requests=code.requests[:100])
    others = [bound(instance, E2E) for bound in (machine_bound, alone_bound, congestion_bound)]
    found, reached = waiting_bound(instance, E2E), simulate(instance, "planner", E2E).value
    assert found is not None
    assert reached is not None
    assert max(other.value for other in others if other is not None) < found.value <= reached
    assert proved(instance, found.certificate) == found.value


def test_what_is_proved_is_less_than_what_is_reached() -> None:
    instance = queued(100)
    reached = simulate(instance, "planner", E2E).value
    assert reached is not None
    assert 0 < queued_bound().value <= reached
    assert proved(instance, queued_bound().certificate) == queued_bound().value


@pytest.mark.parametrize("decode_req", [300_000, 3_000_000, 30_000_000])
@pytest.mark.parametrize("prompt", [1, 40])
def test_whatever_is_chosen_can_be_proved(decode_req: int, prompt: int) -> None:
    cost = replace(busy(100).cost, decode_req=decode_req)
    requests = tuple(Request(prompt + i % 7, 3 + 5 * i % 20, arrival_ps=300_000_000 * i) for i in range(100))
    instance = replace(busy(100), cost=cost, requests=requests)
    found = priced_bound(instance, most_needs(instance))
    assert found is not None
    assert proved(instance, found.certificate) == found.value


@pytest.mark.parametrize("decode_kv", [10**9, 10**12, 10**15])
def test_prices_stay_in_64_bits_where_decodes_cost_far_more_than_a_base(decode_kv: int) -> None:
    costly = replace(busy(100), cost=CostModel(base=40, token=0, decode_kv=decode_kv))
    found = priced_bound(costly, most_needs(costly))
    if found is not None:
        served = simulate(costly, "sarathi", E2E).value
        assert served is not None
        assert proved(costly, found.certificate) == found.value <= served


def test_memory_has_a_price_where_few_requests_fit() -> None:
    conversations = load_instance("azure-conv-2")
    limits = replace(conversations.limits, kv_tokens=12_000)
    instance = replace(conversations, requests=conversations.requests[:80], limits=limits)
    found, reached = long_queue_bound(instance), simulate(instance, "planner", E2E).value
    assert found is not None
    assert reached is not None
    assert proved(instance, found.certificate) == found.value <= reached
    free = found.certificate | {"memory": [0] * len(found.certificate["memory"])}
    assert proved(instance, free) < found.value


def test_few_prices_are_tried_when_time_is_up() -> None:
    conversations = load_instance("azure-conv-2")
    instance = replace(conversations, requests=conversations.requests[:80])
    with STOPWATCH.limited(-1):
        hurried = long_queue_bound(instance)
    whole = long_queue_bound(instance)
    assert hurried is not None
    assert whole is not None
    assert proved(instance, hurried.certificate) == hurried.value < whole.value


def test_no_place_wraps_however_long_windows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = {"slope_ps": 1, "window_ps": 10**15, "kept": 64, "short_ps": 100, "blocks": 2, "parts": 4}
    certificate = {"kind": "waiting", **terms, "prices": [64, 0], "memory": [0, 0]}
    found = proved(PAIR, certificate)
    monkeypatch.setattr(waiting, "_least_costs", uncompiled(waiting._least_costs))
    with np.errstate(over="raise"):
        assert proved(PAIR, certificate) == found


def test_it_says_nothing_of_few_requests_of_other_objectives_or_without_queues() -> None:
    assert waiting_bound(queued(20), E2E) is None
    assert waiting_bound(queued(100), Objective.MAKESPAN) is None
    assert waiting_bound(busy(100), E2E) is None


@pytest.mark.slow
def test_where_decodes_take_most_of_the_time_congestion_bounds_queues() -> None:
    """Each is found where it proves most: both together would take the planner's time.

    Long batches are few windows.
    """
    requests = tuple(Request(request.input, request.output // 3) for request in busy(65).requests)
    cost = CostModel(400_000_000, 20_000, decode_kv=1_000, decode_req=40_000_000, prefill_sq=50)
    at_once = replace(busy(65), cost=cost, requests=requests)
    assert queueing(at_once) > 1
    assert (prompts_lead(at_once), prompts_lead(queued(100))) == (False, True)
    found = congestion_bound(at_once, E2E)
    assert waiting_bound(at_once, E2E) is None
    assert found is not None
    apart = priced_bound(at_once, most_needs(at_once))
    assert apart is not None
    assert found.value > apart.value


def test_prices_of_mean_busy_times() -> None:
    """The first job runs until 4, the second until 7, then the first until 13; a third one from 20 to 25.

    Time lost before 4 puts the first job off behind its end, where time is free, as time from 7 on does; time lost in
    between is the second one's, which goes on at 7, where the price is 6/10.
    """
    prices = busy_prices([(0, 10), (4, 3), (20, 5)], 1, 27)
    assert prices[:4].tolist() == pytest.approx([1.25, 1.15, 1.05, 0.95])
    assert prices[4:7].tolist() == pytest.approx([0.6 + 2.5 / 3, 0.6 + 1.5 / 3, 0.6 + 0.5 / 3])
    assert prices[7:13].tolist() == pytest.approx([0.55, 0.45, 0.35, 0.25, 0.15, 0.05])
    assert prices[13:20].tolist() == [0] * 7
    assert prices[20:25].tolist() == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"window_ps": 0}, "window_ps is 0, expected an integer from 1"),
        ({"kept": 65}, "kept is 65, expected an integer from 0 to 64"),
        ({"short_ps": -1}, "short_ps is -1"),
        ({"blocks": 0}, "blocks is 0, expected an integer from 1 to 1000"),
        ({"parts": 0}, "parts is 0, expected an integer from 1 to 64"),
        ({"prices": None}, "prices is None"),
        ({"prices": [-1]}, "prices is"),
        ({"prices": [0.5]}, "prices is"),
        ({"prices": [0] * 100_001}, "prices is"),
        ({"prices": [2**49], "memory": [0]}, "too large"),
        ({"prices": [0], "memory": [2**50]}, "too large"),
        ({"memory": None}, "memory is None"),
        ({"prices": [0], "memory": []}, "memory is .* expected as many"),
        ({"prices": [0], "memory": [-1]}, "memory is"),
        ({"slope_ps": 10**9}, "slope_ps is 1000000000, more than the"),
    ],
)
def test_certificates_are_read_strictly(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnprovedError, match=reason):
        proved(queued(100), queued_bound().certificate | change)


def test_other_objectives_are_refused() -> None:
    with pytest.raises(UnprovedError, match="kind waiting bounds mean_e2e"):
        proved_bound(queued(100), Restrictions(), Objective.MEAN_TTFT, queued_bound().certificate)
