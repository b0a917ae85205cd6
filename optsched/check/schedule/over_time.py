"""What holds over time, distributions of it, and sums over batches."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from optsched.check.problem import Problem


@dataclass(slots=True)
class Totals:
    """Sums over batches, and the most blocks that one occupies."""

    batches: int = 0
    busy_ps: int = 0
    tokens: int = 0
    runs: int = 0
    evictions: int = 0
    swaps: int = 0
    swapped_tokens: int = 0
    resident: int = 0
    block_time: int = 0
    most_blocks: int = 0


class Progression(NamedTuple):
    """The values ``first + n step``, n = 0, …, ``terms`` − 1, each with the weight ``weight + n growth``.

    There is at least one term, ``step`` is at least 0, and no weight is negative.
    """

    first: int
    step: int
    terms: int
    weight: int
    growth: int

    @property
    def last(self) -> int:
        """The largest value."""
        return self.first + (self.terms - 1) * self.step

    @property
    def total(self) -> int:
        """Sum of value times weight."""
        n, pairs = self.terms, self.terms * (self.terms - 1) // 2
        squares = pairs * (2 * n - 1) // 3
        linear = self.first * self.growth + self.step * self.weight
        return n * self.first * self.weight + pairs * linear + squares * self.step * self.growth

    def weight_up_to(self, value: int) -> int:
        """Return the weight of the values that are at most ``value``."""
        if value < self.first:
            return 0
        n = min(self.terms, (value - self.first) // self.step + 1) if self.step else self.terms
        return n * self.weight + n * (n - 1) // 2 * self.growth


class OverTime:
    """Follows the clock from the earliest arrival on, and adds up for how long what holds.

    Parameters
    ----------
    problem
        The problem.
    """

    def __init__(self, problem: Problem) -> None:
        self._limits = problem.limits
        arrivals = [request.arrival_ps for request in problem.requests]
        self._now, self._resident = min(arrivals), 0
        self._tokens: Counter[int] = Counter()
        self._blocks: Counter[int] = Counter()
        self._growing: list[Progression] = []
        # Of those that have arrived, all that are unfinished and hold no KV wait.
        self._changes = Counter(arrivals)

    def keep(self, resident: int) -> None:
        """From now on ``resident`` requests hold KV."""
        self._changes[self._now] += self._resident - resident
        self._resident = resident

    def run(self, until_ps: int, tokens: int, kv_blocks: int) -> None:
        """Until then ``tokens`` tokens run, 0 between batches, and ``kv_blocks`` blocks are occupied."""
        self._tokens[tokens] += until_ps - self._now
        self._blocks[kv_blocks] += until_ps - self._now
        self._now = until_ps

    def grow(self, until_ps: int, tokens: int, kv_blocks: Iterable[Progression]) -> None:
        """Until then ``tokens`` tokens run in every batch; blocks are occupied for as long as the weights say."""
        self._tokens[tokens] += until_ps - self._now
        self._growing += kv_blocks
        self._now = until_ps

    def add(self, tokens: Mapping[int, int], kv_blocks: Mapping[int, int], waiting: Mapping[int, int]) -> None:
        """Add for how long how many tokens run and blocks are occupied, and how many more wait from when on."""
        self._tokens.update(tokens)
        self._blocks.update(kv_blocks)
        self._changes.update(waiting)

    def metrics(self, last_tokens: Sequence[int]) -> dict[str, Any]:
        """Return the metrics that weigh time, given when each request has its last token, in ps."""
        changes = self._changes.copy()
        changes.subtract(last_tokens)
        queue: Counter[int] = Counter()
        waiting = 0
        for now, later_ps in pairwise(sorted(changes)):
            waiting += changes[now]
            queue[waiting] += later_ps - now
        tokens_per_unit = Fraction(self._limits.kv_tokens, self._limits.kv_block)
        return {
            "queue_length_over_time": weighted_distribution(queue),
            "kv_utilisation_over_time": weighted_distribution(self._blocks, self._growing, tokens_per_unit),
            "token_utilisation_over_time": weighted_distribution(
                self._tokens, unit=Fraction(self._limits.batch_tokens)
            ),
        }


def weighted_distribution(
    weights: Mapping[int, int], more: Sequence[Progression] = (), unit: Fraction | None = None
) -> dict[str, int | float] | None:
    """Return mean, percentiles and maximum of integers, each of which counts as much as its weight.

    Percentile q is the least value such that the values up to it have at least q percent of the weight; the maximum is
    percentile 100. With a unit they are shares of it, rounded once. None if there is no weight.

    Parameters
    ----------
    weights
        The weight of every value.
    more
        Further values.
    unit
        What counts as 1.
    """
    values = sorted(weights)
    reached = [0, *accumulate(weights[value] for value in values)]
    whole = reached[-1] + sum(part.weight_up_to(part.last) for part in more)
    if not whole:
        return None
    total = sum(value * weight for value, weight in weights.items()) + sum(part.total for part in more)
    found: dict[str, int | float] = {"mean": float(Fraction(total, whole) / (unit or 1))}
    for name, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("max", 100)):
        value = _least(-(-q * whole // 100), values, reached, more)
        found[name] = value if unit is None else float(value / unit)
    return found


def _least(needed: int, values: Sequence[int], reached: Sequence[int], more: Sequence[Progression]) -> int:
    """Return the least value such that those up to it have at least the weight ``needed``, by halving its range.

    ``reached`` has the weight of the first n of the ascending ``values``. A progression wholly below or above the range
    is not looked at again.
    """
    low = min([*values[:1], *(part.first for part in more)])
    high = max([*values[-1:], *(part.last for part in more)])
    below = 0
    while low < high:
        middle = (low + high) // 2
        weight = below + reached[bisect_right(values, middle)] + sum(part.weight_up_to(middle) for part in more)
        if weight >= needed:
            high = middle
            more = [part for part in more if part.first <= high]
        else:
            low = middle + 1
            below += sum(part.weight_up_to(middle) for part in more if part.last < low)
            more = [part for part in more if part.last >= low]
    return low
