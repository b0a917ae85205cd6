"""What happens over time, against timelines worked by hand and a replica that is looked at in every picosecond."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import TEN, assert_compiled_the_same, instances, outcome, problem, served
from test_check import schedules
from test_simulate import scaled
from test_swap import ASSIGNMENTS
from test_swap import PAIR as SWAPPED

from optsched.check import check_schedule
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.following import unrolled
from optsched.model.instance import Instance, Request
from optsched.model.metrics import evaluate, tally_of
from optsched.model.schedule import Batch, Schedule, timed
from optsched.model.timeline import timeline
from optsched.policies.infermax import SARATHI, VLLM, VLLM_EF
from optsched.simulator.engine import run_policy

OVER_TIME = ("queue_length_over_time", "kv_utilisation_over_time", "token_utilisation_over_time")


# Worked by hand --------------------------------------------------------------------------------------------
# A `Moment` is a tuple (time_ps, waiting, resident, running, kv_tokens, tokens).

# Blocks of 4. Request 0 fills 5 tokens, which takes two blocks, and keeps them while request 1 runs and while none
# does; request 1 arrives while the first batch runs; request 2 after everything else. Every batch takes 10 ps.
KEPT = problem(Request(5, 2), Request(3, 1, 4), Request(2, 1, 100), kv=16, budget=8, block=4)
PLAYED = Schedule(
    (
        Batch(0, 10, ((0, 5),)),
        Batch(12, 22, ((1, 3),)),
        Batch(30, 40, ((0, 1),)),
        Batch(100, 110, ((2, 2),)),
    )
)


def test_worked_timeline() -> None:
    assert timeline(KEPT, PLAYED) == [
        (0, 0, 1, 1, 8, 5),
        (4, 1, 1, 1, 8, 5),
        (10, 1, 1, 0, 8, 0),
        (12, 0, 2, 1, 12, 3),
        (22, 0, 1, 0, 8, 0),
        (30, 0, 1, 1, 8, 1),
        (40, 0, 0, 0, 0, 0),
        (100, 0, 1, 1, 4, 2),
        (110, 0, 0, 0, 0, 0),
    ]


def test_worked_distributions() -> None:
    metrics = evaluate(KEPT, PLAYED)
    assert check_schedule(KEPT, PLAYED) == ([], metrics)
    # Request 0 has its tokens at 10 and 40; the others have one each.
    assert metrics["tbt_ps"] == {"mean": 30.0, "p50": 30, "p90": 30, "p95": 30, "p99": 30, "max": 30}
    # One waits from 4 to 12, 8 of 110 ps or 7.3 %.
    assert metrics["queue_length_over_time"] == {"mean": 8 / 110, "p50": 0, "p90": 0, "p95": 1, "p99": 1, "max": 1}
    # 0 tokens for 60 ps, 54.5 %; 4 for 10, 63.6 % together; 8 for 12 + 8 + 10, 90.9 %; 12 for 10. Of M = 16.
    assert metrics["kv_utilisation_over_time"] == {
        "mean": (4 * 10 + 8 * 30 + 12 * 10) / (16 * 110), "p50": 0.0, "p90": 0.5, "p95": 0.75, "p99": 0.75, "max": 0.75
    }  # fmt: skip
    # While a batch runs: 8, 12, 8 and 4 tokens for 10 ps each.
    assert metrics["kv_utilisation"] == 32 / (16 * 4)
    # 0 for 70 ps, 63.6 %; 1, 2, 3 and 5 for 10 each: 72.7, 81.8, 90.9 and 100 %. Of C = 8.
    assert metrics["token_utilisation_over_time"] == {
        "mean": 11 / (8 * 11), "p50": 0.0, "p90": 0.375, "p95": 0.625, "p99": 0.625, "max": 0.625
    }  # fmt: skip
    assert metrics["token_utilisation"] == 11 / (8 * 4)


def test_an_evicted_request_waits_until_the_refill_begins() -> None:
    """A refill in chunks: with its first token cached a request waits no more."""
    instance = problem(Request(2, 2), Request(1, 1), budget=10)
    schedule = Schedule(
        (
            Batch(0, 10, ((0, 2),)),
            Batch(10, 20, ((1, 1),), (0,)),
            Batch(20, 30, ((0, 1),)),
            Batch(30, 40, ((0, 2),)),
        )
    )
    assert check_schedule(instance, schedule)[0] == []
    assert timeline(instance, schedule) == [
        (0, 1, 1, 1, 2, 2),
        (10, 1, 1, 1, 1, 1),
        (20, 0, 1, 1, 1, 1),
        (30, 0, 1, 1, 3, 2),
        (40, 0, 0, 0, 0, 0),
    ]
    assert evaluate(instance, schedule)["tbt_ps"]["max"] == 30


def test_a_request_on_the_host_waits_until_it_is_swapped_in() -> None:
    # The schedule of test_swap.py; its batches take 150, 125, 135, 128 and 114 ps.
    schedule = timed(SWAPPED, ASSIGNMENTS)
    assert timeline(SWAPPED, schedule) == [
        (0, 0, 2, 2, 5, 5),
        (150, 0, 2, 2, 7, 2),
        (275, 1, 1, 1, 5, 1),
        (410, 0, 1, 1, 4, 1),
        (538, 0, 1, 1, 5, 1),
        (652, 0, 0, 0, 0, 0),
    ]
    # Request 0 has its tokens at 150, 275, 538 and 652, request 1 at 150, 275 and 410.
    assert evaluate(SWAPPED, schedule)["tbt_ps"] == {
        "mean": (502 + 260) / 5, "p50": 125, "p90": 263, "p95": 263, "p99": 263, "max": 263
    }  # fmt: skip


def test_batches_that_take_no_time_leave_no_trace_but_gaps() -> None:
    # Only what decodes read costs anything: both fills take no time, the decode 3 ps.
    instance = problem(Request(3, 2), Request(4, 1), cost=CostModel(base=0, token=0, decode_kv=1))
    schedule = Schedule((Batch(0, 0, ((1, 4),)), Batch(0, 0, ((0, 3),)), Batch(0, 3, ((0, 1),))))
    assert timeline(instance, schedule) == [(0, 0, 1, 1, 4, 1), (3, 0, 0, 0, 0, 0)]
    metrics = evaluate(instance, schedule)
    assert check_schedule(instance, schedule) == ([], metrics)
    assert metrics["kv_utilisation_over_time"]["max"] == 4 / 1000
    assert metrics["tbt_ps"]["max"] == 3


def test_idle_time_before_a_batch_without_duration_counts() -> None:
    free = CostModel(base=0, token=0, decode_kv=1)
    instance = problem(Request(2, 2), Request(1, 1, 10), cost=free)
    schedule = Schedule((Batch(0, 0, ((0, 2),)), Batch(0, 2, ((0, 1),)), Batch(10, 10, ((1, 1),))))
    assert timeline(instance, schedule) == [
        (0, 0, 1, 1, 3, 1),
        (2, 0, 0, 0, 0, 0),
        (10, 0, 0, 0, 0, 0),
    ]
    metrics = evaluate(instance, schedule)
    assert check_schedule(instance, schedule) == ([], metrics)
    assert metrics["kv_utilisation_over_time"]["mean"] == 3 * 2 / (1000 * 10)


@pytest.mark.slow
def test_a_long_pause_is_what_the_tail_sees() -> None:
    """One of 101 batches takes 91 ps instead of 10, as a prompt of 81 tokens joins the decode."""
    # x tokens take max(10, 9 + x).
    cost = CostModel(base=10, token=0, pieces=((9, 1),))
    instance = problem(Request(1, 102), Request(81, 1, 500), cost=cost)
    metrics = evaluate(instance, served(instance, "sarathi"))
    assert metrics["tbt_ps"] == {"mean": (100 * 10 + 91) / 101, "p50": 10, "p90": 10, "p95": 10, "p99": 10, "max": 91}


# Every picosecond ------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """What is seen in one picosecond."""

    waiting: int
    resident: int
    running: int
    kv_tokens: int
    tokens: int


def watched(instance: Instance, schedule: Schedule) -> tuple[list[Look], list[int]]:
    """Return what is seen in every picosecond, and all times between two tokens of a request, by definition alone."""
    requests, block = instance.requests, instance.limits.kv_block
    cached, needed = [0] * len(requests), [request.input for request in requests]
    tokens: list[list[int]] = [[] for _ in requests]
    running: dict[int, tuple[int, int]] = {}
    host = [0] * len(requests)
    held: list[tuple[int, list[int]]] = [(0, list(cached))]
    for batch in schedule.batches:
        for index in batch.evict:
            cached[index], needed[index] = 0, requests[index].input + len(tokens[index])
        for index in batch.swap_out:
            host[index], cached[index] = cached[index], 0
        for index in batch.swap_in:
            cached[index], host[index] = host[index], 0
        for index, count in batch.run:
            cached[index] += count
            if cached[index] == needed[index]:
                tokens[index].append(batch.end_ps)
                needed[index] += 1
        held.append((batch.start_ps, list(cached)))
        for time in range(batch.start_ps, batch.end_ps):
            running[time] = len(batch.run), sum(count for _, count in batch.run)
        cached = [0 if len(tokens[i]) == requests[i].output else cached[i] for i in range(len(requests))]
        held.append((batch.end_ps, list(cached)))
    looks = []
    for time in range(min(request.arrival_ps for request in requests), schedule.batches[-1].end_ps):
        (kv,) = [state for (since, state), (until, _) in pairwise(held) if since <= time < until]
        unfinished = [i for i, request in enumerate(requests) if request.arrival_ps <= time < tokens[i][-1]]
        waiting = sum(kv[i] == 0 for i in unfinished)
        occupied = sum(-(-size // block) * block for size in kv)
        runs, ran = running.get(time, (0, 0))
        looks.append(Look(waiting, sum(size > 0 for size in kv), runs, occupied, ran))
    return looks, [later - time for times in tokens for time, later in pairwise(times)]


def distribution(values: list[int], unit: int | None = None) -> dict[str, Any] | None:
    """Return mean, percentiles and maximum of values, each of which counts once."""
    if not values:
        return None
    ordered, scale = sorted(values), unit or 1
    found: dict[str, Any] = {"mean": float(Fraction(sum(values), len(values) * scale))}
    for q in (50, 90, 95, 99):
        found[f"p{q}"] = ordered[-(-q * len(values) // 100) - 1]
    found["max"] = ordered[-1]
    return (
        found if unit is None else {name: value / scale if name != "mean" else value for name, value in found.items()}
    )


@st.composite
def lazy_schedules(draw: st.DrawFn) -> tuple[Instance, Schedule]:
    """Draw a legal schedule that waits now and then for no reason."""
    instance, schedule = draw(schedules())
    late, batches = 0, []
    for batch in schedule.batches:
        late += draw(st.sampled_from([0, 0, 0, 1, 7]))
        batches.append(replace(batch, start_ps=batch.start_ps + late, end_ps=batch.end_ps + late))
    return instance, Schedule(tuple(batches))


@pytest.mark.slow
@settings(max_examples=101, deadline=None)
@given(lazy_schedules())
def test_every_picosecond(case: tuple[Instance, Schedule]) -> None:
    assert_as_watched(*case)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(instances(), st.sampled_from(["vllm_swap", "rr_sjf", "sarathi", "larry"]))
def test_every_picosecond_of_policies(instance: Instance, policy: str) -> None:
    """Some of them swap, and what they repeat is one batch."""
    schedule = outcome(instance, policy, jumps=True)
    if isinstance(schedule, Schedule):
        assert_as_watched(instance, schedule)


def assert_as_watched(instance: Instance, schedule: Schedule) -> None:
    looks, gaps = watched(instance, unrolled(instance, schedule))
    moments = timeline(instance, schedule)
    assert all(one.time_ps < other.time_ps for one, other in pairwise(moments))
    assert [look for one, other in pairwise(moments) for look in [one[1:]] * (other.time_ps - one.time_ps)] == looks
    metrics = evaluate(instance, schedule)
    assert check_schedule(instance, schedule) == ([], metrics)
    limits = instance.limits
    assert metrics["tbt_ps"] == distribution(gaps)
    assert metrics["queue_length_over_time"] == distribution([look.waiting for look in looks])
    assert metrics["kv_utilisation_over_time"] == distribution([look.kv_tokens for look in looks], limits.kv_tokens)
    assert metrics["token_utilisation_over_time"] == distribution([look.tokens for look in looks], limits.batch_tokens)


# Relations -------------------------------------------------------------------------------------------------


def conversations(seed: int, count: int = 300, load: int = 40_000) -> Instance:
    """Return requests of many lengths, so that hardly two batches take the same time; some evicted."""
    rng = Random(seed)
    cost = CostModel(base=1000, token=13, pieces=((0, 29),), decode_kv=1, decode_req=1009, prefill_sq=1, prefill_req=7)
    requests = [
        Request(rng.randrange(1, 60), rng.randrange(1, 80), arrival_ps=rng.randrange(count * load))
        for _ in range(count)
    ]
    return problem(*requests, kv=600, budget=160, block=rng.choice([1, 8]), cost=cost)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", [VLLM, SARATHI, VLLM_EF], ids=["vllm", "sarathi", "vllm_ef"])
def test_compiled_repeated_and_one_by_one(policy: Any, seed: int) -> None:
    instance = conversations(seed, load=30_000 * (seed + 1))
    jumped = run_policy(instance, policy)
    plain = unrolled(instance, jumped)
    assert len(plain.batches) > len(jumped.batches)
    assert_compiled_the_same(instance, policy, jumped)
    assert evaluate(instance, jumped) == evaluate(instance, plain)
    assert timeline(instance, jumped) == timeline(instance, plain)
    assert check_schedule(instance, jumped)[1] == check_schedule(instance, plain)[1] == evaluate(instance, jumped)
    # The tables of the compiled run begin with room for 512 different values.
    assert len({batch.end_ps - batch.start_ps for batch in plain.batches}) > 512


@pytest.mark.parametrize("seed", range(2))
def test_sums_known_otherwise(seed: int) -> None:
    """Gaps add up to the time from first to last token; queue and residents over time to how long requests stay."""
    instance = conversations(seed)
    schedule = run_policy(instance, VLLM)
    tally = tally_of(instance, schedule)
    assert tally.evictions > 0
    assert tally.gaps is not None
    assert tally.gaps.weight == sum(request.output - 1 for request in instance.requests)
    assert tally.gaps.total == sum(tally.last) - sum(tally.first)
    moments = timeline(instance, schedule)
    span = moments[-1].time_ps - moments[0].time_ps
    for spread in (tally.waiting, tally.kv_tokens, tally.batch_tokens):
        assert spread is not None
        assert spread.weight == span
    # Little's law: a request that is there waits or holds KV.
    there = sum((one.waiting + one.resident) * (other.time_ps - one.time_ps) for one, other in pairwise(moments))
    assert there == sum(last - request.arrival_ps for last, request in zip(tally.last, instance.requests, strict=True))
    # Between batches this policy keeps nothing.
    assert tally.kv_tokens is not None
    assert tally.kv_tokens.total == tally.kv_time


def test_scale_of_time() -> None:
    """Times are longer by a factor, and what is there over time is the same."""
    instance = conversations(5, count=60)
    slow = scaled(instance, 7)
    metrics, slower = (evaluate(each, run_policy(each, VLLM)) for each in (instance, slow))
    assert {name: slower[name] for name in OVER_TIME} == {name: metrics[name] for name in OVER_TIME}
    assert all(slower["tbt_ps"][name] == 7 * value for name, value in metrics["tbt_ps"].items() if name != "mean")
    assert slower["tbt_ps"]["mean"] == pytest.approx(7 * metrics["tbt_ps"]["mean"], rel=1e-15)


def test_a_shift_of_time_changes_nothing() -> None:
    instance = replace(conversations(6, count=60), cost=TEN)
    later = tuple(replace(request, arrival_ps=request.arrival_ps + 10**15) for request in instance.requests)
    shifted = replace(instance, requests=later)
    assert evaluate(shifted, run_policy(shifted, VLLM)) == evaluate(instance, run_policy(instance, VLLM))
    assert [moment.time_ps - 10**15 for moment in timeline(shifted, run_policy(shifted, VLLM))] == [
        moment.time_ps for moment in timeline(instance, run_policy(instance, VLLM))
    ]
