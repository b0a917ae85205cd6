"""A user's own machine: profiles in files, coefficients with units, and a profile of a table of three columns."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from commands import optsched

from optsched import CostModel, InputError, load_instance
from optsched.calibrate.library import cost_model, find_cost, load_profile, render_profile
from optsched.model.units import in_ps


@pytest.mark.parametrize(
    ("text", "ps"),
    [
        ("8.7 ms", 8_700_000_000),
        ("54us", 54_000_000),
        ("54 µs", 54_000_000),
        ("0.35 ns", 350),
        ("1e-3 s", 10**9),
        ("7 ps", 7),
    ],
)
def test_units(text: str, ps: int) -> None:
    assert in_ps(text) == ps


@pytest.mark.parametrize("text", ["8.7 min", "0.5 ps", "1.2.3 ms", "1e99999 s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="whole in ps"):
        in_ps(text)


@pytest.mark.parametrize("value", [True, 1.5, None, "", "ms", "12", 12, [1]])
def test_other_values_stay_what_they_are(value: object) -> None:
    assert in_ps(value) is value


def _document(cost: object) -> str:
    return json.dumps(
        {
            "format": "optsched-instance/1",
            "name": "own",
            "limits": {"kv_tokens": 16, "batch_tokens": 64, "prefill_tokens": 64},
            "rules": {"hybrid": True, "chunked_prefill": True, "eviction": True},
            "cost": cost,
            "requests": [{"input": 4, "output": 2, "count": 2}],
        }
    )


def test_coefficients_with_units_in_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "i.json"
    file.write_text(_document({"base": "8.7 ms", "token": "54 us", "pieces": [["1 ms", 3]], "decode_kv": 350}))
    cost = CostModel(base=8_700_000_000, token=54_000_000, pieces=((1_000_000_000, 3),), decode_kv=350)
    assert load_instance(file).cost == cost
    file.write_text(_document({"base": "8.7 min", "token": 1}))
    outcome = optsched(capsys, "bound", str(file))
    assert outcome.code == 2
    assert outcome.err.startswith(f"optsched: {file}: cost.base: got '8.7 min', expected ps, or a number with")
    file.write_text(_document({"base": "much", "token": 1}))
    assert "cost.base: got 'much', expected an integer" in optsched(capsys, "bound", str(file)).err


def test_a_profile_in_a_file_beside_the_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named from the instance's folder, wherever the command runs; a whole profile, or coefficients alone."""
    (tmp_path / "mine.json").write_text(render_profile(load_profile("a100-llama2-7b")))
    (tmp_path / "simple.json").write_text('{"base": "1 ms", "token": "2 us"}')
    (tmp_path / "i.json").write_text(_document({"profile": "mine.json"}))
    (tmp_path / "j.json").write_text(_document({"profile": "simple.json", "swap_out_kv": 5}))
    monkeypatch.chdir("/")
    assert load_instance(tmp_path / "i.json").cost == cost_model("a100-llama2-7b")
    assert load_instance(tmp_path / "j.json").cost == CostModel(base=10**9, token=2 * 10**6, swap_out_kv=5)
    assert find_cost(str(tmp_path / "simple.json")) == CostModel(base=10**9, token=2 * 10**6)
    (tmp_path / "k.json").write_text(_document({"profile": "none.json"}))
    with pytest.raises(InputError, match=r"k.json: .*none.json"):
        load_instance(tmp_path / "k.json")


def test_profile_in_place_of_the_instances_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every batch takes 1 ms: 2 requests of 4 + 2 tokens fit together, so 2 batches, 2 ms."""
    (tmp_path / "flat.json").write_text('{"base": "1 ms", "token": 0}')
    (tmp_path / "i.json").write_text(_document({"base": "8 ms", "token": 0}))
    profile = ("--profile", str(tmp_path / "flat.json"))
    for arguments in (
        ("solve", str(tmp_path / "i.json"), *profile, "--time-limit", "5"),
        ("bound", str(tmp_path / "i.json"), *profile),
    ):
        outcome = optsched(capsys, *arguments)
        assert (outcome.code, "2.000 ms" in outcome.out) == (0, True), outcome
    row = optsched(capsys, "simulate", str(tmp_path / "i.json"), *profile, "--policy", "vllm").out.splitlines()[-1]
    assert row.split()[:3] == ["vllm", "2.00", "2"]
    wrong = optsched(capsys, "bound", "infermax-fig15-I8", "--profile", "a100")
    assert wrong.code == 2
    assert wrong.err.startswith("optsched: --profile: got 'a100', expected one of")


COST = CostModel(base=9 * 10**9, token=5 * 10**7, decode_kv=400_000, prefill_sq=2_000, prefill_kv=0)


def _table(unit: str, scale: int) -> str:
    """Times of the model above: prefills of 16 to 512 tokens on up to 2048, decodes of 1 to 64 requests."""
    rows = [
        (tokens, cached, 0, COST.batch_ps(tokens, 0, 0, [(tokens, cached)]))
        for tokens, cached in product((16, 64, 128, 512), (0, 512, 2048))
    ]
    rows += [
        (count, count * each, count, COST.batch_ps(count, count, count * each, []))
        for count, each in product((1, 4, 16, 64), (100, 1000))
    ]
    lines = [f"{tokens},{cached},{decodes},{time / scale!r}" for tokens, cached, decodes, time in rows]
    return "\n".join([f"tokens,cached,decodes,time_{unit}", *lines]) + "\n"


@pytest.mark.parametrize(("unit", "scale"), [("ms", 10**9), ("us", 10**6)])
def test_a_table_of_batches_gives_the_model_that_made_it(
    unit: str, scale: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "t.csv", tmp_path / "p.json"
    source.write_text(_table(unit, scale))
    ended = optsched(capsys, "calibrate", str(source), "--format", "times", "--pieces", "1", "--out", str(out))
    assert ended.code == 0, ended.err
    found = find_cost(str(out))
    for name in ("base", "token", "decode_kv", "prefill_sq"):
        assert getattr(found, name) == pytest.approx(getattr(COST, name), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tokens,cached\n1,2\n", "one column of time_ns, time_us, time_ms, time_s"),
        ("tokens,time_ms\n1,2\n", "cached: got nothing"),
        ("tokens,cached,time_ms\n0,2,1\n", "line 2.tokens: got '0', expected an integer ≥ 1"),
        ("tokens,cached,time_ms\n5,2,-1\n", "line 2.time_ms: got '-1', expected a time > 0 in ms"),
        ("tokens,cached,decodes,time_ms\n5,2,3,1\n", "expected 0 or tokens = 5"),
        ("tokens,cached,time_ms\n5,2,1\n", "rows: got none, expected a decode step"),
        ("tokens,cached,time_ms\n1,2,1\n", "rows: got none, expected a prefill step"),
    ],
)
def test_wrong_tables_are_one_line(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "t.csv"
    source.write_text(text)
    outcome = optsched(capsys, "calibrate", str(source), "--format", "times")
    assert outcome.code == 2
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
