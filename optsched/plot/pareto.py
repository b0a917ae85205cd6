r"""TTFT against TPOT, and what no schedule can reach.

*Proved region.* Let :math:`n` be the number of requests, :math:`n'` that of those with :math:`O_r > 1`, x the mean TTFT
and y the mean TPOT of a schedule (each TPOT rounded down to ps, as the objective ``mean_tpot`` has it), and
:math:`B_1, B_2, B_3` bounds on the sums that ``mean_ttft``, ``mean_tpot`` and ``mean_e2e`` minimise. Then

.. math:: n x ≥ B_1, \qquad n' y ≥ B_2, \qquad n x + (O_{\max} - 1) (n' y + n') > B_3

where the last only holds if some request has a second token. *Proof.* The first two are what the bounds say. For the
third, :math:`\mathrm{e2e}_r = \mathrm{ttft}_r + (O_r - 1)\,t_r` with the exact TPOT :math:`t_r`, less than 1 ps above
its rounded value; so :math:`B_3 ≤ \sum_r \mathrm{e2e}_r = n x + \sum_{O_r > 1} (O_r - 1) t_r < n x + (O_{\max} - 1)
(n' y + n')`, as all :math:`t_r ≥ 0`. ∎ It is tight where all requests are equally long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.methods.bound import bound
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.result import Result
from optsched.plot.common import (
    INK,
    MARKERS,
    MUTED,
    SMALL,
    Given,
    axes_of,
    labels_of,
    legend,
    looks,
    plain_axes,
    results_of,
    same_instance,
    schedule_of,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_FAR = 20
_LINE_POINTS = 64
"""Points of the diagonal edge, which is curved on logarithmic axes."""


@dataclass(frozen=True)
class Impossible:
    """Bounds on sums over requests, ps: of TTFT, of TPOT rounded down, of e2e latency; and what they are about.

    Parameters
    ----------
    ttft, tpot, e2e
        B₁, B₂ and B₃.
    requests, decoding
        n and n'.
    most_output
        The largest O.
    """

    ttft: int
    tpot: int
    e2e: int
    requests: int
    decoding: int
    most_output: int

    def least_tpot(self, ttft_ps: float) -> float:
        """Return a TPOT that no schedule with this mean TTFT is below, ps."""
        shared = (self.e2e - self.requests * ttft_ps) / (self.most_output - 1) - self.decoding
        return max(self.tpot, shared) / self.decoding

    @property
    def least_ttft(self) -> float:
        """A mean TTFT that no schedule is below, ps."""
        return self.ttft / self.requests

    @property
    def corner_ttft(self) -> float:
        """From this mean TTFT on the bound on TPOT alone is the larger one, ps."""
        shared = (self.most_output - 1) * (self.tpot + self.decoding)
        return max(self.least_ttft, (self.e2e - shared) / self.requests)


def impossible_region(instance: Instance) -> Impossible:
    """Prove what TTFT and TPOT no schedule of an instance reaches, by the best bounds on three objectives."""
    outputs = [request.output for request in instance.requests]
    decoding = sum(output > 1 for output in outputs)
    if not decoding:
        raise InputError("requests", Said("one output token each"), "a request with two, as TPOT needs")
    goals = (Objective.MEAN_TTFT, Objective.MEAN_TPOT, Objective.MEAN_E2E)
    ttft, tpot, e2e = (bound(instance, goal).bound or 0 for goal in goals)
    return Impossible(ttft, tpot, e2e, len(outputs), decoding, max(outputs))


def means_of(result: Result) -> tuple[float, float]:
    """Return mean TTFT and mean TPOT of a schedule, ps."""
    schedule_of(result)
    rows = result.requests()
    tpots = [(row.e2e_ps - row.ttft_ps) // (row.output - 1) for row in rows if row.output > 1]
    return sum(row.ttft_ps for row in rows) / len(rows), sum(tpots) / max(1, len(tpots))


def pareto(given: Given, *, ax: Axes | None = None, labels: Sequence[str] = ()) -> Axes:
    """Draw mean TTFT and mean TPOT of schedules of one instance, their Pareto front, and the proved impossible region.

    Parameters
    ----------
    given
        Results on one instance, with schedules.
    ax, labels
        Where to draw, and what to call the results.
    """
    results = results_of(given)
    same_instance(results)
    region = impossible_region(results[0].instance)
    points = [means_of(result) for result in results]
    x_unit, x_scale = time_unit(max(x for x, _ in points))
    y_unit, y_scale = time_unit(max(y for _, y in points))
    # From far apart on, points would lie on an axis.
    logarithmic = any(max(side) > _FAR * max(min(side), 1.0) for side in zip(*points, strict=True))
    room = 1.6 if logarithmic else 1.12
    right, top = (room * max(side) for side in zip(*points, strict=True))
    left = 0.7 * min(region.least_ttft, *(x for x, _ in points)) if logarithmic else 0.0
    bottom = 0.7 * min(region.tpot / region.decoding, *(y for _, y in points)) if logarithmic else 0.0
    ax = axes_of(ax, 3.6, 5.0)
    corner = min(region.corner_ttft, right)
    start = region.least_ttft
    diagonal = [start + (corner - start) * share / _LINE_POINTS for share in range(_LINE_POINTS + 1)]
    edge = [(start, top), *((x, region.least_tpot(x)) for x in (*diagonal, right))]
    outline = [(left, bottom), (left, top), *edge, (right, bottom)]
    ax.fill(
        [x / x_scale for x, _ in outline],
        [y / y_scale for _, y in outline],
        facecolor="#eeeeee",
        edgecolor="#c8c8c8",
        hatch="////",
        lw=0,
        gid="impossible",
    )
    ax.plot([x / x_scale for x, _ in edge], [y / y_scale for _, y in edge], color=MUTED, lw=1.2)
    ax.text(
        0.02,
        0.03,
        "proved impossible",
        transform=ax.transAxes,
        fontsize=SMALL,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )
    front = pareto_front(points)
    steps = [(front[0][0], top), *front, (right, front[-1][1])]
    ax.step([x / x_scale for x, _ in steps], [y / y_scale for _, y in steps], where="post", color="#222222", lw=0.9)
    names = labels_of(results, labels)
    for number, (name, (x, y), (color, _)) in enumerate(zip(names, points, looks(), strict=False)):
        marker = MARKERS[number % len(MARKERS)]
        ax.plot([x / x_scale], [y / y_scale], ls="", marker=marker, color=color, ms=6, label=name, gid="result")
    if logarithmic:
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda number, _: f"{number:g}")
    ax.set(xlim=(left / x_scale, right / x_scale), ylim=(bottom / y_scale, top / y_scale))
    ax.set(xlabel=f"mean TTFT ({x_unit})", ylabel=f"mean TPOT ({y_unit})")
    plain_axes(ax)
    legend(ax)
    return ax


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other is below in one coordinate and not above in the other, ascending by the first."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
