"""The simulator and the policies of InferMax's Table 1, against schedules worked by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from dataclasses import replace as tuned
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import (
    COST,
    Decision,
    assert_compiled_the_same,
    assert_jumps_change_nothing,
    decisions,
    instances,
    outcome,
    problem,
    ready,
    refused,
    served,
    whole,
)

from optsched.catalogue import POLICY_GROUP, lookup
from optsched.methods.policies import policy_names
from optsched.methods.simulate import simulate
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.errors import InfeasibleInstanceError
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.memory import PrivateBlocks
from optsched.model.metrics import evaluate, tally_of
from optsched.model.objectives import PLAIN_OBJECTIVES, gap, percentile
from optsched.model.restrictions import Restrictions
from optsched.model.result import Status
from optsched.model.schedule import Assignment, Batch, Schedule
from optsched.policies.grouped import Group, GroupedPolicy, Members
from optsched.policies.histogram import Histogram
from optsched.policies.infermax import (
    INFERMAX,
    SARATHI,
    SARATHI_EF,
    SARATHI_NOCP,
    VLLM,
    VLLM_HY,
    Check,
    InferMax,
)
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import Compiled, Job, NoBatchError, Replica

BASES = ("vllm", "sarathi", "sarathi_pc", "sarathi_nocp", "vllm_hy", "sarathi_nohy")
EVICTION_FREE = tuple(f"{name}_ef" for name in BASES)


def test_table_1_is_installed() -> None:
    assert set(BASES) | set(EVICTION_FREE) <= set(policy_names())


# Schedules worked by hand ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_chunked_prefill_shares_a_batch_with_a_decode() -> None:
    # C = 6, P = 4. Request 0: I = 2, O = 4. Request 1: I = 6, O = 2, its prompt is cut into 2 + 4.
    instance = problem(Request(2, 4), Request(6, 2), budget=6, prefill=4, cost=COST)
    assert served(instance, "sarathi").batches == (
        # x = 4: max(140, 160) = 160; two prefills of 2 on 0: 2 · 4 + 7 = 15 each. P is used up. 160 + 30 = 190.
        Batch(0, 190, ((0, 2), (1, 2))),
        # x = 5: max(150, 200) = 200; decode on 2: 7; prefill of 4 on 2: 2 (16 + 16) + 6 + 7 = 77. 284.
        Batch(190, 474, ((0, 1), (1, 4))),
        # x = 2: max(120, 80) = 120; decodes on 3 and 6: 8 + 11 = 19. 139. Request 1 ends.
        Batch(474, 613, ((0, 1), (1, 1))),
        # x = 1: 110; decode on 4: 9. 119. Request 0 ends: tokens at 190, 474, 613, 732.
        Batch(613, 732, ((0, 1),)),
    )


def test_own_token_budget_counts_decodes_and_the_prefill_limit_of_the_instance_does_not() -> None:
    # As above, but 4 is the policy's own P: the decode of batch 2 leaves 3 of it, so the prompt is cut into 2 + 3 + 1.
    instance = problem(Request(2, 4), Request(6, 2), budget=6, cost=COST)
    assert served(instance, tuned(SARATHI, token_budget=4)).batches == (
        Batch(0, 190, ((0, 2), (1, 2))),
        # x = 4: 160; decode on 2: 7; prefill of 3 on 2: 2 (9 + 12) + 6 + 7 = 55. 222.
        Batch(190, 412, ((0, 1), (1, 3))),
        # x = 2: 120; decode on 3: 8; prefill of 1 on 5: 2 (1 + 10) + 15 + 7 = 44. 172. First token of request 1.
        Batch(412, 584, ((0, 1), (1, 1))),
        # x = 2: 120; decodes on 4 and 6: 9 + 11 = 20. 140. Both end.
        Batch(584, 724, ((0, 1), (1, 1))),
    )


def test_sarathi_fills_512_tokens_where_sarathi_pc_fills_the_prefill_limit() -> None:
    # Prompts of 512 and 512; in the second batch request 0 decodes.
    requests = Request(512, 2), Request(512, 1)
    chunks = whole([[(0, 512)], [(0, 1), (1, 511)], [(1, 1)]])
    assert decisions(problem(*requests, kv=4096, budget=4096), "sarathi") == chunks
    assert decisions(problem(*requests, kv=4096, budget=4096), "sarathi_ef") == chunks
    together = whole([[(0, 512), (1, 512)], [(0, 1)]])
    assert decisions(problem(*requests, kv=4096, budget=4096), "sarathi_pc") == together
    # The instance's P = 512 limits prefill steps only: 513 tokens run in the second batch.
    limited = problem(*requests, kv=4096, budget=4096, prefill=512)
    assert decisions(limited, "sarathi_pc") == whole([[(0, 512)], [(0, 1), (1, 512)]])


def test_eviction_and_refill() -> None:
    # Two requests I = 3, O = 4, so a peak of 6 each, and M = 8.
    instance = problem(Request(3, 4), Request(3, 4), kv=8, cost=COST)
    schedule = served(instance, "vllm")
    assert schedule.batches == (
        # x = 6: max(160, 240) = 240; two prefills of 3 on 0: 2 · 9 + 7 = 25 each. 290. KV 3 + 3.
        Batch(0, 290, ((0, 3), (1, 3))),
        # x = 2: 120; decodes on 3 and 3: 8 each. 136. KV 4 + 4 = M.
        Batch(290, 426, ((0, 1), (1, 1))),
        # Request 0 needs one more token: request 1, the last to arrive, is evicted and does not run.
        # x = 1: 110; decode on 4: 9. 119. KV 5.
        Batch(426, 545, ((0, 1),), (1,)),
        # The refill of I + g = 3 + 2 = 5 tokens does not fit the 3 that are free.
        # x = 1: 110; decode on 5: 10. 120. KV 6, and request 0 ends.
        Batch(545, 665, ((0, 1),)),
        # x = 5: max(150, 200) = 200; refill of 5 on 0: 2 · 25 + 7 = 57. 257. Third token of request 1.
        Batch(665, 922, ((1, 5),)),
        # x = 1: 110; decode on 5: 10. 120.
        Batch(922, 1042, ((1, 1),)),
    )
    metrics = evaluate(instance, schedule)
    expected = {
        "makespan": 1042,
        "mean_ttft": 290 + 290,
        "max_ttft": 290,
        "mean_e2e": 665 + 1042,
        "max_e2e": 1042,
        "weighted_e2e": 665 + 1042,
        "slo_misses": 0,
        "p50_ttft": 290,
        "p95_ttft": 290,
        "p99_ttft": 290,
        "p50_e2e": 665,
        "p95_e2e": 1042,
        "p99_e2e": 1042,
        # (665 - 290) / 3 and (1042 - 290) / 3 = 250.67. Request 1 waits from 426 to 922, the longest of six times.
        "mean_tpot": 125 + 250,
        "p99_tbt": 496,
    }
    assert metrics["objectives"].items() >= expected.items()
    assert set(metrics["objectives"]) == set(PLAIN_OBJECTIVES)
    assert metrics["evictions"] == 1
    assert metrics["recomputed_tokens"] == 4  # what request 1 had cached when it was evicted
    assert metrics["peak_kv_tokens"] == 8
    assert metrics["mean_resident_requests"] == (2 + 2 + 1 + 1 + 1 + 1) / 6


def test_eviction_free_variant_of_the_same_case_serves_one_after_another() -> None:
    # 6 + 6 > M = 8: the second is admitted when the first has ended.
    instance = problem(Request(3, 4), Request(3, 4), kv=8, cost=COST)
    assert served(instance, "vllm_ef").batches == (
        # x = 3: max(130, 120) = 130; 25. Then decodes on 3, 4, 5: 110 + 8, 110 + 9, 110 + 10.
        Batch(0, 155, ((0, 3),)),
        Batch(155, 273, ((0, 1),)),
        Batch(273, 392, ((0, 1),)),
        Batch(392, 512, ((0, 1),)),
        Batch(512, 667, ((1, 3),)),
        Batch(667, 785, ((1, 1),)),
        Batch(785, 904, ((1, 1),)),
        Batch(904, 1024, ((1, 1),)),
    )


def test_arrivals() -> None:
    # The instance lists the last to arrive first. Batches: 100 + 10 x + attention (x < 4).
    instance = problem(Request(1, 1, 5000), Request(2, 1, 1050), Request(3, 2, 1000), cost=COST)
    schedule = served(instance, "vllm")
    assert schedule.batches == (
        # Nothing before the first arrival. x = 3: 130; 2 · 9 + 7 = 25. 155.
        Batch(1000, 1155, ((2, 3),)),
        # Request 1 arrived at 1050, within the first batch, and starts after it. x = 2: 120; 15. 135.
        Batch(1155, 1290, ((1, 2),)),
        # x = 1: 110; decode on 3: 8. 118.
        Batch(1290, 1408, ((2, 1),)),
        # Idle from 1408 to 5000. x = 1: 110; 2 + 7 = 9. 119.
        Batch(5000, 5119, ((0, 1),)),
    )
    metrics = evaluate(instance, schedule)
    # Makespan from the first arrival. TTFT 119, 240, 155; e2e 119, 240, 408.
    expected = {
        "makespan": 4119,
        "mean_ttft": 119 + 240 + 155,
        "max_ttft": 240,
        "mean_e2e": 119 + 240 + 408,
        "max_e2e": 408,
        "weighted_e2e": 119 + 240 + 408,
        "slo_misses": 0,
        "p50_ttft": 155,
        "p95_ttft": 240,
        "p99_ttft": 240,
        "p50_e2e": 240,
        "p95_e2e": 408,
        "p99_e2e": 408,
        # Only request 2 has a second token.
        "mean_tpot": 1408 - 1155,
        "p99_tbt": 1408 - 1155,
    }
    assert metrics["objectives"].items() >= expected.items()
    # KV is busy for 155 + 135 + 118 + 119 ps with 3, 3 + 2, 4, 1 tokens of 1000; idle time does not count.
    share = Fraction(3 * 155 + 5 * 135 + 4 * 118 + 119, 1000 * (155 + 135 + 118 + 119))
    assert metrics["kv_utilisation"] == float(share)


def test_request_that_arrives_when_a_batch_ends_is_in_the_next() -> None:
    instance = problem(Request(1, 2), Request(1, 1, 10), Request(1, 1, 11))
    assert decisions(instance, "vllm_hy") == whole([[(0, 1)], [(1, 1), (0, 1)], [(2, 1)]])


def test_requests_of_equal_arrival_are_served_in_the_order_of_the_instance() -> None:
    instance = problem(Request(1, 1, 5), Request(1, 1, 5), Request(1, 1), Request(1, 1, 5), runs=1)
    assert decisions(instance, "vllm") == whole([[(2, 1)], [(0, 1)], [(1, 1)], [(3, 1)]])


def test_objectives_and_metrics() -> None:
    # The chunked case above: TTFT 190 and 474, e2e 732 and 613. Arrivals stay 0.
    requests = (
        Request(2, 4, weight=3, slo_ttft_ps=190, slo_e2e_ps=731),  # meets the TTFT exactly, misses e2e by 1
        Request(6, 2, weight=5, slo_ttft_ps=473, slo_e2e_ps=612),  # misses both by 1, counts once
    )
    instance = problem(*requests, kv=20, budget=6, prefill=4, cost=COST)
    metrics = evaluate(instance, served(instance, "sarathi"))
    expected = {
        "makespan": 732,
        "mean_ttft": 664,
        "max_ttft": 474,
        "mean_e2e": 1345,
        "max_e2e": 732,
        "weighted_e2e": 3 * 732 + 5 * 613,
        "slo_misses": 2,
        "p50_ttft": 190,
        "p95_ttft": 474,
        "p99_ttft": 474,
        "p50_e2e": 613,
        "p95_e2e": 732,
        "p99_e2e": 732,
        # 542 / 3 = 180.67, and 139 / 1. Times between tokens are 284, 139 and 119, and 139.
        "mean_tpot": 180 + 139,
        "p99_tbt": 284,
    }
    assert metrics["objectives"].items() >= expected.items()
    # TPOT: (732 - 190) / 3 and (613 - 474) / 1. The median of two is the smaller, the 90th percentile the larger.
    low, high = 139, 542 / 3
    assert metrics["tpot_ps"] == {
        "mean": float(Fraction(139 * 3 + 542, 6)), "p50": low, "p90": high, "p95": high, "p99": high, "max": high,
    }  # fmt: skip
    assert metrics["ttft_ps"] == {"mean": 332.0, "p50": 190, "p90": 474, "p95": 474, "p99": 474, "max": 474}
    assert metrics["e2e_ps"]["mean"] == 672.5
    assert metrics["ttft_per_input_ps"]["max"] == 190 / 2
    assert metrics["ttft_per_input_ps"]["p50"] == 474 / 6
    assert metrics["e2e_per_output_ps"]["p50"] == 732 / 4
    assert metrics["e2e_per_output_ps"]["max"] == 613 / 2
    assert metrics["output_tokens_per_s"] == 6 * 10**12 / 732
    assert metrics["requests_per_s"] == 2 * 10**12 / 732
    assert metrics["goodput_requests_per_s"] == 0
    assert metrics["slo_attainment"] == 0
    assert metrics["batches"] == 4
    assert metrics["recomputed_tokens"] == 0
    # KV after the steps: 2 + 2, 3 + 6, 4 + 7, 5 of M = 20, for 190, 284, 139, 119 ps.
    assert metrics["kv_utilisation"] == (4 * 190 + 9 * 284 + 11 * 139 + 5 * 119) / (20 * 732)
    assert metrics["peak_kv_tokens"] == 11
    assert metrics["token_utilisation"] == (4 + 5 + 2 + 1) / (6 * 4)
    assert metrics["mean_batch_requests"] == (2 + 2 + 2 + 1) / 4
    assert metrics["mean_resident_requests"] == (2 + 2 + 2 + 1) / 4


def test_slo_misses_of_met_and_absent_slos() -> None:
    requests = (
        Request(2, 4, slo_ttft_ps=190, slo_e2e_ps=732),  # meets both to the ps
        Request(6, 2),  # has none, so never misses
        Request(1, 1, 732, slo_ttft_ps=0),  # misses its TTFT
    )
    instance = problem(*requests, budget=6, prefill=4, cost=COST)
    metrics = evaluate(instance, served(instance, "sarathi"))
    assert metrics["objectives"]["slo_misses"] == 1
    assert metrics["slo_attainment"] == 2 / 3
    # 732 + 110 + 2 + 7 = 851.
    assert metrics["goodput_requests_per_s"] == 2 * 10**12 / 851
    # O = 1 has no TPOT and is left out: two values remain.
    assert metrics["tpot_ps"]["mean"] == float(Fraction(139 * 3 + 542, 6))


def test_tpot_is_undefined_if_no_request_has_a_second_token() -> None:
    instance = problem(Request(2, 1), Request(3, 1))
    assert evaluate(instance, served(instance, "vllm"))["tpot_ps"] is None


def test_makespan_of_zero_has_no_rates() -> None:
    metrics_of = problem(Request(1, 1), cost=CostModel(base=0, token=0))
    metrics = evaluate(metrics_of, served(metrics_of, "vllm"))
    assert metrics["objectives"]["makespan"] == 0
    assert metrics["output_tokens_per_s"] is None
    assert metrics["kv_utilisation"] is None


def test_means_stay_exact_beyond_64_bits() -> None:
    huge = 2**61
    instance = problem(Request(1, 1), Request(1, 1), Request(1, 1), runs=1, cost=CostModel(base=huge, token=1))
    metrics = evaluate(instance, served(instance, "vllm"))
    assert metrics["objectives"]["mean_e2e"] == 6 * (huge + 1)


def test_memory_times_time_beyond_83_bits_is_left_to_the_engine() -> None:
    """10^9 tokens for 2^60 ps: the compiled loop splits their product at 20 bits, which is not enough."""
    instance = problem(Request(10**9, 1), kv=10**9, budget=10**9, cost=CostModel(base=2**60, token=0))
    runner = ready("vllm", instance)
    assert isinstance(runner, Compiled)
    assert runner.serve(instance) is None
    # Half as long and 2^20 tokens fit.
    small = replace(instance, limits=replace(instance.limits, kv_tokens=2**20), requests=(Request(2**20, 1),))
    assert runner.serve(small) is not None


@pytest.mark.parametrize(
    ("q", "count", "rank"),
    # The ceil(q n / 100)-th smallest.
    [(50, 1, 1), (50, 2, 1), (50, 3, 2), (90, 10, 9), (90, 11, 10), (95, 20, 19), (99, 100, 99), (99, 101, 100)],
)
def test_percentile(q: int, count: int, rank: int) -> None:
    values = [7 * place for place in range(1, count + 1)]
    assert percentile(values[::-1], q) == 7 * rank


def test_gap() -> None:
    assert gap(80, 60) == 0.25
    assert gap(0, 0) == 0.0
    assert gap(None, 5) is None
    assert gap(5, None) is None


def test_kv_blocks() -> None:
    # b = 4, M = 11: two blocks, 8 tokens. I = 3, O = 3 each: one block up to 4 tokens, two for the fifth.
    requests = Request(3, 3), Request(3, 3)
    instance = problem(*requests, kv=11, block=4)
    schedule = served(instance, "vllm")
    assert [(list(batch.run), list(batch.evict)) for batch in schedule.batches] == [
        ([(0, 3), (1, 3)], []),
        ([(0, 1), (1, 1)], []),
        ([(0, 1)], [1]),  # a second block is needed, so request 1 gives up its one
        ([(1, 5)], []),  # refill of 3 + 2, in two blocks; its third token is its last
    ]
    metrics = evaluate(instance, schedule)
    assert metrics["peak_kv_tokens"] == 8
    # Occupied: 4 + 4, 4 + 4, 8, 8 of M: no block is ever free, and the last 3 tokens make none.
    assert metrics["kv_utilisation"] == 8 / 11
    # Without blocks the two need 5 + 5 ≤ 11.
    assert decisions(problem(*requests, kv=11), "vllm") == whole([[(0, 3), (1, 3)], *[[(0, 1), (1, 1)]] * 2])
    # Reservations count whole blocks too: 8 + 8 > 8.
    assert decisions(instance, "vllm_ef") == whole([[(0, 3)], [(0, 1)], [(0, 1)], [(1, 3)], [(1, 1)], [(1, 1)]])


# What tells the policies apart -----------------------------------------------------------------------------

# Request 0 has generated its first token when request 1 arrives.
LATE = Request(2, 3), Request(2, 2, 1)
PREFILL_ALONE = whole([[(0, 2)], [(1, 2)], [(0, 1), (1, 1)], [(0, 1)]])
PREFILL_FIRST = whole([[(0, 2)], [(1, 2), (0, 1)], [(0, 1), (1, 1)]])
DECODE_FIRST = whole([[(0, 2)], [(0, 1), (1, 2)], [(0, 1), (1, 1)]])
DECODE_ALONE = whole([[(0, 2)], [(0, 1)], [(0, 1)], [(1, 2)], [(1, 1)]])


@pytest.mark.parametrize("variant", ["", "_ef"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm", PREFILL_ALONE),
        ("vllm_hy", PREFILL_FIRST),
        ("sarathi", DECODE_FIRST),
        ("sarathi_pc", DECODE_FIRST),
        ("sarathi_nocp", DECODE_FIRST),
        ("sarathi_nohy", DECODE_ALONE),
    ],
)
def test_priorities_and_hybrid_batches(name: str, expected: list[Decision], variant: str) -> None:
    assert decisions(problem(*LATE), name + variant) == expected


CUT = whole([[(0, 2)], [(0, 1), (1, 1)], [(0, 1), (1, 1)], [(1, 1)]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # C = 2: a whole prefill leaves no room for a decode, a decode none for a whole prefill.
        ("vllm", PREFILL_ALONE),
        ("vllm_hy", PREFILL_ALONE),
        ("sarathi", CUT),
        ("sarathi_pc", CUT),
        ("sarathi_nocp", DECODE_ALONE),
        ("sarathi_nohy", DECODE_ALONE),
    ],
)
def test_priorities_under_a_tight_token_budget(name: str, expected: list[Decision]) -> None:
    assert decisions(problem(*LATE, budget=2), name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("vllm_hy", PREFILL_ALONE), ("sarathi", DECODE_ALONE), ("sarathi_pc", DECODE_ALONE)],
)
def test_rules_of_the_instance_tighten_the_policy(name: str, expected: list[Decision]) -> None:
    assert decisions(problem(*LATE, rules=Rules(hybrid=False)), name) == expected


def test_policy_chunks_only_where_the_instance_does() -> None:
    instance = problem(*LATE, budget=2, rules=Rules(chunked_prefill=False))
    assert decisions(instance, "sarathi") == decisions(instance, "sarathi_nocp") == DECODE_ALONE


def test_chunked_prefill_in_batches_of_one_kind() -> None:
    # Decodes first, and the prompt of request 1 is continued when request 0 has ended.
    instance = problem(Request(1, 3), Request(4, 1), budget=3, rules=Rules(hybrid=False))
    assert decisions(instance, "sarathi_pc") == whole([[(0, 1), (1, 2)], [(0, 1)], [(0, 1)], [(1, 2)]])


@pytest.mark.parametrize("name", ["sarathi", "sarathi_pc"])
def test_admission_reserves_the_whole_prompt(name: str) -> None:
    # P = 3 cuts the prompt of 4. In batch 2 two of the 3 prefill tokens and, with M = 6, two KV tokens are left.
    requests = Request(4, 2), Request(3, 1)
    # The prompt of 3 does not fit the 2 free tokens, so not even 2 of it run; nor in batch 3, where 1 is free.
    assert decisions(problem(*requests, kv=6, budget=3), name) == whole([[(0, 3)], [(0, 1)], [(0, 1)], [(1, 3)]])
    # With M = 7 it is admitted, and its reservation of 3 stands although 2 tokens are cached: the decode of
    # request 0 in batch 3 finds no token free, and the partial prefill is dropped.
    assert decisions(problem(*requests, kv=7, budget=3), name) == [
        ([(0, 3)], []),
        ([(0, 1), (1, 2)], []),
        ([(0, 1)], [1]),
        ([(1, 3)], []),
    ]
    # With M = 8 both fit.
    assert decisions(problem(*requests, kv=8, budget=3), name) == whole([[(0, 3)], [(0, 1), (1, 2)], [(0, 1), (1, 1)]])


@pytest.mark.parametrize("name", ["sarathi", "sarathi_pc"])
def test_refill_is_cut_and_reserves_generated_tokens_too(name: str) -> None:
    # I = 1, O = 5 twice, M = 6, C = P = 2.
    assert decisions(problem(Request(1, 5), Request(1, 5), kv=6, budget=2), name) == [
        ([(0, 1), (1, 1)], []),
        ([(0, 1), (1, 1)], []),
        ([(0, 1), (1, 1)], []),  # KV 3 + 3
        ([(0, 1)], [1]),  # request 1 has g = 3 and must refill 1 + 3 tokens
        ([(0, 1)], []),  # one KV token and one token of C are left, but all 4 must fit
        ([(1, 2)], []),
        ([(1, 2)], []),  # its fourth token
        ([(1, 1)], []),
    ]


@pytest.mark.parametrize("name", EVICTION_FREE)
def test_eviction_free_variants_reserve_the_peak(name: str) -> None:
    # Peak I + O - 1 = 4 each; M = 11 admits two at a time, though five prompts would fit.
    requests = (Request(2, 3),) * 4
    expected = whole([[(0, 2), (1, 2)], [(0, 1), (1, 1)], [(0, 1), (1, 1)], [(2, 2), (3, 2)], *[[(2, 1), (3, 1)]] * 2])
    assert decisions(problem(*requests, kv=11), name) == expected
    # The reservation of the running ones counts, not what they hold: no request is admitted into the 3 free tokens
    # of M = 11 in batch 2, and M = 12 admits three.
    three = whole([[(0, 2), (1, 2), (2, 2)], *[[(0, 1), (1, 1), (2, 1)]] * 2, [(3, 2)], [(3, 1)], [(3, 1)]])
    assert decisions(problem(*requests, kv=12), name) == three


@pytest.mark.parametrize("name", BASES)
def test_base_policies_reserve_no_output(name: str) -> None:
    # Five prompts of 2 would fit M = 11: all four are admitted at once, and 4 · 3 > 11 evicts in batch 2.
    first, second, *_ = decisions(problem(*(Request(2, 3),) * 4, kv=11), name)
    assert first == ([(0, 2), (1, 2), (2, 2), (3, 2)], [])
    assert second == ([(0, 1), (1, 1), (2, 1)], [3])


@pytest.mark.parametrize("name", ["vllm", "vllm_hy", "sarathi_nocp", "sarathi_nohy"])
def test_first_prompt_over_the_token_budget_holds_up_those_behind(name: str) -> None:
    # 3 + 6 > C = 8, and the prompt of 1 behind would fit.
    first = decisions(problem(Request(3, 1), Request(6, 1), Request(1, 1), budget=8), name)
    assert first == whole([[(0, 3)], [(1, 6), (2, 1)]])


@pytest.mark.parametrize("name", [*BASES, *EVICTION_FREE])
def test_first_prompt_over_memory_holds_up_those_behind(name: str) -> None:
    # 3 + 6 > M = 8, and the prompt of 1 behind would fit.
    first = decisions(problem(Request(3, 1), Request(6, 1), Request(1, 1), kv=8), name)
    assert first == whole([[(0, 3)], [(1, 6), (2, 1)]])


@pytest.mark.parametrize("name", BASES)
def test_victims_are_the_latest_to_arrive(name: str) -> None:
    # I = 2, O = 3 three times, M = 6.
    assert decisions(problem(*(Request(2, 3),) * 3, kv=6), name) == [
        ([(0, 2), (1, 2), (2, 2)], []),
        ([(0, 1), (1, 1)], [2]),  # request 0 needs a token, 2 gives two, which serve 1 as well
        ([(0, 1)], [1]),  # KV 3 + 3 is full again
        ([(1, 4)], []),  # of the two evicted the earlier refills: 2 + 2 = 4; 2 needs 3, and 2 are free
        ([(2, 3)], []),
        ([(2, 1)], []),
    ]


@pytest.mark.parametrize("name", BASES)
def test_request_evicts_itself_if_none_of_lower_priority_is_left(name: str) -> None:
    # M = 8: batch 2 has room for two more tokens, and the third request finds none and no request behind it.
    assert decisions(problem(*(Request(2, 3),) * 3, kv=8), name) == [
        ([(0, 2), (1, 2), (2, 2)], []),
        ([(0, 1), (1, 1)], [2]),
        ([(0, 1), (1, 1)], []),  # the refill of 3 waits: 2 are free
        ([(2, 3)], []),
        ([(2, 1)], []),
    ]


def test_victims_go_by_arrival_and_not_by_place_in_the_instance() -> None:
    # M = 6. The instance lists the latest to arrive first; request 3 fills the first batch and is gone.
    instance = problem(Request(2, 3, 2), Request(2, 3, 1), Request(2, 3), Request(1, 1), kv=6)
    assert decisions(instance, "vllm") == [
        ([(2, 2), (3, 1)], []),
        ([(1, 2), (0, 2)], []),
        ([(2, 1), (1, 1)], [0]),
        ([(2, 1)], [1]),
        ([(1, 4)], []),
        ([(0, 3)], []),
        ([(0, 1)], []),
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Request 2 (one token) arrives in batch 1. Prefills first: it is served before memory runs out.
        ("vllm", [([(2, 1)], []), ([(0, 1)], [1]), ([(0, 1)], [])]),
        # Prefill first takes the one free token, so request 0 evicts request 1.
        ("vllm_hy", [([(2, 1), (0, 1)], [1]), ([(0, 1)], []), ([(1, 3)], [])]),
        # Decodes first: request 0 takes the free token, request 1 evicts itself, and request 2, which the
        # two tokens that come free would hold, waits behind it.
        ("sarathi", [([(0, 1)], [1]), ([(0, 1)], []), ([(1, 3), (2, 1)], [])]),
        ("sarathi_pc", [([(0, 1)], [1]), ([(0, 1)], []), ([(1, 3), (2, 1)], [])]),
        ("sarathi_nocp", [([(0, 1)], [1]), ([(0, 1)], []), ([(1, 3), (2, 1)], [])]),
        ("sarathi_nohy", [([(0, 1)], [1]), ([(0, 1)], []), ([(1, 3), (2, 1)], [])]),
    ],
)
def test_eviction_holds_up_admissions_behind_the_evicted(name: str, expected: list[Decision]) -> None:
    instance = problem(Request(2, 3), Request(2, 3), Request(1, 1, 1), kv=5)
    found = decisions(instance, name)
    assert found[0] == ([(0, 2), (1, 2)], [])
    assert found[1:4] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Three requests I = 2, O = 2, at most two runs per batch.
        ("vllm", [[(0, 2), (1, 2)], [(2, 2)], [(0, 1), (1, 1)], [(2, 1)]]),
        ("vllm_hy", [[(0, 2), (1, 2)], [(2, 2), (0, 1)], [(1, 1), (2, 1)]]),
        ("sarathi", [[(0, 2), (1, 2)], [(0, 1), (1, 1)], [(2, 2)], [(2, 1)]]),
        ("sarathi_pc", [[(0, 2), (1, 2)], [(0, 1), (1, 1)], [(2, 2)], [(2, 1)]]),
        ("sarathi_nocp", [[(0, 2), (1, 2)], [(0, 1), (1, 1)], [(2, 2)], [(2, 1)]]),
        ("sarathi_nohy", [[(0, 2), (1, 2)], [(0, 1), (1, 1)], [(2, 2)], [(2, 1)]]),
    ],
)
@pytest.mark.parametrize("variant", ["", "_ef"])
def test_runs_per_batch_are_limited(name: str, expected: list[list[tuple[int, int]]], variant: str) -> None:
    assert decisions(problem(*(Request(2, 2),) * 3, runs=2), name + variant) == whole(expected)


# Policies of one's own -------------------------------------------------------------------------------------


def shortest_prompt(job: Job, _: Replica) -> int:
    return job.request.input


def test_group_with_an_order_of_its_own_that_evicts() -> None:
    # Requests that wait push out those that run; in both groups the shorter prompt goes first. M = 6.
    pushing = tuned(
        VLLM_HY,
        groups=(
            Group(Members.WAITING, shortest_prompt, evicts=True),
            Group(Members.RUNNING, shortest_prompt, evicts=True),
        ),
    )
    instance = problem(Request(2, 3), Request(1, 3), Request(6, 1, 1), kv=6)
    assert decisions(instance, pushing) == [
        ([(1, 1), (0, 2)], []),
        ([(2, 6)], [0, 1]),  # 3 tokens are free, and both have to go, the longer prompt first
        ([(1, 2), (0, 3)], []),  # refills of 1 + 1 and 2 + 1
        ([(1, 1)], [0]),  # KV 3 + 3: request 0, the last of all, evicts itself
        ([(0, 4)], []),
    ]


def test_candidate_evicts_nobody_of_higher_priority() -> None:
    # The waiting come last and may evict: at M = 6 request 1 finds 2 free tokens, and no request below it.
    greedy = tuned(SARATHI, groups=(Group(Members.DECODING, evicts=True), Group(Members.WAITING, evicts=True)))
    assert decisions(problem(Request(3, 3), Request(3, 1, 1), kv=6), greedy) == whole(
        [[(0, 3)], [(0, 1)], [(0, 1)], [(1, 3)]]
    )


def test_candidate_order_breaks_ties_by_arrival() -> None:
    group = Group(Members.WAITING, shortest_prompt)
    early, late, short = (Job(Request(size, 1), rank, rank) for rank, size in enumerate((2, 2, 1)))
    replica = Replica(Limits(9, 9, 9), Rules(), 0, PrivateBlocks(Limits(9, 9, 9)), [early, late, short])
    assert group.before(early, late, replica)
    assert not group.before(late, early, replica)
    assert group.before(short, early, replica)
    assert not group.before(early, early, replica)
    assert list(group.candidates(replica)) == [short, early, late]


@dataclass
class Scripted:
    """Answers what it was told to, in turn, over and over."""

    answers: list[Assignment]
    asked: int = field(default=0, init=False)

    def next_batch(self, replica: Replica) -> Assignment:
        self.asked += 1
        return self.answers[(self.asked - 1) % len(self.answers)]


def test_loop_without_generated_tokens_ends() -> None:
    # Two prompts of 3: one token of either runs, and is evicted when the other's runs. 2 (3 + 1) = 8 tokens in all.
    looping = Scripted([Assignment([(0, 1)], []), Assignment([(1, 1)], [0]), Assignment([(0, 1)], [1])])
    looping.answers += looping.answers[1:] * 4
    failure = refused(problem(Request(3, 1), Request(3, 1)), looping)
    assert failure.reason == "no token was generated in 9 batches"
    assert failure.now_ps == 90
    assert failure.index == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Assignment([], []), "the policy's batch runs nothing"),
        (Assignment([(1, 1)], []), "the policy runs 1 tokens of request 1, which has 0 to run"),  # it has ended
        (Assignment([(2, 1)], []), "the policy runs 1 tokens of request 2, which has 0 to run"),  # it has not arrived
        (Assignment([(3, 1)], []), "the policy runs 1 tokens of request 3, which has 0 to run"),  # it does not exist
        (Assignment([(0, 0)], []), "the policy runs 0 tokens of request 0, which has 3 to run"),
        (Assignment([(0, 4)], []), "the policy runs 4 tokens of request 0, which has 3 to run"),
        (Assignment([(0, 1)], [0]), "the policy evicts request 0, which holds no KV"),  # it waits
        (Assignment([(0, 1)], [1]), "the policy evicts request 1, which holds no KV"),
        (Assignment([(0, 1)], [2]), "the policy evicts request 2, which holds no KV"),
        (Assignment([(0, 1)], [3]), "the policy evicts request 3, which holds no KV"),
    ],
)
def test_answer_that_cannot_be_followed_ends_at_once(answer: Assignment, reason: str) -> None:
    # Request 1 ends with the first batch, request 2 arrives later, request 3 does not exist.
    instance = problem(Request(3, 1), Request(1, 1), Request(1, 1, 99))
    scripted = Scripted([Assignment([(1, 1)], []), answer])
    result = simulate(instance, scripted)
    assert scripted.asked == 2
    assert result.status is Status.FAILED
    # The failure is said of request 0, the only one there.
    assert result.message == f"Scripted: request 0 at 10 ps: {reason}"


class Pairs:
    """Waits until two requests are there, and serves what has arrived."""

    def next_batch(self, replica: Replica) -> Assignment:
        if len(replica.waiting) < 2:
            raise NoBatchError(replica.waiting[0].index, replica.now_ps, "it has no partner")
        return Assignment([(job.index, job.missing) for job in replica.waiting], [])


def test_policy_without_a_batch_now_is_asked_again_at_the_next_arrival() -> None:
    instance = problem(Request(1, 1, 3), Request(1, 1, 40), Request(1, 1, 41), Request(1, 1, 70))
    assert served(instance, Pairs()).batches == (
        Batch(40, 50, ((0, 1), (1, 1))),
        Batch(70, 80, ((2, 1), (3, 1))),
    )
    failure = refused(replace(instance, requests=instance.requests[:3]), Pairs())
    assert (failure.index, failure.now_ps, failure.reason) == (2, 50, "it has no partner")


def test_blocked_policy_serves_a_later_arrival_that_goes_first() -> None:
    # The prompt of 6 is over the policy's own 4 tokens; a shorter one arrives at 25 and is put before it.
    short_first = tuned(
        SARATHI_NOCP,
        groups=(Group(Members.DECODING, evicts=True), Group(Members.WAITING, shortest_prompt)),
        token_budget=4,
    )
    failure = refused(problem(Request(6, 1), Request(2, 2, 25)), short_first)
    # Two batches of 10 ps serve request 1.
    assert (failure.index, failure.now_ps) == (0, 45)
    assert failure.reason == "no legal batch for a whole prefill: 6 tokens do not fit what the batch has left, 4"


def test_simulate_takes_a_policy_object() -> None:
    result = simulate(problem(Request(1, 1), Request(1, 1, 5)), Pairs(), "max_ttft")
    assert (result.status, result.method, result.value) == (Status.FEASIBLE, "Pairs", 15)


# Failures --------------------------------------------------------------------------------------------------


def test_forbidden_eviction() -> None:
    # The eviction case above: at 426 ps request 0 needs a token that only request 1 could give.
    requests = Request(3, 4, id="a"), Request(3, 4, id="b")
    instance = problem(*requests, kv=8, cost=COST, rules=Rules(eviction=False))
    failure = refused(instance, "vllm")
    assert (failure.index, failure.now_ps) == (0, 426)
    assert failure.reason == (
        "it needs 1 more KV tokens, 0 are free, and the instance forbids the eviction of request 1"
    )
    result = simulate(instance, "vllm")
    assert result.status is Status.FAILED
    assert result.value is None
    assert result.schedule is None
    assert result.message == f"vllm: request 0 (a) at 426 ps: {failure.reason}"
    # Forbidden by a restriction instead.
    restricted = simulate(replace(instance, rules=Rules()), "vllm", restrictions=Restrictions(("eviction",)))
    assert restricted.message == result.message
    # The eviction-free variant needs none.
    assert simulate(instance, "vllm_ef").value == 1024


def test_forbidden_self_eviction() -> None:
    # None but request 2 itself is left to give the token.
    instance = problem(*(Request(2, 3),) * 3, kv=8, rules=Rules(eviction=False))
    failure = refused(instance, "sarathi")
    assert (failure.index, failure.now_ps) == (2, 10)
    assert failure.reason.endswith("forbids the eviction of request 2")


def test_prompt_over_the_own_budget_without_chunks() -> None:
    requests = Request(512, 2), Request(513, 1)
    instance = problem(*requests, kv=4096, budget=4096, rules=Rules(chunked_prefill=False))
    result = simulate(instance, "sarathi")
    assert result.status is Status.FAILED
    assert result.message == (
        "sarathi: request 1 at 20 ps: no legal batch for a whole prefill: "
        "513 tokens do not fit what the batch has left, 512"
    )
    # Chunks, or P = C, serve it.
    assert simulate(replace(instance, rules=Rules()), "sarathi").status is Status.FEASIBLE
    assert simulate(instance, "sarathi_pc").status is Status.FEASIBLE


@pytest.mark.parametrize("name", ["vllm", "vllm_hy", "sarathi_nocp", "sarathi_nohy"])
def test_prompt_over_the_prefill_limit_fails_where_the_policy_does_not_chunk(name: str) -> None:
    instance = problem(Request(5, 1, 7), budget=8, prefill=4)
    for variant in (name, f"{name}_ef"):
        failure = refused(instance, variant)
        assert (failure.index, failure.now_ps) == (0, 7)
        assert failure.reason == "no legal batch for a whole prefill: 5 tokens do not fit what the batch has left, 4"
    assert decisions(instance, "sarathi") == whole([[(0, 4)], [(0, 1)]])


def test_refill_over_the_prefill_limit_is_a_dead_end() -> None:
    # Request 1 is evicted with g = 2 by request 0, and 3 + 2 > P = 4.
    instance = problem(Request(3, 4), Request(3, 4), kv=8, budget=8, prefill=4)
    failure = refused(instance, "vllm")
    # Prefill, prefill, two decodes of both to 4 + 4, the eviction, the last token of request 0.
    assert (failure.index, failure.now_ps) == (1, 50)
    assert failure.reason == "no legal batch for a whole prefill: 5 tokens do not fit what the batch has left, 4"


def test_reservation_over_the_cache_fails() -> None:
    greedy = tuned(VLLM, reserve=lambda job: 9)
    failure = refused(problem(Request(2, 2), kv=8), greedy)
    assert failure.reason == "no legal batch for a whole prefill: 9 more KV tokens do not fit the 8 that are free"
    # A group that evicts finds no request to evict.
    evicting = tuned(greedy, groups=(Group(Members.WAITING, evicts=True),))
    assert refused(problem(Request(2, 2), kv=8), evicting).reason == failure.reason


def test_policy_that_leaves_out_a_group_fails() -> None:
    failure = refused(problem(Request(2, 2)), GroupedPolicy((Group(Members.WAITING),), hybrid=True, chunked=True))
    assert (failure.index, failure.now_ps) == (0, 10)
    assert failure.reason.startswith("no legal batch for a decode step")


def test_infeasible_instance_is_refused_before_any_batch() -> None:
    with pytest.raises(InfeasibleInstanceError, match="request 1 needs 9 KV tokens"):
        run_policy(problem(Request(1, 1), Request(8, 2), kv=8), VLLM)
    with pytest.raises(InfeasibleInstanceError, match="chunked prefill is forbidden"):
        simulate(problem(Request(5, 1), prefill=4), "vllm", restrictions=Restrictions(("chunked",)))


# Random instances ------------------------------------------------------------------------------------------

small = st.integers(0, 3)


# Sarathi's own budget of 512 never matters for small requests, so it is drawn with small ones too.
RUNNERS: dict[str, GroupedPolicy] = {
    name: lookup(POLICY_GROUP, name, "policy") for name in (*BASES, *EVICTION_FREE)
} | {f"sarathi_{size}": tuned(SARATHI, token_budget=size) for size in (1, 3, 5)} | {
    f"sarathi_{size}_ef": tuned(SARATHI_EF, token_budget=size) for size in (1, 3, 5)
}  # fmt: skip


def may_fail(instance: Instance, name: str) -> bool:
    """Say whether a policy can end up without a legal batch."""
    runner, limits, rules = RUNNERS[name], instance.limits, instance.rules
    if not (runner.chunked and rules.chunked_prefill):
        budget = min(limits.prefill_tokens, runner.token_budget or limits.batch_tokens)
        # Whole (re)fills of up to I + O - 1 tokens; without evictions of I.
        most = max(r.input if name.endswith("_ef") else r.peak_tokens for r in instance.requests)
        if most > budget:
            return True
    return not (name.endswith("_ef") or rules.eviction)


@pytest.mark.slow
@settings(max_examples=258, deadline=None)
@given(instances(), st.sampled_from(sorted(RUNNERS)))
def test_every_schedule_is_legal_or_the_policy_fails(instance: Instance, name: str) -> None:
    runner = RUNNERS[name]
    schedule = outcome(instance, runner)
    assert outcome(instance, runner) == schedule
    jumped = outcome(instance, runner, jumps=True)
    if not isinstance(schedule, Schedule):
        assert jumped == schedule
        assert runner.serve(instance) is None
        assert may_fail(instance, name)
        return
    assert isinstance(jumped, Schedule)
    assert_jumps_change_nothing(instance, schedule, jumped)
    assert (runner.serve(instance) is None) == (instance.cost.cpu_request > 0)
    assert_compiled_the_same(instance, runner, jumped)
    if name.endswith("_ef"):
        assert schedule.evictions == evaluate(instance, schedule)["recomputed_tokens"] == 0
    assert_own_limits(instance, runner, schedule)
    assert_first_come_first_served(instance, schedule)
    assert_no_idling(instance, schedule)


def assert_own_limits(instance: Instance, runner: GroupedPolicy, schedule: Schedule) -> None:
    """A batch with a prefill step is within the policy's own budget, and of one kind if it is not hybrid."""
    held = [0] * len(instance.requests)
    given_out = [0] * len(instance.requests)
    decoding = [False] * len(instance.requests)
    for batch in schedule.batches:
        for index in batch.evict:
            held[index], decoding[index] = 0, False
        kinds = {decoding[index] for index, _ in batch.run}
        if runner.token_budget is not None and False in kinds:
            assert sum(count for _, count in batch.run) <= runner.token_budget
        if not runner.hybrid:
            assert len(kinds) == 1
        for index, count in batch.run:
            cut = not decoding[index] and held[index] + count < instance.requests[index].input + given_out[index]
            assert runner.chunked or not cut
            held[index] += count
            if not cut:
                decoding[index] = True
                given_out[index] += 1


