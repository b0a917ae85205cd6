"""Routers, evictors and formulations: what `optsched new` writes conforms, and each way of breaking a rule is named."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from commands import optsched

from optsched.methods.conform import Verdict
from optsched.methods.conform_parts import Kind, conform_on, instances_of, kind_of
from optsched.model.errors import InputError

BROKEN = """
import random
import signal
import time

from optsched.model.result import Badge
from optsched.model.schedule import Batch, Schedule, one_after_another
from optsched.routers.router import Router
from optsched.solvers.formulation import Outcome, Termination, UnsupportedError


class Nowhere(Router):
    def route(self, request, views):
        return 99


class Crashing(Router):
    def route(self, request, views):
        return views[0].nonsense


class Moody(Router):
    def route(self, request, views):
        return random.choice(views).machine


def wrong(leaf):
    return leaf.nonsense


class TooHigh:
    def solve(self, task):
        return Outcome(Termination.LIMIT, None, 10**12, Badge.SOLVER_CLAIMED)


class Illegal:
    def solve(self, task):
        return Outcome(Termination.LIMIT, Schedule((Batch(0, 5, ((0, 1),), ()),)), None, Badge.HEURISTIC)


class Boastful:
    def solve(self, task):
        return Outcome(Termination.OPTIMAL, one_after_another(task.instance), 1, Badge.SOLVER_CLAIMED)


class Silent:
    def solve(self, task):
        return None


class Modest:
    def solve(self, task):
        raise UnsupportedError("anything")


class Raising:
    def solve(self, task):
        return task.nonsense


class Catching:
    def solve(self, task):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return Outcome(Termination.LIMIT, None, None, Badge.HEURISTIC)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(BROKEN)
    return "mine.py"


def test_every_instance_is_feasible() -> None:
    for kind in Kind:
        assert len(instances_of(kind)) >= 4
        assert not any(instance.infeasibilities() for instance in instances_of(kind).values())


@pytest.mark.parametrize(
    ("name", "instance", "expected"),
    [
        ("Nowhere", "2 machines", "99"),
        ("Crashing", "2 machines", "mine.py:"),
        ("Moody", "2 machines", "another schedule when it is run again"),
        ("wrong", "blocks of 1, cache all", "has no attribute 'nonsense' (mine.py:"),
        ("TooHigh", "one request", "its bound 1000000000000 is above the value "),
        ("Illegal", "one request", "batch 0"),
        ("Boastful", "all fit", "it says optimal, with the value "),
        ("Silent", "one request", "answered NoneType, not an Outcome"),
        ("Raising", "one request", "raised AttributeError: 'Task' object has no attribute 'nonsense' (mine.py:"),
    ],
)
def test_each_way_of_breaking_a_rule_is_named(name: str, instance: str, expected: str, file: str) -> None:
    found = conform_on(f"{file}:{name}", kind_of(f"{file}:{name}"), instance)
    assert found.verdict is Verdict.FAILED
    assert expected in found.reason


def test_what_is_not_supported_is_not_available(file: str) -> None:
    found = conform_on("mine.py:Modest", Kind.FORMULATION, "one request")
    assert (found.verdict, found.reason) == (Verdict.NOT_AVAILABLE, "not supported: anything")


def test_an_interrupt_that_a_formulation_catches_ends_the_trial_without_a_verdict(file: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        conform_on(f"{file}:Catching", Kind.FORMULATION, "one request")


def test_kinds_are_told_apart(file: str) -> None:
    kinds = {"vllm": Kind.POLICY, "sal": Kind.ROUTER, "lru": Kind.EVICTOR, "token_cpsat": Kind.FORMULATION}
    kinds |= {"mine.py:Moody": Kind.ROUTER, "mine.py:wrong": Kind.EVICTOR, "mine.py:Modest": Kind.FORMULATION}
    assert {name: kind_of(name) for name in kinds} == kinds
    with pytest.raises(InputError, match=r"NAME: got 'sarthi'.*did you mean sarathi"):
        kind_of("sarthi")


@pytest.mark.parametrize("kind", [Kind.ROUTER, Kind.EVICTOR, Kind.FORMULATION])
def test_what_new_writes_conforms(kind: Kind, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    written = optsched(capsys, "new", kind.value, "my_own")
    assert written.code == 0
    commands = [line.split() for line in written.out.splitlines()[1:]]
    assert all(command[0] == "optsched" for command in commands)
    for command in commands:
        if "--cache" in command:
            command += ["--machines", "1"]
        outcome = optsched(capsys, *command[1:])
        assert outcome.code == 0, outcome.err
        if command[1] == "conform":
            assert outcome.out.count("passed") == len(instances_of(kind))


def test_an_evictor_in_a_file_is_one_in_every_command(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Least recently used, written anew, drops what `lru` drops."""
    Path("again.py").write_text("def recent(leaf):\n    return (leaf.last_access,)\n")
    trace = ("trace", "preble-toolbench", "--format", "workload", "--limit", "12", "--seed", "1", "--kv-tokens", "9000")
    assert optsched(capsys, *trace, "--arrivals", "poisson:20", "--out", "t.json").code == 0
    rows = optsched(
        capsys, "simulate", "t.json", "--policy", "vllm", "--cache", "lru,again.py:recent", "--format", "csv"
    )
    assert rows.code == 0
    first, second = csv.DictReader(rows.out.splitlines())
    assert (first.pop("evictor"), second.pop("evictor")) == ("lru", "again.py:recent")
    assert first | {"runtime_s": ""} == second | {"runtime_s": ""}
    assert (
        "--cache: got 'again.py:recnt'"
        in optsched(capsys, "simulate", "t.json", "--policy", "vllm", "--cache", "again.py:recnt").err
    )
