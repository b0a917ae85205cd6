"""Router maps: on which machine each request was, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from optsched.model.activity import Activities, Activity, Change, Mark, activities
from optsched.model.errors import InputError, Said
from optsched.plot.common import INK, MUTED, SMALL, Given, axes_of, legend, results_of, schedule_of, time_unit
from optsched.report.figure import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LANE = 0.86
"""Share of a lane that its rows take."""
_WAITING = "#9a9a9a"
_COLOR_MAP = "viridis_r"
"""Dark is found in the cache; its lightness falls steadily, so that it also reads in black and white."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A request on one machine, from the time it is routed or moves there until it has moved away or ended.

    Parameters
    ----------
    request, machine
        Indices of both.
    start_ps, end_ps
        When.
    row
        The lowest row of the machine's lane that is free at its start.
    waits
        ``(start_ps, end_ps)`` of the times in which it has no KV.
    """

    request: int
    machine: int
    start_ps: int
    end_ps: int
    row: int
    waits: tuple[tuple[int, int], ...]


def stays_of(found: Activities) -> list[Stay]:
    """Return the stays of all requests, in the order in which they start."""
    joined: list[tuple[int, int, int, int, list[tuple[int, int]]]] = []
    for span in sorted(found.spans, key=lambda span: (span.request, span.start_ps)):
        waits = [(span.start_ps, span.end_ps)] if span.activity is Activity.WAIT else []
        if joined and (joined[-1][2], joined[-1][1]) == (span.request, span.machine):
            start, machine, request, _, before = joined[-1]
            joined[-1] = start, machine, request, span.end_ps, before + waits
        else:
            joined.append((span.start_ps, span.machine, span.request, span.end_ps, waits))
    stays, free, busy, rows = list[Stay](), dict[int, list[int]](), dict[int, list[tuple[int, int]]](), Counter[int]()
    for start, machine, request, end, waits in sorted(joined):
        here, ending = free.setdefault(machine, []), busy.setdefault(machine, [])
        while ending and ending[0][0] <= start:
            heappush(here, heappop(ending)[1])
        if not here:
            here.append(rows[machine])
            rows[machine] += 1
        row = heappop(here)
        heappush(ending, (end, row))
        stays.append(Stay(request, machine, start, end, row, tuple(waits)))
    return stays


def router_map(given: Given, *, ax: Axes | None = None) -> Axes:
    """Draw a lane for each machine, and in it a line for each request from its arrival to its last token.

    A line is thin and grey while the request has no KV. Its colour is the share of its prompt that the machine's cache
    had when it first ran, if there is a cache. A black line from lane to lane is a move, where it ends.

    Parameters
    ----------
    given
        One result, with a schedule.
    ax
        Where to draw.
    """
    from matplotlib.collections import LineCollection  # noqa: PLC0415  # plots load matplotlib, an extra
    from matplotlib.colors import Normalize  # noqa: PLC0415  # an extra

    results = results_of(given)
    if len(results) > 1:
        raise InputError("results", Said(f"{len(results)} results"), "one result for a router map")
    (result,) = results
    instance = result.instance
    found = activities(instance, schedule_of(result))
    stays = stays_of(found)
    machines = range(len(instance.machines))
    rows = {
        machine: max((stay.row + 1 for stay in stays if stay.machine == machine), default=1) for machine in machines
    }
    ax = axes_of(ax, 0.6 + min(0.9, 5.0 / len(machines)) * len(machines))
    unit, scale = time_unit(max((stay.end_ps for stay in stays), default=0))

    def height(stay: Stay) -> float:
        return stay.machine + _LANE * ((stay.row + 0.5) / rows[stay.machine] - 0.5)

    inches = ax.get_window_extent().height / ax.figure.dpi
    width = max(0.5, min(5.0, 72 * inches * _LANE * 0.8 / len(machines) / max(rows.values())))
    waits = [
        [(start / scale, height(stay)), (end / scale, height(stay))] for stay in stays for start, end in stay.waits
    ]
    ax.add_collection(LineCollection(waits, colors=_WAITING, linewidths=0.45 * width, gid="wait"))
    lines = [
        [(start / scale, height(stay)), (end / scale, height(stay))] for stay in stays for start, end in _held(stay)
    ]
    # Lines that are given a colour keep it, whatever the colour map says.
    drawn = LineCollection(lines, colors=None if instance.is_cached else COLORS[0], linewidths=width, gid="held")
    if instance.is_cached:
        shares = _shares(found, [request.input for request in instance.requests])
        drawn.set(array=[shares[stay.request] for stay in stays for _ in _held(stay)], cmap=_COLOR_MAP)
        drawn.set_norm(Normalize(0, 1))
    ax.add_collection(drawn)
    if instance.is_cached:
        bar = ax.figure.colorbar(drawn, ax=ax, pad=0.01, fraction=0.03, aspect=30)
        bar.set_label("share of the prompt in the cache", fontsize=SMALL)
        bar.ax.tick_params(labelsize=SMALL)
    moves = _moves(found.marks, stays)
    arrows = [[(left.end_ps / scale, height(left)), (right.start_ps / scale, height(right))] for left, right in moves]
    ax.add_collection(LineCollection(arrows, colors=INK, linewidths=0.7, gid="move", zorder=3))
    counts = Counter(stay.machine for stay in stays)
    ax.set_yticks(list(machines), [f"machine {machine}\n{counts[machine]} requests" for machine in machines])
    ax.set_ylim(len(machines) - 0.5, -0.5)
    ax.set_xlim(instance.start_ps / scale, max((stay.end_ps for stay in stays), default=1) / scale)
    ax.hlines([machine + 0.5 for machine in machines[:-1]], *ax.get_xlim(), color="#cccccc", lw=0.6)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(labelsize=SMALL, color=MUTED, labelcolor=INK)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"time ({unit})", fontsize=SMALL + 0.5, color=INK)
    _name_lines(ax, cached=instance.is_cached, moved=bool(moves))
    return ax


def _name_lines(ax: Axes, *, cached: bool, moved: bool) -> None:
    """Draw the legend; where the colour says something, its bar names it."""
    from matplotlib.lines import Line2D  # noqa: PLC0415  # plots load matplotlib, an extra

    handles = [Line2D([], [], color=_WAITING, lw=1.0, label="has no KV")]
    if not cached:
        handles.append(Line2D([], [], color=COLORS[0], lw=2.2, label="has KV"))
    if moved:
        handles.append(Line2D([], [], color=INK, lw=0.9, label="has moved"))
    legend(ax, handles=handles)


def _held(stay: Stay) -> list[tuple[int, int]]:
    """Return when a request on a machine has KV: the rest of its stay."""
    found, since = [], stay.start_ps
    for start, end in stay.waits:
        if start > since:
            found.append((since, start))
        since = end
    return [*found, (since, stay.end_ps)] if stay.end_ps > since else found


def _shares(found: Activities, prompts: Sequence[int]) -> list[float]:
    """Return the share of each prompt that the cache had at the first run; a later fill counts no more."""
    shares = [0.0] * len(prompts)
    first: dict[int, int] = {}
    for span in found.spans:
        if span.batches:
            first.setdefault(span.request, span.start_ps)
    for mark in found.marks:
        if mark.change is Change.HIT and mark.time_ps == first.get(mark.request):
            shares[mark.request] = min(1.0, mark.tokens / prompts[mark.request])
    return shares


def _moves(marks: Sequence[Mark], stays: Sequence[Stay]) -> list[tuple[Stay, Stay]]:
    """Return for each move the stays before and after it."""
    own: dict[int, list[Stay]] = {}
    for stay in stays:
        own.setdefault(stay.request, []).append(stay)
    moved = {(mark.request, mark.machine, mark.time_ps) for mark in marks if mark.change is Change.MOVE_IN}
    return [
        (before, after)
        for each in own.values()
        for before, after in pairwise(each)
        if (after.request, after.machine, after.start_ps) in moved
    ]
