"""Tables for papers: chosen columns, transposed, LaTeX with siunitx; CSV of results that concatenates."""

from __future__ import annotations

import csv
import re
from io import StringIO

import pytest
from commands import optsched

from optsched import bound, simulate, solve
from optsched.model.errors import InputError
from optsched.report.formats import as_latex, as_markdown
from optsched.report.layout import chosen, transposed
from optsched.report.results_csv import COLUMNS, results_csv
from optsched.report.sheet import Cell, Column, Sheet

SHEET = Sheet(
    "t",
    "",
    (
        Column("policy", "policy", (Cell("a_b", "a_b"), Cell("c", "c")), key=True, left=True),
        Column("time\n(ms)", "time_ps", (Cell("1.25", 1250), Cell("n/a", None))),
        Column("gap (%)", "gap", (Cell("-10.5", -0.105), Cell("0", 0.0))),
        Column("", "badge", (Cell("x", "x"), Cell("y", "y"))),
    ),
    (),
)


def test_transposed_has_a_row_for_each_column() -> None:
    corner, first, second = transposed(SHEET).columns
    assert [cell.shown for cell in corner.cells] == ["time (ms)", "gap (%)"]
    assert (corner.header, first.header, second.header) == ("policy", "a_b", "c")
    assert [cell.shown for cell in first.cells] == ["1.25", "-10.5"]
    assert [cell.shown for cell in second.cells] == ["n/a", "0"]


def test_columns_are_chosen_by_header_or_name() -> None:
    found = chosen(SHEET, ["gap", "policy", "badge", "time (ms)"])
    assert [column.header for column in found.columns] == ["gap (%)", "policy", "badge", "time\n(ms)"]
    with pytest.raises(InputError, match=r"columns: got 'gapp'.*did you mean gap"):
        chosen(SHEET, ["gapp"])


def test_latex_aligns_numbers_and_braces_text() -> None:
    text = as_latex(SHEET, "tab:gaps", siunitx=True)
    assert "\\begin{tabular}{lS[table-format=1.2]S[table-format=-2.1]}" in text
    assert "a\\_b & 1.25 & -10.5 \\\\\n" in text
    assert "c & {n/a} & 0 \\\\\n" in text
    assert text.count("\\label{tab:gaps}") == 1
    assert text.index("\\caption") < text.index("\\label")
    assert [text.count(f"\\{end}{{adjustbox}}") for end in ("begin", "end")] == [1, 1]
    plain = as_latex(SHEET)
    assert "\\begin{tabular}{lrr}" in plain
    assert not re.search(r"siunitx|\\label", plain)


def test_markdown_headers_have_one_line() -> None:
    assert "| time (ms) |" in re.sub(" +", " ", as_markdown(SHEET))


def test_results_concatenate_across_suites_and_methods() -> None:
    files = [
        results_csv([simulate("infermax-fig15-I8", "vllm"), solve("infermax-fig15-I8", time_limit=10, workers=1)]),
        results_csv([bound("infermax-fig15-I64", "mean_e2e"), simulate("chunked-small-n6-k3", "vllm")]),
    ]
    first, second = (list(csv.reader(StringIO(text))) for text in files)
    assert first[0] == second[0] == list(COLUMNS)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in (*first[1:], *second[1:])]
    assert [row["status"] for row in rows] == ["feasible", "optimal", "bound_only", "failed"]
    assert [row["gap"] for row in rows] == ["", "0.0", "", ""]
    assert rows[0]["value"] == rows[0]["makespan_ps"] == rows[1]["value"]
    assert (rows[0]["evictions"], rows[0]["requests"], rows[0]["kv_tokens"]) == ("2", "4", "16")
    assert rows[3]["makespan_ps"] == ""


def test_formats_of_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("simulate", "infermax-fig15-I8", "--policy", "vllm,vllm_ef")
    rows = list(csv.DictReader(StringIO(optsched(capsys, *command, "--format", "csv").out)))
    assert [row["method"] for row in rows] == ["vllm", "vllm_ef"]
    text = optsched(capsys, *command, "--format", "md", "--columns", "policy,batches", "--transpose").out
    lines = [re.findall(r"[\w]+", line) for line in text.splitlines() if line.startswith("|")]
    assert [line for line in lines if line] == [["policy", "vllm", "vllm_ef"], ["batches", "14", "16"]]
    latex = optsched(capsys, *command, "--format", "latex", "--label", "tab:x", "--siunitx").out
    assert "\\label{tab:x}" in latex
    for options, expected in {
        ("--format", "pdf"): "--format: got 'pdf', expected one of text, md, csv, latex",
        ("--format", "csv", "--transpose"): "csv has fixed columns",
        ("--label", "x"): "expected latex with --label",
        ("--columns", "policy,batch"): "--columns: got 'batch'",
    }.items():
        outcome = optsched(capsys, *command, *options)
        assert (outcome.code, expected in outcome.err) == (2, True), outcome.err
