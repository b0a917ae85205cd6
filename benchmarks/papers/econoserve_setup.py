"""EconoServe's traces, machine and policies, and where the time of its requests goes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as tuned
from fractions import Fraction
from functools import cache
from itertools import accumulate
from math import sqrt
from random import Random
from statistics import mean
from types import MappingProxyType

from optsched.methods.policies import ready_policy
from optsched.methods.simulate import simulate
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule
from optsched.policies.coupled import MULTIRES, SYNC_COUPLED
from optsched.policies.econoserve import PER_TRACE, EconoServe
from optsched.policies.fastserve import FASTSERVE_MAX
from optsched.policies.fcfs import FASTGEN, ORCA
from optsched.policies.infermax import VLLM_SWAP
from optsched.policies.predictors import TRUTH
from optsched.policies.shortest import SRTF
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import Policy, Preparing
from optsched.traces.workloads import draw_workload
from papers.serving import COST

KV_TOKENS = 15_008
"""12 GB of OPT-13B, with its 819,200 bytes a token, in whole blocks of 32; and 264 GB of OPT-175B, with 4,718,592."""
KV_TOKENS_175B = 55_936
_LINK_PS = 2**19 * 10**12 // (25 * 10**9)
"""Of a KV token of Llama-2-7B at 25 GB/s."""
MACHINE = replace(COST, swap_out_kv=_LINK_PS, swap_in_kv=_LINK_PS, swap_overlap=100, cpu_request=20_000_000)


def scaled(cost: CostModel, weights: Fraction, kv: Fraction) -> CostModel:
    """Return the cost of a model with multiples of the weights, and of the bytes of KV a token, for each GPU."""
    return replace(
        cost,
        base=round(cost.base * weights),
        token=round(cost.token * weights),
        pieces=tuple((round(base * weights), round(token * weights)) for base, token in cost.pieces),
        decode_kv=round(cost.decode_kv * kv),
        prefill_sq=round(cost.prefill_sq * kv),
        prefill_kv=round(cost.prefill_kv * kv),
        swap_out_kv=round(cost.swap_out_kv * kv),
        swap_in_kv=round(cost.swap_in_kv * kv),
    )


OPT_13B = scaled(MACHINE, Fraction(1300, 674), Fraction(819_200, 2**19))
"""On one GPU, from Llama-2-7B's 6.74e9 weights and 2¹⁹ bytes a token."""
OPT_175B = scaled(MACHINE, Fraction(17_500, 674 * 8), Fraction(4_718_592, 2**19 * 8))
"""On eight GPUs."""

_STRIDE = 1.25
"""Between the rates from which a sustained one is looked for."""


@dataclass(frozen=True)
class Load:
    """A trace as it is run: at the rate of Table 2, but for Alpaca, whose 36 requests/s leave no queue on this machine.

    Parameters
    ----------
    rate
        Requests/s.
    count
        Requests of a run.
    """

    rate: float
    count: int


LOADS: Mapping[str, Load] = MappingProxyType(
    {"alpaca": Load(110, 600), "sharegpt": Load(28, 300), "bookcorpus": Load(1.2, 150)}
)


def workload(
    trace: str,
    seed: int,
    rate: float | None = None,
    *,
    cost: CostModel = MACHINE,
    kv_tokens: int = KV_TOKENS,
    count: int | None = None,
    slo_scale: float | None = 2,
) -> Instance:
    """Return requests of Table 2 with Poisson arrivals, as many and at the rate of `LOADS` unless said otherwise.

    The SLO of a request is ``slo_scale`` times the time of a mean prompt alone, and for each output token that of a
    batch of 30 decodes on 10,000 KV tokens; None for no SLO. At an infinite rate all arrive at once.
    """
    load = LOADS[trace]
    rate = load.rate if rate is None else rate
    rows = draw_workload(f"econoserve-{trace}", count or load.count, seed).rows
    rng, now = Random(f"EconoServe {trace} {seed}"), 0
    prompt = sum(row.input for row in rows) // len(rows)
    first = cost.batch_ps(prompt, 0, 0, [(prompt, 0)])
    token = cost.batch_ps(30, 30, 10_000, [])
    requests = []
    for row in rows:
        now += round(rng.expovariate(1) / rate * 10**12)
        slo = None if slo_scale is None else int(slo_scale * (first + token * row.output))
        requests.append(Request(row.input, row.output, arrival_ps=now, slo_e2e_ps=slo))
    limits = Limits(kv_tokens, 4096, 4096, kv_block=32)
    return Instance(f"econoserve-{trace}", limits, Rules(swap=True), cost, tuple(requests))


def policies(trace: str) -> dict[str, Policy | Preparing]:
    """Return the schedulers of the paper, as set for a trace; those of section 2 know all lengths."""
    full = PER_TRACE[trace]
    return {
        "vLLM": VLLM_SWAP,
        "Sarathi": FASTGEN,  # run to the target forward size
        "MultiRes": MULTIRES,
        "SyncCoupled": SYNC_COUPLED,
        "ORCA": ORCA,
        "SRTF": SRTF,
        "FastServe": FASTSERVE_MAX,
        "SyncDecoupled": tuned(full, ordered=False, piped=False, predictor=TRUTH),
        "Oracle": tuned(full, predictor=TRUTH),
        **family(full),
    }


