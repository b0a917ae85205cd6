"""The checker against hand-worked schedules, one broken rule at a time, and documents that lie."""

from __future__ import annotations

import ast
import copy
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import playing
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from playing import COST

import optsched_formulations
from optsched import check
from optsched.check import Report, check_result, check_schedule
from optsched.check.certificates.kinds import PROOFS
from optsched.model.cost import CostModel
from optsched.model.documents import dump, parse_results, result_document
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import evaluate
from optsched.model.objectives import PLAIN_OBJECTIVES, Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.model.schedule import Assignment, Batch, Schedule, timed
from optsched.model.state import RequestState

FREE = CostModel(base=0, token=0)
UNRESTRICTED = Restrictions()
Document = dict[str, Any]
problem = partial(playing.problem, kv=100, budget=100, cost=COST)


def plan(*batches: Batch) -> Schedule:
    return Schedule(batches)


def asap(instance: Instance, *assignments: tuple[list[tuple[int, int]], list[int]]) -> Schedule:
    """Time ``(run, evict)`` batches; used for broken schedules only, legal ones are timed by hand."""
    return timed(instance, [Assignment(run, evict) for run, evict in assignments])


def no_profiles(name: str) -> CostModel:
    raise AssertionError(name)


def check_document(document: Document) -> Report:
    return check_result(parse_results(dump(document).encode(), no_profiles)[0])


def check_round_trip(result: Result) -> Report:
    return check_document(result_document(result))


# Legal schedules, worked by hand ---------------------------------------------------------------------------


class Worked(NamedTuple):
    instance: Instance
    schedule: Schedule
    objectives: tuple[int, ...]  # in the order of Objective
    others: dict[str, Any]


