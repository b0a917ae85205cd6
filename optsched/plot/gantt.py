"""Gantt charts of schedules, in the manner of InferMax's Figure 15."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from optsched.model.activity import Activities, Activity, Change, Span, activities
from optsched.model.cluster import CacheMode
from optsched.model.domain import replace
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance
from optsched.model.result import Result, Status
from optsched.model.schedule import Schedule
from optsched.model.timeline import timeline
from optsched.plot.common import (
    INK,
    MUTED,
    SMALL,
    WIDTH,
    Given,
    axes_of,
    labels_of,
    objective_name,
    plain_axes,
    results_of,
    schedule_of,
    time_unit,
    value_text,
)
from optsched.plot.gaps import Reference
from optsched.report.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TIME, BATCH = "time", "batch"
AXES = (TIME, BATCH)
"""What the horizontal axis counts."""
ACTIVITY_COLORS = MappingProxyType(
    {
        Activity.PREFILL: "#003a5d",
        Activity.REFILL: "#d55e00",
        Activity.DECODE: "#9ccbe8",
        Activity.KEEP: "#8f8f8f",
        Activity.HOST: "#cc79a7",
        Activity.WAIT: "#c4c4c4",
    }
)
"""Told apart with any colour vision, and by their lightness in black and white."""
_MARKS = MappingProxyType(
    {
        Change.EVICT: ("x", "#b00020", "evicted"),
        Change.SWAP_OUT: ("v", "#7a3f68", "swapped out"),
        Change.SWAP_IN: ("^", "#7a3f68", "swapped in"),
        Change.HIT: ("d", "#009e73", "cache hit"),
        Change.MOVE_OUT: (">", "#222222", "moves away"),
        Change.MOVE_IN: ("<", "#222222", "has moved in"),
    }
)
_HEIGHTS = MappingProxyType({Activity.KEEP: 0.34, Activity.HOST: 0.2})
"""Share of its row that each activity without a step takes; steps take most of it, and waiting is a line."""
_LABELS = MappingProxyType({Activity.KEEP: "keeps KV", Activity.HOST: "KV on the host", Activity.WAIT: "waits"})
_KV = "#0072b2"
_FEW_ROWS, _FEW_BATCHES = 16, 80
"""Up to these every step is a box, with a white line around it."""
_POINTS = 1500
"""Points of a KV strip; of more the largest of each stretch is drawn."""
_BOLD, _PLAIN, _NAMES = 0.085, 0.065, 0.75
"""Inches: a letter of a heading, one of the note beside it, and the names of requests left of both."""
_STRIP = 0.5
_MOST_HEIGHT = 4.6
"""Inches of the rows of one schedule, at most."""


@dataclass(frozen=True)
class _Lane:
    """What one machine does in one schedule, and how its times become positions."""

    result: Result
    machine: int
    rows: dict[int, int]
    found: Activities
    position: Callable[[int], float]
    axis: str
    end_ps: int

    @property
    def is_sparse(self) -> bool:
        """Whether every step is told apart."""
        schedule = schedule_of(self.result)
        return len(self.rows) <= _FEW_ROWS and schedule.length <= _FEW_BATCHES


def gantt(given: Given, *, ax: Axes | None = None, machine: int = 0, axis: str = TIME) -> Axes:
    """Draw what each request does in one schedule, a row each, in the order of arrival.

    Parameters
    ----------
    given
        One result, with a schedule.
    ax
        Where to draw; None makes a figure.
    machine
        Of several machines, which one.
    axis
        ``time``, or ``batch``: every batch is as wide as any other.
    """
    (result,) = _one(given)
    lane = _lane(result, machine, axis, None)
    ax = axes_of(ax, _rows_height(len(lane.rows)) + 0.7)
    _draw_rows(ax, lane)
    ax.set_xlabel(lane.axis, fontsize=SMALL)
    ax.tick_params(axis="x", labelsize=SMALL)
    ax.set_xlim(lane.position(result.instance.start_ps), lane.position(lane.end_ps))
    return ax


def kv_strip(given: Given, *, ax: Axes | None = None, machine: int = 0, axis: str = TIME) -> Axes:
    """Draw the KV tokens that one schedule occupies over time, and M; of a machine without cache and moves."""
    (result,) = _one(given)
    lane = _lane(result, machine, axis, None)
    ax = axes_of(ax, 1.4)
    _draw_kv(ax, lane)
    ax.set_xlabel(lane.axis, fontsize=SMALL)
    return ax


def gantt_figure(
    given: Given, *, axis: str = TIME, width: float = WIDTH, title: str = "", labels: Sequence[str] = ()
) -> Figure:
    """Draw schedules one above the other, each with a strip of its KV cache; a lane for each machine that serves.

    Parameters
    ----------
    given
        Results with schedules. Gaps are to the best bound that any of them has for its instance.
    axis
        As in `gantt`; all schedules have the same scale.
    width
        Inches.
    title
        Above everything.
    labels
        What to call each result; its method, if nothing is given.
    """
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  # an extra

    results = results_of(given)
    names = labels_of(results, labels)
    largest = max(max((batch.end_ps for batch in schedule_of(each).batches), default=0) for each in results)
    lanes = [
        (name, _lane(result, machine, axis, largest))
        for name, result in zip(names, results, strict=True)
        for machine in _machines_used(result)
    ]
    heights = [height for _, lane in lanes for height in (_rows_height(len(lane.rows)), _STRIP)]
    figure = new_figure(width, sum(heights) + 0.42 * len(lanes) + (1.05 if title else 0.8))
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    reference, kinds = Reference(results), set[Activity | Change]()
    last = max(lane.position(lane.end_ps) for _, lane in lanes)
    for number, (name, lane) in enumerate(lanes):
        rows, strip = grid[2 * number][0], grid[2 * number + 1][0]
        kinds |= _draw_rows(rows, lane)
        _draw_kv(strip, lane)
        rows.tick_params(bottom=False)
        for axes in (rows, strip):
            axes.axvline(lane.position(lane.end_ps), color=INK, lw=0.9, ls=(0, (3, 2)), zorder=0, clip_on=False)
        machines = _machines_used(lane.result)
        where = f", machine {lane.machine}" if len(machines) > 1 else ""
        heading, note = name + where, _note(lane.result, reference) if lane.machine == machines[0] else ""
        if _BOLD * len(heading) + _PLAIN * len(note) > width - _NAMES and note:
            heading += "\n"  # above the note
        rows.set_title(heading, loc="left", fontsize=SMALL + 1.5, fontweight="bold", color=INK, pad=3)
        rows.set_title(note, loc="right", fontsize=SMALL, color=INK, pad=3)
        strip.tick_params(labelbottom=number == len(lanes) - 1)
    grid[-1][0].set_xlim(min(lane.position(lane.result.instance.start_ps) for _, lane in lanes), last)
    if axis == BATCH:
        grid[-1][0].xaxis.set_major_locator(MaxNLocator(integer=True))
    grid[-1][0].set_xlabel(lanes[0][1].axis, fontsize=SMALL, color=INK)
    handles = _handles(kinds)
    columns = min(len(handles), max(2, int(width / 1.15)))
    figure.legend(
        handles=handles,
        title=title or None,
        title_fontproperties={"weight": "bold", "size": SMALL + 2.5},
        alignment="left",
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=SMALL,
        handlelength=1.1,
        columnspacing=1.3,
        handletextpad=0.5,
    )
    return figure


def _one(given: Given) -> list[Result]:
    results = results_of(given)
    if len(results) > 1:
        raise InputError("results", len(results), "one result (gantt_figure takes several)")
    return results


def _machines_used(result: Result) -> list[int]:
    return sorted({batch.replica for batch in schedule_of(result).batches} | set(schedule_of(result).routes)) or [0]


def _lane(result: Result, machine: int, axis: str, largest: int | None) -> _Lane:
    """Return what to draw of one machine; ``largest`` sets the unit of time."""
    if axis not in AXES:
        raise InputError("axis", axis, one_of(axis, AXES))
    instance, schedule = result.instance, schedule_of(result)
    if not 0 <= machine < len(instance.machines):
        raise InputError("machine", machine, f"an integer from 0 to {len(instance.machines) - 1}")
    batches = [batch for batch in schedule.batches if batch.replica == machine]
    end = max((batch.end_ps for batch in batches), default=instance.start_ps)
    each = len(instance.requests) <= _FEW_ROWS and schedule.length <= _FEW_BATCHES
    found = activities(instance, schedule, each=each)
    here = {request for place, request in found.places if place == machine}
    order = sorted(here, key=lambda index: (instance.requests[index].arrival_ps, index))
    rows = {index: row for row, index in enumerate(order)}
    if axis == TIME:
        unit, scale = time_unit(largest or end)
        return _Lane(result, machine, rows, found, lambda time: time / scale, f"time ({unit})", end)
    return _Lane(result, machine, rows, found, _batch_position(schedule, machine), "batch", end)


def _batch_position(schedule: Schedule, machine: int) -> Callable[[int], float]:
    """Return which batch of a machine runs at a time; between two batches the number of those that have ended."""
    times, numbers, ended = list[int](), list[int](), 0
    for batch in schedule.batches:
        if batch.replica == machine:
            times += [batch.start_ps, batch.end_ps]
            numbers += [ended, ended + batch.repeat]
            ended += batch.repeat
    return lambda time: float(np.interp(time, times, numbers))


def _rows_height(count: int) -> float:
    """Return the inches that ``count`` rows take."""
    most = 0.3 if count <= 8 else 0.2
    return min(most * count, max(_MOST_HEIGHT, 0.2 * _FEW_ROWS)) + 0.05


def _draw_rows(ax: Axes, lane: _Lane) -> set[Activity | Change]:
    """Draw boxes and marks; return the kinds that there are."""
    from matplotlib.collections import LineCollection, PolyCollection  # noqa: PLC0415  # an extra

    count = len(lane.rows)
    sparse, big = lane.is_sparse, count > _FEW_ROWS
    kinds = set[Activity | Change]()
    full = 0.8 if not big else 0.88
    for activity, color in reversed(list(ACTIVITY_COLORS.items())):
        height = _HEIGHTS.get(activity, full)
        spans = _merged(lane, activity, sparse)
        if not spans:
            continue
        kinds.add(activity)
        if activity is Activity.WAIT:
            ends = (
                (lane.position(span.start_ps), lane.position(span.end_ps), lane.rows[span.request]) for span in spans
            )
            lines = [[(left, row), (right, row)] for left, right, row in ends]
            # A line has a width in points, which one pixel at least shows however many rows there are.
            width = 0.6 if big else 1.8
            ax.add_collection(
                LineCollection(lines, gid=activity.value, colors=color, linewidths=width, zorder=1), autolim=False
            )
            continue
        boxes = [_box(lane, span, height) for span in spans]
        edges = "white" if sparse and activity not in _HEIGHTS else "none"
        polygons = PolyCollection(
            boxes, facecolors=color, edgecolors=edges, linewidths=0.6, gid=activity.value, zorder=2
        )
        ax.add_collection(polygons, autolim=False)
    for change, (marker, color, _) in _MARKS.items():
        marks = [mark for mark in lane.found.marks if mark.change is change and mark.machine == lane.machine]
        if marks:
            kinds.add(change)
            x = [lane.position(mark.time_ps) for mark in marks]
            y = [lane.rows[mark.request] for mark in marks]
            size, line = (22, 1.3) if not big else (max(3.0, 9 - count / 40), 0.7)
            drawn = ax.scatter(x, y, marker=marker, s=size, color=color, lw=line, zorder=4, clip_on=False)
            drawn.set_gid(change.value)
    ax.set_ylim(count - 0.45, -0.55)
    _name_rows(ax, lane, big=big)
    ax.spines[:].set_visible(False)
    return kinds


def _name_rows(ax: Axes, lane: _Lane, *, big: bool) -> None:
    """Put requests' indices beside the rows, with their names or lengths if these differ; of many every tenth."""
    requests = lane.result.instance.requests
    order = list(lane.rows)
    if big:
        step = 10 if len(order) <= 100 else 50
        ticks = list(range(0, len(order), step))
        ax.set_yticks(ticks, [str(order[row]) for row in ticks])
        ax.set_ylabel("request, by arrival", fontsize=SMALL, color=MUTED)
    else:
        same = len({(each.input, each.output) for each in requests}) == 1
        lengths = {index: "" if same else f"   {requests[index].input}+{requests[index].output}" for index in order}
        ax.set_yticks(range(len(order)), [f"{requests[index].id or index}{lengths[index]}" for index in order])
        ax.set_ylabel("request" if same else "request  I+O", fontsize=SMALL, color=MUTED)
    ax.tick_params(axis="y", length=0, labelsize=SMALL, labelcolor=INK)


