"""A schedule as a page shows it: small integers, compressed, which the page's script draws."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from optsched.model.activity import STEPS, Activities, Activity, Change, activities
from optsched.model.cluster import CacheMode
from optsched.model.result import Result
from optsched.model.schedule import Schedule
from optsched.model.timeline import timeline

_ACTIVITIES = tuple(Activity)
_CHANGES = tuple(Change)
_FEW_BATCHES = 400
"""Up to this many batches every step is told apart; in longer schedules steps that follow each other are one."""
_DIGITS = 7
"""Times are kept to this many digits of the last one."""


def packed_view(result: Result) -> str | None:
    """Return what a page needs to draw a result's schedule: JSON, deflated, in base64; None without a schedule.

    In the JSON all times are in ticks of ``tick_ps``. ``rows`` has for each request on each machine
    ``[machine, request, name, evictions, [activity, wait, length, …]]``, with ``wait`` the time since the end of the
    activity before; ``marks`` has ``[row, change, time, tokens]``; ``kv`` has the capacity and ``[time since the last,
    tokens, …]`` of a machine that is alone and has no cache.
    """
    schedule = result.schedule
    if schedule is None or not schedule.length:
        return None
    view = _view(result, schedule)
    return base64.b64encode(zlib.compress(json.dumps(view, separators=(",", ":")).encode(), 9)).decode()


def unpacked_view(packed: str) -> dict[str, Any]:
    """Return the JSON of a `packed_view`, as the page's script unpacks it."""
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return found


def _view(result: Result, schedule: Schedule) -> dict[str, Any]:
    instance = result.instance
    start = instance.start_ps
    end = max(batch.end_ps for batch in schedule.batches)
    tick = int("1".ljust(len(str(end - start)) - _DIGITS + 1, "0"))

    def ticks(time_ps: int) -> int:
        return (time_ps - start) // tick

    each = schedule.length <= _FEW_BATCHES
    found = activities(instance, schedule, each=each)
    places = sorted(found.places, key=lambda place: (place[0], instance.requests[place[1]].arrival_ps, place[1]))
    spans = _by_row(found, places, join=not each)
    evictions = [0] * len(instance.requests)
    for mark in found.marks:
        evictions[mark.request] += mark.change is Change.EVICT
    rows = []
    for machine, index in places:
        request, flat, last = instance.requests[index], list[int](), 0
        for activity, since, until in spans[machine, index]:
            flat += [_ACTIVITIES.index(activity), ticks(since) - last, ticks(until) - ticks(since)]
            last = ticks(until)
        name = f"{request.id or index}  {request.input}+{request.output}"
        rows.append([machine, index, name, evictions[index], flat])
    order = {place: row for row, place in enumerate(places)}
    marks = [
        [order[mark.machine, mark.request], _CHANGES.index(mark.change), ticks(mark.time_ps), mark.tokens]
        for mark in found.marks
    ]
    alone = not instance.is_distributed and not schedule.moves and instance.machines[0].cache.mode is CacheMode.NONE
    kv = list[int]()
    if alone:
        last = 0
        for moment in timeline(instance, schedule):
            kv += [ticks(moment.time_ps) - last, moment.kv_tokens]
            last = ticks(moment.time_ps)
    return {
        "tick_ps": tick,
        "end": ticks(end),
        "machines": len(instance.machines),
        "batches": schedule.length,
        "activities": [each.value for each in _ACTIVITIES],
        "changes": [each.value for each in _CHANGES],
        "rows": rows,
        "marks": marks,
        "kv": {"capacity": instance.limits.kv_capacity, "points": kv} if alone else None,
    }


_Stretch = tuple[Activity, int, int]


def _by_row(
    found: Activities, places: Iterable[tuple[int, int]], *, join: bool
) -> dict[tuple[int, int], Sequence[_Stretch]]:
    """Return for each machine and request its activities in order; joined, those that touch and are alike are one."""
    rows: dict[tuple[int, int], list[_Stretch]] = {place: [] for place in places}
    for span in sorted(found.spans, key=lambda span: span.start_ps):
        row = rows[span.machine, span.request]
        one = row and row[-1][0] is span.activity and row[-1][2] == span.start_ps
        if one and (join or span.activity not in STEPS):
            row[-1] = (span.activity, row[-1][1], span.end_ps)
        else:
            row.append((span.activity, span.start_ps, span.end_ps))
    return dict(rows)
