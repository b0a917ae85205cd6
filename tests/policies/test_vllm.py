"""vLLM's V1 scheduler: by hand, against decisions of its own, and against the rule told step by step."""

from __future__ import annotations

import json
import math
import runpy
import subprocess
import sys
from importlib.util import find_spec

import pytest
from checkout import DATA, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import decisions, instances, problem, whole

from optsched.calibrate.library import cost_model
from optsched.model.documents import parse_instance
from optsched.model.domain import replace
from optsched.model.instance import Instance, Request, Rules
from optsched.model.schedule import Assignment
from optsched.model.state import Step
from optsched.policies.infermax import SARATHI_PC, VLLM
from optsched.policies.vllm import VLLM_V1, VLLM_V1_UNRESERVED
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import Job, Policy, Replica

SCRIPT = ROOT / "benchmarks" / "vllm_scheduler.py"
RECORDED = json.loads((DATA / "vllm-0.19.0.json").read_text())
"""What vLLM 0.19.0 decided: ``python benchmarks/vllm_scheduler.py INSTANCE --record FILE``."""


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


@pytest.mark.slow
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


@pytest.mark.parametrize(("setting", "policy"), [("whole_prompts", VLLM_V1), ("first_chunk", VLLM_V1_UNRESERVED)])
def test_vllm_itself_decided_the_same(setting: str, policy: Policy) -> None:
    instance = parse_instance(json.dumps(RECORDED["instance"]).encode(), cost_model)
    recorded = [([(index, count) for index, count in run], evict) for run, evict in RECORDED[setting]]
    assert decisions(instance, policy) == recorded
    # The record tells them apart: there are preemptions, and others decide otherwise.
    assert sum(len(evict) for _, evict in recorded) == {"whole_prompts": 4, "first_chunk": 14}[setting]
    for other in {VLLM_V1, VLLM_V1_UNRESERVED, SARATHI_PC} - {policy}:
        assert decisions(instance, other) != recorded


class Literal:
    """The rule step by step, with lists of its own: what was admitted in which order, and what waits in which."""

    def __init__(self, *, whole_prompts: bool) -> None:
        self._whole_prompts = whole_prompts
        self._running: list[int] = []
        self._waiting: list[int] = []

    def next_batch(self, replica: Replica) -> Assignment:
        limits, jobs = replica.limits, {job.index: job for job in replica.running + replica.waiting}
        self._running = [index for index in self._running if index in jobs]
        known = {*self._running, *self._waiting}
        self._waiting += [job.index for job in replica.waiting if job.index not in known]
        budget = limits.batch_tokens
        free = limits.kv_blocks - sum(limits.blocks(jobs[index].cached) for index in self._running)
        run: list[Step] = []
        preempted: list[int] = []

        def fits(job: Job, tokens: int) -> bool:
            return limits.blocks(job.cached + tokens) - limits.blocks(job.cached) <= free

        for index in list(self._running):
            count = min(jobs[index].missing, budget)
            while count and index not in preempted and not fits(jobs[index], count):
                preempted.append(self._running.pop())
                self._waiting.insert(0, preempted[-1])
                free += limits.blocks(jobs[preempted[-1]].cached)
            if not count or index in preempted:
                break
            free -= limits.blocks(jobs[index].cached + count) - limits.blocks(jobs[index].cached)
            budget -= count
            run.append((index, count))
        most = math.inf if limits.batch_requests is None else limits.batch_requests
        while self._waiting and budget and len(self._running) < most and not preempted:
            job = jobs[self._waiting[0]]
            count = min(job.missing, budget)
            if not fits(job, job.missing if self._whole_prompts else count):
                break
            self._running.append(self._waiting.pop(0))
            free -= limits.blocks(count)
            budget -= count
            run.append((job.index, count))
        return Assignment(run, preempted)


@pytest.mark.slow
@settings(max_examples=152, deadline=None)
@given(instances(), st.booleans())
def test_the_declaration_is_the_rule(drawn: Instance, whole_prompts: bool) -> None:
    limits = replace(drawn.limits, prefill_tokens=drawn.limits.batch_tokens)
    cost = replace(drawn.cost, cpu_request=0)  # the literal one does not say which it considers
    instance = replace(drawn, limits=limits, rules=Rules(), cost=cost)
    literal = run_policy(instance, Literal(whole_prompts=whole_prompts), jumps=False)
    declared = run_policy(instance, VLLM_V1 if whole_prompts else VLLM_V1_UNRESERVED, jumps=False)
    assert declared == literal


# The benchmark ---------------------------------------------------------------------------------------------


def test_policies_are_asked_in_every_state_that_another_comes_to() -> None:
    # The prefill under way of above: Sarathi would evict it in batches 2 and 3, where vLLM goes on with it.
    instance = problem(Request(3, 3), Request(9, 1), kv=12, budget=4)
    beside = runpy.run_path(str(SCRIPT))["SideBySide"](VLLM_V1, {"same": VLLM_V1, "other": SARATHI_PC, "whole": VLLM})
    assert run_policy(instance, beside, jumps=False) == run_policy(instance, VLLM_V1, jumps=False)
    same, other, whole_prefills = (beside.agreements[name] for name in ("same", "other", "whole"))
    assert (same.alike, same.differences, same.first) == (4, {}, "")
    assert (other.alike, other.differences) == (2, {"preempted": 2})
    assert other.first == (
        "batch 2 at 0.000 s: vLLM decodes 1 and prefills 3 of #1, the policy decodes 1 and preempts #1"
    )
    # So would vLLM with whole prefills, which starts with request 0 alone.
    assert (whole_prefills.alike, whole_prefills.differences) == (1, {"prefilling": 1, "preempted": 2})


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_one_line_says_so() -> None:
    found = subprocess.run([sys.executable, SCRIPT, "chunked-small"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "vllm_scheduler.py: vLLM cannot be imported here (No module named 'vllm'); --help says how\n"