def assert_first_come_first_served(instance: Instance, schedule: Schedule) -> None:
    first: dict[int, int] = {}
    for number, batch in enumerate(schedule.batches):
        for index, _ in batch.run:
            first.setdefault(index, number)
    order = sorted(range(len(instance.requests)), key=lambda index: instance.requests[index].arrival_ps)
    starts = [first[index] for index in order]
    assert starts == sorted(starts)


def assert_no_idling(instance: Instance, schedule: Schedule) -> None:
    """A batch starts when the previous one ends, or at the next arrival if none is left."""
    last = {index: number for number, batch in enumerate(schedule.batches) for index, _ in batch.run}
    now = 0
    for number, batch in enumerate(schedule.batches):
        unfinished = [r.arrival_ps for index, r in enumerate(instance.requests) if last[index] >= number]
        assert batch.start_ps == max(now, min(unfinished))
        now = batch.end_ps


def scaled(instance: Instance, factor: int) -> Instance:
    cost = instance.cost
    coefficients: dict[str, Any] = {
        name: factor * getattr(cost, name)
        for name in (field.name for field in fields(cost))
        if name not in {"pieces", "swap_overlap"}
    }
    pieces = tuple((factor * base, factor * token) for base, token in cost.pieces)
    return replace(
        instance,
        cost=replace(cost, **coefficients, pieces=pieces),
        requests=tuple(replace(request, arrival_ps=factor * request.arrival_ps) for request in instance.requests),
    )


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(instances(), st.sampled_from(sorted(RUNNERS)))
def test_scale_of_time_changes_no_decision(instance: Instance, name: str) -> None:
    found = outcome(instance, RUNNERS[name])
    slow = outcome(scaled(instance, 3), RUNNERS[name])
    if isinstance(found, Schedule):
        assert slow == Schedule(
            tuple(replace(batch, start_ps=3 * batch.start_ps, end_ps=3 * batch.end_ps) for batch in found.batches)
        )
    else:
        index, now_ps, reason = found
        assert slow == (index, 3 * now_ps, reason)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(instances(), st.sampled_from(BASES))