DECODES = Worked(
    problem(Request(3, 3)),
    plan(
        Batch(0, 155, ((0, 3),)),  # max(130, 120) + 2·9 + 7 = 155
        Batch(155, 273, ((0, 1),)),  # max(110, 40) + 3 + 5 = 118
        Batch(273, 392, ((0, 1),)),  # 110 + 4 + 5 = 119
    ),
    (392, 155, 155, 392, 392, 392, 0, 155, 155, 155, 392, 392, 392, 237 // 2, 119),
    {
        "batches": 3,
        "recomputed_tokens": 0,
        "peak_kv_tokens": 5,
        # (392 − 155) / 2 for the only request
        "tpot_ps": {"mean": 118.5, "p50": 118.5, "p90": 118.5, "p95": 118.5, "p99": 118.5, "max": 118.5},
        "tbt_ps": {"mean": 118.5, "p50": 118, "p90": 119, "p95": 119, "p99": 119, "max": 119},
        "output_tokens_per_s": 3 * 10**12 / 392,
        "slo_attainment": 1.0,
    },
)

CHUNKED = Worked(
    problem(Request(5, 2), prefill=3),
    plan(
        Batch(0, 155, ((0, 3),)),  # max(130, 120) + 2·9 + 7 = 155
        Batch(155, 323, ((0, 2),)),  # m = 3: max(120, 80) + 2 (4 + 12) + 3·3 + 7 = 168
        Batch(323, 443, ((0, 1),)),  # m = 5: 110 + 5 + 5 = 120
    ),
    (443, 323, 323, 443, 443, 443, 0, 323, 323, 323, 443, 443, 443, 120, 120),
    {"evictions": 0, "recomputed_tokens": 0, "peak_kv_tokens": 6, "requests_per_s": 10**12 / 443},
)

# After batch 1 both hold 3 of 6 tokens. The next token of one makes 4 + 3 = 7, so the other must go.
EVICTION = Worked(
    problem(Request(2, 3), Request(2, 3), kv=6),
    plan(
        Batch(0, 190, ((0, 2), (1, 2))),  # x = 4: max(140, 160) + 2 (2·4 + 7) = 190
        Batch(190, 324, ((0, 1), (1, 1))),  # max(120, 80) + 2 (2 + 5) = 134
        Batch(324, 442, ((0, 1),), (1,)),  # 110 + 3 + 5 = 118
        Batch(442, 641, ((1, 4),)),  # refill of 2 + 2: max(140, 160) + 2·16 + 7 = 199
    ),
    (641, 380, 190, 442 + 641, 641, 442 + 641, 0, 190, 190, 190, 442, 641, 641, 252 // 2 + 451 // 2, 317),
    {
        "evictions": 1,
        "recomputed_tokens": 3,  # 4 + 2 + 1 + 4 run, 4 + 4 needed
        "peak_kv_tokens": 6,
        "kv_utilisation": (4 * 190 + 6 * 134 + 4 * 118 + 4 * 199) / (6 * 641),
        "token_utilisation": 11 / 400,
        # Request 0: 324 − 190 = 134 and 118; request 1: 134 and, evicted and refilled, 641 − 324 = 317.
        "tbt_ps": {"mean": 175.75, "p50": 134, "p90": 317, "p95": 317, "p99": 317, "max": 317},
        # Request 1 waits while request 0 runs alone, 118 of 641 ps, 18 %.
        "queue_length_over_time": {"mean": 118 / 641, "p50": 0, "p90": 1, "p95": 1, "p99": 1, "max": 1},
        # 4 of 6 tokens for 507 ps, 79 %; 6 for 134.
        "kv_utilisation_over_time": {
            "mean": (4 * 507 + 6 * 134) / (6 * 641), "p50": 4 / 6, "p90": 1.0, "p95": 1.0, "p99": 1.0, "max": 1.0
        },
        # Of 100 tokens 1 runs for 118 ps, 2 for 134: 39 % with it; 4 for 190 + 199.
        "token_utilisation_over_time": {
            "mean": (118 + 2 * 134 + 4 * 389) / 64100, "p50": 0.04, "p90": 0.04, "p95": 0.04, "p99": 0.04, "max": 0.04
        },
        "mean_resident_requests": 1.5,  # 2, 2, 1, 1
        "mean_batch_requests": 1.5,  # 2, 2, 1, 1
    },
)  # fmt: skip

# 11 tokens are 2 whole blocks of 4. Request 1 needs both for its 5 tokens, so request 0 goes first.
BLOCKS = Worked(
    problem(Request(3, 2), Request(4, 2), kv=11, block=4),
    plan(
        Batch(0, 344, ((0, 3), (1, 4))),  # x = 7: max(170, 280) + (2·9 + 7) + (2·16 + 7) = 344
        Batch(344, 462, ((0, 1),)),  # 110 + 3 + 5 = 118; occupied 4 + 4, request 1 is kept
        Batch(462, 581, ((1, 1),)),  # 110 + 4 + 5 = 119; occupied 8
    ),
    (581, 344 + 344, 344, 462 + 581, 581, 462 + 581, 0, 344, 344, 344, 462, 581, 581, 118 + 237, 237),
    {"peak_kv_tokens": 8, "kv_utilisation": 8 / 11, "mean_resident_requests": 5 / 3},
)

ARRIVALS = Worked(
    problem(
        Request(1, 1, arrival_ps=50, weight=3, slo_ttft_ps=119, slo_e2e_ps=119),
        Request(2, 2, arrival_ps=1000, weight=2, slo_ttft_ps=135, slo_e2e_ps=251),
    ),
    plan(
        Batch(50, 169, ((0, 1),)),  # 110 + 2 + 7 = 119, just in time for the SLOs
        Batch(1000, 1135, ((1, 2),)),  # idle until 1000; 120 + 2·4 + 7 = 135
        Batch(1135, 1252, ((1, 1),)),  # 110 + 2 + 5 = 117, in all 252: 1 too late
    ),
    (1202, 119 + 135, 135, 119 + 252, 252, 3 * 119 + 2 * 252, 1, 119, 135, 135, 119, 252, 252, 117, 117),
    {
        "ttft_ps": {"mean": 127.0, "p50": 119, "p90": 135, "p95": 135, "p99": 135, "max": 135},
        "tpot_ps": {"mean": 117.0, "p50": 117.0, "p90": 117.0, "p95": 117.0, "p99": 117.0, "max": 117.0},
        # 119 / 1 and 135 / 2
        "ttft_per_input_ps": {
            "mean": 93.25, "p50": 67.5, "p90": 119.0, "p95": 119.0, "p99": 119.0, "max": 119.0
        },
        # 119 / 1 and 252 / 2
        "e2e_per_output_ps": {
            "mean": 122.5, "p50": 119.0, "p90": 126.0, "p95": 126.0, "p99": 126.0, "max": 126.0
        },
        "goodput_requests_per_s": 10**12 / 1202,
        "slo_attainment": 0.5,
        "kv_utilisation": (1 * 119 + 2 * 135 + 3 * 117) / (100 * (119 + 135 + 117)),  # idle time left out
        "tbt_ps": {"mean": 117.0, "p50": 117, "p90": 117, "p95": 117, "p99": 117, "max": 117},
        "queue_length_over_time": {"mean": 0.0, "p50": 0, "p90": 0, "p95": 0, "p99": 0, "max": 0},
        # Of the 1202 ps from 50 on the machine idles for 831, 69 %; with 119 it is 79 %, with 135 90.3 %.
        "kv_utilisation_over_time": {
            "mean": (119 + 2 * 135 + 3 * 117) / 120200, "p50": 0.0, "p90": 0.02, "p95": 0.03, "p99": 0.03, "max": 0.03
        },
        # One token runs for 119 + 117 ps: 88.8 % with the idle time.
        "token_utilisation_over_time": {
            "mean": (236 + 2 * 135) / 120200, "p50": 0.0, "p90": 0.02, "p95": 0.02, "p99": 0.02, "max": 0.02
        },
    },
)  # fmt: skip

# A refill in two chunks: the second one is a prefill step although only one token is left.
CHUNKED_REFILL = Worked(
    problem(Request(2, 2), Request(1, 1)),
    plan(
        Batch(0, 135, ((0, 2),)),  # 120 + 2·4 + 7 = 135
        Batch(135, 254, ((1, 1),), (0,)),  # 110 + 2 + 7 = 119
        Batch(254, 389, ((0, 2),)),  # 120 + 2·4 + 7 = 135
        Batch(389, 522, ((0, 1),)),  # m = 2: 110 + 2 (1 + 4) + 3·2 + 7 = 133
    ),
    (522, 135 + 254, 254, 522 + 254, 522, 522 + 254, 0, 135, 254, 254, 254, 522, 522, 522 - 135, 387),
    {"evictions": 1, "recomputed_tokens": 2},
)

FREE_OF_CHARGE = Worked(
    problem(Request(1, 1), cost=FREE),
    plan(Batch(0, 0, ((0, 1),))),
    (0,) * 15,
    {
        "tpot_ps": None,
        "tbt_ps": None,
        "requests_per_s": None,
        "kv_utilisation": None,
        "queue_length_over_time": None,
        "kv_utilisation_over_time": None,
        "token_utilisation_over_time": None,
    },
)

WORKED = {
    "decodes": DECODES,
    "chunked": CHUNKED,
    "eviction": EVICTION,
    "blocks": BLOCKS,
    "arrivals": ARRIVALS,
    "chunked refill": CHUNKED_REFILL,
    "free of charge": FREE_OF_CHARGE,
}
each_worked = pytest.mark.parametrize("worked", WORKED.values(), ids=WORKED)


@each_worked
def test_legal_schedule_has_the_worked_metrics(worked: Worked) -> None:
    violations, metrics = check_schedule(worked.instance, worked.schedule)
    assert violations == []
    assert metrics is not None
    assert metrics["objectives"] == dict(zip(PLAIN_OBJECTIVES, worked.objectives, strict=True))
    assert {name: metrics[name] for name in worked.others} == worked.others


@each_worked
def test_checker_and_model_agree_on_metrics(worked: Worked) -> None:
    assert check_schedule(worked.instance, worked.schedule)[1] == evaluate(worked.instance, worked.schedule)


@pytest.mark.parametrize(
    "changes",
    [
        {"base": 101}, {"token": 11}, {"pieces": ((0, 41),)}, {"pieces": ((1, 40),)}, {"pieces": ()},
        {"decode_kv": 2}, {"decode_req": 6}, {"prefill_sq": 3}, {"prefill_kv": 4}, {"prefill_req": 8},
    ],
    ids=str,
)  # fmt: skip
def test_every_coefficient_counts(changes: dict[str, Any]) -> None:
    for worked in (CHUNKED, EVICTION):
        other = replace(worked.instance, cost=replace(COST, **changes))
        if any("must end" in violation for violation in check_schedule(other, worked.schedule)[0]):
            return
    pytest.fail("no batch time changed")


# One broken rule at a time ---------------------------------------------------------------------------------


def a_run_of_no_token() -> Schedule:
    """Build what the data classes refuse to hold."""
    batch = Batch(0, 119, ((0, 1),))
    object.__setattr__(batch, "run", ((0, 1), (1, 0)))
    return plan(batch, Batch(119, 238, ((1, 1),)))


SMALL = Request(1, 1)  # alone in a batch: 110 + 2 + 7 = 119
TWO_SMALL = problem(SMALL, SMALL)
EVICT_AND_REFILL = problem(Request(2, 2), SMALL)
EVICTED_AND_REFILLED = asap(EVICT_AND_REFILL, ([(0, 2)], []), ([(1, 1)], [0]), ([(0, 3)], []))
NO_HYBRID, NO_CHUNKS, NO_EVICTION = Rules(hybrid=False), Rules(chunked_prefill=False), Rules(eviction=False)


def broken(
    name: str,
    instance: Instance,
    schedule: Schedule | list[tuple[list[tuple[int, int]], list[int]]],
    violation: str,
    forbid: Sequence[str] = (),
) -> Any:
    timetable = asap(instance, *schedule) if isinstance(schedule, list) else schedule
    return pytest.param(instance, timetable, Restrictions(tuple(forbid)), violation, id=name)


def test_nothing_goes_unsaid_after_a_violation() -> None:
    # A prompt of one token and two decode steps, all before the request arrives; every batch takes 10 ps.
    early = Instance("early", Limits(9, 9, 9), Rules(), CostModel(base=10, token=0), (Request(1, 3, arrival_ps=1000),))
    batches = tuple(Batch(start, start + 10, ((0, 1),)) for start in (0, 10, 20))
    violations, metrics = check_schedule(early, Schedule(batches))
    assert metrics is None
    assert [text.partition(":")[0] for text in violations if "before it arrives" in text] == [
        "batch 0",
        "batch 1",
        "batch 2",
    ]


BROKEN = [
    broken(
        "before its arrival",
        problem(replace(SMALL, arrival_ps=1000)),
        plan(Batch(999, 1118, ((0, 1),))),
        "batch 0: request 0 runs before it arrives: the batch starts at 999 ps, the request arrives at 1000 ps",
    ),
    broken(
        "overlap",
        TWO_SMALL,
        plan(Batch(0, 119, ((0, 1),)), Batch(118, 237, ((1, 1),))),
        "batch 1: starts at 118 ps, before the previous batch has ended at 119 ps",
    ),
    broken(
        "ends too early",
        problem(SMALL),
        plan(Batch(5, 123, ((0, 1),))),
        "batch 0: ends at 123 ps, but it starts at 5 ps and takes 119 ps, so it must end at 124 ps",
    ),
    broken(
        "ends too late",
        problem(SMALL),
        plan(Batch(5, 125, ((0, 1),))),
        "batch 0: ends at 125 ps, but it starts at 5 ps and takes 119 ps, so it must end at 124 ps",
    ),
    broken(
        "no run",
        problem(SMALL),
        plan(Batch(0, 119, ((0, 1),)), Batch(119, 219, ())),
        "batch 1: has 0 runs, at least 1 is required",
    ),
    broken(
        "runs twice",
        problem(Request(2, 3)),
        [([(0, 2)], []), ([(0, 1), (0, 1)], [])],
        "batch 1: request 0 runs 2 times, at most 1 is allowed",
    ),
    broken(
        "evicted and run",
        problem(Request(2, 2)),
        [([(0, 2)], []), ([(0, 3)], [0])],
        "batch 1: request 0 is evicted and runs, only 1 of both is allowed",
    ),
    broken(
        "evicted twice",
        EVICT_AND_REFILL,
        [([(0, 2)], []), ([(1, 1)], [0, 0]), ([(0, 3)], [])],
        "batch 1: request 0 is evicted 2 times, at most 1 is allowed",
    ),
    broken(
        "run of no request",
        problem(SMALL),
        plan(Batch(0, 119, ((0, 1), (1, 1)))),
        "batch 0: request 1 runs, but requests are numbered from 0 to 0",
    ),
    broken(
        "eviction of no request",
        problem(SMALL),
        plan(Batch(0, 119, ((0, 1),), (7,))),
        "batch 0: request 7 is evicted, but requests are numbered from 0 to 0",
    ),
    broken(
        "finished runs",
        TWO_SMALL,
        plan(Batch(0, 119, ((0, 1),)), Batch(119, 238, ((1, 1), (0, 1)))),
        "batch 1: request 0 runs, but it is finished: it has generated 1 of 1 tokens",
    ),
    broken(
        "finished evicted",
        TWO_SMALL,
        [([(0, 1)], []), ([(1, 1)], [0])],
        "batch 1: request 0 is evicted, but it is finished: it has generated 1 of 1 tokens",
    ),
    broken(
        "run of no token",
        TWO_SMALL,
        a_run_of_no_token(),
        "batch 0: request 1 runs 0 tokens, at least 1 is required",
    ),
    broken(
        "more tokens than there are",
        problem(Request(2, 1)),
        [([(0, 3)], [])],
        "batch 0: request 0 runs 3 tokens in a prefill step, at most the 2 tokens that exist and are not "
        "cached are allowed",
    ),
    broken(
        "decode of two tokens",
        problem(Request(2, 2)),
        [([(0, 2)], []), ([(0, 2)], [])],
        "batch 1: request 0 runs 2 tokens in a decode step, exactly 1 is allowed",
    ),
    broken(
        "chunk by rules",
        problem(Request(2, 1), rules=NO_CHUNKS),
        [([(0, 1)], []), ([(0, 1)], [])],
        "batch 0: request 0 runs 1 tokens in a prefill step, but without chunked prefill all 2 missing tokens must run",
    ),
    broken(
        "chunk by restrictions",
        problem(Request(2, 1)),
        [([(0, 1)], []), ([(0, 1)], [])],
        "batch 0: request 0 runs 1 tokens in a prefill step, but without chunked prefill all 2 missing tokens must run",
        ["chunked"],
    ),
    broken(
        "token budget",
        problem(Request(1, 2), Request(3, 1), budget=3),
        [([(0, 1)], []), ([(0, 1), (1, 3)], [])],
        "batch 1: runs 4 tokens, at most 3 are allowed",
    ),
    broken(
        "prefill budget",
        problem(Request(2, 1), Request(2, 1), prefill=3),
        [([(0, 2), (1, 2)], [])],
        "batch 0: runs 4 tokens in prefill steps, at most 3 are allowed",
    ),
    broken(
        "runs",
        problem(SMALL, SMALL, runs=1),
        [([(0, 1), (1, 1)], [])],
        "batch 0: has 2 runs, at most 1 are allowed",
    ),
    broken(
        "memory with a kept request",
        problem(Request(4, 2), Request(3, 1), kv=6),
        [([(0, 4)], []), ([(1, 3)], []), ([(0, 1)], [])],
        "batch 1: 7 KV tokens are occupied, at most 6 are allowed (blocks of 1 in 6)",
    ),
    broken(
        "memory with a kept chunk",
        problem(Request(3, 1), Request(3, 1), kv=4),
        [([(0, 2)], []), ([(1, 3)], []), ([(0, 1)], [])],
        "batch 1: 5 KV tokens are occupied, at most 4 are allowed (blocks of 1 in 4)",
    ),
    broken(
        "memory with finishing requests",
        problem(Request(2, 1), Request(3, 1), kv=4),
        [([(0, 2), (1, 3)], [])],
        "batch 0: 5 KV tokens are occupied, at most 4 are allowed (blocks of 1 in 4)",
    ),
    broken(
        "memory in blocks",
        BLOCKS.instance,
        [([(0, 3), (1, 4)], []), ([(0, 1), (1, 1)], [])],
        "batch 1: 12 KV tokens are occupied, at most 8 are allowed (blocks of 4 in 11)",
    ),
    broken(
        "hybrid by rules",
        problem(Request(1, 2), SMALL, rules=NO_HYBRID),
        [([(0, 1)], []), ([(0, 1), (1, 1)], [])],
        "batch 1: mixes 1 prefill and 1 decode steps, but hybrid batches are forbidden",
    ),
    broken(
        "hybrid by restrictions",
        problem(Request(1, 2), SMALL),
        [([(0, 1)], []), ([(0, 1), (1, 1)], [])],
        "batch 1: mixes 1 prefill and 1 decode steps, but hybrid batches are forbidden",
        ["hybrid"],
    ),
    broken(
        "hybrid by the last token of a refill",
        problem(Request(2, 2), Request(1, 2), SMALL, rules=NO_HYBRID),
        [([(0, 2), (1, 1)], []), ([(2, 1)], [0]), ([(0, 2)], []), ([(0, 1), (1, 1)], [])],
        "batch 3: mixes 1 prefill and 1 decode steps, but hybrid batches are forbidden",
    ),
    broken(
        "eviction by rules",
        problem(*EVICT_AND_REFILL.requests, rules=NO_EVICTION),
        EVICTED_AND_REFILLED,
        "batch 1: request 0 is evicted, but eviction is forbidden",
    ),
    broken(
        "eviction by restrictions",
        EVICT_AND_REFILL,
        EVICTED_AND_REFILLED,
        "batch 1: request 0 is evicted, but eviction is forbidden",
        ["hybrid", "eviction"],
    ),
    broken(
        "eviction of nothing",
        EVICT_AND_REFILL,
        [([(1, 1)], [0]), ([(0, 2)], []), ([(0, 1)], [])],
        "batch 0: request 0 is evicted with 0 cached tokens, at least 1 is required",
    ),
    broken(
        "unfinished",
        problem(Request(2, 3)),
        [([(0, 2)], [])],
        "request 0 is unfinished at the end of the schedule: it has generated 1 tokens and must generate 3",
    ),
    broken(
        "nothing done",
        problem(SMALL),
        plan(),
        "request 0 is unfinished at the end of the schedule: it has generated 0 tokens and must generate 1",
    ),
    broken(
        "other replica",
        problem(SMALL),
        plan(Batch(0, 119, ((0, 1),), (), 1)),
        "batch 0: runs on replica 1, the only replica is 0",
    ),
    broken(
        "instance without any schedule",
        problem(Request(4, 3), kv=5),
        [([(0, 4)], []), ([(0, 1)], []), ([(0, 1)], [])],
        "batch 2: 6 KV tokens are occupied, at most 5 are allowed (blocks of 1 in 5)",
    ),
]


@pytest.mark.parametrize(("instance", "schedule", "restrictions", "violation"), BROKEN)
def test_broken_rule_is_named_and_nothing_else(
    instance: Instance, schedule: Schedule, restrictions: Restrictions, violation: str
) -> None:
    assert check_schedule(instance, schedule, restrictions) == ([violation], None)


def test_limits_may_be_used_up() -> None:
    instance = problem(Request(1, 2), Request(3, 1), SMALL, kv=6, budget=5, prefill=4, runs=3)
    # 110 + 2 + 7 = 119; then x = 5: max(150, 200) + (1 + 5) + (2·9 + 7) + (2 + 7) = 240; held 2 + 3 + 1
    schedule = plan(Batch(0, 119, ((0, 1),)), Batch(119, 359, ((0, 1), (1, 3), (2, 1))))
    assert check_schedule(instance, schedule)[0] == []


def test_a_single_cached_token_can_be_evicted() -> None:
    instance = problem(Request(1, 2), SMALL)
    # The refill of 2 tokens: 120 + 2·4 + 7 = 135.
    schedule = plan(Batch(0, 119, ((0, 1),)), Batch(119, 238, ((1, 1),), (0,)), Batch(238, 373, ((0, 2),)))
    assert check_schedule(instance, schedule)[0] == []


def test_percentiles_of_many_requests() -> None:
    instance = problem(*[SMALL] * 200)
    schedule = plan(*(Batch(119 * i, 119 * i + 119, ((i, 1),)) for i in range(200)))
    metrics = check_schedule(instance, schedule)[1]
    assert metrics is not None
    # Waits are 119 · 1, …, 119 · 200; percentile q is the 2 q-th.
    assert metrics["ttft_ps"] == {
        "mean": 119 * 100.5, "p50": 119 * 100, "p90": 119 * 180, "p95": 119 * 190, "p99": 119 * 198,
        "max": 119 * 200,
    }  # fmt: skip
    assert metrics == evaluate(instance, schedule)


def test_permitted_deeds_stay_permitted_under_other_restrictions() -> None:
    assert check_schedule(EVICT_AND_REFILL, EVICTED_AND_REFILLED, Restrictions(("hybrid", "chunked")))[0] == []
    assert check_schedule(CHUNKED.instance, CHUNKED.schedule, Restrictions(("eviction", "hybrid")))[0] == []


def test_all_violations_are_listed_in_order() -> None:
    # Batch 1 overlaps and evicts a request that has nothing; the refilled request still runs as stated.
    instance = problem(Request(2, 2), SMALL, SMALL, rules=NO_EVICTION)
    schedule = plan(
        Batch(0, 135, ((0, 2),)),
        Batch(130, 249, ((1, 1),), (0, 2)),
        Batch(249, 408, ((0, 3),)),  # max(130, 120) + 2·9 + 7 = 155, not 159
    )
    violations, metrics = check_schedule(instance, schedule)
    assert metrics is None
    assert [violation.split(",")[0] for violation in violations] == [
        "batch 1: starts at 130 ps",
        "batch 1: request 0 is evicted",
        "batch 1: request 2 is evicted",
        "batch 1: request 2 is evicted with 0 cached tokens",
        "batch 2: ends at 408 ps",
        "request 2 is unfinished at the end of the schedule: it has generated 0 tokens and must generate 1",
    ]


# Documents -------------------------------------------------------------------------------------------------


def volume(weights: Sequence[object] = (1, 0), release_ps: object = 0) -> dict[str, Any]:
    return {"kind": "volume", "piece_weights": list(weights), "release_ps": release_ps}


def solved(worked: Worked = DECODES, **changes: Any) -> Result:
    """Return a result with the worked schedule, its metrics and its makespan."""
    fields: dict[str, Any] = {
        "instance": worked.instance,
        "method": "test",
        "objective": Objective.MAKESPAN,
        "status": Status.FEASIBLE,
        "value": worked.objectives[0],
        "schedule": worked.schedule,
        "metrics": evaluate(worked.instance, worked.schedule),
    }
    return Result(**fields | changes)


def proved() -> Document:
    """Return an optimal document: 3 batches of 100, and 55 + 18 + 19 of the request's own, are 392."""
    return result_document(solved(status=Status.OPTIMAL, badge=Badge.CERTIFIED, bound=392, certificate=volume()))


def put(path: str, value: object) -> Callable[[Document], None]:
    """Return a change of one field; numbers in the path are list positions."""

    def change(document: Document) -> None:
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("/"))
        found: Any = document
        for step in steps:
            found = found[step]
        found[last] = value

    return change


LIES = [
    ("instance/limits/kv_tokens", 99, "instance_sha256 is "),
    ("instance/requests/0/weight", 2, "instance_sha256 is "),
    ("instance/rules/hybrid", False, "instance_sha256 is "),
    ("instance_sha256", "0" * 64, "instance_sha256 is '000"),
    ("objective", "mean_ttft", "value is 392, but mean_ttft of the schedule is 155"),
    ("status", "feasible", "status is feasible, but value and bound are both 392, which is optimal"),
    ("status", "bound_only", "status is bound_only, but the bound is null or there is a schedule"),
    ("status", "infeasible", "status is infeasible, but each request can be served"),
    ("status", "infeasible", "status is infeasible, but there is a value of 392"),
    ("status", "unknown", "status is unknown, but there is a value of 392"),
    ("status", "unknown", "status is unknown, but there is a bound of 392"),
    ("status", "failed", "status is failed, but there is a value of 392"),
    ("badge", "heuristic", "badge is heuristic, but the bound is 392; heuristic means no bound"),
    ("value", 393, "value is 393, but makespan of the schedule is 392"),
    ("value", 391, "bound is 392, at most the value 391 is possible"),
    ("value", None, "value is null, but there is a schedule"),
    ("value", None, "status is optimal, but value None and bound 392 are not two equal numbers"),
    ("value", None, "gap is 0.0, but without both value and bound it must be null"),
    ("bound", 393, "bound is 393, at most the value 392 is possible"),
    ("bound", 393, "certificate: it proves a bound of 392, less than the stated 393"),
    ("bound", 391, "status is optimal, but value 392 and bound 391 are not two equal numbers"),
    ("bound", 343, "gap is 0.0, expected (value - bound) / value = 0.125"),
    ("bound", None, "badge is certified, but the bound is None; heuristic means no bound"),
    ("bound", None, "status is optimal, but value 392 and bound None are not two equal numbers"),
    ("gap", 0.25, "gap is 0.25, expected (value - bound) / value = 0.0"),
    ("gap", None, "gap is None, expected (value - bound) / value = 0.0"),
    ("schedule", None, "value is 392, but there is no schedule that has it"),
    ("schedule", None, "metrics are stated, but there is no schedule that has them"),
    (
        "schedule/batches/1/start_ps",
        154,
        "batch 1: starts at 154 ps, before the previous batch has ended at 155",
    ),
    ("schedule/batches/2/end_ps", 391, "batch 2: ends at 391 ps"),
    ("schedule/batches/2/run/0/1", 2, "batch 2: request 0 runs 2 tokens in a decode step, exactly 1"),
    ("restrictions", {"forbid": ["chunked"]}, None),
    ("metrics", None, "metrics is null, but there is a schedule"),
    ("metrics/batches", 4, "metrics.batches is 4, of the schedule it is 3"),
    ("metrics/evictions", False, "metrics.evictions is False, of the schedule it is 0"),
    (
        "metrics/tpot_ps/p90",
        118.50000000000001,
        "metrics.tpot_ps.p90 is 118.50000000000001, of the schedule it",
    ),
    ("metrics/tpot_ps", None, "metrics.tpot_ps is None, expected an object"),
    ("metrics/objectives/max_e2e", 391, "metrics.objectives.max_e2e is 391, of the schedule it is 392"),
    ("metrics/objectives/luck", 7, "metrics.objectives.'luck' is stated, but there is no such metric"),
    ("certificate", None, "certificate: there is none, but the badge is certified"),
    ("certificate/kind", "faith", "certificate: kind is 'faith', expected one of alone"),
    ("certificate/kind", ["volume"], "certificate: kind is ['volume'], expected one of alone"),
    ("certificate/piece_weights", [1, 1], "certificate: it proves a bound of 317, less than the stated 392"),
    ("certificate/piece_weights", [0, 0], "certificate: piece_weights is [0, 0], expected 2 integers ≥ 0"),
    ("certificate/piece_weights", [2, -1], "certificate: piece_weights is [2, -1], expected 2 integers ≥ 0"),
    ("certificate/piece_weights", [1], "certificate: piece_weights is [1], expected 2 integers ≥ 0"),
    (
        "certificate/piece_weights",
        [1, 0.0],
        "certificate: piece_weights is [1, 0.0], expected 2 integers ≥ 0",
    ),
    ("certificate/piece_weights", [True, 0], "certificate: piece_weights is [True, 0], expected 2 integers"),
    ("certificate/piece_weights", 1, "certificate: piece_weights is 1, expected 2 integers ≥ 0"),
    ("certificate/release_ps", 1, "certificate: release_ps is 1, expected the arrival time of a request"),
    ("certificate/release_ps", 0.0, "certificate: release_ps is 0.0, expected the arrival time of a request"),
    (
        "certificate/release_ps",
        False,
        "certificate: release_ps is False, expected the arrival time of a request",
    ),
]


def test_true_document_passes() -> None:
    assert check_document(proved()) == Report(())
    assert check_document(proved()).ok


@pytest.mark.parametrize(("path", "value", "violation"), LIES)
def test_changed_field_is_found(path: str, value: object, violation: str | None) -> None:
    document = proved()
    put(path, value)(document)
    report = check_document(document)
    assert report.ok == (violation is None)
    if violation is not None:
        assert [found for found in report.violations if found.startswith(violation)]


def test_missing_metric_is_found() -> None:
    document = proved()
    del document["metrics"]["objectives"]["max_ttft"]
    assert check_document(document).violations == ("metrics.objectives.max_ttft is missing, of the schedule it is 155",)


def test_metrics_that_earlier_versions_did_not_know_may_be_missing() -> None:
    document = proved()
    for name in ("tbt_ps", "queue_length_over_time", "kv_utilisation_over_time", "token_utilisation_over_time"):
        del document["metrics"][name]
        assert check_document(document).ok


def test_every_number_of_the_metrics_is_checked() -> None:
    """Of a schedule with idle time and an eviction all numbers are there."""
    for worked in (EVICTION, ARRIVALS):
        document = result_document(solved(worked))
        for name, value in document["metrics"].items():
            parts = {f"{name}/{part}": number for part, number in value.items()} if isinstance(value, dict) else {}
            for path, number in (parts or {name: value}).items():
                lie = copy.deepcopy(document)
                put(f"metrics/{path}", number + 1)(lie)
                (violation,) = check_document(lie).violations
                assert violation.startswith(f"metrics.{path.replace('/', '.')} is ")


def test_restrictions_of_the_document_count() -> None:
    result = solved(CHUNKED, restrictions=Restrictions(("chunked",)))
    assert [violation[:30] for violation in check_round_trip(result).violations] == ["batch 0: request 0 runs 3 toke"]


@each_worked
@pytest.mark.parametrize("objective", PLAIN_OBJECTIVES)
def test_every_objective_is_recomputed(worked: Worked, objective: Objective) -> None:
    value = dict(zip(PLAIN_OBJECTIVES, worked.objectives, strict=True))[objective]
    assert check_round_trip(solved(worked, objective=objective, value=value)).ok
    lie = check_round_trip(solved(worked, objective=objective, value=value + 1))
    assert lie.violations == (f"value is {value + 1}, but {objective} of the schedule is {value}",)


UNSERVABLE = problem(Request(4, 3), kv=5)  # 6 tokens at the end
UNSERVABLE_BLOCKS = problem(Request(4, 2), kv=7, block=4)  # 5 tokens take 8, the whole blocks hold 4
UNSERVABLE_PROMPT = problem(Request(4, 1), prefill=3, rules=NO_CHUNKS)
LONG_PROMPT = problem(Request(4, 1), prefill=3)
NOTHING: dict[str, Any] = {"value": None, "schedule": None, "metrics": None}
CLAIMED: dict[str, Any] = {"badge": Badge.SOLVER_CLAIMED}

HONEST = {
    "feasible without bound": solved(),
    "feasible with bound": solved(bound=300, **CLAIMED),
    "feasible with bound 0": solved(bound=0, **CLAIMED),
    "optimal as a solver claims": solved(status=Status.OPTIMAL, bound=392, **CLAIMED),
    "optimal at 0": solved(FREE_OF_CHARGE, status=Status.OPTIMAL, bound=0, **CLAIMED),
    "bound only": solved(status=Status.BOUND_ONLY, bound=7, **CLAIMED, **NOTHING),
    "unknown": solved(status=Status.UNKNOWN, **NOTHING),
    "failed": solved(status=Status.FAILED, **NOTHING),
    "failed with bound": solved(status=Status.FAILED, bound=7, **CLAIMED, **NOTHING),
    "infeasible": solved(status=Status.INFEASIBLE, instance=UNSERVABLE, **NOTHING),
    "infeasible by blocks": solved(status=Status.INFEASIBLE, instance=UNSERVABLE_BLOCKS, **NOTHING),
    "infeasible by prompt": solved(status=Status.INFEASIBLE, instance=UNSERVABLE_PROMPT, **NOTHING),
    "infeasible by restriction": solved(
        status=Status.INFEASIBLE,
        restrictions=Restrictions(("chunked",)),
        instance=LONG_PROMPT,
        **NOTHING,
    ),
}

DISHONEST = {
    "feasible of nothing": (
        solved(**NOTHING),
        ["status is feasible, but value or schedule is null"],
    ),
    "feasible without schedule": (
        solved(schedule=None, metrics=None),
        [
            "value is 392, but there is no schedule that has it",
            "status is feasible, but value or schedule is null",
        ],
    ),
    "infeasible, but memory just suffices": (
        solved(status=Status.INFEASIBLE, instance=problem(Request(4, 3), kv=6), **NOTHING),
        ["status is infeasible, but each request can be served, so one after another is a schedule"],
    ),
    "infeasible, but the prompt just fits": (
        solved(
            status=Status.INFEASIBLE, instance=problem(Request(4, 1), prefill=4, rules=NO_CHUNKS), **NOTHING
        ),
        ["status is infeasible, but each request can be served, so one after another is a schedule"],
    ),
    "bound only without bound": (
        solved(status=Status.BOUND_ONLY, **NOTHING),
        ["status is bound_only, but the bound is null or there is a schedule"],
    ),
    "infeasible, but chunks are allowed": (
        solved(status=Status.INFEASIBLE, instance=LONG_PROMPT, **NOTHING),
        ["status is infeasible, but each request can be served, so one after another is a schedule"],
    ),
    "solver claims nothing": (
        solved(**CLAIMED),
        ["badge is solver_claimed, but the bound is None; heuristic means no bound"],
    ),
    "optimal as a solver claims, of a broken schedule": (
        solved(
            status=Status.OPTIMAL, bound=392, schedule=Schedule(DECODES.schedule.batches[:2]), **CLAIMED
        ),
        ["request 0 is unfinished at the end of the schedule: it has generated 2 tokens and must generate 3"],
    ),
    "schedule of an infeasible instance": (
        solved(instance=replace(DECODES.instance, limits=replace(DECODES.instance.limits, kv_tokens=4))),
        ["batch 2: 5 KV tokens are occupied, at most 4 are allowed (blocks of 1 in 4)"],
    ),
    "certificate of another objective": (
        solved(
            objective=Objective.MAX_E2E, status=Status.OPTIMAL, bound=392, badge=Badge.CERTIFIED,
            certificate=volume(),
        ),
        ["certificate: kind volume bounds the makespan, the objective is max_e2e"],
    ),
    "certificate without a single block": (
        solved(
            status=Status.BOUND_ONLY, bound=1, badge=Badge.CERTIFIED, certificate=volume(),
            instance=problem(SMALL, kv=3, block=4), **NOTHING,
        ),
        ["certificate: the KV cache does not hold a single block, so no request can be served"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("result", HONEST.values(), ids=HONEST)
def test_honest_result_passes(result: Result) -> None:
    assert check_round_trip(result).violations == ()


@pytest.mark.parametrize(("result", "violations"), DISHONEST.values(), ids=DISHONEST)
def test_dishonest_result_is_found(result: Result, violations: list[str]) -> None:
    assert list(check_round_trip(result).violations) == violations


# Volume certificates ---------------------------------------------------------------------------------------

FOUR = (Request(3, 3),) * 4
# The own time of one with the first piece: (30 + 2·9 + 7) + (10 + 3 + 5) + (10 + 4 + 5) = 92.
# Its KV while generating: 3, 4, 5 tokens. Its tokens: 3 + 1 + 1.
SLOW_DECODE = replace(COST, decode_kv=1000)
# A refill of 4 tokens takes 40 + 2·16 + 7 = 79, one of 5 takes 107; the decodes 3015 and 4015.

VOLUMES = {
    "chain": (DECODES.instance, UNRESTRICTED, volume(), 3 * 100 + 92),
    # Two steps for the prompt: 7 more.
    "prompt in chunks": (problem(Request(3, 3), prefill=2), UNRESTRICTED, volume(), 4 * 100 + 99),
    "prompt whole": (problem(Request(3, 3), rules=NO_CHUNKS), UNRESTRICTED, volume(), 3 * 100 + 92),
    "memory": (problem(*FOUR, kv=5), UNRESTRICTED, volume(), 10 * 100 + 4 * 92),  # 48 / 5
    # (4 + 4 + 8) · 4 / 8
    "memory in blocks": (problem(*FOUR, kv=11, block=4), UNRESTRICTED, volume(), 8 * 100 + 4 * 92),
    "tokens": (problem(*FOUR, budget=4), UNRESTRICTED, volume(), 5 * 100 + 4 * 92),  # 20 / 4
    "runs": (problem(*FOUR, runs=1), UNRESTRICTED, volume(), 12 * 100 + 4 * 92),
    "runs do not bind": (problem(*FOUR, runs=4), UNRESTRICTED, volume(), 3 * 100 + 4 * 92),
    "weights are shares": (DECODES.instance, UNRESTRICTED, volume((7, 0)), 392),
    # base 50, token 25: 150 + (75 + 25) + (25 + 8) + (25 + 9)
    "two pieces": (DECODES.instance, UNRESTRICTED, volume((1, 1)), 317),
    "second piece": (DECODES.instance, UNRESTRICTED, volume((0, 3)), (120 + 25) + 48 + 49),
    # base 200/3, token 20: 400/3 + (40 + 15) + (20 + 7) = 215.33
    "rounded up": (problem(Request(2, 2)), UNRESTRICTED, volume((2, 1)), 216),
    # 1000 + 2·100 + (20 + 15) + (10 + 7) − 50
    "late arrivals": (ARRIVALS.instance, UNRESTRICTED, volume(release_ps=1000), 1202),
    # 2·100 + (10 + 9) + 35 + 17
    "all arrivals": (ARRIVALS.instance, UNRESTRICTED, volume(release_ps=50), 271),
    "refills": (problem(Request(3, 3), cost=SLOW_DECODE), UNRESTRICTED, volume(), 300 + 55 + 79 + 107),
    "no refill by rules": (
        problem(Request(3, 3), cost=SLOW_DECODE, rules=NO_EVICTION),
        UNRESTRICTED,
        volume(),
        300 + 55 + 3015 + 4015,
    ),
    "no refill by restrictions": (
        problem(Request(3, 3), cost=SLOW_DECODE),
        Restrictions(("eviction",)),
        volume(),
        300 + 55 + 3015 + 4015,
    ),
    "refills up to P": (
        problem(Request(3, 3), cost=SLOW_DECODE, prefill=4, rules=NO_CHUNKS),
        UNRESTRICTED,
        volume(),
        300 + 55 + 79 + 4015,
    ),
    "refills up to P by restrictions": (
        problem(Request(3, 3), cost=SLOW_DECODE, prefill=4),
        Restrictions(("chunked",)),
        volume(),
        300 + 55 + 79 + 4015,
    ),
}


@pytest.mark.parametrize(("instance", "restrictions", "certificate", "bound"), VOLUMES.values(), ids=VOLUMES)
def test_volume_certificate_proves_the_worked_bound_and_no_more(
    instance: Instance, restrictions: Restrictions, certificate: Document, bound: int
) -> None:
    def claim(stated: int) -> tuple[str, ...]:
        result = Result(
            instance, "test", Objective.MAKESPAN, Status.BOUND_ONLY, Badge.CERTIFIED, bound=stated,
            certificate=certificate, restrictions=restrictions,
        )  # fmt: skip
        return check_round_trip(result).violations

    assert claim(bound) == ()
    assert claim(bound + 1) == (f"certificate: it proves a bound of {bound}, less than the stated {bound + 1}",)


def test_volume_bound_meets_the_schedule_with_arrivals() -> None:
    result = solved(
        ARRIVALS, status=Status.OPTIMAL, badge=Badge.CERTIFIED, bound=1202, certificate=volume((1, 0), 1000)
    )
    assert check_round_trip(result).ok


# Random legal schedules ------------------------------------------------------------------------------------

small = st.integers(0, 3)


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    cost = CostModel(
        base=draw(small),
        token=draw(small),
        pieces=tuple(draw(st.lists(st.tuples(small, small), max_size=2))),
        decode_kv=draw(small),
        decode_req=draw(small),
        prefill_sq=draw(small),
        prefill_kv=draw(small),
        prefill_req=draw(small),
    )
    optional = st.none() | st.integers(0, 40)
    request = st.builds(
        Request,
        input=st.integers(1, 5),
        output=st.integers(1, 4),
        arrival_ps=st.integers(0, 30),
        weight=small,
        slo_ttft_ps=optional,
        slo_e2e_ps=optional,
    )
    requests = draw(st.lists(request, min_size=1, max_size=4))
    rules = Rules(draw(st.booleans()), draw(st.booleans()), draw(st.booleans()))
    block = draw(st.integers(1, 4))
    peak = max(request.input + request.output - 1 for request in requests)
    prefill = draw(st.integers(1 if rules.chunked_prefill else max(request.input for request in requests), 8))
    return problem(
        *requests,
        kv=draw(st.integers(peak + block - 1, peak + 20)),
        budget=draw(st.integers(prefill, 10)),
        prefill=prefill,
        runs=draw(st.none() | st.integers(1, 4)),
        block=block,
        rules=rules,
        cost=cost,
    )


class Walk:
    """Builds one legal batch after another from choices that hypothesis makes."""

    def __init__(self, draw: st.DrawFn, instance: Instance) -> None:
        self.draw, self.instance = draw, instance
        self.states = [RequestState(request) for request in instance.requests]

    def batch(self) -> Assignment:
        rules, limits = self.instance.rules, self.instance.limits
        unfinished = [index for index, state in enumerate(self.states) if not state.finished]
        evict = [index for index in unfinished if rules.eviction and self._may_evict(index)]
        held = {index: 0 if index in evict else state.cached for index, state in enumerate(self.states)}
        run: list[tuple[int, int]] = []
        tokens = prefill_tokens = 0
        kinds: set[bool] = set()
        for index in self.draw(st.permutations([index for index in unfinished if index not in evict])):
            state = self.states[index]
            count = state.missing
            if not state.decoding and rules.chunked_prefill:
                room = min(limits.prefill_tokens - prefill_tokens, limits.batch_tokens - tokens)
                count = self.draw(st.integers(1, max(1, min(count, room))))
            after = held | {index: held[index] + count}
            if (
                (limits.batch_requests is None or len(run) < limits.batch_requests)
                and tokens + count <= limits.batch_tokens
                and (state.decoding or prefill_tokens + count <= limits.prefill_tokens)
                and sum(limits.occupied(cached) for cached in after.values()) <= limits.kv_capacity
                and (rules.hybrid or kinds <= {state.decoding})
                and (not run or self.draw(st.integers(0, 4)))
            ):
                run.append((index, count))
                held = after
                tokens += count
                prefill_tokens += 0 if state.decoding else count
                kinds.add(state.decoding)
        assume(run)  # kept requests may fill the memory
        for index in evict:
            self.states[index].evict()
        for index, count in run:
            self.states[index].run(count)
        return Assignment(run, evict)

    def _may_evict(self, index: int) -> bool:
        state = self.states[index]
        refill = state.request.input + state.generated
        dead_end = not self.instance.rules.chunked_prefill and refill > self.instance.limits.prefill_tokens
        return state.cached > 0 and not dead_end and self.draw(st.integers(0, 3)) == 3


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Instance, Schedule]:
    instance = draw(instances())
    walk = Walk(draw, instance)
    assignments: list[Assignment] = []
    while not all(state.finished for state in walk.states):
        assume(len(assignments) < 40)
        assignments.append(walk.batch())
    return instance, timed(instance, assignments)


@pytest.mark.slow
@settings(max_examples=246, deadline=None)
@given(schedules(), st.data())
def test_random_legal_schedule(case: tuple[Instance, Schedule], data: st.DataObject) -> None:
    instance, schedule = case
    violations, metrics = check_schedule(instance, schedule)
    assert violations == []
    assert metrics == evaluate(instance, schedule)

    # No certificate proves more than what a schedule attains.
    makespan = metrics["objectives"]["makespan"]
    pieces = len(instance.cost.affine)
    weights = data.draw(st.lists(small, min_size=pieces, max_size=pieces).filter(any))
    release = data.draw(st.sampled_from([request.arrival_ps for request in instance.requests]))
    claim = Result(
        instance, "test", Objective.MAKESPAN, Status.BOUND_ONLY, Badge.CERTIFIED, bound=makespan + 1,
        certificate=volume(weights, release),
    )  # fmt: skip
    assert [violation.partition(" of ")[0] for violation in check_round_trip(claim).violations] == [
        "certificate: it proves a bound"
    ]

    # A batch that takes longer than the model says is found, wherever it is.
    position = data.draw(st.integers(0, len(schedule.batches) - 1))
    later = [
        replace(batch, start_ps=batch.start_ps + (number > position), end_ps=batch.end_ps + 1)
        if number >= position
        else batch
        for number, batch in enumerate(schedule.batches)
    ]
    (violation,) = check_schedule(instance, Schedule(tuple(later)))[0]
    assert violation.startswith(f"batch {position}: ends at ")


# Independence ----------------------------------------------------------------------------------------------


CHECKER = sorted(Path(check.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", CHECKER, ids=["/".join(path.parts[-2:]) for path in CHECKER])
def test_checker_takes_only_data_from_the_model(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    sources = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules = {node.module or "" for node in sources}
    assert {module.partition(".")[0] for module in modules} <= {"optsched", *sys.stdlib_module_names}
    # What compiles functions says nothing of schedules.
    assert all(
        re.match(r"optsched\.((check|model)\b|compiled$)", module)
        for module in modules
        if module.startswith("optsched")
    )
    imported = {
        alias.name for node in sources if (node.module or "").startswith("optsched.model") for alias in node.names
    }
    assert imported <= {
        "Badge", "Batch", "BatchTable", "CacheMode", "ClaimedResult", "CostModel", "Instance", "Ints", "Latency",
        "Limits", "Link", "Machine", "MachineTable", "Move", "Objective", "Request", "Restrictions", "Result", "Role",
        "Rules", "Schedule", "ShortInts", "Status", "Tables", "instance_sha256", "replace", "require_type",
    }  # fmt: skip
    plain_imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert plain_imports <= {"numpy", "numpy.typing", *sys.stdlib_module_names}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    # Of an order of service (a prefix cache's), ``occupied`` is data.
    assert not {node.attr for node in attributes if ast.unparse(node) != "service.occupied"} & {
        "affine", "apply", "batch_ps", "overhead_ps", "decode_ps", "infeasibilities", "kappa", "kv_capacity",
        "kv_volume", "label", "linear_ps", "occupied", "offline", "peak_tokens", "prefill_ps", "repeated_ps",
        "sufficient_limits",
    }  # fmt: skip
    # The names of these two are also those of data, so the owner decides.
    assert not {(ast.unparse(node.value), node.attr) for node in attributes} & {
        ("instance", "start_ps"), ("result", "gap"), ("claimed.result", "gap"),
    }  # fmt: skip


OF_CLUSTERS = {"assignment", "chains", "joint", "prefix_cache", "prefix_placement", "prefixed", "roles", "worth"}
"""Kinds of certificates of several machines or a prefix cache, which `PROOFS` of one machine does not have."""


def test_a_kind_of_certificate_has_one_name_where_it_is_made_and_where_it_is_checked() -> None:
    root = Path(check.__file__).parent.parent
    checked = {path.stem for path in (root / "check" / "certificates").glob("*.py")} - {"__init__", "kinds", "proofs"}
    assert checked == set(PROOFS) | OF_CLUSTERS
    made = [*(root / "bounds").rglob("*.py"), *Path(optsched_formulations.__file__).parent.rglob("*.py")]
    assert all([path.stem for path in made].count(kind) == 1 for kind in checked)


# Repeated batches ------------------------------------------------------------------------------------------

FILL, STEPS = Batch(0, 155, ((0, 3),)), Batch(155, 392, ((0, 1),), repeat=2)
"""The batches of `DECODES`, its two decode steps as one: 118 and 119."""


def test_repeated_batches_are_the_same_as_one_by_one() -> None:
    document = result_document(solved(status=Status.FEASIBLE))
    document["schedule"]["batches"][1:] = [
        {"replica": 0, "start_ps": 155, "end_ps": 392, "run": [[0, 1]], "evict": [], "repeat": 2}
    ]
    (claimed,) = parse_results(dump(document).encode(), no_profiles)
    assert claimed.result.schedule == plan(FILL, STEPS)
    assert check_result(claimed).ok
    assert result_document(claimed.result)["schedule"] == document["schedule"]


def test_blocks_that_are_taken_in_repeated_batches_count_from_then_on() -> None:
    """In blocks of 4: 4 tokens in the first of three decode steps, 8 in the others, of 118, 119 and 120 ps."""
    instance = replace(problem(Request(3, 4)), limits=Limits(8, 99, 99, kv_block=4))
    violations, metrics = check_schedule(instance, plan(FILL, replace(STEPS, end_ps=512, repeat=3)))
    assert violations == []
    assert metrics is not None
    assert metrics["peak_kv_tokens"] == 8
    assert metrics["kv_utilisation"] == (155 * 4 + 118 * 4 + 119 * 8 + 120 * 8) / (8 * 512)
    assert metrics["mean_batch_requests"] == 1


@pytest.mark.parametrize(
    ("batches", "violation"),
    [
        ((FILL, replace(STEPS, end_ps=391)), "batch 2: ends at 391 ps, but it starts at 273 ps"),
        ((FILL, replace(STEPS, start_ps=154)), "batch 1: starts at 154 ps, before the previous batch has ended at 155"),
        ((FILL, replace(STEPS, repeat=3)), "batch 1: is repeated 3 times, but request 0 has only 2 tokens to generate"),
        (
            (replace(FILL, repeat=2), STEPS),
            "batch 0: is repeated 2 times, but it runs 3 tokens of request 0 in what is",
        ),
        ((FILL, replace(STEPS, run=((0, 2),))), "batch 1: is repeated 2 times, but it runs 2 tokens of request 0 in"),
        (
            (FILL, replace(STEPS, run=((0, 1), (0, 1)))),
            "batch 1: is repeated 2 times, but it runs 1 tokens of request 0",
        ),
        (
            (FILL, replace(STEPS, run=((1, 1),))),
            "batch 1: is repeated 2 times, but it runs 1 tokens of request 1 in what",
        ),
        ((FILL, replace(STEPS, evict=(0,))), "batch 1: is repeated 2 times, but it evicts request 0"),
        ((FILL, STEPS, replace(STEPS, repeat=2)), "batch 3: is repeated 2 times, but it runs 1 tokens of request 0 in"),
    ],
)
def test_what_cannot_be_repeated(batches: tuple[Batch, ...], violation: str) -> None:
    assert check_schedule(DECODES.instance, plan(*batches))[0][0].startswith(violation)
