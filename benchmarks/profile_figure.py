"""The performance profile of methods as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from method_tables import SHIFT_S, Runs, ratios
from optsched.report.figure import COLORS, check_plot, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = ("-", "--", "-.", ":")
_FEW_DECADES = 100
"""Up to this ratio an axis also names 2 and 5 of each decade."""
_ROOM = 1.02
"""How far beyond the largest share, 1, the axes reach, so that no line lies on the frame."""


def plot_profile(runs: Runs, path: Path) -> None:
    """Draw how many instances each method solves over time and, of several methods, their performance profiles.

    Equal runs give equal bytes.
    """
    check_plot(path)
    first = next(iter(runs.values()))
    limit = first[0].limit_s
    compared = len(runs) > 1
    figure = new_figure(9.5 if compared else 5.5, 3.9)
    axes = figure.subplots(1, 2 if compared else 1, sharey=True, squeeze=False)[0]
    over_time = axes[0]
    times = {
        method: sorted(math.inf if record.solved_s is None else record.solved_s for record in records)
        for method, records in runs.items()
    }
    _steps(over_time, times, least=0.01, most=limit)
    over_time.set(xlabel="time (s)", ylabel="share of instances proved optimal", title="Solved over time")
    if compared:
        _profile(axes[-1], runs)
    axes[-1].legend(loc="lower right", frameon=False)
    over_time.set_ylim(0, _ROOM)
    figure.suptitle(f"{first[0].suite}, {first[0].objective.value}: {len(first)} instances, limit {limit:g} s")
    save_figure(figure, path)


def _profile(axes: Axes, runs: Runs) -> None:
    """Draw the performance profiles of several methods."""
    relative = ratios(runs)
    largest = max((ratio for found in relative.values() for ratio in found if ratio < math.inf), default=1.0)
    _steps(axes, relative, least=1.0, most=max(2.0, 1.2 * largest))
    axes.set(xlabel=f"time relative to the fastest method, τ (shift {SHIFT_S} s)", title="Performance profile")


def _steps(axes: Axes, curves: dict[str, list[float]], least: float, most: float) -> None:
    """Draw for every method the share of its sorted numbers up to x."""
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415  # an extra

    looks = zip(cycle(COLORS), cycle(_STYLES), strict=False)
    for (method, numbers), (color, style) in zip(curves.items(), looks, strict=False):
        axes.step(*_staircase(numbers, least, most), where="post", label=method, color=color, linestyle=style, lw=1.8)
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    if most <= _FEW_DECADES * least:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, color="#dddddd", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _staircase(numbers: Sequence[float], least: float, most: float) -> tuple[list[float], list[float]]:
    """Return where the share of ``numbers`` up to x steps, from ``least`` to ``most``."""
    within = [max(number, least) for number in numbers if number <= most]
    shares = [(position + 1) / len(numbers) for position in range(len(within))]
    return [least, *within, most], [0.0, *shares, shares[-1] if shares else 0.0]
