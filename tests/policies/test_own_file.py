"""A policy in a file of one's own: ``--policy FILE.py:NAME``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import commands
import pytest

from optsched import CostModel, Instance, Limits, Request, Rules, save_instance, simulate

Command = Callable[..., commands.Outcome]

SHORTEST = """
from dataclasses import dataclass, field

from optsched import Assignment


@dataclass
class Shortest:
    order: list[int] = field(default_factory=list)

    def next_batch(self, replica):
        job = min(replica.waiting, key=lambda job: job.request.input)
        self.order.append(job.index)
        assert len(self.order) <= 2, "an object of an earlier run"
        return Assignment(run=[(job.index, job.missing)], evict=[])


SHORTEST = Shortest()
NUMBER = 7


class Needy:
    def __init__(self, size):
        self.size = size

    def next_batch(self, replica):
        raise NotImplementedError


class Crashing:
    def next_batch(self, replica):
        return replica.nonsense
"""
# A batch takes 100 ps and 1 ps a token: 10 tokens 110 ps, then 30 tokens 130 ps.
SHORTEST_PS, ARRIVAL_PS = 110 + (110 + 130), 130 + (130 + 110)
"""Sum of e2e latencies if the second request, of 10 tokens, goes first; and if it does not."""


@pytest.fixture
def optsched(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run the command in a folder with an instance and a policy."""
    monkeypatch.chdir(tmp_path)
    instance = Instance("two", Limits(40, 30, 30), Rules(), CostModel(100, 1), (Request(30, 1), Request(10, 1)))
    save_instance(instance, "two.json")
    Path("mine.py").write_text(SHORTEST)
    return partial(commands.optsched, capsys)


@pytest.mark.parametrize("name", ["mine.py:Shortest", "./mine.py:SHORTEST"])
def test_a_class_or_an_object_of_a_file_is_a_policy(name: str, optsched: Command) -> None:
    code, out, _ = optsched("simulate", "two.json", "--policy", name, "--objective", "mean_e2e", "--json")
    document = json.loads(out)
    assert (code, document["value"], document["method"]) == (0, SHORTEST_PS, name)
    assert "mine.py" in document["versions"]
    Path("result.json").write_text(out)
    assert optsched("check", "result.json").code == 0


def test_every_run_has_a_new_object_of_a_class(optsched: Command) -> None:
    for _ in range(2):
        assert simulate("two.json", "mine.py:Shortest", "mean_e2e").value == SHORTEST_PS


def test_a_table_has_it_and_runs_it_anew_when_its_file_has_changed(optsched: Command) -> None:
    table = partial(
        optsched, "table", "two.json", "--policies", "mine.py:Shortest", "--objective", "mean_e2e", "--format", "csv",
        "--time-limit", "5", "--workers", "1", "--results", "kept", "--resume",
    )  # fmt: skip

    def gap() -> float:
        (row,) = csv.DictReader(io.StringIO(table().out))
        return float(row["gap_mine.py:Shortest"])

    assert gap() == 0
    Path("mine.py").write_text(SHORTEST.replace("min(", "max("))
    assert gap() == (ARRIVAL_PS - SHORTEST_PS) / ARRIVAL_PS


def test_a_policy_of_a_file_that_raises_is_named_with_its_line(optsched: Command) -> None:
    code, out, _ = optsched("simulate", "two.json", "--policy", "mine.py:Crashing", "--json")
    line = SHORTEST.splitlines().index("        return replica.nonsense") + 1
    document = json.loads(out)
    assert (code, document["status"]) == (0, "failed")
    assert document["message"].startswith("mine.py:Crashing: raised AttributeError: ")
    assert document["message"].endswith(f"(mine.py:{line})")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone.py:X", "gone.py: {}: got No such file or directory, expected a readable file"),
        ("mine.py", "{}: got 'mine.py', expected mine.py:NAME, where mine.py defines NAME"),
        ("mine.py:shortest", "{}: got 'mine.py:shortest', expected mine.py:NAME, where mine.py defines NAME; did you"),
        ("mine.py:NUMBER", "{}: got 'mine.py:NUMBER', expected an object with next_batch or prepared, or its class"),
        ("mine.py:Needy", "{}: got 'mine.py:Needy', expected a class that needs no arguments: TypeError: "),
        ("wrong.py:X", "{}: got 'wrong.py:X', expected a file that Python can run: NameError: name 'nothing' is not"),
        ("syntax.py:X", "{}: got 'syntax.py:X', expected a file that Python can run: SyntaxError: "),
    ],
)
@pytest.mark.parametrize(
    ("command", "option"), [("simulate", "--policy"), ("table", "--policies"), ("execute", "--policy")]
)
def test_what_is_wrong_with_a_file_is_said_on_one_line(
    command: str, option: str, name: str, said: str, optsched: Command
) -> None:
    Path("wrong.py").write_text("X = nothing\n")
    Path("syntax.py").write_text("def X(:\n")
    code, out, err = optsched(command, "two.json", option, name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"optsched: {said.format('--policy')}")
