"""Conformance: policies that keep to the rules pass, and each way of breaking one is found and named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checkout import searching_here
from commands import optsched

from optsched.methods.conform import INSTANCES, Conformance, Verdict, conform, conform_on

BROKEN = '''
import random

from optsched import Assignment
from optsched.simulator.replica import PolicyFailureError


def one_by_one(replica):
    job = min(replica.running or replica.waiting, key=lambda job: job.request.input)
    limits = replica.limits
    most = min(limits.prefill_tokens, limits.batch_tokens)
    return job, min(job.missing, most if replica.rules.chunked_prefill else job.missing)


class Sound:
    def next_batch(self, replica):
        job, tokens = one_by_one(replica)
        return Assignment(run=[(job.index, tokens)], evict=[])


class Greedy:
    def next_batch(self, replica):
        return Assignment(run=[(job.index, job.missing) for job in (*replica.running, *replica.waiting)], evict=[])


class Moody:
    """Takes any that runs or waits."""

    def next_batch(self, replica):
        job = random.choice(replica.running or replica.waiting)
        return Assignment(run=[(job.index, job.missing)], evict=[])


class Stale:
    """Says that a decision holds for ever, and takes another one at odd times."""

    def next_batch(self, replica):
        jobs = replica.waiting[:1] or (replica.running[:1] if replica.now_ps % 2 else replica.running)
        return Assignment(run=[(job.index, job.missing) for job in jobs], evict=[])

    def valid_for(self, replica, assignment):
        return 10**6


class Crashing:
    def next_batch(self, replica):
        return replica.nonsense


class Refusing:
    def next_batch(self, replica):
        raise PolicyFailureError(0, replica.now_ps, "not today")
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(BROKEN)
    return path


def test_every_instance_is_feasible_and_small() -> None:
    assert not any(instance.infeasibilities() for instance in INSTANCES.values())
    assert max(sum(request.output for request in each.requests) for each in INSTANCES.values()) <= 300


def test_a_sound_policy_passes(file: Path) -> None:
    assert conform(f"{file}:Sound") == [Conformance(name, Verdict.PASSED) for name in INSTANCES]


@pytest.mark.parametrize(
    ("policy", "instance", "expected"),
    [
        ("Greedy", "memory binds", "KV"),
        ("Greedy", "no hybrid batches", "hybrid batches are forbidden"),
        ("Stale", "long outputs", "another schedule when it is asked before each batch"),
        ("Moody", "memory binds", "another schedule when it is run again"),
        ("Crashing", "all fit", "has no attribute 'nonsense'"),
    ],
)
def test_each_way_of_breaking_a_rule_is_named(policy: str, instance: str, expected: str, file: Path) -> None:
    found = conform_on(f"{file}:{policy}", instance)
    assert found.verdict is Verdict.FAILED
    assert expected in found.reason
    line = next(number for number, text in enumerate(BROKEN.splitlines(), 1) if f"class {policy}" in text)
    assert f"mine.py:{line + 2 if policy == 'Crashing' else line}" in found.reason


def test_new_policies_conform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert optsched(capsys, "new", "policy", "Short_First").code == 0
    outcome = optsched(capsys, "conform", "short_first.py:SHORT_FIRST")
    assert (outcome.code, outcome.out.count("passed")) == (0, len(INSTANCES))
    run = optsched(capsys, "simulate", "infermax-fig15-I8", "--policy", "short_first.py:SHORT_FIRST")
    assert run.code == 0
    again = optsched(capsys, "new", "policy", "short_first")
    assert (again.code, "expected a name without a file: short_first.py is there" in again.err) == (2, True)
    assert optsched(capsys, "new", "policy", "2fast").code == 2
    assert optsched(capsys, "new", "roter", "fast").code == 2


def test_the_command_fails_for_a_policy_that_refuses_everything(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = optsched(capsys, "conform", "mine.py:Refusing")
    assert (outcome.code, outcome.out.count("not today")) == (1, len(INSTANCES))
    assert optsched(capsys, "conform", "mine.py:None").code == 2


@pytest.mark.slow
def test_the_pytest_plugin(file: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "optsched.pytest_plugin", "-p", "no:cacheprovider"]
    policies = ["--optsched", "mine.py:Sound", "--optsched", "mine.py:Greedy"]
    ended = subprocess.run([*command, *policies], env=searching_here(), capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    summary = ended.stdout.splitlines()[-1]
    assert "failed" in summary
    assert int(summary.split(" passed")[0].split()[-1]) >= len(INSTANCES)
