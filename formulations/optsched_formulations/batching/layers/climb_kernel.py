"""Prices of items that never fall from batch to batch, raised by steps on near walks, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled, compiled_helper
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.near_kernel import Floats32, NearWalks, least_near_walk

_MOMENTUM = 0.3
LEAST_AIM = 1e-3
"""In batches above the best value: to aim at less is not worth the steps."""


class Begin(NamedTuple):
    """Where the schedules are that prices are to bound.

    Parameters
    ----------
    node, pool
        The node before the evictions of the next batch, and how many requests wait for every item.
    fewest, most
        How many batches may be left.
    """

    node: int
    pool: Ints
    fewest: int
    most: int


@compiled_helper
def _never_falling(price: Floats, item: int, mean: Floats, weight: Ints) -> None:
    """Replace the prices of an item by the nearest ones that never fall: neighbours that do are averaged.

    Row t is of the batch with which t are left, so that batches go from the last row to row 1; row 0 is as row 1.
    """
    blocks = 0
    for t in range(len(price) - 1, 0, -1):
        mean[blocks], weight[blocks] = price[t, item], 1
        blocks += 1
        while blocks > 1 and mean[blocks - 2] > mean[blocks - 1]:
            first, second = weight[blocks - 2], weight[blocks - 1]
            mean[blocks - 2] = (first * mean[blocks - 2] + second * mean[blocks - 1]) / (first + second)
            weight[blocks - 2] = first + second
            blocks -= 1
    t = len(price) - 1
    for block in range(blocks):
        for _ in range(weight[block]):
            price[t, item] = mean[block]
            t -= 1
    price[0, item] = price[1, item]


@compiled
def climb(  # noqa: PLR0917 - compiled functions take positions
    walks: NearWalks,
    extra: Floats,
    runs: Floats32,
    begin: Begin,
    best: Floats,
    value: float,
    aim: float,
    enough: float,
    rounds: int,
) -> float:
    """Raise prices that never fall by steps along slopes; return how far above the best value to aim next.

    Each step is as long as it would take to the value aimed at, were the function of near walks flat (Polyak 1969).

    Parameters
    ----------
    walks
        Near walks.
    extra
        What a fill of every item costs without prices, in batches.
    runs
        What batches cost, by the number that labels have.
    begin
        Where the walks begin.
    best
        Prices to begin with, and the best ones at the end, in batches; row t is of the batch with which t are left.
    value, aim, enough
        What the first prices prove; how much more is aimed at; a value that no more is asked of.
    rounds
        Most steps.
    """
    _, pool, fewest, most = begin
    rows, items = best.shape
    price, direction = best.copy(), np.zeros_like(best)
    cost = np.zeros((rows, 2 * items + 1 + len(runs)), dtype=np.float32)
    cost[:, 2 * items + 1 :] = runs
    start = np.full(rows, float(walks.none))
    mean, weight = np.empty(rows), np.empty(rows, dtype=np.int64)
    balance = np.zeros((rows, items), dtype=np.int64)
    ran = np.zeros(rows, dtype=np.int64)
    top, since = value, 0
    for _ in range(rounds):
        for t in range(rows):
            for item in range(items):
                cost[t, item] = extra[item] - price[t, item]
                cost[t, items + item] = walks.change[item] * price[t, item]
        for t in range(fewest, most + 1):
            start[t] = 0.0
            for item in range(items):
                start[t] += pool[item] * price[t, item]
        balance[:] = 0
        found, batches = least_near_walk(walks, cost.reshape(-1), start, balance, ran)
        if found >= walks.none:
            break
        balance[batches] += pool
        if found > top:
            if found > top + 0.5 * aim:
                aim *= 1.5
            top, since = found, 0
            best[:] = price
            if top >= enough:
                break
        else:
            since += 1
            if 2 * since > rounds:
                aim, since = 0.5 * aim, 0
                if aim < LEAST_AIM:
                    break
                price[:] = best
                direction[:] = 0.0
                continue
        length = 0.0
        for t in range(1, rows):
            for item in range(items):
                direction[t, item] = balance[t, item] + _MOMENTUM * direction[t, item]
                length += direction[t, item] * direction[t, item]
        if length == 0.0:
            break
        step = (top + aim - found) / length
        for t in range(1, rows):
            for item in range(items):
                price[t, item] += step * direction[t, item]
        for item in range(items):
            _never_falling(price, item, mean, weight)
    return aim
