"""The commands do what interfaces.md says, in the formats that it names."""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import Outcome
from patience import PATIENCE_S

from optsched.bounds.catalogue import BOUNDS
from optsched.cli.live import LiveLine
from optsched.library import load_instance, load_suite
from optsched.methods.policies import policy_names
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve as real_solve
from optsched.model.documents import Suite, dump, instance_document, result_document, suite_document
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import PLAIN_OBJECTIVES, Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status, versions
from optsched.report.bound_sheet import make_sheet
from optsched.report.formats import FORMATS, as_csv, as_markdown, as_text
from optsched.report.latex import as_latex
from optsched.report.sheet import Cell, Column, Sheet
from optsched.solvers.formulation import ProgressEvent
from optsched.study.bound_table import BoundTable, TableTask, finish, table_rows
from optsched.study.simulations import simulate_each
from optsched.traces.suites import SUITES

Document = dict[str, Any]
POLICIES = policy_names()
FAST = ("--workers", "1", "--time-limit", "120")


Command = Callable[..., Outcome]


@pytest.fixture
def optsched(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Run the command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    yield partial(commands.optsched, capsys)
    left = [path.name for path in tmp_path.rglob(".*")]
    assert not left, f"hidden files stay behind: {left}"


def small(
    name: str = "small", kv: int = 16, size: int = 8, count: int = 3, rules: dict[str, bool] | None = None
) -> Instance:
    """Return an instance in which eviction pays, and that is solved in no time."""
    template = load_instance("infermax-fig15-I8")
    limits = Limits(kv, 64, 64)
    return replace(
        template,
        name=name,
        limits=limits,
        requests=(Request(size, 3),) * count,
        rules=replace(template.rules, **(rules or {})),
    )


def save(instance: Instance, file: str = "small.json") -> str:
    Path(file).write_text(dump(instance_document(instance)))
    return file


def save_suite(*instances: Instance, file: str = "suite.json") -> str:
    suite = Suite("three", "Some small ones.", instances)
    document = suite_document(suite, "a100-llama2-7b-linear")
    Path(file).write_text(dump(document))
    return file


def three() -> tuple[Instance, Instance, Instance]:
    return small("first"), small("second", size=4), small("third", kv=20)


def feed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


# solve and simulate ----------------------------------------------------------------------------------------


def test_solve_says_value_bound_and_gap(optsched: Command) -> None:
    code, out, err = optsched("solve", save(small()), *FAST)
    assert (code, err) == (0, "")
    assert re.match(r"small: makespan, optimal \(\d+\.\d\d s\)\n", out)
    value, bound = re.findall(r"^  (?:value|bound)  (\d+\.\d{3}) ms  \(\w+\)", out, flags=re.MULTILINE)
    assert value == bound
    assert re.search(r"^  gap    0.00 %$", out, flags=re.MULTILINE)


def test_json_prints_the_document_and_nothing_else(optsched: Command) -> None:
    file = save(small())
    code, out, err = optsched("solve", file, "--json", *FAST)
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert out == dump(document)
    assert (document["format"], document["status"], document["gap"]) == ("optsched-result/1", "optimal", 0.0)
    assert document["value"] == document["bound"] == document["schedule"]["batches"][-1]["end_ps"]
    assert document["instance"] == instance_document(small())
    code, out, err = optsched("simulate", file, "--policy", "vllm", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert out == dump(document)
    assert (document["method"], document["status"], document["bound"]) == ("vllm", "feasible", None)


@pytest.mark.parametrize("method", ["best", "alone"])
def test_bound_says_which_it_is_and_what_backs_it(method: str, optsched: Command) -> None:
    code, out, err = optsched("bound", save(small()), "--objective", "mean_e2e", "--method", method)
    assert (code, err) == (0, "")
    assert re.match(r"small: mean_e2e, bound_only \(\d+\.\d\d s\)\n", out)
    assert re.search(r"^  bound  \d+\.\d{3} ms  \((alone|machine)\), certified", out, flags=re.MULTILINE)


def test_bound_lists_all_and_writes_the_best(optsched: Command) -> None:
    file = save(small())
    code, out, err = optsched("bound", file, "--method", "all")
    assert (code, err) == (0, "")
    table = out.partition("\n\n")[2]
    assert re.findall(r"^(\w+) ", table, flags=re.MULTILINE) == ["bound", *BOUNDS]
    code, out, _ = optsched("bound", file, "--json", "--out", "bound.json", "--ledger", "ledger.jsonl")
    document = json.loads(out)
    assert (code, document["status"], document["badge"]) == (0, "bound_only", "certified")
    assert document["value"] is None
    assert document["found_by"] == {"bound": document["method"]}
    assert optsched("check", "bound.json").code == 0
    (row,) = map(json.loads, Path("ledger.jsonl").read_text().splitlines())
    assert (row["kind"], row["value"], row["badge"]) == ("bound", document["bound"], "certified")
    # The best known schedule stands in the ledger as well.
    optsched("table", save_suite(small()), "--policies", "vllm", "--ledger", "ledger.jsonl", *FAST[:2])
    out = optsched("bound", file, "--ledger", "ledger.jsonl").out
    assert re.search(r"^  value  \d+\.\d{3} ms, the best known \(ledger\)$", out, flags=re.MULTILINE)
    assert re.search(r"^  gap    (0\.00|≤ \d+\.\d\d) %$", out, flags=re.MULTILINE)


def test_a_bound_of_a_smaller_class_is_no_smaller(optsched: Command) -> None:
    file = save(small())
    free = json.loads(optsched("bound", file, "--json").out)
    code, out, _ = optsched("bound", file, "--max-batch", "1", "--json")
    document = json.loads(out)
    assert (code, document["restrictions"]) == (0, {"max_batch": 1})
    # One run at a time: nine tokens, nine batches.
    assert document["bound"] >= 9 * small().cost.base > free["bound"]
    assert "class" in optsched("bound", file, "--max-batch", "1").out


def test_bound_says_what_it_cannot(optsched: Command) -> None:
    code, out, _ = optsched("bound", save(small()), "--objective", "slo_misses", "--method", "machine")
    assert (code, out.splitlines()[1]) == (0, "  machine says nothing about slo_misses")
    code, _, err = optsched("bound", save(small()), "--method", "hope")
    assert (code, err) == (
        2,
        f"optsched: --method: got 'hope', expected one of best, all, {', '.join(BOUNDS)}\n",
    )
    code, _, err = optsched("bound", save(small(kv=5)))
    assert code == 1
    assert "request 0" in err


@pytest.mark.parametrize("objective", PLAIN_OBJECTIVES)
def test_every_objective_is_the_value(objective: Objective, optsched: Command) -> None:
    first = replace(small(), requests=(Request(8, 3, weight=5, slo_e2e_ps=1), Request(4, 2)))
    file = save(first)
    for command in (["solve", file, *FAST], ["simulate", file, "--policy", "sarathi"]):
        code, out, _ = optsched(*command, "--objective", objective.value, "--json")
        document = json.loads(out)
        assert code == 0
        assert document["objective"] == objective.value
        assert document["value"] == document["metrics"]["objectives"][objective.value]


def test_percentiles_are_bounded_checked_and_tabulated(optsched: Command) -> None:
    """M = 6 holds one prompt of 4 with its second token, so the third of six requests is done after six batches."""
    six = replace(small(kv=6, size=4), requests=(Request(4, 2),) * 6)
    code, out, _ = optsched("bound", save(six), "--objective", "p50_e2e", "--out", "bound.json")
    assert code == 0
    assert re.search(r"^  bound  \d+\.\d{3} ms  \(percentile\), certified", out, flags=re.MULTILINE)
    assert optsched("check", "bound.json").code == 0
    document = json.loads(Path("bound.json").read_text())
    document["bound"] += 1
    document["certificate"]["bound"] += 1
    Path("bound.json").write_text(dump(document))
    code, out, _ = optsched("check", "bound.json")
    assert code == 1
    assert re.search(r"certificate: bound is \d+, but 3 of 6 requests may take less", out)
    command = ("table", save_suite(small()), "--objective", "p95_ttft", "--policies", "vllm", "--format", "csv", *FAST)
    (row,) = csv.DictReader(io.StringIO(optsched(*command).out))
    assert row["objective"] == "p95_ttft"
    code, _, err = optsched("solve", save(small()), "--objective", "p50_e2e", "--method", "infermax_milp")
    assert (code, err.partition("expected ")[2]) == (
        2,
        "a method that covers objective p50_e2e, it minimises no percentile\n",
    )


def test_out_writes_a_file_a_packed_file_or_standard_output(optsched: Command) -> None:
    file = save(small())
    command = ("simulate", file, "--policy", "vllm", "--seed", "7")
    summary = optsched(*command, "--out", "out.json").out
    assert summary.startswith("small\n")
    document = json.loads(Path("out.json").read_text())
    assert (document["format"], document["seed"]) == ("optsched-result/1", 7)
    optsched(*command, "--out", "out.json.gz")
    packed = json.loads(gzip.decompress(Path("out.json.gz").read_bytes()))
    code, out, err = optsched(*command, "--out", "-")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    both = optsched(*command, "--out", "-", "--json").out
    assert timeless(json.loads(both)) == timeless(printed) == timeless(packed) == timeless(document)
    _, out, err = optsched(*command, "--out", "out.json", "--json")
    assert out == Path("out.json").read_text()


def timeless(document: Document) -> Document:
    return document | {"runtime_s": 0}


def test_a_dash_is_standard_input(optsched: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    text = dump(instance_document(small()))
    feed(monkeypatch, text)
    result = optsched("simulate", "-", "--policy", "vllm", "--json").out
    assert json.loads(result)["instance"]["name"] == "small"
    feed(monkeypatch, result)
    assert optsched("check", "-").code == 0
    feed(monkeypatch, text)
    assert optsched("solve", "-", *FAST).out.startswith("small: makespan, optimal")
    feed(monkeypatch, text)
    assert optsched("table", "-", "--policies", "vllm", *FAST).out.startswith("small: makespan, gap of each policy")
    feed(monkeypatch, text)
    assert optsched("instances", "show", "-").out == text


def test_packed_input_is_read(optsched: Command) -> None:
    Path("small.json.gz").write_bytes(gzip.compress(dump(instance_document(small())).encode()))
    assert optsched("instances", "show", "small.json.gz").out == dump(instance_document(small()))


def test_several_policies_give_a_list(optsched: Command) -> None:
    file = save(small())
    for policies, names in (
        (["--policy", "vllm", "--policy", "sarathi"], ["vllm", "sarathi"]),
        (["--policy", "sarathi,vllm", "--policy", "vllm"], ["sarathi", "vllm"]),
        (["--policy", "all"], list(POLICIES)),
        (["--policy", "vllm_hy,all"], ["vllm_hy", *(name for name in POLICIES if name != "vllm_hy")]),
    ):
        code, out, _ = optsched("simulate", file, *policies, "--json")
        assert code == 0
        assert [document["method"] for document in json.loads(out)] == names


def test_a_suite_gives_a_comparison_for_every_instance(optsched: Command) -> None:
    suite = Suite("two", "…", (small(), replace(small(), name="other")))
    Path("two.json").write_text(dump(suite_document(suite, "a100-llama2-7b")))
    out = optsched("simulate", "two.json", "--policy", "vllm,orca").out
    assert [line.split()[0] for line in out.splitlines() if re.match(r"[a-z]", line) and "policy" not in line] == [
        "small", "vllm", "orca", "other", "vllm", "orca",
    ]  # fmt: skip
    documents = json.loads(optsched("simulate", "two.json", "--policy", "vllm,orca", "--json").out)
    assert [(entry["instance"]["name"], entry["method"]) for entry in documents] == [
        (name, policy) for name in ("small", "other") for policy in ("vllm", "orca")
    ]


def test_timelines_of_all_policies_are_in_one_file(optsched: Command) -> None:
    """A policy that gets stuck has none; what the others do adds up to their metrics."""
    later = tuple(replace(request, arrival_ps=index * 10**9) for index, request in enumerate(small().requests))
    problem = replace(small(rules={"eviction": False}), requests=later)
    file = save(problem)
    code, out, err = optsched("simulate", file, "--policy", "vllm_ef,orca,vllm", "--timeline", "time.csv", "--json")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(Path("time.csv").read_text().splitlines()))
    documents = json.loads(out)
    assert {document["status"] for document in documents} == {"feasible", "failed"}
    for document in documents:
        policy = document["method"]
        found = [row for row in rows if (row["instance"], row["policy"]) == (problem.name, policy)]
        if document["status"] == "failed":
            assert not found
            continue
        times = [int(row["time_ps"]) for row in found]
        spans = [later - time for time, later in pairwise(times)]
        metrics = document["metrics"]
        assert sum(spans) == metrics["objectives"]["makespan"]
        for column, unit, metric in (
            ("waiting_requests", 1, "queue_length_over_time"),
            ("occupied_kv_tokens", problem.limits.kv_tokens, "kv_utilisation_over_time"),
            ("running_tokens", problem.limits.batch_tokens, "token_utilisation_over_time"),
        ):
            total = sum(int(row[column]) * span for row, span in zip(found, spans, strict=False))
            assert total / (unit * sum(spans)) == metrics[metric]["mean"]
        assert found[-1]["resident_requests"] == found[-1]["running_requests"] == "0"
    out = optsched("simulate", file, "--policy", "vllm_ef,orca,vllm", "--timeline", "-").out
    assert out == Path("time.csv").read_text()
    optsched("simulate", file, "--policy", "vllm_ef", "--timeline", "time.csv.gz", "--out", "-")
    assert gzip.decompress(Path("time.csv.gz").read_bytes()).decode().splitlines() == [
        line for line in out.splitlines() if not re.search(",(orca|vllm),", line)
    ]


def test_processes_share_the_work_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("vllm", "orca", "rank_i")
    instances = (small(), replace(small(), name="other"))
    alone = list(simulate_each(instances, names, Objective.MAKESPAN, restrictions=Restrictions()))
    monkeypatch.setattr("optsched.study.simulations._PARALLEL_TOKENS", 0)
    shared = list(simulate_each(instances, names, Objective.MAKESPAN, restrictions=Restrictions(), workers=2))
    assert [replace(result, runtime_s=0) for result in shared] == [replace(result, runtime_s=0) for result in alone]


@pytest.mark.slow
def test_a_comparison_shows_every_policy(optsched: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save(small())
    code, out, err = optsched("simulate", file, "--policy", "all")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if re.search(r"^\w+ +\d+\.\d\d", line)] == list(POLICIES)
    assert max(map(len, out.splitlines())) <= 120
    for width in ("40", "80"):
        monkeypatch.setattr("optsched.cli.simulate_command.terminal_width", lambda width=width: int(width))
        narrow = optsched("simulate", file, "--policy", "all").out
        assert "…" not in narrow
        assert max(map(len, narrow.splitlines())) <= int(width)
        assert sorted(re.findall(r"\d+\.\d\d", narrow)) == sorted(re.findall(r"\d+\.\d\d", out))


def test_a_policy_that_fails_says_why(optsched: Command) -> None:
    """Without eviction a policy that fills the cache with prompts gets stuck."""
    file = save(small(rules={"eviction": False}))
    code, out, err = optsched("simulate", file, "--policy", "all")
    assert (code, err) == (0, "")
    reasons = re.findall(r"^n/a: (\w+): (request \d) at (\d+) ps: (.+)$", out, flags=re.MULTILINE)
    assert reasons
    documents = json.loads(optsched("simulate", file, "--policy", "all", "--json").out)
    assert [entry["method"] for entry in documents if entry["status"] == "failed"] == [reason[0] for reason in reasons]


def test_a_policy_that_cannot_serve_says_why_below_the_table(optsched: Command) -> None:
    """The planner knows no caches."""
    code, out, err = optsched("simulate", "prefix-preble-toolbench-200", "--policy", "vllm,planner")
    assert (code, err) == (0, "")
    rows = [line.split()[:4] for line in out.splitlines() if re.search(r" (vllm|planner) ", line)]
    assert rows[0][:3] == ["round_robin", "lru", "vllm"]
    assert rows[1] == ["round_robin", "lru", "planner", "n/a"]
    assert "\nn/a: planner: request 0 at " in out


def test_a_policy_that_crashes_has_no_router(optsched: Command) -> None:
    """What it plans itself breaks a rule, and there is nothing that says what routed."""
    Path("idle.py").write_text(
        "from optsched import Schedule\n\n\nclass Idle:\n"
        "    def prepared(self, occasion):\n        raise ValueError\n\n"
        "    def planned(self, occasion):\n        return Schedule(())\n\n\n"
        "IDLE = Idle()\n"
    )
    policies = ("--policy", "vllm", "--policy", "idle.py:IDLE")
    code, out, err = optsched("simulate", "ladder-n08-I4-O8-k2", "--machines", "2", *policies)
    assert (code, err) == (0, "")
    rows = [line.split()[:2] for line in out.splitlines() if re.search(r" (vllm|idle.py:IDLE) ", line)]
    assert rows[:2] == [["round_robin", "vllm"], ["n/a", "idle.py:IDLE"]]
    assert "\nn/a: idle.py:IDLE: " in out


def test_forbidden_things_do_not_happen(optsched: Command) -> None:
    file = save(small())
    free = json.loads(optsched("solve", file, "--json", *FAST).out)
    code, out, _ = optsched("solve", file, "--forbid", "eviction,hybrid", "--forbid", "eviction", "--json", *FAST)
    assert code == 0
    document = json.loads(out)
    assert document["restrictions"] == {"forbid": ["eviction", "hybrid"]}
    assert document["metrics"]["evictions"] == 0
    assert document["instance"] == free["instance"]
    assert document["value"] >= free["value"]
    Path("out.json").write_text(out)
    assert optsched("check", "out.json").code == 0


def test_the_class_of_schedules_is_said(optsched: Command) -> None:
    file = save(small())
    code, out, _ = optsched("solve", file, "--forbid", "eviction", "--max-batch", "2", "--fix-order", "2,0,1", *FAST)
    assert code == 0
    assert out.splitlines()[1] == "  class  no eviction; at most 2 runs in a batch; first runs in the order 2, 0, 1"
    assert "class" not in optsched("solve", file, *FAST).out


@pytest.mark.parametrize("name", ["small", "evicting"])
def test_the_same_seed_gives_the_same_bytes(name: str, optsched: Command) -> None:
    file = save(small() if name == "small" else load_instance("infermax-fig15-I16"))

    def decided(*command: str) -> str:
        document = json.loads(optsched(*command, "--json").out)
        return dump({key: document[key] for key in ("schedule", "value", "bound", "status", "metrics", "certificate")})

    solving = ("solve", file, "--seed", "3", *FAST)
    assert decided(*solving) == decided(*solving)
    simulating = ("simulate", file, "--policy", "sarathi", "--seed", "3")
    assert decided(*simulating) == decided(*simulating)


# check -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["makespan", "mean_e2e", "p50_ttft"])
def test_what_solve_writes_passes_the_check(objective: str, optsched: Command) -> None:
    code, _, _ = optsched("solve", save(small()), "--objective", objective, "--out", "out.json.gz", *FAST)
    assert code == 0
    code, out, err = optsched("check", "out.json.gz")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"out\.json\.gz: auto on small, (optimal|feasible), bound \w+: every claim holds\n", out)


@pytest.mark.parametrize("rules", [{}, {"eviction": False}, {"hybrid": False}, {"chunked_prefill": True}], ids=str)
def test_what_every_policy_writes_passes_the_check(rules: dict[str, bool], optsched: Command) -> None:
    assert optsched("simulate", save(small(rules=rules)), "--policy", "all", "--out", "out.json").code == 0
    code, out, err = optsched("check", "out.json")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == len(POLICIES)
    for position, (line, policy) in enumerate(zip(lines, POLICIES, strict=True)):
        assert line.startswith(f"out.json[{position}]: {policy} on small, ")
        assert line.endswith(": every claim holds")


def test_check_names_every_violation(optsched: Command) -> None:
    instance = small()
    honest = result_document(simulate(instance, "vllm"))
    lying = json.loads(json.dumps(honest)) | {"instance_sha256": "0" * 64, "gap": 0.5}
    lying["value"] += 1
    lying["metrics"]["evictions"] += 1
    lying["schedule"]["batches"][0]["end_ps"] += 2
    Path("one.json").write_text(dump(lying))
    code, out, err = optsched("check", "one.json")
    assert (code, err) == (1, "")
    *violations, verdict = out.splitlines()
    assert verdict == f"one.json: vllm on small, feasible, bound heuristic: {len(violations)} violations"
    assert len(violations) >= 3
    for part in ("instance_sha256 is '000", "batch 0: ", "gap is 0.5"):
        assert sum(part in line for line in violations) == 1, out
    Path("two.json").write_text(dump([honest, lying]))
    code, out, err = optsched("check", "two.json")
    assert (code, err) == (1, "")
    assert out.splitlines()[0].startswith("two.json[0]: vllm on small, feasible, bound heuristic: every claim holds")
    assert all(line.startswith("two.json[1]: ") for line in out.splitlines()[1:])


def test_a_wrong_value_alone_is_found(optsched: Command) -> None:
    honest = result_document(simulate(small(), "vllm"))
    Path("one.json").write_text(dump(honest | {"value": honest["value"] - 1}))
    code, out, _ = optsched("check", "one.json")
    assert code == 1
    assert f"value is {honest['value'] - 1}, but makespan of the schedule is {honest['value']}" in out


# instances -------------------------------------------------------------------------------------------------


def test_instances_list(optsched: Command) -> None:
    code, out, err = optsched("instances", "list")
    assert (code, err) == (0, "")
    for name in SUITES:
        assert re.search(rf"^{name} +{len(load_suite(name).instances)} ", out, flags=re.MULTILINE)
    code, out, err = optsched("instances", "list", "infermax-fig15")
    assert (code, err) == (0, "")
    assert [line.split()[:4] for line in out.splitlines()[2:]] == [
        [entry.name, "4", str(entry.limits.kv_tokens), f"{entry.kappa:.2f}"]
        for entry in load_suite("infermax-fig15").instances
    ]


def test_instances_show_spells_the_coefficients_out(optsched: Command) -> None:
    code, out, err = optsched("instances", "show", "infermax-b32-I128-O32", "--out", "-")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["cost"]["base"] > 0
    assert document["requests"] == [{"input": 128, "output": 32, "count": 32}]
    assert optsched("instances", "show", "infermax-b32-I128-O32", "--out", "shown.json") == (0, "", "")
    assert Path("shown.json").read_text() == out
    assert load_instance("shown.json") == load_instance("infermax-b32-I128-O32")


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_instances_make_gives_the_shipped_suite(name: str, optsched: Command) -> None:
    code, out, err = optsched("instances", "make", name)
    assert (code, err) == (0, "")
    assert optsched("instances", "make", name, "--out", "made.json") == (0, "", "")
    assert Path("made.json").read_text() == out
    assert load_suite("made.json") == load_suite(name)


# table -----------------------------------------------------------------------------------------------------


def test_csv_has_exact_integers(optsched: Command) -> None:
    suite = save_suite(*three())
    code, out, err = optsched("table", suite, "--policies", "vllm,sarathi_ef", "--format", "csv", *FAST)
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["instance"] for row in rows] == ["first", "second", "third"]
    for row, instance in zip(rows, load_suite(suite).instances, strict=True):
        best = real_solve(instance, time_limit=120, workers=1)
        assert best.value is not None
        assert int(row["value"]) == best.value == best.bound
        assert row["badge"] in {"certified", "solver_claimed"}
        for policy in ("vllm", "sarathi_ef"):
            value = simulate(instance, policy).value
            assert value is not None
            assert float(row[f"gap_{policy}"]) == (value - best.value) / value
        assert float(row["runtime_s"]) >= 0


