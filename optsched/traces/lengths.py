"""Distributions of lengths, fitted to published statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

Draw = Callable[[Random], int]
"""Draws a number of tokens ≥ 1."""
_BISECTIONS = 200


def lognormal(mean: float, std: float) -> Draw:
    """Return a log-normal distribution, rounded to whole tokens, at least 1; for a published mean and deviation."""
    variance = math.log1p((std / mean) ** 2)
    centre, width = math.log(mean) - variance / 2, math.sqrt(variance)
    return lambda rng: max(1, round(rng.lognormvariate(centre, width)))


def geometric(low: int, mean: float, high: int) -> Draw:
    """Return the distribution on low … high with this mean whose probabilities form a geometric sequence.

    For a published mean, minimum and maximum: of all distributions with these it has the greatest entropy. Above the
    middle of the range the probabilities ascend.
    """
    count, offset = high - low + 1, mean - low
    ascending = 2 * offset > count - 1
    decay = _decay(count, count - 1 - offset if ascending else offset)
    reach = math.expm1(-count * decay)

    def draw(rng: Random) -> int:
        steps = min(int(-math.log1p(rng.random() * reach) / decay), count - 1)
        return high - steps if ascending else low + steps

    return draw


def _decay(count: int, mean: float) -> float:
    """Find d such that p(k) ∝ exp(−d k), k = 0 … count − 1, has this mean, at most (count − 1)/2."""
    low, high = 1e-9, 100.0
    for _ in range(_BISECTIONS):
        decay = (low + high) / 2
        cut = count / math.expm1(count * decay) if count * decay < 700 else 0.0  # beyond, exp overflows
        if 1 / math.expm1(decay) - cut > mean:
            low = decay
        else:
            high = decay
    return low
