"""The benchmark of exact methods: its statistics by hand, its processes, and that nothing finished is lost."""

from __future__ import annotations

import math
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from checkout import ROOT
from commands import optsched, program
from patience import PATIENCE_S, until, with_time_enough

import exact
from method_tables import (
    common_runs,
    counted_time,
    final_gap,
    mean_unsolved_gap,
    methods_sheet,
    primal_dual_integral,
    provenance,
    ratios,
    shifted_geometric_mean,
    sizes_sheet,
    solved_within,
)
from optsched.library import load_instance
from optsched.model.documents import Suite, dump, instance_sha256, suite_document
from optsched.model.domain import replace
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Status, versions
from optsched.report.figure import check_plot
from optsched.report.formats import as_csv, as_markdown
from optsched.report.section import replace_section
from optsched.study.drive import run as drive
from optsched.study.execute import Outcome
from optsched.study.record import Ended, Record
from optsched.study.runner import Processes
from optsched.study.store import Store
from optsched.study.trial import Trial, solving
from optsched.study.worker import Allowance
from profile_figure import plot_profile

SCRIPT = ROOT / "benchmarks" / "exact.py"


def record(instance: str = "x", method: str = "m", solved_s: float | None = None, **changes: Any) -> Record:
    """Return a record of 10 s: solved after some time, or with value 100 and bound 80."""
    fields: dict[str, Any] = {
        "suite": "s",
        "instance": instance,
        "instance_sha256": "a" * 64,
        "requests": 4,
        "kappa": 2.0,
        "objective": Objective.MAKESPAN,
        "method": method,
        "time_limit_s": 10.0,
        "workers": 1,
        "seed": 0,
        "ended": Ended.FINISHED,
        "message": None,
        "status": Status.FEASIBLE if solved_s is None else Status.OPTIMAL,
        "badge": Badge.SOLVER_CLAIMED,
        "value": 100,
        "bound": 80 if solved_s is None else 100,
        "runtime_s": 10.0 if solved_s is None else solved_s,
        "points": (),
        "versions": {"optsched": "0.1.0"},
        "commit": "c",
        "machine": "2 cores, z80",
        "date": "2026-11-21",
    }
    return Record(**fields | changes)


def small(name: str = "small", size: int = 8) -> Instance:
    template = load_instance("infermax-fig15-I8")
    return replace(template, name=name, limits=Limits(16, 64, 64), requests=(Request(size, 3),) * 3)


def trial(instance: Instance, objective: Objective = Objective.MAKESPAN, **changes: Any) -> Trial:
    fields: dict[str, Any] = {"method": "token_cpsat", "time_limit": 20.0, "workers": 1, "seed": 0}
    return solving(instance, objective, **fields | changes)


# Statistics, by hand ---------------------------------------------------------------------------------------


def test_what_counts_as_solved() -> None:
    assert record(solved_s=10.0).solved_s == 10.0
    assert record(solved_s=10.1).solved_s is None, "after the limit"
    assert record(solved_s=1.0, ended=Ended.OVERRAN).solved_s is None
    assert record().solved_s is None
    runs = [record(solved_s=0.5), record(solved_s=3.0), record(solved_s=10.1), record()]
    assert [solved_within(runs, seconds) for seconds in (0.4, 0.5, 3, 300)] == [0, 1, 2, 2]
    assert [counted_time(entry) for entry in runs] == [0.5, 3.0, 10.0, 10.0]


def test_the_shifted_geometric_mean() -> None:
    assert math.isclose(shifted_geometric_mean([0.9, 3.9], shift=0.1), 1.9)  # sqrt(1 · 4) − 0.1
    assert math.isclose(shifted_geometric_mean([5.0]), 5.0)
    assert math.isclose(shifted_geometric_mean([0.0, 0.0, 0.0]), 0.0, abs_tol=1e-12)


def test_gaps() -> None:
    assert final_gap(record()) == 0.2
    assert final_gap(record(solved_s=1.0)) == 0.0
    assert final_gap(record(value=None)) == final_gap(record(bound=None)) == 1.0
    assert mean_unsolved_gap([record(), record(bound=None), record(solved_s=1.0)]) == 0.6
    assert mean_unsolved_gap([record(solved_s=1.0)]) is None


