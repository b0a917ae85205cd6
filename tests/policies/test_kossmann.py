"""The policies of Kossmann et al. on one engine, against decisions worked by hand from the paper's text."""

from __future__ import annotations

from dataclasses import replace as tuned
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from playing import TEN, decisions, problem, served, whole

from optsched import Instance, Limits, Request, Rules, simulate
from optsched.calibrate.library import cost_model
from optsched.catalogue import POLICY_GROUP, lookup
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.metrics import tally_of
from optsched.policies.fcfs import FCFS, MaxAllocation
from optsched.policies.grouped import Margins
from optsched.policies.larry import Larry, MemoryUnit
from optsched.policies.shortest import ShortestFirst, Trail
from optsched.traces.statistics import shipped_statistics, spread
from papers.kossmann import gain, workload
from papers.serving import metrics_of

SECOND = 10**12
SLOW = replace(TEN, base=10 * SECOND)
"""Every batch takes 10 s."""
FOUR = tuned(FCFS, batch_tokens=4)
"""The engine with batches of at most 4 tokens."""

queue = (Request(5, 1, SECOND), Request(2, 1, 5 * SECOND))
"""After a batch of 10 s they have waited 9 s and 5 s."""


def many(cost: CostModel) -> Instance:
    """Return 60 requests that arrive within 0.6 s on memory for a few of them."""
    rng = np.random.default_rng(2)
    requests = tuple(
        Request(int(rng.integers(1, 90)), int(rng.integers(1, 30)), arrival_ps=int(number) * 10**10)
        for number in range(60)
    )
    return Instance("queue", Limits(200, 128, 128), Rules(), cost, requests)


