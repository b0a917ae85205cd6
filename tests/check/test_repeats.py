"""Batches that are repeated, up to a billion times: the same as one by one, and as sums known otherwise."""

from __future__ import annotations

import json
from collections import defaultdict
from math import isqrt
from pathlib import Path
from random import Random
from typing import Any

import pytest
from commands import optsched

from optsched.check import check_schedule
from optsched.model.cost import CostModel
from optsched.model.documents import instance_document
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import evaluate
from optsched.model.schedule import Batch, Schedule


def random_instance(rng: Random, longest: int) -> Instance:
    requests = tuple(
        Request(rng.randint(1, 9), rng.randint(1, longest), rng.choice([0, 0, 5, 300]))
        for _ in range(rng.randint(1, 4))
    )
    cost = CostModel(
        base=rng.choice([0, 5, 100]),
        token=rng.choice([0, 3]),
        pieces=((rng.randint(0, 50), rng.randint(0, 9)),) if rng.random() < 0.5 else (),
        decode_kv=rng.choice([0, 1, 7]),
        decode_req=rng.choice([0, 2]),
        prefill_sq=rng.choice([0, 1]),
    )
    kv_tokens = rng.choice([10**6, 10**6, 10**6, rng.randint(10, 120)])
    limits = Limits(kv_tokens, 100, 100, rng.choice([None, None, None, 2]), rng.choice([1, 1, 2, 3, 7, 16, 50]))
    return Instance("random", limits, Rules(), cost, requests)


def random_schedule(rng: Random, instance: Instance, wrong: float) -> Schedule:
    """Fill and repeat at random, with pauses; a batch ends late or starts early with probability ``wrong``."""
    requests, cost = instance.requests, instance.cost
    left, cached = [request.output for request in requests], dict[int, int]()
    waiting = rng.sample(range(len(requests)), len(requests))
    run: tuple[tuple[int, int], ...]
    batches, now = [], 0
    while any(left):
        now += rng.choice([0, 0, 0, 11])
        active = [index for index in cached if left[index]]
        start = now
        if waiting and (not active or rng.random() < 0.5):
            index = waiting.pop()
            prompt = requests[index].input
            start = now = now if rng.random() < wrong else max(now, requests[index].arrival_ps)
            now += cost.batch_ps(prompt, 0, 0, ((prompt, 0),))
            run, times = ((index, prompt),), 1
            cached[index] = prompt
            left[index] -= 1
        else:
            chosen = rng.sample(active, rng.randint(1, len(active)))
            times = rng.randint(1, min(left[index] for index in chosen))
            for number in range(times):
                read = sum(cached[index] + number for index in chosen)
                now += cost.batch_ps(len(chosen), len(chosen), read, ())
            for index in chosen:
                cached[index] += times
                left[index] -= times
            run = tuple((index, 1) for index in chosen)
        now += rng.random() < wrong
        batches.append(Batch(start, now, run, repeat=times))
    return Schedule(tuple(batches))


def one_by_one(instance: Instance, schedule: Schedule) -> Schedule:
    """Write repeats out; the last of them ends when the schedule says, be it wrong or not."""
    cached = defaultdict[int, int](int)
    batches = []
    for batch in schedule.batches:
        clock, runs = batch.start_ps, len(batch.run)
        for number in range(batch.repeat):
            read = sum(cached[index] for index, _ in batch.run)
            last = number == batch.repeat - 1
            end = batch.end_ps if last else clock + instance.cost.batch_ps(runs, runs, read, ())
            batches.append(replace(batch, start_ps=clock, end_ps=end, repeat=1))
            clock = end
            for index, count in batch.run:
                cached[index] += count
    return Schedule(tuple(batches))


@pytest.mark.parametrize("seed", range(300))
def test_the_checker_finds_the_same_one_by_one(seed: int) -> None:
    rng = Random(seed)
    instance = random_instance(rng, 40)
    schedule = random_schedule(rng, instance, wrong=0)
    violations, metrics = check_schedule(instance, schedule)
    apart, same = check_schedule(instance, one_by_one(instance, schedule))
    assert metrics == same
    # What a limit forbids in one of the repeats, it forbids in the last, too.
    assert bool(violations) == bool(apart)
    assert set(violations) <= set(apart)


@pytest.mark.parametrize("seed", range(100))
def test_what_is_wrong_in_repeats_is_wrong_one_by_one(seed: int) -> None:
    rng = Random(seed)
    instance = random_instance(rng, 40)
    schedule = random_schedule(rng, instance, wrong=0.2)
    found = check_schedule(instance, schedule)[0]
    apart = check_schedule(instance, one_by_one(instance, schedule))[0]
    assert bool(found) == bool(apart)
    # Of repeats before an arrival one is named, as starting with the first of them.
    assert {text for text in found if "before it arrives" not in text} <= set(apart)


