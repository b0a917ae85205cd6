"""Experiments that show why EconoServe's numbers come out as they do here; not claims of the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace as tuned
from functools import partial
from itertools import product
from math import inf
from statistics import mean

from optsched.methods.bound import bound
from optsched.methods.simulate import simulate
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.instance import Instance
from optsched.policies.coupled import MULTIRES, SYNC_COUPLED
from optsched.policies.econoserve import PER_TRACE
from optsched.policies.fcfs import FASTGEN, ORCA
from optsched.policies.grouped import Margins
from optsched.policies.infermax import VLLM_SWAP
from optsched.policies.predictors import TRUTH, Padded, Rated
from optsched.policies.shortest import TRAIL
from optsched.simulator.replica import Policy, Preparing
from papers.econoserve_setup import (
    KV_TOKENS,
    LOADS,
    MACHINE,
    OPT_13B,
    SEEDS,
    family,
    outcome,
    run,
    sustained,
    workload,
)
from papers.finding import Finding

_DRAWS = range(1, 7)
_SHAREGPT = PER_TRACE["sharegpt"]


def experiments() -> Iterator[Finding]:
    """Return them all."""
    yield from capacities()
    yield from memories()
    yield from fillings()
    yield from errors()
    yield from guests()
    yield from prices()
    yield from queues()
    yield from batches()


def experiment(claim: str, values: Iterable[float]) -> Finding:
    """Return the outcome of an experiment, which no paper reports."""
    return Finding(claim, "experiment", "not reported", tuple(values))


def capacities() -> Iterator[Finding]:
    """Bound the throughput of any schedule, if all requests are there at once."""
    for trace in LOADS:
        instances = [workload(trace, seed, inf) for seed in SEEDS]
        for name, policy in (("vLLM", VLLM_SWAP), ("ORCA", ORCA)):
            claim = f"Throughput of any schedule, times {name}'s, at most, {trace} at once (certified)"
            yield experiment(claim, (_end(one, policy) / (bound(one).bound or 0) for one in instances))
    instances = [workload("sharegpt", seed, inf) for seed in SEEDS]
    claim = "The planner, which knows all: throughput, times vLLM's, sharegpt at once"
    yield experiment(claim, (_end(one, VLLM_SWAP) / _end(one, "planner") for one in instances))


def _end(instance: Instance, policy: Policy | Preparing | str) -> int:
    """Return the makespan."""
    value = simulate(instance, policy).value
    assert value is not None
    return value


def memories() -> Iterator[Finding]:
    """Vary memory, vLLM's cap, and the order."""
    capped = tuned(VLLM_SWAP, margins=Margins(residents=8))
    for where, policy, tokens, count, ours, theirs in (
        ("vLLM, sharegpt, 8,000 KV tokens", VLLM_SWAP, 8_000, 300, 3.5, 4.7),
        ("vLLM, sharegpt, 60,000 KV tokens", VLLM_SWAP, 60_000, 900, 25, 18),
        ("vLLM with at most 8 requests, sharegpt", capped, KV_TOKENS, 300, 4.8, 2.3),
    ):
        rates = [
            [
                sustained(partial(_sharegpt, seed, kv_tokens=tokens, count=count), tried, seed, near)
                for tried, near in ((_SHAREGPT, ours), (policy, theirs))
            ]
            for seed in SEEDS
        ]
        yield experiment(f"Sustained rate, times that of {where}", (mine / other for mine, other in rates))
    usual = partial(outcome, "sharegpt", rate=LOADS["sharegpt"].rate)
    held = (
        run(workload("sharegpt", seed), capped).throughput / usual(seed, policy="Sarathi").throughput for seed in SEEDS
    )
    yield experiment("vLLM with at most 8 requests: throughput, times Sarathi's, sharegpt", held)
    shortest = (
        run(workload("sharegpt", seed), TRAIL, seed).per_token / usual(seed, policy="vLLM").per_token for seed in SEEDS
    )
    yield experiment("Shortest first (TRAIL): normalised latency, times vLLM's, sharegpt", shortest)


def _sharegpt(seed: int, rate: float, *, kv_tokens: int, count: int) -> Instance:
    return workload("sharegpt", seed, rate, kv_tokens=kv_tokens, count=count)


def fillings() -> Iterator[Finding]:
    """Compare the tokens a batch of EconoServe's parts."""
    for factor, where in ((1, ""), (4, ", four times the memory")):
        sizes = [[_forwards(trace, seed, factor * KV_TOKENS) for trace in LOADS] for seed in SEEDS]
        for part in ("D", "SD", "SDO"):
            ratios = (mean(each[part] / each["EconoServe"] for each in traces) for traces in sizes)
            yield experiment(f"{part}: tokens a batch, times EconoServe's{where}", ratios)


def _forwards(trace: str, seed: int, kv_tokens: int) -> dict[str, float]:
    instance = workload(trace, seed, kv_tokens=kv_tokens)
    return {name: run(instance, policy, seed).forward for name, policy in family(PER_TRACE[trace]).items()}


def errors() -> Iterator[Finding]:
    """Draw the prediction errors anew for the same requests."""
    for trace, rate, where in (*((trace, None, "") for trace in LOADS), ("sharegpt", 6, ", 6 requests/s")):
        instance = workload(trace, 1, rate)
        known = run(instance, tuned(PER_TRACE[trace], predictor=TRUTH)).attained
        met = (run(instance, PER_TRACE[trace], draw).attained / known for draw in _DRAWS)
        claim = f"Share of SLOs met, times Oracle's, {trace}{where}, the same requests, six draws of the errors"
        yield experiment(claim, met)


