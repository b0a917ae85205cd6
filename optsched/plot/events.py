"""Schedules as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optsched.model.activity import Activity, Mark, Span, activities
from optsched.model.result import Result
from optsched.plot.common import Given, results_of, schedule_of

_PS_PER_US = 1e6
_BATCHES = 0
"""The thread of batches; that of request i is i + 1."""


def trace_events(given: Given) -> dict[str, Any]:
    """Return schedules as a Chrome trace (its JSON object format), times in µs.

    A process for each machine of each result; in it a thread of its batches, and one for each request with all that
    it does; evictions, swaps, hits and both ends of moves are instants.
    """
    events: list[dict[str, Any]] = []
    first = 1
    for result in results_of(given):
        events += _events(result, first)
        first += len(result.instance.machines)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(result: Result, first: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one result, whose machines are processes from a number on."""
    instance, schedule = result.instance, schedule_of(result)
    found = activities(instance, schedule)
    machines = len(instance.machines)
    for machine in range(machines):
        suffix = f", machine {machine}" if machines > 1 else ""
        yield _named("process_name", first + machine, f"{result.method} on {instance.name}{suffix}")
        yield _named("thread_name", first + machine, "batches", _BATCHES)
    for machine, request in sorted(found.places):
        yield _named("thread_name", first + machine, instance.label(request), request + 1)
    for batch in schedule.batches:
        tokens = sum(count for _, count in batch.run)
        facts = {"requests": len(batch.run), "tokens": tokens, "batches": batch.repeat}
        name = f"{tokens} tokens" + (f" × {batch.repeat}" if batch.repeat > 1 else "")
        yield _lasting(name, (first + batch.replica, _BATCHES), batch.start_ps, batch.end_ps, facts)
    for span in found.spans:
        where = first + span.machine, span.request + 1
        yield _lasting(span.activity.value, where, span.start_ps, span.end_ps, _facts(span))
    for mark in found.marks:
        yield _instant(mark, first)


def _facts(span: Span) -> dict[str, int]:
    waits = span.activity in {Activity.WAIT, Activity.KEEP, Activity.HOST}
    return {} if waits else {"tokens": span.tokens, "batches": span.batches, "generated": span.generated}


def _named(kind: str, process: int, name: str, thread: int | None = None) -> dict[str, Any]:
    where = {"pid": process} if thread is None else {"pid": process, "tid": thread}
    return {"name": kind, "ph": "M", **where, "args": {"name": name}}


def _lasting(name: str, where: tuple[int, int], start_ps: int, end_ps: int, facts: dict[str, int]) -> dict[str, Any]:
    """Return an event with a duration, of a process and a thread."""
    process, thread = where
    times = {"ts": start_ps / _PS_PER_US, "dur": (end_ps - start_ps) / _PS_PER_US}
    return {"name": name, "ph": "X", "pid": process, "tid": thread, **times, "args": facts}


def _instant(mark: Mark, first: int) -> dict[str, Any]:
    where = {"pid": first + mark.machine, "tid": mark.request + 1, "ts": mark.time_ps / _PS_PER_US}
    return {"name": mark.change.value, "ph": "i", "s": "t", **where, "args": {"kv_tokens": mark.tokens}}
