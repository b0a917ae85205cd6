"""Metrics of a legal schedule, exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from operator import truediv
from typing import Any

from optsched.model.instance import Instance
from optsched.model.objectives import PLAIN_OBJECTIVES, Objective, percentile_rank, value_of
from optsched.model.schedule import Followed, Schedule, follow
from optsched.model.spread import PERCENTILES, Ramp, Spread
from optsched.model.timeline import Load, Rise, last_load, loads_of, moments, rise_of

_FEW = 1000
"""Batches that are repeated more often are counted by formulas, which for fewer of them would take longer."""


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
    gaps
        Times between consecutive tokens of a request, ps; None if there are none.
    waiting, kv_tokens, batch_tokens
        Queue length, KV tokens occupied and tokens that run (`optsched.model.timeline.Moment`), weighted by time,
        from the earliest arrival to the end of the last batch; None if these are the same.
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
    gaps: Spread | None
    waiting: Spread | None
    kv_tokens: Spread | None
    batch_tokens: Spread | None
    swaps: int = 0
    swapped_tokens: int = 0


def evaluate(instance: Instance, schedule: Schedule) -> dict[str, Any]:
    """Return all objective values and metrics of a legal schedule (see `metrics`)."""
    return metrics(instance, tally_of(instance, schedule))


def tally_of(instance: Instance, schedule: Schedule) -> Tally:
    """Follow a legal schedule and count."""
    outputs, sums, swapped = _Outputs(len(instance.requests)), _Sums(), 0
    waiting, kv_tokens, batch_tokens = Counter[int](), Counter[int](), Counter[int]()
    ramps: list[Ramp] = []

    def played() -> Iterator[Load]:
        nonlocal swapped
        for followed in follow(instance, schedule):
            if followed.batch.repeat > _FEW:
                rise = rise_of(instance, followed)
                last = last_load(followed, rise.load.end_ps)
                outputs.note_rise(followed, rise, last)
                sums.add_rise(rise)
                sums.add(last)
                # `moments` count the whole time for what is occupied before it.
                kv_tokens[rise.load.kv_tokens] -= rise.load.end_ps - rise.load.start_ps
                ramps.extend(rise.kv_tokens)
                yield rise.load
                yield last
                continue
            loads = loads_of(instance, followed)
            outputs.note(followed, loads)
            swapped += followed.work.out
            for load in loads:
                sums.add(load)
                yield load

    for moment, following in pairwise(moments(instance, played())):
        duration = following.time_ps - moment.time_ps
        waiting[moment.waiting] += duration
        kv_tokens[moment.kv_tokens] += duration
        batch_tokens[moment.tokens] += duration
    return Tally(
        first=outputs.first,
        last=outputs.latest,
        batches=schedule.length,
        evictions=schedule.evictions,
        tokens=sums.tokens,
        runs=sums.runs,
        resident=sums.resident,
        peak=sums.peak,
        busy=sums.busy,
        kv_time=sums.kv_time,
        gaps=Spread.of(outputs.gaps, outputs.rising_gaps),
        waiting=Spread.of(waiting),
        kv_tokens=Spread.of(kv_tokens, ramps),
        batch_tokens=Spread.of(batch_tokens),
        swaps=schedule.swaps,
        swapped_tokens=swapped,
    )


class _Outputs:
    """When requests have their first and their latest token, and how often which time lies between two."""

    def __init__(self, count: int) -> None:
        self.first, self.latest = [0] * count, [0] * count
        self.gaps: Counter[int] = Counter()
        self.rising_gaps: list[Ramp] = []

    def note(self, followed: Followed, loads: Sequence[Load]) -> None:
        """Note the tokens of a batch and its repeats."""
        latest, gaps, states = self.latest, self.gaps, followed.states
        first, last, repeat = loads[0].end_ps, followed.batch.end_ps, followed.batch.repeat
        for index in followed.work.generated:
            if states[index].generated > repeat:
                gaps[first - latest[index]] += 1
            else:
                self.first[index] = first
            latest[index] = last
        for load in loads[1:]:
            gaps[load.end_ps - load.start_ps] += load.running

    def note_rise(self, followed: Followed, rise: Rise, last: Load) -> None:
        """Note the tokens of a batch of decode steps that is repeated many times."""
        for index in followed.work.generated:
            self.gaps[rise.load.start_ps + rise.first_ps - self.latest[index]] += 1
            self.latest[index] = last.end_ps
        second = rise.first_ps + rise.slower_ps
        self.rising_gaps.append(Ramp(second, rise.slower_ps, last.running, 0, rise.times - 1))
        self.gaps[last.end_ps - last.start_ps] += last.running


class _Sums:
    """Sums over batches, and the most KV tokens that one occupies."""

    def __init__(self) -> None:
        self.tokens = self.runs = self.resident = self.peak = self.busy = self.kv_time = 0

    def add(self, load: Load) -> None:
        """Count one batch."""
        duration = load.end_ps - load.start_ps
        self.tokens += load.tokens
        self.runs += load.running
        self.resident += load.resident
        self.peak = max(self.peak, load.kv_tokens)
        self.busy += duration
        self.kv_time += load.kv_tokens * duration

    def add_rise(self, rise: Rise) -> None:
        """Count a batch that is repeated many times, but for the last time, which occupies more."""
        load = rise.load
        self.tokens += rise.times * load.tokens
        self.runs += rise.times * load.running
        self.resident += rise.times * load.resident
        self.busy += load.end_ps - load.start_ps
        self.kv_time += sum(ramp.total for ramp in rise.kv_tokens)


def metrics(instance: Instance, tally: Tally) -> dict[str, Any]:
    """Return all objective values and metrics of what a legal schedule does.

    Returns
    -------
    dict
        ``objectives``: every objective of `PLAIN_OBJECTIVES`, integers (ps, for means the sum over requests in
        ps, each request's TPOT rounded down, for ``slo_misses`` a number of requests). Besides: counts
        (``batches``, ``evictions``, ``recomputed_tokens``: tokens run beyond the I + O − 1 that each request needs;
        where swapping is allowed ``swaps`` and ``swapped_tokens``: how often KV leaves for the host, how many
        tokens), ``peak_kv_tokens`` (occupied, in whole blocks), percentiles and means of TTFT, e2e latency (ps), TPOT
        (ps per token; requests with one output token left out), normalised TTFT (TTFT / I) and latency (e2e / O), of
        TBT (``tbt_ps``: from one token of a request to its next, over all such pairs of all requests),
        throughputs, SLO attainment, goodput (requests per second that meet their SLOs), time-weighted KV
        utilisation (occupied share of M while a batch runs), token-budget utilisation (share of C, per
        batch) and mean numbers per batch of resident requests and of runs.

        What ends in ``_over_time`` is a distribution over the time from the earliest arrival to the end of the last
        batch, idle times included: the mean is weighted by time, and percentile q the smallest value that is not
        exceeded for at least q percent of that time; None if no time passes. `Moment` says what holds when: queue
        length, occupied share of M, and tokens run as share of C.

        Ratios are floats, each rounded once from an exact quotient.
    """
    requests, limits = instance.requests, instance.limits
    ttft = [end - request.arrival_ps for end, request in zip(tally.first, requests, strict=True)]
    e2e = [end - request.arrival_ps for end, request in zip(tally.last, requests, strict=True)]
    decoding = [index for index, request in enumerate(requests) if request.output > 1]
    decode_ps = [e2e[index] - ttft[index] for index in decoding]
    # Sorting takes longest, and quick is what is sorted already: a percentile minds no order.
    ordered = sorted(ttft), sorted(e2e)
    objectives = {
        objective.value: value_of(instance, objective, *((ttft, e2e) if objective.percentile is None else ordered))
        for objective in PLAIN_OBJECTIVES
        if objective is not Objective.P99_TBT
    }
    objectives[Objective.P99_TBT.value] = 0 if tally.gaps is None else tally.gaps.percentile(99)
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
        "ttft_ps": summary(ordered[0]),
        "tpot_ps": ratios(decode_ps, [requests[index].output - 1 for index in decoding]),
        "tbt_ps": document(tally.gaps),
        "e2e_ps": summary(ordered[1]),
        "ttft_per_input_ps": ratios(ttft, [request.input for request in requests]),
        "e2e_per_output_ps": ratios(e2e, [request.output for request in requests]),
        "output_tokens_per_s": per_second(output),
        "requests_per_s": per_second(count),
        "goodput_requests_per_s": per_second(count - misses),
        "slo_attainment": (count - misses) / count,
        "kv_utilisation": tally.kv_time / (limits.kv_tokens * tally.busy) if tally.busy else None,
        "token_utilisation": tally.tokens / (limits.batch_tokens * tally.batches),
        "queue_length_over_time": document(tally.waiting),
        "kv_utilisation_over_time": document(tally.kv_tokens, limits.kv_tokens),
        "token_utilisation_over_time": document(tally.batch_tokens, limits.batch_tokens),
        "mean_resident_requests": tally.resident / tally.batches,
        "mean_batch_requests": tally.runs / tally.batches,
    }


def summary(ordered: Sequence[int]) -> dict[str, int | float]:
    """Mean and percentiles of values in ascending order."""
    return {"mean": sum(ordered) / len(ordered)} | _shares(ordered)


def ratios(numerators: Sequence[int], denominators: Sequence[int]) -> dict[str, int | float] | None:
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
    ranks = {q: percentile_rank(q, len(ordered)) for q in PERCENTILES}
    return {f"p{q}": ordered[rank - 1] for q, rank in ranks.items()} | {"max": ordered[-1]}


def document(spread: Spread | None, unit: int | None = None) -> dict[str, int | float] | None:
    """Return a distribution as documents have it; None for none."""
    return None if spread is None else spread.document(unit)
