"""Dynamo's KV router: the cost of every machine that it chose, with its own choices replayed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from cluster.mooncake_rows import assign, read_trace
from cluster.outcome import Outcome, Sources, compared
from optsched.model.errors import InputError
from optsched.routers.router import RoutedRequest
from optsched.routers.scores import DynamoKv

_SETTINGS = re.compile(r"(\d+) workers.*?blocks of (\d+).*?first \d+ of (\S+\.jsonl)")
"""What only the sentence ``made_by`` mentions: machines, tokens of a block and trace."""


def recognises(document: Any) -> bool:
    """Whether a document is such a run."""
    return isinstance(document, dict) and "logit" in (document.get("decisions") or [{}])[0]


def outcomes(run: Mapping[str, Any], sources: Sources) -> Iterator[Outcome]:
    """Replay a run."""
    decisions = run["decisions"]
    if not (settings := _SETTINGS.search(run["made_by"])):
        raise InputError("made_by", run["made_by"], "'N workers, ... blocks of N, ... first N of FILE.jsonl'")
    machines, block = int(settings[1]), int(settings[2])
    rows = read_trace(sources.find(settings[3]))[: len(decisions)]
    places = assign(rows, [(each["arrival"], each["n"], each["o"]) for each in decisions])
    router = DynamoKv(machines, block, Random(0))
    # A request that has its first or last token when another arrives no longer counts.
    events: list[tuple[float, int, str, int]] = []
    for index, each in enumerate(decisions):
        events += [(each["arrival"], 1, "arrive", index), (each["first"], 0, "first", index)]
        events.append((each["last"], 0, "last", index))
    requests = [
        RoutedRequest(index, rows[place].input, rows[place].output, rows[place].prompt)
        for index, place in enumerate(places)
    ]

    def pairs() -> Iterator[tuple[str, object, object]]:
        for _, _, what, index in sorted(events):
            each, request = decisions[index], requests[index]
            machine = each["worker"]
            match what:
                case "first":
                    router.first_token(request, machine, 0, 0)
                case "last":
                    router.finished(request, machine, 0, 0, None)
                case _:
                    cached = int(each["cached_blocks"] * block)
                    yield f"decision {index}", each["logit"], router.cost(request, machine, cached)
                    router.sent(request, machine, cached)

    yield compared("", "costs", pairs())
