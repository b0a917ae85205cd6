"""DistServe, as EconoServe measures it (its section 2 and Figure 12).

One prefill and one decode machine on the traces of Table 2 as in EconoServe's section of findings.md: Llama-2-7B on one
A100 with 15,008 KV tokens, and its 2¹⁹ bytes a token over 100 Gb/s. `vllm_v1` forms the batches of both, which on a
prefill machine are whole prompts in order. SyncDecoupled has one machine. Figure 12 is the shipped suite
econoserve-fig12 and two other draws of it: four prefill and four decode machines, beside the fewest equal machines
under EconoServe and `least_requests` with the same goodput.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from statistics import mean

from optsched.library import load_suite
from optsched.methods.simulate import simulate
from optsched.model.cluster import Link, Role
from optsched.model.domain import replace
from optsched.model.instance import Instance, MachineGroup
from optsched.policies.econoserve import PER_TRACE
from optsched.traces.clusters import RATES, figure_12
from papers.econoserve_setup import LOADS, outcome, workload
from papers.finding import Finding
from papers.serving import COST, SEEDS, over_seeds

_ETHERNET = Link(kv_ps=2**19 * 10**12 // (125 * 10**8))
_FULL = 329
"""Tokens of a batch from which on compute limits it: EconoServe's target forward size (`papers.econoserve`)."""
_SOURCE = "section 2.2, observation 6"

_MEMORY = (
    "15,008 KV tokens limit a decode batch as they limit those of SyncDecoupled: both have about as many tokens a "
    "batch (rows of tokens a batch), of which few are of prompts."
)
_PROMPTS = (
    "A batch of prompts alone is compared with one that is mostly decodes, which has few tokens (rows of tokens a "
    "batch)."
)
_SHORT = (
    "Memory is what requests wait for, and all of the decode machine's is theirs once prompts are elsewhere, which is "
    "idle for half of the time and more (rows of idle time)."
)
_LINK = (
    "161 prompt tokens take 7 ms at 100 Gb/s, of latencies of seconds; at a fiftieth of the bandwidth the share is "
    "half of the paper's (row of a slower link)."
)
_TWO = (
    "The four decode machines have the memory of four machines, so at the higher rates EconoServe needs as many; the "
    "prefill machines are what it saves."
)


@dataclass(frozen=True)
class Apart:
    """What a run of DistServe comes to.

    Parameters
    ----------
    e2e
        Mean latency in s.
    throughput
        Requests/s.
    prefill, decode
        Tokens of a batch, in the mean.
    transfer
        Share of all latency in which requests are copied.
    idle
        Share of the time in which the prefill machine runs no batch.
    """

    e2e: float
    throughput: float
    prefill: float
    decode: float
    transfer: float
    idle: float


@cache
def apart(trace: str, seed: int, slower: int = 1) -> Apart:
    """Run one prefill and one decode machine, with a link of a fraction of the bandwidth."""
    alone = workload(trace, seed)
    groups = MachineGroup(1, Role.PREFILL), MachineGroup(1, Role.DECODE)
    link = Link(kv_ps=slower * _ETHERNET.kv_ps)
    instance = replace(alone, rules=replace(alone.rules, swap=False), machine_groups=groups, links=link)
    result = simulate(instance, "vllm_v1", router="disaggregated", seed=seed)
    schedule, metrics = result.schedule, result.metrics
    assert schedule is not None
    assert metrics is not None
    tokens, batches = [0, 0], [0, 0]
    for batch in schedule.batches:
        tokens[batch.replica] += batch.repeat * sum(count for _, count in batch.run)
        batches[batch.replica] += batch.repeat
    copied = sum(move.end_ps - move.start_ps for move in schedule.moves)
    total = metrics["e2e_ps"]["mean"] * len(instance.requests)
    return Apart(
        e2e=metrics["e2e_ps"]["mean"] / 1e12,
        throughput=metrics["requests_per_s"],
        prefill=tokens[0] / batches[0],
        decode=tokens[1] / batches[1],
        transfer=copied / total,
        idle=1 - metrics["load_ps"][0] / metrics["objectives"]["makespan"],
    )


def over_traces(measure: str, seed: int) -> float:
    """Return the mean over the traces of DistServe's value over SyncDecoupled's."""
    field = {"prefill": "forward", "decode": "forward"}.get(measure, measure)
    return mean(of_apart(measure, trace, seed) / of_one(field, trace, seed) for trace in LOADS)


