"""Traces become instances: to the last digit of a time stamp, bad rows by line, arrivals scaled to a load."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from commands import optsched
from shared_data import HERE, SHARED

from optsched import Instance, Limits, Request, Rules, load_instance, replace
from optsched.bounds.volume import volume_bound
from optsched.calibrate.library import cost_model
from optsched.model.cost import CostModel
from optsched.model.documents import parse_instance
from optsched.model.errors import InputError, shown
from optsched.traces.trace import DEFAULT_LIMITS, read_trace, trace_instance

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:59.9999999,374,44\r\n"
    "2023-11-16 18:16:00.5000000,396,109\r\n"
    "2023-11-16 18:15:58.0000001,7,1"
)
TRACES = SHARED / "azure_llm_2023"


def test_worked_rows() -> None:
    """They are sorted; the first is at 0. From :58.0000001 it is 1.9999998 s to the second, 2.4999999 s to the last."""
    trace = read_trace(AZURE, "azure")
    assert trace.bad == ()
    assert trace.requests == (
        Request(7, 1),
        Request(374, 44, arrival_ps=1_999_999_800_000),
        Request(396, 109, arrival_ps=2_499_999_900_000),
    )
    assert read_trace(AZURE, "azure", limit=2).requests == trace.requests[:2]


def test_bad_rows_are_named_and_left_out() -> None:
    text = AZURE + "\n2023-11-16 25:00:00,1,1\nnow,1,1\n2023-11-16 18:15:59,0,4\n2023-11-16 18:15:59,4,1.5\n1,2\n"
    text += f'2023-11-16 18:15:59,4,{"9" * 5000}\n"2023-11-16 18:15:59,4,4\n2023-11-16 18:15:57,6,5\n'
    trace = read_trace(text, "azure")
    assert trace.requests[0] == Request(6, 5)
    assert len(trace.requests) == 4
    assert [str(error) for error in trace.bad] == [
        "line 5: TIMESTAMP: got '2023-11-16 25:00:00', expected a time such as 2023-11-16 18:15:46.6805900",
        "line 6: TIMESTAMP: got 'now', expected a time such as 2023-11-16 18:15:46.6805900",
        "line 7: ContextTokens: got '0', expected an integer from 1 to 1000000000",
        "line 8: GeneratedTokens: got '1.5', expected an integer from 1 to 1000000000",
        "line 9: got '1,2', expected 3 columns",
        f"line 10: GeneratedTokens: got {shown('9' * 5000)}, expected an integer from 1 to 1000000000",
        "line 11: TIMESTAMP: got '\"2023-11-16 18:15:59', expected a time such as 2023-11-16 18:15:46.6805900",
    ]


@pytest.mark.parametrize(
    ("text", "style", "message"),
    [
        ("", "azure", "line 1: got '', expected TIMESTAMP,ContextTokens,GeneratedTokens"),
        ("a,b\n", "azure", "line 1: got 'a,b', expected TIMESTAMP,ContextTokens,GeneratedTokens"),
        (AZURE.partition("\n")[0], "azure", "got no usable row, expected at least one request"),
        (AZURE, "hope", "format: got 'hope', expected one of azure, burstgpt, mooncake, vidur, sharegpt, agentic"),
    ],
)
def test_what_is_no_trace(text: str, style: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_trace(text, style)
    assert str(raised.value) == message


def test_arrivals_are_scaled_to_a_load() -> None:
    """The span becomes the volume bound of all at time 0, over the load."""
    trace = read_trace(AZURE, "azure")
    cost = CostModel(base=10**9, token=10**6)
    plain = trace_instance(trace, "plain", cost, Limits(1000, 512, 512))
    assert plain.requests == trace.requests
    assert plain.rules.chunked_prefill
    together = replace(plain, requests=tuple(replace(request, arrival_ps=0) for request in plain.requests))
    # 109 batches for the longest, 777 tokens of prompts and 151 decodes: 109 ms and 0.928 ms.
    assert volume_bound(together).value == 109 * 10**9 + 928 * 10**6
    half = trace_instance(trace, "half", cost, Limits(1000, 512, 512), load=Fraction(1, 2))
    assert half.requests[-1].arrival_ps == 2 * volume_bound(together).value
    assert half.requests[1].arrival_ps == 1_999_999_800_000 * half.requests[-1].arrival_ps // 2_499_999_900_000
    alone = read_trace(AZURE, "azure", limit=1)
    with pytest.raises(InputError, match="a trace whose requests do not all arrive together"):
        trace_instance(alone, "one", cost, load=Fraction(1))


@pytest.mark.slow
def test_the_command_writes_an_instance(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conv.csv").write_bytes((AZURE + "\nnow,1,1\n").encode())
    ended = optsched(capsys, "trace", "conv.csv", "--load", "0.5", "--kv-tokens", "2000", "--out", "conv.json")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.splitlines() == [
        "optsched: conv.csv: line 5: TIMESTAMP: got 'now', expected a time such as 2023-11-16 18:15:46.6805900",
        "optsched: conv.csv: 1 rows left out, 3 requests",
    ]
    instance = load_instance("conv.json")
    assert (instance.name, instance.limits.kv_tokens, len(instance.requests)) == ("conv", 2000, 3)
    assert optsched(capsys, "bound", "conv.json", "--objective", "mean_e2e").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "hope"], "--format: got 'hope', expected one of azure"),
        (["--load", "0"], "--load: got 0, expected a number > 0"),
        (["--load", "1/0"], "--load: got 1/0, expected a number > 0"),
        (["--limit", "0"], "--limit: got 0, expected an integer ≥ 1"),
        (["--profile", "hope"], "--profile"),
        (["--batch-tokens", "5"], "--prefill-tokens"),
    ],
)
def test_wrong_options(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conv.csv").write_bytes(AZURE.encode())
    ended = optsched(capsys, "trace", "conv.csv", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"optsched: {message}")
    assert len(ended.err.splitlines()) == 1


@pytest.mark.slow
@HERE
@pytest.mark.parametrize(
    ("file", "rows", "span_s", "inputs", "outputs"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19366, 3501.7, 1154.7, 211.1),
        ("AzureLLMInferenceTrace_code_rows1-5879.csv", 5879, 1872.6, 2021.2, 27.2),
    ],
)
def test_azures_traces(
    file: str, rows: int, span_s: float, inputs: float, outputs: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures of the traces' own description: rows, span, mean lengths; then the three loads."""
    trace = read_trace((TRACES / file).read_text(), "azure")
    assert (len(trace.requests), trace.bad) == (rows, ())
    assert round(trace.requests[-1].arrival_ps / 1e12, 1) == span_s
    assert round(sum(request.input for request in trace.requests) / rows, 1) == inputs
    assert round(sum(request.output for request in trace.requests) / rows, 1) == outputs
    first = trace.requests[:2000]
    together = Instance("", DEFAULT_LIMITS, Rules(), cost_model("a100-llama2-7b"), tuple(map(at_once, first)))
    for load in ("0.5", "1", "2"):
        ended = optsched(capsys, "trace", str(TRACES / file), "--limit", "2000", "--load", load)
        assert (ended.code, ended.err) == (0, "")
        made = parse_instance(ended.out.encode(), cost_model)
        assert made == replace(together, name=made.name, requests=made.requests)
        assert tuple(map(at_once, made.requests)) == together.requests
        assert made.requests[-1].arrival_ps == int(volume_bound(together).value / Fraction(load))


def at_once(request: Request) -> Request:
    return replace(request, arrival_ps=0)
