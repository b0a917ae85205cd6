"""What holds over time, and distributions of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from optsched.check.problem import Problem


class Level(NamedTuple):
    """What holds from a time on: tokens that run, requests that hold KV, and blocks that they take."""

    start_ps: int
    tokens: int
    resident: int
    kv_blocks: int


def over_time(problem: Problem, levels: Sequence[Level], last_tokens: Sequence[int]) -> dict[str, Any]:
    """Return the metrics that weigh time, from the earliest arrival on until the last level begins.

    Parameters
    ----------
    problem
        The problem.
    levels
        In the order of time.
    last_tokens
        When each request has its last token, ps.
    """
    limits, arrivals = problem.limits, [request.arrival_ps for request in problem.requests]
    every = [Level(min(arrivals), 0, 0, 0), *levels]
    tokens: Counter[int] = Counter()
    blocks: Counter[int] = Counter()
    # Of those that have arrived, all who are unfinished and hold no KV wait.
    changes = Counter(arrivals)
    changes.subtract(last_tokens)
    for level, later in pairwise(every):
        tokens[level.tokens] += later.start_ps - level.start_ps
        blocks[level.kv_blocks] += later.start_ps - level.start_ps
        changes[later.start_ps] += level.resident - later.resident
    queue: Counter[int] = Counter()
    waiting = 0
    for now, later_ps in pairwise(sorted(changes)):
        waiting += changes[now]
        queue[waiting] += later_ps - now
    held = {number * limits.kv_block: time_ps for number, time_ps in blocks.items()}
    return {
        "queue_length_over_time": weighted_distribution(queue),
        "kv_utilisation_over_time": weighted_distribution(held, limits.kv_tokens),
        "token_utilisation_over_time": weighted_distribution(tokens, limits.batch_tokens),
    }


def weighted_distribution(weights: Mapping[int, int], unit: int | None = None) -> dict[str, int | float] | None:
    """Return mean, percentiles and maximum of integers, each of which counts as much as its weight.

    Percentile q is the least value such that the values up to it have at least q percent of the weight; the maximum is
    percentile 100. With a unit they are shares of it, rounded once. None if there is no weight.
    """
    whole = sum(weights.values())
    if not whole:
        return None
    mean = Fraction(sum(value * weight for value, weight in weights.items()), whole * (unit or 1))
    found: dict[str, int | float] = {"mean": float(mean)}
    left, below = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}, 0
    for value in sorted(weights):
        below += weights[value]
        for name in [name for name, q in left.items() if 100 * below >= q * whole]:
            found[name] = value if unit is None else float(Fraction(value, unit))
            del left[name]
    return found
