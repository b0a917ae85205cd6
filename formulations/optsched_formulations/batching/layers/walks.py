r"""Prices of items on the merged graph, for one number of batches: what is left to pay at least.

Every item i has a price :math:`π_i`, of any sign: a request that waits for item i (for its first fill, or after an
eviction) pays it when it is filled and is paid it when it is evicted. For a node v and t ≥ 0 let :math:`H_t(v)` be the
least cost of a walk from v to the empty node that runs exactly t batches, where a batch costs the base, a fill of i its
extra cost less :math:`π_i`, and an eviction :math:`π_i`.

*Theorem.* A schedule that is at node v before the evictions of some batch, with :math:`p_i` requests that wait for item
i, and that ends after exactly t more batches, costs at least

.. math:: \sum_i π_i p_i + H_t(v)

from there on, without the constant work (that of all first fills and decodes).

*Proof.* What it does is such a walk. Along it every request that waits is filled, and every eviction is followed by a
fill of the same item: item i is filled :math:`p_i` times more often than it is evicted. So the cost of the walk is that
of the schedule less :math:`\sum π_i p_i`, and at least :math:`H_t(v)`. ∎

From the start this is a bound on schedules of exactly J batches, for any prices; the best ones are those of a
Lagrangian relaxation in which the order of evictions and fills is what is relaxed. The function is concave in the
prices, with the balance of the least walk as a slope. A bundle method works on floats; then prices are rounded to whole
units and :math:`H` is computed again, in integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats, maximise
from optsched_formulations.batching.layers.graph import MergedGraph
from optsched_formulations.batching.layers.walk_kernel import steps_of, walk_back

NO_WAY = 1 << 60
"""Cost of a way that does not exist, in units."""
MOST_PAID = 1 << 57
"""In units, along a walk, and as much by prices: too little to make up for a way that does not exist."""
_NO_WAY_IN_BATCHES = 1e9
_TOLERANCE = 2e-3
"""In batches: less is not worth another round."""


def most_steps(batches: int, requests: int) -> int:
    """Return how many arcs a walk can have."""
    return (2 * requests + 1) * (batches + 1)


@dataclass(frozen=True)
class Table:
    """What prices prove.

    Parameters
    ----------
    price
        Of every item, in units.
    least, composing
        :math:`H_t` of every node before evictions, and after them; shape (batches + 1, nodes), in units.
    """

    price: Ints
    least: Ints
    composing: Ints


class Walks:
    """Walks through one merged graph.

    Parameters
    ----------
    graph
        The graph.
    scale
        Units in a ps.
    most
        The largest number of batches to be asked for.
    """

    def __init__(self, graph: MergedGraph, scale: int, most: int) -> None:
        classes = graph.classes
        self._graph = graph
        self.base = classes.base_ps * scale
        self.extra: Ints = np.array([classes.extra_ps(i) * scale for i in range(len(classes.size))], dtype=np.int64)
        self.fresh: Ints = np.zeros(len(self.extra), dtype=np.int64)
        for first, members in zip(classes.first, classes.members, strict=True):
            self.fresh[first] = len(members)
        self._rough = tuple(np.full((most + 1, graph.nodes), _NO_WAY_IN_BATCHES, dtype=np.float32) for _ in range(2))
        self._rough[0][0, 0] = 0.0

    def first_prices(self) -> Floats:
        """Return prices, in batches, that share each batch by what items hold."""
        classes = self._graph.classes
        price = np.zeros(len(self.extra))
        for i in reversed(range(len(price))):
            after = classes.following[i]
            price[i] = classes.size[i] / classes.capacity + (price[after] if after >= 0 else 0.0)
        return price

    def improved(  # noqa: PLR0917
        self, price: Floats, node: int, pool: Ints, batches: int, enough: float, rounds: int, over: Callable[[], bool]
    ) -> tuple[float, Floats]:
        """Return the best bound found from a node and a pool, and its prices, all in batches and rounded.

        ``enough`` is a bound that no more is asked of.
        """

        def evaluate(at: Floats) -> tuple[float, Floats]:
            fill = (self.extra / self.base - at).astype(np.float32)
            evict, base = at.astype(np.float32), np.ones(1, dtype=np.float32)
            walk_back(self._graph.arcs, fill, evict, base, self._rough[0], self._rough[1], batches)
            balance = pool.copy()
            steps_of(self._graph.arcs, fill, evict, base, self._rough[0], self._rough[1], batches, node, balance)
            return float(at @ pool) + float(self._rough[0][batches, node]), balance.astype(np.float64)

        return maximise(evaluate, price, enough, rounds, _TOLERANCE, over)

    def rounded(self, price: Floats, batches: int) -> Ints:
        """Return prices in whole units; those that could add up beyond 64 bits are cut down, as any prove something."""
        most = MOST_PAID // most_steps(batches, int(self.fresh.sum()))
        whole: Ints = np.rint(np.clip(price * self.base, -most, most)).astype(np.int64)
        return whole

    def table(self, price: Floats, batches: int) -> Table:
        """Round prices and compute what they prove, exactly."""
        whole = self.rounded(price, batches)
        least = np.full((batches + 1, self._graph.nodes), NO_WAY, dtype=np.int64)
        composing = np.full_like(least, NO_WAY)
        least[0, 0] = 0
        base: Ints = np.array([self.base], dtype=np.int64)
        walk_back(self._graph.arcs, self.extra - whole, whole, base, least, composing, batches)
        return Table(whole, least, composing)
