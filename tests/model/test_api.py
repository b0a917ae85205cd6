"""The package from Python: what its functions take, what objects show, what they save, and what errors say."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optsched
from optsched import (
    Assignment,
    Batch,
    CostModel,
    InputError,
    Instance,
    Limits,
    NoBatchError,
    Objective,
    Policy,
    Request,
    Restrictions,
    Result,
    Results,
    Rules,
    Schedule,
)
from optsched.calibrate.library import load_profile
from optsched.methods.bound import BoundRun, best_bound
from optsched.model.documents import Suite
from optsched.model.profiles import profile_names
from optsched.report.bound_sheet import make_sheet
from optsched.report.formats import as_csv
from optsched.simulator.replica import Replica
from optsched.study.bound_table import TableTask, finish, table_rows

ANY: Any = optsched
"""The package for callers that give what type checkers refuse."""

# A batch of x tokens takes 10 ps, whatever it holds.
TEN = CostModel(base=10, token=0)
PAIR = Instance("pair", Limits(100, 100, 100), Rules(), TEN, (Request(3, 2), Request(4, 1)))
"""Both prompts fit one batch, which ends request 1 at 10 ps; request 0 needs another and ends at 20 ps."""


# What constructors take -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, int])
def test_integers_of_numpy_are_integers(kind: Callable[[int], Any]) -> None:
    limits = Limits(kind(100), batch_tokens=kind(100), prefill_tokens=kind(100), kv_block=kind(1))
    assert limits == PAIR.limits
    assert {type(value) for value in (limits.kv_tokens, limits.batch_tokens, limits.prefill_tokens)} == {int}


def test_lists_and_arrays_are_tuples() -> None:
    requests = [Request(int(np.int64(3)), 2), Request(4, 1)]
    assert ANY.Instance("pair", PAIR.limits, PAIR.rules, TEN, requests) == PAIR
    assert hash(ANY.CostModel(1, 2, [[3, 4], np.array([5, 6])])) == hash(CostModel(1, 2, ((3, 4), (5, 6))))
    assert ANY.Restrictions(["eviction"], order=np.array([1, 0])) == Restrictions(("eviction",), order=(1, 0))
    assert ANY.Restrictions(order=range(2)) == Restrictions(order=(0, 1))
    batch = ANY.Batch(np.int64(0), 10, run=[[0, np.int64(3)], (1, 4)], evict=[])
    assert ANY.Schedule([batch]) == Schedule((Batch(0, 10, ((0, 3), (1, 4))),))


def test_booleans_of_numpy_are_booleans() -> None:
    assert ANY.Rules(hybrid=np.True_, swap=np.False_) == Rules(hybrid=True, swap=False)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Limits(True, 1, 1), "kv_tokens: got true, expected an integer"),
        (lambda: ANY.Limits(1.0, 1, 1), "kv_tokens: got 1.0, expected an integer"),
        (lambda: ANY.Limits(np.float64(1), 1, 1), "kv_tokens: got 1.0, expected an integer"),
        (lambda: ANY.Limits(np.float32(1), np.int64(1), 1), "kv_tokens: got 1.0, expected an integer"),
        (lambda: ANY.Limits(np.True_, 1, 1), "kv_tokens: got true, expected an integer"),
        (lambda: ANY.Limits("1", 1, 1), "kv_tokens: got '1', expected an integer"),
        (lambda: ANY.Limits(np.int64(0), 1, 1), "kv_tokens: got 0, expected an integer ≥ 1"),
        (lambda: ANY.Rules(hybrid=np.int64(1)), "hybrid: got 1, expected true or false"),
        (lambda: ANY.Restrictions("eviction"), "forbid: got 'eviction', expected a list"),
        (lambda: ANY.Restrictions(order=[0, 1.0]), "order[1]: got 1.0, expected an integer"),
        (lambda: ANY.Request(1), "output: got nothing, expected this field"),
        (lambda: ANY.replace(PAIR, requests=3), "requests: got 3, expected a list"),
        (lambda: ANY.replace(PAIR, cost=3), "cost: got 3, expected an object"),
        (lambda: ANY.replace(PAIR, speed=3), "speed: got 3, expected no field of this name"),
        (lambda: ANY.replace(3, speed=3), "obj: got 3, expected a domain object"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(make: Callable[[], object], said: str) -> None:
    complaint(make, said)


def complaint(make: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    text = str(caught.value)
    assert text.startswith(said)
    assert "\n" not in text


# Names for objects ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_s_name_is_its_cost(name: str) -> None:
    assert ANY.replace(PAIR, cost=name).cost == load_profile(name).coefficients == optsched.cost_model(name)


def test_names_give_what_objects_give() -> None:
    name = "infermax-fig15-I8"
    instance = optsched.load_instance(name)
    by_name = optsched.simulate(name, "vllm", "mean_e2e")
    given = optsched.simulate(instance, "vllm", Objective.MEAN_E2E)
    assert (by_name.instance, by_name.value, by_name.schedule) == (instance, given.value, given.schedule)
    assert optsched.bound(name, "mean_e2e").bound == optsched.bound(instance, Objective.MEAN_E2E).bound
    assert ANY.simulate(PAIR, "rr", seed=np.int64(3)).seed == 3


def test_a_file_s_name_is_its_instance(tmp_path: Path) -> None:
    optsched.save_instance(PAIR, tmp_path / "pair.json")
    assert optsched.bound(tmp_path / "pair.json").instance == PAIR
    assert optsched.simulate(str(tmp_path / "pair.json"), "vllm").value == 20


def test_a_result_is_made_of_names() -> None:
    result = ANY.Result(PAIR, "x", "mean_e2e", "unknown", "heuristic")
    assert (result.objective, result.status, result.badge) == (Objective.MEAN_E2E, optsched.Status.UNKNOWN, "heuristic")
    complaint(lambda: ANY.Result(PAIR, "x", "mean", "unknown"), "objective: got 'mean', expected 'makespan', ")


class Idle:
    def next_batch(self, replica: Replica) -> Assignment:
        raise NoBatchError(0, replica.now_ps, "it never works")


class First:
    """Runs the first request that waits or runs, alone."""

    def next_batch(self, replica: Replica) -> Assignment:
        job = (replica.running + replica.waiting)[0]
        return Assignment([(job.index, job.missing)], [])


def test_the_contract_of_a_policy_is_public() -> None:
    idle: Policy = Idle()
    result = optsched.simulate(PAIR, idle)
    assert (result.status, result.value) == (optsched.Status.FAILED, None)
    assert "it never works" in (result.message or "")
    # One request at a time: three batches.
    assert optsched.simulate(PAIR, First()).value == 30


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ANY.solve(3), "instance: got 3, expected an Instance, or the name or file of one"),
        (lambda: ANY.solve(PAIR, "speed"), "objective: got 'speed', expected one of makespan, "),
        (lambda: ANY.solve(PAIR, 3), "objective: got 3, expected one of makespan, "),
        (lambda: ANY.solve(PAIR, restrictions=["eviction"]), "restrictions: got ['eviction'], expected Restrictions"),
        (lambda: ANY.solve(PAIR, time_limit="3"), "time_limit: got '3', expected a number of seconds ≥ 0"),
        (lambda: ANY.solve(PAIR, time_limit=True), "time_limit: got true, expected a number of seconds ≥ 0"),
        (lambda: ANY.solve(PAIR, time_limit=float("nan")), "time_limit: got NaN, expected a number of seconds ≥ 0"),
        (lambda: ANY.solve(PAIR, deterministic_limit=-1), "deterministic_limit: got -1, expected a number of seconds"),
        (lambda: ANY.solve(PAIR, workers=1.0), "workers: got 1.0, expected an integer ≥ 1"),
        (lambda: ANY.solve(PAIR, seed=True), "seed: got true, expected an integer from 0 to 2147483647"),
        (lambda: ANY.solve(PAIR, options=3), "options: got 3, expected a mapping from names to texts"),
        (lambda: ANY.solve(PAIR, progress=3), "progress: got 3, expected a function of a ProgressEvent"),
        (lambda: ANY.solve(PAIR, method=["auto"]), "method: got ['auto'], expected one of auto, "),
        (lambda: ANY.bound(None), "instance: got null, expected an Instance, or the name or file of one"),
        (lambda: ANY.all_bounds(PAIR, "speed"), "objective: got 'speed', expected one of makespan, "),
        (lambda: ANY.simulate(PAIR, 3), "policy: got 3, expected a policy's name, or an object with next_batch or "),
        (lambda: ANY.simulate(PAIR, Idle), "policy: got <class "),
        (
            lambda: ANY.simulate(PAIR, "sjf", predictor=3),
            "predictor: got 3, expected text such as gaussian:25, or None",
        ),
        (lambda: ANY.simulate(PAIR, "sjf", seed=-1), "seed: got -1, expected an integer from 0 to 2147483647"),
        (lambda: ANY.export_model(PAIR, method="infermax_milp", style="x"), "style: got 'x', expected one of lp, mps"),
        (lambda: ANY.export_model(PAIR, method="infermax_milp", style=["lp"]), "style: got ['lp'], expected one of lp"),
        (lambda: ANY.cost_model([3]), "profile: got [3], expected the name of a profile"),
        (lambda: ANY.check_result(PAIR), "claimed: got <Instance pair: "),
        (lambda: ANY.check_schedule(PAIR, [1]), "schedule: got [1], expected a Schedule"),
        (lambda: ANY.timeline("pair", Schedule(())), "instance: got 'pair', expected an Instance"),
        (lambda: ANY.save_instance("pair", "-"), "instance: got 'pair', expected an Instance"),
        (lambda: ANY.save_result([PAIR], "-"), "result[0]: got <Instance pair: "),
        (lambda: ANY.save_result([], "-"), "result: got nothing, expected at least one Result"),
    ],
)
def test_functions_refuse_other_types_in_one_line(call: Callable[[], object], said: str) -> None:
    complaint(call, said)


# Did you mean -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: optsched.simulate(PAIR, "sarathy"), "sarathi"),
        (lambda: optsched.simulate(PAIR, "VLLM"), "vllm"),
        (lambda: optsched.solve(PAIR, method="token_cp_sat"), "token_cpsat"),
        (lambda: optsched.solve(PAIR, method="atuo"), "auto"),
        (lambda: optsched.bound(PAIR, method="congestions"), "congestion"),
        (lambda: optsched.bound(PAIR, "makespn"), "makespan"),
        (lambda: ANY.replace(PAIR, cost="a100-lama2-7b"), "a100-llama2-7b"),
        (lambda: optsched.cost_model("a100-llama2-7b-liner"), "a100-llama2-7b-linear"),
        (lambda: optsched.load_instance("infermax-fig15-I46"), "infermax-fig15-I4"),
        (lambda: optsched.load_instance("infermx-fig15-I64"), "infermax-fig15-I64"),
        (lambda: optsched.load_suite("infermax-fg15"), "infermax-fig15"),
        (lambda: optsched.simulate(PAIR, "sjf", predictor="gausian:3"), "gaussian"),
        (lambda: Restrictions(("evictions",)), "eviction"),
    ],
)
def test_a_misspelt_name_is_recognised(call: Callable[[], object], meant: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    "call",
    [
        lambda: optsched.simulate(PAIR, "xyzzy"),
        lambda: optsched.load_instance("xyzzy"),
        # The name is right, its number is not.
        lambda: optsched.simulate(PAIR, "sjf", predictor="gaussian:much"),
    ],
)
def test_nothing_is_suggested_where_nothing_is_similar(call: Callable[[], object]) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert "did you mean" not in str(caught.value)


# Values in their unit ---------------------------------------------------------------------------------------


def test_a_mean_is_a_mean() -> None:
    """The requests of `PAIR` end at 20 and 10 ps; first tokens come at 10 ps."""
    totals = {"mean_e2e": 30, "mean_ttft": 20, "makespan": 20, "max_e2e": 20}
    means = {"mean_e2e": 15, "mean_ttft": 10, "makespan": 20, "max_e2e": 20}
    for objective, total in totals.items():
        result = optsched.simulate(PAIR, "vllm", objective)
        assert result.value == total
        assert result.value_s == float(Fraction(means[objective], 10**12))
        assert result.value_requests is None


def test_missed_slos_are_requests() -> None:
    late = optsched.replace(PAIR, requests=(Request(3, 2, slo_e2e_ps=19), Request(4, 1, slo_e2e_ps=10)))
    result, least = optsched.simulate(late, "vllm", "slo_misses"), optsched.bound(late, "slo_misses")
    assert (result.value, result.value_s, result.value_requests) == (1, None, 1)
    assert (least.bound, least.bound_s, least.bound_requests) == (1, None, 1)


def test_a_bound_is_in_the_same_unit() -> None:
    result = optsched.bound(PAIR, "mean_e2e", method="alone")
    # Alone, request 0 takes two batches and request 1 one.
    assert (result.bound, result.bound_s, result.value_s) == (30, 15e-12, None)


def test_tables_for_machines_have_sums_and_means() -> None:
    task = TableTask(Suite("s", "One pair.", (PAIR,)), ("vllm",), Objective.MEAN_E2E, time_limit=5, workers=1)
    header, row = csv.reader(io.StringIO(as_csv(make_sheet(finish(task, list(table_rows(task)))))))
    assert dict(zip(header, row, strict=True))["value"] == "30"
    assert float(dict(zip(header, row, strict=True))["value_s"]) == 15e-12


# Bounds -----------------------------------------------------------------------------------------------------


def test_all_bounds_are_those_one_by_one() -> None:
    results = optsched.all_bounds(PAIR, "mean_e2e")
    runs: list[BoundRun] = best_bound(PAIR, Objective.MEAN_E2E, Restrictions())[1]
    assert [result.bound for result in results] == [None if run.bound is None else run.bound.value for run in runs]
    assert len(results) == len(optsched.bound_names()) - len(("best", "all"))
    best = max(result.bound for result in results if result.bound is not None)
    assert optsched.bound(PAIR, "mean_e2e").bound == best
    assert {result.badge for result in results if result.bound is not None} == {optsched.Badge.CERTIFIED}


# Saving and loading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["x.json", "x.json.gz"])
def test_what_is_saved_is_loaded(file: str, tmp_path: Path) -> None:
    target = tmp_path / file
    instance = optsched.replace(PAIR, rules=Rules(swap=True), requests=(*PAIR.requests, Request(1, 1, 5, id="é<")))
    optsched.save_instance(instance, target)
    assert optsched.load_instance(target) == instance
    run, least = optsched.simulate(instance, "vllm", "mean_ttft"), optsched.bound(instance)
    optsched.save_result(run, target)
    assert optsched.load_result(target).result == run
    assert optsched.check_result(optsched.load_result(target)).ok
    optsched.save_result([run, least], target)
    assert [claim.result for claim in optsched.load_results(target)] == [run, least]
    complaint(lambda: optsched.load_result(target), f"{target}: RESULT: got 2 results, expected one result")


def test_a_result_is_checked_without_a_file() -> None:
    run = optsched.simulate(PAIR, "vllm")
    assert optsched.check_result(run).ok
    (violation,) = optsched.check_result(optsched.replace(run, value=19)).violations
    assert violation == "value is 19, but makespan of the schedule is 20"


# What is shown ----------------------------------------------------------------------------------------------


class Cells(HTMLParser):
    """The texts of a table's cells, and every tag in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.rows[-1][-1] += data


