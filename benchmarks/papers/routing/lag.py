"""Event lag: what a router finds in caches of which it hears late.

Not of a paper: 1,000 requests of two of Preble's workloads as in the section of E2, at three quarters of its rates.
The router sees the machines, and learns what they cache, as they were some seconds before. A prompt that is prefilled
where its prefix is cached finds it, whether the router knew of it or not. `dynamo_kv` counts itself what it has sent,
and hears of ends late; `score_mix` sees nothing but the loads as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from optsched.methods.simulate import simulate
from optsched.model.cluster import ViewAge
from optsched.model.domain import replace
from optsched.traces.clusters import prefixed_instance
from optsched.traces.preble import draw_prefixed
from papers.finding import Finding
from papers.routing.e2 import LOADS
from papers.serving import COST, over_seeds

LAGS_S = (0, 0.5, 1, 2, 5)
_COUNT = 1000


@cache
def found(workload: str, router: str, lag_s: float, seed: int) -> tuple[float, float]:
    """Return the share of the prompt tokens that are found, in %, and the mean latency in s."""
    drawn = draw_prefixed(f"preble-{workload}", _COUNT, seed, 0.75 * LOADS[workload][1])
    instance = replace(prefixed_instance(workload, drawn, COST), view=ViewAge(delay_ps=round(lag_s * 10**12)))
    metrics = simulate(instance, "vllm_v1", router=router, seed=seed).metrics
    assert metrics is not None
    hits = metrics["hit_tokens"]
    return 100 * hits / (hits + metrics["prefill_tokens"]), metrics["e2e_ps"]["mean"] / 1e12


def findings() -> Iterator[Finding]:
    """Measure hits and latencies at several lags."""
    for workload in ("toolbench", "embodied-agent"):
        for router in ("dynamo_kv", "score_mix"):
            for lag_s in LAGS_S:
                for place, label in enumerate(("prompt tokens found, %", "mean latency, s")):
                    values = over_seeds(partial(_value, workload, router, lag_s, place))
                    claim = f"{router}: {label}, lag of {lag_s:g} s, {workload}"
                    yield Finding(claim, "experiment", "not reported", values)
            values = over_seeds(partial(_lost, workload, router))
            claim = f"{router}: points of hits lost at a lag of 5 s, {workload}"
            yield Finding(claim, "experiment", "not reported", values)


def _value(workload: str, router: str, lag_s: float, place: int, seed: int) -> float:
    return found(workload, router, lag_s, seed)[place]


def _lost(workload: str, router: str, seed: int) -> float:
    return found(workload, router, LAGS_S[0], seed)[0] - found(workload, router, LAGS_S[-1], seed)[0]
