"""Worst cases: gaps that are witnessed, instances that get smaller, and the known one of three requests."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from commands import optsched

from optsched import cost_model, simulate, solve
from optsched.library import load_suite
from optsched.model.instance import Rules
from optsched.model.objectives import Objective
from optsched.study.worst import Genome, Search, worst_case

KNOWN = Genome(4, ((1, 2, 0), (4, 1, 0), (1, 2, 0)))
"""Three requests that cost vLLM 37.2 %: the second fills the cache, and in order of arrival the third waits for it."""


def search(policy: str = "vllm", requests: int = 4) -> Search:
    return Search(policy, Objective.MAKESPAN, requests, cost_model("a100-llama2-7b-nocall"), Rules())


def test_the_known_instance_has_the_known_gap() -> None:
    looking = search()
    instance = looking.instance(KNOWN)
    assert looking.gap(instance) == pytest.approx(0.372, abs=0.0005)
    case = worst_case(looking, instance, 60)
    policy, best = simulate(instance, "vllm").value, solve(instance, workers=1).value
    assert policy is not None
    assert best is not None
    assert case.gap == 1 - best / policy
    assert case.explanation.startswith("Another schedule (optimal) is 37.2% better; with a KV cache for all requests")
    assert case.explanation.endswith("instead of M = 4 the gap is 0.0%."), "then vLLM admits all three at once"


def test_what_is_shrunk_is_smaller_and_still_bad() -> None:
    looking = search(requests=6)
    large = Genome(64, ((1, 16, 0), (64, 1, 0)) * 3)
    gap = looking.gap(looking.instance(large))
    small = looking.shrunk(large, 0.5 * gap)
    assert looking.gap(looking.instance(small)) >= 0.5 * gap

    def tokens(genome: Genome) -> int:
        return sum(size + length for size, length, _ in genome.requests)

    assert len(small.requests) < len(large.requests)
    assert tokens(small) < tokens(large)
    assert looking.shrunk(small, 0.5 * gap) == small, "no step makes it smaller"


def test_mutants_are_instances_or_are_dropped() -> None:
    looking, chance = search(), Random(1)
    genome = KNOWN
    for _ in range(300):
        child = looking.mutant(genome, chance)
        assert 1 <= len(child.requests) <= 4
        if child.is_servable:
            looking.instance(child)  # which raises if it is none
            genome = child
    for construction in looking.constructions():
        assert construction.is_servable
        assert len(construction.requests) <= 4


@pytest.mark.slow
def test_the_command_finds_a_gap_that_the_optimum_proves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("worst", "--policy", "vllm", "--requests", "7", "--seconds", "4", "--slots", "1", "--out", "w.json")
    outcome = optsched(capsys, *command)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    worst, small = load_suite("w.json").instances
    assert len(small.requests) <= 4 < len(worst.requests) <= 7
    for instance, least, line in ((worst, 0.45, lines[0]), (small, 0.3, lines[1])):
        policy, best = simulate(instance, "vllm").value, solve(instance, workers=1, time_limit=60)
        assert policy is not None
        assert best.value is not None
        gap = 1 - best.value / policy
        assert gap > least, "a head-of-line chain alone costs more"
        assert f" is {gap:.1%} better; with " in line
        assert f"M = {instance.limits.kv_tokens}: " in line


def test_what_is_wrong_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, complaint in (
        (("--policy", "vlm"), "--policy: got 'vlm', expected one of vllm, "),
        (("--policy", "vllm", "--requests", "1"), "--requests: got 1, expected an integer from 2 to 64"),
        (("--policy", "vllm", "--seconds", "inf"), "--seconds: got Infinity, expected a finite number > 0"),
        (("--policy", "vllm", "--profile", "none"), "--profile: got 'none', expected one of "),
    ):
        outcome = optsched(capsys, "worst", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"optsched: {complaint}")
