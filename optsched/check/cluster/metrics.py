"""The metrics of a schedule on several machines, or on one with a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optsched.check.cluster.record import Totals
from optsched.check.cluster.replay import ClusterReplay
from optsched.check.schedule.metrics import Latencies, ratio
from optsched.check.schedule.over_time import Progression, weighted_distribution
from optsched.model.instance import Request


@dataclass(frozen=True)
class Outcome:
    """A complete legal replay, as the metrics see it.

    ``first`` and ``last`` are when each request has its first and its last token, ``loads`` the sums of the batch times
    of each machine, ``end_ps`` the end of the last batch, ``gaps`` times between two tokens of a request, and
    ``kv_bytes`` the bytes of a token's KV.
    """

    requests: Sequence[Request]
    first: Sequence[int]
    last: Sequence[int]
    loads: list[int]
    end_ps: int
    totals: Totals
    gaps: Mapping[int, int]
    repeated_gaps: Sequence[Progression] = ()
    kv_bytes: int | None = None


def outcome_of(replay: ClusterReplay) -> Outcome:
    """Return what a replay has found."""
    requests, record = replay.instance.requests, replay.record
    states = [record.states[index] for index in range(len(requests))]
    return Outcome(
        requests,
        [state.first_token_ps for state in states],
        [state.last_token_ps for state in states],
        [machine.load_ps for machine in replay.machines],
        max(machine.end_ps for machine in replay.machines),
        record.totals,
        record.gaps,
        record.repeated_gaps,
        replay.instance.links.kv_bytes,
    )


def cluster_metrics(outcome: Outcome) -> dict[str, Any]:
    """Return all objectives and metrics, each ratio rounded once."""
    requests, totals, loads, size = outcome.requests, outcome.totals, outcome.loads, outcome.kv_bytes
    latencies = Latencies(
        requests,
        [end - request.arrival_ps for end, request in zip(outcome.first, requests, strict=True)],
        [end - request.arrival_ps for end, request in zip(outcome.last, requests, strict=True)],
        outcome.end_ps - min(request.arrival_ps for request in requests),
        weighted_distribution(outcome.gaps, outcome.repeated_gaps),
    )
    return {
        "objectives": latencies.objectives() | {"max_load": max(loads)},
        "batches": totals.batches,
        "evictions": totals.evictions,
        "recomputed_tokens": totals.recomputed_tokens,
        "hit_tokens": totals.hit_tokens,
        "computed_tokens": totals.computed_tokens,
        "prefill_tokens": totals.prefill_tokens,
        "hit_rate": ratio(totals.hit_tokens, totals.hit_tokens + totals.prefill_tokens),
        "saved_ps": totals.saved_ps,
        "hit_time_rate": ratio(totals.saved_ps, totals.saved_ps + sum(loads)),
        "load_ps": loads,
        "imbalance": ratio(max(loads) * len(loads), sum(loads)),
        "moves": totals.moves,
        "moved_tokens": totals.moved_tokens,
        "moved_bytes": None if size is None else size * totals.moved_tokens,
        **latencies.metrics(),
    }
