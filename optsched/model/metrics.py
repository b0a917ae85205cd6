"""Metrics of a legal schedule, exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from optsched.model.following import Load, Rise, follow
from optsched.model.instance import Instance
from optsched.model.latencies import FEW, TokenTimes, latency_metrics
from optsched.model.schedule import Schedule
from optsched.model.spread import Ramp, Spread, document
from optsched.model.timeline import moments


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
    instance.require_plain()
    return metrics(instance, tally_of(instance, schedule))


def tally_of(instance: Instance, schedule: Schedule) -> Tally:
    """Follow a legal schedule and count."""
    if schedule.tables is not None:
        from optsched.model.batch_tally import tally_tables  # noqa: PLC0415  # compiled code takes a while to load

        return tally_tables(instance, schedule.tables)
    times, sums, swapped = TokenTimes(len(instance.requests)), _Sums(), 0
    waiting, kv_tokens, batch_tokens = Counter[int](), Counter[int](), Counter[int]()
    ramps: list[Ramp] = []

    def played() -> Iterator[Load]:
        nonlocal swapped
        for followed in follow(instance, schedule):
            batch, work = followed.batch, followed.work
            swapped += work.out
            if batch.repeat == 1:
                times.note(work.generated, followed.states, batch.end_ps)
            else:
                times.note_repeats(work.generated, batch, followed.first_ps, followed.slower_ps)
            if batch.repeat <= FEW:
                for load in followed.loads():
                    sums.add(load)
                    yield load
                continue
            rise, last = followed.rise(), followed.last_load()
            sums.add_rise(rise)
            sums.add(last)
            # `moments` count the whole time for what is occupied before it.
            kv_tokens[rise.load.kv_tokens] -= rise.load.end_ps - rise.load.start_ps
            ramps.extend(rise.kv_tokens)
            yield rise.load
            yield last

    for moment, following in pairwise(moments(instance, played())):
        duration = following.time_ps - moment.time_ps
        waiting[moment.waiting] += duration
        kv_tokens[moment.kv_tokens] += duration
        batch_tokens[moment.tokens] += duration
    return Tally(
        first=times.first,
        last=times.latest,
        batches=schedule.length,
        evictions=schedule.evictions,
        tokens=sums.tokens,
        runs=sums.runs,
        resident=sums.resident,
        peak=sums.peak,
        busy=sums.busy,
        kv_time=sums.kv_time,
        gaps=times.between(),
        waiting=Spread.of(waiting),
        kv_tokens=Spread.of(kv_tokens, ramps),
        batch_tokens=Spread.of(batch_tokens),
        swaps=schedule.swaps,
        swapped_tokens=swapped,
    )


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
    limits = instance.limits
    objectives, latencies = latency_metrics(instance, tally.first, tally.last, tally.gaps)
    needed = sum(request.peak_tokens for request in instance.requests)
    return {
        "objectives": objectives,
        "batches": tally.batches,
        "evictions": tally.evictions,
        "recomputed_tokens": tally.tokens - needed,
        **({"swaps": tally.swaps, "swapped_tokens": tally.swapped_tokens} if instance.rules.swap else {}),
        "peak_kv_tokens": tally.peak,
        **latencies,
        "kv_utilisation": tally.kv_time / (limits.kv_tokens * tally.busy) if tally.busy else None,
        "token_utilisation": tally.tokens / (limits.batch_tokens * tally.batches),
        "queue_length_over_time": document(tally.waiting),
        "kv_utilisation_over_time": document(tally.kv_tokens, limits.kv_tokens),
        "token_utilisation_over_time": document(tally.batch_tokens, limits.batch_tokens),
        "mean_resident_requests": tally.resident / tally.batches,
        "mean_batch_requests": tally.runs / tally.batches,
    }
