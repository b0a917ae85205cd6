"""`optsched trace` with every format: instances, arrivals, and what is wrong in one line."""

from __future__ import annotations

import gzip
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from checkout import ROOT
from commands import optsched
from shared_data import HERE, SHARED

from optsched import load_instance
from optsched.bounds.volume import volume_bound
from optsched.model.domain import replace
from optsched.model.instance import Instance

VIDUR = "num_prefill_tokens,num_decode_tokens\n10,1\n20,2\n30,3\n40,0\n"
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
7,ChatGPT,472,18,490,Conversation log
8,ChatGPT,0,0,0,Conversation log
9,ChatGPT,472,18,490,Conversation log
13,ChatGPT,472,18,490,Conversation log
"""
SHAREGPT = "num_prefill_tokens,num_decode_tokens,num_predicted_decode_tokens\n5,3,4\n6,3,9\n"
MOONCAKE = '{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0]}\n'
AGENTIC = json.dumps(
    {"requests": [{"t": 0, "type": "n", "in": 5, "out": 6}, {"t": 1.5, "type": "s", "in": 7, "out": 8}]}
)
AGENTIC = f"{AGENTIC}\n{AGENTIC}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lengths.csv").write_text(VIDUR)
    Path("burst.csv").write_text(BURSTGPT)
    Path("share.csv").write_text(SHAREGPT)
    Path("moon.jsonl.gz").write_bytes(gzip.compress(MOONCAKE.encode()))
    Path("agents.jsonl").write_text(AGENTIC)
    clients = Path("clients")
    clients.mkdir()
    (clients / "chunk-1-trace.csv").write_text("0,1,1,Gamma,1,1\n600,2,1,Weibull,1,1\n")
    period = {"input_tokens": "{5: 1.0}", "output_tokens": "{6: 1.0}"}
    (clients / "chunk-1-dataset.json").write_text(json.dumps({"0": period}))


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Instance, list[str]]:
    ended = optsched(capsys, "trace", *arguments, "--out", "made.json")
    assert (ended.code, ended.out) == (0, ""), ended.err
    return load_instance("made.json"), ended.err.splitlines()


def arrivals(instance: Instance) -> list[float]:
    return [request.arrival_ps / 10**12 for request in instance.requests]


def test_lengths_alone_arrive_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    instance, said = made(capsys, "lengths.csv", "--format", "vidur")
    assert said == [
        "optsched: lengths.csv: line 5: num_decode_tokens: got '0', expected an integer from 1 to 1000000000",
        "optsched: lengths.csv: 1 rows left out, 3 requests",
    ]
    assert arrivals(instance) == [0, 0, 0]
    assert instance.name == "lengths"


def test_lengths_alone_with_arrivals_and_a_load(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("lengths.csv", "--format", "vidur", "--arrivals", "poisson:2.5")
    plain, _ = made(capsys, *options)
    assert arrivals(plain) == sorted(set(arrivals(plain)))
    assert [request.input for request in plain.requests] == [10, 20, 30]
    assert made(capsys, *options)[0] == plain
    assert made(capsys, *options, "--seed", "1")[0] != plain
    loaded, _ = made(capsys, *options, "--load", "0.5")
    together = replace(plain, requests=tuple(replace(request, arrival_ps=0) for request in plain.requests))
    assert loaded.requests[-1].arrival_ps == int(volume_bound(together).value / Fraction(1, 2))


def test_arrivals_of_another_trace(capsys: pytest.CaptureFixture[str]) -> None:
    instance, said = made(capsys, "lengths.csv", "--format", "vidur", "--arrivals", "burstgpt:burst.csv")
    assert arrivals(instance) == [0, 2, 6]
    assert said[0].startswith("optsched: burst.csv: line 3: Request tokens: got '0'")
    assert said[1] == "optsched: burst.csv: 1 rows left out, 3 requests"
    assert said[-1] == "optsched: lengths.csv: 1 rows left out, 3 requests"


def test_predictions_stay_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    instance, said = made(capsys, "share.csv", "--format", "sharegpt")
    assert [request.predicted_output for request in instance.requests] == [4, 9]
    assert json.loads(Path("made.json").read_text())["requests"][0] == {"input": 5, "output": 3, "predicted_output": 4}
    assert said == []
    assert optsched(capsys, "simulate", "made.json", "--policy", "vllm").code == 0


def test_packed_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    instance, _ = made(capsys, "moon.jsonl.gz", "--format", "mooncake")
    assert [(request.input, request.output) for request in instance.requests] == [(6, 5)]
    assert instance.name == "moon"


def test_conversations_start_at_once_or_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    together, _ = made(capsys, "agents.jsonl", "--format", "agentic")
    assert arrivals(together) == [0, 0, 1.5, 1.5]
    apart, _ = made(capsys, "agents.jsonl", "--format", "agentic", "--arrivals", "burstgpt:burst.csv")
    assert arrivals(apart) == [0, 1.5, 2, 3.5]


def test_clients_and_workloads_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    instance, _ = made(capsys, "clients", "--format", "servegen", "--limit", "10", "--start", "300", "--seed", "4")
    assert [(request.input, request.output) for request in instance.requests] == [(5, 6)] * 10
    assert arrivals(instance)[0] == 0 < arrivals(instance)[-1]
    options = ("rr-sjf-noise25", "--format", "workload", "--limit", "7", "--arrivals", "gamma:2,3")
    instance, _ = made(capsys, *options)
    assert len(instance.requests) == 7
    assert instance.name == "rr-sjf-noise25"
    assert made(capsys, *options)[0] == instance


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("lengths.csv --format hope", "--format: got 'hope', expected one of azure, burstgpt, mooncake, vidur, "),
        ("lengths.csv --format burstgpt", "lengths.csv: line 1: got 'num_prefill_tokens,num_decode_tokens', expected "),
        ("gone.csv --format vidur", "gone.csv: got No such file or directory, expected a readable file"),
        ("clients --format vidur", "clients: got Is a directory, expected a readable file"),
        ("lengths.csv --format servegen", "lengths.csv: got no chunk-N-trace.csv, expected a folder of ServeGen's"),
        ("clients --format servegen --start 1200", "clients: got no usable row, expected at least one request"),
        ("clients --format servegen --start x", "--start: got x, expected an integer from 0 to 1000000000"),
        ("lengths.csv --format vidur --start 1", "--format: got --start with it, expected servegen with --start"),
        ("hope --format workload --limit 3", "hope: workload: got 'hope', expected one of econoserve-alpaca, "),
        ("rr-sjf --format workload", "rr-sjf: --limit: got nothing, expected the number of requests to draw"),
        ("rr-sjf --format workload --limit 3 --load 1", "rr-sjf: --load: got '1', expected a trace whose requests"),
        ("lengths.csv --format vidur --arrivals poisson", "--arrivals: got 'poisson', expected poisson:RATE"),
        (
            "lengths.csv --format vidur --arrivals gamma:0,1",
            "--arrivals: got 'gamma:0,1', expected gamma:RATE,CV, RATE",
        ),
        ("lengths.csv --format vidur --arrivals hope:1", "--arrivals: got 'hope:1', expected one of poisson:RATE, "),
        ("lengths.csv --format vidur --arrivals vidur", "--arrivals: got 'vidur', expected one of poisson:RATE, "),
        ("lengths.csv --format vidur --arrivals azure:gone.csv", "gone.csv: got No such file or directory, expected "),
        ("lengths.csv --format vidur --arrivals azure:burst.csv", "burst.csv: line 1: got 'Timestamp,Model,"),
        (
            "share.csv --format sharegpt --arrivals sharegpt:share.csv",
            "share.csv: got no arrival times, expected a trace ",
        ),
        (
            "rr-sjf --format workload --limit 4 --arrivals burstgpt:burst.csv",
            "rr-sjf: --arrivals: got 3 arrival times, expected at least 4, or a lower limit",
        ),
    ],
)
def test_wrong_input_is_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = optsched(capsys, "trace", *arguments.split())
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"optsched: {message}")
    assert len(ended.err.splitlines()) == 1


def test_the_example_of_the_page_runs() -> None:
    page = (ROOT / "docs/traces.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Instance] = {}
    exec(compile(example, "docs/traces.md", "exec"), names)
    assert len(names["instance"].requests) == 200
    assert not names["instance"].offline


@pytest.mark.slow
@HERE
def test_the_real_files_become_instances(capsys: pytest.CaptureFixture[str]) -> None:
    agents = str(SHARED / "kv_cache_tester/agentic_coding_traces_a.jsonl.gz")
    instance, said = made(capsys, agents, "--format", "agentic", "--arrivals", "poisson:0.01")
    assert said == [
        f"optsched: {agents}: line 46: requests[10].out: got 0, expected an integer from 1 to 1000000000",
        f"optsched: {agents}: 1 rows left out, 6952 requests",
    ]
    assert len(set(arrivals(instance))) > 6000
    clients = str(SHARED / "servegen/deepseek-r1")
    instance, said = made(capsys, clients, "--format", "servegen", "--limit", "2000")
    assert (len(instance.requests), said) == (2000, [])


@pytest.mark.usefixtures("folder")
def test_limits_link_and_deadlines(capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts of 10, 20, 30 and outputs of 1, 2, 3: the mean prompt is 20, the mean context 20 + 1."""
    options = ["--batch-requests", "7", "--kv-block", "16", "--swap", "20971520", "--slo-scale", "5/2"]
    done = optsched(capsys, "trace", "lengths.csv", "--format", "vidur", *options, "--out", "I.json")
    assert done.code == 0
    instance = load_instance("I.json")
    limits, cost = instance.limits, instance.cost
    assert (limits.batch_requests, limits.kv_block, instance.rules.swap) == (7, 16, True)
    assert (cost.swap_out_kv, cost.swap_in_kv) == (20_971_520, 20_971_520)

    def alone(tokens: int) -> int:
        return max(base + token * tokens for base, token in ((cost.base, cost.token), *cost.pieces))

    prefill = alone(20) + 400 * cost.prefill_sq + cost.prefill_req
    step = alone(1) + 21 * cost.decode_kv + cost.decode_req
    assert [request.slo_e2e_ps for request in instance.requests] == [
        5 * (prefill + step * output) // 2 for output in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--swap", "-1", "an integer from 1 to"),
        ("--swap", "fast", "or profile"),
        ("--swap", "profile", "a profile with the times of a link"),
        ("--slo-scale", "0", "a number > 0"),
        ("--kv-block", "0", "an integer from 1"),
        ("--batch-requests", "x", "an integer from 1"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_wrong_with_the_new_options(
    capsys: pytest.CaptureFixture[str], option: str, value: str, expected: str
) -> None:
    done = optsched(capsys, "trace", "lengths.csv", "--format", "vidur", option, value, "--out", "I.json")
    assert done.code == 2
    assert option in done.err
    assert expected in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.usefixtures("folder")
def test_a_profile_may_have_the_times_of_its_link(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["trace", "lengths.csv", "--format", "vidur", "--profile", "cpu-tiny", "--swap", "profile"]
    assert optsched(capsys, *command, "--out", "I.json").code == 0
    cost = load_instance("I.json").cost
    assert cost.swap_out_kv != cost.swap_in_kv > 0