def _merged(lane: _Lane, activity: Activity, sparse: bool) -> list[Span]:
    """Return the spans of an activity on the machine; unless steps are told apart, those that touch are one."""
    spans = [span for span in lane.found.spans if span.activity is activity and span.machine == lane.machine]
    if sparse:
        return spans
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.request, span.start_ps)):
        before = merged[-1] if merged else None
        if before is not None and (before.request, before.end_ps) == (span.request, span.start_ps):
            merged[-1] = dataclasses.replace(before, end_ps=span.end_ps)
        else:
            merged.append(span)
    return merged


def _box(lane: _Lane, span: Span, height: float) -> list[tuple[float, float]]:
    left, right = lane.position(span.start_ps), lane.position(span.end_ps)
    row = lane.rows[span.request]
    low, high = row - height / 2, row + height / 2
    return [(left, low), (right, low), (right, high), (left, high)]


def _draw_kv(ax: Axes, lane: _Lane) -> None:
    """Draw the KV tokens occupied over time, and M."""
    alone = _alone(lane.result.instance, schedule_of(lane.result), lane.machine)
    capacity = lane.result.instance.machines[lane.machine].limits.kv_capacity
    ax.set_ylim(0, capacity * 1.12)
    ax.axhline(capacity, color=_KV, lw=0.8, ls=(0, (1, 1.5)))
    ax.set_yticks([0, capacity], ["0", f"{capacity:,}"])
    plain_axes(ax, "x")
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_color(MUTED)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", length=2.5)
    ax.set_ylabel("KV", fontsize=SMALL, color=_KV, rotation=0, ha="right", va="center")
    if alone is None:
        ax.text(0.5, 0.5, "not drawn: a cache, or moves", transform=ax.transAxes, fontsize=SMALL, ha="center")
        return
    points = [(lane.position(moment.time_ps), moment.kv_tokens) for moment in timeline(*alone)]
    x, y = _thinned(points)
    ax.fill_between(x, y, step="post", color=_KV, alpha=0.16, lw=0)
    ax.step(x, y, where="post", color=_KV, lw=1.0, gid="kv")


