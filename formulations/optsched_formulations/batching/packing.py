r"""What one batch can hold, as one inequality: integer weights of tokens that no batch exceeds.

A *pattern* is what the KV cache can hold in a batch: at most :math:`n_c` requests of every class c, each with one of
its token counts k, of at most ⌊M/b⌋ blocks together. For weights :math:`π_{ck} ≥ 0` and the largest weight W of a
pattern, :math:`\sum π_{ck} h_{ckj} ≤ W` holds for the requests h that batch j holds. Every request is held with every
token count of its own in some batch, so the number of batches is

.. math:: J ≥ \Bigl\lceil \sum_{ck} n_c π_{ck} / W \Bigr\rceil.

Sizes as weights give the memory constraint and the volume bound. Where few requests fit, sizes that do not go together
waste memory, and other weights say more. The best weights for J are the dual prices of covering each (c, k)
:math:`n_c` times with patterns (Gilmore and Gomory's programme of bin packing), found by column generation: price
patterns by a knapsack over requests, each of which takes one token count or none. Prices are rounded down to
integers, and W is computed for those in integers, so that floating point decides how good the inequality is, not
whether it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

from optsched.model.ints import Ints
from optsched.solvers.highs import LpSolution, solve_equality_lp
from optsched.stopwatch import now_s

Item = tuple[int, int]
"""``(class, tokens)``, tokens counted from 1."""

_UNIT = 10_000
"""Weights are whole numbers up to this."""
_MOST_ROUNDS = 200
_MOST_WORK = 2_000_000
"""Requests that fit × token counts × blocks, beyond which pricing would take long."""
_ENOUGH = 1.0 + 1e-6


@dataclass(frozen=True)
class HeldClass:
    """What requests of one class can hold.

    Parameters
    ----------
    count
        Number of requests.
    blocks
        Blocks of token count k, at position k − 1.
    """

    count: int
    blocks: Sequence[int]


@dataclass(frozen=True)
class Packing:
    """Weights of token counts, and the most that a batch holds.

    Parameters
    ----------
    weights
        Positive weights.
    most
        W.
    batches
        Lower bound on the number of batches.
    """

    weights: dict[Item, int]
    most: int
    batches: int


def packing(classes: Sequence[HeldClass], capacity: int, seconds: float) -> Packing | None:
    """Return the best weights found within a time limit; None if the instance is too large for that.

    Parameters
    ----------
    classes
        What can be held.
    capacity
        ⌊M/b⌋.
    seconds
        Wall-clock limit; weights found until then are valid, if not the best.
    """
    deadline = now_s() + seconds
    fitting = [min(held.count, capacity // min(held.blocks)) for held in classes]
    if sum(fit * len(held.blocks) for fit, held in zip(fitting, classes, strict=True)) * capacity > _MOST_WORK:
        return None
    items = [(c, k) for c, held in enumerate(classes) for k in range(1, len(held.blocks) + 1)]
    demand = np.array([classes[c].count for c, _ in items], dtype=np.float64)
    patterns: list[Counter[Item]] = [
        Counter({(c, k): min(fitting[c], capacity // classes[c].blocks[k - 1])}) for c, k in items
    ]
    best: Packing | None = None
    for _ in range(_MOST_ROUNDS):
        left = deadline - now_s()
        if left <= 0:
            break
        solution = cover(patterns, items, demand, left)
        if solution is None:
            break
        weights = whole_weights(solution)
        most, pattern = heaviest(classes, capacity, items, weights)
        total = sum(int(weight) * classes[c].count for weight, (c, _) in zip(weights, items, strict=True))
        bound = -(-total // most)
        if best is None or bound >= best.batches:
            best = Packing({item: int(w) for item, w in zip(items, weights, strict=True) if w}, most, bound)
        if most <= _UNIT * _ENOUGH or pattern in patterns:
            break
        patterns.append(pattern)
    return best


def cover(
    patterns: Sequence[Counter[Item]], items: Sequence[Item], demand: npt.NDArray[np.float64], seconds: float
) -> LpSolution | None:
    """Cover a demand of items with as few patterns as possible, fractionally; None if time runs out."""
    number = {item: position for position, item in enumerate(items)}
    # What is held beyond the demand is wasted: one column of -1 for every item.
    rows = [number[item] for pattern in patterns for item in pattern] + list(range(len(items)))
    columns = [j for j, pattern in enumerate(patterns) for _ in pattern]
    columns += list(range(len(patterns), len(patterns) + len(items)))
    values = [float(count) for pattern in patterns for count in pattern.values()] + [-1.0] * len(items)
    cost = np.concatenate([np.ones(len(patterns)), np.zeros(len(items))])
    matrix = csc_array((values, (rows, columns)), shape=(len(items), len(cost)))
    return solve_equality_lp(cost, matrix, demand, seconds, 1)


def whole_weights(covering: LpSolution) -> Ints:
    """Return the prices of a covering as whole numbers; since a pattern has each item, none exceeds 1 but by error."""
    weights: Ints = np.floor(np.clip(covering.prices, 0.0, 1.0) * _UNIT).astype(np.int64)
    return weights


def heaviest(
    classes: Sequence[HeldClass], capacity: int, items: Sequence[Item], weights: Ints
) -> tuple[int, Counter[Item]]:
    """Return the largest weight of a pattern, and the pattern: a knapsack, request by request."""
    of_class: dict[int, list[tuple[int, int, int]]] = {}
    for (c, k), weight in zip(items, weights.tolist(), strict=True):
        if weight:
            of_class.setdefault(c, []).append((k, classes[c].blocks[k - 1], weight))
    value = np.zeros(capacity + 1, dtype=np.int64)
    choices: list[tuple[int, Ints]] = []
    for c, options in of_class.items():
        for _ in range(min(classes[c].count, capacity // min(blocks for _, blocks, _ in options))):
            after, choice = value.copy(), np.zeros(capacity + 1, dtype=np.int64)
            for k, blocks, weight in options:
                with_it = value[: capacity + 1 - blocks] + weight
                better = np.flatnonzero(with_it > after[blocks:])
                after[blocks + better], choice[blocks + better] = with_it[better], k
            choices.append((c, choice))
            value = after
    room, pattern = capacity, Counter[Item]()
    for c, choice in reversed(choices):
        k = int(choice[room])
        if k:
            pattern[c, k] += 1
            room -= classes[c].blocks[k - 1]
    return int(value[capacity]), pattern
