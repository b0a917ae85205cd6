r"""A proximal bundle method: the maximum of a concave function of prices, of which values and slopes are known.

Every value f(x) with a slope g is a *cut*, f ≤ f(x) + g (y − x). The next prices maximise the least of the cuts less
‖y − c‖² / 2t around the best prices c so far, which is a quadratic programme over the weights of the cuts (Kiwiel
1990). It is solved by moving weight between two cuts at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled

Floats = npt.NDArray[np.float64]
Evaluate = Callable[[Floats], tuple[float, Floats]]
"""Returns value and slope at some prices."""

_FIRST_STEP, _LONGEST_STEP = 0.02, 50.0
_MOST_CUTS = 150
_DESCENT = 0.1
"""Share of the increase that the cuts promise which has to come true before the centre moves."""
_SMALL = 1e-9


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

    def add(self, slope: Floats, excess: float) -> None:
        """Add a cut."""
        across = self.slope @ slope
        self.product = np.block([[self.product, across[:, None]], [across[None, :], slope @ slope]])
        self.slope = np.vstack([self.slope, slope])
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
    cuts = _Cuts(slope[None, :], np.zeros(1), np.array([[slope @ slope]]), np.zeros(1))
    for cut in known:
        cuts.add(cut.slope, cut.at(start) - value)
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
    """Find the weights of the cuts, beginning with those given."""
    count, total = len(weight), weight.sum()
    if total < 0.5:
        weight[:] = 0.0
        weight[np.argmin(excess)] = 1.0
    else:
        weight /= total
    slope = excess + step * (product @ weight)
    for _ in range(20 * count + 200):
        low, high = -1, -1
        for k in range(count):
            if low < 0 or slope[k] < slope[low]:
                low = k
            if weight[k] > 1e-12 and (high < 0 or slope[k] > slope[high]):
                high = k
        if slope[high] - slope[low] < 1e-7:
            break
        bend = step * (product[low, low] + product[high, high] - 2.0 * product[low, high])
        moved = weight[high] if bend <= 1e-15 else min(weight[high], (slope[high] - slope[low]) / bend)
        weight[low] += moved
        weight[high] -= moved
        if weight[high] < 1e-13:
            weight[high] = 0.0
        for k in range(count):
            slope[k] += step * moved * (product[k, low] - product[k, high])
