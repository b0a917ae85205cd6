"""Gaps to the optimum over the size of instances."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from optsched.model.errors import InputError, Said, one_of
from optsched.model.instance import Instance
from optsched.model.result import Result
from optsched.plot.common import (
    MARKERS,
    Given,
    axes_of,
    legend,
    looks,
    methods_of,
    objective_name,
    plain_axes,
    results_of,
)
from optsched.plot.gaps import GapRange, Reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _mean_input(instance: Instance) -> float:
    return sum(each.input for each in instance.requests) / len(instance.requests)


def _mean_output(instance: Instance) -> float:
    return sum(each.output for each in instance.requests) / len(instance.requests)


SIZES: Mapping[str, tuple[str, Callable[[Instance], float]]] = MappingProxyType(
    {
        "requests": ("requests", lambda instance: len(instance.requests)),
        "input": ("mean input tokens, I", _mean_input),
        "output": ("mean output tokens, O", _mean_output),
        "kv": ("KV cache, M (tokens)", lambda instance: instance.limits.kv_tokens),
        "kappa": ("κ", lambda instance: instance.kappa),
    }
)
"""What the horizontal axis may count: its label, and how it is found."""
_WIDE_RATIO = 8
_SHARE = 0.6
"""Share of the way between two sizes that the bars at one of them take."""
_WIDEST_PT, _NARROWEST_PT = 2.4, 0.7


def gap(given: Given, *, over: str = "requests", ax: Axes | None = None) -> Axes:
    """Draw the gap of every method on every instance over a size of the instances.

    A gap is to the best bound that any result has for the instance. Where the optimum is known it is a point; where
    not, a bar from the gap to the best value to the gap to the bound: the true one lies in between.

    Parameters
    ----------
    given
        Results with values, of one objective, and with bounds for the same instances.
    over
        One of `SIZES`.
    ax
        Where to draw.
    """
    if over not in SIZES:
        raise InputError("over", over, one_of(over, SIZES))
    results = results_of(given)
    if len({result.objective for result in results}) > 1:
        names = ", ".join(sorted({result.objective.value for result in results}))
        raise InputError("results", Said(names), "results of one objective")
    curves = gaps_by_method(results, over)
    if not curves:
        raise InputError("results", Said("no gap"), "values, and bounds for the same instances (solve, bound)")
    ax = axes_of(ax, 3.2, 5.4)
    sizes = sorted({size for points in curves.values() for size, _ in points})
    log = sizes[0] > 0 and sizes[-1] >= _WIDE_RATIO * sizes[0]
    width = _bar_width(ax, sizes, len(curves), log=log)
    for number, ((name, points), (color, _)) in enumerate(zip(curves.items(), looks(), strict=False)):
        # Beside each other, as bars of several methods at one size would hide each other.
        shift = (number - (len(curves) - 1) / 2) / max(1, len(curves))
        x = [_beside(sizes, size, shift, log=log) for size, _ in points]
        placed = [(position, found) for position, (_, found) in zip(x, points, strict=True)]
        for position, found in placed:
            if found.is_open:
                ax.plot([position] * 2, [100 * found.least, 100 * found.most], color=color, lw=width, gid="open")
        known = [(position, found) for position, found in placed if not found.is_open]
        ax.plot(
            [position for position, _ in known],
            [100 * found.most for _, found in known],
            color=color,
            marker=MARKERS[number % len(MARKERS)],
            ms=4.5,
            ls="",
            clip_on=False,
            zorder=3,
            gid="closed",
        )
        ax.plot([], [], color=color, marker=MARKERS[number % len(MARKERS)], ms=4.5, lw=2.4, label=name)
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    ax.set_ylim(bottom=0)
    ax.margins(y=0.08)
    ax.set(xlabel=SIZES[over][0], ylabel=f"gap in {objective_name(results[0].objective)} (%)")
    plain_axes(ax)
    legend(ax, "bar: open, the gap lies in it")
    return ax


def gaps_by_method(results: list[Result], over: str) -> dict[str, list[tuple[float, GapRange]]]:
    """Return size and gap of every result that has one, by method, ascending by size."""
    reference, size = Reference(results), SIZES[over][1]
    curves: dict[str, list[tuple[float, GapRange]]] = {}
    for name, result in zip(methods_of(results), results, strict=True):
        found = reference.gap(result)
        if found is not None:
            curves.setdefault(name, []).append((size(result.instance), found))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in curves.items()}


def _beside(sizes: list[float], size: float, shift: float, *, log: bool) -> float:
    """Return a place beside a size, by a share of the way to the next one."""
    if len(sizes) == 1:
        return size * (1 + 0.1 * shift)
    if log:
        ratio = min(after / before for before, after in pairwise(sizes))
        return size * math.pow(ratio, _SHARE * shift)
    return size + _SHARE * shift * min(after - before for before, after in pairwise(sizes))


def _bar_width(ax: Axes, sizes: list[float], methods: int, *, log: bool) -> float:
    """Return the width of a bar, pt, at which bars beside each other are told apart."""
    places = [math.log(size) for size in sizes] if log else sizes
    apart = min((after - before for before, after in pairwise(places)), default=0) / (places[-1] - places[0] or 1)
    points = 72 * ax.get_window_extent().width / ax.figure.dpi
    room = 0.8 * _SHARE * apart * points / methods
    return min(_WIDEST_PT, max(_NARROWEST_PT, room)) if len(sizes) > 1 else _WIDEST_PT