def test_the_engine_fills_batches_with_chunks_beside_decodes() -> None:
    instance = problem(Request(2, 3), Request(7, 1))
    assert decisions(instance, FOUR) == whole([[(0, 2), (1, 2)], [(0, 1), (1, 3)], [(0, 1), (1, 2)]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fcfs", "no_preempt", "larry", "ltr", "trail"])
def test_no_batch_contains_more_than_1024_tokens(name: str) -> None:
    """Section 7: "we enforce that no batch contains more than 1024 tokens"; decodes count, prompts are longer."""
    rng = np.random.default_rng(4)
    requests = tuple(
        Request(int(rng.integers(200, 3000)), int(rng.integers(2, 60)), arrival_ps=int(rng.integers(0, SECOND)))
        for _ in range(60)
    )
    instance = Instance("long", Limits(60_000, 16_384, 16_384), Rules(), cost_model("a100-llama2-7b-nocall"), requests)
    sizes = [sum(tokens for _, tokens in batch.run) for batch in served(instance, name).batches]
    assert max(sizes) == 1024


def test_trail_runs_what_has_few_tokens_left_first_within_the_limit() -> None:
    # Request 1 (I = 9, O = 2) arrives in the first batch. It has 2 tokens to generate, request 0 has 3 left:
    # its second chunk goes first and leaves nothing of a batch of 4 for the decode.
    instance = problem(Request(2, 5), Request(9, 2, 1))
    assert decisions(instance, Trail(base=FOUR)) == whole(
        [[(0, 2)], [(0, 1), (1, 3)], [(1, 4)], [(1, 2), (0, 1)], [(0, 1), (1, 1)], [(0, 1)]]
    )


def test_ltr_dispatches_the_shortest_rank_first() -> None:
    instance = problem(Request(4, 3), Request(4, 1), Request(4, 2))
    assert [run[0][0] for run, _ in decisions(instance, ShortestFirst(FOUR))[:3]] == [1, 2, 2]


def test_no_preempt_on_the_engine_reserves_the_longest_output() -> None:
    # 3 + 4 - 1 = 6 tokens are reserved for each of two requests, 11 are there: one after the other, in chunks.
    instance = problem(Request(3, 4), Request(3, 1), kv=11)
    assert decisions(instance, MaxAllocation(FOUR))[:2] == whole([[(0, 3)], [(0, 1)]])
    assert decisions(replace(instance, limits=Limits(12, 100, 100)), MaxAllocation(FOUR))[0] == (
        [(0, 3), (1, 1)],
        [],
    )


# LARRY ------------------------------------------------------------------------------------------------------


def test_larry_puts_large_prompts_off_while_many_wait() -> None:
    # Memory for one prompt at a time. α = 1: 9 - 2·5 = -1 against 5 - 2·2 = 1; α = 2: 18 - 10 = 8 against 10 - 4 = 6.
    instance = problem(Request(4, 1), *queue, kv=6, cost=SLOW)
    assert decisions(instance, Larry(1))[1][0] == [(2, 2)]
    assert decisions(instance, Larry(2))[1][0] == [(1, 5)]


def test_larry_stops_dispatching_at_the_first_that_does_not_fit() -> None:
    # Section 4.1. Request 0 takes 5 of 8 tokens with its decode. With α = 2 the prompt of 5 is first: it does not fit
    # the 3 that are free, and the one of 2 behind it, which would, is not dispatched.
    instance = problem(Request(4, 3), *queue, kv=8, cost=SLOW)
    assert decisions(instance, Larry(2))[1] == ([(0, 1)], [])
    assert decisions(instance, Larry(1))[1] == ([(0, 1), (2, 2)], [])


def test_the_unit_of_memory_decides_with_the_same_alpha() -> None:
    # Tokens: -1 against 1, as above. Blocks of 4: 9 - 2·2 = 5 against 5 - 2·1 = 3. Shares of 8 tokens:
    # 9 - 2·5/8 = 7.75 against 5 - 2·2/8 = 4.5.
    instance = problem(Request(4, 1), *queue, kv=8, block=4, cost=SLOW)
    first = {unit: decisions(instance, Larry(1, unit=unit))[1][0] for unit in MemoryUnit}
    assert first == {MemoryUnit.TOKENS: [(2, 2)], MemoryUnit.BLOCKS: [(1, 5)], MemoryUnit.SHARE: [(1, 5)]}


def test_larry_without_a_queue_looks_at_nothing_but_the_wait() -> None:
    # "Under low QPS" (section 4.1): alone in the queue, a large prompt is dispatched as soon as it comes.
    instance = problem(Request(1, 3), Request(9, 1, 1), kv=20)
    assert decisions(instance, "larry")[1] == ([(0, 1), (1, 9)], [])


def test_larry_with_a_very_large_alpha_is_first_come_first_served() -> None:
    instance = many(cost_model("a100-llama2-7b-nocall"))
    first_come = decisions(instance, "fcfs")
    assert decisions(instance, Larry(10**9)) == first_come
    # In tokens α = 1000 is not large enough: prompts of 45 tokens times a queue of 40 outweigh 1.8 s.
    assert decisions(instance, Larry(1000)) != first_come


def test_the_policies_differ_in_nothing_but_their_order() -> None:
    """One request at a time has no order to choose."""
    apart = problem(*[Request(5, 3, 1000 * number) for number in range(4)])
    found = [decisions(apart, name) for name in ("fcfs", "no_preempt", "larry", "ltr", "trail")]
    assert found == [found[0]] * 5


def test_the_engine_caps_the_requests_that_hold_kv() -> None:
    capped = tuned(FCFS, margins=Margins(residents=2))
    assert [len(run) for run, _ in decisions(problem(*[Request(2, 2)] * 3), capped)] == [2, 2, 1, 1]
    assert lookup(POLICY_GROUP, "fcfs", "policy").margins.residents == 256


# Causes on the page of findings --------------------------------------------------------------------------------


def code(load: Fraction) -> dict[str, dict[str, Any]]:
    """Return metrics on 400 requests of sw-code at a multiple of the sustainable rate."""
    instance = workload("8B", "sw-code", 1, load, 400)
    return {policy: metrics_of(instance, policy) for policy in ("larry", "fcfs", "trail")}


@pytest.mark.slow
def test_gains_need_a_queue() -> None:
    low, high = code(Fraction(1, 2)), code(Fraction(3, 2))

    def alike(found: dict[str, dict[str, Any]]) -> float:
        return float(found["trail"]["ttft_ps"]["p50"] / found["fcfs"]["ttft_ps"]["p50"])

    def variation(found: dict[str, dict[str, Any]]) -> float:
        times = [of["e2e_ps"]["p50"] for of in found.values()]
        return float(max(times) / min(times))

    assert gain(low, "ttft_ps", "p50") < 1.15
    assert gain(high, "ttft_ps", "p50") > 2
    assert gain(low, "ttft_ps", "p95") > 1 > gain(high, "ttft_ps", "p95")
    assert gain(low, "ttft_per_input_ps", "p95") < 3.3
    assert gain(high, "ttft_per_input_ps", "p95") > 5.5
    assert alike(low) > 0.9
    assert alike(high) < 0.5
    assert variation(low) < 1.1
    assert variation(high) > 2


@pytest.mark.slow
def test_bursts_fill_the_cache_and_the_largest_prompts_wait() -> None:
    instance = workload("8B", "sw-chat", 1, Fraction(3, 2), 400)
    roomy = replace(instance, limits=replace(instance.limits, kv_tokens=2 * instance.limits.kv_tokens))
    assert metrics_of(instance, "larry")["evictions"] > 4
    assert metrics_of(roomy, "larry")["evictions"] == 0
    schedule = simulate(instance, "larry").schedule
    assert schedule is not None
    waits = zip(tally_of(instance, schedule).first, instance.requests, strict=True)
    slowest = sorted((first - request.arrival_ps, request.input) for first, request in waits)[-20:]
    assert np.mean([tokens for _, tokens in slowest]) > 2 * np.mean([request.input for request in instance.requests])


def test_the_published_conversations_have_shorter_prompts_than_the_paper_says() -> None:
    # 19,366 rows, mean 1154.7 (shared/data/README.md).
    assert np.mean(spread(shipped_statistics("azure-conv").input, 20_000)) == pytest.approx(1154.7, rel=0.01)
