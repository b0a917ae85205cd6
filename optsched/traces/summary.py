"""What a trace amounts to on a machine, and what looks wrong."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from optsched.bounds.volume import busy_ps
from optsched.model.instance import Instance
from optsched.traces.rows import SECOND_PS, Rows

_HIGH_LOAD, _LOW_LOAD = 50, 1e-4
"""Loads beyond these are more likely a wrong unit than a workload."""
_EPOCH_S = 3 * 10**8
"""Times from this on, some ten years, count from 1970 and not from the start of a trace."""


@dataclass(frozen=True)
class TraceSummary:
    """Statistics of an instance made of a trace.

    Parameters
    ----------
    name, requests
        The instance, and how many requests it has.
    span_ps
        From the first arrival to the last.
    mean_input, mean_output
        Tokens.
    kv_tokens, kappa
        M, and M over the mean KV that a generating request holds.
    load
        Arrival rate over the rate that the volume bound allows; None if all arrive together.
    warnings
        What looks wrong.
    """

    name: str
    requests: int
    span_ps: int
    mean_input: float
    mean_output: float
    kv_tokens: int
    kappa: float
    load: float | None
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return it for a terminal."""
        together = "all requests arrive together"
        span, rate = self.span_ps / SECOND_PS, ""
        if self.span_ps:
            rate = f"{self.requests / span:.4g} requests/s over {span:.6g} s"
        load = "" if self.load is None else f", load {self.load:.3g} on this profile"
        return [
            f"{self.name}: {self.requests} requests, {rate or together}{load}",
            f"  mean input {self.mean_input:.1f}, mean output {self.mean_output:.1f} tokens; "
            f"M = {self.kv_tokens}, κ = {self.kappa:.2f}",
            *(f"  warning: {warning}" for warning in self.warnings),
        ]


def summarise(instance: Instance, rows: Rows | None = None) -> TraceSummary:
    """Summarise an instance; ``rows`` have the times as the trace writes them."""
    requests = instance.requests
    first = min(request.arrival_ps for request in requests)
    span = max(request.arrival_ps for request in requests) - first
    load = busy_ps(instance) / span if span else None
    warnings = [*_memory_warnings(instance)]
    if load is not None and not _LOW_LOAD <= load <= _HIGH_LOAD:
        warnings.append(f"load {load:.3g}: is the unit of the arrival times right (--unit), or --load to be set?")
    if rows is not None:
        start = min(row.arrival_ps for row in rows.rows) // SECOND_PS
        if start >= _EPOCH_S:
            warnings.append(f"arrival times start at {start} s, {_date(start)}; they are counted from there")
    return TraceSummary(
        instance.name,
        len(requests),
        span,
        sum(request.input for request in requests) / len(requests),
        sum(request.output for request in requests) / len(requests),
        instance.limits.kv_tokens,
        instance.kappa,
        load,
        tuple(warnings),
    )


def _memory_warnings(instance: Instance) -> list[str]:
    limits = instance.limits
    peaks = [limits.occupied(request.peak_tokens) for request in instance.requests]
    if max(peaks) > limits.kv_capacity:
        many = sum(peak > limits.kv_capacity for peak in peaks)
        verb = "request needs" if many == 1 else "requests need"
        return [f"{many} {verb} more than M = {limits.kv_tokens} KV tokens, the largest {max(peaks)}: infeasible"]
    if sum(peaks) <= limits.kv_capacity:
        return [f"memory never binds: all requests together hold {sum(peaks)} of M = {limits.kv_tokens} KV tokens"]
    return []


def _date(seconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return "beyond any date: is the unit right (--unit)?"
