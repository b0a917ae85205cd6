"""The performance profile of methods as a picture; needs matplotlib (``pip install 'optsched[plot]'``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from optsched.model.documents import check_writable
from optsched.model.errors import InputError, Said
from optsched.report.benchmark import SHIFT_S, Runs, ratios

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ("-", "--", "-.", ":")
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which people with any colour vision tell apart."""
_SUFFIXES = (".svg", ".png", ".pdf")
_FEW_DECADES = 100
"""Up to this ratio an axis also names 2 and 5 of each decade."""
_ROOM = 1.02
"""How far beyond the largest share, 1, the axes reach, so that no line lies on the frame."""


def check_plot(path: Path) -> None:
    """Raise `InputError` if it is clear beforehand that `plot_profile` will fail."""
    if path.suffix not in _SUFFIXES:
        raise InputError("", str(path), f"a file name that ends in {', '.join(_SUFFIXES)}")
    check_writable(path)
    try:
        import matplotlib as mpl  # noqa: PLC0415, F401  # an extra
    except ImportError:
        raise InputError("", Said("no matplotlib"), "it installed: pip install 'optsched[plot]'") from None


def plot_profile(runs: Runs, path: Path) -> None:
    """Draw how many instances each method solves over time, and its performance profile.

    Equal runs give equal bytes.
    """
    check_plot(path)
    first = next(iter(runs.values()))
    limit = first[0].limit_s
    figure = new_figure(9.5, 3.9)
    over_time, profile = figure.subplots(1, 2, sharey=True)
    times = {
        method: sorted(math.inf if record.solved_s is None else record.solved_s for record in records)
        for method, records in runs.items()
    }
    _steps(over_time, times, least=0.01, most=limit)
    over_time.set(xlabel="time (s)", ylabel="share of instances proved optimal", title="Solved over time")
    relative = ratios(runs)
    largest = max((ratio for found in relative.values() for ratio in found if ratio < math.inf), default=1.0)
    _steps(profile, relative, least=1.0, most=max(2.0, 1.2 * largest))
    profile.set(
        xlabel=f"time relative to the fastest method, τ (shift {SHIFT_S} s)",
        title="Performance profile",
    )
    profile.legend(loc="lower right", frameon=False)
    over_time.set_ylim(0, _ROOM)
    figure.suptitle(f"{first[0].suite}, {first[0].objective.value}: {len(first)} instances, limit {limit:g} s")
    save_figure(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, that needs no screen."""
    # matplotlib is an extra.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # an extra
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure; equal ones give equal bytes."""
    import matplotlib as mpl  # noqa: PLC0415  # an extra

    timeless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.hashsalt": "optsched"}):
        figure.savefig(path, dpi=150, metadata=timeless.get(path.suffix, {}))


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
