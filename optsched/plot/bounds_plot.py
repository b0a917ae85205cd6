"""Incumbent and bound of a search over time, drawn."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from optsched.model.errors import InputError, Said
from optsched.plot.common import INK, MUTED, SMALL, axes_of, legend, plain_axes, time_unit
from optsched.solvers.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bounds(history: History, *, ax: Axes | None = None, divide: int = 1, label: str = "objective") -> Axes:
    """Draw how incumbent and bound of a search approach each other.

    Parameters
    ----------
    history
        What the search said.
    ax
        Where to draw.
    divide
        What values are divided by: for means the number of requests.
    label
        Name of the objective.
    """
    events = history.events
    if not events:
        raise InputError("history", Said("no event"), "at least one event of a search")
    known = [number / divide for each in events for number in (each.incumbent, each.bound) if number is not None]
    unit, scale = time_unit(max(known, default=0))
    ax = axes_of(ax, 2.8, 4.6)
    last = max(each.elapsed_s for each in events)
    drawn = (("incumbent", "#0072b2", "-", min), ("bound", "#d55e00", "--", max))
    for name, color, style, better in drawn:
        said = [(each.elapsed_s, getattr(each, name)) for each in events if getattr(each, name) is not None]
        if said:
            # A later stage of a search may begin with a weaker bound than an earlier one has proved.
            points = list(
                zip((time for time, _ in said), accumulate((number for _, number in said), better), strict=True)
            )
            x = [*(time for time, _ in points), last]
            y = [number / divide / scale for _, number in [*points, points[-1]]]
            ax.step(x, y, where="post", color=color, ls=style, lw=1.8, label=name, gid=name)
            ax.plot(x[:-1], y[:-1], color=color, ls="", marker="o", ms=3)
    both = [each for each in events if each.gap is not None]
    if both and both[-1].gap:
        end = both[-1]
        ends = [number / divide / scale for number in (end.bound or 0, end.incumbent or 0)]
        ax.plot([last, last], ends, color=MUTED, lw=1, marker="_")
        ax.annotate(
            f"gap {100 * (end.gap or 0):.1f} %",
            (last, sum(ends) / 2),
            (-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=SMALL,
            color=INK,
        )
    ax.set(xlabel="time (s)", ylabel=f"{label} ({unit})", xlim=(0, None))
    plain_axes(ax)
    legend(ax)
    return ax
