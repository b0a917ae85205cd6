"""Routers, evictors, machines and caches in studies, hypotheses and tables: what runs, and with which values."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from commands import optsched

from optsched import Instance, cost_model, simulate, solve
from optsched.library import load_instances
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.documents import Suite, dump, suite_document
from optsched.model.domain import replace
from optsched.model.instance import Limits, Request, Rules
from optsched.study.drive import run
from optsched.study.hypotheses.hypothesis import Verdict, decide, read_hypothesis
from optsched.study.runner import Here
from optsched.study.study_file import read_study

PROFILE = "a100-llama2-7b-linear"


def instance(name: str, *lengths: tuple[int, int]) -> Instance:
    requests = tuple(Request(size, length) for size, length in lengths)
    return Instance(name, Limits(16, 64, 64), Rules(), cost_model(PROFILE), requests)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    instances = (instance("long", (8, 4), (8, 4), (3, 2)), instance("short", (2, 1), (2, 3), (2, 3)))
    Path("two.json").write_text(dump(suite_document(Suite("two", "Two.", instances), PROFILE)))


def write(text: str) -> str:
    Path("s.toml").write_text(f'name = "s"\ninstances = ["two.json"]\nslots = 1\n{text}\n')
    return "s.toml"


def test_each_policy_runs_with_each_router_and_evictor_that_an_instance_can_have() -> None:
    study = read_study(
        Path(
            write(
                'policies = ["vllm", "vllm_v1"]\nrouters = ["round_robin", "least_kv"]\nevictors = ["lru", "belady"]\n'
                'machines = [1, 2]\ncaches = ["none", "all"]'
            )
        )
    )
    found = [
        (trial.instance.name, len(trial.instance.machines), trial.router, trial.method, trial.evictor)
        for trial in study.trials()
    ]
    routers, policies, evictors = ("round_robin", "least_kv"), ("vllm", "vllm_v1"), ("lru", "belady")
    # A router needs several machines, an evictor needs a cache.
    assert found == [
        entry
        for name in ("long", "short")
        for entry in (
            *((f"{name}-x1-none", 1, None, policy, None) for policy in policies),
            *((f"{name}-x1-all", 1, None, policy, evictor) for policy in policies for evictor in evictors),
            *((f"{name}-x2-none", 2, router, policy, None) for router in routers for policy in policies),
            *(
                (f"{name}-x2-all", 2, router, policy, evictor)
                for router in routers
                for policy in policies
                for evictor in evictors
            ),
        )
    ]


def test_the_rows_say_which_setup_has_which_value(capsys: pytest.CaptureFixture[str]) -> None:
    study = write(
        'policies = ["vllm_v1"]\nrouters = ["least_kv"]\nevictors = ["lru"]\nmachines = [2]\ncaches = ["all"]'
    )
    outcome = optsched(capsys, "study", study, "--out", "rows.csv")
    assert (outcome.code, outcome.err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(Path("rows.csv").read_text())))
    for row, plain in zip(rows, load_instances("two.json"), strict=True):
        shape = replace(plain, replicas=2, cache=CacheRules(CacheMode.ALL))
        value = simulate(shape, "vllm_v1", router="least_kv", evictor="lru").value
        setup = [row[name] for name in ("machines", "cache", "router", "evictor", "value")]
        assert setup == ["2", "all", "least_kv", "lru", str(value)]


def test_a_search_of_several_machines_is_a_trial_like_others() -> None:
    study = read_study(Path(write('policies = ["vllm"]\nmethods = ["auto"]\nmachines = [2]\ntime_limit = 60')))
    results = [done.required() for done in run(study.trials(), Here())]
    for best, policy in zip(results[::2], results[1::2], strict=True):
        assert best.status == "optimal"
        assert best.value is not None
        assert policy.value is not None
        assert best.value <= policy.value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('routers = ["sal"]', "s.toml: routers: got 'sal', expected none: every instance has one machine (machines)"),
        ('evictors = ["lru"]', "s.toml: evictors: got 'lru', expected none: no instance caches anything (caches)"),
        ('machines = [2]\nrouters = ["sol"]', "s.toml: routers: got 'sol', expected one of round_robin, "),
        ('caches = ["all"]\nevictors = ["lur"]', "s.toml: evictors: got 'lur', expected one of lru, "),
        ('caches = ["some"]', "s.toml: caches[0]: got 'some', expected"),
        ("machines = [0]", "s.toml: machines[0]: got 0, expected an integer ≥ 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = optsched(capsys, "study", write('policies = ["vllm"]\n' + text))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"optsched: {complaint}")
    assert len(outcome.err.splitlines()) == 1


HYPOTHESIS = """
claim = "A router is no better than the optimum, and two machines are no worse than one"
source = "me"
instances = ["two.json"]
machines = [{machines}]
says = "{says}"

[sides]
a = {{ optimum = {{}} }}
b = {{ policy = "vllm", router = "least_kv" }}
c = {{ policy = "vllm", router = "round_robin" }}
"""


@pytest.mark.parametrize(
    ("says", "verdict"),
    [("a <= min(b, c)", Verdict.PROVED), ("a > 0 and machines == 2", Verdict.PROVED), ("b < a", Verdict.REFUTED)],
)
def test_hypotheses_have_routers(says: str, verdict: Verdict) -> None:
    Path("h.toml").write_text(HYPOTHESIS.format(machines=2, says=says))
    finding = decide(read_hypothesis("h.toml"), Here(), None, lambda done, total: None)
    assert finding.verdict is verdict
    assert [case.instance.name for case in finding.cases] == ["long-x2", "short-x2"]


def test_hypotheses_name_unknown_routers(capsys: pytest.CaptureFixture[str]) -> None:
    Path("h.toml").write_text(HYPOTHESIS.format(machines=2, says="a <= b").replace("least_kv", "least_vk"))
    outcome = optsched(capsys, "hypothesis", "h.toml")
    assert outcome.code == 2
    assert "router: got 'least_vk', expected one of" in outcome.err


def test_a_table_has_a_column_for_each_setup(capsys: pytest.CaptureFixture[str]) -> None:
    """Gaps to the optimum of two machines, which is proved; the planner assigns by itself."""
    setups = ("--policies", "vllm,sarathi", "--router", "round_robin", "--router", "least_kv", "--machines", "2")
    outcome = optsched(capsys, "table", "two.json", *setups, "--format", "csv", "--time-limit", "60")
    assert (outcome.code, outcome.err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    for row, plain in zip(rows, load_instances("two.json"), strict=True):
        shape = replace(plain, replicas=2)
        best = solve(shape, time_limit=60).value
        assert best is not None
        for router in ("round_robin", "least_kv"):
            for policy in ("vllm", "sarathi"):
                value = simulate(shape, policy, router=router).value
                assert value is not None
                assert float(row[f"gap_{router} {policy}"]) == pytest.approx((value - best) / value)


def test_the_planner_assigns_requests_where_no_router_is_asked_for() -> None:
    """Four equal requests on two machines: each has two of them, as one machine has of two."""
    four, two = instance("four", *[(8, 3)] * 4), instance("two", *[(8, 3)] * 2)
    planned = simulate(replace(four, replicas=2), "planner")
    assert planned.value == simulate(two, "planner").value
    assert "router" not in planned.options
