"""Performance profiles of methods by the values that they reach."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from optsched.model.documents import instance_sha256
from optsched.model.errors import InputError, Said
from optsched.model.result import Result, Status
from optsched.plot.common import Given, axes_of, legend, looks, methods_of, objective_name, plain_axes, results_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def performance(given: Given, *, ax: Axes | None = None) -> Axes:
    r"""Draw for every method the share of instances on which its value is at most τ times the best one.

    The performance profile of Dolan and Moré (2002), of values in place of times:
    :math:`ρ_m(τ) = |\{i : v_{m,i} ≤ τ \min_{m'} v_{m',i}\}| / |I|`. An instance on which a method has no value counts
    for none of its τ; a method that gives bounds alone is left out.

    Parameters
    ----------
    given
        Results of one objective, at most one of each method on each instance.
    ax
        Where to draw.
    """
    results = results_of(given)
    ratios = value_ratios(results)
    finite = [ratio for found in ratios.values() for ratio in found if ratio < math.inf]
    most = max([1.05, *(1.03 * ratio for ratio in finite)])
    ax = axes_of(ax, 3.0, 4.6)
    for (name, found), (color, style) in zip(ratios.items(), looks(), strict=False):
        reached = sorted(ratio for ratio in found if ratio < math.inf)
        x = [1.0, *reached, most]
        shares = [position / len(found) for position in range(len(reached) + 1)]
        ax.step(x, [*shares, shares[-1]], where="post", label=name, color=color, ls=style, lw=1.8)
    if most > 10:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    name = objective_name(results[0].objective)
    ax.set(xlabel=f"{name} relative to the best, τ", ylabel="share of instances", xlim=(1, most), ylim=(0, 1.02))
    plain_axes(ax)
    legend(ax)
    return ax


def value_ratios(results: list[Result]) -> dict[str, list[float]]:
    """Return for each method its value over the best one, for every instance; infinite without a value."""
    if len({result.objective for result in results}) > 1:
        found = ", ".join(sorted({result.objective.value for result in results}))
        raise InputError("results", Said(found), "results of one objective")
    values: dict[str, dict[str, float]] = defaultdict(dict)
    named = list(zip(methods_of(results), results, strict=True))
    methods = list(dict.fromkeys(name for name, result in named if result.status is not Status.BOUND_ONLY))
    if not methods:
        raise InputError("results", Said("bounds alone"), "results with values")
    for name, result in named:
        on_instance = values[instance_sha256(result.instance)]
        if name in on_instance:
            again = f"{name} on {result.instance.name} twice"
            raise InputError("results", Said(again), "each method once on each instance")
        on_instance[name] = math.inf if result.value is None else result.value
    ratios: dict[str, list[float]] = {method: [] for method in methods}
    for on_instance in values.values():
        best = min(on_instance.values())
        for method in methods:
            value = on_instance.get(method, math.inf)
            ratios[method].append(1.0 if value == best < math.inf else math.inf if not best else value / best)
    return ratios
