"""The ledger only grows, and what it says is derived from its rows."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

from optsched.cli import main
from optsched.library import load_instance, load_suite, suite_names
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.documents import dump, instance_document, instance_sha256
from optsched.model.domain import replace
from optsched.model.errors import DefectError, InputError
from optsched.model.instance import Instance, Limits, Request
from optsched.model.lines import append_lines
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.study import ledger as ledgers
from optsched.study.ledger import Difficulty, Kind, Known, Ledger, Row, record, rows_of

TODAY = datetime.date(2026, 11, 21)
HASH, OTHER = "a" * 64, "b" * 64


def row(kind: str, value: int, runtime_s: float = 1.0, badge: str | None = None, **changes: Any) -> Row:
    fields: dict[str, Any] = {
        "instance_sha256": HASH,
        "instance": "x",
        "objective": Objective.MAKESPAN,
        "kind": Kind(kind),
        "value": value,
        "method": "m",
        "version": "0.1.0",
        "date": "2026-11-21",
        "runtime_s": runtime_s,
        "badge": Badge(badge or ("certified" if kind == "value" else "solver_claimed")),
    }
    return Row(**fields | changes)


def small() -> Instance:
    """Return an instance in which eviction pays, and that is solved in no time."""
    return replace(load_instance("infermax-fig15-I8"), limits=Limits(16, 64, 64), requests=(Request(8, 3),) * 3)


# Derived, by hand ------------------------------------------------------------------------------------------


def test_nothing_is_known_of_nothing() -> None:
    known = Known()
    assert (known.value, known.bound, known.gap, known.badge) == (None, None, None, Badge.HEURISTIC)
    assert (known.status, known.proof_s, known.difficulty) == (Status.UNKNOWN, None, Difficulty.OPEN)


def test_the_best_of_the_rows_counts_not_the_last() -> None:
    rows = (
        row("value", 120),
        row("value", 100),
        row("value", 110),
        row("bound", 60),
        row("bound", 80),
        row("bound", 70),
    )
    known = Known(rows)
    assert (known.value, known.bound, known.gap) == (100, 80, 0.2)
    assert (known.status, known.difficulty) == (Status.FEASIBLE, Difficulty.OPEN)
    assert Known(rows[:3]).status == Status.FEASIBLE
    assert Known(rows[3:]).status == Status.BOUND_ONLY
    closed = Known((*rows, row("bound", 100)))
    assert (closed.status, closed.gap) == (Status.OPTIMAL, 0.0)


def test_the_badge_is_the_best_bounds() -> None:
    certified, claimed = row("bound", 80, badge="certified"), row("bound", 90)
    assert Known((row("value", 100), certified)).badge == Badge.CERTIFIED
    assert Known((certified, claimed)).badge == Badge.SOLVER_CLAIMED
    assert Known((certified, claimed, row("bound", 90, badge="certified"))).badge == Badge.CERTIFIED


@pytest.mark.parametrize(
    ("times", "proof_s", "difficulty"),
    [
        ((1.0, 10.0), 10.0, Difficulty.EASY),
        ((1.0, 10.1), 10.1, Difficulty.MEDIUM),
        ((60.0, 2.0), 60.0, Difficulty.MEDIUM),
        ((300.0, 300.0), 300.0, Difficulty.HARD),
        ((1.0, 301.0), 301.0, Difficulty.VERY_HARD),
    ],
)
def test_difficulty_is_the_time_to_value_and_proof(
    times: tuple[float, float], proof_s: float, difficulty: Difficulty
) -> None:
    slow = (row("value", 120, 0.1), row("bound", 90, 0.1), row("value", 100, 500.0), row("bound", 100, 500.0))
    known = Known((*slow, row("value", 100, times[0]), row("bound", 100, times[1])))
    assert (known.proof_s, known.difficulty) == (proof_s, difficulty)


def test_improvements() -> None:
    known = Known((row("value", 100, 50.0), row("bound", 80, 50.0)))
    for better in (row("value", 99), row("bound", 81), row("bound", 80, badge="certified")):
        assert known.improvements([better]) == [better]
    for no_better in (row("value", 100), row("value", 101), row("bound", 80), row("bound", 79, badge="certified")):
        assert known.improvements([no_better]) == []
    both = [row("value", 90), row("bound", 90)]
    assert known.improvements(both) == both
    assert Known().improvements([row("value", 100), row("value", 100), row("value", 99)])[1:] == [row("value", 99)]


def test_a_proof_of_an_easier_class_is_an_improvement() -> None:
    known = Known((row("value", 100, 100.0), row("bound", 100, 100.0)))
    assert known.difficulty == Difficulty.HARD
    quicker = [row("value", 100, 5.0), row("bound", 100, 5.0)]
    assert known.improvements(quicker) == quicker
    assert known.improvements([row("value", 100, 70.0), row("bound", 100, 70.0)]) == []


def test_problems_are_kept_apart() -> None:
    greedy, free = Restrictions(("eviction", "hybrid")), Restrictions()
    rows = [
        row("value", 100),
        row("value", 90, instance_sha256=OTHER),
        row("value", 500, objective=Objective.MEAN_E2E),
        row("value", 120, restrictions=greedy),
    ]
    ledger = Ledger(rows)
    assert [ledger.best(HASH).value, ledger.best(OTHER).value] == [100, 90]
    assert ledger.best(HASH, Objective.MEAN_E2E).value == 500
    assert ledger.best(HASH, Objective.MEAN_E2E, greedy).rows == ()
    for forbid in (("eviction", "hybrid"), ("hybrid", "eviction")):
        assert ledger.best(HASH, Objective.MAKESPAN, Restrictions(forbid)).value == 120
    assert ledger.best(HASH, Objective.MAKESPAN, free).value == 100
    assert ledger.rows == rows


def test_contradictions() -> None:
    fine = [row("value", 100), row("bound", 100), row("value", 90, instance_sha256=OTHER)]
    assert Ledger(fine).contradictions() == []
    wrong = Ledger([*fine, row("bound", 91, instance_sha256=OTHER)])
    assert wrong.contradictions() == ["x, makespan, all schedules: bound 91 > value 90"]


def test_a_free_bound_holds_in_every_class() -> None:
    none = Restrictions(("eviction",))
    found = Ledger([row("bound", 101), row("value", 100, restrictions=none)]).contradictions()
    assert found == ["x, makespan, {'forbid': ['eviction']}: bound 101 > value 100"]
    assert Ledger([row("bound", 101, restrictions=none), row("value", 100)]).contradictions() == []


# Files -----------------------------------------------------------------------------------------------------


def test_rows_survive_a_file(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    rows = [
        row("value", 100, instance="κ"),
        row("bound", 0, 0.25, restrictions=Restrictions(("hybrid",), 2, 3, (1, 0))),
    ]
    append_lines(file, [entry.line for entry in rows])
    assert ledgers.read(file).rows == rows


def test_a_line_has_the_published_fields() -> None:
    assert json.loads(row("bound", 7, restrictions=Restrictions(("eviction",))).line) == {
        "instance_sha256": HASH,
        "instance": "x",
        "objective": "makespan",
        "restrictions": {"forbid": ["eviction"]},
        "kind": "bound",
        "value": 7,
        "method": "m",
        "version": "0.1.0",
        "date": "2026-11-21",
        "runtime_s": 1.0,
        "badge": "solver_claimed",
    }
    assert "restrictions" not in json.loads(row("value", 7).line)


def test_appending_keeps_earlier_bytes(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    append_lines(file, ["first"])
    append_lines(file, [])
    append_lines(file, ["second", "third"])
    assert file.read_bytes() == b"first\nsecond\nthird\n"
    file.write_bytes(b"an editor ended it here")
    append_lines(file, ["next"])
    assert file.read_bytes() == b"an editor ended it here\nnext\n"


@pytest.mark.slow
def test_many_may_append(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    code = "import sys; from pathlib import Path; from optsched.model.lines import append_lines\n" + (
        "for _ in range(50): append_lines(Path(sys.argv[1]), [sys.argv[2] * 3000])"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file), name]) for name in "ab"]
    assert [writer.wait(PATIENCE_S) for writer in writers] == [0, 0]
    assert sorted(file.read_text().splitlines()) == ["a" * 3000] * 50 + ["b" * 3000] * 50


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"value": -1}, "value: got -1, expected an integer ≥ 0"),
        ({"value": 1.5}, "value: got 1.5, expected an integer"),
        ({"kind": "guess"}, "kind: got 'guess', expected 'value' or 'bound'"),
        ({"instance_sha256": "A" * 64}, "instance_sha256: got 'AAA"),
        ({"instance_sha256": "a" * 63}, "instance_sha256: got 'aaa"),
        ({"date": "21.11.2026"}, "date: got '21.11.2026', expected a day such as 2026-11-21"),
        ({"runtime_s": -0.5}, "runtime_s: got -0.5, expected a number ≥ 0"),
        ({"badge": "heuristic"}, "badge: got 'heuristic', expected certified or solver_claimed for a bound"),
        ({"kind": "value"}, "badge: got 'solver_claimed', expected certified: a value's schedule has been replayed"),
        ({"restrictions": {"at_most": 5}}, "restrictions.at_most: got 5, expected no such field in a ledger"),
        ({"restrictions": {"forbid": ["sleep"]}}, "restrictions.forbid: got 'sleep', expected one of eviction"),
        ({"gap": 0.5}, "gap: got 0.5, expected no field of this name"),
        ({"status": "optimal"}, "status: got 'optimal', expected no field of this name"),
    ],
    ids=str,
)
def test_a_bad_row_is_named(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    good = row("bound", 10).line
    append_lines(file, [good, "", json.dumps(json.loads(good) | changes), good])
    with pytest.raises(InputError) as error:
        ledgers.read(file)
    assert str(error.value).startswith(f"{file}:3: {complaint}")


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    append_lines(file, [row("value", 1).line, row("value", 1).line[:50]])
    with pytest.raises(InputError) as error:
        ledgers.read(file)
    assert str(error.value).startswith(f"{file}:2: column 50: got invalid JSON")


def test_a_ledger_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        ledgers.read(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="expected a file to append to"):
        append_lines(tmp_path, ["x"])


# Recording results -----------------------------------------------------------------------------------------


def solved() -> Result:
    result = solve(small(), time_limit=120, workers=1)
    assert result.status == Status.OPTIMAL
    return result


@pytest.mark.slow
def test_a_result_gives_its_value_and_its_bound() -> None:
    result = solved()
    value, bound = rows_of(result, TODAY)
    assert (value.kind, value.value, value.badge) == (Kind.VALUE, result.value, Badge.CERTIFIED)
    assert (bound.kind, bound.value, bound.badge) == (Kind.BOUND, result.bound, result.badge)
    assert value.instance_sha256 == bound.instance_sha256 == instance_sha256(small())
    assert value.method == f"auto/{result.found_by['schedule']}"
    (alone,) = rows_of(simulate(small(), "vllm"), TODAY)
    assert (alone.kind, alone.method, alone.date) == (Kind.VALUE, "vllm", "2026-11-21")


@pytest.mark.parametrize(
    "result",
    [
        Result(small(), "m", Objective.MAKESPAN, Status.FAILED, message="no"),
        Result(small(), "m", Objective.MAKESPAN, Status.FEASIBLE, value=10),
        replace(simulate(small(), "vllm"), restrictions=Restrictions(at_most=10**15)),
    ],
    ids=["nothing", "a value without a schedule", "a decision"],
)
def test_nothing_is_recorded_of(result: Result, tmp_path: Path) -> None:
    assert record(tmp_path / "ledger.jsonl", [result], TODAY) == []
    assert not (tmp_path / "ledger.jsonl").exists()


def test_only_improvements_are_appended(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    result = solved()
    assert result.value is not None
    policy = simulate(small(), "vllm", restrictions=Restrictions(("hybrid",)))
    first = record(file, [policy], TODAY)
    assert [entry.value for entry in first] == [policy.value]
    assert record(file, [policy, policy], TODAY) == []
    before = file.read_bytes()
    new = record(file, [result, simulate(small(), "vllm"), policy], TODAY)
    assert [entry.kind for entry in new] == [Kind.VALUE, Kind.BOUND]
    assert file.read_bytes().startswith(before)
    assert record(file, [result], TODAY) == []
    known = ledgers.read(file).best(instance_sha256(small()))
    assert (known.value, known.status) == (result.value, Status.OPTIMAL)


def test_a_result_that_the_checker_rejects_is_not_recorded(tmp_path: Path) -> None:
    honest = simulate(small(), "vllm")
    assert honest.value is not None
    with pytest.raises(InputError, match="expected a result that the checker accepts"):
        record(tmp_path / "ledger.jsonl", [replace(honest, value=honest.value - 1)], TODAY)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_bound_beyond_a_value_is_a_defect(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    result = solved()
    assert result.bound is not None
    append_lines(file, [row("value", result.bound - 1, instance_sha256=instance_sha256(small())).line])
    before = file.read_bytes()
    with pytest.raises(DefectError, match=f"bound {result.bound} > value {result.bound - 1}"):
        record(file, [result], TODAY)
    assert file.read_bytes() == before


def test_a_ledger_that_contradicts_itself_does_not_grow(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    append_lines(file, [row("value", 90).line, row("bound", 91).line])
    before = file.read_bytes()
    with pytest.raises(InputError) as error:
        record(file, [solved()], TODAY)
    assert str(error.value) == (
        f"{file}: got x, makespan, all schedules: bound 91 > value 90, "
        "expected no bound above a value of the same problem"
    )
    assert file.read_bytes() == before


# Commands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("bound",), ("table", "--policies", "vllm", "--workers", "1")], ids=str)
def test_a_value_that_was_edited_gives_no_gap(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger says that 1 ps is enough, and the checker proves that it is not."""
    monkeypatch.chdir(tmp_path)
    Path("small.json").write_text(dump(instance_document(small())))
    append_lines(Path("ledger.jsonl"), [row("value", 1, instance_sha256=instance_sha256(small())).line])
    before = Path("ledger.jsonl").read_bytes()
    name, *options = command
    assert optsched(name, "small.json", *options, "--ledger", "ledger.jsonl") == 1
    out, err = capsys.readouterr()
    assert err.startswith("optsched: defect of optsched: ")
    assert len(err.splitlines()) == 1
    assert "value 1" in err
    assert "infermax-fig15-I8: makespan" in out, "what was found is printed"
    assert " -" not in out, "no gap is negative"
    assert Path("ledger.jsonl").read_bytes() == before