def guests() -> Iterator[Finding]:
    """Compare pipelining over draws, with guests that have not started, and without deadlines."""
    variant = tuned(_SHAREGPT, prompt_guests=True)
    for rate, (scale, where) in product((6.0, 28.0), ((2, ""), (None, ", no deadlines"))):
        without, usual = (
            [outcome("sharegpt", seed, rate, name, scale).e2e for seed in _DRAWS] for name in ("SDO", "EconoServe")
        )
        prompts = [run(workload("sharegpt", seed, rate, slo_scale=scale), variant, seed).e2e for seed in _DRAWS]
        for kind, latencies in (("EconoServe", usual), ("a variant with guests from the prompt queue", prompts)):
            claim = f"SDO: mean e2e, times that of {kind}, sharegpt, {rate:g} requests/s, six draws{where}"
            yield experiment(claim, (one / other for one, other in zip(without, latencies, strict=True)))
    known, ratios = tuned(variant, predictor=TRUTH), []
    for seed in _DRAWS:
        instance = workload("sharegpt", seed, 28, slo_scale=None)
        ratios.append(run(instance, tuned(known, piped=False)).e2e / run(instance, known).e2e)
    yield experiment(f"{claim}, lengths known", ratios)


def prices() -> Iterator[Finding]:
    """Vary the price of a request considered."""
    dear = replace(MACHINE, cpu_request=80_000_000)
    shares = (mean(run(workload(trace, seed, cost=dear), MULTIRES).scheduling for trace in LOADS) for seed in SEEDS)
    yield experiment("MultiRes: scheduling, share of e2e, at 80 µs for each request considered", shares)
    dearer = replace(MACHINE, cpu_request=1_000_000_000)
    ratios = (mean(_latencies(trace, seed, "D", "SD", cost=dearer) for trace in LOADS) for seed in SEEDS)
    yield experiment("D: mean e2e, times SD's, at 1 ms for each request considered", ratios)


def _latencies(
    trace: str, seed: int, part: str, more: str, *, cost: CostModel = MACHINE, slo_scale: float | None = 2
) -> float:
    """Return the mean e2e latency of a part of EconoServe, times that of another."""
    instance, parts = workload(trace, seed, cost=cost, slo_scale=slo_scale), family(PER_TRACE[trace])
    return run(instance, parts[part], seed).e2e / run(instance, parts[more], seed).e2e


def queues() -> Iterator[Finding]:
    """Vary the length of runs, the queue, and deadlines."""
    longer = [workload("sharegpt", seed, count=1200) for seed in SEEDS]
    for name, policy in (("vLLM", VLLM_SWAP), ("Sarathi", FASTGEN)):
        claim = f"{name}: share of the requests that memory fails, 1,200 of sharegpt"
        yield experiment(claim, (run(one, policy).failing for one in longer))
        runs = [[outcome(trace, seed, LOADS[trace].rate, name) for trace in LOADS] for seed in SEEDS]
        values = (mean(one.paused / (1 - one.waiting) for one in each) for each in runs)
        yield experiment(f"{name}: preempted share of e2e after the first batch", values)
    sizes = [run(workload("alpaca", seed, inf), SYNC_COUPLED).groups for seed in SEEDS]
    shares = (sum(size for size in each if size >= 4) / sum(each) for each in sizes)
    yield experiment("SyncCoupled: share of the requests in groups of at least 4, alpaca at once", shares)
    ratios = (mean(_latencies(trace, seed, "SD", "SDO", slo_scale=None) for trace in LOADS) for seed in SEEDS)
    yield experiment("SD: mean e2e, times SDO's, without SLOs", ratios)


def batches() -> Iterator[Finding]:
    """Look at time between tokens, at what is run again, and at what runs out of its prediction."""
    times = (
        mean(run(workload(trace, seed, cost=OPT_13B), PER_TRACE[trace], seed).tbt for trace in LOADS) for seed in SEEDS
    )
    yield experiment("Mean time between tokens, ms, costs scaled to OPT-13B", times)
    again = ([refills(workload(trace, seed)) for trace in LOADS] for seed in SEEDS)
    claim = "Sarathi: batches in which an evicted request runs its tokens again, mean over the traces with evictions"
    yield experiment(claim, (mean(mean(found) for found in each if found) for each in again))
    assert isinstance(_SHAREGPT.predictor, Rated)
    bare = Padded(1 / 1.15 - 1, _SHAREGPT.predictor)
    unpadded = tuned(_SHAREGPT, ordered=False, piped=False, predictor=bare)
    paused = (run(workload("sharegpt", seed), unpadded, seed).paused for seed in SEEDS)
    claim = "SyncDecoupled without padding: share of e2e in which a request is preempted, sharegpt"
    yield experiment(claim, paused)


def refills(instance: Instance) -> list[int]:
    """Return in how many batches each evicted request of Sarathi runs its prompt and what it has generated again."""
    schedule = simulate(instance, FASTGEN).schedule
    assert schedule is not None
    cached, left, batches = Counter[int](), Counter[int](), Counter[int]()
    found: list[int] = []
    for batch in schedule.batches:
        for index in batch.evict:
            if cached[index] >= instance.requests[index].input:
                # The last token has been generated, but is not in the cache yet.
                left[index], batches[index] = cached[index] + 1, 0
            cached[index] = 0
        for index, count in batch.run:
            cached[index] += count * batch.repeat
            if left[index]:
                batches[index] += 1
                if cached[index] == left[index]:
                    found.append(batches[index])
                    left[index] = 0
    return found