@pytest.mark.slow
def test_every_format_has_every_row(optsched: Command) -> None:
    suite = save_suite(*three())
    printed = {}
    for style in FORMATS:
        code, printed[style], err = optsched("table", suite, "--format", style, *FAST, "--out", f"table.{style}")
        assert (code, printed[style], err) == (0, "", "")
        text = Path(f"table.{style}").read_text()
        if style != "csv":
            assert "three: makespan, gap of each policy in" in text
    assert len(Path("table.csv").read_text().splitlines()) == 4
    assert optsched("table", suite, "--policies", "vllm", "--format", "md", *FAST).out.startswith("**three: makespan")
    assert optsched("table", suite, "--policies", "vllm", "--format", "md", "--out", "-", *FAST).out.startswith("**thr")


def test_a_table_takes_one_instance_or_a_name(optsched: Command) -> None:
    code, out, _ = optsched("table", save(small()), "--policies", "vllm", *FAST)
    assert code == 0
    assert out.startswith("small: makespan, gap of each policy in %\n")


# Sheets ----------------------------------------------------------------------------------------------------


def hard_table() -> BoundTable:
    """A table with all that can trouble a renderer: unproved rows, failures, long and odd names."""
    name = "a|b_c%d$e{f}~g^h\\i<j>&#k 名前 " + "long" * 10
    fits = [replace(instance, rules=Rules(chunked_prefill=False)) for instance in three()]
    odd = replace(fits[0], name=name, limits=replace(fits[0].limits, batch_requests=2))
    task = TableTask(Suite("odd_%$&#{}~^\\suite|<κ>", "…", ()), POLICIES, time_limit=120, workers=1)
    rows = []
    for position, instance in enumerate([odd, *fits]):
        suite = Suite("x", "x", (instance,))
        (row,) = table_rows(replace_task(task, suite))
        if position == 0:
            value = row.best.value
            assert value is not None
            best = replace(
                row.best, status=Status.FEASIBLE, badge=Badge.CERTIFIED, bound=value // 2, message="100 % so_so"
            )
            failed = Result(
                instance, "vllm", Objective.MAKESPAN, Status.FAILED, message="vllm: request 0 at 0 ps: a_b ✓"
            )
            row = type(row)(instance, best, (failed, *row.policies[1:]))
        if position > 0:
            badge = Badge.CERTIFIED if position == 1 else Badge.SOLVER_CLAIMED
            row = type(row)(instance, replace(row.best, badge=badge), row.policies)
        rows.append(row)
    return finish(task, rows)


