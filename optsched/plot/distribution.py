"""How latencies are spread over the requests of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optsched.model.errors import InputError, one_of
from optsched.model.result import Result
from optsched.plot.common import (
    Given,
    axes_of,
    labels_of,
    legend,
    looks,
    plain_axes,
    results_of,
    schedule_of,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LATENCIES = ("ttft", "e2e", "tpot")
_NAMES = {"ttft": "TTFT", "e2e": "e2e latency", "tpot": "TPOT"}
_DECADES = 50
"""From this ratio of the 99th percentile to the median on, the axis is logarithmic."""


def cdf(given: Given, *, latency: str = "e2e", ax: Axes | None = None, labels: Sequence[str] = ()) -> Axes:
    """Draw the share of requests whose latency is at most x, a curve for each result.

    Parameters
    ----------
    given
        Results with schedules.
    latency
        ``ttft``, ``e2e`` or ``tpot``; requests of one output token have no TPOT.
    ax, labels
        Where to draw, and what to call the results.
    """
    if latency not in LATENCIES:
        raise InputError("latency", latency, one_of(latency, LATENCIES))
    results = results_of(given)
    curves = [latencies_of(result, latency) for result in results]
    if not all(curves):
        raise InputError("latency", latency, "requests that have one: TPOT needs two output tokens")
    unit, scale = time_unit(max(curve[-1] for curve in curves))
    ax = axes_of(ax, 3.0, 4.6)
    for name, curve, (color, style) in zip(labels_of(results, labels), curves, looks(), strict=False):
        x = [curve[0] / scale, *(number / scale for number in curve)]
        y = [position / len(curve) for position in range(len(curve) + 1)]
        ax.step(x, y, where="post", label=name, color=color, ls=style, lw=1.6)
    least, most = min(curve[0] for curve in curves), max(curve[-1] for curve in curves)
    if least > 0 and most / least > _DECADES:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    ax.set(xlabel=f"{_NAMES[latency]} ({unit})", ylabel="share of requests", ylim=(0, 1.02))
    plain_axes(ax)
    legend(ax)
    return ax


def latencies_of(result: Result, latency: str) -> list[float]:
    """Return the latencies of all requests that have one, ascending, in ps."""
    schedule_of(result)
    found = (getattr(row, f"{latency}_ps") for row in result.requests())
    return sorted(value for value in found if value is not None)
