"""E2 (Preble, sections 4.2 and 5).

Its five workloads on four machines with 198,528 KV tokens each, Poisson arrivals at about the rate that round robin
just serves; 300 to 2,000 requests. Llama-2-7B on one A100 (paper: Mistral 7B on an A6000, whose KV is a quarter: the
tokens are those of the paper's machine); the cache keeps all blocks of 16 tokens, drops the least recently used ones,
and `vllm_v1` forms batches of at most 8,192 tokens. The oracle divides key portions by a hash (section 5.2: "e.g. with
the hash values of tokens").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any
from zlib import crc32

from optsched.library import load_instance
from optsched.methods.simulate import simulate
from optsched.model.instance import Instance
from optsched.routers.e2 import E2, E2Options
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterFactory, RouterSetting
from optsched.traces.clusters import MIX_GAPS, azure_mix, prefixed_instance
from optsched.traces.preble import draw_prefixed
from papers.finding import Finding
from papers.serving import COST, SEEDS, over_seeds

LOADS: Mapping[str, tuple[int, float]] = MappingProxyType(
    {
        "toolbench": (2000, 60),
        "embodied-agent": (2000, 70),
        "video-qa": (600, 3.5),
        "loogle": (300, 1.3),
        "programming": (500, 6.4),
        "toolbench-zipf": (2000, 60),
    }
)
"""Workload → requests, and requests/s."""
FIVE = tuple(LOADS)[:5]

_DECODES = (
    "Programming's outputs are the longest, and all machines cache its demonstrations: neither the oracles nor "
    "Preble's program gains over round robin by more than a few percent here, nor does E2 at half of the rate "
    "(rows)."
)
_TAIL = (
    "The slowest 1 % are among the first tenth of the requests, whose keys no machine has yet, whatever the router; at "
    "three quarters of the rate, where these do not queue, the gain is in the paper's range (rows)."
)
_SATURATED = "The gain depends on the rate, at which round robin just serves these requests (rows at half of the rate)."
_HASH = (
    "A hash divides the many keys of a draw, and finds each of them at one machine, where E2 copies keys to balance "
    "the load; on embodied-agent the oracle that knows all requests gains as much over E2 (rows of oracles)."
)
_STEP = (
    "A request that is sent to the least loaded machine computes its key there again, which pays here only with the "
    "step that follows: both together gain, by the product of the rows."
)
_FREE = (
    "Hardly a request waits at this rate, so that in most draws both orders make the same schedule (1 in the spread)."
)


class HashPartition(Router):
    """Sends all requests of a key to one machine, by a hash of its name."""

    def __init__(self, setting: RouterSetting) -> None:
        self._machines = setting.machines

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        return crc32(str(request.prompt[1][0]).encode()) % self._machines


def _with(options: E2Options, setting: RouterSetting) -> E2:
    return E2(setting, options)


ROUTERS: Mapping[str, str | RouterFactory] = MappingProxyType(
    {
        "round robin": "round_robin",
        "hash oracle": HashPartition,
        "load oracle": "oracle_partition",
        "E2": "e2",
        "program": "e2_code",
        "per request": partial(_with, E2Options(decode_share=None, rebalancing=False, autoscaling=False)),
        "rebalanced": partial(_with, E2Options(decode_share=None)),
        "no eviction cost": partial(_with, E2Options(eviction_cost=False)),
        "as printed": partial(_with, E2Options(as_printed=True)),
    }
)


def instance_of(workload: str, seed: int, times: float = 1) -> Instance:
    """Return requests of a workload at a multiple of its rate."""
    count, rate = LOADS[workload]
    return prefixed_instance(workload, draw_prefixed(f"preble-{workload}", count, seed, rate * times), COST)


@cache
def found(workload: str, router: str, seed: int, times: float = 1, policy: str = "vllm_v1") -> dict[str, Any]:
    """Return the metrics of a router."""
    return metrics_of(instance_of(workload, seed, times), router, seed, policy)


def metrics_of(instance: Instance, router: str, seed: int, policy: str = "vllm_v1") -> dict[str, Any]:
    """Return the metrics of a router on an instance."""
    metrics = simulate(instance, policy, router=ROUTERS[router], seed=seed).metrics
    assert metrics is not None
    return metrics


def gain(workload: str, share: str, before: str, after: str, seed: int, times: float = 1) -> float:
    """Return how many times the second router's latency is below the first's."""
    first, second = (found(workload, router, seed, times)["e2e_ps"][share] for router in (before, after))
    return float(first / second)


def early_among_slowest(workload: str, router: str, seed: int) -> float:
    """Return the share of the slowest 1 % that is among the first tenth to arrive."""
    instance = instance_of(workload, seed)
    rows = simulate(instance, "vllm_v1", router=ROUTERS[router], seed=seed).requests()
    slowest = sorted(rows, key=lambda row: -row.e2e_ps)[: len(rows) // 100]
    early = {row.request for row in sorted(rows, key=lambda row: row.arrival_ps)[: len(rows) // 10]}
    return sum(row.request in early for row in slowest) / len(slowest)


def findings() -> Iterator[Finding]:
    """Compare E2 with round robin and the oracle."""
    source = "section 5.3, Figure 7"
    for workload in FIVE:
        values = over_seeds(partial(gain, workload, "mean", "round robin", "E2"))
        claim = f"E2: mean latency, times below round robin, {workload}"
        yield Finding(claim, source, "1.5 to 14.5", values, 1.5, 14.5, _DECODES if workload == FIVE[-1] else _SATURATED)
        values = over_seeds(partial(gain, workload, "p99", "round robin", "E2"))
        claim = f"E2: p99 latency, times below round robin, {workload}"
        yield Finding(claim, source, "2 to 10", values, 2, 10, _DECODES if workload == FIVE[-1] else _TAIL)
    values = over_seeds(
        lambda seed: (
            min(gain(workload, "mean", "round robin", "E2", seed) for workload in FIVE[:-1])
            / gain(FIVE[-1], "mean", "round robin", "E2", seed)
        )
    )
    yield Finding("Least gain of the other four, times that of programming", source, "> 1: least on it", values, 1)
    for workload in FIVE:
        values = over_seeds(partial(gain, workload, "mean", "hash oracle", "E2"))
        claim = f"E2: mean latency, times below the oracle, {workload}"
        yield Finding(claim, source, "better or on par", values, 0.9, None, _HASH)
    yield from ablation()
    yield from mix()
    yield from experiments()


def ablation() -> Iterator[Finding]:
    """Add one part after the other (section 5.4, Figure 10)."""
    workload, source = "toolbench-zipf", "section 5.4, Figure 10"
    steps = (
        ("+ E2 for each request", "hash oracle", "per request"),
        ("+ rebalancing and autoscaling", "per request", "rebalanced"),
        ("+ prefill/decode balance", "rebalanced", "E2"),
    )
    for label, before, after in steps:
        for share in ("mean", "p99"):
            values = over_seeds(partial(gain, workload, share, before, after))
            claim = f"{label}: {share} latency, times below the step before, Zipf tools"
            yield Finding(claim, source, "> 1", values, 1, None, _STEP)
    for share, paper, least, most in (("p99", "> 1", 1.01, None), ("mean", "no change", 0.8, 1.25)):
        values = over_seeds(partial(_by_priority, workload, share))
        claim = f"+ local priority: {share} latency, times below the step before, Zipf tools"
        yield Finding(claim, source, paper, values, least, most, _FREE)


def _by_priority(workload: str, share: str, seed: int) -> float:
    ordered = found(workload, "E2", seed, policy="preble_local")
    return float(found(workload, "E2", seed)["e2e_ps"][share] / ordered["e2e_ps"][share])


def mix() -> Iterator[Finding]:
    """Compare on the mix with Azure's arrivals (Figure 8): the shipped suite, and two other draws."""

    @cache
    def served(router: str, seed: int) -> dict[str, Any]:
        name = "preble-azure-mix-0.7"
        shipped = seed == SEEDS[0]
        instance = load_instance(name) if shipped else prefixed_instance(name, azure_mix(MIX_GAPS[0], seed), COST)
        return metrics_of(instance, router, seed)

    def times(metric: str, share: str, seed: int) -> float:
        return float(served("round robin", seed)[metric][share] / served("E2", seed)[metric][share])

    for metric, share, label in (
        ("e2e_ps", "mean", "mean latency"),
        ("e2e_ps", "p99", "p99 latency"),
        ("tpot_ps", "mean", "mean TPOT"),
        ("ttft_ps", "mean", "mean TTFT"),
    ):
        values = over_seeds(partial(times, metric, share))
        yield Finding(f"E2: {label}, times below round robin, Azure mix, gaps × 0.7", "Figure 8", "> 1", values, 1)