def replace_task(task: TableTask, suite: Suite) -> TableTask:
    return TableTask(suite, task.policies, time_limit=task.time_limit, workers=task.workers)


@pytest.fixture(scope="module")
def hard() -> BoundTable:
    return hard_table()


@pytest.mark.parametrize("width", [80, 120])
def test_text_cuts_no_cell(width: int, hard: BoundTable) -> None:
    for sheet in (make_sheet(hard), make_sheet(one_row(hard))):
        text = as_text(sheet, width)
        assert "…" not in text
        words = text.split()
        for column in sheet.columns:
            if column.header:
                assert all(part in words for cell in column.cells for part in cell.shown.split()), column.name
        for policy in POLICIES:
            assert re.sub(r"_", " _", policy).split()[-1] in words


def one_row(table: BoundTable) -> BoundTable:
    return BoundTable(table.suite, "x", table.objective, table.restrictions, table.policies, table.rows[:1])


@pytest.mark.parametrize("width", [80, 120])
def test_text_fits_the_width_where_names_are_short(width: int, hard: BoundTable) -> None:
    short = BoundTable("short", "x", hard.objective, hard.restrictions, hard.policies, hard.rows[1:])
    for table in (short, one_row(short)):
        text = as_text(make_sheet(table), width)
        assert max(map(len, text.splitlines())) <= width
        assert not any(line != line.rstrip() for line in text.splitlines())


