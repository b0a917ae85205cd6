"""Objectives, exact."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Self

from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance, Request


class Latency(StrEnum):
    """What a request waits for from its arrival on: its first token, or its last."""

    TTFT = "ttft"
    E2E = "e2e"


class Objective(StrEnum):
    """What is minimised; the values are the names in documents and on the command line.

    Attributes
    ----------
    latency
        Of which it is a statistic; None for the makespan, missed SLOs, times between tokens and the largest load, which
        is an objective of several machines, or one with a cache.
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
    MEAN_TPOT = "mean_tpot"
    P99_TBT = "p99_tbt"
    MAX_LOAD = "max_load"

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
        """Whether values are sums over requests, shown divided by the number of those that count (`mean_count`)."""
        return self in {Objective.MEAN_TTFT, Objective.MEAN_E2E, Objective.MEAN_TPOT}

    @property
    def is_monotone(self) -> bool:
        """Whether no value falls if a token comes later.

        Times between tokens fall if the earlier of two tokens comes later. So a batch that starts later than it could
        may be better, and what is proved of batches that start as early as they can does not hold for all schedules.
        Loads do not follow from the times of tokens.
        """
        return self not in {Objective.MEAN_TPOT, Objective.P99_TBT, Objective.MAX_LOAD}

    @property
    def is_largest(self) -> bool:
        """Whether several machines have the largest of their values, makespans counted from the earliest arrival."""
        return self in {Objective.MAKESPAN, Objective.MAX_TTFT, Objective.MAX_E2E}

    @property
    def is_sum(self) -> bool:
        """Whether several machines have the sum of their values."""
        return self in {Objective.MEAN_TTFT, Objective.MEAN_E2E, Objective.WEIGHTED_E2E, Objective.SLO_MISSES}

    def mean_count(self, requests: Sequence[Request]) -> int:
        """Return what a value is divided by where it is shown: for means how many requests count, 1 for none."""
        if self is Objective.MEAN_TPOT:
            return max(1, sum(request.output > 1 for request in requests))
        return len(requests) if self.is_mean else 1


PLAIN_OBJECTIVES: tuple[Objective, ...] = tuple(name for name in Objective if name is not Objective.MAX_LOAD)
"""Those of one machine without a cache."""
PS_PER_S = 10**12


def require_objective(instance: Instance, objective: Objective) -> None:
    """Raise `InputError` if an instance has no such objective."""
    if objective not in PLAIN_OBJECTIVES and not instance.is_cluster:
        raise InputError("objective", objective.value, "another one: the instance has one machine and no cache")


def find_objective(name: Objective | str) -> Objective:
    """Return an objective by its name; one itself stays what it is."""
    try:
        return Objective(name)
    except ValueError:
        raise InputError("objective", name, one_of(name, Objective)) from None


def in_seconds(instance: Instance, objective: Objective, value: int | None) -> float | None:
    """Return a value in seconds, of means the mean; None for none, and for missed SLOs, which are no time."""
    if value is None or objective == Objective.SLO_MISSES:
        return None
    return value / (objective.mean_count(instance.requests) * PS_PER_S)


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
    """Return which of ``count`` values, counted from 1 in ascending order, is percentile q: ceil(q n / 100)."""
    return -(-q * count // 100)


def percentile(values: Sequence[Any], q: int) -> Any:
    """Return percentile q of the values."""
    return sorted(values)[percentile_rank(q, len(values)) - 1]


def misses_slo(request: Request, ttft: int, e2e: int) -> bool:
    """Whether latencies violate any SLO that a request has."""
    return (request.slo_ttft_ps is not None and ttft > request.slo_ttft_ps) or (
        request.slo_e2e_ps is not None and e2e > request.slo_e2e_ps
    )


def value_at(requests: Sequence[Request], objective: Objective, ttft: Sequence[int], e2e: Sequence[int]) -> int:
    """Return a monotone objective's value if requests have these latencies, in ps; it rises with each of them."""
    if not objective.is_monotone:
        raise ValueError(f"{objective.value} does not rise with TTFT and e2e latency")
    return value_of(requests, objective, ttft, e2e)


def value_of(requests: Sequence[Request], objective: Objective, ttft: Sequence[int], e2e: Sequence[int]) -> int:
    """Return an objective's value if requests have these latencies, in ps; not ``p99_tbt`` and ``max_load``."""
    latencies = ttft if objective.latency is Latency.TTFT else e2e
    if objective.percentile is not None:
        return int(percentile(latencies, objective.percentile))
    match objective:
        case Objective.MAKESPAN:
            end = max(request.arrival_ps + last for request, last in zip(requests, e2e, strict=True))
            return end - min(request.arrival_ps for request in requests)
        case Objective.WEIGHTED_E2E:
            return sum(request.weight * last for request, last in zip(requests, e2e, strict=True))
        case Objective.SLO_MISSES:
            return sum(map(misses_slo, requests, ttft, e2e))
        case Objective.MEAN_TPOT:
            return sum(
                (last - first) // (request.output - 1)
                for request, first, last in zip(requests, ttft, e2e, strict=True)
                if request.output > 1
            )
        case Objective.P99_TBT | Objective.MAX_LOAD:
            raise ValueError(f"{objective.value} does not follow from TTFT and e2e latency")
        case _:
            return sum(latencies) if objective.is_mean else max(latencies)