def test_a_schedule_with_violations_and_one_without_are_among_them() -> None:
    found = []
    for seed in range(300):
        rng = Random(seed)
        instance = random_instance(rng, 40)
        found.append(check_schedule(instance, random_schedule(rng, instance, wrong=0))[0])
    assert 100 < found.count([]) < 290
    assert any("KV tokens are occupied" in text for texts in found for text in texts)
    assert any("runs, at most 2 are allowed" in text for texts in found for text in texts)


@pytest.mark.parametrize("seed", range(12))
def test_metrics_of_long_repeats_are_those_one_by_one(seed: int) -> None:
    rng = Random(seed)
    instance = random_instance(rng, 20_000)
    instance = replace(instance, limits=replace(instance.limits, kv_tokens=10**6, batch_requests=None))
    schedule = random_schedule(rng, instance, wrong=0)
    assert max(batch.repeat for batch in schedule.batches) > 1000  # else nothing is new
    apart = evaluate(instance, one_by_one(instance, schedule))
    assert evaluate(instance, schedule) == apart
    assert check_schedule(instance, schedule) == ([], apart)


# A billion tokens ------------------------------------------------------------------------------------------

BILLION = 10**9


def alone(output: int, block: int = 1) -> Instance:
    """One request, whose decode step on m tokens takes m ps, and its fill nothing."""
    limits = Limits(BILLION, 1, 1, kv_block=block)
    cost = CostModel(base=0, token=0, decode_kv=1)
    return Instance("alone", limits, Rules(), cost, (Request(1, output),))


def least(reached: Any, needed: int) -> int:
    """The least k ≥ 1 for which an increasing function reaches what is needed, near the root of twice that."""
    k = max(1, isqrt(2 * needed) - 2)
    assert k == 1 or reached(k) < needed
    while reached(k) < needed:
        k += 1
    return k


def test_a_billion_repeats_are_sums_that_are_known() -> None:
    """Decode step j = 1, …, n takes j ps, in which j + 1 tokens are held: n (n + 1) / 2 ps in all."""
    n = BILLION - 1
    total = n * (n + 1) // 2
    schedule = Schedule((Batch(0, 0, ((0, 1),)), Batch(0, total, ((0, 1),), repeat=n)))
    violations, metrics = check_schedule(alone(BILLION), schedule)
    assert violations == []
    assert metrics is not None
    assert metrics["objectives"]["makespan"] == total
    assert metrics["batches"] == BILLION
    assert metrics["peak_kv_tokens"] == n + 1
    gaps = {f"p{q}": -(-q * n // 100) for q in (50, 90, 95, 99)}
    assert metrics["tbt_ps"] == {"mean": (n + 1) / 2, **gaps, "max": n}
    assert metrics["objectives"]["p99_tbt"] == gaps["p99"]
    assert metrics["objectives"]["mean_tpot"] == BILLION // 2
    # Σ j (j + 1) = n (n + 1) (n + 2) / 3, by the time n (n + 1) / 2: two thirds of n + 2.
    assert metrics["kv_utilisation"] == 2 * (n + 2) / (3 * BILLION)
    shares = {
        f"p{q}": (least(lambda k: k * (k + 1) // 2, -(-q * total // 100)) + 1) / BILLION for q in (50, 90, 95, 99)
    }
    expected = {"mean": 2 * (n + 2) / (3 * BILLION), **shares, "max": (n + 1) / BILLION}
    assert metrics["kv_utilisation_over_time"] == expected
    assert evaluate(alone(BILLION), schedule) == metrics


@pytest.mark.parametrize(("change", "complaint"), [(1, "so it must end at"), (-1, "so it must end at")])
def test_a_billion_repeats_that_end_at_the_wrong_time(change: int, complaint: str) -> None:
    n = BILLION - 1
    schedule = Schedule((Batch(0, 0, ((0, 1),)), Batch(0, n * (n + 1) // 2 + change, ((0, 1),), repeat=n)))
    (violation,) = check_schedule(alone(BILLION), schedule)[0]
    assert violation.startswith(f"batch {n}: ends at ")
    assert complaint in violation


def test_memory_that_lacks_one_token_in_the_last_of_a_billion_repeats() -> None:
    instance = alone(BILLION)
    instance = replace(instance, limits=replace(instance.limits, kv_tokens=BILLION - 1))
    n = BILLION - 1
    schedule = Schedule((Batch(0, 0, ((0, 1),)), Batch(0, n * (n + 1) // 2, ((0, 1),), repeat=n)))
    (violation,) = check_schedule(instance, schedule)[0]
    assert violation.startswith(f"batch {n}: {BILLION} KV tokens are occupied, at most {BILLION - 1} are allowed")


@pytest.mark.parametrize("block", [1, 16])
def test_a_policy_serves_a_billion_tokens(block: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "alone.json", tmp_path / "result.json"
    file.write_text(json.dumps(instance_document(alone(BILLION, block))))
    ended = optsched(capsys, "simulate", str(file), "--policy", "vllm", "--workers", "1", "--out", str(out))
    assert ended.code == 0, ended.err
    assert json.loads(out.read_text())["value"] == (BILLION - 1) * BILLION // 2
    assert optsched(capsys, "check", str(out)).code == 0