def test_a_long_name_lengthens_the_line(hard: BoundTable) -> None:
    """The name is a key column when nothing else tells the rows apart."""
    row = hard.rows[0]
    table = BoundTable("twins", "x", hard.objective, hard.restrictions, hard.policies, (row, row))
    text = as_text(make_sheet(table), 40)
    assert row.instance.name in text
    assert "…" not in text


def test_markdown_shows_names_as_they_are() -> None:
    cells = (Cell("a|b <i>x</i> `c` *d* [e](f) _g_ h_i \\", ""),)
    sheet = Sheet("<b>_t_", "", (Column("m_n|_o_", "", cells),), ("see <u>`x`",))
    title, header, _, row, note = (line for line in as_markdown(sheet).splitlines() if line)
    assert title == r"**\<b>\_t\_**"
    assert header.strip("| ") == r"m_n\|\_o\_"
    assert row.strip().removeprefix("| ").removesuffix(" |") == (r"a\|b \<i>x\</i> \`c\` \*d\* \[e\](f) \_g\_ h_i \\")
    assert note == r"see \<u>`x`"


def test_markdown_rows_have_as_many_columns(hard: BoundTable) -> None:
    narrow = tuple(replace(row, policies=row.policies[:1]) for row in hard.rows)
    for table in (
        hard,
        one_row(hard),
        BoundTable("t", "", hard.objective, hard.restrictions, hard.policies[:1], narrow * 2),
    ):
        lines = [line for line in as_markdown(make_sheet(table)).splitlines() if line.startswith("|")]
        assert len(lines) == len(table.rows) + 2
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    twins = BoundTable("t", "", hard.objective, hard.restrictions, hard.policies, (hard.rows[0], hard.rows[0]))
    lines = [line for line in as_markdown(make_sheet(twins)).splitlines() if line.startswith("|")]
    assert r"a\|b_c" in lines[2]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_latex_has_rules_and_nothing_special(hard: BoundTable) -> None:
    twins = BoundTable(hard.suite, "", hard.objective, hard.restrictions, hard.policies, (hard.rows[0], hard.rows[0]))
    for table in (hard, twins):
        text = as_latex(make_sheet(table))
        comment, _, body = text.partition("\n")
        assert comment == "% needs \\usepackage{booktabs,amssymb,adjustbox}"
        assert body.count("\\end{table}") == body.count("\\begin{table}") == body.count("\\caption{")
        parts = body.count("\\begin{tabular}")
        assert parts > 1, "all policies are wider than a page"
        for rule in ("\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}"):
            assert body.count(rule) == parts
        assert not re.search(r"[✓κ–≥]", body)
        without_math = re.sub(r"(?<!\\)\$\\(checkmark|checkmark_c|kappa|ge|le)\$|\\ensuremath\{[<>]\}", "", body)
        for special in "%#_$~^<>":
            assert not re.search(rf"(?<!\\){re.escape(special)}", without_math), special
        for part in without_math.split("\\begin{tabular}")[1:]:
            rows = [line for line in part.splitlines() if line.endswith("\\\\")]
            assert len(rows) == len(table.rows) + 1
            assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
        unescaped = re.sub(r"\\[{}]", "", body)
        assert unescaped.count("{") == unescaped.count("}")
    assert "odd\\_\\%\\$\\&\\#\\{\\}" in text
    assert "\\shortstack[r]{sarathi \\\\ \\_ef}" in text


