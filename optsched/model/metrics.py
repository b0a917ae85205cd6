"""Metrics of a legal schedule, exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import truediv
from typing import Any

from optsched.model.instance import Instance
from optsched.model.objectives import Objective, percentile, value_at
from optsched.model.schedule import Batch, Progress, Schedule, follow

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Tally:
    """What metrics need to know of a schedule.

    Parameters
    ----------
    first, last
        When every request has its first and its last token, ps.
    batches, evictions, tokens, runs
        How many there are in all.
    resident
        Requests that hold KV, summed over batches.
    peak
        Most KV tokens that a batch occupies.
    busy
        Duration of all batches, ps.
    kv_time
        KV tokens occupied times duration, summed over batches.
    swaps, swapped_tokens
        How often KV leaves for the host, and how many tokens in all.
    """

    first: list[int]
    last: list[int]
    batches: int
    evictions: int
    tokens: int
    runs: int
    resident: int
    peak: int
    busy: int
    kv_time: int
    swaps: int = 0
    swapped_tokens: int = 0


def evaluate(instance: Instance, schedule: Schedule) -> dict[str, Any]:
    """Return all objective values and metrics of a legal schedule (see `metrics`)."""
    return metrics(instance, tally_of(instance, schedule))


def tally_of(instance: Instance, schedule: Schedule) -> Tally:
    """Follow a legal schedule and count."""
    requests, limits = instance.requests, instance.limits
    first, last = [0] * len(requests), [0] * len(requests)
    resident: dict[int, int] = {}  # request -> occupied KV tokens in its latest batch
    occupied = tokens_run = runs = resident_sum = peak = 0
    kv_time = busy = swapped = 0
    for batch, states in follow(instance, schedule):
        for index in (*batch.evict, *batch.swap_out):
            occupied -= resident.pop(index, 0)
        swapped += sum(states[index].swapped for index in batch.swap_out)
        for index in batch.swap_in:
            resident[index] = limits.occupied(states[index].cached)
            occupied += resident[index]
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
    return Tally(
        first,
        last,
        schedule.length,
        schedule.evictions,
        tokens_run,
        runs,
        resident_sum,
        peak,
        busy,
        kv_time,
        schedule.swaps,
        swapped,
    )


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
        duration = instance.cost.batch_ps(decodes, decodes, read + number * decodes, ())
        yield held, duration + instance.cost.besides_ps(duration, 0, 0, batch.considered)


def metrics(instance: Instance, tally: Tally) -> dict[str, Any]:
    """Return all objective values and metrics of what a legal schedule does.

    Returns
    -------
    dict
        ``objectives``: every objective of `Objective`, integers (ps, for means the sum over requests in
        ps, for ``slo_misses`` a number of requests). Besides: counts (``batches``, ``evictions``,
        ``recomputed_tokens``: tokens run beyond the I + O − 1 that each request needs; where swapping is allowed
        ``swaps`` and ``swapped_tokens``: how often KV leaves for the host, how many tokens), ``peak_kv_tokens``
        (occupied, in whole blocks), percentiles and means of TTFT, e2e latency (ps), TPOT (ps per token;
        requests with one output token left out), normalised TTFT (TTFT / I) and latency (e2e / O),
        throughputs, SLO attainment, goodput (requests per second that meet their SLOs), time-weighted KV
        utilisation (occupied share of M while a batch runs), token-budget utilisation (share of C, per
        batch) and mean numbers per batch of resident requests and of runs. Ratios are floats, each rounded
        once from an exact quotient.
    """
    requests, limits = instance.requests, instance.limits
    ttft = [end - request.arrival_ps for end, request in zip(tally.first, requests, strict=True)]
    e2e = [end - request.arrival_ps for end, request in zip(tally.last, requests, strict=True)]
    decoding = [index for index, request in enumerate(requests) if request.output > 1]
    decode_ps = [e2e[index] - ttft[index] for index in decoding]
    objectives = {objective.value: value_at(instance, objective, ttft, e2e) for objective in Objective}
    makespan, misses = objectives[Objective.MAKESPAN.value], objectives[Objective.SLO_MISSES.value]
    count, output = len(requests), sum(request.output for request in requests)
    needed = sum(request.peak_tokens for request in requests)

    def per_second(amount: int) -> float | None:
        return amount * 10**12 / makespan if makespan else None

    return {
        "objectives": objectives,
        "batches": tally.batches,
        "evictions": tally.evictions,
        "recomputed_tokens": tally.tokens - needed,
        **({"swaps": tally.swaps, "swapped_tokens": tally.swapped_tokens} if instance.rules.swap else {}),
        "peak_kv_tokens": tally.peak,
        "ttft_ps": _summary(ttft),
        "tpot_ps": _ratios(decode_ps, [requests[index].output - 1 for index in decoding]),
        "e2e_ps": _summary(e2e),
        "ttft_per_input_ps": _ratios(ttft, [request.input for request in requests]),
        "e2e_per_output_ps": _ratios(e2e, [request.output for request in requests]),
        "output_tokens_per_s": per_second(output),
        "requests_per_s": per_second(count),
        "goodput_requests_per_s": per_second(count - misses),
        "slo_attainment": (count - misses) / count,
        "kv_utilisation": tally.kv_time / (limits.kv_tokens * tally.busy) if tally.busy else None,
        "token_utilisation": tally.tokens / (limits.batch_tokens * tally.batches),
        "mean_resident_requests": tally.resident / tally.batches,
        "mean_batch_requests": tally.runs / tally.batches,
    }


def _summary(values: Sequence[int]) -> dict[str, int | float] | None:
    """Mean and percentiles of ``values``; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    return {"mean": sum(values) / len(values)} | _shares(ordered)


def _ratios(numerators: Sequence[int], denominators: Sequence[int]) -> dict[str, int | float] | None:
    """Mean and percentiles of quotients, each rounded once; None of no values.

    Rounding keeps their order, so that percentiles of rounded quotients are rounded percentiles.
    """
    if not numerators:
        return None
    sums = dict.fromkeys(denominators, 0)
    for numerator, denominator in zip(numerators, denominators, strict=True):
        sums[denominator] += numerator
    exact = sum((Fraction(total, denominator) for denominator, total in sums.items()), Fraction(0)) / len(numerators)
    return {"mean": float(exact)} | _shares(sorted(map(truediv, numerators, denominators)))


def _shares(ordered: Sequence[Any]) -> dict[str, Any]:
    return {f"p{q}": percentile(ordered, q) for q in PERCENTILES} | {"max": ordered[-1]}
