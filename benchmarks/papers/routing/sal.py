"""SAL (Kossmann et al., section 7).

Four machines of Llama-3-70B on two A100 with 200,000 KV tokens each, and eight of Llama-3.1-8B with 140,000, serve
requests with the lengths of Azure's conversations and code, 400 for each machine; batches of at most 1,024 tokens. They
arrive in bursts (see LARRY's section of findings.md) at three quarters of the rate that all machines sustain; the paper
prints no rate. Local policy LARRY unless a row says otherwise. SAL polls ten times a second; P2C compares requests in
flight. "Below" is below the better of P2C and Random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache, partial
from itertools import product
from random import Random
from typing import Any

from optsched.calibrate.library import cost_model
from optsched.methods.simulate import simulate
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits
from optsched.routers.router import MachineView, RoutedRequest, RouterFactory, RouterSetting
from optsched.routers.sal import Sal
from optsched.traces.trace import make_trace, trace_instance
from optsched.traces.workloads import draw_workload
from papers.finding import Finding
from papers.kossmann import BURSTS, DEPLOYMENTS
from papers.serving import over_seeds

MACHINES = {"70B": 4, "8B": 8}
_EACH = 400
_LOAD = Fraction(3, 4)
_SETTINGS = tuple(product(DEPLOYMENTS, ("sw-chat", "sw-code")))
_SOURCE = "section 7, Figures 10, 11"

_ROOM = (
    "Neither rate nor burstiness is printed, and the gain depends on both: see the rows at half of the rate and at the "
    "whole rate."
)
_TIES = (
    "Where memory is free and nothing is queued all machines have the same load by equation 2, and the first is taken: "
    "it decodes the largest batches. With such ties at random the loss disappears, and even token JSQ, which balances "
    "all tokens, gains little (rows of ties at random and of token JSQ)."
)
_ALIKE = "P2C counts requests, and so avoids some queues that Random does not: most where prompts are all the work."


class RandomTies(Sal):
    """SAL that takes one of the machines with the least load at random."""

    def __init__(self, setting: RouterSetting) -> None:
        super().__init__(setting.batch_tokens)
        self._rng = setting.rng

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        """Return the machine to which ``request`` goes."""
        return super().route(request, self._rng.sample(views, len(views)))


def instance_of(deployment: str, lengths: str, seed: int, load: Fraction) -> Instance:
    """Return bursts of requests for all machines."""
    (profile, kv_tokens), machines = DEPLOYMENTS[deployment], MACHINES[deployment]
    count = _EACH * machines
    trace = make_trace(draw_workload(lengths, count, seed), count, BURSTS.times(Random(f"{seed} arrivals")))
    limits = Limits(kv_tokens, 1024, 1024, batch_requests=256, kv_block=16)
    name = f"{machines} × {deployment} {lengths} {seed}"
    return replace(trace_instance(trace, name, cost_model(profile), limits, load * machines), replicas=machines)


@cache
def found(
    setting: tuple[str, str], router: str | RouterFactory, seed: int, load: Fraction = _LOAD, policy: str = "larry"
) -> dict[str, Any]:
    """Return the metrics of a router."""
    metrics = simulate(instance_of(*setting, seed, load), policy, router=router, seed=seed).metrics
    assert metrics is not None
    return metrics


def below(
    setting: tuple[str, str],
    metric: str,
    share: str,
    seed: int,
    load: Fraction = _LOAD,
    router: str | RouterFactory = "sal",
) -> float:
    """Return how many times a router is below the better of P2C and Random."""
    best = min(found(setting, other, seed, load)[metric][share] for other in ("p2c", "random"))
    return float(best / found(setting, router, seed, load)[metric][share])


METRICS = (
    ("ttft_ps", "p50", "p50 TTFT", 1.0, 1.5, _ROOM),
    ("ttft_ps", "p95", "p95 TTFT", 1.2, 1.3, _ROOM),
    ("ttft_per_input_ps", "p50", "p50 TTFT / I", 1.0, 1.2, _ROOM),
    ("ttft_per_input_ps", "p95", "p95 TTFT / I", 1.0, 1.2, _ROOM),
    ("e2e_ps", "p50", "p50 TGT", 1.1, 1.3, _TIES),
    ("e2e_ps", "p95", "p95 TGT", 1.1, 1.3, _TIES),
)


def findings() -> Iterator[Finding]:
    """Compare load balancers."""
    for setting in _SETTINGS:
        label = ", ".join(setting)
        for metric, share, name, least, most, cause in METRICS:
            values = over_seeds(partial(below, setting, metric, share))
            claim = f"SAL: {name}, times below the next best, {label}"
            yield Finding(claim, _SOURCE, f"{least:g} to {most:g}", values, least, most, cause)
        for metric, name in (("ttft_ps", "TTFT"), ("e2e_ps", "TGT")):
            values = over_seeds(partial(_of_random, setting, metric))
            yield Finding(f"P2C: p50 {name}, times Random's, {label}", _SOURCE, "similar", values, 0.8, 1.25, _ALIKE)
    yield from engines()
    yield from experiments()


def _of_random(setting: tuple[str, str], metric: str, seed: int) -> float:
    return float(found(setting, "p2c", seed)[metric]["p50"] / found(setting, "random", seed)[metric]["p50"])


def engines() -> Iterator[Finding]:
    """Compare local policies: these matter more than load balancers."""
    setting = _SETTINGS[0]

    def times(seed: int) -> float:
        fcfs = found(setting, "sal", seed, policy="fcfs")
        return float(fcfs["ttft_ps"]["p50"] / found(setting, "sal", seed)["ttft_ps"]["p50"])

    def share_preempted(seed: int) -> float:
        return float(100 * found(setting, "sal", seed)["evictions"] / (_EACH * MACHINES[setting[0]]))

    claim = "FCFS: p50 TTFT, times LARRY's, both with SAL, 70B, sw-chat"
    yield Finding(claim, "section 7", "> 1: all load balancers are best with LARRY", over_seeds(times), 1)
    claim = "SAL with LARRY: preemptions, % of the requests, 70B, sw-chat"
    yield Finding(claim, "section 7", "< 0.1", over_seeds(share_preempted), None, 0.1, _ROOM)


def experiments() -> Iterator[Finding]:
    """Test causes: other rates, ties at random, and a router that balances all tokens."""
    for load, metric in product((Fraction(1, 2), Fraction(1)), (METRICS[0], METRICS[1])):
        for setting in _SETTINGS[:2]:
            values = over_seeds(partial(below, setting, metric[0], metric[1], load=load))
            claim = f"SAL: {metric[2]}, times below the next best, {float(load):g} of the rate, {', '.join(setting)}"
            yield Finding(claim, "experiment", "not reported", values)
    routers: tuple[tuple[str, str | RouterFactory], ...] = (
        ("SAL, ties at random", RandomTies),
        ("Token JSQ", "least_tokens"),
    )
    for (label, router), metric in product(routers, (METRICS[0], METRICS[4], METRICS[5])):
        for setting in _SETTINGS[:2]:
            values = over_seeds(partial(below, setting, metric[0], metric[1], router=router))
            claim = f"{label}: {metric[2]}, times below the better of P2C and Random, {', '.join(setting)}"
            yield Finding(claim, "experiment", "not reported", values)