def test_csv_of_odd_names(hard: BoundTable) -> None:
    sheet = make_sheet(hard)
    header, *rows = csv.reader(io.StringIO(as_csv(sheet)))
    assert header == [column.name for column in sheet.columns]
    assert [row[header.index("instance")] for row in rows] == [row.instance.name for row in hard.rows]
    assert rows[0][header.index("gap_vllm")] == ""
    bound = hard.rows[0].best.bound
    assert bound is not None
    assert int(rows[0][header.index("bound")]) == bound
    assert float(rows[0][header.index("bound_s")]) == bound / 10**12


def test_marks_and_failures_are_explained(hard: BoundTable) -> None:
    notes = make_sheet(hard).notes
    assert any(note.startswith("✓ proved optimal by the solver") for note in notes)
    assert any(note.startswith("✓c proved optimal") for note in notes)
    assert any(note.startswith("n/a: vllm on a|b_c") and note.endswith("a_b ✓.") for note in notes)


# --results and --resume ------------------------------------------------------------------------------------


def table_of(suite: str, optsched: Command, *more: str) -> list[dict[str, str]]:
    command = ("table", suite, "--policies", "vllm,sarathi", "--format", "csv", "--results", "kept")
    code, out, err = optsched(*command, *FAST, *more)
    assert (code, err) == (0, "")
    return list(csv.DictReader(io.StringIO(out)))


STORE = Path("kept/study.sqlite")


def attempt(method: str = "auto", name: str = "first") -> tuple[int, Document]:
    """Return the last attempt of a method on an instance, and its document."""
    with closing(sqlite3.connect(STORE)) as database:
        number, packed = database.execute(
            "SELECT attempts.id, attempts.document FROM attempts JOIN tasks ON tasks.key = attempts.task "
            "JOIN instances ON instances.sha256 = tasks.instance "
            "WHERE instances.name = ? AND json_extract(tasks.about, '$.method') = ? ORDER BY attempts.id DESC",
            (name, method),
        ).fetchone()
    return number, json.loads(zlib.decompress(packed))


