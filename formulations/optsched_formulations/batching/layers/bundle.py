r"""A proximal bundle method: the maximum of a concave function of prices, of which values and slopes are known.

Every value f(x) with a slope g is a *cut*, f ≤ f(x) + g (y − x). The next prices maximise the least of the cuts less
‖y − c‖² / 2t around the best prices c so far, which is a quadratic programme over the weights of the cuts (Kiwiel
1990): as the nearest point of a polytope, by its corners (Wolfe 1976).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled, compiled_helper
from optsched.model.ints import Ints

Floats = npt.NDArray[np.float64]
Evaluate = Callable[[Floats], tuple[float, Floats]]
"""Returns value and slope at some prices."""

_FIRST_STEP, _LONGEST_STEP = 0.02, 50.0
_MOST_CUTS = 150
_DESCENT = 0.1
"""Share of the increase that the cuts promise which has to come true before the centre moves."""
_SMALL = 1e-9
_LEVEL = 1e-7
"""Slopes that differ by less are equal."""
_LEAST_WEIGHT = 1e-13


class Cut(NamedTuple):
    """A function that is no less than the concave one: ``constant + slope @ prices``."""

    constant: float
    slope: Floats

    @classmethod
    def through(cls, prices: Floats, value: float, slope: Floats) -> Cut:
        """Return the one with a value and a slope at some prices."""
        return cls(value - float(slope @ prices), slope)

    def at(self, prices: Floats) -> float:
        """Return its value."""
        return self.constant + float(self.slope @ prices)


@dataclass
class _Cuts:
    """Cuts around the centre: slopes, by how much each is too high there, their products, and their weights."""

    slope: Floats
    excess: Floats
    product: Floats
    weight: Floats

    @classmethod
    def of(cls, slopes: Floats, excess: Floats) -> _Cuts:
        """Return cuts without weight."""
        return cls(slopes, np.maximum(excess, 0.0), slopes @ slopes.T, np.zeros(len(slopes)))

    def add(self, slope: Floats, excess: float) -> None:
        """Add a cut."""
        count = len(self.weight)
        product = np.empty((count + 1, count + 1))
        product[:count, :count] = self.product
        product[count, :count] = product[:count, count] = self.slope @ slope
        product[count, count] = slope @ slope
        self.product, self.slope = product, np.vstack([self.slope, slope])
        self.excess = np.append(self.excess, max(excess, 0.0))
        self.weight = np.append(self.weight, 0.0)

    def trim(self) -> None:
        """Drop the cut without weight that is least near, where there are too many."""
        idle = np.flatnonzero(self.weight < _SMALL)
        if len(self.weight) <= _MOST_CUTS or not idle.size:
            return
        kept = np.delete(np.arange(len(self.weight)), idle[np.argmax(self.excess[idle])])
        self.slope, self.excess, self.weight = self.slope[kept], self.excess[kept], self.weight[kept]
        self.product = self.product[np.ix_(kept, kept)]


def maximise(  # noqa: PLR0917
    evaluate: Evaluate,
    start: Floats,
    known: Sequence[Cut],
    enough: float,
    rounds: int,
    tolerance: float,
    over: Callable[[], bool],
    first_gain: float = math.inf,
) -> tuple[float, Floats]:
    """Return the best value found and its prices.

    Parameters
    ----------
    evaluate
        The function.
    start
        Prices to begin with.
    known
        Cuts that are known.
    enough
        A value that no more is asked of.
    rounds
        Most evaluations.
    tolerance
        It ends where the cuts promise less than that.
    over
        Whether time is over.
    first_gain
        The most that the first step promises.
    """
    value, slope = evaluate(start)
    centre, best, null_steps = start, value, 0
    step = min(_FIRST_STEP, first_gain / max(float(slope @ slope), _SMALL))
    slopes = np.stack([slope, *[cut.slope for cut in known]])
    cuts = _Cuts.of(slopes, np.array([0.0, *[cut.at(start) - value for cut in known]]))
    for _ in range(rounds - 1):
        if best >= enough or over():
            break
        cuts.trim()
        _balance(cuts.product, cuts.excess, cuts.weight, step)
        direction = cuts.weight @ cuts.slope
        promised = step * float(direction @ direction) + float(cuts.weight @ cuts.excess)
        prices = centre + step * direction
        value, slope = evaluate(prices)
        serious = value - best >= _DESCENT * promised and value > best
        if not serious and promised < tolerance:
            if step >= _LONGEST_STEP:
                break
            step = min(_LONGEST_STEP, 4.0 * step)
        if serious:
            cuts.excess = np.maximum(cuts.excess + cuts.slope @ (prices - centre) - (value - best), 0.0)
            if value - best > 0.5 * promised:
                step *= 1.7
            centre, best, null_steps = prices, value, 0
        else:
            null_steps += 1
            if null_steps > 3 and value - best < -promised:
                step, null_steps = 0.6 * step, 0
        cuts.add(slope, value - best + float(slope @ (centre - prices)))
    return best, centre


@compiled
def _balance(product: Floats, excess: Floats, weight: Floats, step: float) -> None:
    """Find the weights of the cuts, beginning with those given.

    The cut of which more weight gains most joins those with weight, and they take the weights that are best of all that
    add up to 1. On the way there the first cut whose weight would be negative is left out, and so on.
    """
    count, total = len(weight), weight.sum()
    if total < 0.5:
        weight[:] = 0.0
        weight[np.argmin(excess)] = 1.0
    else:
        weight /= total
    # Of cuts with the same slope any weights are best.
    ridge = 1e-12 * max(1.0, step * np.diag(product).max())
    active, joined = np.flatnonzero(weight > 0.0), -1
    for _ in range(4 * count + 50):
        while True:
            best = _balanced(product, excess, active, step, ridge)
            # As far as no weight is negative.
            there = 1.0
            for k in range(len(active)):
                if best[k] < min(_LEAST_WEIGHT, weight[active[k]]):
                    there = min(there, weight[active[k]] / (weight[active[k]] - best[k]))
            for k in range(len(active)):
                moved = weight[active[k]] + there * (best[k] - weight[active[k]])
                weight[active[k]] = moved if moved >= _LEAST_WEIGHT else 0.0
            kept = active[weight[active] > 0.0]
            if len(kept) == len(active):
                break
            active = kept
        slope = excess + step * (product @ weight)
        low = int(np.argmin(slope))
        # One that has just joined, and is lowest still, is so by rounding.
        if low == joined or weight[low] > 0.0 or slope[active].max() - slope[low] < _LEVEL:
            break
        active, joined = np.append(active, low), low
    weight /= weight.sum()


@compiled_helper
def _balanced(product: Floats, excess: Floats, active: Ints, step: float, ridge: float) -> Floats:
    """Return the best weights of some cuts that add up to 1, negative ones too."""
    size = len(active)
    rows, right = np.ones((size + 1, size + 1)), np.ones(size + 1)
    rows[size, size] = 0.0
    for k in range(size):
        for other in range(size):
            rows[k, other] = step * product[active[k], active[other]]
        rows[k, k] += ridge
        right[k] = -excess[active[k]]
    weights: Floats = np.linalg.solve(rows, right)[:size].astype(np.float64)
    return weights