def family(full: EconoServe) -> dict[str, Policy | Preparing]:
    """Return what EconoServe is made of (section 4)."""
    return {
        "D": tuned(full, synced=False, ordered=False, piped=False),
        "SD": tuned(full, ordered=False, piped=False),
        "SDO": tuned(full, piped=False),
        "EconoServe": full,
    }


@dataclass(frozen=True)
class Outcome:
    """What a run comes to.

    Parameters
    ----------
    e2e
        Mean e2e latency, in s (the paper's JCT).
    per_token
        Normalised latency, in ms: the mean of e2e / O.
    tbt, tbt_p95
        Time between tokens, in ms: mean and 95th percentile.
    throughput
        Requests/s.
    forward
        Tokens of a batch, in the mean.
    kv, kv_median, kv_p99
        Occupied share of the cache: mean while batches run, and percentiles over all time.
    attained
        Share of the requests that meet their SLOs.
    failing
        Share of the requests that lose their KV, or send it to the host, at least once.
    waiting, paused, scheduling
        Shares of the e2e latency of all: before a request runs first; in which it has started and does not run; in
        which the scheduler considers requests, which is a part of the others.
    groups
        How many requests of the same output decode first in the same batch, for all such groups.
    """

    e2e: float
    per_token: float
    tbt: float
    tbt_p95: float
    throughput: float
    forward: float
    kv: float
    kv_median: float
    kv_p99: float
    attained: float
    failing: float
    waiting: float
    paused: float
    scheduling: float
    groups: tuple[int, ...]


def run(instance: Instance, policy: Policy | Preparing, seed: int = 0) -> Outcome:
    """Run a policy; the seed decides about predictions."""
    result = simulate(instance, policy, seed=seed)
    schedule, metrics = result.schedule, result.metrics
    assert schedule is not None
    assert metrics is not None
    requests, price = instance.requests, instance.cost.cpu_request
    begins: dict[int, int] = {}
    ends = completions(schedule)
    ran, filled = Counter[int](), Counter[int]()
    groups: Counter[tuple[int, int]] = Counter()
    for batch in schedule.batches:
        for index, count in batch.run:
            begins.setdefault(index, batch.start_ps)
            ran[index] += batch.end_ps - batch.start_ps
            groups[batch.start_ps, requests[index].output] += filled[index] == requests[index].input
            filled[index] += count
    starts = [batch.start_ps for batch in schedule.batches]
    spent = [0, *accumulate(batch.considered * batch.repeat * price for batch in schedule.batches)]
    waiting = paused = scheduling = total = 0
    for index, request in enumerate(requests):
        end = ends[index]
        waiting += begins[index] - request.arrival_ps
        paused += end - begins[index] - ran[index]
        scheduling += spent[bisect_right(starts, end)] - spent[bisect_right(starts, request.arrival_ps)]
        total += end - request.arrival_ps
    lost = {index for batch in schedule.batches for index in (*batch.evict, *batch.swap_out)}
    return Outcome(
        e2e=metrics["e2e_ps"]["mean"] / 1e12,
        per_token=metrics["e2e_per_output_ps"]["mean"] / 1e9,
        tbt=metrics["tbt_ps"]["mean"] / 1e9,
        tbt_p95=metrics["tbt_ps"]["p95"] / 1e9,
        throughput=metrics["requests_per_s"],
        forward=metrics["token_utilisation"] * instance.limits.batch_tokens,
        kv=metrics["kv_utilisation"],
        kv_median=metrics["kv_utilisation_over_time"]["p50"],
        kv_p99=metrics["kv_utilisation_over_time"]["p99"],
        attained=metrics["slo_attainment"],
        failing=len(lost) / len(requests),
        waiting=waiting / total,
        paused=paused / total,
        scheduling=scheduling / total,
        groups=tuple(size for size in groups.values() if size),
    )


def completions(schedule: Schedule) -> dict[int, int]:
    """Return when each request ends, in ps."""
    return {index: batch.end_ps for batch in schedule.batches for index, _ in batch.run}


@cache
def outcome(trace: str, seed: int, rate: float, policy: str, slo_scale: float | None = 2) -> Outcome:
    """Return what a scheduler of `policies` comes to; remembered."""
    return run(workload(trace, seed, rate, slo_scale=slo_scale), policies(trace)[policy], seed)


def sustained(makes: Callable[[float], Instance], policy: Policy | Preparing, seed: int, near: float) -> float:
    """Return the largest rate, to 3 %, at which normalised latency is 50 ms a token at most.

    Parameters
    ----------
    near
        A rate from which to look up and down.
    """

    def sustains(rate: float) -> bool:
        instance = makes(rate)
        # Most of the time of `simulate` is for what is not asked here.
        ready = ready_policy(policy, instance, Objective.MEAN_E2E, Restrictions(), seed)
        ends = completions(run_policy(instance, ready))
        requests = enumerate(instance.requests)
        return mean((ends[index] - one.arrival_ps) / one.output for index, one in requests) <= 50e9

    low = high = near
    if sustains(near):
        while sustains(high := _STRIDE * low):
            low = high
    else:
        while not sustains(low := high / _STRIDE):
            high = low
    while high / low > 1.03:
        middle = sqrt(low * high)
        low, high = (middle, high) if sustains(middle) else (low, middle)
    return low
