"""vLLM's V1 scheduler, by hand."""

from __future__ import annotations

from playing import decisions, problem, whole

from optsched.model.instance import Request
from optsched.policies.vllm import VLLM_V1, VLLM_V1_UNRESERVED


def test_running_requests_come_first_and_what_is_left_of_the_budget_is_filled_with_chunks() -> None:
    instance = problem(Request(3, 2), Request(6, 2), Request(1, 1), budget=4)
    assert decisions(instance, "vllm_v1") == whole(
        [[(0, 3), (1, 1)], [(0, 1), (1, 3)], [(1, 2), (2, 1)], [(1, 1)]],
    )


def test_the_last_of_the_running_is_preempted_and_nobody_is_admitted_then() -> None:
    # Four blocks of 2: both prompts take two, and so do 4 tokens. The fifth of request 0 needs another. Request 2 has
    # arrived meanwhile and needs one block, but does not get the one that is left. Then it waits behind request 1, of
    # which 3 + 2 tokens need three.
    instance = problem(Request(3, 4), Request(3, 3), Request(1, 1, 5), kv=8, block=2)
    assert decisions(instance, "vllm_v1") == [
        ([(0, 3), (1, 3)], []),
        ([(0, 1), (1, 1)], []),
        ([(0, 1)], [1]),
        ([(0, 1)], []),
        ([(1, 5), (2, 1)], []),
    ]


def test_a_prefill_under_way_has_nothing_set_aside() -> None:
    # When request 1 is admitted its 9 tokens fill M = 12. Request 0 decodes all the same, and ends in time.
    instance = problem(Request(3, 3), Request(9, 1), kv=12, budget=4)
    first, *others = decisions(instance, "vllm_v1")
    assert first == ([(0, 3), (1, 1)], [])
    assert others == whole([[(0, 1), (1, 3)], [(0, 1), (1, 3)], [(1, 2)]])
    # Sarathi keeps 9 tokens for it, so that the decode has to evict it.
    assert decisions(instance, "sarathi_pc")[:2] == [first, ([(0, 1)], [1])]


def test_admission_asks_for_the_whole_prefill_or_for_its_first_chunk() -> None:
    # Beside the 5 tokens of request 0, M = 12 has room for a chunk of 1, not for 9. The next chunk fills it up, so that
    # the last token of request 0 has to preempt.
    instance = problem(Request(5, 3), Request(9, 1), kv=12, budget=6)
    fills = whole([[(1, 6)], [(1, 3)]])
    assert decisions(instance, VLLM_V1) == [*whole([[(0, 5)], [(0, 1)], [(0, 1)]]), *fills]
    assert decisions(instance, VLLM_V1_UNRESERVED) == [
        ([(0, 5), (1, 1)], []),
        ([(0, 1), (1, 5)], []),
        ([(0, 1)], [1]),
        *fills,
    ]
