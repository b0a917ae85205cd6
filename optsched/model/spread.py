"""Distributions of integers of which each counts several times, or for some time; exact."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Self

from optsched.model.objectives import percentile_rank

PERCENTILES = (50, 90, 95, 99)


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
    def of(cls, weights: Mapping[int, int]) -> Self | None:
        """Return the distribution of values that have these weights, all at least 0; None if all are 0."""
        values = sorted(value for value, weight in weights.items() if weight)
        return cls.of_ascending(values, [weights[value] for value in values])

    @classmethod
    def of_ascending(cls, values: Sequence[int], weights: Sequence[int]) -> Self | None:
        """Return the distribution of values in ascending order, each of which has a weight of at least 1."""
        if not values:
            return None
        reached = list(accumulate(weights))
        percentiles = [values[bisect_left(reached, percentile_rank(q, reached[-1]))] for q in PERCENTILES]
        return cls(sum(map(mul, values, weights)), reached[-1], tuple(percentiles), values[-1])

    def document(self, unit: int | None = None) -> dict[str, int | float]:
        """Return mean, percentiles and maximum; with a unit as shares of it, each rounded once."""
        values = {f"p{q}": value for q, value in zip(PERCENTILES, self.percentiles, strict=True)} | {
            "max": self.largest
        }
        mean = self.total / (self.weight * (unit or 1))
        return {"mean": mean} | (values if unit is None else {name: value / unit for name, value in values.items()})
