r"""Prices of items on the graph of resident sets: lower bounds, and estimates of what is still to come.

Item prices λ (first fills) and μ (refills) are *valid* if no cycle of the graph has negative cost after every first
fill is paid its λ, every eviction charged its μ and every refill paid its μ. In a schedule's walk the μ cancel, so it
costs at least Σ λ over the requests plus the least priced cost of a walk from the source to the sink. Best prices are
the dual of a minimum-cost circulation with a unit from source to sink, in which every first fill happens n times for
a class of n and every item is refilled as often as it is evicted.

The theorem needs no floating point: prices are rounded to integers, and potentials that prove the absence of negative
cycles are computed in integers. `optsched.check` does the same from the prices alone.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csc_array

from optsched.model.ints import Ints
from optsched.solvers.highs import solve_equality_lp
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.resident_graph import ResidentGraph
from optsched_formulations.batching.search.state_steps import EVICT, FILL

_FINE = 2**32
"""Prices have at least that many units in a batch's base."""
_MOST_PRICE = 2**58
"""Of items and nodes: with costs of up to 2⁶⁰, as `state_search` has them, sums of a few stay below 2⁶³."""
_NO_WAY = 2**60
"""Cost of a way to the sink where there is none: from an empty batch that no request is left to fill."""
_ROUNDS = 2_000
"""Rounds of Bellman and Ford after which prices are given up."""


@dataclass(frozen=True)
class Prices:
    """Integer prices of items, and what they prove.

    Parameters
    ----------
    scale
        Prices and costs count in 1 / scale ps, so that rounding does not matter where coefficients are small.
    constant_ps
        The constant work, in ps.
    item
        λ of first fills, μ of refills; 0 for items without a price. Shape (items,).
    reduced
        Cost of every arc beyond what it brings nearer to the sink, ≥ 0. Shape (arcs,).
    start
        Least cost of a schedule without the constant work.
    """

    scale: int
    constant_ps: int
    item: Ints
    reduced: Ints
    start: int

    @property
    def bound_ps(self) -> int:
        """Lower bound on the makespan."""
        return self.constant_ps - (-self.start // self.scale)


def certificate(graph: ResidentGraph, prices: Prices) -> dict[str, Any]:
    """Return what `optsched.check` needs to recompute the bound on the makespan."""
    item = [int(price) for price in prices.item]
    return {"kind": "resident_walk", "tracked": sorted(graph.tracked), "scale": prices.scale, "item_prices": item}


def price(graph: ResidentGraph, time_limit_s: float, workers: int) -> Prices | None:
    """Return the best prices that the flow's dual gives, exactly evaluated; None if time runs out."""
    classes = graph.classes
    nodes, arcs = len(graph.nodes), len(graph.tail)
    row = np.full(len(classes.size), -1)
    row[graph.priced] = nodes + np.arange(len(graph.priced))
    fills = np.flatnonzero((graph.kind == FILL) & (row[graph.item] >= 0))
    evictions = np.flatnonzero(graph.kind == EVICT)
    moving = np.flatnonzero(graph.tail != graph.head)
    rows = np.concatenate([graph.tail[moving], graph.head[moving], row[graph.item[fills]], row[graph.item[evictions]]])
    columns = np.concatenate([moving, moving, fills, evictions])
    ones = [np.ones(len(moving)), -np.ones(len(moving)), np.ones(len(fills)), -np.ones(len(evictions))]
    matrix = csc_array((np.concatenate(ones), (rows, columns)), shape=(nodes + len(graph.priced), arcs))
    right = np.zeros(matrix.shape[0])
    right[0] += 1
    right[graph.sink] -= 1
    for first, members in zip(classes.first, classes.members, strict=True):
        if row[first] >= 0:
            right[row[first]] = len(members)
    unit = max(int(graph.cost_ps.max()), 1)
    solution = solve_equality_lp(graph.cost_ps / unit, matrix, right, time_limit_s, workers)
    if solution is None:
        return None
    scale = scale_of(classes)
    for shrink in (1e-9, 1e-7, 1e-5, 1e-3):
        # A little less than the optimal prices leaves every cycle a margin for what rounding takes.
        exact = solution.prices * (unit * scale * (1 - shrink))
        if not np.abs(exact).max() < _MOST_PRICE:
            return None
        item = np.zeros(len(classes.size), dtype=np.int64)
        item[graph.priced] = np.rint(exact[nodes:])
        found = evaluate(graph, item, np.floor(-exact[:nodes]).astype(np.int64))
        if found is not None:
            return found
    return None


def scale_of(classes: Classes) -> int:
    """Return how many units of prices and costs make a ps."""
    return max(1, _FINE // max(classes.base_ps, *classes.fill_ps, 1))


def evaluate(graph: ResidentGraph, item: Ints, potential: Ints) -> Prices | None:
    """Prove that no cycle is negative (Bellman and Ford, in integers), then measure every way on; or None.

    ``potential`` is where to begin, shape (nodes,); the closer to the least costs the better.
    """
    scale = scale_of(graph.classes)
    cost = graph.cost_ps * scale
    fills, evictions = graph.kind == FILL, graph.kind == EVICT
    cost[fills] -= item[graph.item[fills]]
    cost[evictions] += item[graph.item[evictions]]
    order = np.argsort(graph.head, kind="stable")
    tail, sorted_cost = graph.tail[order], cost[order]
    entered, first = np.unique(graph.head[order], return_index=True)
    for _ in range(_ROUNDS):
        best = np.minimum.reduceat(potential[tail] + sorted_cost, first)
        lower = best < potential[entered]
        if not lower.any():
            break
        potential[entered[lower]] = best[lower]
        if best.min() < -_MOST_PRICE:
            return None
    else:
        return None
    reduced = cost + potential[graph.tail] - potential[graph.head]
    onward = _distances(graph, reduced) + potential[graph.sink] - potential
    classes = graph.classes
    paid = sum(int(item[i]) * len(members) for i, members in zip(classes.first, classes.members, strict=True))
    reduced = cost + onward[graph.head] - onward[graph.tail]
    return Prices(scale, classes.constant_ps, item, reduced, paid + int(onward[0]))


def _distances(graph: ResidentGraph, reduced: Ints) -> Ints:
    """Return the least reduced cost of a way from every node to the sink (Dijkstra, backwards)."""
    order = np.argsort(graph.head, kind="stable")
    tails, costs = graph.tail[order].tolist(), reduced[order].tolist()
    begins = np.searchsorted(graph.head[order], np.arange(len(graph.nodes) + 1)).tolist()
    distance = [_NO_WAY] * len(graph.nodes)
    queue = [(0, graph.sink)]
    while queue:
        far, node = heapq.heappop(queue)
        if distance[node] < _NO_WAY:
            continue
        distance[node] = far
        for arc in range(begins[node], begins[node + 1]):
            if distance[tails[arc]] == _NO_WAY:
                heapq.heappush(queue, (far + costs[arc], tails[arc]))
    # Where ways are longer, less is as consistent.
    return np.array([min(far, _NO_WAY) for far in distance], dtype=np.int64)
