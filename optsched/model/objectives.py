"""Objectives and metrics of a legal schedule, exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Any, Self

from optsched.model.instance import Instance, Request
from optsched.model.schedule import Batch, Progress, Schedule, follow

PERCENTILES = (50, 90, 95, 99)


class Latency(StrEnum):
    """What a request waits for from its arrival on: its first token, or its last."""

    TTFT = "ttft"
    E2E = "e2e"


class Objective(StrEnum):
    """What is minimised; the values are the names in documents and on the command line.

    Attributes
    ----------
    latency
        Of which it is a statistic; None for the makespan and for missed SLOs.
    percentile
        Which of its percentiles it is, q; None if it is none.
    """

    MAKESPAN = "makespan"
    MEAN_TTFT = "mean_ttft", Latency.TTFT
    MAX_TTFT = "max_ttft", Latency.TTFT
    MEAN_E2E = "mean_e2e", Latency.E2E
    MAX_E2E = "max_e2e", Latency.E2E
    WEIGHTED_E2E = "weighted_e2e", Latency.E2E
    SLO_MISSES = "slo_misses"
    P50_TTFT = "p50_ttft", Latency.TTFT, 50
    P95_TTFT = "p95_ttft", Latency.TTFT, 95
    P99_TTFT = "p99_ttft", Latency.TTFT, 99
    P50_E2E = "p50_e2e", Latency.E2E, 50
    P95_E2E = "p95_e2e", Latency.E2E, 95
    P99_E2E = "p99_e2e", Latency.E2E, 99

    latency: Latency | None
    percentile: int | None

    def __new__(cls, name: str, latency: Latency | None = None, percentile: int | None = None) -> Self:
        """Make the objective of that name."""
        self = str.__new__(cls, name)
        self._value_ = name
        self.latency, self.percentile = latency, percentile
        return self

    @property
    def is_mean(self) -> bool:
        """Whether values are sums over requests, shown divided by their number."""
        return self in {Objective.MEAN_TTFT, Objective.MEAN_E2E}


def gap(value: int | None, bound: int | None) -> float | None:
    """Return ``(value - bound) / value``: the share of the value that a better schedule could remove at most.

    0 if the two are equal, None if either is missing or the value is 0 and the bound is not.
    """
    if value is None or bound is None:
        return None
    if value == bound:
        return 0.0
    return (value - bound) / value if value else None


def percentile_rank(q: int, count: int) -> int:
    """Return which of so many values, counted from 1 in ascending order, is percentile q: ceil(q n / 100)."""
    return -(-q * count // 100)


def percentile(values: Sequence[Any], q: int) -> Any:
    """Return percentile q of the values."""
    return sorted(values)[percentile_rank(q, len(values)) - 1]


def misses_slo(request: Request, ttft: int, e2e: int) -> bool:
    """Whether latencies violate any SLO that a request has."""
    return (request.slo_ttft_ps is not None and ttft > request.slo_ttft_ps) or (
        request.slo_e2e_ps is not None and e2e > request.slo_e2e_ps
    )


def value_at(instance: Instance, objective: Objective, ttft: Sequence[int], e2e: Sequence[int]) -> int:
    """Return an objective's value if requests have these latencies, in ps; it rises with each of them."""
    requests = instance.requests
    latencies = ttft if objective.latency is Latency.TTFT else e2e
    if objective.percentile is not None:
        return int(percentile(latencies, objective.percentile))
    match objective:
        case Objective.MAKESPAN:
            end = max(request.arrival_ps + last for request, last in zip(requests, e2e, strict=True))
            return end - instance.start_ps
        case Objective.WEIGHTED_E2E:
            return sum(request.weight * last for request, last in zip(requests, e2e, strict=True))
        case Objective.SLO_MISSES:
            return sum(map(misses_slo, requests, ttft, e2e))
        case _:
            return sum(latencies) if objective.is_mean else max(latencies)