def forge(method: str = "auto", name: str = "first", **changes: object) -> int:
    """Change a kept document, and what the row says of it."""
    number, document = attempt(method, name)
    write_row(number, json.dumps(document | changes).encode(), **document | changes)
    return number


def plant(method: str = "auto", name: str = "first", **changes: object) -> int:
    """Put another document in the place of a kept one, as the store would have written it, so that its use is seen."""
    number = forge(method, name, **changes)
    sign(number)
    return number


def write_row(number: int, data: bytes, **said: object) -> None:
    """Put a document in the place of a kept one, with what the row says of it."""
    found: Document = {name: said[name] for name in ("status", "badge", "runtime_s", "message") if name in said}
    found |= {name: None if said[name] is None else str(said[name]) for name in ("value", "bound") if name in said}
    with closing(sqlite3.connect(STORE)) as database, database:
        for name, value in ({"document": zlib.compress(data)} | found).items():
            database.execute(f"UPDATE attempts SET {name} = ? WHERE id = ?", (value, number))


def sign(number: int) -> None:
    """Forge the digest of a row, too."""
    with closing(sqlite3.connect(STORE)) as database, database:
        database.row_factory = sqlite3.Row
        row = dict(database.execute("SELECT * FROM attempts WHERE id = ?", (number,)).fetchone())
        fields = [value for name, value in row.items() if name not in {"id", "digest"}]
        parts = [hashlib.sha256(part).hexdigest() if isinstance(part, bytes) else part for part in fields]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        database.execute("UPDATE attempts SET digest = ? WHERE id = ?", (digest, number))


def checks(document: Document, optsched: Command) -> bool:
    """Whether ``optsched check`` accepts a document."""
    Path("checked.json").write_text(dump(document))
    return optsched("check", "checked.json").code == 0


def unproved() -> Document:
    """Return the changes that make a kept optimum a schedule with half its value as bound."""
    value = attempt()[1]["value"]
    bound = value // 2
    return {"status": "feasible", "bound": bound, "gap": float(Fraction(value - bound, value))}


def test_every_finished_result_is_kept_and_passes_the_check(optsched: Command) -> None:
    suite = save_suite(*three())
    code, out, err = optsched("table", suite, "--policies", "vllm,sarathi", "--results", "kept", *FAST)
    assert (code, err) == (0, "")
    assert out.endswith("\nstudy.sqlite with all results, table.txt, table.md, table.csv, table.tex: kept/\n")
    for instance in three():
        for method in ("auto", "vllm", "sarathi"):
            _, document = attempt(method, instance.name)
            assert (document["method"], document["instance"]["name"]) == (method, instance.name)
            assert checks(document, optsched)
    assert sorted(path.name for path in Path("kept").glob("table.*")) == [
        "table.csv", "table.md", "table.tex", "table.txt",
    ]  # fmt: skip
    assert len(Path("kept/table.csv").read_text().splitlines()) == 4


def test_resume_takes_what_is_kept(optsched: Command) -> None:
    suite = save_suite(*three())
    table_of(suite, optsched)
    plant(runtime_s=1234.5)
    plant("vllm", runtime_s=4321.5)
    rows = table_of(suite, optsched, "--resume")
    assert [row["runtime_s"] == "1234.5" for row in rows] == [True, False, False]
    assert attempt("vllm")[1]["runtime_s"] == 4321.5
    assert table_of(suite, optsched)[0]["runtime_s"] != "1234.5", "without --resume all is computed again"
    assert attempt("vllm")[1]["runtime_s"] != 4321.5


def _edited(**changes: Callable[[Document], object]) -> Callable[[bytes], bytes]:
    """Return what rewrites a document; each change gets the document."""

    def rewrite(data: bytes) -> bytes:
        document = json.loads(data)
        return dump(document | {key: change(document) for key, change in changes.items()}).encode()

    return rewrite


def _hurried(document: Document) -> Document:
    """Return the schedule with a first batch that ends 1 ps too soon."""
    first, *others = document["schedule"]["batches"]
    return {"batches": [first | {"end_ps": first["end_ps"] - 1}, *others]}