def optsched(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_a_table_records_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.json").write_text(dump(instance_document(small())))
    command = ("table", "small.json", "--policies", "vllm,vllm_hy", "--workers", "1", "--ledger", "ledger.jsonl")
    assert optsched(*command) == 0
    known = ledgers.read(Path("ledger.jsonl")).best(instance_sha256(small()))
    assert (known.value, known.status) == (solved().value, Status.OPTIMAL)
    before = Path("ledger.jsonl").read_bytes()
    assert optsched(*command) == 0
    assert Path("ledger.jsonl").read_bytes() == before
    assert optsched(*command, "--forbid", "eviction") == 0
    after = Path("ledger.jsonl").read_bytes()
    assert after.startswith(before)
    assert {"forbid": ["eviction"]} in [json.loads(line).get("restrictions") for line in after.splitlines()]


def test_a_bad_ledger_stops_a_table_before_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("optsched.study.execute.solve", None)
    Path("small.json").write_text(dump(instance_document(small())))
    Path("ledger.jsonl").write_text("{}\n")
    assert optsched("table", "small.json", "--ledger", "ledger.jsonl") == 2
    complaint = "optsched: ledger.jsonl:1: instance_sha256: got nothing, expected this field (and 9 more problems)\n"
    assert capsys.readouterr().err == complaint


def test_the_list_shows_the_shipped_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    assert optsched("instances", "list", "infermax-fig15") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    known = ledgers.shipped()
    for line, instance in zip(lines, load_suite("infermax-fig15").instances, strict=True):
        summary = known.best(instance_sha256(instance))
        assert summary.value is not None
        shown = f"{summary.value / 1e9:.3f}"
        assert line[0] == instance.name
        assert line[4:] == [shown, "ms", shown, "ms", "0.00", "optimal", "easy"]
    assert optsched("instances", "list", "infermax-b32", "--objective", "max_ttft") == 0
    assert capsys.readouterr().out.splitlines()[2].split()[4:] == ["–", "–", "–", "unknown", "open"]


# The shipped ledger ----------------------------------------------------------------------------------------


def test_no_shipped_bound_exceeds_a_value() -> None:
    assert ledgers.shipped().contradictions() == []


def test_every_shipped_row_is_of_a_shipped_instance() -> None:
    instances = [instance for suite in suite_names() for instance in load_suite(suite).instances]
    names = {instance_sha256(instance): instance.name for instance in instances}
    rows = ledgers.shipped().rows
    assert rows
    assert [entry.instance for entry in rows] == [names.get(entry.instance_sha256) for entry in rows]
