"""A user's own table: columns by name, units, rejected rows with reasons, and what the summary warns of."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from commands import optsched
from playing import TEN

from optsched import load_instance
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.traces.own_table import read_form, read_own_table
from optsched.traces.rows import TraceRow
from optsched.traces.summary import summarise


@pytest.mark.parametrize(
    ("unit", "text", "ps"),
    [
        ("s", "1.5", 15 * 10**11),
        ("ms", "1700000000500", 17000000005 * 10**11),
        ("us", "2", 2 * 10**6),
        ("ns", "1700000000000000001", 1700000000000000001 * 1000),
        ("iso", "1970-01-01T00:00:01.000000000001Z", 10**12 + 1),
        ("iso", "1970-01-01 01:00:02+01:00", 2 * 10**12),
        ("iso", "1970-01-02T00:00:00", 86_400 * 10**12),
    ],
)
def test_times_are_exact(unit: str, text: str, ps: int) -> None:
    found = read_own_table(f"arrival,input,output\n{text},3,4\n", read_form(None, unit))
    assert found.rows == (TraceRow(ps, 3, 4),)


def test_columns_by_name_in_any_order() -> None:
    """As spreadsheets write it: a mark at the start, quotes around commas, lines that end in CR LF, an empty line."""
    text = '\ufeffgen,note,t,prompt,guess\r\n4,"a, b",7,3,5\r\n\r\n1,x,8,2,1\r\n'
    form = read_form("arrival=t, input=prompt,output=gen,predicted=guess", "ms")
    assert read_own_table(text, form).rows == (TraceRow(7 * 10**9, 3, 4, 5), TraceRow(8 * 10**9, 2, 1, 1))


def test_without_arrivals_all_arrive_together() -> None:
    assert read_own_table("input,output\n3,4\n", read_form(None, "s")).rows == (TraceRow(0, 3, 4),)


def test_every_rejected_row_has_a_reason() -> None:
    lines = ["x,1,1", "-1,1,1", "2,0,1", "2,1,1.5", "2,1", '2,"1,1', "nan,1,1", "3,1,1"]
    found = read_own_table("arrival,input,output\n" + "\n".join(lines), read_form(None, "s"))
    assert found.rows == (TraceRow(3 * 10**12, 1, 1),)
    assert [str(error).partition(": got")[0] for error in found.bad] == [
        "line 2: arrival",
        "line 3: arrival",
        "line 4: input",
        "line 5: output",
        "line 6",
        "line 7",
        "line 8: arrival",
    ]


@pytest.mark.parametrize(
    ("columns", "header", "expected"),
    [
        ("arrival=t", "input,output", "expected the column 't' once, for arrival"),
        (None, "arrival,prompt,output", "expected the column 'input' once, for input"),
        (None, "arrival,arrival,input,output", "expected the column 'arrival' once, for arrival"),
        ("arival=t", "input,output", "did you mean arrival"),
        ("arrival", "input,output", "expected FIELD=COLUMN joined by commas"),
    ],
)
def test_wrong_columns_are_named(columns: str | None, header: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        read_own_table(f"{header}\n1,2,3\n", read_form(columns, "s"))


def _instance(*requests: Request, kv: int = 100) -> Instance:
    return Instance("test", Limits(kv, 100, 100), Rules(), TEN, requests)


def test_summary_by_hand() -> None:
    """Every batch takes 10 ps. Two requests of 4 and 8 prompt tokens and 2 outputs take 2 batches at least, 20 ps;
    40 ps apart, so the load is 20 / 40. KV while generating: 4 + 5 + 8 + 9 = 26 tokens in 4 steps, so κ = 100/6.5.
    """
    found = summarise(_instance(Request(4, 2), Request(8, 2, 40)))
    assert (found.requests, found.span_ps, found.mean_input, found.mean_output) == (2, 40, 6, 2)
    assert found.load == Fraction(1, 2)
    assert round(found.kappa, 6) == round(100 / 6.5, 6)
    assert found.warnings == ("memory never binds: all requests together hold 14 of M = 100 KV tokens",)
    assert summarise(_instance(Request(4, 2), Request(8, 2, 40), kv=13)).warnings == ()


def test_summary_warns_of_units_and_of_what_does_not_fit() -> None:
    (warning,) = summarise(_instance(Request(4, 2), Request(8, 2, 10**9), kv=13)).warnings
    assert warning.startswith("load 2e-08: is the unit of the arrival times right")
    (infeasible,) = summarise(_instance(Request(4, 2), Request(98, 9, 40))).warnings
    assert infeasible == "1 request needs more than M = 100 KV tokens, the largest 106: infeasible"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.csv").write_text("t,prompt,gen\n1700000000500,100,5\n1700000002500,200,9\n17,0,1\n")
    columns = "arrival=t,input=prompt,output=gen"
    ended = optsched(
        capsys, "trace", "my.csv", "--format", "csv", "--columns", columns, "--unit", "ms", "--out", "i.json"
    )
    assert (ended.code, ended.out) == (0, "")
    rejected, count, first, *_, epoch = ended.err.splitlines()
    assert rejected.startswith("optsched: my.csv: line 4: prompt: got '0'")
    assert count == "optsched: my.csv: 1 rows left out, 2 requests"
    assert first.startswith("my: 2 requests, 1 requests/s over 2 s, load ")
    assert (
        epoch == "  warning: arrival times start at 1700000000 s, 2023-11-14 22:13:20 UTC; they are counted from there"
    )
    assert [request.arrival_ps for request in load_instance("i.json").requests] == [0, 2 * 10**12]
    assert optsched(capsys, "trace", "my.csv", "--format", "csv", "--unit", "h").code == 2
    assert optsched(capsys, "trace", "my.csv", "--unit", "ms").err.startswith("optsched: --format: got --unit with it")