@pytest.mark.parametrize("whole", [True, False], ids=["with its digest", "as edited"])
@pytest.mark.parametrize(
    "rewrite",
    [
        _edited(bound=lambda document: document["bound"] + 1),
        _edited(value=lambda document: 1, bound=lambda document: 1),
        _edited(value=lambda document: document["value"] // 1000),
        _edited(schedule=_hurried),
        _edited(schedule=lambda document: {"batches": document["schedule"]["batches"][:-1]}),
        _edited(badge=lambda document: "certified", certificate=lambda document: {"kind": "volume"}),
        _edited(badge=lambda document: "certified", certificate=lambda document: {"kind": {}}),
        _edited(metrics=lambda document: document["metrics"] | {"batches": 1}),
        _edited(instance_sha256=lambda document: "0" * 64),
        _edited(value=lambda document: "12"),
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"\x00\xffjunk",
        lambda data: b"[" * 100_000,
        lambda data: b"[]",
        lambda data: b"[" + data + b"," + data + b"]",
    ],
)
def test_a_kept_document_that_does_not_hold_is_named_and_set_aside(
    rewrite: Callable[[bytes], bytes], whole: bool, optsched: Command
) -> None:
    """Nothing of a forged or torn document reaches the table, even if its digest was forged, too."""
    suite = save_suite(*three())
    honest = table_of(suite, optsched)
    number, document = attempt()
    bad = rewrite(json.dumps(document).encode())
    try:
        said = json.loads(bad)
    except (ValueError, RecursionError):
        said = {}
    write_row(number, bad, **said if isinstance(said, dict) else {})
    if whole:
        sign(number)
    options = ("--policies", "vllm,sarathi", "--format", "csv", "--results", "kept", "--resume", *FAST)
    code, out, err = optsched("table", suite, *options)
    assert code == 0
    what = f"attempt {number}, auto on first, makespan"
    assert err.startswith(f"optsched: kept/study.sqlite: {what}: refused, computed again: ")
    assert len(err.splitlines()) == 1
    with closing(sqlite3.connect(STORE)) as database:
        (packed,) = database.execute("SELECT document FROM attempts WHERE id = ?", (number,)).fetchone()
        assert zlib.decompress(packed) == bad
        assert database.execute("SELECT attempt FROM refused").fetchall() == [(number,)]
    again, honestly = attempt()
    assert again > number
    assert checks(honestly, optsched)
    columns = ("value", "badge", "gap_vllm", "gap_sarathi")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [[row[name] for name in columns] for row in rows] == [[row[name] for name in columns] for row in honest]
    assert table_of(suite, optsched, "--resume") == rows, "what was computed again is kept"


UNWRITTEN = "it is not as it was written\n"


@pytest.mark.parametrize(
    "changes",
    [{"runtime_s": 0.5}, {"found_by": {"schedule": "me"}}, {"message": "fine"}],
    ids=str,
)
def test_what_no_checker_can_prove_has_to_be_as_it_was_written(changes: Document, optsched: Command) -> None:
    suite = save_suite(*three())
    table_of(suite, optsched)
    number = forge(**changes)
    options = ("--policies", "vllm,sarathi", "--results", "kept", "--resume", *FAST)
    code, _, err = optsched("table", suite, *options)
    assert (code, err.rpartition(": ")[2]) == (0, UNWRITTEN)
    with closing(sqlite3.connect(STORE)) as database:
        assert database.execute("SELECT attempt FROM refused").fetchall() == [(number,)]


def test_a_bound_that_only_a_solver_claims_has_to_be_as_it_was_written(optsched: Command) -> None:
    """A schedule that is no optimum, and a bound at its value that the checker cannot disprove."""
    suite = save_suite(*three())
    honest = table_of(suite, optsched)
    runs = (simulate(small("first"), name) for name in POLICIES)
    worse = max((result_document(run) for run in runs if run.value is not None), key=itemgetter("value"))
    assert worse["value"] > int(honest[0]["value"])
    parts = {name: worse[name] for name in ("value", "schedule", "metrics")}
    forge(**parts, bound=worse["value"], gap=0.0, status="optimal", badge="solver_claimed", certificate=None)
    assert checks(attempt()[1], optsched), "it holds, as far as a checker can say"
    options = ("--policies", "vllm,sarathi", "--format", "csv", "--results", "kept", "--resume", *FAST)
    code, out, err = optsched("table", suite, *options)
    assert (code, err.rpartition(": ")[2]) == (0, UNWRITTEN)
    assert [row["value"] for row in csv.DictReader(io.StringIO(out))] == [row["value"] for row in honest]


def test_a_policy_that_failed_is_tried_again(optsched: Command) -> None:
    suite = save_suite(*three())
    table_of(suite, optsched)
    plant("vllm", status="failed", value=None, gap=None, schedule=None, metrics=None, message="vllm: no")
    assert checks(attempt("vllm")[1], optsched)
    assert table_of(suite, optsched, "--resume")[0]["gap_vllm"]


def test_an_interrupted_search_is_tried_again(optsched: Command) -> None:
    suite = save_suite(*three())
    table_of(suite, optsched)
    number = forge(runtime_s=1234.5, message="interrupted", **unproved())
    with closing(sqlite3.connect(STORE)) as database, database:
        database.execute("UPDATE attempts SET ended = 'interrupted' WHERE id = ?", (number,))
    sign(number)
    assert table_of(suite, optsched, "--resume")[0]["runtime_s"] != "1234.5"


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "max_e2e"},
        {"restrictions": {"forbid": ["hybrid"]}},
        {"seed": 1},
        {"instance_sha256": "0" * 64},
    ],
    ids=str,
)
def test_a_document_of_something_else_is_refused(changes: Document, optsched: Command) -> None:
    suite = save_suite(*three())
    table_of(suite, optsched)
    planted: Document = {"runtime_s": 1234.5} | changes
    plant(**planted)
    options = ("--policies", "vllm,sarathi", "--format", "csv", "--results", "kept", "--resume", *FAST)
    code, out, err = optsched("table", suite, *options)
    assert (code, err.count(" refused, ")) == (0, 1)
    assert next(csv.DictReader(io.StringIO(out)))["runtime_s"] != "1234.5"


@pytest.mark.parametrize(
    "other",
    [["--time-limit", "59"], ["--seed", "1"], ["--workers", "3"], ["--objective", "max_e2e"], ["--forbid", "hybrid"]],
    ids=" ".join,
)
def test_resume_ignores_what_was_made_otherwise(other: list[str], optsched: Command) -> None:
    suite = save_suite(*three())
    table_of(suite, optsched)
    number = plant(runtime_s=1234.5, **unproved())
    assert table_of(suite, optsched, *other, "--resume")[0]["runtime_s"] != "1234.5"
    with closing(sqlite3.connect(STORE)) as database:
        row = database.execute("SELECT runtime_s FROM attempts WHERE id = ?", (number,)).fetchone()
    assert row == (1234.5,), "nothing is replaced"


@pytest.mark.parametrize("other", [["--time-limit", "59"], ["--workers", "3"]], ids=" ".join)
def test_resume_takes_a_proof_whatever_its_limits(other: list[str], optsched: Command) -> None:
    suite = save_suite(*three())
    table_of(suite, optsched)
    plant(runtime_s=1234.5)
    assert table_of(suite, optsched, *other, "--resume")[0]["runtime_s"] == "1234.5"


def test_results_of_a_search_without_limit_are_kept(optsched: Command) -> None:
    suite = save_suite(*three())
    table_of(suite, optsched, "--time-limit", "inf")
    assert "time_limit_s" not in attempt()[1]
    plant(runtime_s=1234.5, **unproved())
    assert table_of(suite, optsched, "--time-limit", "inf", "--resume")[0]["runtime_s"] == "1234.5"


def test_resume_ignores_a_changed_instance(optsched: Command) -> None:
    first, *others = three()
    table_of(save_suite(first, *others), optsched)
    plant(runtime_s=1234.5)
    changed = replace(first, limits=replace(first.limits, kv_tokens=17))
    assert table_of(save_suite(changed, *others), optsched, "--resume")[0]["runtime_s"] != "1234.5"


def test_odd_names_do_not_share_a_document(optsched: Command) -> None:
    names = ["a b", "a_b", "a/b", "../a b", "名前", "n" * 300, "n" * 301, ""]
    suite = save_suite(*(small(name, kv=16 + position) for position, name in enumerate(names)))
    rows = table_of(suite, optsched)
    assert [row["instance"] for row in rows] == names
    assert [attempt(name=name)[1]["instance"]["name"] for name in names] == names


class _CutShort:
    """Stands for `solve` and is interrupted at the third instance."""

    def __init__(self, returns: bool) -> None:
        self.calls = 0
        self._returns = returns

    def __call__(self, instance: Instance, *arguments: Any, **options: Any) -> Result:
        self.calls += 1
        if self.calls < 3:
            return real_solve(instance, *arguments, **options)
        if self._returns:
            return Result(instance, "auto", Objective.MAKESPAN, Status.UNKNOWN, message="interrupted")
        raise KeyboardInterrupt


