r"""Packing inequalities that a fractional solution of the master violates.

In a batch of such a solution :math:`h_{ck}` requests hold a token count (class, k), as a convex combination of what
batches can hold if the solution is to be an average of schedules. So the least number of patterns of contents (see
`packing`) that cover h, fractionally, is at most 1. If it is more, the dual prices of covering are weights
π of an inequality :math:`\sum π_{ck} h_{ck} ≤ W` that this batch violates, and that holds for all batches of every
schedule, W being the largest weight of what a batch can hold.

Only what the batch holds is covered. Other items get weights afterwards: a request that holds more tokens could hold
fewer of them, so the largest weight of the smaller items of a class leaves W as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from optsched.stopwatch import now_s
from optsched_formulations.batching.packing import HeldClass, Item, Packing, cover, heaviest, whole_weights

Floats = npt.NDArray[np.float64]

_VIOLATED = 1.001
"""How much more than W a solution has to hold for an inequality to be worth its rows."""
_MOST_ROUNDS = 50


def violated_packings(
    classes: Sequence[HeldClass], capacity: int, held: dict[Item, Floats], most: int, deadline: float
) -> list[Packing]:
    """Return inequalities that a solution violates, each the most violated one of some batch.

    Parameters
    ----------
    classes
        What requests can hold.
    capacity
        ⌊M/b⌋.
    held
        How many requests hold an item in every batch; items not held anywhere may be missing.
    most
        Number of inequalities, the most violated ones.
    deadline
        When to stop, on the clock of `optsched.stopwatch`.
    """
    found: list[tuple[float, Packing]] = []
    for batch in range(len(next(iter(held.values())))):
        amounts = {item: float(of_batches[batch]) for item, of_batches in held.items() if of_batches[batch] > 1e-9}
        if any(_excess(packing, amounts) > _VIOLATED for _, packing in found):
            continue
        if now_s() > deadline:
            break
        packing = _covering(classes, capacity, amounts, deadline)
        if packing is not None:
            found.append((_excess(packing, amounts), packing))
    found.sort(key=lambda entry: -entry[0])
    return [packing for _, packing in found[:most]]


def _excess(packing: Packing, amounts: dict[Item, float]) -> float:
    return sum(packing.weights.get(item, 0) * amount for item, amount in amounts.items()) / packing.most


def _covering(
    classes: Sequence[HeldClass], capacity: int, amounts: dict[Item, float], deadline: float
) -> Packing | None:
    """Return the inequality that the contents of one batch violate most; None if there is none."""
    items = sorted(amounts)
    demand = np.array([amounts[item] for item in items])
    contents = [Counter({(c, k): min(classes[c].count, capacity // classes[c].blocks[k - 1])}) for c, k in items]
    best: tuple[float, dict[Item, int]] | None = None
    for _ in range(_MOST_ROUNDS):
        left = deadline - now_s()
        if left <= 0:
            break
        solution = cover(contents, items, demand, left)
        if solution is None or solution.objective < _VIOLATED:
            break
        weights = whole_weights(solution)
        most, content = heaviest(classes, capacity, items, weights)
        excess = float(weights @ demand) / most
        if excess > _VIOLATED and (best is None or excess > best[0]):
            best = excess, dict(zip(items, weights.tolist(), strict=True))
        if content in contents:
            break
        contents.append(content)
    return None if best is None else _extended(classes, capacity, best[1])


def _extended(classes: Sequence[HeldClass], capacity: int, weights: dict[Item, int]) -> Packing:
    """Give weights to the items that have none, and compute W."""
    items, heavy = [], []
    for c, of_class in enumerate(classes):
        weight = 0
        for k in range(1, len(of_class.blocks) + 1):
            weight = max(weight, weights.get((c, k), 0))
            items.append((c, k))
            heavy.append(weight)
    most, _ = heaviest(classes, capacity, items, np.array(heavy))
    total = sum(classes[c].count * weight for (c, _), weight in zip(items, heavy, strict=True))
    return Packing({i: weight for i, weight in zip(items, heavy, strict=True) if weight}, most, -(-total // most))
