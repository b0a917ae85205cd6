"""A model that is written to a file says the same as the one that is solved, and `optsched solve` writes it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import highspy
import pytest
from brute_force import MONOTONE, optimum
from commands import optsched

from optsched import Instance, Limits, Request, Restrictions, Rules
from optsched.methods.export import export_model
from optsched.model.cost import CostModel
from optsched.model.documents import dump, instance_document
from optsched.model.errors import InfeasibleInstanceError, InputError
from optsched.model.objectives import Objective

PAIR = Instance(
    "pair",
    Limits(5, 4, 3),
    Rules(chunked_prefill=False),
    CostModel(base=10, token=3, pieces=((0, 8),), decode_kv=2, decode_req=5, prefill_sq=1, prefill_kv=4),
    (Request(2, 2, slo_ttft_ps=10), Request(3, 2, arrival_ps=7, weight=2, slo_e2e_ps=90)),
)
"""Two requests that do not fit together, with arrivals, pieces and SLOs, the first of which nothing can meet."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Work in a folder that holds the instance."""
    monkeypatch.chdir(tmp_path)
    Path("pair.json").write_text(dump(instance_document(PAIR)))
    return "pair.json"


def optimum_of_file(path: Path) -> float | None:
    """Return what HiGHS finds when it reads the file; None if there is no solution."""
    reader: Any = highspy.Highs()
    reader.silent()
    assert reader.readModel(str(path)) == highspy.HighsStatus.kOk
    reader.run()
    if reader.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None
    assert reader.getModelStatus() == highspy.HighsModelStatus.kOptimal
    value: float = reader.getObjectiveValue()
    return value


@pytest.mark.slow
@pytest.mark.parametrize("style", ["lp", "mps"])
@pytest.mark.parametrize("objective", [found for found in MONOTONE if found.percentile is None])
def test_a_file_has_the_same_optimum(objective: Objective, style: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{style}"
    path.write_text(export_model(PAIR, objective, method="infermax_milp", style=style))
    # PAIR's times are small: the unit of the model is 1 ps.
    assert "_unit_1_ps" in path.read_text()
    assert optimum_of_file(path) == pytest.approx(optimum(PAIR, objective))


@pytest.mark.parametrize("style", ["lp", "mps"])
def test_restrictions_are_in_the_file(style: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{style}"
    best = optimum(PAIR, restrictions=Restrictions(("eviction", "hybrid"), order=(1, 0)))
    assert best is not None
    for at_most, expected in ((None, best), (best, best), (best - 1, None)):
        class_ = Restrictions(("eviction", "hybrid"), order=(1, 0), at_most=at_most)
        path.write_text(export_model(PAIR, method="infermax_milp", style=style, restrictions=class_))
        found = optimum_of_file(path)
        assert found is None if expected is None else found == pytest.approx(expected)


def test_the_command_writes_the_model(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("solve", pair, "--method", "infermax_milp", "--objective", "max_e2e", "--forbid", "eviction")
    for style in ("lp", "mps"):
        model = export_model(
            PAIR, "max_e2e", method="infermax_milp", style=style, restrictions=Restrictions(("eviction",))
        )
        assert optsched(capsys, *command, "--export", style) == (0, model, "")
        assert optsched(capsys, *command, "--export", style, "--out", "model.gz") == (0, "", "")
        assert gzip.decompress(Path("model.gz").read_bytes()).decode() == model


MILP = ("--method", "infermax_milp")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["--export", "lp"],
            "pair.json: --method: got 'auto', expected a method whose model can be exported: infermax_",
        ),
        (
            ["--method", "class_flow", "--export", "lp"],
            "pair.json: --method: got 'class_flow', expected a method whose",
        ),
        ([*MILP, "--export", "xml"], "--export: got 'xml', expected one of lp, mps"),
        (
            [*MILP, "--export", "lp", "--json"],
            "--export: got --json with it, expected only options that shape the model",
        ),
        ([*MILP, "--export", "lp", "--time-limit", "60"], "--export: got --time-limit with it, expected only options"),
        ([*MILP, "--export", "lp", "--workers", "1"], "--export: got --workers with it, expected only options"),
        ([*MILP, "--export", "lp", "--solver", "cbc"], "--export: got --solver with it, expected only options"),
        ([*MILP, "--export", "lp", "--out", "no/where.lp"], "no/where.lp: --out: got a folder that does not exist"),
        (
            [*MILP, "--solver", "glop"],
            "--solver: got 'glop', expected one of highs, cbc, gurobi, cplex, scip (installed",
        ),
        (["--solver", "cbc"], "--solver: got 'cbc', expected no solver with method auto, only with infermax_milp"),
        (
            ["--method", "class_flow", "--solver", "cbc"],
            "--solver: got 'cbc', expected no solver with method class_flow",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused(
    options: list[str], complaint: str, pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = optsched(capsys, "solve", pair, *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"optsched: {complaint}")
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_what_is_chosen_stands_in_the_document(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("solve", pair, *MILP, "--workers", "1", "--out", "out.json")
    for more, line in (("--solver", "cbc"), '"options": {"solver": "cbc"}'), ((), None):
        assert optsched(capsys, *command, *more).code == 0
        written = Path("out.json").read_text()
        assert line in written if line else "options" not in written
        assert optsched(capsys, "check", "out.json").code == 0


def test_too_large_and_infeasible_instances_have_no_file() -> None:
    large = Instance("large", Limits(99, 99, 99), Rules(), CostModel(base=0, token=1), (Request(9, 9),) * 99)
    with pytest.raises(InputError, match=r"method: got 'infermax_milp', expected a method that covers a model of "):
        export_model(large, method="infermax_milp")
    with pytest.raises(InfeasibleInstanceError, match="request 0"):
        export_model(
            Instance("no", Limits(3, 9, 9), Rules(), CostModel(1, 1), (Request(9, 1),)), method="infermax_milp"
        )