@pytest.mark.parametrize("returns", [False, True], ids=["raises", "returns what it has"])
def test_an_interrupted_table_keeps_what_is_finished(
    returns: bool, optsched: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = save_suite(*three(), small("fourth", kv=18))
    stub = _CutShort(returns)
    monkeypatch.setattr("optsched.study.execute.solve", stub)
    code, out, err = optsched("table", suite, "--policies", "vllm", "--results", "kept", "--out", "table.txt", *FAST)
    assert (code, out) == (130, "")
    assert err.lstrip("\n") == "optsched: interrupted; what was finished is kept\n"
    assert stub.calls == 3
    for name in ("first", "second"):
        for method in ("auto", "vllm"):
            assert checks(attempt(method, name)[1], optsched)
    with closing(sqlite3.connect(STORE)) as database:
        assert database.execute("SELECT count(*) FROM instances WHERE name = 'fourth'").fetchone() == (0,)
    assert not Path("table.txt").exists()
    plant(runtime_s=1234.5)
    monkeypatch.setattr("optsched.study.execute.solve", real_solve)
    command = ("table", suite, "--policies", "vllm", "--results", "kept", "--resume", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(optsched(*command, *FAST).out)))
    assert [row["instance"] for row in rows] == ["first", "second", "third", "fourth"]
    assert rows[0]["runtime_s"] == "1234.5"
    assert all(row["value"] for row in rows)


# Trouble with the disk -------------------------------------------------------------------------------------


def _full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "small.json", "--policy", "vllm"],
        ["solve", "small.json", "--json", *FAST],
        ["instances", "make", "infermax-fig15"],
        ["table", "small.json", "--policies", "vllm", *FAST],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_full_disk_leaves_the_earlier_file(
    command: list[str], optsched: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(small())
    Path("out.json").write_text("earlier")
    monkeypatch.setattr("optsched.model.documents.os.fsync", _full)
    code, out, err = optsched(*command, "--out", "out.json")
    # What took long to find is printed instead.
    assert (code, out != "") == (2, command[0] in {"simulate", "solve", "table"})
    assert err == "optsched: out.json: --out: got No space left on device, expected a file that can be written\n"
    assert Path("out.json").read_text() == "earlier"
    assert sorted(path.name for path in Path().iterdir()) == ["out.json", "small.json"]


def test_a_full_disk_is_blamed_on_the_results_folder(optsched: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite has no room for another page; what was kept before is as it was."""
    save(small())
    command = ("table", "small.json", "--policies", "vllm", "--results", "kept", *FAST)
    assert optsched(*command).code == 0
    before = attempt(name="small")
    room = STORE.stat().st_size // 4096

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        database: sqlite3.Connection = real_connect(*arguments, **options)
        database.execute(f"PRAGMA max_page_count = {room}")
        return database

    real_connect = sqlite3.connect
    with monkeypatch.context() as full:
        full.setattr("optsched.study.store.sqlite3.connect", connect)
        for _ in range(20):  # until the pages that are there already are full
            code, out, err = optsched(*command)
            if code:
                break
    assert (code, out) == (2, "")
    assert err == (
        "optsched: kept/study.sqlite: --results: got database or disk is full, "
        "expected a store that can be read and written\n"
    )
    with closing(sqlite3.connect(STORE)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT min(id) FROM attempts").fetchone() == (1,)
    assert attempt(name="small")[1]["value"] == before[1]["value"]
    assert optsched(*command).code == 0, "with room it goes on"


# Streams ---------------------------------------------------------------------------------------------------


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from optsched.cli import main; main()", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S, **options)


@pytest.mark.slow
def test_progress_reaches_no_stderr_that_is_no_terminal(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    file.write_text(dump(instance_document(small())))
    terminals = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "TERM": "xterm-256color"}
    ended = run("solve", str(file), "--json", *FAST, stdout=subprocess.PIPE, env=os.environ | terminals)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert json.loads(ended.stdout)["status"] == "optimal"
    assert b"\x1b" not in ended.stdout


def test_progress_reaches_a_terminal(optsched: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    file = save_suite(*three())
    monkeypatch.setattr(sys, "stderr", terminal)
    code, out, _ = optsched("table", file, "--policies", "vllm", *FAST)
    assert code == 0
    assert "three" in terminal.getvalue()
    assert "\x1b" not in out


def test_the_live_line_shows_means_as_means(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    problem = small()
    count = len(problem.requests)
    with LiveLine("small", Objective.MEAN_E2E) as live:
        live.watch(problem)(ProgressEvent(0.0, 6 * 10**9 * count, 3 * 10**9 * count))
        live._progress.refresh()
    assert "incumbent 6.000 ms  bound 3.000 ms  gap 50.00 %" in terminal.getvalue()


@pytest.mark.parametrize(
    ("columns", "found"), [("80", "small  gap 50.00 %"), ("140", "small  incumbent 6.000 ms  bound")]
)
def test_the_live_line_of_a_suite_names_the_instance(columns: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", columns)
    problem = small()
    with LiveLine("suite", Objective.MAKESPAN, steps=14) as live:
        live.watch(problem)(ProgressEvent(0.0, 6 * 10**9, 3 * 10**9))
        live._progress.refresh()
        assert found in terminal.getvalue()
        assert " 0/14" in terminal.getvalue()
        terminal.truncate(0)
        live.watch(replace(problem, name="next"))
        live._progress.refresh()
        assert "next" in terminal.getvalue()
        assert "gap" not in terminal.getvalue()


@pytest.mark.slow
def test_a_reader_may_leave_early(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        for arguments in (["instances", "make", "infermax-b32"], ["instances", "list"]):
            ended = run(*arguments, stdout=writing)
            assert (ended.returncode, ended.stderr) == (0, b"")
    finally:
        os.close(writing)


def test_output_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    file.write_text(dump(instance_document(small("κλμ"))), encoding="utf-8")
    ended = run("instances", "show", str(file), stdout=subprocess.PIPE, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert json.loads(ended.stdout.decode("utf-8"))["name"] == "κλμ"


def test_the_version_and_the_help(optsched: Command) -> None:
    code, out, err = optsched("--version")
    assert (code, out, err) == (0, f"optsched, version {versions()['optsched']}\n", "")
    code, out, _ = optsched("--help")
    assert code == 0
    listed = re.findall(r"^  ([a-z]+)  ", out.partition("Commands:")[2], flags=re.MULTILINE)
    assert {"solve", "bound", "simulate", "check", "table", "instances"} <= set(listed)
    for name in listed:
        code, out, err = optsched(name, "-h")
        assert (code, err) == (0, "")
        assert out.startswith(f"Usage: optsched {name} ")


def test_python_runs_it_by_the_name_of_the_package() -> None:
    ended = subprocess.run([sys.executable, "-m", "optsched", "--version"], capture_output=True, check=True, text=True)
    assert ended.stdout == f"optsched, version {versions()['optsched']}\n"