@pytest.mark.parametrize(
    ("points", "integral"),
    [
        ((), 10.0),
        (((0.0, 100, 100),), 0.0),
        (((2.0, 100, None), (4.0, 100, 50), (6.0, 80, 60), (8.0, 80, 80)), 4 + 2 * 0.5 + 2 * 0.25),
        (((5.0, 100, 80), (12.0, 100, 100)), 5 + 5 * 0.2),
        (((5.0, 100, 80), (4.0, 100, 90)), 5 + 5 * 0.1),
    ],
    ids=["nothing", "at once", "step by step", "too late", "a clock that goes back"],
)
def test_the_primal_dual_integral(points: tuple[Any, ...], integral: float) -> None:
    assert math.isclose(primal_dual_integral(record(points=points)), integral)


def test_ratios_to_the_fastest() -> None:
    runs = {
        "a": [record(solved_s=0.9), record(solved_s=7.9), record()],
        "b": [record(solved_s=1.9), record(), record()],
    }
    found = ratios(runs, shift=0.1)
    assert [round(ratio, 9) for ratio in found["a"]] == [1.0, 1.0, math.inf]
    assert [round(ratio, 9) for ratio in found["b"]] == [2.0, math.inf, math.inf]


def test_only_what_all_methods_ran_on_is_compared() -> None:
    records = [record("x", "a"), record("x", "b"), record("y", "a"), record("z", "b"), record("z", "a", 1.0)]
    runs = common_runs(records, ("a", "b"))
    assert {name: [entry.instance for entry in found] for name, found in runs.items()} == {
        "a": ["x", "z"],
        "b": ["x", "z"],
    }
    assert runs["a"][1].solved_s == 1.0
    with pytest.raises(InputError, match="no instance that all methods have been run on"):
        common_runs(records[:1], ("a", "b"))


def runs() -> dict[str, list[Record]]:
    sizes = ((4, 2.0), (4, 2.5), (4, 8.0), (6, 2.0))
    times = {"a": (1.0, 2.0, 3.0, None), "b": (4.0, None, 9.0, None)}
    return {
        name: [
            record(f"i{position}", name, solved, requests=size, kappa=kappa, points=((5.0, 100, 80),))
            for position, (solved, (size, kappa)) in enumerate(zip(found, sizes, strict=True))
        ]
        for name, found in times.items()
    }


def test_the_table_of_methods() -> None:
    sheet = methods_sheet(runs())
    assert "κ = 2.0–8.0" in sheet.common
    assert as_csv(sheet).splitlines()[0] == "method,solved_10,solved_60,solved_300,time_s,gap,primal_dual_s,amiss"
    first, second = sheet.rows
    assert [cell.shown for cell in first] == ["a", "3", "–", "–", "2.82", "20.0", "6.00", "0"]
    assert [cell.shown for cell in second[:4]] == ["b", "2", "–", "–"]
    long = {"a": [record(solved_s=50.0, time_limit_s=60.0), record(time_limit_s=60.0, ended=Ended.OVERRAN)]}
    assert [cell.shown for cell in methods_sheet(long).rows[0]][1:4] == ["0", "1", "–"]
    assert methods_sheet(long).rows[0][-1].value == 1


def test_the_table_of_sizes() -> None:
    sheet = sizes_sheet(runs())
    assert [[cell.shown for cell in row] for row in sheet.rows] == [
        ["4", "2.0–2.5", "2", "2", "1 (20.0 %)"],
        ["4", "8.0", "1", "1", "1"],
        ["6", "2.0", "1", "0 (20.0 %)", "0 (20.0 %)"],
    ]
    assert "|   4 | 2.0–2.5 |" in as_markdown(sheet)


def test_provenance_names_every_machine_and_commit() -> None:
    text = provenance({"a": [record(), record(commit="d", machine="1 core, 6502")]})
    assert text == ("Machine: 1 core, 6502, 2 cores, z80. Commit: c, d. Date: 2026-11-21. Versions: optsched 0.1.0.")


def test_a_section_is_replaced_and_the_rest_stays() -> None:
    text = replace_section("# Title\n\nText.\n", "one", "first")
    assert text == "# Title\n\nText.\n\n<!-- begin one -->\nfirst\n<!-- end one -->\n"
    both = replace_section(text, "two", "second")
    again = replace_section(both, "one", "new\n")
    assert again == both.replace("first", "new")
    with pytest.raises(InputError, match="expected both marks"):
        replace_section("<!-- begin one -->", "one", "x")


