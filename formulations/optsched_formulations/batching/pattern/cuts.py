r"""Packing inequalities that a fractional solution of the master violates.

In a batch of such a solution :math:`h_{ck}` requests hold a token count (class, k), as a convex combination of what
batches can hold if the solution is to be an average of schedules. So the least number of patterns of contents (see
`packing`) that cover h, fractionally, is at most 1. If it is more, the dual prices of covering are weights
π of an inequality :math:`\sum π_{ck} h_{ck} ≤ W` that this batch violates, and that holds for all batches of every
schedule, W being the largest weight of what a batch can hold.

Only what the batch holds is covered. Other items get weights afterwards: whoever holds more tokens could hold fewer of
them, so the largest weight of the smaller items of a class leaves W as it is.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array

from optsched.solvers.highs import solve_equality_lp
from optsched_formulations.batching.packing import Item, Packing
from optsched_formulations.batching.pattern.network import Floats, Ints

_UNIT = 10_000
"""Weights are whole numbers up to this."""
_VIOLATED = 1.001
"""How much more than W a solution has to hold for an inequality to be worth its rows."""
_MOST_ROUNDS = 50


@dataclass(frozen=True)
class Cache:
    """What requests hold, and how much there is.

    Parameters
    ----------
    counts
        Number of requests of every class.
    blocks
        Blocks of token count k of every class, at position k − 1.
    capacity
        ⌊M/b⌋.
    """

    counts: list[int]
    blocks: list[list[int]]
    capacity: int


def violated_packings(cache: Cache, held: dict[Item, Floats], most: int, deadline: float) -> list[Packing]:
    """Return inequalities that a solution violates, each the most violated one of some batch.

    Parameters
    ----------
    cache
        What requests hold.
    held
        How many requests hold an item in every batch; items not held anywhere may be missing.
    most
        Number of inequalities, the most violated ones.
    deadline
        When to stop, on the clock of ``time.perf_counter``.
    """
    found: list[tuple[float, Packing]] = []
    for batch in range(len(next(iter(held.values())))):
        amounts = {item: float(of_batches[batch]) for item, of_batches in held.items() if of_batches[batch] > 1e-9}
        if any(_excess(packing, amounts) > _VIOLATED for _, packing in found):
            continue
        if time.perf_counter() > deadline:
            break
        packing = _covering(cache, amounts, deadline)
        if packing is not None:
            found.append((_excess(packing, amounts), packing))
    found.sort(key=lambda entry: -entry[0])
    return [packing for _, packing in found[:most]]


def _excess(packing: Packing, amounts: dict[Item, float]) -> float:
    return sum(packing.weights.get(item, 0) * amount for item, amount in amounts.items()) / packing.most


def _covering(cache: Cache, amounts: dict[Item, float], deadline: float) -> Packing | None:
    """Return the inequality that the contents of one batch violate most; None if there is none."""
    items = sorted(amounts)
    demand = np.array([amounts[item] for item in items])
    contents = [Counter({(c, k): min(cache.counts[c], cache.capacity // cache.blocks[c][k - 1])}) for c, k in items]
    best: tuple[float, dict[Item, int]] | None = None
    for _ in range(_MOST_ROUNDS):
        left = deadline - time.perf_counter()
        if left <= 0:
            break
        rows = [items.index(item) for content in contents for item in content] + list(range(len(items)))
        columns = [p for p, content in enumerate(contents) for _ in content]
        columns += list(range(len(contents), len(contents) + len(items)))
        values = [float(n) for content in contents for n in content.values()] + [-1.0] * len(items)
        cost = np.concatenate([np.ones(len(contents)), np.zeros(len(items))])
        matrix = csc_array((values, (rows, columns)), shape=(len(items), len(cost)))
        solution = solve_equality_lp(cost, matrix, demand, left, 1)
        if solution is None or solution.objective < _VIOLATED:
            break
        weights = np.floor(np.maximum(solution.prices, 0.0) * _UNIT).astype(np.int64)
        most, content = _heaviest(cache, items, weights)
        excess = float(weights @ demand) / most
        if excess > _VIOLATED and (best is None or excess > best[0]):
            best = excess, dict(zip(items, weights.tolist(), strict=True))
        if content in contents:
            break
        contents.append(content)
    return None if best is None else _extended(cache, best[1])


def _extended(cache: Cache, weights: dict[Item, int]) -> Packing:
    """Give weights to the items that have none, and compute W."""
    items, heavy = [], []
    for c, blocks in enumerate(cache.blocks):
        weight = 0
        for k in range(1, len(blocks) + 1):
            weight = max(weight, weights.get((c, k), 0))
            items.append((c, k))
            heavy.append(weight)
    most, _ = _heaviest(cache, items, np.array(heavy))
    total = sum(cache.counts[c] * weight for (c, _), weight in zip(items, heavy, strict=True))
    return Packing({i: weight for i, weight in zip(items, heavy, strict=True) if weight}, most, -(-total // most))


def _heaviest(cache: Cache, items: list[Item], weights: Ints) -> tuple[int, Counter[Item]]:
    """Return the largest weight of what a batch can hold, and these contents: a knapsack, request by request."""
    capacity = cache.capacity
    options: dict[int, list[tuple[int, int, int]]] = {}
    for (c, k), weight in zip(items, weights.tolist(), strict=True):
        if weight:
            options.setdefault(c, []).append((k, cache.blocks[c][k - 1], weight))
    value = np.zeros(capacity + 1, dtype=np.int64)
    chosen: list[tuple[int, Ints]] = []
    for c, of_class in options.items():
        for _ in range(min(cache.counts[c], capacity // min(blocks for _, blocks, _ in of_class))):
            after, choice = value.copy(), np.zeros(capacity + 1, dtype=np.int64)
            for k, blocks, weight in of_class:
                filled = value[: capacity + 1 - blocks] + weight
                better = np.flatnonzero(filled > after[blocks:])
                after[blocks + better], choice[blocks + better] = filled[better], k
            chosen.append((c, choice))
            value = after
    room, content = capacity, Counter[Item]()
    for c, choice in reversed(chosen):
        k = int(choice[room])
        if k:
            content[c, k] += 1
            room -= cache.blocks[c][k - 1]
    return int(value[capacity]), content
