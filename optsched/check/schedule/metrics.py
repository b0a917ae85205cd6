"""The metrics of a schedule that has been replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from optsched.check.problem import Problem, percentile_of
from optsched.check.schedule.over_time import weighted_distribution
from optsched.check.schedule.replay import Replay
from optsched.model.instance import Request

if TYPE_CHECKING:
    from optsched.check.schedule.arrays import ArrayReplay

_PS_PER_S = 10**12


def metrics_of(problem: Problem, replay: Replay | ArrayReplay) -> dict[str, Any]:
    """Return all objectives and metrics of a complete legal replay, each ratio rounded once.

    For the meaning of each see `optsched.model.metrics.evaluate`, of which this is the second writing.
    """
    requests, limits, totals, states = problem.requests, problem.limits, replay.totals, replay.states
    latencies = Latencies(
        requests,
        [state.first_token_ps - state.request.arrival_ps for state in states],
        [state.last_token_ps - state.request.arrival_ps for state in states],
        replay.end_ps - min(request.arrival_ps for request in requests),
        weighted_distribution(replay.gaps, replay.repeated_gaps),
    )
    kv_time = limits.kv_block * totals.block_time
    return {
        "objectives": latencies.objectives(),
        "batches": totals.batches,
        "evictions": totals.evictions,
        "recomputed_tokens": totals.tokens - sum(r.input + r.output - 1 for r in requests),
        "peak_kv_tokens": totals.most_blocks * limits.kv_block,
        **latencies.metrics(),
        "kv_utilisation": ratio(kv_time, limits.kv_tokens * totals.busy_ps),
        "token_utilisation": ratio(totals.tokens, limits.batch_tokens * totals.batches),
        **replay.time.metrics([state.last_token_ps for state in states]),
        "mean_resident_requests": ratio(totals.resident, totals.batches),
        "mean_batch_requests": ratio(totals.runs, totals.batches),
    }


@dataclass(frozen=True)
class Latencies:
    """What a schedule means for its requests, on whatever machines.

    Parameters
    ----------
    requests
        The requests.
    waits, stays
        TTFT and e2e latency of each, ps.
    makespan
        From the earliest arrival to the end of the last batch, ps.
    between
        The distribution of the times between tokens.
    """

    requests: Sequence[Request]
    waits: Sequence[int]
    stays: Sequence[int]
    makespan: int
    between: dict[str, int | float] | None

    @cached_property
    def _ascending(self) -> tuple[list[int], list[int]]:
        """Waits and stays, from the least on."""
        return sorted(self.waits), sorted(self.stays)

    @cached_property
    def _missed(self) -> int:
        return sum(map(_misses_slo, self.requests, self.waits, self.stays))

    @cached_property
    def _spacing(self) -> list[tuple[int, int]]:
        """Time from the first token to the last, and the tokens after the first, where there are any."""
        return [
            (stay - wait, r.output - 1)
            for r, wait, stay in zip(self.requests, self.waits, self.stays, strict=True)
            if r.output > 1
        ]

    def objectives(self) -> dict[str, int]:
        """Return the objectives."""
        requests, waits, stays = self.requests, self.waits, self.stays
        waits_up, stays_up = self._ascending
        return {
            "makespan": self.makespan,
            "mean_ttft": sum(waits),
            "max_ttft": max(waits),
            "mean_e2e": sum(stays),
            "max_e2e": max(stays),
            "weighted_e2e": sum(r.weight * stay for r, stay in zip(requests, stays, strict=True)),
            "slo_misses": self._missed,
            **{f"p{q}_ttft": percentile_of(waits_up, q) for q in (50, 95, 99)},
            **{f"p{q}_e2e": percentile_of(stays_up, q) for q in (50, 95, 99)},
            "mean_tpot": sum(time // tokens for time, tokens in self._spacing),
            "p99_tbt": 0 if self.between is None else int(self.between["p99"]),
        }

    def metrics(self) -> dict[str, Any]:
        """Return distributions, throughputs and how many requests meet their SLOs."""
        requests, waits, stays, met = self.requests, self.waits, self.stays, len(self.requests) - self._missed
        waits_up, stays_up = self._ascending
        return {
            "ttft_ps": _distribution(waits_up),
            "tpot_ps": _quotients(self._spacing),
            "tbt_ps": self.between,
            "e2e_ps": _distribution(stays_up),
            "ttft_per_input_ps": _quotients([(wait, r.input) for r, wait in zip(requests, waits, strict=True)]),
            "e2e_per_output_ps": _quotients([(stay, r.output) for r, stay in zip(requests, stays, strict=True)]),
            "output_tokens_per_s": ratio(sum(r.output for r in requests) * _PS_PER_S, self.makespan),
            "requests_per_s": ratio(len(requests) * _PS_PER_S, self.makespan),
            "goodput_requests_per_s": ratio(met * _PS_PER_S, self.makespan),
            "slo_attainment": ratio(met, len(requests)),
        }


def swaps_of(replay: Replay | ArrayReplay) -> dict[str, int]:
    """Return what is said of swaps where the instance allows them."""
    return {
        "swaps": replay.totals.swaps,
        "swapped_tokens": replay.totals.swapped_tokens,
    }


def _misses_slo(request: Request, wait: int, stay: int) -> bool:
    """Whether a request violates any SLO that it has."""
    late_start = request.slo_ttft_ps is not None and wait > request.slo_ttft_ps
    late_end = request.slo_e2e_ps is not None and stay > request.slo_e2e_ps
    return late_start or late_end


def ratio(numerator: int, denominator: int) -> float | None:
    """Return the quotient, rounded once; None if it is undefined."""
    return float(Fraction(numerator, denominator)) if denominator else None


def _distribution(values: Sequence[int]) -> dict[str, int | float] | None:
    """Return mean, percentiles and maximum; None of no values."""
    return _ranked(sorted(values), Fraction(sum(values))) if values else None


def _quotients(pairs: Sequence[tuple[int, int]]) -> dict[str, int | float] | None:
    """Return the same of quotients of two integers, each rounded once, as is their exact mean."""
    sums = Counter[int]()
    for numerator, denominator in pairs:
        sums[denominator] += numerator
    total = sum((Fraction(numerator, denominator) for denominator, numerator in sums.items()), Fraction(0))
    # The quotient of two integers is rounded once, and rounding keeps the order.
    return _ranked(sorted(numerator / denominator for numerator, denominator in pairs), total) if pairs else None


def _ranked(ordered: Sequence[int | float], total: Fraction) -> dict[str, int | float]:
    found: dict[str, int | float] = {"mean": float(total / len(ordered))}
    for q in (50, 90, 95, 99):
        found[f"p{q}"] = percentile_of(ordered, q)
    return found | {"max": ordered[-1]}
