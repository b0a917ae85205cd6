"""Problems as plain numbers, read from documents, and schedules played by the letter of the contract.

Nothing here is taken from the package that is tried: an instance document and a document of restrictions are all that
is read, and the rules are those of the contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True)
class TrialJob:
    """One request: tokens, ps, and SLOs that may be missing."""

    prompt: int
    output: int
    arrival: int
    weight: int
    slo_ttft: int | None
    slo_e2e: int | None


@dataclass(frozen=True)
class Case:
    """One problem on one machine, restrictions applied.

    Parameters
    ----------
    jobs
        The requests.
    blocks, block, tokens, prefill_tokens, runs
        Whole blocks of the cache, tokens of a block, C, P, and N or None.
    hybrid, chunked, eviction, swap
        What a schedule may do.
    evictions
        The most evictions of a schedule, None for any number.
    queue
        The order in which first runs must stand, empty for any.
    pieces
        ``(base, token)`` of each affine piece, in ps.
    decode_kv, decode_req, prefill_sq, prefill_kv, prefill_req
        Attention, in ps.
    out_kv, in_kv, overlap, cpu_batch
        The link in ps per token, its overlap in percent, and the scheduler's time per batch.
    """

    jobs: tuple[TrialJob, ...]
    blocks: int
    block: int
    tokens: int
    prefill_tokens: int
    runs: int | None
    hybrid: bool
    chunked: bool
    eviction: bool
    swap: bool
    evictions: int | None
    queue: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]
    decode_kv: int
    decode_req: int
    prefill_sq: int
    prefill_kv: int
    prefill_req: int
    out_kv: int
    in_kv: int
    overlap: int
    cpu_batch: int

    def held(self, tokens: int) -> int:
        """Return the blocks that so many cached tokens occupy."""
        full, rest = divmod(tokens, self.block)
        return full + (1 if rest else 0)

    def lasts(self, tokens: int, attention: int, out: int, back: int) -> int:
        """Return the duration of a batch from its tokens, its attention time, and the tokens on the link."""
        time = self.cpu_batch + max([base + slope * tokens for base, slope in self.pieces]) + attention
        link = out * self.out_kv + back * self.in_kv
        return time + max(0, link - time * self.overlap // 100)

    def attends(self, decoding: bool, run: int, cached: int) -> int:
        """Return the attention time of one step."""
        if decoding:
            return self.decode_req + cached * self.decode_kv
        return self.prefill_req + self.prefill_kv * cached + self.prefill_sq * ((cached + run) ** 2 - cached**2)

    @property
    def servable(self) -> bool:
        """Whether every request can be served alone."""
        return all(
            self.held(job.prompt + job.output - 1) <= self.blocks
            and (self.chunked or job.prompt <= self.prefill_tokens)
            for job in self.jobs
        )


def read_case(document: Document, restrictions: Document | None = None) -> Case:
    """Read an instance document with its coefficients spelled out, and what restricts schedules."""
    limits, rules, cost = document["limits"], document["rules"], document["cost"]
    allowed = restrictions or {}
    jobs = []
    for entry in document["requests"]:
        job = TrialJob(
            entry["input"],
            entry["output"],
            entry.get("arrival_ps", 0),
            entry.get("weight", 1),
            entry.get("slo_ttft_ps"),
            entry.get("slo_e2e_ps"),
        )
        jobs += [job] * entry.get("count", 1)
    forbidden = allowed.get("forbid", ())
    evictions = allowed.get("max_evictions")
    queue = tuple(allowed.get("order", ()))
    if "reordering" in forbidden:
        queue = tuple(place for _, place in sorted((job.arrival, place) for place, job in enumerate(jobs)))
    most = [number for number in (limits.get("batch_requests"), allowed.get("max_batch")) if number is not None]
    return Case(
        jobs=tuple(jobs),
        blocks=limits["kv_tokens"] // limits.get("kv_block", 1),
        block=limits.get("kv_block", 1),
        tokens=limits["batch_tokens"],
        prefill_tokens=limits["prefill_tokens"],
        runs=min(most) if most else None,
        hybrid=rules.get("hybrid", True) and "hybrid" not in forbidden,
        chunked=rules.get("chunked_prefill", True) and "chunked" not in forbidden,
        eviction=rules.get("eviction", True) and "eviction" not in forbidden,
        swap=rules.get("swap", False) and "swap" not in forbidden,
        evictions=evictions,
        queue=queue,
        pieces=((cost["base"], cost["token"]), *(tuple(piece) for piece in cost.get("pieces", ()))),
        decode_kv=cost.get("decode_kv", 0),
        decode_req=cost.get("decode_req", 0),
        prefill_sq=cost.get("prefill_sq", 0),
        prefill_kv=cost.get("prefill_kv", 0),
        prefill_req=cost.get("prefill_req", 0),
        out_kv=cost.get("swap_out_kv", 0),
        in_kv=cost.get("swap_in_kv", 0),
        overlap=cost.get("swap_overlap", 0),
        cpu_batch=cost.get("cpu_batch", 0),
    )


# Objectives ------------------------------------------------------------------------------------------------

OBJECTIVES = (
    "makespan",
    "mean_ttft",
    "max_ttft",
    "mean_e2e",
    "max_e2e",
    "weighted_e2e",
    "slo_misses",
    "p50_ttft",
    "p95_ttft",
    "p99_ttft",
    "p50_e2e",
    "p95_e2e",
    "p99_e2e",
    "mean_tpot",
    "p99_tbt",
)
BETWEEN_TOKENS = ("mean_tpot", "p99_tbt")
"""The objectives that look at times between tokens of a request; all others rise with the times of tokens."""


def value(case: Case, objective: str, tokens: Sequence[Sequence[int]]) -> int:
    """Return an objective of the times at which each request's tokens come."""
    match objective:
        case "mean_tpot":
            return sum((times[-1] - times[0]) // (len(times) - 1) for times in tokens if len(times) > 1)
        case "p99_tbt":
            between = [later - time for times in tokens for time, later in pairwise(times)]
            return _percentile(between, 99) if between else 0
        case _:
            return value_of_ends(case, objective, [times[0] for times in tokens], [times[-1] for times in tokens])


def value_of_ends(case: Case, objective: str, firsts: Sequence[int], lasts: Sequence[int]) -> int:
    """Return an objective of the times at which first and last tokens come; it rises with each of them."""
    jobs = case.jobs
    if objective == "makespan":
        return max(lasts) - min(job.arrival for job in jobs)
    ttft = [time - job.arrival for job, time in zip(jobs, firsts, strict=True)]
    e2e = [time - job.arrival for job, time in zip(jobs, lasts, strict=True)]
    if objective == "weighted_e2e":
        return sum(job.weight * latency for job, latency in zip(jobs, e2e, strict=True))
    if objective == "slo_misses":
        return sum(
            (job.slo_ttft is not None and first > job.slo_ttft) or (job.slo_e2e is not None and last > job.slo_e2e)
            for job, first, last in zip(jobs, ttft, e2e, strict=True)
        )
    statistic, _, latency = objective.partition("_")
    latencies = ttft if latency == "ttft" else e2e
    if statistic == "mean":
        return sum(latencies)
    if statistic == "max":
        return max(latencies)
    return _percentile(latencies, int(statistic[1:]))


def _percentile(numbers: Sequence[int], q: int) -> int:
    """Return the least of some numbers such that at least q percent of them are no larger."""
    ordered = sorted(numbers)
    return next(ordered[place] for place in range(len(ordered)) if 100 * (place + 1) >= q * len(ordered))


# Schedules -------------------------------------------------------------------------------------------------


class IllegalError(Exception):
    """A schedule breaks a rule."""


@dataclass
class _Held:
    generated: int = 0
    cached: int = 0
    host: bool = False
    decoding: bool = False
    started: bool = False
    tokens: list[int] = field(default_factory=list)


def play(case: Case, batches: Sequence[Document], considered_ps: int = 0) -> list[list[int]]:
    """Return when each request's tokens come in a schedule, given as in documents; raise `IllegalError` if it is none.

    ``considered_ps`` is the CPU's time for each queued request that a batch considers.
    """
    held = [_Held() for _ in case.jobs]
    clock, evicted = None, 0
    for entry in batches:
        start = entry["start_ps"]
        for _ in range(entry.get("repeat", 1)):
            _require(clock is None or start >= clock, "batches overlap")
            evicted += len(entry["evict"])
            clock = start + _batch(case, held, entry, start) + considered_ps * entry.get("considered", 0)
            for index, _ in entry["run"]:
                one, job = held[index], case.jobs[index]
                if one.cached == job.prompt + one.generated - 1 and one.decoding:
                    one.tokens.append(clock)
                if one.generated == job.output:
                    one.cached = 0
            start = clock
        _require(clock == entry["end_ps"], "a batch ends at another time")
    _require(all(one.generated == job.output for one, job in zip(held, case.jobs, strict=True)), "not all are served")
    _require(case.evictions is None or evicted <= case.evictions, "too many evictions")
    return [one.tokens for one in held]


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise IllegalError(rule)


def _batch(case: Case, held: list[_Held], entry: Document, start: int) -> int:
    """Carry out one batch and return how long it lasts, without what the scheduler considers."""
    runs = dict(map(tuple, entry["run"]))
    out, back, evict = entry.get("swap_out", ()), entry.get("swap_in", ()), entry["evict"]
    _require(len(runs) == len(entry["run"]) >= 1, "no run, or two of a request")
    _require(entry.get("replica", 0) == 0, "another machine")
    idle = [*evict, *out]
    _require(len(set(idle) | set(back)) == len(idle) + len(back) and not set(idle) & set(runs), "two things at once")
    _require(set(runs) | set(idle) | set(back) <= set(range(len(held))), "no such request")
    for index in (*runs, *idle, *back):
        _require(held[index].generated < case.jobs[index].output, "finished")
    for index in evict:
        _require(case.eviction and held[index].cached >= 1 and not held[index].host, "nothing to evict")
        held[index].cached, held[index].decoding = 0, False
    for index in out:
        _require(case.swap and held[index].cached >= 1 and not held[index].host, "nothing to swap out")
        held[index].host = True
    for index in back:
        _require(held[index].host, "nothing to swap in")
        held[index].host = False
    link = sum(held[index].cached for index in out), sum(held[index].cached for index in back)
    prefills = decodes = attention = 0
    for index, count in runs.items():
        one, job = held[index], case.jobs[index]
        _require(not one.host and job.arrival <= start, "runs on the host, or before it arrives")
        missing = job.prompt + one.generated - one.cached
        if one.decoding:
            _require(count == 1, "a decode step of more tokens")
            decodes += 1
        else:
            _require(1 <= count <= missing and (case.chunked or count == missing), "a wrong chunk")
            prefills += count
        attention += case.attends(one.decoding, count, one.cached)
        one.cached += count
        one.started = True
        if count == missing:
            one.generated += 1
            one.decoding = True
        else:
            one.decoding = False
    _require(decodes + prefills <= case.tokens and prefills <= case.prefill_tokens, "too many tokens")
    _require(case.runs is None or len(runs) <= case.runs, "too many runs")
    _require(case.hybrid or not (prefills and decodes), "mixed")
    _require(sum(case.held(one.cached) for one in held if not one.host) <= case.blocks, "too much memory")
    started = [held[index].started for index in case.queue]
    _require(started == sorted(started, reverse=True), "out of order")
    return case.lasts(decodes + prefills, attention, *link)