def test_what_is_large_is_shown_in_a_line() -> None:
    many = optsched.replace(PAIR, requests=tuple(Request(1 + k % 9, 1 + k % 7) for k in range(200)))
    result = optsched.simulate(many, "vllm", "mean_e2e")
    assert repr(many) == (
        "<Instance pair: requests 200, input 1–9, output 1–7, kv_tokens 100, batch_tokens 100, prefill_tokens 100, "
        "kv_block 1>"
    )
    assert result.schedule is not None
    for shown in (many, result, result.schedule):
        assert "\n" not in repr(shown)
        assert len(repr(shown)) < 200
    assert re.fullmatch(
        r"<Result: instance pair, method vllm, objective mean_e2e, status feasible, value \S+ s>", repr(result)
    )
    assert f"batches {result.schedule.length}, " in repr(result.schedule)
    assert repr(Schedule(())) == "<Schedule: batches 0, evictions 0>"
    assert repr(Results([result] * 2)) == f"Results([\n  {result!r},\n  {result!r},\n])"


def test_a_notebook_shows_tables_with_escaped_text() -> None:
    named = optsched.replace(PAIR, name="<script>alert('1 & 2')</script>")
    run = ANY.replace(optsched.simulate(named, "vllm"), method="<b>")
    least = optsched.bound(named)
    for shown, rows in ((named, 1), (run, 1), (Results([run, least]), 2)):
        table = Cells(shown._repr_html_())
        assert table.tags == {"table", "thead", "tbody", "tr", "th", "td"}
        header, *body = table.rows
        assert len(body) == rows
        assert {len(row) for row in table.rows} == {len(header)}
        assert {row[header.index("instance")] for row in body} == {named.name}
    assert "<b>" in Cells(run._repr_html_()).rows[1]
    assert Cells(Results()._repr_html_()).rows == []


def test_results_are_a_list() -> None:
    result: Result = optsched.bound(PAIR)
    assert Results([result]) == [result]