def _thinned(points: list[tuple[float, int]]) -> tuple[list[float], list[int]]:
    """Return the points, or of too many the largest of each stretch of the axis."""
    if len(points) > _POINTS:
        first, last = points[0][0], points[-1][0]
        width = (last - first) / _POINTS or 1.0
        stretches = groupby(points, key=lambda point: int((point[0] - first) / width))
        points = [(first + number * width, max(tokens for _, tokens in own)) for number, own in stretches]
    return [x for x, _ in points], [y for _, y in points]


def _alone(instance: Instance, schedule: Schedule, machine: int) -> tuple[Instance, Schedule] | None:
    """Return what one machine does as a problem of its own; None if it caches, or requests move."""
    if schedule.moves or instance.machines[machine].cache.mode is not CacheMode.NONE:
        return None
    if not instance.is_distributed:
        return instance, schedule
    batches = [batch for batch in schedule.batches if batch.replica == machine]
    indices = sorted({index for batch in batches for index, _ in batch.run})
    if not indices:
        return None
    new = {index: position for position, index in enumerate(indices)}
    own = tuple(
        replace(
            batch,
            replica=0,
            run=tuple((new[index], tokens) for index, tokens in batch.run),
            evict=tuple(new[index] for index in batch.evict),
            swap_out=tuple(new[index] for index in batch.swap_out),
            swap_in=tuple(new[index] for index in batch.swap_in),
        )
        for batch in batches
    )
    return instance.on(machine, indices), Schedule(own)


