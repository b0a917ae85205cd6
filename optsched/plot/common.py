"""What all figures share: which results they take, colours, axes, and saving."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from optsched.model.documents import ClaimedResult
from optsched.model.errors import InputError, Said
from optsched.model.objectives import Objective
from optsched.model.result import Result
from optsched.model.schedule import Schedule
from optsched.report.figure import COLORS, check_plot, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#222222", "#6f6f6f", "#e6e6e6"
SMALL = 7.5
"""Size of tick labels and legends, pt."""
WIDTH = 7.2
"""Default width of a figure, inches: both columns of a paper."""
_STYLES = ("-", "--", "-.", ":")
_LABELS = 0.45
"""Inches left of axes that their labels take."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""One more than there are colours, for the same reason as in `looks`."""

Given = Result | ClaimedResult | Sequence[Result | ClaimedResult]
"""One result or several, as methods return them or as they are read from documents."""


def results_of(given: Given) -> list[Result]:
    """Return the results, at least one."""
    several = given if isinstance(given, Sequence) else [given]
    found = []
    for position, each in enumerate(several):
        result = each.result if isinstance(each, ClaimedResult) else each
        if not isinstance(result, Result):
            raise InputError(f"results[{position}]", result, "a Result, or one that is read from a document")
        found.append(result)
    if not found:
        raise InputError("results", Said("nothing"), "at least one Result")
    return found


def schedule_of(result: Result) -> Schedule:
    """Return a result's schedule, or raise `InputError` if it has none."""
    if result.schedule is None:
        name = f"{result.method} on {result.instance.name}"
        raise InputError("schedule", Said(f"none from {name} ({result.status.value})"), "a result with a schedule")
    return result.schedule


def labels_of(results: Sequence[Result], labels: Sequence[str] = ()) -> list[str]:
    """Return what to call the results: what is given, or their methods."""
    if labels and len(labels) != len(results):
        raise InputError("labels", Said(f"{len(labels)} labels"), f"{len(results)}, one for each result")
    return list(labels or methods_of(results))


def methods_of(results: Sequence[Result]) -> list[str]:
    """Return the methods, each with the options in which its results on one instance differ: ``vllm(router=sal)``."""
    together = defaultdict[tuple[str, str], list[dict[str, str]]](list)
    for result in results:
        together[result.method, result.instance.name].append(result.options)
    telling = defaultdict[str, set[str]](set)
    for (method, _), options in together.items():
        names = {name for each in options for name in each}
        telling[method] |= {name for name in names if len({each.get(name) for each in options}) > 1}
    found = []
    for result in results:
        chosen = [f"{name}={result.options[name]}" for name in sorted(telling[result.method]) if name in result.options]
        found.append(f"{result.method}({', '.join(chosen)})" if chosen else result.method)
    return found


def same_instance(results: Iterable[Result]) -> None:
    """Raise `InputError` unless all results are about one instance."""
    first, *others = results
    for other in others:
        if other.instance != first.instance:
            raise InputError("results", other.instance.name, f"results on one instance, {first.instance.name}")


def axes_of(ax: Axes | None, height: float, width: float = WIDTH) -> Axes:
    """Return the axes, or those of a new figure."""
    return new_figure(width, height).subplots() if ax is None else ax


def looks() -> Iterable[tuple[str, str]]:
    """Yield colours with line styles, which also tell curves apart in black and white.

    Neighbours differ in both. Seven and four have no common divisor: no pair comes again before all have.
    """
    return zip(cycle(COLORS), cycle(_STYLES), strict=False)


def plain_axes(ax: Axes, grid: str = "both") -> None:
    """Draw axes in the manner of all figures."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=SMALL, color=MUTED, labelcolor=INK)
    ax.grid(visible=True, axis="both" if grid == "both" else "x" if grid == "x" else "y", color=GRID, lw=0.6)
    ax.set_axisbelow(True)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_fontsize(SMALL + 0.5)
        axis.label.set_color(INK)


def legend(ax: Axes, title: str | None = None, handles: Sequence[Artist] = ()) -> None:
    """Put the legend, of what is drawn or of ``handles``, above the axes, in as many columns as fit."""
    # Alone in its figure the legend may go on beyond the axes, whose labels take what is left of it.
    alone = len(ax.figure.axes) == 1
    width = ax.figure.bbox.width / ax.figure.dpi - _LABELS if alone else ax.get_window_extent().width / ax.figure.dpi
    shown = handles or ax.get_legend_handles_labels()[0]
    longest = max((len(str(handle.get_label())) for handle in shown), default=1)
    columns = max(1, int(width / (0.45 + 0.065 * longest)))
    ax.legend(
        handles=shown,
        frameon=False,
        fontsize=SMALL,
        title=title,
        title_fontsize=SMALL,
        alignment="left",
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=max(1, min(columns, len(shown))),
        columnspacing=1.2,
        handletextpad=0.5,
    )


def time_unit(largest_ps: float) -> tuple[str, float]:
    """Return the unit in which times up to the largest one are read, and how many ps it has."""
    if largest_ps < 10**7:
        return "ps", 1.0
    if largest_ps < 2 * 10**9:
        return "µs", 1e6
    return ("ms", 1e9) if largest_ps < 2 * 10**12 else ("s", 1e12)


def objective_name(objective: Objective) -> str:
    """Return an objective's name as a label: ``mean e2e``."""
    return objective.value.replace("_", " ")


def value_text(result: Result) -> str:
    """Return a result's value with its unit."""
    if result.value is None or result.value_s is None:
        return "none" if result.value is None else f"{result.value} requests"
    unit, scale = time_unit(result.value_s * 1e12)
    return f"{result.value_s * 1e12 / scale:.2f} {unit}"


def save(drawn: Axes | Figure, path: str | Path) -> None:
    """Write a figure, or that of axes, to a file: .svg, .png or .pdf. Equal figures give equal bytes."""
    target = Path(path)
    check_plot(target)
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra

    figure = drawn.figure
    while not isinstance(figure, Figure):
        figure = figure.figure
    save_figure(figure, target)