def of_apart(measure: str, trace: str, seed: int) -> float:
    """Return a measure of DistServe."""
    return float(getattr(apart(trace, seed), measure))


def of_one(measure: str, trace: str, seed: int) -> float:
    """Return a measure of SyncDecoupled."""
    return float(getattr(outcome(trace, seed, LOADS[trace].rate, "SyncDecoupled"), measure))


def findings() -> Iterator[Finding]:
    """Compare DistServe with one machine, and with EconoServe on several."""
    for claim, measure, paper, cause in (
        ("JCT, times SyncDecoupled's", "e2e", 1.10, _SHORT),
        ("throughput, times SyncDecoupled's", "throughput", 0.93, _SHORT),
        ("tokens of a prefill batch, times SyncDecoupled's", "prefill", 0.88, _PROMPTS),
        ("tokens of a decode batch, times SyncDecoupled's", "decode", 0.18, _MEMORY),
    ):
        values = over_seeds(partial(over_traces, measure))
        off = max(abs(paper - 1) / 5, 0.03)
        yield Finding(f"DistServe: {claim}", _SOURCE, f"{paper:g}", values, paper - off, paper + off, cause)
    values = over_seeds(lambda seed: mean(apart(trace, seed).transfer for trace in LOADS))
    yield Finding("DistServe: share of JCT that is transfer", _SOURCE, "0.07", values, 0.056, 0.084, _LINK)
    values = over_seeds(lambda seed: mean(1 - apart(trace, seed).decode / _FULL for trace in LOADS))
    claim = f"DistServe: share of compute ({_FULL} tokens a batch) that decode batches leave idle"
    yield Finding(claim, _SOURCE, "low GPU utilisation", values, 0.5)
    yield from machines()
    yield from experiments()


@cache
def needed(rate: int, seed: int) -> int:
    """Return the fewest machines on which EconoServe has DistServe's goodput."""
    instances: list[Instance]
    if seed == SEEDS[0]:
        prefix = f"econoserve-fig12-{rate}-"
        instances = [each for each in load_suite("econoserve-fig12").instances if each.name.startswith(prefix)]
    else:
        instances = list(figure_12(rate, seed, COST))
    target = _goodput(instances[0], seed)
    return next(
        (count for count, instance in enumerate(instances[1:], 1) if _goodput(instance, seed) >= target),
        len(instances),
    )


def _goodput(instance: Instance, seed: int) -> float:
    apart = bool(instance.machine_groups)
    router = "disaggregated" if apart else "least_requests" if instance.is_distributed else None
    metrics = simulate(instance, "vllm_v1" if apart else PER_TRACE["sharegpt"], router=router, seed=seed).metrics
    assert metrics is not None
    return float(metrics["goodput_requests_per_s"])


def machines() -> Iterator[Finding]:
    """Count machines (Figure 12)."""
    for rate in RATES:
        values = over_seeds(partial(needed, rate))
        yield Finding(
            f"EconoServe: machines for the goodput of DistServe's 8, {rate} requests/s",
            "Figure 12",
            "not reported",
            values,
        )
    values = over_seeds(lambda seed: 100 - 100 * mean(needed(rate, seed) for rate in RATES) / 8)
    yield Finding("EconoServe: fewer machines than DistServe, %, mean", "Figure 12", "58 to 73", values, 58, 73, _TWO)


def experiments() -> Iterator[Finding]:
    """Show tokens a batch, and how long prefill machines are idle."""
    values = over_seeds(lambda seed: mean(apart(trace, seed, slower=50).transfer for trace in LOADS))
    yield Finding("DistServe: share of JCT that is transfer, at 2 Gb/s", "experiment", "not reported", values)
    for trace in LOADS:
        for claim, measure in (
            ("tokens of a prefill batch", "prefill"),
            ("tokens of a decode batch", "decode"),
            ("share of the time in which the prefill machine is idle", "idle"),
        ):
            values = over_seeds(partial(of_apart, measure, trace))
            yield Finding(f"DistServe: {claim}, {trace}", "experiment", "not reported", values)
        values = over_seeds(partial(of_one, "forward", trace))
        yield Finding(f"SyncDecoupled: tokens of a batch, {trace}", "experiment", "not reported", values)
