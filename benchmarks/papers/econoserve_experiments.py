"""Experiments that show why EconoServe's numbers come out as they do here; not claims of the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace as tuned
from itertools import product
from math import inf
from statistics import mean

from optsched.methods.bound import bound
from optsched.methods.simulate import simulate
from optsched.model.domain import replace
from optsched.model.instance import Instance
from optsched.policies.coupled import MULTIRES, SYNC_COUPLED
from optsched.policies.econoserve import PER_TRACE
from optsched.policies.fcfs import FASTGEN, ORCA
from optsched.policies.grouped import Margins
from optsched.policies.infermax import VLLM_SWAP
from optsched.policies.predictors import TRUTH, Padded, Rated
from optsched.policies.shortest import TRAIL
from papers.econoserve_setup import LOADS, MACHINE, OPT_13B, SEEDS, family, outcome, run, sustained, workload
from papers.finding import Finding

_DRAWS = range(1, 7)
_SHAREGPT = PER_TRACE["sharegpt"]


def experiments() -> Iterator[Finding]:
    """Return them all."""
    yield from capacities()
    yield from memories()
    yield from guests()
    yield from prices()
    yield from queues()
    yield from batches()


def capacities() -> Iterator[Finding]:
    """Bound the throughput of any schedule, if all requests are there at once."""
    for trace in LOADS:
        instance = workload(trace, 1, inf)
        least = bound(instance).bound
        assert least is not None
        for name, policy in (("vLLM", VLLM_SWAP), ("ORCA", ORCA)):
            ratio = (simulate(instance, policy).value or 0) / least
            claim = f"At most so many times {name}'s throughput has any schedule, {trace} at once (certified)"
            yield Finding(claim, "experiment", "not reported", (ratio,))
    instance = workload("sharegpt", 1, inf)
    ends = [simulate(instance, policy).value or 0 for policy in (VLLM_SWAP, "planner")]
    yield Finding(
        "The planner, which knows all: throughput, times vLLM's, sharegpt at once",
        "experiment",
        "not reported",
        (ends[0] / ends[1],),
    )


def memories() -> Iterator[Finding]:
    """Vary memory, vLLM's cap, and the order."""
    for tokens, count, ours, theirs in ((8_000, 300, 3.5, 4.7), (60_000, 900, 25, 18)):
        rates = [
            sustained(lambda rate: workload("sharegpt", 1, rate, kv_tokens=tokens, count=count), policy, 1, near)  # noqa: B023
            for policy, near in ((_SHAREGPT, ours), (VLLM_SWAP, theirs))
        ]
        claim = f"Sustained rate, times that of vLLM, sharegpt, {tokens:,} KV tokens"
        yield Finding(claim, "experiment", "not reported", (rates[0] / rates[1],))
    capped = tuned(VLLM_SWAP, margins=Margins(residents=8))
    rates = [
        sustained(lambda rate: workload("sharegpt", 1, rate), policy, 1, near)
        for policy, near in ((_SHAREGPT, 4.8), (capped, 2.3))
    ]
    claim = "Sustained rate, times that of vLLM with at most 8 requests, sharegpt"
    yield Finding(claim, "experiment", "not reported", (rates[0] / rates[1],))
    held = run(workload("sharegpt", 1), capped).throughput
    ratio = held / outcome("sharegpt", 1, LOADS["sharegpt"].rate, "Sarathi").throughput
    yield Finding(
        "vLLM with at most 8 requests: throughput, times Sarathi's, sharegpt", "experiment", "not reported", (ratio,)
    )
    values = tuple(
        run(workload("sharegpt", seed), TRAIL, seed).per_token
        / outcome("sharegpt", seed, LOADS["sharegpt"].rate, "vLLM").per_token
        for seed in SEEDS
    )
    yield Finding(
        "Shortest first (TRAIL): normalised latency, times vLLM's, sharegpt", "experiment", "not reported", values
    )


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
            values = tuple(one / other for one, other in zip(without, latencies, strict=True))
            yield Finding(claim, "experiment", "not reported", values)
    known, ratios = tuned(variant, predictor=TRUTH), []
    for seed in _DRAWS:
        instance = workload("sharegpt", seed, 28, slo_scale=None)
        ratios.append(run(instance, tuned(known, piped=False)).e2e / run(instance, known).e2e)
    yield Finding(f"{claim}, lengths known", "experiment", "not reported", tuple(ratios))