def experiments() -> Iterator[Finding]:
    """Test causes: half of the rate, other oracles, Preble's program, and parts of the rule."""
    for workload in FIVE:
        values = over_seeds(partial(gain, workload, "mean", "round robin", "E2", times=0.5))
        claim = f"E2: mean latency, times below round robin, half of the rate, {workload}"
        yield Finding(claim, "experiment", "not reported", values)
    tails = "embodied-agent"
    values = over_seeds(partial(gain, tails, "p99", "round robin", "E2", times=0.75))
    claim = f"E2: p99 latency, times below round robin, three quarters of the rate, {tails}"
    yield Finding(claim, "experiment", "not reported", values)
    for router in ("round robin", "E2"):
        values = over_seeds(partial(early_among_slowest, tails, router))
        claim = f"Share of the slowest 1 % among the first tenth of the requests, {router}, {tails}"
        yield Finding(claim, "experiment", "not reported", values)
    for workload in LOADS:
        for label, router in (("Preble's program", "program"), ("Oracle that knows all requests", "load oracle")):
            values = over_seeds(partial(gain, workload, "mean", "round robin", router))
            claim = f"{label}: mean latency, times below round robin, {workload}"
            yield Finding(claim, "experiment", "not reported", values)
    for label, router in (("without eviction cost", "no eviction cost"), ("Algorithm 1 as printed", "as printed")):
        values = over_seeds(partial(gain, "toolbench-zipf", "mean", "round robin", router))
        claim = f"E2, {label}: mean latency, times below round robin, Zipf tools"
        yield Finding(claim, "experiment", "not reported", values)