def test_eviction_free_variant_differs_only_if_memory_is_short(instance: Instance, name: str) -> None:
    occupied = instance.limits.occupied
    ample = sum(occupied(request.peak_tokens) for request in instance.requests)
    roomy = replace(instance, limits=replace(instance.limits, kv_tokens=ample))
    assert outcome(roomy, RUNNERS[f"{name}_ef"]) == outcome(roomy, RUNNERS[name])


# InferMax's own --------------------------------------------------------------------------------------------


def test_the_shortest_is_evicted() -> None:
    """After two batches they hold 2 and 6 of 9 tokens, and only one can grow; Sarathi keeps the first to arrive."""
    instance = problem(Request(1, 5), Request(5, 4), kv=9)
    long_first = decisions(instance, InferMax(histogram=False))
    assert long_first == [
        ([(0, 1), (1, 5)], []),
        ([(0, 1), (1, 1)], []),
        ([(1, 1)], [0]),
        ([(1, 1)], []),
        ([(0, 3)], []),
        ([(0, 1)], []),
        ([(0, 1)], []),
    ]
    assert ([(0, 1)], [1]) in decisions(instance, InferMax(long_first=False, histogram=False))


def test_admission_compares_the_estimate_with_what_is_held() -> None:
    """Section 3.1, step 3: m_reserve ≤ M − Σ m. The first request teaches Ô = 3, so the others ask for 2 + 3 − 1 = 4.

    With M = 7 the third joins the second, 4 ≤ 7 − 2; both hold 3 when 4 are needed twice, and one of them is evicted.
    With M = 5 it does not, 4 > 5 − 2, although both prompts would fit.
    """
    requests = Request(2, 3), Request(2, 3, arrival_ps=35), Request(2, 3, arrival_ps=35)
    assert decisions(problem(*requests, kv=7), INFERMAX)[3:] == [
        ([(1, 2), (2, 2)], []),
        ([(1, 1), (2, 1)], []),
        ([(1, 1)], [2]),
        ([(2, 4)], []),
    ]
    one_by_one: list[Decision] = [([(index, count)], []) for index in (1, 2) for count in (2, 1, 1)]
    assert decisions(problem(*requests, kv=5), INFERMAX)[3:] == one_by_one
    assert decisions(problem(*requests, kv=5), InferMax(histogram=False))[3] == ([(1, 2), (2, 2)], [])
    # Against the sum of the reservations, 4 ≤ 7 − 4 does not hold either.
    assert decisions(problem(*requests, kv=7), InferMax(check=Check.RESERVED))[3:] == one_by_one