def evaluate(instance: Instance, schedule: Schedule) -> dict[str, Any]:
    """Return all objective values and metrics of a legal schedule.

    Returns
    -------
    dict
        ``objectives``: every objective of `Objective`, integers (ps, for means the sum over requests in
        ps, for ``slo_misses`` a number of requests). Besides: counts (``batches``, ``evictions``,
        ``recomputed_tokens``: tokens run beyond the I + O − 1 that each request needs), ``peak_kv_tokens``
        (occupied, in whole blocks), percentiles and means of TTFT, e2e latency (ps), TPOT (ps per token;
        requests with one output token left out), normalised TTFT (TTFT / I) and latency (e2e / O),
        throughputs, SLO attainment, goodput (requests per second that meet their SLOs), time-weighted KV
        utilisation (occupied share of M while a batch runs), token-budget utilisation (share of C, per
        batch) and mean numbers per batch of resident requests and of runs. Ratios are floats, each rounded
        once from an exact quotient.
    """
    requests, limits = instance.requests, instance.limits
    first, last = [0] * len(requests), [0] * len(requests)
    resident: dict[int, int] = {}  # request -> occupied KV tokens in its latest batch
    occupied = tokens_run = runs = resident_sum = peak = 0
    kv_time = busy = 0
    for batch, states in follow(instance, schedule):
        for index in batch.evict:
            occupied -= resident.pop(index, 0)
        begin = batch.start_ps
        for held, duration in _before_the_last(instance, batch, states):
            kv_time += (occupied + held) * duration
            begin += duration
        done = []
        for index, count in batch.run:
            state = states[index]
            held = limits.occupied(state.cached + batch.repeat - 1 + count)
            occupied += held - resident.get(index, 0)
            resident[index] = held
            tokens_run += count * batch.repeat
            if count == state.missing:
                if state.generated == 0:
                    first[index] = batch.end_ps
                if state.generated + batch.repeat == requests[index].output:
                    last[index] = batch.end_ps
                    done.append(index)
        kv_time += occupied * (batch.end_ps - begin)
        busy += batch.end_ps - batch.start_ps
        peak = max(peak, occupied)
        runs += len(batch.run) * batch.repeat
        resident_sum += len(resident) * batch.repeat
        for index in done:
            occupied -= resident.pop(index)

    ttft = [end - request.arrival_ps for end, request in zip(first, requests, strict=True)]
    e2e = [end - request.arrival_ps for end, request in zip(last, requests, strict=True)]
    tpot = [
        Fraction(whole - start, request.output - 1)
        for start, whole, request in zip(ttft, e2e, requests, strict=True)
        if request.output > 1
    ]
    objectives = {objective.value: value_at(instance, objective, ttft, e2e) for objective in Objective}
    makespan, misses = objectives[Objective.MAKESPAN.value], objectives[Objective.SLO_MISSES.value]
    count, output = len(requests), sum(request.output for request in requests)
    needed = sum(request.peak_tokens for request in requests)
    norm_ttft = [Fraction(t, request.input) for t, request in zip(ttft, requests, strict=True)]
    norm_e2e = [Fraction(t, request.output) for t, request in zip(e2e, requests, strict=True)]

    def per_second(amount: int) -> float | None:
        return amount * 10**12 / makespan if makespan else None

    return {
        "objectives": objectives,
        "batches": schedule.length,
        "evictions": schedule.evictions,
        "recomputed_tokens": tokens_run - needed,
        "peak_kv_tokens": peak,
        "ttft_ps": _summary(ttft),
        "tpot_ps": _summary(tpot),
        "e2e_ps": _summary(e2e),
        "ttft_per_input_ps": _summary(norm_ttft),
        "e2e_per_output_ps": _summary(norm_e2e),
        "output_tokens_per_s": per_second(output),
        "requests_per_s": per_second(count),
        "goodput_requests_per_s": per_second(count - misses),
        "slo_attainment": (count - misses) / count,
        "kv_utilisation": kv_time / (limits.kv_tokens * busy) if busy else None,
        "token_utilisation": tokens_run / (limits.batch_tokens * schedule.length),
        "mean_resident_requests": resident_sum / schedule.length,
        "mean_batch_requests": runs / schedule.length,
    }


def _before_the_last(instance: Instance, batch: Batch, states: list[Progress]) -> Iterator[tuple[int, int]]:
    """Say of all but the last of repeated batches how many more KV tokens are occupied in it, and how long it takes."""
    if batch.repeat == 1:
        return
    block, decodes = instance.limits.kv_block, len(batch.run)
    read = sum(states[index].cached for index, _ in batch.run)
    places = Counter(states[index].cached % block for index, _ in batch.run)
    held = 0
    for number in range(batch.repeat - 1):
        # Whoever has filled its last block takes another one.
        held += block * places[-number % block]
        yield held, instance.cost.batch_ps(decodes, decodes, read + number * decodes, ())


def _summary(values: Sequence[int] | Sequence[Fraction]) -> dict[str, int | float] | None:
    """Mean and percentiles of ``values``; None of no values."""
    if not values:
        return None
    exact = sum(values, Fraction(0)) / len(values)
    ordered = sorted(values)
    shares = {f"p{q}": percentile(ordered, q) for q in PERCENTILES} | {"max": ordered[-1]}
    return {"mean": float(exact)} | {name: _plain(value) for name, value in shares.items()}


def _plain(value: int | Fraction) -> int | float:
    return value if isinstance(value, int) else float(value)