def prices() -> Iterator[Finding]:
    """Vary the price of a request considered."""
    dear = replace(MACHINE, cpu_request=80_000_000)
    value = mean(run(workload(trace, 1, cost=dear), MULTIRES).scheduling for trace in LOADS)
    yield Finding(
        "MultiRes: scheduling, share of e2e, at 80 µs for each request considered",
        "experiment",
        "not reported",
        (value,),
    )
    dear = replace(MACHINE, cpu_request=1_000_000_000)
    ratios = []
    for trace in LOADS:
        parts, instance = family(PER_TRACE[trace]), workload(trace, 1, cost=dear)
        ratios.append(run(instance, parts["D"], 1).e2e / run(instance, parts["SD"], 1).e2e)
    yield Finding(
        "D: mean e2e, times SD's, at 1 ms for each request considered", "experiment", "not reported", (mean(ratios),)
    )


def queues() -> Iterator[Finding]:
    """Vary the length of runs, the queue, and deadlines."""
    longer = workload("sharegpt", 1, count=1200)
    for name, policy in (("vLLM", VLLM_SWAP), ("Sarathi", FASTGEN)):
        claim = f"{name}: share of the requests that memory fails, 1,200 of sharegpt"
        yield Finding(claim, "experiment", "not reported", (run(longer, policy).failing,))
        runs = [[outcome(trace, seed, LOADS[trace].rate, name) for trace in LOADS] for seed in SEEDS]
        values = tuple(mean(one.paused / (1 - one.waiting) for one in each) for each in runs)
        yield Finding(f"{name}: preempted share of e2e after the first batch", "experiment", "not reported", values)
    sizes = run(workload("alpaca", 1, inf), SYNC_COUPLED).groups
    share = sum(size for size in sizes if size >= 4) / sum(sizes)
    yield Finding(
        "SyncCoupled: share of the requests in groups of at least 4, alpaca at once",
        "experiment",
        "not reported",
        (share,),
    )
    ratios = []
    for trace in LOADS:
        parts, instance = family(PER_TRACE[trace]), workload(trace, 1, slo_scale=None)
        ratios.append(run(instance, parts["SD"], 1).e2e / run(instance, parts["SDO"], 1).e2e)
    yield Finding("SD: mean e2e, times SDO's, without SLOs", "experiment", "not reported", (mean(ratios),))


def batches() -> Iterator[Finding]:
    """Look at time between tokens, at what is run again, and at what runs out of its prediction."""
    times = [run(workload(trace, 1, cost=OPT_13B), PER_TRACE[trace], 1).tbt for trace in LOADS]
    claim = "Mean time between tokens, ms, costs scaled to OPT-13B"
    yield Finding(claim, "experiment", "not reported", (mean(times),))
    again = mean(mean(refills(workload(trace, 1))) for trace in LOADS)
    claim = "Sarathi: batches in which an evicted request runs its tokens again, mean"
    yield Finding(claim, "experiment", "not reported", (again,))
    assert isinstance(_SHAREGPT.predictor, Rated)
    bare = Padded(1 / 1.15 - 1, _SHAREGPT.predictor)
    unpadded = tuned(_SHAREGPT, ordered=False, piped=False, predictor=bare)
    paused = run(workload("sharegpt", 1), unpadded, 1).paused
    claim = "SyncDecoupled without padding: share of e2e in which a request is preempted, sharegpt"
    yield Finding(claim, "experiment", "not reported", (paused,))


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