def test_a_decode_holds_what_it_has_processed() -> None:
    """After three batches request 1 has ended, so Ô = 3, and request 0 holds 4 of 10 tokens, with the next one 5.

    A prompt of 4 asks for 4 + 3 − 1 = 10 − 4 and joins; one of 5 asks for 7 and waits.
    """
    fits, waits = (
        decisions(problem(Request(2, 9), Request(2, 3), Request(size, 3, arrival_ps=25), kv=10), INFERMAX)[3]
        for size in (4, 5)
    )
    assert fits == ([(0, 1), (2, 4)], [])
    assert waits == ([(0, 1)], [])


@pytest.mark.parametrize("check", Check)
def test_an_estimate_asks_for_no_more_than_the_whole_blocks(check: Check) -> None:
    """Three blocks of 2 fit 7 tokens of cache; the second request is expected to need 3 + 5 − 1 = 7 tokens."""
    instance = problem(Request(2, 5), Request(3, 4, arrival_ps=55), kv=7, block=2)
    assert decisions(instance, InferMax(check=check))[5] == ([(1, 3)], [])


def test_worked_histogram() -> None:
    histogram = Histogram()
    assert [histogram.expected(generated) for generated in (0, 7)] == [1, 8]
    for output in (2, 4, 4):
        histogram.add(output)
    # Of all 10/3, rounded up, of those beyond 2 tokens 4; none was longer than that.
    assert [histogram.expected(generated) for generated in (0, 1, 2, 3, 4, 9)] == [4, 4, 4, 4, 5, 10]


