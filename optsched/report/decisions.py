"""What routers have decided, as a table for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from optsched.model.result import Result
from optsched.simulator.routed import DecisionRecord


def decisions_csv(recorded: Iterable[tuple[Result, DecisionRecord]]) -> str:
    """Write a row for each decision: the machine, the one that had the least work, and how much more it had.

    Instance, router, policy and evictor come first.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("instance", "router", "policy", "evictor", "request", "machine", "best_machine", "regret_ps"))
    for result, record in recorded:
        options = result.options
        key = result.instance.name, options.get("router"), result.method, options.get("evictor")
        writer.writerows((*key, *decision) for decision in record.decisions)
    return stream.getvalue()


def decision_rates(recorded: Iterable[tuple[Result, DecisionRecord]]) -> str:
    """Return a line for each run: how many decisions its router makes in a second of processor time."""
    lines = []
    for result, record in recorded:
        rate = "too fast to say" if record.per_second is None else f"{record.per_second:,.0f} in a second"
        name = result.options.get("router", "router")
        lines.append(f"{result.instance.name}, {name}, {result.method}: {len(record.decisions):,} decisions, {rate}\n")
    return "".join(lines)
