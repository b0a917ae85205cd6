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

*Near walks.* Of millions of states a few can be on the least walk while prices change little. So the bundle method
looks only at walks that cost up to a slack more than the least one (`near_kernel`): their function is no less than that
of all, and the same around the prices that they are found at. Where it has its maximum all walks are looked at, and
those near it are the next ones; if the bound is no better there, prices go back part of the way. The least walks of
such looks stay cuts. If the function of all is as large as the maximum of that of the near ones, prices are the best.
Small graphs are looked at in full each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Cut, Evaluate, Floats, maximise
from optsched_formulations.batching.layers.graph import MergedGraph
from optsched_formulations.batching.layers.graph_kernel import DONE
from optsched_formulations.batching.layers.near_kernel import Floats32, Near, least_near_walk, near_walks
from optsched_formulations.batching.layers.walk_kernel import steps_of, walk_back

NO_WAY = 1 << 60
"""Cost of a way that does not exist, in units."""
MOST_PAID = 1 << 57
"""In units, along a walk, and as much by prices: too little to make up for a way that does not exist."""
_NO_WAY_IN_BATCHES = 1e9
_TOLERANCE = 5e-4
"""In batches: less is not worth another round."""
_SLACK, _LEAST_SLACK, _MOST_SLACK, _LESS_SLACK = 0.3, 1e-3, 1.0, 0.6
"""In batches, of near walks: at first, at least, at most, and how many times as much where there are too many."""
_SPARSE = 8
"""Where near walks have less than this part of the arcs that there is room for, the slack grows."""
FEW_PLACES = 1_000_000
"""Looking at them takes less than the bundle method does."""
_FEWEST_ARCS, _MOST_ARCS, _ARCS_SHARE = 100_000, 2_000_000, 0.03
"""Of near walks: room for them, a share of all arcs."""
_FEW_ROUNDS, _MANY_ROUNDS = 120, 600
"""On near walks before the next look at all, and where those gain nothing."""
_FAR_BELOW = 10.0
"""In batches: cuts of prices that prove so much less are not kept."""
_BACK, _TIMES_BACK = 0.3, 4
"""Part of the way that prices keep when they go back, and how often."""


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
    few_places
        Nodes times batches up to which all walks are looked at each time.
    """

    def __init__(self, graph: MergedGraph, scale: int, most: int, few_places: int = FEW_PLACES) -> None:
        classes = graph.classes
        self._few_places = few_places
        self._graph = graph
        self.base = classes.base_ps * scale
        self.extra: Ints = np.array([classes.extra_ps(i) * scale for i in range(len(classes.size))], dtype=np.int64)
        self.fresh: Ints = np.zeros(len(self.extra), dtype=np.int64)
        for first, members in zip(classes.first, classes.members, strict=True):
            self.fresh[first] = len(members)
        self._rough = tuple(np.full((most + 1, graph.nodes), _NO_WAY_IN_BATCHES, dtype=np.float32) for _ in range(2))
        self._rough[0][0, 0] = 0.0
        arcs = most * (2 * graph.nodes + len(graph.arcs.fill_item) + len(graph.arcs.evict_item))
        self._room = _room(min(max(_FEWEST_ARCS, int(_ARCS_SHARE * arcs)), _MOST_ARCS))

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

        ``enough`` is a bound that no more is asked of; ``rounds`` are looks at all walks.
        """

        def look(at: Floats) -> tuple[float, Floats]:
            return self._look(at, node, pool, batches)

        if batches * self._graph.nodes <= self._few_places:
            return maximise(look, price, [], enough, rounds, _TOLERANCE, over)
        value, slope = look(price)
        known = [Cut.through(price, value, slope)]
        slack, most, looks = _SLACK, _FEW_ROUNDS, 1
        while value < min(enough, _NO_WAY_IN_BATCHES / 2) and looks < rounds and not over():
            near, states, slack = self._near(price, node, batches, slack)
            evaluate = self._evaluation(near, states, pool)
            hoped, there = maximise(evaluate, price, known, enough, most, _TOLERANCE, over)
            if hoped < value + _TOLERANCE:
                if most == _MANY_ROUNDS:
                    break
                most = _MANY_ROUNDS
                continue
            for _ in range(1 + _TIMES_BACK):
                (found, slope), looks = look(there), looks + 1
                # Far away prices are large, and what is rounded there is too much here.
                if found > value - _FAR_BELOW:
                    known.append(Cut.through(there, found, slope))
                if found > value:
                    value, price = found, there
                    break
                there = price + _BACK * (there - price)
        return value, price

    def bound(self, price: Floats, node: int, pool: Ints, batches: int) -> float:
        """Return what prices prove from a node and a pool, in batches and rounded."""
        return self._look(price, node, pool, batches)[0]

    def _look(self, price: Floats, node: int, pool: Ints, batches: int) -> tuple[float, Floats]:
        """Return what prices prove, in batches and rounded, and its slope, by a look at all walks."""
        fill, evict, base = self._costs(price)
        least, composing = self._rough
        walk_back(self._graph.arcs, fill, evict, base, least, composing, batches)
        balance = pool.copy()
        steps_of(self._graph.arcs, fill, evict, base, least, composing, batches, node, balance)
        return float(price @ pool) + float(least[batches, node]), balance.astype(np.float64)

    def _costs(self, price: Floats) -> tuple[Floats32, Floats32, Floats32]:
        """Return what fills, evictions and a batch cost, in batches."""
        base = np.ones(1, dtype=np.float32)
        return (self.extra / self.base - price).astype(np.float32), price.astype(np.float32), base

    def _costs_by_label(self, price: Floats) -> Floats32:
        """Return what arcs of near walks cost, in batches."""
        return np.concatenate([*self._costs(price), np.zeros(1, dtype=np.float32)])

    def _near(self, price: Floats, node: int, batches: int, slack: float) -> tuple[Near, int, float]:
        """Return near walks by the last look at all, how many states they have, and the slack for the next ones.

        The slack is cut down while there are too many arcs, and grows where there are few.
        """
        least, composing = self._rough
        cost = self._costs_by_label(price)
        counts: Ints = np.zeros(2, dtype=np.int64)
        least_arcs = len(self._room.head) // _SPARSE
        while True:
            most = float(least[batches, node]) + slack
            done = near_walks(self._graph.arcs, cost, least, composing, batches, node, most, self._room, counts) == DONE
            if done and (counts[1] > least_arcs or slack >= _MOST_SLACK):
                return self._room, int(counts[0]), slack
            if done:
                slack *= 2
            elif slack > _LEAST_SLACK:
                slack, least_arcs = _LESS_SLACK * slack, 0
            else:
                self._room = _room(2 * len(self._room.head))

    def _evaluation(self, near: Near, states: int, pool: Ints) -> Evaluate:
        """Return the function of prices that near walks alone have, which is no less than that of all."""
        left = np.empty(states + 1, dtype=np.float32)

        def evaluate(at: Floats) -> tuple[float, Floats]:
            cost = self._costs_by_label(at)
            balance = pool.copy()
            least = least_near_walk(near, cost, states, left, _NO_WAY_IN_BATCHES, balance)
            return float(at @ pool) + least, balance.astype(np.float64)

        return evaluate

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


def _room(arcs: int) -> Near:
    """Return room for near walks."""
    begin, head, label = np.empty(arcs // 2, np.int32), np.empty(arcs, np.int32), np.empty(arcs, np.int16)
    return Near(begin, head, label)
