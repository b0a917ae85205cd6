"""Tables for papers: chosen columns, transposed, LaTeX with siunitx; CSV of results that concatenates."""

from __future__ import annotations

import csv
import dataclasses
import re
import shutil
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from commands import optsched

from optsched import bound, save_instance, simulate, solve
from optsched.calibrate.library import find_cost
from optsched.cli import simulate_command, table_command
from optsched.library import load_instance, load_suite
from optsched.model.documents import Suite, dump, suite_document
from optsched.model.domain import replace
from optsched.model.errors import InputError
from optsched.report.bound_sheet import make_sheet
from optsched.report.formats import as_markdown
from optsched.report.latex import PAGE_PT, TEXT_WIDTH_PT, as_latex, height_pt, pages_of, width_pt
from optsched.report.layout import chosen, transposed
from optsched.report.results_csv import COLUMNS, results_csv
from optsched.report.sheet import Cell, Column, Sheet
from optsched.study.bound_table import TableTask, finish, table_rows

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


def test_a_column_that_is_not_shown_is_named_as_it_was_asked_for() -> None:
    hidden = dataclasses.replace(SHEET, columns=(Column("", "kv_tokens", (Cell("4", "4"),), also=("M",)),))
    names = ["M", "kv_tokens"]
    assert [column.header for column in chosen(hidden, names).columns] == names


def test_a_wrong_column_is_found_before_anything_is_computed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was computed")

    monkeypatch.setattr(table_command, "table_rows", never)
    monkeypatch.setattr(simulate_command, "simulate_each", never)
    for typed in ("table infermax-fig15 --columns I,vlm", "simulate infermax-fig15 --columns I,vlm"):
        found = optsched(capsys, *typed.split(), "--policy", "vllm")
        assert (found.code, found.err.startswith("optsched: --columns: got ")) == (2, True)


def test_columns_have_the_same_names_whatever_is_proved() -> None:
    """A table of no rows has them all: ``optimum (ms)`` may be asked for before anything is solved."""
    suite = Suite("s", "", load_suite("infermax-fig15").instances[:2])
    task = TableTask(suite, ("vllm",), time_limit=0.01, workers=1)
    tables = (finish(task, ()), finish(task, list(table_rows(task))))
    names = [{name for column in make_sheet(table).columns for name in column.names} for table in tables]
    assert names[0] == names[1]
    assert {"I", "M", "C", "optimum (ms)", "best (ms)", "bound (s)", "gap (%)", "vllm", "gap_vllm"} <= names[0]


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
    assert len(set(COLUMNS)) == len(COLUMNS)
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


MARKED = Sheet(
    "marks",
    "",
    (
        Column("I", "input_tokens", (Cell("8", 8), Cell("2–4", "2–4")), key=True),
        Column("best (ms)", "value", (Cell("42.36 ✓", 1), Cell("1.5", 2))),
        Column("vllm_ef", "gap_vllm_ef", (Cell("0", 0.0), Cell("≤ 54.7", 0.547))),
    ),
    ("≤ the bound is not met by a schedule: the gap is at most this.",),
)


def test_marks_beside_numbers_have_room() -> None:
    text = as_latex(MARKED, siunitx=True)
    kinds = (
        "{S[table-format=1.0]S[table-format=2.2,table-space-text-post={\\,$\\checkmark$}]"
        "S[table-format=2.1,table-space-text-pre={$\\le$\\,}]}"
    )
    assert kinds in text
    assert "8 & 42.36{\\,$\\checkmark$} & 0 \\\\" in text
    assert "{2--4} & 1.5 & {$\\le$\\,}54.7 \\\\" in text