@pytest.mark.parametrize(
    ("quantile", "expected"),
    # Of 2, 4, 4, 10: at least 1, 2 or 3.6 of four; at least 0.75, 1.5 or 2.7 of three beyond 2; the one beyond 4.
    [((1, 4), [2, 4, 10, 11]), ((1, 2), [4, 4, 10, 11]), ((9, 10), [10, 10, 10, 11]), ((1, 1), [10, 10, 10, 11])],
)
def test_worked_quantiles(quantile: tuple[int, int], expected: list[int]) -> None:
    histogram = Histogram(Fraction(*quantile))
    for output in (4, 10, 2, 4):
        histogram.add(output)
    assert [histogram.expected(generated) for generated in (0, 2, 4, 10)] == expected


def test_every_run_has_its_own_histogram() -> None:
    """With what the first run saw each would ask for 4 of 5 tokens in the second, not for 2."""
    instance = problem(Request(2, 3), Request(2, 3), kv=5)
    schedules = [simulate(instance, "infermax").schedule for _ in range(2)]
    for schedule in schedules:
        assert schedule is not None
        assert schedule.batches[0].run == ((0, 2), (1, 2))


# InferMax's ranks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "requests", "first_tokens"),
    [
        # Section 4.6: prefill and decode times (1, 1) and (2, 1); R1 first: (1 + (1 + 1 + 2)) / 2 = 5 / 2.
        ("rank_i", ((2, 2), (1, 2)), [4, 1]),
        # R2 first: (2 + (2 + 1 + 1)) / 2 = 6 / 2.
        ("rank_org", ((2, 2), (1, 2)), [2, 4]),
        # Times (1, 1) and (1, 2); R1 first: (1 + (1 + 1 + 1)) / 2 = 4 / 2.
        ("rank_o", ((1, 3), (1, 2)), [3, 1]),
        # R2 first: (1 + (1 + 2 + 1)) / 2 = 5 / 2; prompts are equal, so the shorter does not help.
        ("rank_i", ((1, 3), (1, 2)), [1, 4]),
    ],
)
def test_the_ranks_of_the_paper_s_example(
    policy: str, requests: tuple[tuple[int, int], ...], first_tokens: list[int]
) -> None:
    """A token takes 1 ps, and one request runs in a batch; R2 arrives before R1."""
    instance = problem(*(Request(*lengths) for lengths in requests), runs=1, cost=CostModel(base=0, token=1))
    tally = tally_of(instance, served(instance, policy))
    assert list(tally.first) == first_tokens
