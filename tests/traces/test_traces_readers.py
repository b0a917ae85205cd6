"""Every format's quirks, and every kind of bad row, in excerpts written by hand; then the real files' own figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from statistics import correlation, fmean, median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import HERE, SHARED

from optsched.model.domain import MAX_TOKENS
from optsched.model.errors import InputError
from optsched.model.instance import Request
from optsched.traces.rows import Rows, TraceRow, time_ps
from optsched.traces.sources import read_rows
from optsched.traces.trace import READERS, make_trace, read_trace

TOKENS = f"an integer from 1 to {MAX_TOKENS}"
TIME = "a number from 0 to 1000000000000"

BURSTGPT_1 = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,0,0,0,API log
45,GPT-4,10,3,13,API log
45,GPT-4,11,3,14,API log
"""
BURSTGPT_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.5,,0,ChatGPT,36,29,65,API log
"""
VIDUR_LENGTHS = """\
num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
3772,54,3826,69.85
2015,156,2171,12.91
"""
VIDUR_TIMES = """\
arrived_at,num_prefill_tokens,num_decode_tokens
0.0,374,44
4.1880000000000001,396,109
1e-06,879,55
"""
SHAREGPT = """\
num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio,num_predicted_decode_tokens
25,3,28,0.12,1
0,3,3,0,7
4,0,4,0,7
71,692,763,9.746478873239436,702
"""
MOONCAKE = """\
{"timestamp": 3000, "input_length": 512, "output_length": 5, "hash_ids": [0]}
{"timestamp": 3000, "input_length": 513, "output_length": 1, "hash_ids": [0, 7]}
{"timestamp": 0, "input_length": 1, "output_length": 2, "hash_ids": [9]}
"""


def rows_of(text: str, style: str) -> tuple[list[tuple[int, int, int]], list[str]]:
    found = READERS[style](text)
    return [(row.arrival_ps, row.input, row.output) for row in found.rows], [str(error) for error in found.bad]


# Tables ----------------------------------------------------------------------------------------------------


def test_burstgpt_names_failed_requests() -> None:
    rows, bad = rows_of(BURSTGPT_1, "burstgpt")
    assert rows == [(5 * 10**12, 472, 18), (45 * 10**12, 10, 3), (45 * 10**12, 11, 3)]
    assert bad == [
        "line 3: Request tokens: got '0', expected an integer ≥ 1; without input and output, the request failed"
    ]


def test_burstgpt_3_has_more_columns_and_starts_late() -> None:
    rows, bad = rows_of(BURSTGPT_3, "burstgpt")
    assert rows == [(19_440_110 * 10**12, 906, 446), (19_440_161_500 * 10**9, 36, 29)]
    assert bad == []
    assert read_trace(BURSTGPT_3, "burstgpt").requests == (
        Request(906, 446),
        Request(36, 29, arrival_ps=51_500 * 10**9),
    )


def test_requests_of_one_moment_keep_their_order() -> None:
    requests = read_trace(BURSTGPT_1, "burstgpt").requests
    assert [(request.arrival_ps, request.input) for request in requests] == [
        (0, 472),
        (40 * 10**12, 10),
        (40 * 10**12, 11),
    ]


def test_vidur_with_and_without_times() -> None:
    assert rows_of(VIDUR_LENGTHS, "vidur") == ([(0, 3772, 54), (0, 2015, 156)], [])
    assert rows_of(VIDUR_TIMES, "vidur") == ([(0, 374, 44), (4_188 * 10**9, 396, 109), (10**6, 879, 55)], [])


def test_sharegpt_keeps_predictions() -> None:
    found = READERS["sharegpt"](SHAREGPT)
    assert found.rows == (TraceRow(0, 25, 3, predicted=1), TraceRow(0, 71, 692, predicted=702))
    assert [str(error) for error in found.bad] == [
        f"line 3: num_prefill_tokens: got '0', expected {TOKENS}",
        f"line 4: num_decode_tokens: got '0', expected {TOKENS}",
    ]
    assert read_trace(SHAREGPT, "sharegpt").requests[1] == Request(71, 692, predicted_output=702)


@pytest.mark.parametrize(
    ("style", "text", "line", "complaint"),
    [
        ("burstgpt", BURSTGPT_1, "-1,A,1,1,2,L", f"Timestamp: got '-1', expected {TIME}"),
        ("burstgpt", BURSTGPT_1, ",A,1,1,2,L", f"Timestamp: got '', expected {TIME}"),
        ("burstgpt", BURSTGPT_1, "nan,A,1,1,2,L", f"Timestamp: got 'nan', expected {TIME}"),
        ("burstgpt", BURSTGPT_1, "1e999999999,A,1,1,2,L", f"Timestamp: got '1e999999999', expected {TIME}"),
        ("burstgpt", BURSTGPT_1, "1,A,0,4,4,L", f"Request tokens: got '0', expected {TOKENS}"),
        ("burstgpt", BURSTGPT_1, "1,A,4,0,4,L", f"Response tokens: got '0', expected {TOKENS}"),
        ("burstgpt", BURSTGPT_1, "1,A,4,-1,3,L", f"Response tokens: got '-1', expected {TOKENS}"),
        ("burstgpt", BURSTGPT_1, "1,A,4,5,6,L", "Total tokens: got '6', expected 9, input and output together"),
        ("burstgpt", BURSTGPT_1, "1,A,4,5", "got '1,A,4,5', expected 6 columns"),
        ("burstgpt", BURSTGPT_1, "", "got '', expected 6 columns"),
        ("vidur", VIDUR_LENGTHS, "1.5,2,3.5,1", f"num_prefill_tokens: got '1.5', expected {TOKENS}"),
        ("vidur", VIDUR_LENGTHS, "1,2,4,2", "num_total_tokens: got '4', expected 3, input and output together"),
        ("vidur", VIDUR_TIMES, "soon,2,3", f"arrived_at: got 'soon', expected {TIME}"),
        ("sharegpt", SHAREGPT, "1,2,3,2,0", f"num_predicted_decode_tokens: got '0', expected {TOKENS}"),
        ("sharegpt", SHAREGPT, "1,2,3,2,", f"num_predicted_decode_tokens: got '', expected {TOKENS}"),
    ],
)
def test_bad_lines_of_tables(style: str, text: str, line: str, complaint: str) -> None:
    good, before = rows_of(text, style)
    rows, bad = rows_of(f"{text}{line}\n", style)
    assert rows == good
    assert bad == [*before, f"line {len(text.splitlines()) + 1}: {complaint}"]


@pytest.mark.parametrize("style", ["burstgpt", "vidur", "sharegpt"])
@pytest.mark.parametrize("header", ["", "a,b", "num_prefill_tokens,num_decode_tokens,num_decode_tokens"])
def test_what_is_no_table_of_the_format(style: str, header: str) -> None:
    with pytest.raises(InputError) as raised:
        read_trace(f"{header}\n1,2,3\n", style)
    assert str(raised.value).startswith(f"line 1: got {header!r}, expected ")


def test_lines_may_end_in_cr_lf_or_nothing() -> None:
    for text in (BURSTGPT_3.replace("\n", "\r\n"), BURSTGPT_3.rstrip("\n")):
        assert rows_of(text, "burstgpt") == rows_of(BURSTGPT_3, "burstgpt")


@given(st.integers(0, 10**24 - 1))
def test_times_are_read_exactly(ps: int) -> None:
    assert time_ps(f"{ps // 10**12}.{ps % 10**12:012}", "t") == ps


@pytest.mark.parametrize("value", [True, None, [], {}, "1/2", "inf", "sNaN", "", 10**40, -1])
def test_what_is_no_time(value: object) -> None:
    with pytest.raises(InputError, match=f"t: got .*, expected {TIME}"):
        time_ps(value, "t")


# JSON lines ------------------------------------------------------------------------------------------------


def test_mooncake_counts_milliseconds() -> None:
    assert rows_of(MOONCAKE, "mooncake") == ([(3 * 10**12, 512, 5), (3 * 10**12, 513, 1), (0, 1, 2)], [])


def mooncake(**changes: object) -> str:
    entry = {"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]} | changes
    return json.dumps({name: value for name, value in entry.items() if value is not None})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (mooncake(timestamp=None), "timestamp: got nothing, expected this field"),
        (mooncake(timestamp=-3), f"timestamp: got -3, expected {TIME}"),
        (mooncake(timestamp=-0.5), f"timestamp: got -0.5, expected {TIME}"),
        (mooncake(timestamp=[]), f"timestamp: got [], expected {TIME}"),
        (mooncake(input_length=0), f"input_length: got 0, expected {TOKENS}"),
        (mooncake(input_length="513"), f"input_length: got '513', expected {TOKENS}"),
        (mooncake(output_length=True), f"output_length: got true, expected {TOKENS}"),
        (mooncake(output_length=MAX_TOKENS + 1), f"output_length: got {MAX_TOKENS + 1}, expected {TOKENS}"),
        (mooncake(hash_ids=[0]), "hash_ids: got 1 blocks, expected 2, one for every 512 input tokens"),
        (mooncake(hash_ids=[0, 1, 2]), "hash_ids: got 3 blocks, expected 2, one for every 512 input tokens"),
        (mooncake(hash_ids=[0, "1"]), "hash_ids[1]: got '1', expected an integer"),
        (mooncake(hash_ids=[0.5, 1]), "hash_ids[0]: got 0.5, expected an integer"),
        (mooncake(hash_ids=7), "hash_ids: got 7, expected a list"),
        (mooncake(hash_ids=None), "hash_ids: got nothing, expected this field"),
        (
            mooncake()[:-1] + ', "output_length": 9}',
            "output_length: got the same key twice, expected each key once in an object",
        ),
        (mooncake(timestamp=1)[:-1] + ', "x": 1e999}', "x: got 1e999, expected a finite number"),
        ("[1, 2]", "got [1, 2], expected a JSON object"),
        ("1.5", "got 1.5, expected a JSON object"),
        ("{", "got '{', expected a JSON object"),
        ("", "got '', expected a JSON object"),
        ("9" * 5000, "got '99999999999999999999999999999…99999999999999', expected a JSON object"),
        ("[" * 100_000, "got '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[…[[[[[[[[[[[[[[', expected a JSON object"),
    ],
)
def test_bad_lines_of_mooncake(line: str, complaint: str) -> None:
    rows, bad = rows_of(f"{MOONCAKE}{line}\n{mooncake()}", "mooncake")
    assert len(rows) == 4
    assert bad == [f"line 4: {complaint}"]


def conversation(*requests: object) -> str:
    return json.dumps({"id": "c", "block_size": 64, "requests": requests})


def request(t: object, inputs: object, outputs: object, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": inputs, "out": outputs} | more


AGENTIC = "\n".join(
    [
        conversation(
            request(0.0, 100, 10),
            {"t": 5.5, "type": "subagent", "requests": [request(0.0, 20, 2), request(4.125, 30, 3)]},
            request(7, 110, 11),
        ),
        conversation(request(2, 200, 20), request(2.5, 210, 21)),
    ]
)


def test_agents_nest_and_have_no_common_clock() -> None:
    """Times of a nested entry's requests are relative to the entry's own."""
    found = READERS["agentic"](AGENTIC)
    assert found.bad == ()
    assert found.rows == (
        TraceRow(0, 100, 10, conversation=1),
        TraceRow(5_500 * 10**9, 20, 2, conversation=1),
        TraceRow(9_625 * 10**9, 30, 3, conversation=1),
        TraceRow(7_000 * 10**9, 110, 11, conversation=1),
        TraceRow(2_000 * 10**9, 200, 20, conversation=2),
        TraceRow(2_500 * 10**9, 210, 21, conversation=2),
    )


def test_conversations_start_where_they_are_put() -> None:
    """The first request of a conversation arrives at its start."""
    trace = make_trace(READERS["agentic"](AGENTIC), starts=iter([10**12, 8 * 10**12]))
    seconds = [(request.arrival_ps / 10**12, request.input) for request in trace.requests]
    assert seconds == [(0, 100), (5.5, 20), (7, 110), (7, 200), (7.5, 210), (9.625, 30)]
    first = make_trace(READERS["agentic"](AGENTIC), limit=1, starts=iter([0]))
    assert [request.input for request in first.requests] == [100]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (conversation(request(0, 1, 0)), f"requests[0].out: got 0, expected {TOKENS}"),
        (conversation(request(0, 1.5, 1)), f"requests[0].in: got 1.5, expected {TOKENS}"),
        (conversation(request(-1, 1, 1)), f"requests[0].t: got -1, expected {TIME}"),
        (conversation(request(None, 1, 1)), f"requests[0].t: got null, expected {TIME}"),
        (conversation({"t": 0, "type": "n", "in": 3}), "requests[0].out: got nothing, expected this field"),
        (conversation({"type": "n", "in": 3, "out": 3}), "requests[0].t: got nothing, expected this field"),
        (conversation(7), "requests[0]: got 7, expected a JSON object"),
        (conversation({"t": 0, "type": "subagent"}), "requests[0].requests: got nothing, expected this field"),
        (
            conversation({"t": 0, "type": "subagent", "requests": [request(0, 1, -1)]}),
            f"requests[0].requests[0].out: got -1, expected {TOKENS}",
        ),
        ('{"requests": 3}', "requests: got 3, expected a list"),
        ("{}", "requests: got nothing, expected this field"),
        ("hello", "got 'hello', expected a JSON object"),
    ],
)
def test_bad_requests_of_agents(line: str, complaint: str) -> None:
    rows, bad = rows_of(f"{AGENTIC}\n{line}", "agentic")
    assert len(rows) == 6
    assert bad == [f"line 3: {complaint}"]


def test_a_bad_request_leaves_the_others_of_its_conversation() -> None:
    rows, bad = rows_of(conversation(request(0, 1, 1), request(1, 2, 0), request(2, 3, 3)), "agentic")
    assert [row[1] for row in rows] == [1, 3]
    assert bad == [f"line 1: requests[1].out: got 0, expected {TOKENS}"]


# Any text --------------------------------------------------------------------------------------------------

EXCERPTS = (
    ("burstgpt", BURSTGPT_1),
    ("vidur", VIDUR_TIMES),
    ("sharegpt", SHAREGPT),
    ("mooncake", MOONCAKE),
    ("agentic", AGENTIC),
)
SCRAPS = st.sampled_from(
    ["", "-", "0", "1e9", "NaN", "null", "{}", "[", '"', ",", "\n", "\r", "\u2028", "é", "9" * 5000]
)


@pytest.mark.slow
@given(
    st.sampled_from(EXCERPTS), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5), SCRAPS | st.text()), max_size=3)
)
def test_any_text_is_read_or_refused(excerpt: tuple[str, str], changes: list[tuple[float, int, str]]) -> None:
    """Nothing but `InputError` is ever raised, every bad row names its line, and no line is lost."""
    style, text = excerpt
    for part, length, scrap in changes:
        position = int(part * len(text))
        text = text[:position] + scrap + text[position + length :]
    lines = len(StringIO(text, newline=None).readlines())
    try:
        found = READERS[style](text)
    except InputError:  # no such header
        assert style not in {"mooncake", "agentic"}
        return
    named = {int(str(error).split()[1].rstrip(":")) for error in found.bad}
    assert named <= set(range(1, lines + 1))
    if style != "agentic":
        header = 0 if style == "mooncake" else 1
        assert len(found.rows) + len(found.bad) == lines - header
    with suppress(InputError):
        make_trace(found)


# From rows to a trace --------------------------------------------------------------------------------------

any_rows = st.lists(
    st.builds(
        TraceRow, st.integers(0, 50), st.integers(1, 9), st.integers(1, 9), conversation=st.none() | st.integers(1, 3)
    ),
    min_size=1,
    max_size=12,
)


@given(any_rows, st.none() | st.integers(1, 12), st.lists(st.integers(0, 30), min_size=12, max_size=12))
def test_starts_move_conversations_and_single_requests_whole(
    rows: list[TraceRow], limit: int | None, gaps: list[int]
) -> None:
    starts = [sum(gaps[: k + 1]) for k in range(len(gaps))]
    all_of_them = make_trace(Rows(tuple(rows), ()), None, starts).requests
    assert sorted((r.input, r.output) for r in all_of_them) == sorted((row.input, row.output) for row in rows)
    times = [r.arrival_ps for r in all_of_them]
    assert times[0] == 0
    assert times == sorted(times)
    spans = {key: [r.arrival_ps for r in rows if r.conversation == key] for key in {row.conversation for row in rows}}
    alone = len(spans.pop(None, []))
    groups = alone + len(spans)
    longest = max((max(span) - min(span) for span in spans.values()), default=0)
    assert starts[groups - 1] - starts[0] <= times[-1] <= starts[groups - 1] - starts[0] + longest
    # A limit takes the first of them, and looks at no more starts than it needs.
    assert (
        make_trace(Rows(tuple(rows), ()), limit, iter(starts[: min(groups, limit or groups)])).requests
        == all_of_them[:limit]
    )


def test_too_few_starts() -> None:
    with pytest.raises(InputError) as raised:
        read_trace(BURSTGPT_1, "burstgpt", starts=[0, 1])
    assert str(raised.value) == "arrivals: got 2 arrival times, expected at least 3, or a lower limit"
    assert len(read_trace(BURSTGPT_1, "burstgpt", 2, starts=[0, 1]).requests) == 2


# The real files --------------------------------------------------------------------------------------------

SHAREGPT_FILE = "sharegpt_predicted/sharegpt-val-10k-predicted-len_rows1-26667.csv.gz"
ARXIV = "vidur/processed_traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz"


def described(values: Iterator[int]) -> tuple[float, int, float, int]:
    """Return mean, least, median, and most; halves are rounded up."""
    numbers = list(values)
    return round(fmean(numbers), 1), min(numbers), int(median(numbers) + 0.5), max(numbers)


@pytest.mark.slow
@HERE
@pytest.mark.parametrize(
    ("file", "style", "count", "bad", "span_s", "inputs", "outputs"),
    [
        (
            "burstgpt/BurstGPT_1_rows1-400.csv",
            "burstgpt",
            383,
            17,
            37269,
            (543.6, None, 353, 2126),
            (288.8, None, 238, 2019),
        ),
        (
            "burstgpt/BurstGPT_3_rows1-267.csv",
            "burstgpt",
            266,
            1,
            38490,
            (686.7, None, 293, 25085),
            (175.8, None, 104, 1101),
        ),
        (
            "mooncake/conversation_trace.jsonl.gz",
            "mooncake",
            12031,
            0,
            3537,
            (12035.1, 891, 6909, 126195),
            (342.6, 1, 350, 2000),
        ),
        (ARXIV, "vidur", 28257, 0, 0, (2588.1, 1, 2730, 4054), (291.4, 5, 167, 4056)),
        (SHAREGPT_FILE, "sharegpt", 26660, 7, 0, (254.4, None, 35, 3972), (323.5, None, 282, 1854)),
        (
            "kv_cache_tester/agentic_coding_traces_a.jsonl.gz",
            "agentic",
            6952,
            1,
            84154,
            (None, 8868, None, 864156),
            (None, None, 205, 12625),
        ),
    ],
)
def test_figures_of_the_data(
    file: str, style: str, count: int, bad: int, span_s: int, inputs: tuple[Any, ...], outputs: tuple[Any, ...]
) -> None:
    """Rows, bad rows, span, and of both lengths mean, least, median and most; None where bad rows are counted in."""
    found = read_rows(str(SHARED / file), style)
    trace = make_trace(found)
    assert (len(trace.requests), len(trace.bad)) == (count, bad)
    assert trace.requests[-1].arrival_ps == pytest.approx(span_s * 10**12, abs=5 * 10**11)
    lengths = ((r.input for r in trace.requests), (r.output for r in trace.requests))
    for expected, values in zip((inputs, outputs), map(described, lengths), strict=True):
        assert values == tuple(own if said is None else said for said, own in zip(expected, values, strict=True))


@HERE
def test_mooncakes_ticks() -> None:
    trace = make_trace(read_rows(str(SHARED / "mooncake/conversation_trace.jsonl.gz"), "mooncake"))
    assert len({request.arrival_ps for request in trace.requests}) == 1180


@HERE
def test_predictions_of_sharegpt() -> None:
    rows = read_rows(str(SHARED / SHAREGPT_FILE), "sharegpt").rows
    pairs = [(row.output, row.predicted) for row in rows if row.predicted is not None]
    assert len(pairs) == len(rows)
    assert fmean(predicted for _, predicted in pairs) == pytest.approx(329.9, abs=0.1)  # of all rows
    assert max(predicted for _, predicted in pairs) == 1006
    assert round(fmean(abs(predicted - output) for output, predicted in pairs), 1) == 28.0
    assert round(correlation(*zip(*pairs, strict=True)), 3) == 0.956
    assert round(fmean(predicted < output for output, predicted in pairs), 3) == 0.296


@pytest.mark.slow
@HERE
def test_conversations_of_agents() -> None:
    found = read_rows(str(SHARED / "kv_cache_tester/agentic_coding_traces_a.jsonl.gz"), "agentic")
    assert [str(error) for error in found.bad] == [f"line 46: requests[10].out: got 0, expected {TOKENS}"]
    inputs = [*(row.input for row in found.rows), 260_358]  # the bad one's
    assert (round(fmean(inputs), 1), median(inputs)) == (98862.4, 85952)
    assert round(sum(row.output for row in found.rows) / 6953, 1) == 414.8
    last: dict[int | None, int] = {}
    for row in found.rows:
        last[row.conversation] = max(last.get(row.conversation, 0), row.arrival_ps)
    assert len(last) == 143
    assert round(fmean(last.values()) / 10**12) == 5312
    assert round(median(last.values()) / 10**12) == 3028


@HERE
def test_splitwise_traces_are_azures(tmp_path: Path) -> None:
    """Vidur's ``splitwise_conv`` has Azure's rows, with seconds since the first."""
    azure = make_trace(read_rows(str(SHARED / "azure_llm_2023/AzureLLMInferenceTrace_conv.csv"), "azure"), limit=50)
    lines = [f"{r.arrival_ps / 10**12},{r.input},{r.output}" for r in azure.requests]
    file = tmp_path / "splitwise_conv.csv"
    file.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *lines]))
    again = make_trace(read_rows(str(file), "vidur"))
    assert [(r.input, r.output) for r in again.requests] == [(r.input, r.output) for r in azure.requests]
    for ours, theirs in zip(again.requests, azure.requests, strict=True):
        assert abs(ours.arrival_ps - theirs.arrival_ps) <= 1