# The plot --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_plot_names_every_method_and_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for file in (first, second):
        plot_profile(runs(), file)
    assert first.read_bytes() == second.read_bytes()
    drawn = first.read_text()
    for text in ("Performance profile", "Solved over time", "s, makespan: 4 instances, limit 10 s"):
        assert f"<!-- {text} -->" in drawn
    for method in runs():
        assert f"<!-- {method} -->" in drawn
    assert "<dc:date>" not in drawn


def test_a_method_that_solves_nothing_is_drawn(tmp_path: Path) -> None:
    plot_profile({"none": [record()]}, tmp_path / "none.png")
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"expected a file name that ends in \.svg, \.png, \.pdf"):
        check_plot(tmp_path / "plot.jpeg")
    with pytest.raises(InputError, match="a folder that does not exist"):
        check_plot(tmp_path / "none" / "plot.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'optsched\[plot\]'"):
        check_plot(tmp_path / "plot.svg")


# Processes -------------------------------------------------------------------------------------------------


def run(wanted: Trial, grace_s: float = 30.0) -> tuple[Record, Outcome]:
    """Run a trial in a process and return what the store says of it, and what the process said."""
    with (
        TemporaryDirectory() as folder,
        closing(Processes(1, Allowance(grace_s=grace_s))) as runner,
        Store(Path(folder) / "s.sqlite", commit="c") as store,
    ):
        (done,) = drive([wanted], runner, store)
        attempt = store.last(wanted)
        assert attempt is not None
        return attempt.record, done.outcome


@pytest.mark.slow
def test_a_trial_gives_a_record_and_a_result() -> None:
    found, outcome = run(trial(small()))
    result = outcome.result
    assert result is not None
    assert (found.ended, found.status, found.message) == (Ended.FINISHED, Status.OPTIMAL, None)
    assert (found.value, found.bound, found.runtime_s) == (result.value, result.bound, result.runtime_s)
    assert found.instance_sha256 == instance_sha256(small())
    assert (found.commit, found.versions) == ("c", versions())
    assert found.points[-1][1:] == (result.value, result.bound)
    incumbents = [value for _, value, _ in found.points if value is not None]
    assert incumbents == sorted(incumbents, reverse=True)
    assert found.solved_s is not None
    assert 0 <= primal_dual_integral(found) <= found.solved_s + 0.001


def test_a_method_that_fails_says_why() -> None:
    found, outcome = run(trial(small(), method="nonsense"))
    assert outcome.result is None
    assert (found.ended, found.status, found.solved_s) == (Ended.FAILED, Status.UNKNOWN, None)
    assert found.message is not None
    assert found.message.startswith("method: got 'nonsense', expected one of ")


@pytest.mark.slow
def test_a_method_that_overruns_is_interrupted_and_hands_in_what_it_has() -> None:
    hard = load_instance("ladder-n16-LILO+SILO-k2")
    patient = trial(hard, Objective.MEAN_E2E, time_limit=1000.0)
    started = time.monotonic()
    found, outcome = with_time_enough(
        lambda limit: run(patient, grace_s=limit - 1000.0),  # seconds in all
        lambda found: found[0].value is not None,
        4.0,
    )
    assert time.monotonic() - started < PATIENCE_S
    assert found.ended == Ended.OVERRAN
    assert found.solved_s is None
    assert found.value is not None
    if outcome.result is not None:
        assert (found.value, found.bound) == (outcome.result.value, outcome.result.bound)


