"""Distributions of integers of which each counts several times, or for some time; exact."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from operator import mul, truediv
from typing import Any, Self

from optsched.model.objectives import percentile_rank

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Ramp:
    """``length`` values, each larger than the one before by ``step`` ≥ 0, whose weights grow by ``growth`` ≥ 0.

    Parameters
    ----------
    first, step
        The least value, and what is between two.
    weight, growth
        The weight of the least value, and how much more the next one has.
    length
        How many values there are, at least 1.
    """

    first: int
    step: int
    weight: int
    growth: int
    length: int

    @property
    def last(self) -> int:
        """The largest value."""
        return self.first + self.step * (self.length - 1)

    @property
    def total(self) -> int:
        """Sum of value times weight: with i = 0, …, n − 1, Σ i = n (n − 1) / 2 and Σ i² = n (n − 1) (2 n − 1) / 6."""
        n = self.length
        once, twice = n * (n - 1) // 2, n * (n - 1) * (2 * n - 1) // 6
        crossed = self.first * self.growth + self.step * self.weight
        return self.first * self.weight * n + crossed * once + self.step * self.growth * twice

    def reached(self, value: int) -> int:
        """Return the weight of all values up to this one."""
        if value >= self.last:
            n = self.length
        elif value < self.first:
            n = 0
        else:
            n = 1 + (value - self.first) // self.step
        return self.weight * n + self.growth * (n * (n - 1) // 2)


@dataclass(frozen=True)
class Spread:
    """A weighted distribution.

    Parameters
    ----------
    total
        Sum of value times weight.
    weight
        Sum of the weights, at least 1: how many values there are, or for how long, in ps.
    percentiles
        For each q of `PERCENTILES` the smallest value that at least q percent of the weight does not exceed, which is
        the ceil(q n / 100)-th smallest of n values.
    largest
        Largest value that has a weight.
    """

    total: int
    weight: int
    percentiles: tuple[int, ...]
    largest: int

    @classmethod
    def of(cls, weights: Mapping[int, int], ramps: Sequence[Ramp] = ()) -> Self | None:
        """Return the distribution of values that have these weights, all at least 0; None if all are 0.

        The values of ramps come on top; there should not be many ramps.
        """
        values = sorted(value for value, weight in weights.items() if weight)
        found = cls.of_ascending(values, [weights[value] for value in values])
        more = [ramp for ramp in ramps if ramp.reached(ramp.last)]
        if not more:
            return found
        reached = [0, *accumulate(weights[value] for value in values)]
        least = min([*values[:1], *(ramp.first for ramp in more)])
        largest = max([*values[-1:], *(ramp.last for ramp in more)])

        def weight_up_to(value: int) -> int:
            return reached[bisect_right(values, value)] + sum(ramp.reached(value) for ramp in more)

        weight = weight_up_to(largest)
        range_ = range(least, largest + 1)
        percentiles = [range_[bisect_left(range_, percentile_rank(q, weight), key=weight_up_to)] for q in PERCENTILES]
        total = sum(ramp.total for ramp in more) + (0 if found is None else found.total)
        return cls(total, weight, tuple(percentiles), largest)

    @classmethod
    def of_ascending(cls, values: Sequence[int], weights: Sequence[int]) -> Self | None:
        """Return the distribution of values in ascending order, each of which has a weight of at least 1."""
        if not values:
            return None
        reached = list(accumulate(weights))
        percentiles = [values[bisect_left(reached, percentile_rank(q, reached[-1]))] for q in PERCENTILES]
        return cls(sum(map(mul, values, weights)), reached[-1], tuple(percentiles), values[-1])

    def percentile(self, q: int) -> int:
        """Return one of the percentiles."""
        return self.percentiles[PERCENTILES.index(q)]

    def document(self, unit: int | None = None) -> dict[str, int | float]:
        """Return mean, percentiles and maximum; with a unit as shares of it, each rounded once."""
        values = {f"p{q}": value for q, value in zip(PERCENTILES, self.percentiles, strict=True)} | {
            "max": self.largest
        }
        mean = self.total / (self.weight * (unit or 1))
        return {"mean": mean} | (values if unit is None else {name: value / unit for name, value in values.items()})


def summary(ordered: Sequence[int]) -> dict[str, int | float]:
    """Mean and percentiles of values in ascending order."""
    return {"mean": sum(ordered) / len(ordered)} | _shares(ordered)


def ratios(numerators: Sequence[int], denominators: Sequence[int]) -> dict[str, int | float] | None:
    """Mean and percentiles of quotients, each rounded once; None of no values.

    Rounding keeps their order, so that percentiles of rounded quotients are rounded percentiles.
    """
    if not numerators:
        return None
    sums = dict.fromkeys(denominators, 0)
    for numerator, denominator in zip(numerators, denominators, strict=True):
        sums[denominator] += numerator
    exact = sum((Fraction(total, denominator) for denominator, total in sums.items()), Fraction(0)) / len(numerators)
    return {"mean": float(exact)} | _shares(sorted(map(truediv, numerators, denominators)))


def _shares(ordered: Sequence[Any]) -> dict[str, Any]:
    ranks = {q: percentile_rank(q, len(ordered)) for q in PERCENTILES}
    return {f"p{q}": ordered[rank - 1] for q, rank in ranks.items()} | {"max": ordered[-1]}


def document(spread: Spread | None, unit: int | None = None) -> dict[str, int | float] | None:
    """Return a distribution as documents have it; None for none."""
    return None if spread is None else spread.document(unit)
