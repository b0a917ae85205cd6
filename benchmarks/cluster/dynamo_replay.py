"""Dynamo's offline replay: several vLLM-like engines behind a router, per request.

A pass takes its prefill time if it prefills plus its decode time if it decodes. In a run whose router is not round
robin the machines are those that it chose, as it breaks ties at random without a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.mooncake_rows import TraceRow, assign, read_trace
from cluster.outcome import Outcome, Sources, compared
from cluster.prompts import prefix_tree
from cluster.vllm_prefix import VLLM_CACHE
from optsched.cache.blocks import CacheSetting
from optsched.model.cost import CostModel
from optsched.model.errors import InputError
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.schedule import Schedule
from optsched.policies.vllm import VLLM_V1
from optsched.simulator.engine import run_policy

_SAME_MS = 1e-3
_MS = 10**9
"""ps."""


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
    tree, paths = prefix_tree([row.prompt for row in rows])
    requests = tuple(
        Request(row.input, row.output, round(row.time_ms * _MS), prefix=path)
        for row, path in zip(rows, paths, strict=True)
    )
    size, budget = run["block_size"], run["max_num_batched_tokens"]
    limits = Limits(run["num_gpu_blocks"] * size, budget, budget, run["max_num_seqs"], size)
    whole = Instance(run["trace"], limits, Rules(), CostModel(0, 0), requests, prefixes=tree, cache=VLLM_CACHE)
    cost = _Passes(run)
    for machine in sorted(set(machines)):
        mine = [index for index, chosen in enumerate(machines) if chosen == machine]
        instance = whole.on(0, mine)
        schedule = run_policy(instance, VLLM_V1, cost=cost, setting=CacheSetting("vllm"))
        _note(schedule, [served[index] for index in mine], [rows[index].input for index in mine])
    return served


def _note(schedule: Schedule, served: Sequence[_Served], prompts: Sequence[int]) -> None:
    """Note what a schedule does with the requests of its machine."""
    held = [0] * len(prompts)
    for batch in schedule.batches:
        for index in batch.evict:
            held[index] = 0
        hits = dict(batch.hits)
        for index, count in batch.run:
            each = served[index]
            if each.admitted < 0:
                each.admitted, each.reused = batch.start_ps / _MS, hits.get(index, 0)
            held[index] = (held[index] or hits.get(index, 0)) + count * batch.repeat
            each.last = batch.end_ps / _MS
            if each.first < 0 and held[index] >= prompts[index]:
                each.first = each.last


class _Passes:
    """The time of a pass, from the times of its new prefill tokens and of its decodes' context tokens.

    Prefill tokens are the requests times the difference of their mean ends and starts, both in whole tokens; each of
    the two times is rounded to ns.
    """

    def __init__(self, run: Mapping[str, Any]) -> None:
        timing = run["timing"]
        capacity = run["num_gpu_blocks"] * run["block_size"]
        self._prefill: Callable[[int], float]
        self._decode: Callable[[int], float]
        if timing["type"] == "fixed":
            self._prefill, self._decode = lambda _: timing["prefill_ms"], lambda _: timing["decode_ms"]
        elif timing["type"] == "polynomial":
            self._prefill = lambda tokens: 4.209989e-7 * tokens**2 + 1.518344e-2 * tokens + 16.50142
            self._decode = lambda context: max(
                1.0, -25.74 * (context / capacity) ** 2 + 54.01 * context / capacity + 5.74
            )
        else:
            raise InputError("timing.type", timing["type"], "fixed or polynomial")

    def batch_ps(self, tokens: int, decodes: int, decode_kv_tokens: int, prefills: Iterable[tuple[int, int]]) -> int:
        """Return the time of a pass in ps."""
        steps, total = list(prefills), 0.0
        if count := len(steps):
            starts, ends = sum(start for _, start in steps), sum(start + run for run, start in steps)
            total += round(self._prefill(count * (ends // count - starts // count)), 6)
        if decodes:
            total += round(self._decode(decode_kv_tokens + decodes), 6)
        return round(total * 1_000_000) * 1000
