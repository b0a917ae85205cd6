"""A formulation in a file of one's own: ``--method FILE.py:NAME``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import commands
import pytest

from optsched import CostModel, InputError, Instance, Limits, Request, Rules, save_instance, solve
from optsched.study.fingerprint import code_of_method

Command = Callable[..., commands.Outcome]

MINE = """
from optsched.model.result import Badge
from optsched.model.schedule import Batch, Schedule
from optsched.solvers.formulation import Outcome, Termination, UnsupportedError


class Together:
    def __init__(self, order="01"):
        self.order = [int(digit) for digit in order]

    def solve(self, task):
        first, second = self.order
        run = tuple((index, task.instance.requests[index].input) for index in (first, second))
        return Outcome(Termination.LIMIT, Schedule((Batch(0, 140, run),)), None, Badge.HEURISTIC)

    def export(self, task, style):
        return f"{style.value} of {task.instance.name}"


class Covers(Together):
    def solve(self, task):
        raise UnsupportedError("requests that are two")


class Crashing(Together):
    def solve(self, task):
        return task.nonsense


class Needy:
    def __init__(self, size):
        self.size = size

    def solve(self, task):
        raise NotImplementedError


class Silent:
    def solve(self, task):
        raise NotImplementedError


NUMBER = 7
"""
TOGETHER_PS = 140
"""A batch takes 100 ps and 1 ps a token: 30 and 10 tokens in one batch."""


@pytest.fixture
def optsched(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run the command in a folder with an instance and a formulation."""
    monkeypatch.chdir(tmp_path)
    instance = Instance("two", Limits(40, 40, 40), Rules(), CostModel(100, 1), (Request(30, 1), Request(10, 1)))
    save_instance(instance, "two.json")
    Path("mine.py").write_text(MINE)
    return partial(commands.optsched, capsys)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out policies and bounds, which would prove the optimum before a formulation is asked."""
    monkeypatch.setattr("optsched.methods.stages.STARTING", ())
    monkeypatch.setattr("optsched.methods.stages.BOUNDS", {})


@pytest.mark.usefixtures("alone")
def test_a_class_of_a_file_is_a_formulation(optsched: Command) -> None:
    code, out, _ = optsched("solve", "two.json", "--method", "mine.py:Together", "--json")
    document = json.loads(out)
    assert (code, document["value"], document["method"]) == (0, TOGETHER_PS, "mine.py:Together")
    assert document["found_by"] == {"schedule": "mine.py:Together"}
    assert "mine.py" in document["versions"]
    Path("result.json").write_text(out)
    assert optsched("check", "result.json").code == 0
    found = solve("two.json", method="mine.py:Together", options={"order": "10"}).schedule
    assert found is not None
    assert found.batches[0].run == ((1, 10), (0, 30))


def test_a_table_takes_it(optsched: Command) -> None:
    done = optsched("table", "two.json", "--policies", "fcfs", "--method", "mine.py:Together", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert (done.code, float(row["gap_fcfs"])) == (0, 0)


def test_kept_results_are_of_the_text_of_the_file_and_of_what_it_imports(optsched: Command) -> None:
    del optsched
    Path("helper.py").write_text("ONE = 1\n")
    codes = [code_of_method("mine.py:Together"), code_of_method("mine.py:Silent")]
    Path("mine.py").write_text(f"import helper\n{MINE}")
    codes.append(code_of_method("mine.py:Together"))
    Path("helper.py").write_text("ONE = 2\n")
    codes.append(code_of_method("mine.py:Together"))
    assert len(set(codes)) == 4
    assert codes[-1] == code_of_method("mine.py:Together")


def test_its_model_is_written(optsched: Command) -> None:
    assert optsched("solve", "two.json", "--method", "mine.py:Together", "--export", "lp").out == "lp of two"
    code, out, err = optsched("solve", "two.json", "--method", "mine.py:Silent", "--export", "lp")
    assert (code, out) == (2, "")
    assert err == "optsched: two.json: --method: got 'mine.py:Silent', expected a class with export\n"


@pytest.mark.usefixtures("alone")
def test_one_that_raises_is_named_with_its_line(optsched: Command) -> None:
    code, out, _ = optsched("solve", "two.json", "--method", "mine.py:Crashing", "--json")
    line = MINE.splitlines().index("        return task.nonsense") + 1
    message = json.loads(out)["message"]
    assert code == 0
    assert message.startswith("mine.py:Crashing: AttributeError: ")
    assert message.endswith(f"(mine.py:{line})")


@pytest.mark.usefixtures("alone")
def test_one_that_does_not_cover_the_instance_says_so(optsched: Command) -> None:
    code, out, err = optsched("solve", "two.json", "--method", "mine.py:Covers")
    assert (code, out) == (2, "")
    expected = "a method that covers requests that are two"
    assert err == f"optsched: two.json: --method: got 'mine.py:Covers', expected {expected}\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone.py:X", "gone.py: {}: got No such file or directory, expected a readable file"),
        ("mine.py", "{}: got 'mine.py', expected mine.py:NAME, where mine.py defines NAME"),
        ("mine.py:together", "{}: got 'mine.py:together', expected mine.py:NAME, where mine.py defines NAME; did you"),
        ("mine.py:NUMBER", "{}: got 'mine.py:NUMBER', expected a class with solve"),
        ("mine.py:Needy", "{}: got 'mine.py:Needy', expected a class whose arguments all have defaults"),
        ("wrong.py:X", "{}: got 'wrong.py:X', expected a file that Python can run: NameError: name 'nothing' is not"),
    ],
)
@pytest.mark.parametrize("command", ["solve", "table"])
def test_what_is_wrong_with_a_file_is_said_on_one_line(command: str, name: str, said: str, optsched: Command) -> None:
    Path("wrong.py").write_text("X = nothing\n")
    code, out, err = optsched(command, "two.json", "--method", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"optsched: {said.format('--method')}")


def test_a_study_names_it(optsched: Command) -> None:
    Path("study.toml").write_text(
        'name = "mine"\ninstances = ["two.json"]\ntime_limit = 5\n'
        'methods = [{name = "mine.py:Together", order = "10"}, "mine.py:Silent"]\n'
    )
    code, out, err = optsched("study", "study.toml", "--out", "rows.csv")
    assert (code, err) == (0, ""), out
    rows = {row["label"]: row for row in csv.DictReader(Path("rows.csv").read_text().splitlines())}
    assert rows["mine.py:Together(order=10)"]["value"] == str(TOGETHER_PS)
    assert "mine.py:Silent" in rows


def test_an_option_that_it_does_not_take_is_refused(optsched: Command) -> None:
    del optsched
    with pytest.raises(InputError, match=r"colour: got 'red', expected no colour with method mine\.py:Together"):
        solve("two.json", method="mine.py:Together", options={"colour": "red"})
