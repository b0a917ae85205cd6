"""Dynamo's offline replay: several vLLM-like engines behind a router, per request.

A pass takes its prefill time if it prefills plus its decode time if it decodes. In a run whose router is not round
robin the machines are those that it chose, as it breaks ties at random without a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.mooncake_rows import TraceRow, assign, read_trace
from cluster.outcome import Outcome, Sources, compared
from cluster.vllm_engine import Batch, Job, VllmEngine
from optsched.cache.contents import BlockNames
from optsched.model.errors import InputError

Timing = Callable[[Batch], float]
"""The time of a pass, in ms."""
_SAME_MS = 1e-3


def recognises(document: Any) -> bool:
    """Whether a document is such a run."""
    return isinstance(document, dict) and {"per_request", "num_gpu_blocks", "timing"} <= document.keys()


@dataclass
class _Served:
    """What is noted of a request, in ms."""

    admitted: float = -1.0
    first: float = -1.0
    last: float = -1.0
    reused: int = -1


def outcomes(run: Mapping[str, Any], sources: Sources) -> Iterator[Outcome]:
    """Replay a run."""
    theirs = run["per_request"]
    name, _, count = run["trace"].partition(", first ")
    rows = read_trace(sources.find(name))[: int(count)]
    places = assign(rows, [(each["arrival_time_ms"], each["input_length"], each["output_length"]) for each in theirs])
    by_row: list[Mapping[str, Any]] = [{}] * len(rows)
    for place, each in zip(places, theirs, strict=True):
        by_row[place] = each
    if run["router"] == "round_robin":
        machines = [index % run["workers"] for index in range(len(rows))]
    else:
        machines = [each["decode_worker_idx"] for each in by_row]
    served = _serve(run, rows, machines)
    hits = [
        (f"request {index}", (their["decode_worker_idx"], their["reused_input_tokens"]), (machine, our.reused))
        for index, (their, machine, our) in enumerate(zip(by_row, machines, served, strict=True))
    ]
    yield compared("", "hits", hits)
    yield compared("", "times", _times(by_row, served))


def _times(rows: Sequence[Mapping[str, Any]], served: Sequence[_Served]) -> Iterator[tuple[str, object, object]]:
    """Compare the times of each request, which are equal within a microsecond: theirs are sums of floats."""
    for index, (row, our) in enumerate(zip(rows, served, strict=True)):
        theirs = row["first_admit_ms"], row["first_token_ms"], row["last_token_ms"]
        ours = our.admitted, our.first, our.last
        same = all(abs(their - mine) <= _SAME_MS for their, mine in zip(theirs, ours, strict=True))
        yield f"request {index}, admission, first and last token", theirs, theirs if same else ours


def _serve(run: Mapping[str, Any], rows: Sequence[TraceRow], machines: Sequence[int]) -> list[_Served]:
    served = [_Served() for _ in rows]
    names = BlockNames(run["block_size"])
    jobs = []
    for index, row in enumerate(rows):
        contents = names.of([*row.prompt, (("output", index), 0, row.output)])
        jobs.append((row.time_ms, Job(index, row.input, row.output, contents)))
    for machine in range(run["workers"]):
        engine = VllmEngine(
            run["num_gpu_blocks"], run["block_size"], run["max_num_batched_tokens"], run["max_num_seqs"]
        )
        mine = [job for job, chosen in zip(jobs, machines, strict=True) if chosen == machine]
        _run(engine, mine, _timing(run), served)
    return served


def _run(engine: VllmEngine, jobs: Sequence[tuple[float, Job]], timing: Timing, served: list[_Served]) -> None:
    """Serve the requests of one machine."""
    pending = list(jobs)[::-1]
    now = 0.0
    while pending or engine.busy:
        if not engine.busy:
            now = max(now, pending[-1][0])
        while pending and pending[-1][0] <= now:
            engine.add(pending.pop()[1])
        batch = engine.schedule()
        for index, found in batch.admitted:
            if served[index].admitted < 0:
                served[index].admitted, served[index].reused = now, found
        end = now + timing(batch)
        for job in engine.end(batch):
            if job.generated == 1:
                served[job.index].first = end
            if job.generated == job.output:
                served[job.index].last = end
        now = end


def _timing(run: Mapping[str, Any]) -> Timing:
    timing = run["timing"]
    if timing["type"] == "fixed":
        return _passes(lambda _: timing["prefill_ms"], lambda _: timing["decode_ms"])
    if timing["type"] == "polynomial":
        capacity = run["num_gpu_blocks"] * run["block_size"]
        return _passes(
            lambda tokens: 4.209989e-7 * tokens**2 + 1.518344e-2 * tokens + 16.50142,
            lambda context: max(1.0, -25.74 * (context / capacity) ** 2 + 54.01 * context / capacity + 5.74),
        )
    raise InputError("timing.type", timing["type"], "fixed or polynomial")


def _passes(prefill: Callable[[int], float], decode: Callable[[int], float]) -> Timing:
    """Return the time of a pass from the times of its new prefill tokens and of its decodes' context tokens.

    Prefill tokens are the requests times the difference of their mean ends and starts, both in whole tokens; each of
    the two times is rounded to ns.
    """

    def time_ms(batch: Batch) -> float:
        steps = list(zip(batch.run, batch.context, batch.decodes, strict=True))
        starts = [start for _, start, decodes in steps if not decodes]
        ends = [start + count for (_, count), start, decodes in steps if not decodes]
        contexts = [job.tokens for (job, _), _, decodes in steps if decodes]
        count = len(starts)
        total = 0.0
        if count:
            total += round(prefill(count * (sum(ends) // count - sum(starts) // count)), 6)
        return total + (round(decode(sum(contexts)), 6) if contexts else 0.0)

    return time_ms
