"""The congestion bound: no prices prove more than the optimum, those chosen more than others do."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace, simulate
from optsched.bounds.alone import alone_bound
from optsched.bounds.bound import Bound
from optsched.bounds.congested.backlog import delayed
from optsched.bounds.congestion import congestion_bound
from optsched.bounds.machine import machine_bound
from optsched.bounds.volume import busy_ps
from optsched.check import UnprovedError, proved_bound
from optsched.model.cost import CostModel

FREE = Restrictions()
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def alone_value(instance: Instance) -> int:
    found = alone_bound(instance, Objective.MEAN_E2E)
    assert found is not None
    return found.value


def proved(instance: Instance, certificate: dict[str, Any]) -> int:
    return proved_bound(instance, FREE, Objective.MEAN_E2E, certificate)


# Batches of 10; each run takes 5 more, whatever it is.
PAIR = Instance(
    "pair",
    Limits(8, 8, 8),
    Rules(eviction=False),
    CostModel(10, 0, decode_req=5, prefill_req=5),
    (Request(1, 3),) * 2,
)


@pytest.mark.parametrize(
    ("terms", "windows", "value"),
    [
        # ε = 0, no prices, β = 1: a decode is worth min over y of y (10/y + 5), 15 if it is alone; a prompt 1.
        ((60, 0), [[1, 0, 1, 0]], 2 * (1 + 2 * 15)),
        # ε = 1/2, δ = 0; 60 ps at a price of 1, none is alive for certain. There decodes are worth the least of
        # S 10/y + 5 S = 20 + 10, 15 + 15 and L 10/y + 5 L = 15 + 7.5, 10 + 10: 20, more with prompts. Afterwards
        # 5 + 2.5, and 30 are kept: 45 for both, more than 40. Less 60.
        ((60, 0), [[1, 64, 0, 32], [1, 0, 0, 32]], 4 * 20 - 60),
        # 45 ps, in which both are alive, δ = 2, β = 1: n = B = 2, and decodes are worth most by two:
        # L 10/y + 2 + 5 L = 10 + 2 + 10. Afterwards 5 + 2 + 2.5, and of 22.5 less 2 or 4, in whole ps, 20 are kept if
        # both decodes are then. A prompt is worth 2, or 1/2 with all 22 kept. So 20 + 2 + 2·9.5, not 2 + 2·22, and not
        # 18 + 2 + 22 + 9.5 or 22 + 0.5 + 2·9.5. Less 45.
        ((45, 2), [[1, 64, 1, 32], [1, 0, 1, 32]], 2 * 41 - 45),
        # ε = 1, δ = 5: n = B = 1. A batch with a prompt takes 15, at least 1 for each of 8 tokens. Decodes are worth
        # most by two beside 6 tokens of prompts: (15 - 6)/2 + 5 + 5, less than 5 + 5 + 5 by two alone. Afterwards
        # nothing, but 40 less 5 or 10 are kept. A prompt is worth 1. Less 40.
        ((40, 5), [[1, 64, 1, 64], [1, 0, 1, 64]], 2 * (1 + 2 * 14.5) - 40),
    ],
)
def test_worked_prices(terms: tuple[int, int], windows: list[list[int]], value: float) -> None:
    named = dict(zip(("window_ps", "short_ps"), terms, strict=True))
    certificate = {"kind": "congestion", "grain_ps": 1, **named, "windows": windows}
    assert proved(PAIR, certificate) == int(value) <= 2 * 60 == optimum(PAIR, Objective.MEAN_E2E)


def test_a_prompt_counts_on_those_alive_from_its_arrival_on() -> None:
    """Batches of 80, runs of 40, β = 15, ε = 1/2; of 320 ps the second request is there from 80 on, both to the end.

    The first one's prompt is worth 15/2, the second one's 15, as its batch has two alive. A decode alone is worth
    40 + 20; but beside 7 tokens of that prompt (120 - 7·15) + 40, which is 55. So 7.5 + 2·55 and 15 + 2·55.
    """
    cost = CostModel(80, 0, decode_req=40, prefill_req=40)
    pair = replace(PAIR, cost=cost, requests=(Request(1, 3), Request(1, 3, arrival_ps=80)))
    windows = [[1, 0, 15, 32], [1, 0, 15, 32]]
    certificate = {"kind": "congestion", "window_ps": 320, "grain_ps": 1, "short_ps": 0, "windows": windows}
    assert proved(pair, certificate) == int(117.5 + 125)
    # If it arrives 80 ps earlier nothing is left of that: both are alive at all times.
    together = replace(pair, requests=(Request(1, 3),) * 2)
    assert proved(together, certificate) == 2 * 125


@pytest.mark.slow
@settings(QUICK, max_examples=108)
@given(instances(online=True), st.data())
def test_whatever_prices_are_stated_no_more_than_the_optimum_is_proved(instance: Instance, data: st.DataObject) -> None:
    single, most = instance.cost.linear_ps(1), instance.limits.batch_tokens
    assume(single > 0)
    price = st.one_of(st.just(0), st.integers(0, 64), st.integers(0, 1000))
    charge = instance.cost.prefill_req
    slope = st.integers(0, min((instance.cost.linear_ps(x) + charge) // x for x in range(1, most + 1)))
    run = st.tuples(st.integers(1, 4), price, slope, st.integers(0, 64)).map(list)
    certificate = {
        "kind": "congestion",
        "window_ps": data.draw(st.integers(1, 6 * single)),
        "short_ps": data.draw(st.integers(0, 4 * single)),
        "grain_ps": data.draw(st.integers(1, 2 * single)),
        "windows": [*data.draw(st.lists(run, max_size=8)), [1, 0, 0, data.draw(st.integers(0, 64))]],
    }
    best = optimum(instance, Objective.MEAN_E2E)
    assert best is not None
    assert proved(instance, certificate) <= best


def busy(count: int) -> Instance:
    """Return requests that come ten to a lifetime, in batches of 10 µs and 1 µs for every run; prompts take 40 µs."""
    requests = tuple(Request(200 + 70 * i % 400, 30 + 11 * i % 31, arrival_ps=100_000_000 * i) for i in range(count))
    cost = CostModel(10_000_000, 20_000, decode_kv=1_000, decode_req=1_000_000, prefill_sq=50)
    return Instance("busy", Limits(20_000, 512, 512), Rules(), cost, requests)


@cache
def crowded_bound() -> Bound:
    found = congestion_bound(busy(100), Objective.MEAN_E2E)
    assert found is not None
    return found


@pytest.mark.slow
def test_more_is_proved_than_by_bounds_that_see_no_queue() -> None:
    instance = busy(100)
    machine = machine_bound(instance, Objective.MEAN_E2E)
    assert machine is not None
    others = max(machine.value, alone_value(instance))
    reached = simulate(instance, "sarathi", Objective.MEAN_E2E).value
    assert reached is not None
    assert 1.5 * others < crowded_bound().value < reached
    assert proved(instance, crowded_bound().certificate) == crowded_bound().value


def test_where_requests_queue_more_is_proved_than_by_either_alone() -> None:
    """At 1.05 times what the machine can sustain."""
    calm = busy(100)
    span = max(request.arrival_ps for request in calm.requests)
    share = Fraction(busy_ps(calm) * 20, span * 21)
    instance = replace(calm, requests=tuple(replace(r, arrival_ps=int(r.arrival_ps * share)) for r in calm.requests))
    found = congestion_bound(instance, Objective.MEAN_E2E)
    machine = machine_bound(instance, Objective.MEAN_E2E)
    reached = simulate(instance, "sarathi", Objective.MEAN_E2E).value
    assert found is not None
    assert machine is not None
    assert reached is not None
    assert max(machine.value, alone_value(instance)) < found.value < reached
    assert proved(instance, found.certificate) == found.value


def test_whom_a_loss_of_machine_time_delays() -> None:
    """The first job runs until 4, the second until 7, then the first until 13; a third one from 20 to 25.

    Time lost before 13 delays the first, from 4 to 7 the second too, which waits for nothing that was before.
    """
    waiting = delayed([(0, 10), (4, 3), (20, 5)], 1, 26)
    assert waiting.tolist() == [1] * 4 + [2] * 3 + [1] * 6 + [0] * 7 + [1] * 5 + [0]


def test_a_slower_clock_scales_it() -> None:
    instance, cost = busy(100), busy(100).cost
    slower = replace(
        instance,
        cost=CostModel(
            3 * cost.base, 3 * cost.token, decode_kv=3_000, decode_req=3_000_000, prefill_sq=3 * cost.prefill_sq
        ),
        requests=tuple(replace(request, arrival_ps=3 * request.arrival_ps) for request in instance.requests),
    )
    scaled = congestion_bound(slower, Objective.MEAN_E2E)
    assert scaled is not None
    assert scaled.value == pytest.approx(3 * crowded_bound().value, rel=1e-3)
    # The same prices prove three times as much, but for what is rounded down on the way.
    same = crowded_bound().certificate
    times = {name: 3 * same[name] for name in ("window_ps", "grain_ps", "short_ps")}
    windows = [[count, price, 3 * slope, kept] for count, price, slope, kept in same["windows"]]
    value = proved(slower, same | times | {"windows": windows})
    assert value == pytest.approx(3 * crowded_bound().value, rel=1e-9)


def test_requests_of_one_token_have_prompts_alone() -> None:
    """Each takes a batch of 10 µs with its tokens' 20 ns and their squares' 50 ps at least; in all they are proved."""
    instance = busy(100)
    ones = replace(instance, requests=tuple(replace(r, input=r.input % 500 + 1, output=1) for r in instance.requests))
    found = congestion_bound(ones, Objective.MEAN_E2E)
    assert found is not None
    assert proved(ones, found.certificate) == found.value
    least = sum(10_000_000 + 20_000 * r.input + 50 * r.input**2 for r in ones.requests)
    assert 0 < found.value <= least == alone_value(ones)


@pytest.mark.parametrize("decode_req", [300_000, 3_000_000, 30_000_000])
@pytest.mark.parametrize("prompt", [1, 40])
def test_whatever_is_chosen_can_be_proved(decode_req: int, prompt: int) -> None:
    """Short prompts make steps of prefills dear, and long decodes prices high; the last window is always empty."""
    cost = replace(busy(100).cost, decode_req=decode_req)
    requests = tuple(Request(prompt + i % 7, 3 + 5 * i % 20, arrival_ps=300_000_000 * i) for i in range(100))
    instance = replace(busy(100), cost=cost, requests=requests)
    found = congestion_bound(instance, Objective.MEAN_E2E)
    assert found is not None
    assert proved(instance, found.certificate) == found.value


def test_it_says_nothing_of_few_requests_of_long_queues_or_of_other_objectives() -> None:
    assert congestion_bound(busy(20), Objective.MEAN_E2E) is None
    assert congestion_bound(busy(100), Objective.MAKESPAN) is None
    # One after another, 300 that arrive at once are busy for 300 times as long as one takes alone, on the mean.
    together = replace(busy(300), requests=tuple(replace(r, arrival_ps=0) for r in busy(300).requests))
    by_one = replace(together, limits=replace(together.limits, batch_requests=1))
    assert congestion_bound(by_one, Objective.MEAN_E2E) is None


def test_where_nothing_takes_time_it_says_nothing() -> None:
    free = Instance("free", Limits(1000, 1000, 1000), Rules(), CostModel(0, 0), (Request(4, 3),) * 64)
    assert congestion_bound(free, Objective.MEAN_E2E) is None


def test_of_requests_at_once_it_says_more_than_their_work() -> None:
    together = replace(busy(100), requests=tuple(replace(r, arrival_ps=0) for r in busy(100).requests))
    found, work = congestion_bound(together, Objective.MEAN_E2E), machine_bound(together, Objective.MEAN_E2E)
    reached = simulate(together, "sarathi", Objective.MEAN_E2E).value
    assert found is not None
    assert work is not None
    assert reached is not None
    assert work.value < found.value <= reached
    assert proved(together, found.certificate) == found.value


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"window_ps": 0}, "window_ps is 0, expected an integer from 1"),
        ({"grain_ps": 0}, "grain_ps is 0, expected an integer from 1"),
        ({"grain_ps": 1}, "grain_ps is 1, of which a request may keep 8388608 or more"),
        ({"short_ps": -1}, "short_ps is -1"),
        ({"windows": [[1, 0, 0]]}, "windows is"),
        ({"windows": [[1, 0, 0, 65]]}, "windows is"),
        ({"windows": []}, "windows is"),
        ({"windows": [[1, 64, 0, 0]]}, "windows ends with"),
        ({"windows": [[2, 0, 0, 0]]}, "windows ends with"),
        ({"windows": [[10**7, 1, 0, 0], [1, 0, 0, 0]]}, "windows are more than"),
        ({"windows": [[1, 2**49, 0, 0], [1, 0, 0, 0]]}, "too large"),
        # 512 tokens take 10 µs and 20 ns each, so that a token takes 10/512 µs and 20 ns at least.
        ({"windows": [[1, 64, 39_532, 0], [1, 0, 0, 0]]}, "slope 39532, more than the 39531 ps"),
    ],
)
def test_certificates_are_read_strictly(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnprovedError, match=reason):
        proved(busy(100), crowded_bound().certificate | change)


@pytest.mark.parametrize("decode_kv", [10**9, 10**12, 10**15])
def test_prices_stay_in_64_bits_where_decodes_cost_far_more_than_a_base(decode_kv: int) -> None:
    """The first guess of a price is n² own / base: times a decode's attention it wrapped."""
    costly = replace(busy(100), cost=CostModel(base=40, token=0, decode_kv=decode_kv))
    found = congestion_bound(costly, Objective.MEAN_E2E)
    if found is not None:
        served = simulate(costly, "sarathi", Objective.MEAN_E2E).value
        assert served is not None
        assert proved_bound(costly, Restrictions(), Objective.MEAN_E2E, found.certificate) == found.value <= served


