"""splitwise-sim's token JSQ: the instance of every prompt and of its decode, and the times of KV transfers.

Loads are counted from the logged ends of tasks: a request counts its prompt until it is computed and 1 until its last
token. With transfers the simulator's scheduler never adds to these loads, it only takes away (`KVTokenJSQScheduler`).
The log lacks model and bandwidth: of its two models, at 200 GiB/s or ten times that with its 90 % of overlap, it is
what comes nearest to the first transfer; all others must fit.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.outcome import Outcome, Sources, compared
from optsched.model.errors import InputError
from optsched.routers.router import RoutedRequest
from optsched.routers.simple import Least, pending_tokens
from optsched.routers.views import Snapshot

_KV_BYTES = (2 * 8192 * 80 * 2, 2 * 14336 * 70 * 2)
"""Of one token of Llama-2-70B and of BLOOM-176B in FP16, as there: all heads."""
_BANDWIDTHS = (200 * 2**30, 10 * 200 * 2**30)
_TOKEN_S = [size / bandwidth for size in _KV_BYTES for bandwidth in _BANDWIDTHS]

_Row = Mapping[str, str]


def recognises(document: Any) -> bool:
    """Whether a table is a run's list of nodes, or belongs to one: its trace, or its requests."""
    return isinstance(document, list) and not {"node_type", "arrival_timestamp", "ttft_times"}.isdisjoint(document[0])


def outcomes(rows: Sequence[_Row], sources: Sources) -> Iterator[Outcome]:
    """Replay a run; its trace and its requests are no run."""
    if "node_type" not in rows[0]:
        return
    nodes: dict[str, dict[int, _Row]] = {"PROMPT": {}, "TOKEN": {}, "KVCacheTransfer": {}}
    for row in rows:
        nodes[_kind(row)][int(float(row["request_id"]))] = row
    requests = _requests(sources, len(nodes["PROMPT"]))
    transfers = nodes["KVCacheTransfer"]
    yield compared("", "assignments", _assignments(requests, nodes, added=not transfers))
    if transfers:
        yield compared("", "transfer times", _transfers(requests, nodes))


def _kind(row: _Row) -> str:
    return "KVCacheTransfer" if "KV" in row["node_type"] or "Flow" in row["node_type"] else row["node_type"]


def _requests(sources: Sources, count: int) -> list[tuple[float, int]]:
    """Return arrival and prompt of each request, from the trace beside the run."""
    for folder in (sources.folder, *(data / "cluster_runs" for data in sources.data)):
        for path in sorted(folder.rglob("*.csv")):
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            if len(rows) >= count and {"arrival_timestamp", "prompt_size"} <= rows[0].keys():
                return [(float(row["arrival_timestamp"]), int(row["prompt_size"])) for row in rows[:count]]
    where = str(sources.folder)
    raise InputError("", where, f"a trace of {count} requests (arrival_timestamp, prompt_size) beside the run")


def _number(runner: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", runner)[-1:])


def _assignments(
    requests: Sequence[tuple[float, int]], nodes: Mapping[str, Mapping[int, _Row]], added: bool
) -> Iterator[tuple[str, object, object]]:
    """Decide on each request in the order of arrival; ``added``: what is assigned counts until it is done."""
    pools = {kind: sorted({row["runner"] for row in nodes[kind].values()}, key=_number) for kind in ("PROMPT", "TOKEN")}
    pending = dict.fromkeys((runner for pool in pools.values() for runner in pool), 0)
    ends = [
        (float(row["completion_timestamp"]), row["runner"], requests[index][1] if kind == "PROMPT" else 1)
        for kind in pools
        for index, row in nodes[kind].items()
    ]
    ends = sorted(ends)[::-1]
    router = Least(pending_tokens)
    for arrival, index in sorted((arrival, index) for index, (arrival, _) in enumerate(requests)):
        while ends and ends[-1][0] <= arrival:
            _, runner, tokens = ends.pop()
            pending[runner] -= tokens
        prompt = requests[index][1]
        theirs = {kind: nodes[kind][index]["runner"] for kind in pools}
        ours: dict[str, str] = {}
        for kind, pool in pools.items():
            if kind == "TOKEN" and added:
                ours[kind] = ours["PROMPT"]
                continue
            views = [Snapshot(place, pending_tokens=pending[runner]) for place, runner in enumerate(pool)]
            ours[kind] = pool[router.route(RoutedRequest(index, prompt, 1, ()), views)]
        yield f"request {index}", theirs, ours
        if added:
            pending[theirs["PROMPT"]] += prompt
            pending[theirs["TOKEN"]] += 1


def _transfers(
    requests: Sequence[tuple[float, int]], nodes: Mapping[str, Mapping[int, _Row]]
) -> Iterator[tuple[str, object, object]]:
    """Compare start and end of each transfer: it starts when the prompt is computed."""
    token_s = 0.0
    for index, row in nodes["KVCacheTransfer"].items():
        start, end = float(row["start_timestamp"]), float(row["completion_timestamp"])
        tokens = requests[index][1]
        if not token_s:
            token_s = min(_TOKEN_S, key=lambda each: abs(end - start - tokens * each))
        ready = float(nodes["PROMPT"][index]["completion_timestamp"])
        yield (
            f"request {index}",
            (round(start, 9), round(end, 9)),
            (round(ready, 9), round(ready + tokens * token_s, 9)),
        )
