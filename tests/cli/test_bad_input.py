"""Whatever is wrong with what users type, one line on stderr says which file, field, value and expectation."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commands import Outcome, optsched
from patience import PATIENCE_S

from optsched.calibrate.library import find_profile, render_profile
from optsched.hardware.transformer.shape import read_shape
from optsched.model.errors import InputError, Said

Document = dict[str, Any]

PROFILE = "a100-llama2-7b"
INSTANCE: Document = {
    "format": "optsched-instance/1",
    "name": "test",
    "limits": {"kv_tokens": 64, "batch_tokens": 128, "prefill_tokens": 128, "batch_requests": None, "kv_block": 1},
    "rules": {"hybrid": True, "chunked_prefill": False, "eviction": True},
    "cost": {"profile": PROFILE},
    "replicas": 1,
    "requests": [{"input": 8, "output": 4, "count": 2}, {"id": "q7", "input": 30, "output": 2}],
}
COEFFICIENTS: Document = {"base": 100, "token": 10, "pieces": [[0, 40]], "decode_kv": 1, "prefill_sq": 2}
SUITE: Document = {"format": "optsched-suite/1", "name": "suite", "description": "Two.", "instances": [INSTANCE]}
RESULT: Document = {
    "format": "optsched-result/1",
    "instance": INSTANCE,
    "instance_sha256": "0" * 64,
    "method": "vllm",
    "objective": "makespan",
    "status": "feasible",
    "badge": "heuristic",
    "value": 10,
    "bound": None,
    "gap": None,
    "runtime_s": 0.5,
    "seed": 0,
    "versions": {"optsched": "0.1.0"},
    "schedule": {"batches": [{"replica": 0, "start_ps": 0, "end_ps": 10, "run": [[0, 8]], "evict": []}]},
    "metrics": None,
    "certificate": None,
}
TEXTS = {"instance": json.dumps(INSTANCE), "suite": json.dumps(SUITE), "result": json.dumps(RESULT)}
BASES = {"instance": INSTANCE, "suite": SUITE, "result": RESULT}
READERS = {
    "instance": [["simulate", "FILE", "--policy", "vllm"], ["solve", "FILE"], ["instances", "show", "FILE"]],
    "suite": [["table", "FILE", "--policies", "vllm"]],
    "result": [["check", "FILE"]],
}

MISSING = object()
Path_ = Sequence[str | int]


def changed(base: str, path: Path_, value: object) -> str:
    """Return a document with one field changed, added or (MISSING) removed; a Raw value stands there as it is."""
    document: Any = copy.deepcopy(BASES[base])
    place = document
    for step in path[:-1]:
        place = place[step]
    if value is MISSING:
        del place[path[-1]]
    elif isinstance(value, Raw):
        place[path[-1]] = "@raw@"
        return json.dumps(document).replace('"@raw@"', value.text)
    elif isinstance(place, list) and path[-1] == len(place):
        place.append(value)
    else:
        place[path[-1]] = value
    return json.dumps(document)


class Raw(NamedTuple):
    """JSON text that no Python value would be written as."""

    text: str


def require_complaint(outcome: Outcome, *parts: str, answered: bool = False) -> None:
    """Require exit code 2, no answer on stdout, or one, and on stderr one line that has every part, in this order."""
    assert outcome.code == 2, outcome
    assert bool(outcome.out) is answered
    assert outcome.err.endswith("\n")
    assert len(outcome.err.splitlines()) == 1, outcome.err
    position = 0
    for part in ("optsched: ", *parts):
        found = outcome.err.find(part, position)
        assert found >= 0, f"{part!r} does not follow in {outcome.err!r}"
        position = found + len(part)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    left = [path.name for path in tmp_path.rglob(".*")]
    assert not left, f"hidden files stay behind: {left}"


# Fields ----------------------------------------------------------------------------------------------------

AT_LEAST_1 = "expected an integer ≥ 1"
AT_LEAST_0 = "expected an integer ≥ 0"
INTEGER = "expected an integer"
HUGE = 10**30

FIELDS: list[tuple[str, Path_, object, str, str, str]] = [
    # base document, path, value, field as named, value as shown, expectation
    ("instance", ["name"], MISSING, "name", "got nothing", "expected this field"),
    ("instance", ["format"], MISSING, "format", "got nothing", "expected this field"),
    ("instance", ["requests"], MISSING, "requests", "got nothing", "expected this field"),
    ("instance", ["limits", "kv_tokens"], MISSING, "limits.kv_tokens", "got nothing", "expected this field"),
    ("instance", ["requests", 1, "input"], MISSING, "requests[1].input", "got nothing", "expected this field"),
    ("instance", ["cost"], {"base": 5}, "cost.token", "got nothing", "expected this field"),
    ("instance", ["limits", "kv_tokens"], -16, "limits.kv_tokens", "got -16", AT_LEAST_1),
    ("instance", ["requests", 1, "output"], -3, "requests[1].output", "got -3", AT_LEAST_1),
    ("instance", ["requests", 0, "arrival_ps"], -1, "requests[0].arrival_ps", "got -1", AT_LEAST_0),
    ("instance", ["requests", 0, "weight"], -2, "requests[0].weight", "got -2", AT_LEAST_0),
    ("instance", ["requests", 0, "slo_ttft_ps"], -2, "requests[0].slo_ttft_ps", "got -2", AT_LEAST_0),
    ("instance", ["limits", "kv_block"], 0, "limits.kv_block", "got 0", AT_LEAST_1),
    ("instance", ["limits", "batch_requests"], 0, "limits.batch_requests", "got 0", AT_LEAST_1),
    ("instance", ["requests", 0, "input"], 0, "requests[0].input", "got 0", AT_LEAST_1),
    ("instance", ["requests", 0, "count"], 0, "requests[0].count", "got 0", AT_LEAST_1),
    ("instance", ["replicas"], 0, "replicas", "got 0", AT_LEAST_1),
    ("instance", ["replicas"], 10_001, "replicas", "got 10001", "expected an integer ≤ 10000"),
    ("instance", ["machines"], [{"count": 0}], "machines[0].count", "got 0", AT_LEAST_1),
    ("instance", ["machines"], [{"role": "cook"}], "machines[0].role", "got 'cook'", "'both', 'prefill' or 'decode'"),
    ("instance", ["machines"], [{"role": "decode"}], "machines", "got only machines of role decode", "routed to"),
    ("instance", ["machines"], [{}, {"cost": {"profile": "z"}}], "machines[1].cost.profile", "got 'z'", "one of"),
    (
        "instance",
        ["machines"],
        [{"limits": {"kv_tokens": 9}}],
        "machines[0].limits.batch_tokens",
        "nothing",
        "this field",
    ),
    ("instance", ["machines"], [{"speed": 2}], "machines[0].speed", "got ", "no field of this name"),
    ("instance", ["machines"], {}, "machines", "got {}", "a list"),
    ("instance", ["links"], {"kv_ps": -1}, "links.kv_ps", "got -1", AT_LEAST_0),
    ("instance", ["links"], {"stages": 0}, "links.stages", "got 0", AT_LEAST_1),
    ("instance", ["limits", "batch_tokens"], "128", "limits.batch_tokens", "got '128'", INTEGER),
    ("instance", ["requests", 0, "output"], 4.0, "requests[0].output", "got 4.0", INTEGER),
    ("instance", ["requests", 0, "output"], 4.5, "requests[0].output", "got 4.5", INTEGER),
    ("instance", ["requests", 0, "output"], True, "requests[0].output", "got true", INTEGER),
    ("instance", ["requests", 0, "output"], None, "requests[0].output", "got null", INTEGER),
    ("instance", ["requests", 0, "output"], [4], "requests[0].output", "got [4]", INTEGER),
    ("instance", ["rules", "hybrid"], 1, "rules.hybrid", "got 1", "expected true or false"),
    ("instance", ["rules", "eviction"], "yes", "rules.eviction", "got 'yes'", "expected true or false"),
    ("instance", ["name"], 7, "name", "got 7", "expected a string"),
    ("instance", ["name"], None, "name", "got null", "expected a string"),
    ("instance", ["requests", 1, "id"], 5, "requests[1].id", "got 5", "expected a string"),
    ("instance", ["limits"], [64, 128], "limits", "got [64, 128]", "expected an object"),
    ("instance", ["requests"], {"input": 8}, "requests", "got {'input': 8}", "expected a list"),
    ("instance", ["requests"], [], "requests", "got 0 items", "expected at least 1"),
    ("instance", ["requests", 0], 3, "requests[0]", "got 3", "expected an object"),
    ("instance", ["requests", 0, "input"], Raw("NaN"), "requests[0].input", "got NaN", INTEGER),
    ("instance", ["requests", 0, "input"], Raw("Infinity"), "requests[0].input", "got Infinity", INTEGER),
    ("instance", ["requests", 0, "input"], Raw("-Infinity"), "requests[0].input", "got -Infinity", INTEGER),
    ("instance", ["requests", 0, "input"], Raw("1e400"), "requests[0].input", "got Infinity", INTEGER),
    ("instance", ["requests", 0, "input"], Raw("1e3"), "requests[0].input", "got 1000.0", INTEGER),
    (
        "instance",
        ["requests", 0, "input"],
        HUGE,
        "requests[0].input",
        f"got {HUGE}",
        "expected an integer ≤ 1000000000",
    ),
    ("instance", ["cost"], COEFFICIENTS | {"base": HUGE}, "cost.base", f"got {HUGE}", f"an integer ≤ {2**63 - 1}"),
    ("instance", ["requests", 0, "count"], 10**7 + 1, "requests[0].count", "got 10000001", "an integer ≤ 10000000"),
    (
        "instance",
        ["requests"],
        [{"input": 1, "output": 1, "count": 6 * 10**6}] * 2,
        "requests",
        "got 12000000 requests",
        "expected at most 10000000",
    ),
    (
        "instance",
        ["limits", "prefill_tokens"],
        129,
        "limits.prefill_tokens",
        "got 129",
        "expected at most batch_tokens = 128",
    ),
    ("instance", ["cost"], COEFFICIENTS | {"token": -1}, "cost.token", "got -1", AT_LEAST_0),
    ("instance", ["cost"], COEFFICIENTS | {"prefill_sq": -2}, "cost.prefill_sq", "got -2", AT_LEAST_0),
    ("instance", ["cost"], COEFFICIENTS | {"decode_kv": 0.5}, "cost.decode_kv", "got 0.5", INTEGER),
    ("instance", ["cost"], COEFFICIENTS | {"pieces": [[1, -4]]}, "cost.pieces[0][1]", "got -4", AT_LEAST_0),
    ("instance", ["cost"], COEFFICIENTS | {"pieces": [[1]]}, "cost.pieces[0][1]", "got nothing", "expected this field"),
    ("instance", ["cost"], COEFFICIENTS | {"pieces": [[1, 2, 3]]}, "cost.pieces[0]", "got 3 items", "at most 2"),
    ("instance", ["cost"], PROFILE, "cost", f"got '{PROFILE}'", "expected an object"),
    ("instance", ["cost"], None, "cost", "got null", "expected an object"),
    ("instance", ["cost", "profile"], "h300", "cost.profile", "got 'h300'", f"expected one of {PROFILE}, "),
    ("instance", ["cost", "profile"], 3, "cost.profile", "got 3", "expected a string"),
    ("instance", ["cost", "base"], 5, "cost.base", "got 5", "expected no field of this name"),
    ("instance", ["limits", "kv_token"], 3, "limits.kv_token", "got 3", "expected no field of this name"),
    ("instance", ["requests", 1, "inputs"], 3, "requests[1].inputs", "got 3", "expected no field of this name"),
    ("instance", ["comment"], "mine", "comment", "got 'mine'", "expected no field of this name"),
    ("instance", ["format"], "optsched-instance/9", "format", "got 'optsched-instance/9'", "'optsched-instance/1'"),
    ("instance", ["format"], 1, "format", "got 1", "expected 'optsched-instance/1'"),
    (
        "suite",
        ["format"],
        "optsched-suite/2",
        "format",
        "got 'optsched-suite/2'",
        "expected 'optsched-suite/1' or 'optsched-instance/1'",
    ),
    ("suite", ["instances"], [], "instances", "got 0 items", "expected at least 1"),
    ("suite", ["description"], MISSING, "description", "got nothing", "expected this field"),
    ("suite", ["instances", 0, "limits", "kv_tokens"], 0, "instances[0].limits.kv_tokens", "got 0", AT_LEAST_1),
    ("suite", ["instances", 0, "cost", "profile"], "x", "instances[0].cost.profile", "got 'x'", f"one of {PROFILE}"),
    (
        "suite",
        ["instances", 1],
        INSTANCE,
        "instances[1].name",
        "got 'test'",
        "expected a name that no other instance of the suite has",
    ),
    ("result", ["instance", "limits", "kv_tokens"], "x", "instance.limits.kv_tokens", "got 'x'", INTEGER),
    ("result", ["instance", "cost", "profile"], "x", "instance.cost.profile", "got 'x'", f"one of {PROFILE}"),
    ("result", ["value"], -10, "value", "got -10", AT_LEAST_0),
    ("result", ["value"], 10.5, "value", "got 10.5", INTEGER),
    ("result", ["bound"], "5", "bound", "got '5'", INTEGER),
    ("result", ["gap"], "0 %", "gap", "got '0 %'", "expected a number"),
    ("result", ["runtime_s"], -0.5, "runtime_s", "got -0.5", "expected a number ≥ 0"),
    ("result", ["runtime_s"], Raw("NaN"), "runtime_s", "got NaN", "expected a finite number"),
    ("result", ["status"], "solved", "status", "got 'solved'", "'optimal', 'feasible', 'bound_only', 'infeasible'"),
    ("result", ["badge"], "gold", "badge", "got 'gold'", "'certified', 'solver_claimed' or 'heuristic'"),
    ("result", ["objective"], "speed", "objective", "got 'speed'", "'makespan', 'mean_ttft'"),
    ("result", ["schedule"], [], "schedule", "got []", "expected an object"),
    ("result", ["schedule", "batches"], {}, "schedule.batches", "got {}", "expected a list"),
    ("result", ["schedule", "batches", 0, "run"], [3], "schedule.batches[0].run[0]", "got 3", "expected a list"),
    ("result", ["schedule", "batches", 0, "run", 0], [0], "batches[0].run[0][1]", "got nothing", "expected this field"),
    ("result", ["schedule", "batches", 0, "run", 0], [0, 8, 1], "batches[0].run[0]", "got 3 items", "at most 2"),
    ("result", ["schedule", "batches", 0, "run", 0], [0, 0], "batches[0].run[0][1]", "got 0", AT_LEAST_1),
    ("result", ["schedule", "batches", 0, "run", 0], [-1, 8], "batches[0].run[0][0]", "got -1", AT_LEAST_0),
    ("result", ["schedule", "batches", 0, "run", 0], ["q7", 8], "batches[0].run[0][0]", "got 'q7'", INTEGER),
    ("result", ["schedule", "batches", 0, "evict"], [None], "batches[0].evict[0]", "got null", INTEGER),
    ("result", ["schedule", "batches", 0, "start_ps"], -7, "schedule.batches[0].start_ps", "got -7", AT_LEAST_0),
    ("result", ["schedule", "batches", 0, "end_ps"], 1.5, "schedule.batches[0].end_ps", "got 1.5", INTEGER),
    ("result", ["metrics"], [], "metrics", "got []", "expected an object"),
    ("result", ["certificate"], "trust me", "certificate", "got 'trust me'", "expected an object"),
    ("result", ["versions"], {"optsched": 1}, "versions.optsched", "got 1", "expected a string"),
    (
        "result",
        ["restrictions"],
        {"forbid": ["sleep"]},
        "restrictions.forbid",
        "got 'sleep'",
        "one of eviction, hybrid",
    ),
]


def _title(case: tuple[str, Path_, object, str, str, str]) -> str:
    return f"{case[0]}:{case[3]}:{case[4].removeprefix('got ')}"


@pytest.mark.parametrize("case", FIELDS, ids=_title)
def test_a_wrong_field_is_named(
    case: tuple[str, Path_, object, str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, path, value, field, got, expected = case
    file = tmp_path / "given.json"
    file.write_text(changed(base, path, value))
    for command in READERS[base]:
        arguments = [str(file) if part == "FILE" else part for part in command]
        require_complaint(optsched(capsys, *arguments), f"{file}: ", f"{field}: ", got, f"{expected}")


def test_all_problems_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "given.json"
    file.write_text(json.dumps(INSTANCE | {"name": 1, "replicas": "two", "rules": None}))
    outcome = optsched(capsys, "solve", str(file))
    require_complaint(outcome, "given.json: ", "name: ", "got 1", "expected a string", "(and 2 more problems)")


def test_a_result_of_a_list_is_numbered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "given.json"
    for change, field in (
        ({"value": -4}, "[1].value"),
        ({"seed": "x"}, "[1].seed"),
        ({"instance": INSTANCE | {"cost": {"profile": "x"}}}, "[1].instance.cost.profile"),
    ):
        file.write_text(json.dumps([RESULT, RESULT | change]))
        require_complaint(optsched(capsys, "check", str(file)), f"{file}: {field}: got ", "expected ")
    file.write_text("[]")
    require_complaint(optsched(capsys, "check", str(file)), f"{file}: document: got 0 items, expected at least 1")


def test_a_name_with_a_line_break_stays_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two\nlines.json"
    file.write_text(json.dumps(INSTANCE | {"a\nb\x1b[2J": "c\nd"}))
    require_complaint(
        optsched(capsys, "solve", str(file)), r"two\nlines.json: a\nb\x1b[2J: got 'c\nd', expected no field"
    )


# Whole documents -------------------------------------------------------------------------------------------

JSON = "expected a JSON document"
CONTENTS: list[tuple[str, bytes, str, str, str]] = [
    # what, content, field, value, expectation
    ("truncated", TEXTS["instance"].encode()[:100], "line 1 column 100", "got invalid JSON (EOF", JSON),
    ("empty", b"", "line 1 column 0", "got invalid JSON (EOF while parsing a value)", JSON),
    ("prose", b"requests: 4\n", "line 1 column 1", "got invalid JSON (expected value)", JSON),
    ("second line", b'{"format":\n oops}', "line 2 column 2", "got invalid JSON (expected value)", JSON),
    ("trailing text", TEXTS["instance"].encode() + b" {}", "line 1 column ", "got invalid JSON (trailing char", JSON),
    ("comma", b'{"name": "x",}', "line 1 column 14", "got invalid JSON (trailing comma)", JSON),
    ("binary", bytes(range(256)), "line 1 column 1", "got invalid JSON (expected value)", JSON),
    ("gzip not called .gz", gzip.compress(b"{}"), "line 1 column 1", "got invalid JSON (expected value)", JSON),
    (
        "invalid UTF-8",
        b'{"name": "\xff\xfe"}',
        "line 1 column 11",
        "got invalid JSON (invalid unicode code point)",
        JSON,
    ),
    ("lone surrogate", b'{"name": "\\ud800"}', "line 1 column ", "got invalid JSON (", JSON),
    ("UTF-16", TEXTS["instance"].encode("utf-16"), "line 1 column 1", "got invalid JSON (expected value)", JSON),
    (
        "5,000 digits",
        changed("instance", ["requests", 0, "input"], Raw("7" * 5000)).encode(),
        "line 1 column ",
        "got invalid JSON (number out of range)",
        JSON,
    ),
    ("objects in objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "line 1 column ", "(recursion limit", JSON),
    (
        "lists in a field",
        changed("instance", ["requests"], Raw("[" * 100_000 + "]" * 100_000)).encode(),
        "line 1 column ",
        "got invalid JSON (recursion limit exceeded)",
        JSON,
    ),
    ("number", b"3", "document", "got 3", "expected an object"),
    ("string", b'"hello"', "document", "got 'hello'", "expected an object"),
    ("null", b"null", "document", "got null", "expected an object"),
]


@pytest.mark.parametrize("command", ["solve", "simulate", "table", "check", "instances show", "instances list"])
@pytest.mark.parametrize(("what", "content", "field", "got", "expected"), CONTENTS, ids=[case[0] for case in CONTENTS])
def test_what_is_no_document_is_named(
    what: str, content: bytes, field: str, got: str, expected: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("given.json").write_bytes(content)
    options = ["--policy", "vllm"] if command == "simulate" else []
    outcome = optsched(capsys, *command.split(), "given.json", *options)
    require_complaint(outcome, f"given.json: {field}", f"{got}", expected)


def test_a_list_is_no_instance(capsys: pytest.CaptureFixture[str]) -> None:
    Path("given.json").write_text("[1, 2]")
    for arguments in (["solve", "given.json"], ["table", "given.json"], ["instances", "show", "given.json"]):
        require_complaint(optsched(capsys, *arguments), "given.json: document: got [1, 2], expected an object")


@pytest.mark.parametrize(
    ("given", "reader", "got", "expected"),
    [
        ("suite", "instance", "optsched-suite/1", "expected 'optsched-instance/1' (one instance, not a suite)"),
        ("result", "instance", "optsched-result/1", "expected 'optsched-instance/1'\n"),
        ("result", "suite", "optsched-result/1", "expected 'optsched-suite/1' or 'optsched-instance/1'\n"),
        ("instance", "result", "optsched-instance/1", "expected 'optsched-result/1'\n"),
        ("suite", "result", "optsched-suite/1", "expected 'optsched-result/1'\n"),
    ],
)
def test_one_kind_of_document_is_no_other(
    given: str, reader: str, got: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("given.json").write_text(TEXTS[given])
    for command in READERS[reader]:
        if (given, command[0]) == ("suite", "simulate"):
            continue  # it takes both
        arguments = ["given.json" if part == "FILE" else part for part in command]
        require_complaint(optsched(capsys, *arguments), f"given.json: format: got '{got}', {expected}")


PACKED = gzip.compress(TEXTS["instance"].encode(), mtime=0)


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"{}", "got Not a gzipped file (b'{}')"),
        (PACKED[: len(PACKED) // 2], "got Compressed file ended before the end-of-stream marker"),
        (PACKED[:-8] + bytes(8), "got CRC check failed"),
        (PACKED[:20] + b"\xff\xff\xff" + PACKED[23:], "got Error -3 while decompressing data"),
    ],
    ids=["not gzip", "truncated", "wrong checksum", "damaged"],
)
def test_bad_gzip(content: bytes, got: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("given.json.gz").write_bytes(content)
    for command, argument in (("solve", "INSTANCE"), ("table", "SUITE"), ("check", "RESULT")):
        outcome = optsched(capsys, command, "given.json.gz")
        require_complaint(outcome, f"given.json.gz: {argument}: {got}", "expected a file packed by gzip")


def test_standard_input_is_called_a_dash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("solve", "table", "check"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{")))
        outcome = optsched(capsys, command, "-")
        require_complaint(outcome, "-: line 1 column 1: got invalid JSON (EOF while parsing an object)", JSON)
    monkeypatch.setattr(sys, "stdin", None)
    outcome = optsched(capsys, "solve", "-")
    require_complaint(outcome, "-: INSTANCE: got standard input is closed, expected a readable file")


# Files -----------------------------------------------------------------------------------------------------

READING = [("solve", "INSTANCE", []), ("simulate", "INSTANCE", ["--policy", "vllm"]), ("table", "SUITE", [])]


@pytest.mark.parametrize(("command", "argument", "more"), [*READING, ("check", "RESULT", [])])
def test_a_file_that_cannot_be_read(
    command: str, argument: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to("gone.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    for name, got in (
        ("gone.json", "got No such file or directory"),
        ("folder.json", "got Is a directory"),
        ("link.json", "got No such file or directory"),
        ("loop.json", "got Too many levels of symbolic links"),
        ("no/such/folder.json.gz", "got No such file or directory"),
        ("long" * 2000 + ".json", "got File name too long"),
    ):
        outcome = optsched(capsys, command, name, *more)
        require_complaint(outcome, f"{name}: {argument}: {got}, expected a readable file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "secret.json"
    file.write_text(TEXTS["instance"])
    file.chmod(0)
    outcome = optsched(capsys, "solve", str(file))
    require_complaint(outcome, f"{file}: INSTANCE: got Permission denied, expected a readable file")


def test_a_name_that_the_library_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("solve", "instances show"):
        outcome = optsched(capsys, *command.split(), "infermax-fig15-I3")
        require_complaint(outcome, "INSTANCE: got 'infermax-fig15-I3', expected a file, or an instance of the library")
    for command in ("table", "instances list", "instances make"):
        outcome = optsched(capsys, *command.split(), "infermax-fig16")
        require_complaint(outcome, "SUITE: got 'infermax-fig16', expected ", "one of ")
        assert "infermax-fig15" in outcome.err


WRITING = [
    ["simulate", "given.json", "--policy", "vllm"],
    ["solve", "given.json"],
    ["table", "given.json", "--policies", "vllm"],
    ["instances", "show", "given.json"],
    ["instances", "make", "infermax-fig15"],
]


@pytest.mark.parametrize("command", WRITING, ids=" ".join)
def test_a_file_that_cannot_be_written(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is found out before anything is computed."""
    for name in (
        "simulate_command.simulate_each",
        "solve_command.run_solver",
        "table_command.table_rows",
        "suites.suite_document",
        "instance_commands.instance_document",
    ):
        monkeypatch.setattr(f"optsched.cli.{name}", _never)
    (tmp_path / "given.json").write_text(TEXTS["instance"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("not a folder")
    for out, got, expected in (
        ("nowhere/out.json", "nowhere/out.json: --out: got a folder that does not exist", "a file that can be written"),
        ("file/out.json", "file/out.json: --out: got a folder that does not exist", "a file that can be written"),
        ("folder", "folder: --out: got a folder", "expected a file that can be written"),
        ("long" * 2000, "long: --out: got File name too long", "expected a file that can be written"),
        ("", "--out: got ''", "expected the name of a file, or - for standard output"),
    ):
        require_complaint(optsched(capsys, *command, "--out", out), got, expected)
    assert not list((tmp_path / "folder").iterdir())


def _never(*arguments: object, **options: object) -> object:
    raise AssertionError("nothing should be computed")


@pytest.mark.slow
@pytest.mark.parametrize("command", [WRITING[0], WRITING[2], WRITING[3]], ids=" ".join)
def test_a_folder_that_turns_out_read_only(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root may write anywhere, so the system's answer is imitated."""

    def refuse(*arguments: object, **options: object) -> object:
        raise OSError(30, "Read-only file system")

    (tmp_path / "given.json").write_text(TEXTS["instance"])
    (tmp_path / "old.json").write_text("old")
    monkeypatch.setattr("optsched.model.documents.tempfile.NamedTemporaryFile", refuse)
    outcome = optsched(capsys, *command, "--out", "old.json")
    complaint = "old.json: --out: got Read-only file system, expected a file that can be written"
    # An answer that took its time is printed although it cannot be kept.
    require_complaint(outcome, complaint, answered=command[0] in {"simulate", "solve", "table"})
    assert (tmp_path / "old.json").read_text() == "old"


def test_a_results_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "given.json").write_text(TEXTS["instance"])
    for name, got in (("given.json", "File exists"), ("given.json/results", "Not a directory")):
        outcome = optsched(capsys, "table", "given.json", "--policies", "vllm", "--results", name)
        require_complaint(outcome, f"{name}: --results: got {got}, expected a folder to write to")
    outcome = optsched(capsys, "table", "given.json", "--results", "")
    require_complaint(outcome, "--results: got '', expected the name of a folder")


def test_a_broken_kept_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "given.json").write_text(TEXTS["instance"])
    kept = tmp_path / "kept" / "test--makespan--auto.json"
    kept.parent.mkdir()
    kept.write_text("{")
    outcome = optsched(capsys, "table", "given.json", "--results", "kept", "--resume")
    assert outcome.code == 0
    refused = "optsched: kept/test--makespan--auto.json: refused, computed again: line 1 column 1: got invalid JSON"
    assert outcome.err.startswith(refused)
    assert kept.read_text() == "{"


# Options ---------------------------------------------------------------------------------------------------

GIVEN = "given.json"
SIMULATE = ["simulate", GIVEN, "--policy", "vllm"]
OPTIONS: list[tuple[list[str], str]] = [
    (
        ["simulate", GIVEN, "--policy", "nameless"],
        "--policy: got 'nameless', expected all, standard, or one of vllm, vllm_ef, sarathi",
    ),
    (["simulate", GIVEN, "--policy", ""], "--policy: got '', expected all, standard, or one of vllm, "),
    ([*SIMULATE, "--timeline", "-", "--json"], "--timeline: got '-', expected a file, as the result document goes to "),
    ([*SIMULATE, "--timeline", "-", "--out", "-"], "--timeline: got '-', expected a file, as the result document goes"),
    (
        [*SIMULATE, "--timeline", "nowhere/t"],
        "nowhere/t: --timeline: got a folder that does not exist, expected a file",
    ),
    (["simulate", GIVEN, "--policy", "vllm,,all"], "--policy: got '', expected all, standard, or one of vllm, "),
    (
        ["table", GIVEN, "--policies", "nameless"],
        "--policy: got 'nameless', expected all, standard, or one of vllm, vllm_ef",
    ),
    (["solve", GIVEN, "--method", "magic"], "--method: got 'magic', expected one of auto, small_search, "),
    (["table", GIVEN, "--method", "magic"], "--method: got 'magic', expected one of auto, small_search, "),
    (["solve", GIVEN, "--objective", "speed"], "--objective: got 'speed', expected one of makespan, mean_ttft"),
    ([*SIMULATE, "--objective", "speed"], "--objective: got 'speed', expected one of makespan, mean_ttft"),
    (["table", GIVEN, "--objective", "speed"], "--objective: got 'speed', expected one of makespan, mean_ttft"),
    (["solve", GIVEN, "--forbid", "sleep"], "--forbid: got 'sleep', expected one of eviction, hybrid, chunked"),
    ([*SIMULATE, "--forbid", "eviction,sleep"], "--forbid: got 'sleep', expected one of eviction, hybrid, chunked"),
    (["table", GIVEN, "--forbid", "sleep"], "--forbid: got 'sleep', expected one of eviction, hybrid, chunked"),
    (["table", GIVEN, "--format", "pdf"], "--format: got 'pdf', expected one of text, md, csv, latex"),
    (["table", GIVEN, "--resume"], "--resume: got no --results, expected --results FOLDER to resume from"),
    (["solve", GIVEN, "--time-limit", "0"], "--time-limit: got 0, expected a number > 0"),
    (["solve", GIVEN, "--time-limit", "-1.5"], "--time-limit: got -1.5, expected a number > 0"),
    (["solve", GIVEN, "--time-limit", "nan"], "--time-limit: got nan, expected a number > 0"),
    (["table", GIVEN, "--time-limit", "1 h"], "--time-limit: got 1 h, expected a number > 0"),
    (["table", GIVEN, "--time-limit", ""], "--time-limit: got '', expected a number > 0"),
    (["solve", GIVEN, "--deterministic-limit", "nan"], "--deterministic-limit: got nan, expected a number > 0"),
    (["solve", GIVEN, "--deterministic-limit", "0"], "--deterministic-limit: got 0, expected a number > 0"),
    (["solve", GIVEN, "--workers", "0"], "--workers: got 0, expected an integer from 1 to 1024"),
    (["solve", GIVEN, "--workers", "-4"], "--workers: got -4, expected an integer from 1 to 1024"),
    (["table", GIVEN, "--workers", "two"], "--workers: got two, expected an integer from 1 to 1024"),
    (["table", GIVEN, "--workers", "1.5"], "--workers: got 1.5, expected an integer from 1 to 1024"),
    (["solve", GIVEN, "--workers", str(HUGE)], f"--workers: got {HUGE}, expected an integer from 1 to 1024"),
    (["solve", GIVEN, "--seed", "-1"], "--seed: got -1, expected an integer from 0 to 2147483647"),
    (["solve", GIVEN, "--seed", "9" * 5000], f"--seed: got {'9' * 29}…{'9' * 14}, expected an integer from 0"),
    ([*SIMULATE, "--seed", "2147483648"], "--seed: got 2147483648, expected an integer from 0 to 2147483647"),
    (["solve"], "Missing argument 'INSTANCE'. (see: optsched solve --help)"),
    (["check"], "Missing argument 'RESULT'. (see: optsched check --help)"),
    (["instances", "make"], "Missing argument 'SUITE'. (see: optsched instances make --help)"),
    (["simulate", GIVEN], "Missing option '--policy'. (see: optsched simulate --help)"),
    (["solve", GIVEN, "--time-limit"], "Option '--time-limit' requires an argument. (see: optsched --help)"),
    (["solve", GIVEN, "other.json"], "Got unexpected extra argument (other.json) (see: optsched solve --help)"),
    (["solv", GIVEN], "No such command 'solv'."),
    (["instances", "remove"], "No such command 'remove'. (see: optsched instances --help)"),
    (["solve", GIVEN, "--speed", "9"], "No such option '--speed'."),
    (["solve", GIVEN, "--qqq"], "No such option '--qqq'. (see: optsched solve --help)"),
    (["qqq"], "No such command 'qqq'. (see: optsched --help)"),
    (["--speed"], "No such option '--speed'. (see: optsched --help)"),
]


@pytest.mark.parametrize(("arguments", "complaint"), OPTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_option_is_named(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(GIVEN).write_text(TEXTS["instance"])
    outcome = optsched(capsys, *arguments)
    require_complaint(outcome)
    assert outcome.err.startswith(f"optsched: {complaint}")


STUDY = 'name = "s"\ninstances = ["given.json"]\npolicies = ["vllm"]\n'
TRACE = ["trace", "t.csv", "--format", "csv", "--kv-tokens", "100"]
CALIBRATE = ["calibrate", "t.csv", "--format", "times", "--name", "m"]
TIMES = "tokens,cached,time_ms\n"
OTHERS: list[tuple[list[str], str | bytes, str]] = [
    # A study file, below the first three lines of STUDY.
    (["study", "s.toml"], "seeds = [-1]", "s.toml: seeds[0]: got -1, expected an integer ≥ 0"),
    (["study", "s.toml"], "time_limit = nan", "s.toml: time_limit: got NaN, expected a finite number"),
    (["study", "s.toml"], "time_limit = 0", "s.toml: time_limit: got 0, expected a number > 0"),
    (["study", "s.toml"], "memory_gib = -1", "s.toml: memory_gib: got -1, expected a number > 0"),
    (["study", "s.toml"], "slots = 0", "s.toml: slots: got 0, expected an integer ≥ 1"),
    (["study", "s.toml"], 'routers = ["sal"]', "s.toml: routers: got 'sal', expected none: every instance has one"),
    (["study", "s.toml"], 'evictors = ["lru"]', "s.toml: evictors: got 'lru', expected none: no instance caches"),
    (["study", "s.toml"], "machines = [0]", "s.toml: machines[0]: got 0, expected an integer ≥ 1"),
    (["study", "s.toml"], 'caches = ["some"]', "s.toml: caches[0]: got 'some', expected 'none', 'prefix' or 'all'"),
    (["study", "s.toml"], 'predictors = ["oracl"]', "s.toml: predictor: got 'oracl', expected truth, traced, "),
    (["study", "s.toml"], 'bounds = ["volum"]', "s.toml: bounds: got 'volum', expected one of best, all, volume"),
    (
        ["study", "s.toml"],
        'methods = [{name = "token_cpsat", foo = 1}]',
        "s.toml: foo: got '1', expected no foo with method token_cpsat\n",
    ),
    (["study", "s.toml"], "methods = [{workers = 1}]", "s.toml: methods[0].name: got nothing, expected the name of a"),
    (["study", "s.toml"], 'name = "again"', "s.toml: got invalid TOML (Cannot overwrite a value"),
    (["study", "s.toml"], b"# \xe9", "s.toml: got invalid continuation byte, expected text in UTF-8"),
    (["study", "s.toml"], 'runner = "slurm"', "s.toml: runner: got 'slurm', expected processes, dask:ADDRESS, "),
    (["study", "s.toml", "--runner", "x:y"], "", "--runner: got 'x:y', expected processes, dask:ADDRESS, "),
    (["study", "s.toml", "--out", "x.txt"], "", "--out: got 'x.txt', expected a file name that ends in .csv or .parq"),
    (
        ["study", "s.toml"],
        '[[families]]\ngenerator = "mix"\nn = 0',
        "s.toml: families[0].n: got 0, expected an integer",
    ),
    (
        ["study", "s.toml"],
        '[[families]]\ngenerator = "mix"\nkv_tokens = 9',
        "s.toml: kv_tokens: got 9, expected at least 135, the peak of a request that is drawn",  # 128 + 8 - 1
    ),
    (["study", "s.toml"], '[restrictions]\nforbid = ["evict"]', "s.toml: restrictions.forbid: got 'evict', expected "),
    (["study", "diff", "d"], "", "d: got a folder, expected a store"),
    (["study", "status", GIVEN], "", "given.json: got file is not a database, expected a store that can be read"),
    (["study", "forget", "s.toml"], "", "--method: got nothing to choose by, expected --method, --instance, "),
    (["study", "export", "s.toml"], "", "--out: got none of --out, --page and --ledger, expected what to write"),
    # A table of a trace, or of times.
    ([*TRACE, "--columns", "arrival=t,arrival=p"], "", "--columns: got 'arrival=t,arrival=p', expected FIELD=COLUMN"),
    ([*TRACE, "--columns", "==="], "", "--columns: got '===', expected FIELD=COLUMN joined by commas, each FIELD once"),
    ([*TRACE, "--unit", "h"], "", "--unit: got 'h', expected one of s, ms, us, ns, iso"),
    (TRACE, "input,output\n-1,2\n", "t.csv: got no usable row (the first of 1: line 2"),
    (TRACE, b"input,output\n\xff,2\n", "t.csv: got invalid start byte, expected text in UTF-8"),
    (CALIBRATE, TIMES, "t.csv: rows: got none, expected at least one batch"),
    (CALIBRATE, TIMES + "1,0,nan\n", "t.csv: line 2.time_ms: got 'nan', expected a time > 0 in ms"),
    (CALIBRATE, TIMES + "1,0,1e400\n", "t.csv: line 2.time_ms: got '1e400', expected a time > 0 in ms"),
    (CALIBRATE, TIMES + "1,0,1,5\n", "t.csv: line 2: got 4 fields, expected 3"),
    # Names of what is written, drawn or run.
    (
        ["new", "policy", "class"],
        "",
        "NAME: got 'class', expected letters, digits and underscores, a letter first, and",
    ),
    (["new", "policy", "../x"], "", "NAME: got '../x', expected letters, digits and underscores, a letter first, and"),
    (["conform", "own.py:P"], "P = 3", "NAME: got 'own.py:P', expected an object with next_batch or prepared, or its"),
    (["conform", "own.py:P"], "def (", "NAME: got 'own.py:P', expected a file that Python can run: SyntaxError: "),
    (
        ["conform", "own.py:P"],
        "raise SystemExit(3)",
        "NAME: got 'own.py:P', expected a file that Python can run: System",
    ),
    (["worst", "--policy", "vllm", "--requests", "1"], "", "--requests: got 1, expected an integer from 2 to 64"),
    ([*SIMULATE, "--columns", ""], "", "--columns: got '', expected one of "),
    ([*SIMULATE, "--profile", "d"], "", "--profile: got 'd', expected one of a100-llama2-7b, "),
    (
        [*SIMULATE, "--predictor", "gaussian:nan"],
        "",
        "given.json: --predictor: got 'gaussian:nan', expected sigma a fin",
    ),
    (["instances", "make", "mix", "--groups", "LILO"], "", "--groups: got 'LILO', expected two of SISO, SILO, LISO, "),
    (["instances", "make", "random", "--kv-tokens", "1", "--n", "3"], "", "--kv-tokens: got 1, expected at least "),
    (
        ["plot", "gantt", "r.json", "--out", "f.svg", "--width", "1e9"],
        "",
        "--width: got 1e9, expected a number from 1 to",
    ),
    (
        ["plot", "gantt", "r.json", "--out", "f.png", "--width", "0.5"],
        "",
        "--width: got 0.5, expected a number from 1 to",
    ),
    (["plot", "bounds", "t.csv", "--out", "f.svg"], "a,b\n", "t.csv: line 1: got 'a,b', expected elapsed_s,incumbent"),
    (["report", "d"], "", "d: got a folder, expected a store"),
    (["pages", GIVEN], "", "given.json: got file is not a database, expected a store that can be read"),
]


@pytest.mark.parametrize(("arguments", "text", "complaint"), OTHERS)
def test_what_other_commands_are_given_is_named(
    arguments: list[str], text: str | bytes, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = text if isinstance(text, bytes) else text.encode()
    Path("d").mkdir()
    Path(GIVEN).write_text(TEXTS["instance"])
    Path("s.toml").write_bytes(STUDY.encode() + content + b"\n")
    Path("t.csv").write_bytes(content)
    Path("own.py").write_bytes(content + b"\n")
    outcome = optsched(capsys, *arguments)
    require_complaint(outcome)
    assert outcome.err.startswith(f"optsched: {complaint}")


@pytest.mark.parametrize("group", [[], ["instances"]])
def test_without_a_command_help_is_shown(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = optsched(capsys, *group)
    assert code == 2
    assert err == f"optsched: Missing command. (see: {' '.join(['optsched', *group])} --help)\n"
    assert out.startswith(f"Usage: {' '.join(['optsched', *group])}")
    assert "Commands:" in out


def test_a_method_that_does_not_cover_the_instance(capsys: pytest.CaptureFixture[str]) -> None:
    Path(GIVEN).write_text(changed("instance", ["requests", 0, "arrival_ps"], 5))
    for command in ("solve", "table"):
        outcome = optsched(capsys, command, GIVEN, "--method", "state_search")
        require_complaint(outcome, "given.json: --method: got 'state_search', expected a method that covers ")


def test_times_that_grow_too_large_are_not_served(capsys: pytest.CaptureFixture[str]) -> None:
    Path(GIVEN).write_text(changed("instance", ["cost"], {"base": 2**63 - 1, "token": 0}))
    outcome = optsched(capsys, *SIMULATE)
    assert outcome.code == 0
    assert "n/a: " in outcome.out
    assert f"the batch ends at {2 * (2**63 - 1)} ps, later than a schedule can state" in outcome.out


# Infeasible instances --------------------------------------------------------------------------------------

KV_TOO_SMALL = changed("instance", ["limits", "kv_tokens"], 30)
PROMPT_TOO_LONG = changed("instance", ["limits", "prefill_tokens"], 29)
BLOCKS_TOO_LARGE = changed("instance", ["limits", "kv_block"], 40)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            KV_TOO_SMALL,
            "request 2 (q7) needs 31 KV tokens (input 30 + output 2 - 1, in blocks of 1), the cache holds 30",
        ),
        (PROMPT_TOO_LONG, "request 2 (q7) has a prompt of 30 tokens, more than prefill_tokens = 29"),
        (
            BLOCKS_TOO_LARGE.replace("64", "39"),
            "request 0 needs 40 KV tokens (input 8 + output 4 - 1, in blocks of 40)",
        ),
    ],
    ids=["KV", "prompt", "blocks"],
)
@pytest.mark.parametrize("command", ["solve", "simulate", "table"])
def test_an_infeasible_instance_names_the_request(
    document: str, reason: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(GIVEN).write_text(document)
    code, out, err = optsched(capsys, command, GIVEN, *(["--policy", "all"] if command == "simulate" else []))
    assert code == 1
    assert err.startswith(f"optsched: infeasible: {'test: ' if command == 'table' else ''}{reason}")
    assert len(err.splitlines()) == 1
    assert (out == "") == (command != "solve")


def test_a_table_says_which_instance_is_infeasible(capsys: pytest.CaptureFixture[str]) -> None:
    second = json.loads(KV_TOO_SMALL) | {"name": "small"}
    Path(GIVEN).write_text(json.dumps(SUITE | {"instances": [INSTANCE, second]}))
    code, out, err = optsched(capsys, "table", GIVEN)
    assert (code, out) == (1, "")
    assert err.startswith("optsched: infeasible: small: request 2 (q7) needs 31 KV tokens")


def test_forbidding_chunks_can_make_an_instance_infeasible(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(PROMPT_TOO_LONG)
    document["rules"]["chunked_prefill"] = True
    Path(GIVEN).write_text(json.dumps(document))
    assert optsched(capsys, *SIMULATE).code == 0
    for command in (SIMULATE, ["table", GIVEN], ["solve", GIVEN]):
        code, _, err = optsched(capsys, *command, "--forbid", "chunked")
        assert code == 1
        assert "request 2 (q7) has a prompt of 30 tokens" in err


def test_an_infeasible_document_can_be_kept_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    Path(GIVEN).write_text(KV_TOO_SMALL)
    code, out, err = optsched(capsys, "solve", GIVEN, "--json", "--out", "out.json")
    assert code == 1
    assert len(err.splitlines()) == 1
    assert json.loads(out)["status"] == "infeasible"
    assert Path("out.json").read_text() == out
    assert optsched(capsys, "check", "out.json").code == 0


# The real command ------------------------------------------------------------------------------------------


def run(*arguments: str, stdin: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from optsched.cli import main; main()", *arguments]
    return subprocess.run(command, input=stdin, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (["solve", "gone.json"], b"", "gone.json: INSTANCE: got No such file or directory, expected a readable file"),
        (["check", "-"], b"\xff", "-: line 1 column 1: got invalid JSON (expected value), expected a JSON document"),
        (["table", "-", "--workers", "0"], b"", "--workers: got 0, expected an integer from 1 to 1024"),
    ],
)
def test_a_process_complains_on_one_line(arguments: list[str], stdin: bytes, complaint: str) -> None:
    ended = run(*arguments, stdin=stdin, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.decode() == f"optsched: {complaint}\n"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_standard_output_may_be_full() -> None:
    with Path("/dev/full").open("wb") as full:  # opened here: optsched itself gets no name to write to
        ended = run("instances", "make", "infermax-fig15", stdout=full)
    assert ended.returncode == 2
    assert ended.stderr.decode() == (
        "optsched: standard output: got No space left on device, expected to read or write it\n"
    )


def test_a_file_name_need_not_be_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.json")
    try:
        Path(name).write_text("{}")
    except OSError:
        pytest.skip("this file system wants names that are text")
    ended = run("solve", name, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.decode().startswith("optsched: \\udcff.json: format: got nothing, expected this field")
    assert len(ended.stderr.splitlines()) == 1


# The error itself ------------------------------------------------------------------------------------------


def test_an_input_error_can_be_taken_apart() -> None:
    error = InputError("input", -1, "an integer ≥ 1").within("requests[2]").located("x.json")
    assert (error.field, error.value, error.expected, error.source) == (
        "requests[2].input",
        -1,
        "an integer ≥ 1",
        "x.json",
    )
    assert str(error) == "x.json: requests[2].input: got -1, expected an integer ≥ 1"
    assert str(error.located("x.zip")) == "x.zip: x.json: requests[2].input: got -1, expected an integer ≥ 1"
    assert str(InputError("", Said("nothing"), "more").within("a").within("")) == "a: got nothing, expected more"
    assert InputError("[1]", 0, "more").within("run").field == "run[1]"
    long = str(InputError("name", "x" * 1000, "less"))
    assert len(long) < 100
    assert "xxx…xxx" in long


# What a document may not say in silence -----------------------------------------------------------------------

TWICE = "got the same key twice, expected each key once in an object"
SILENT: list[tuple[str, str, str, str]] = [
    # base document, its text, the text instead, complaint
    ("instance", '"name": "test"', '"name": "test", "name": "other"', f"name: {TWICE}"),
    ("instance", '"kv_tokens": 64', '"kv_tokens": 1, "kv_tokens": 64', f"limits.kv_tokens: {TWICE}"),
    ("instance", '"kv_tokens": 64', '"kv\\u005ftokens": 64, "kv_tokens": 64', f"limits.kv_tokens: {TWICE}"),
    ("instance", '"id": "q7"', '"id": "q7", "input": 30', f"requests[1].input: {TWICE}"),
    ("suite", '"description": "Two."', '"description": "Two.", "name": "suite"', f"name: {TWICE}"),
    ("suite", '"kv_tokens": 64', '"kv_tokens": 64, "kv_tokens": 64', f"instances[0].limits.kv_tokens: {TWICE}"),
    ("result", '"value": 10', '"value": 9, "value": 10', f"value: {TWICE}"),
    ("result", '"certificate": null', '"certificate": {"a": [{"b": 1, "b": 1}]}', f"certificate.a[0].b: {TWICE}"),
    ("result", '"metrics": null', '"metrics": {"batches": NaN}', "metrics.batches: got NaN, expected a finite number"),
    ("result", '"metrics": null', '"metrics": {"x": [0, -Infinity]}', "metrics.x[1]: got -Infinity, expected a finite"),
    ("result", '"metrics": null', '"metrics": {"x": 1e999}', "metrics.x: got 1e999, expected a finite number"),
    (
        "result",
        '"certificate": null',
        f'"certificate": {{"kind": [{"7" * 1001}]}}',
        "certificate.kind[0]: got 1001 digits, expected an integer of at most 1000",
    ),
    (
        "result",
        '"bound": null',
        f'"bound": {"7" * 1001}',
        "bound: got 1001 digits, expected an integer of at most 1000",
    ),
]


@pytest.mark.parametrize(("base", "old", "new", "complaint"), SILENT)
def test_what_others_read_in_silence_is_named(
    base: str, old: str, new: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert TEXTS[base].count(old) >= 1
    file = tmp_path / "given.json"
    file.write_text(TEXTS[base].replace(old, new, 1))
    for command in READERS[base]:
        arguments = [str(file) if part == "FILE" else part for part in command]
        require_complaint(optsched(capsys, *arguments), f"{file}: {complaint}")


def test_a_thousand_digits_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are no bound that holds; strings and fractions may have more digits."""
    digits = "7" * 1000
    file = tmp_path / "given.json"
    text = TEXTS["result"].replace('"bound": null', f'"bound": {digits}')
    file.write_text(text.replace('"vllm"', f'"{digits}8"').replace("0.5", f"0.{digits}8"))
    outcome = optsched(capsys, "check", str(file))
    assert outcome.code == 1
    assert f"bound is {digits}, at most the value 10 is possible" in outcome.out


def test_a_shape_and_a_profile_with_a_key_twice(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    profile = find_profile(PROFILE)
    text = render_profile(profile)
    assert find_profile(str(_written(file, text))) == profile
    with pytest.raises(InputError, match=f"mine.json: coefficients.base: {TWICE}"):
        find_profile(str(_written(file, text.replace('"base":', '"base": 0, "base":', 1))))
    with pytest.raises(InputError, match=f"mine.json: hidden: {TWICE}"):
        read_shape(str(_written(file, '{"hidden": 1, "hidden": 1}')))
    with pytest.raises(InputError, match=r"mine\.toml: got .*, expected TOML"):
        read_shape(str(_written(tmp_path / "mine.toml", "hidden = 1\nhidden = 1\n")))


def _written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


# What takes too much ------------------------------------------------------------------------------------------


def test_a_small_file_that_unpacks_to_gigabytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2 GiB of spaces in 2 MB: what is read of them is little more than the 134 MB that 64 times the file are."""
    file = tmp_path / "bomb.json.gz"
    member = gzip.compress(b" " * 2**24)
    file.write_bytes(member * 128)
    most = 64 * file.stat().st_size
    assert most > 64 * 2**20
    tracemalloc.start()
    outcome = optsched(capsys, "check", str(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = file.stat().st_size
    require_complaint(
        outcome, f"{file}: RESULT: got {size} bytes that unpack to more than {most}, ", "has to be unpacked"
    )
    assert peak < 2 * most


def test_a_tiny_file_may_hold_64_mebibytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spaces = 64 * 2**20 - len(TEXTS["instance"])
    file = tmp_path / "roomy.json.gz"
    file.write_bytes(gzip.compress(TEXTS["instance"].encode() + b" " * spaces))
    assert optsched(capsys, "instances", "show", str(file)).code == 0
    file.write_bytes(gzip.compress(TEXTS["instance"].encode() + b" " * (spaces + 1)))
    require_complaint(optsched(capsys, "instances", "show", str(file)), f"unpack to more than {64 * 2**20}, or ")


def test_a_tiny_file_may_hold_five_million_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each takes a hundred times what its two brackets do."""
    file = tmp_path / "lists.json.gz"
    file.write_bytes(gzip.compress(b'{"requests": [' + b"[]," * 5_000_000 + b"0]}"))
    outcome = optsched(capsys, "check", str(file))
    require_complaint(outcome, "RESULT: got ", "or to more than 5000000 lists, expected a packed file that holds less")


def test_a_small_file_of_many_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each unknown one would be a problem of its own; one object may have the first 100,064."""
    file = tmp_path / "keys.json.gz"
    file.write_bytes(gzip.compress(b'{"a": 1' + b"".join(b', "a%d": 1' % key for key in range(100_064)) + b"}"))
    outcome = optsched(capsys, "check", str(file))
    require_complaint(outcome, f"{file}: document: got about 100065 keys, expected at most 100064 for as many")


def test_what_is_missing_is_said_without_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pydantic would hand over the whole document for each of fourteen missing fields."""
    monkeypatch.setattr("optsched.model.domain.from_json", _never)
    file = tmp_path / "given.json"
    file.write_text(json.dumps({"format": "optsched-result/1", "certificate": {"x": [[]] * 1000}}))
    require_complaint(optsched(capsys, "check", str(file)), "instance: got nothing, expected this field (and 13 more")


def test_too_many_problems_to_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "given.json"
    file.write_text(json.dumps(INSTANCE | {f"x{number}": 0 for number in range(10_001)}))
    require_complaint(
        optsched(capsys, "solve", str(file)), "document: got 10001 problems, expected at most 10000 to say"
    )


def test_a_file_without_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("optsched.model.documents.MAX_BYTES", 2**22)
    require_complaint(
        optsched(capsys, "check", "/dev/zero"),
        f"/dev/zero: RESULT: got more than {2**22} bytes, expected at most {2**22}",
    )


def test_many_requests_of_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = INSTANCE | {"requests": [{"input": 1, "output": 1, "count": 10**7}]}
    file = tmp_path / "given.json"
    suite = SUITE | {"instances": [many, many | {"name": "more"}]}
    complaint = "got 19999998 requests added by count, expected at most 10000000 in a document"
    file.write_text(json.dumps(suite))
    require_complaint(optsched(capsys, "table", str(file)), f"{file}: instances: {complaint}")
    file.write_text(json.dumps([RESULT | {"instance": many}] * 2))
    require_complaint(optsched(capsys, "check", str(file)), f"{file}: document: {complaint}")
    file.write_text(json.dumps(changed_count(10**12)))
    require_complaint(
        optsched(capsys, "solve", str(file)), "requests[0].count: got 1000000000000, expected an integer ≤"
    )


def changed_count(count: int) -> Document:
    return INSTANCE | {"requests": [{"input": 1, "output": 1, "count": count}]}


def test_lists_of_wrong_entries_are_complained_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A complaint for each would take a hundred times what the document does."""
    file = tmp_path / "given.json"
    file.write_text(json.dumps(INSTANCE | {"requests": [[]] * 10**5}))
    require_complaint(optsched(capsys, "solve", str(file)), "requests[0]: got [], expected an object\n")


def test_too_little_memory_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("optsched.cli.check_command.check_result", exhausted)
    file = tmp_path / "given.json"
    file.write_text(TEXTS["result"])
    assert optsched(capsys, "check", str(file)) == Outcome(1, "", "optsched: out of memory\n")


# Names --------------------------------------------------------------------------------------------------------

UNSEEN = {
    "NUL": ("\0", r"\x00"),
    "line break": ("\n", r"\n"),
    "escape": ("\x1b[31m", r"\x1b[31m"),
    "delete": ("\x7f", r"\x7f"),
    "C1": ("\x9b", r"\x9b"),
    "right to left": ("\u202e", r"\u202e"),
    "isolate": ("\u2066", r"\u2066"),
    "zero width": ("\u200b", r"\u200b"),
    "byte order mark": ("\ufeff", r"\ufeff"),
    "line separator": ("\u2028", r"\u2028"),
    "tag": ("\U000e0041", r"\U000e0041"),
}
NAMED: list[tuple[str, Path_, str]] = [
    ("instance", ["name"], "name"),
    ("instance", ["requests", 1, "id"], "requests[1].id"),
    ("suite", ["name"], "name"),
    ("suite", ["description"], "description"),
    ("suite", ["instances", 0, "name"], "instances[0].name"),
    ("result", ["instance", "name"], "instance.name"),
    ("result", ["instance_sha256"], "instance_sha256"),
    ("result", ["method"], "method"),
    ("result", ["versions", "optsched"], "versions.optsched"),
]
PLAIN = "expected text without control and format characters"


@pytest.mark.parametrize(("text", "shown"), UNSEEN.values(), ids=UNSEEN)
@pytest.mark.parametrize(("base", "path", "field"), NAMED, ids=[f"{case[0]}:{case[2]}" for case in NAMED])
def test_a_name_with_what_is_not_seen(
    base: str, path: Path_, field: str, text: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given.json"
    file.write_text(changed(base, path, f"a{text}b"))
    for command in READERS[base]:
        arguments = [str(file) if part == "FILE" else part for part in command]
        outcome = optsched(capsys, *arguments)
        require_complaint(outcome, f"{file}: {field}: got 'a{shown}b', {PLAIN}")
        assert text not in outcome.err.removesuffix("\n")


def test_names_of_all_peoples_are_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "Zürich 東京 Ελλάδα עברית 😀 e\u0301 a\u00a0b |_%&<>`"
    file = tmp_path / "given.json"
    file.write_text(changed("instance", ["name"], name))
    outcome = optsched(capsys, "instances", "show", str(file))
    assert outcome.code == 0
    assert json.loads(outcome.out)["name"] == name


def test_what_a_document_says_at_length_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Certificates and metrics hold anything; so may the name of a file."""
    file = tmp_path / "red\x1b[31m\nfile.json"
    wrong = RESULT | {"metrics": {"x\x1b[2J\n": "y\u202e"}, "bound": 1, "badge": "certified"}
    file.write_text(json.dumps(wrong | {"certificate": {"kind": "k\x1b\n"}, "message": "m\x1b\n"}))
    outcome = optsched(capsys, "check", str(file))
    assert outcome.code == 1
    assert outcome.out.replace("\n", "").isprintable()
    assert all(line.startswith(f"{tmp_path}/red\\x1b[31m\\nfile.json: ") for line in outcome.out.splitlines())
    assert r"kind is 'k\x1b\n'" in outcome.out
