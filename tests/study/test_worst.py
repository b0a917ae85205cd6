"""Worst cases: gaps that are witnessed, instances that get smaller, and the known one of three requests."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from checkout import ROOT
from commands import optsched

from optsched import cost_model, simulate, solve
from optsched.library import load_suite
from optsched.model.instance import Rules
from optsched.model.objectives import Objective
from optsched.study.grid import Grid, largest_gaps
from optsched.study.worst import (
    WITNESSES,
    Genome,
    Search,
    elite_of,
    quick_bound,
    requests_text,
    rounds,
    side_by_side,
    worst_case,
)
from optsched.traces.worst_known import KNOWN, Known

SMALL = Genome(4, ((1, 2, 0), (4, 1, 0), (1, 2, 0)))
"""Three requests that cost vLLM 37.2 %: the second fills the cache, and in order of arrival the third waits for it."""


def search(policy: str = "vllm", requests: int = 4) -> Search:
    return Search(policy, Objective.MAKESPAN, requests, cost_model("a100-llama2-7b-nocall"), Rules())


def test_the_known_instance_has_the_known_gap() -> None:
    looking = search()
    instance = looking.instance(SMALL)
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
    genome = SMALL
    for _ in range(300):
        child = looking.mutant(genome, chance)
        assert 1 <= len(child.requests) <= 4
        if child.is_servable:
            looking.instance(child)  # which raises if it is none
            genome = child
    for construction in looking.constructions():
        assert construction.is_servable
        assert len(construction.requests) <= 4


def test_a_gap_is_what_the_best_witness_shows() -> None:
    """Against the values that `simulate` gives, schedules checked; a bound only says where not to look."""
    looking, chance = search(requests=5), Random(7)
    for _ in range(6):
        instance = looking.instance(looking.random(chance))
        own = simulate(instance, "vllm").value
        values = [simulate(instance, name).value for name in WITNESSES]
        assert own is not None
        expected = max(0.0, 1 - min(value for value in values if value is not None) / own)
        assert looking.gap(instance) == expected
        assert looking.gap(instance, expected / 2) == expected
        assert quick_bound(instance, Objective.MAKESPAN) <= own * (1 - expected)
        # Where the bound allows no larger gap than asked for, nothing is tried.
        assert looking.gap(instance, 1 - quick_bound(instance, Objective.MAKESPAN) / own) == 0


def test_an_evolution_keeps_what_it_begins_with_or_better() -> None:
    looking = replace(search(), online=True)
    begun = elite_of([(looking.gap(looking.instance(SMALL)), SMALL)])
    first = looking.evolve(0.3, "1", begun)
    assert first[0][0] >= begun[0][0]
    assert [gap for gap, _ in first] == sorted({gap for gap, _ in first}, reverse=True), "each gap once"
    for gap, genome in first:
        assert len(genome.requests) <= 4
        assert gap == looking.gap(looking.instance(genome))


def test_parts_have_no_more_requests_than_allowed() -> None:
    large = Genome(64, ((1, 16, 0), (64, 1, 0)) * 3)
    found = search(requests=3).parts(large)
    # Two long ones around a full cache wait for each other: 33 batches instead of 17.
    assert found[0][1].requests == ((1, 16, 0), (64, 1, 0), (1, 16, 0))
    assert all(len(genome.requests) == 3 for _, genome in found)


@pytest.mark.slow
def test_processes_side_by_side_find_what_one_finds() -> None:
    looking = search(requests=3)
    with side_by_side(2) as evolve:
        *_, found = rounds(looking, 1.0, 0, evolve)
    assert found[0][0] > 0.3
    assert found[0][0] == looking.gap(looking.instance(found[0][1]))


def test_the_largest_gap_of_a_grid_is_the_largest_of_all() -> None:
    """Every instance solved, by hand as it were."""
    grid = Grid((1, 3), (1, 2), 2, cost_model("a100-llama2-7b-nocall"), Rules())
    instances = list(grid.instances())
    # Of one request M is its peak. Of two it goes from the larger peak to the sum: the smaller peak and one, of 16.
    peaks = (1, 2, 3, 4)
    assert len(instances) == 4 + sum(min(first, second) + 1 for first in peaks for second in peaks)
    optima = [solve(instance, workers=1).value for instance in instances]
    for found in largest_gaps(grid, ["vllm", "static"]):
        gaps = [
            1 - optimum / value
            for instance, optimum in zip(instances, optima, strict=True)
            if optimum is not None and (value := simulate(instance, found.policy).value)
        ]
        assert found.gap == max(gaps)
        assert found.instance in instances
        assert found.failed == len(instances) - len(gaps)
        assert 1 <= found.solved <= len(gaps)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_the_page_has_what_the_policies_do(known: Known) -> None:
    """After a change: python benchmarks/worst.py --page docs/worst-cases.md."""
    (instance,) = [each for each in load_suite("worst-known").instances if each.name == f"worst-known-{known.name}"]
    (row,) = re.findall(rf"^\| +{known.name} \|.*$", (ROOT / "docs/worst-cases.md").read_text(), flags=re.MULTILINE)
    requests, tokens, *times, gap = (cell.strip() for cell in row.strip("|").split("|")[1:])
    assert (requests, tokens) == (requests_text(instance), str(instance.limits.kv_tokens))
    policy, best, bound = map(float, times)
    value = simulate(instance, known.policy, known.objective).value
    assert value is not None
    assert policy == round(value / known.objective.mean_count(instance.requests) / 1e9, 2)
    assert bound <= best
    assert float(gap) == pytest.approx(100 * (1 - best / policy), abs=0.1)
    # A schedule shows the gap, and the exact search's bound leaves no smaller value.
    witnessed = replace(search(known.policy), objective=known.objective).gap(instance)
    assert 100 * witnessed <= float(gap) + 0.05


@pytest.mark.slow
def test_the_command_finds_a_gap_that_the_optimum_proves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("worst", "--policy", "vllm", "--requests", "5", "--seconds", "2", "--slots", "1", "--out", "w.json")
    outcome = optsched(capsys, *command)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    worst, small = load_suite("w.json").instances
    assert len(small.requests) <= 4 < len(worst.requests) <= 5
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
        (("--policy", "vllm", "--seconds", "inf"), "--seconds: got inf, expected a finite number > 0"),
        (("--policy", "vllm", "--profile", "none"), "--profile: got 'none', expected one of "),
    ):
        outcome = optsched(capsys, "worst", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"optsched: {complaint}")
