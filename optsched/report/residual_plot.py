"""Residuals of a calibration as a picture; needs matplotlib (``pip install 'optsched[plot]'``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optsched.calibrate.library import Part
from optsched.report.figure import COLORS, check_plot, new_figure, save_figure

if TYPE_CHECKING:
    from optsched.calibrate.assemble import Calibration, Residuals

_PS_PER_MS = 10**9
_ACROSS = 3
_PER_REQUEST = (Part.PER_SEQUENCE, Part.CPU_OVERHEAD)


def plot_residuals(found: Calibration, path: Path) -> None:
    """Draw, part by part, how far the fit is from what was measured, in % of it, over the measured time.

    Equal calibrations give equal bytes.
    """
    check_plot(path)
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415 - an extra

    count = len(found.residuals)
    across = min(_ACROSS, count)
    down = -(-count // across)
    figure = new_figure(3.4 * across, 2.8 * down + 0.4)
    grid = figure.subplots(down, across, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= count:
            axes.set_axis_off()
            continue
        residuals: Residuals = found.residuals[place]
        error = found.profile.fit[residuals.part]
        by_tokens = residuals.whole is None
        # Attention spans decades of time; other parts are functions of the tokens, and their steps show over them.
        along = residuals.timings.tokens if by_tokens else residuals.timings.times / _PS_PER_MS
        off = 100 * (residuals.predicted / residuals.timings.times - 1)
        size, alpha = (9, 0.8) if len(along) < 1000 else (2, 0.25)
        axes.scatter(along, off, s=size, alpha=alpha, color=COLORS[place % len(COLORS)], linewidths=0, rasterized=True)
        axes.axhline(0, color="#000000", lw=0.6)
        axes.set_xscale("log")
        if max(along) < 100 * min(along):
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        title = f"{residuals.part.value.replace('_', ' ')}: MAPE {100 * error.mape:.1f} %"
        axes.set_title(title, fontsize=9)
        counted = "requests" if residuals.part in _PER_REQUEST else "tokens"
        axes.set_xlabel(counted if by_tokens else "measured (ms)", fontsize=8)
        axes.set_ylabel("fit − measured (%)", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(visible=True, color="#dddddd", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{found.profile.name}: residuals", fontsize=11)
    save_figure(figure, path)