# Resuming --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "complaint"),
    [
        ({"status": Status.OPTIMAL}, "bound: got 80, expected the value 100 of an optimum"),
        ({"bound": 101}, "bound: got 101, expected at most the value 100"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(claim: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError) as error:
        record(**claim)
    assert str(error.value) == complaint


def stat(process: int) -> list[str]:
    """Return what /proc says of a process after its name, state and parent first; nothing if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def children(parent: int) -> list[int]:
    processes = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [process for process in processes if stat(process)[1:2] == [str(parent)]]


def easy_and_hard(file: Path) -> None:
    """Write a suite whose first two instances are solved at once and whose third one is not."""
    hard = replace(load_instance("ladder-n16-LILO+SILO-k2"), name="hard")
    suite = Suite("mine", "Two easy, one hard.", (small("a"), small("b", 4), hard))
    file.write_text(dump(suite_document(suite, "a100-llama2-7b-linear")))


def kept(file: Path) -> list[tuple[Any, ...]]:
    """Return the attempts in a store as they are in the file: name of the instance first."""
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        return database.execute(
            "SELECT instances.name, attempts.* FROM attempts JOIN tasks ON tasks.key = attempts.task "
            "JOIN instances ON instances.sha256 = tasks.instance ORDER BY attempts.id"
        ).fetchall()


def finished(file: Path) -> int:
    try:
        return len(kept(file))
    except sqlite3.Error:  # not made yet
        return 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_killed_benchmark_loses_nothing_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    easy_and_hard(tmp_path / "mine.json")
    store = tmp_path / "store.sqlite"
    options = ("--suite", "mine.json", "--methods", "token_cpsat", "--objective", "mean_e2e", "--workers", "1")
    files = ("--store", "store.sqlite", "--ledger", "ledger.jsonl", "--commit", "c")
    long = (*options, *files, "--time-limit", "100")
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), *long], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as killed:
        until(lambda: finished(store) == 2)
        until(lambda: bool(children(killed.pid)))
        (worker,) = children(killed.pid)
        killed.send_signal(signal.SIGKILL)
    until(lambda: stat(worker)[:1] in ([], ["Z"]))
    before = kept(store)
    ledger = (tmp_path / "ledger.jsonl").read_bytes()
    assert [row[0] for row in before] == ["a", "b"]

    reported = program(capsys, exact.main, "exact.py", *long, "--report", "--readme", "R.md", "--plot", "p.svg")
    assert (reported.code, reported.err) == (0, "")
    assert kept(store) == before
    text = (tmp_path / "R.md").read_text()
    assert "2 instances" in text
    assert "![Performance profile of mine-mean_e2e](p.svg)" in text

    def resumed() -> list[str]:
        again = program(capsys, exact.main, "exact.py", *options, *files, "--time-limit", "1")
        assert again.code == 0, again.err
        return [line.split()[3] for line in again.err.splitlines()]

    assert resumed() == ["a:", "b:", "hard:"], "under another limit nothing can be said of the time"
    assert resumed() == []
    after = kept(store)
    assert after[:2] == before
    assert [row[0] for row in after] == ["a", "b", "a", "b", "hard"]
    assert (tmp_path / "ledger.jsonl").read_bytes().startswith(ledger)


@pytest.mark.slow
def test_a_killed_table_loses_nothing_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    easy_and_hard(tmp_path / "mine.json")
    store, ledger = tmp_path / "kept" / "study.sqlite", tmp_path / "ledger.jsonl"
    options = ("--policies", "vllm", "--objective", "mean_e2e", "--workers", "1", "--results", "kept")
    table = ("table", "mine.json", *options, "--ledger", "ledger.jsonl", "--method", "token_cpsat")
    command = [sys.executable, "-c", "from optsched.cli import main; main()", *table, "--time-limit", "100"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as killed:
        until(lambda: ledger.exists() and b'"instance": "b"' in ledger.read_bytes())
        killed.send_signal(signal.SIGKILL)
    before, rows = kept(store), ledger.read_bytes()
    assert [row[0] for row in before] == ["a", "a", "b", "b"]

    resumed = optsched(capsys, *table, "--time-limit", "1", "--resume")
    assert (resumed.code, resumed.err) == (0, "")
    after = kept(store)
    assert after[:4] == before
    assert [row[0] for row in after[4:]] == ["hard", "hard"]
    assert ledger.read_bytes().startswith(rows)
    assert len(ledger.read_bytes()) > len(rows)


# The command -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--suite", "none"], "SUITE: got 'none', expected a file, or one of "),
        (["--n", "5"], "--n: got 5, expected one of 4, 6, 8, 12, 16, 24, 32"),
        (["--n", "x"], "--n: got 'x', expected numbers of requests joined by commas, such as 4,6"),
        (["--methods", "auto,none"], "--methods: got 'none', expected one of auto, "),
        (["--objective", "none"], "--objective: got 'none', expected one of makespan, "),
        (["--time-limit", "inf"], "--time-limit: got Infinity, expected a finite number > 0"),
        (["--plot", "x.jpeg"], "--plot: got 'x.jpeg', expected a file name that ends in .svg, .png, .pdf"),
        (["--store", "r.sqlite", "--report"], "r.sqlite: records: got no instance that all methods have been run on"),
        (["--nonsense"], "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = program(capsys, exact.main, "exact.py", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"exact.py: {complaint}")
    assert len(ended.err.splitlines()) == 1