def _note(result: Result, reference: Reference) -> str:
    """Return a result's value, and how far it is from optimal as far as that is known."""
    parts = [f"{objective_name(result.objective)} {value_text(result)}"]
    found = reference.gap(result)
    if found is not None:
        if found.most == 0:
            parts.append("proved optimal" if result.status is Status.OPTIMAL else "optimal")
        else:
            parts.append(f"gap {'≤ ' if found.is_open else ''}{100 * found.most:.1f} %")
    return ", ".join(parts)


def _handles(kinds: set[Activity | Change]) -> list[Artist]:
    from matplotlib.lines import Line2D  # noqa: PLC0415  # an extra
    from matplotlib.patches import Patch  # noqa: PLC0415  # an extra

    handles: list[Artist] = []
    for activity, color in ACTIVITY_COLORS.items():
        if activity in kinds:
            name = _LABELS.get(activity, activity.value)
            thin = activity in _LABELS
            line = Line2D([], [], color=color, lw=2 if activity is Activity.WAIT else 4)
            handles.append(line if thin else Patch(color=color))
            handles[-1].set_label(name)
    for change, (marker, color, name) in _MARKS.items():
        if change in kinds:
            handles.append(Line2D([], [], marker=marker, ls="", color=color, ms=4.5, mew=1.2, label=name))
    return handles
