"""The metrics of a schedule on several machines, or on one with a cache."""

from __future__ import annotations

from typing import Any

from optsched.check.cluster.replay import ClusterReplay
from optsched.check.schedule.metrics import Latencies, ratio
from optsched.check.schedule.over_time import weighted_distribution


def cluster_metrics(replay: ClusterReplay) -> dict[str, Any]:
    """Return all objectives and metrics of a complete legal replay, each ratio rounded once."""
    requests, record, totals = replay.instance.requests, replay.record, replay.record.totals
    states = [record.states[index] for index in range(len(requests))]
    loads = [machine.load_ps for machine in replay.machines]
    size = replay.instance.links.kv_bytes
    latencies = Latencies(
        requests,
        [state.first_token_ps - state.request.arrival_ps for state in states],
        [state.last_token_ps - state.request.arrival_ps for state in states],
        max(machine.end_ps for machine in replay.machines) - min(request.arrival_ps for request in requests),
        weighted_distribution(record.gaps, record.repeated_gaps),
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