def wide(columns: int, rows: int) -> Sheet:
    """Return a sheet with a key of 4 digits and columns of numbers under long names."""
    keys = Column("I", "input_tokens", tuple(Cell(str(1000 + row), row) for row in range(rows)), key=True)
    names = (f"policy_{number}_of_a_long_name" for number in range(columns))
    others = (Column(name, name, tuple(Cell("99.9", 0.999) for _ in range(rows))) for name in names)
    return Sheet("wide_one", "", (keys, *others), ("A note.",))


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (10, 11), (47, 3), (6, 100)])
def test_every_part_fits_a_page(columns: int, rows: int) -> None:
    """Every row of every column is on some page, once; the key column leads every part."""
    sheet = wide(columns, rows)
    found: dict[str, int] = {}
    for page in pages_of(sheet):
        assert sum(map(height_pt, page)) <= PAGE_PT
        for part in page:
            assert sum(map(width_pt, part)) <= TEXT_WIDTH_PT
            assert part[0].header == "I"
            for column in part[1:]:
                found[column.name] = found.get(column.name, 0) + len(column.cells)
    assert found == {column.name: rows for column in sheet.columns[1:]}
    text = as_latex(sheet, "tab:wide")
    assert text.count("\\begin{table}") == len(pages_of(sheet))
    assert text.count("\\label") == text.count("A note.") == 1


def test_widths_are_no_smaller_than_those_of_the_font() -> None:
    """Computer Modern at 10 pt (cmr10.tfm): a digit 5.00, m 8.33, W 10.28, e 4.44, a full stop 2.78; 12 between."""
    for text, points in (("1024", 20.0), ("mmm", 25.0), ("eee", 13.3), ("99.9", 17.78), ("sarathi", 29.2)):
        assert points + 12 <= width_pt(Column(text, text, ())) <= 1.35 * points + 12


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_tables_compile_without_overfull_boxes(tmp_path: Path) -> None:
    tables = [as_latex(sheet, siunitx=siunitx) for sheet in (SHEET, MARKED, wide(47, 40)) for siunitx in (False, True)]
    packages = "\\usepackage{booktabs,amssymb,adjustbox,siunitx}"
    body = "\\clearpage\n".join(tables)
    file = tmp_path / "all.tex"
    file.write_text(f"\\documentclass{{article}}{packages}\\begin{{document}}{body}\\end{{document}}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", file.name]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    log = (tmp_path / "all.log").read_text(errors="replace")
    assert not re.search(r"Overfull|too large|^!", log, flags=re.MULTILINE)


def test_layout_of_bound_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    save_instance(load_instance("infermax-fig15-I8"), file)
    command = ("table", str(file), "--policy", "vllm,vllm_ef", "--time-limit", "20", "--workers", "1")
    text = optsched(capsys, *command, "--columns", "vllm,vllm_ef,M", "--transpose").out
    rows = [line.split() for line in text.splitlines() if line.startswith(("M ", "vllm"))]
    assert rows == [["M", "16"], ["vllm", "0"], ["vllm_ef", "9.2"]]
    slower = optsched(capsys, *command, "--profile", "a100-llama2-7b-nocall", "--format", "csv").out
    (row,) = csv.DictReader(StringIO(slower))
    own = solve(replace(load_instance(file), cost=find_cost("a100-llama2-7b-nocall")), time_limit=20, workers=1)
    assert int(row["value"]) == own.value
    outcome = optsched(capsys, *command, "--columns", "vlm")
    assert (outcome.code, "--columns: got 'vlm'" in outcome.err, outcome.out) == (2, True, "")


def test_csv_of_bound_tables_concatenates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Whatever varies, and whether all is proved: the same columns."""
    first = load_instance("infermax-fig15-I8")
    second = replace(first, name="c", limits=replace(first.limits, kv_tokens=30, batch_requests=3))
    heads = []
    for name, found in (("a.json", [first]), ("b.json", [first, second])):
        (tmp_path / name).write_text(dump(suite_document(Suite(name, "", tuple(found)), "a100-llama2-7b-linear")))
        limit = "20" if name == "a.json" else "0.001"
        command = ("table", str(tmp_path / name), "--policy", "vllm", "--objective", "mean_e2e", "--time-limit", limit)
        rows = list(csv.reader(StringIO(optsched(capsys, *command, "--workers", "1", "--format", "csv").out)))
        heads.append(rows[0])
    assert heads[0] == heads[1]
    expected = ("value", "bound", "gap", "status", "badge", "objective", "instance_sha256", "kv_tokens", "kappa")
    assert set(expected) <= set(heads[0])