def test_batches_of_many_seconds_are_priced_within_what_the_checker_takes() -> None:
    # δ is at first about a batch, of which the checker takes at most 10 s: here one takes 15.
    cost = CostModel(base=15 * 10**12, token=0, decode_req=3 * 10**12, prefill_kv=7 * 10**12)
    requests = tuple(Request(11, 7, 23 * 10**12 * r) for r in range(84))
    slow = Instance("slow", Limits(3000, 64, 12, kv_block=3), Rules(chunked_prefill=False), cost, requests)
    found = congestion_bound(slow, Objective.MEAN_E2E)
    assert found is not None
    assert found.certificate["short_ps"] <= 10**13
    assert proved(slow, found.certificate) == found.value


def test_batches_of_few_ps_are_priced() -> None:
    """δ, some tokens' time, is rounded to 0 where a token takes 1 ps, and that has no logarithm."""
    cost, limits = CostModel(base=0, token=1, prefill_req=7), Limits(42, 30, 30)
    requests = tuple(Request(12, 7, 20 * r) for r in range(64))
    short = Instance("short", limits, Rules(hybrid=False, chunked_prefill=False), cost, requests)
    found = congestion_bound(short, Objective.MEAN_E2E)
    assert found is not None
    assert proved(short, found.certificate) == found.value
