"""Layers of the merged graph of resident sets, bounded by prices of items (`walks`).

Where a layer is large, prices are found again for one of its states, and the bounds of all its states raised by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.climb_kernel import Begin
from optsched_formulations.batching.layers.graph import MergedGraph
from optsched_formulations.batching.layers.graph_kernel import Numbers
from optsched_formulations.batching.layers.layer_kernel import (
    EndFacts,
    Layer,
    Meeting,
    Words,
    raise_bounds,
    through_a_batch,
)
from optsched_formulations.batching.layers.search import Pools
from optsched_formulations.batching.layers.walks import Table, Walks

_LARGE, _FEW_LEFT = 3_000, 3
"""States of a layer from which on prices are found again, unless that few batches are left."""
_TRIES, _ROUNDS = 4, 40
"""Prices that are tried for a layer, and the rounds that each may take."""
_WEAK = 0.1
"""Share of a layer that prices have to drop to be worth more of them."""
_SAMPLE = 5
_MOST_STATES = 12_000_000
NO_LIMIT = 1 << 62
"""A cost above all."""
NOWHERE = Meeting(np.zeros((0, 1), np.uint64), np.zeros(0, np.int64), np.full(1, -1, np.int32))
"""Where no state is."""


class GraphRelaxation:
    """Prices of items, as `optsched_formulations.batching.layers.search.Relaxation`.

    Parameters
    ----------
    graph, walks
        The graph, and what prices prove on it.
    seed
        Of the choice of states to find prices for.
    start
        Prices of items, in batches, that are known to be good.
    """

    widths = 200, 2_000

    def __init__(self, graph: MergedGraph, walks: Walks, seed: int, start: Floats | None = None) -> None:
        self.graph, self.walks, self._start = graph, walks, start
        self.pools = Pools(graph.classes, first=1)
        self.ends = _end_facts(graph, self.pools)
        self.random = np.random.default_rng(seed)

    def first_prices(self, batches: int) -> Floats:
        """Return prices that are known to be good, or such that share each batch by what items hold."""
        return self.walks.first_prices(batches) if self._start is None else np.tile(self._start, (batches + 1, 1))

    def improved(self, price: Floats, batches: int, enough: float, rounds: int, over: Callable[[], bool]) -> Floats:
        """Return the best prices found; a bound of ``enough``, in batches, suffices."""
        return self.walks.improved(price, self._begin(batches, batches), self._left_of(enough), rounds, over)[1]

    def raised(self, price: Floats, batches: int, enough: float, rounds: int, over: Callable[[], bool]) -> Floats:
        """Return prices that may rise from batch to batch and prove more, if some are found."""
        return self.walks.raised(price, self._begin(batches, batches), self._left_of(enough), rounds, over)[1]

    def improved_together(self, fewest: int, most: int, enough: float, rounds: int, over: Callable[[], bool]) -> Floats:
        """Return the best prices found for several numbers of batches at once."""
        begin, price = self._begin(fewest, most), self.first_prices(most)
        return self.walks.improved(price, begin, self._left_of(enough), rounds, over)[1]

    def raised_together(self, fewest: int, most: int, enough: float, rounds: int, over: Callable[[], bool]) -> Floats:
        """Return the best prices found for several numbers of batches at once, which may rise from batch to batch."""
        begin, price = self._begin(fewest, most), self.first_prices(most)
        return self.walks.raised(price, begin, self._left_of(enough), rounds, over)[1]

    def best_of(self, prices: list[Floats], batches: int) -> Floats:
        """Return the prices that prove most of a number of batches."""
        begin = self._begin(batches, batches)
        return max(prices, key=lambda price: self.walks.bound(price, begin))

    def _left_of(self, enough: float) -> float:
        """Return what is left of a cost, in batches, without what others pay."""
        return enough - self.walks.pays / self.walks.base

    def _begin(self, fewest: int, most: int) -> Begin:
        return Begin(0, self.walks.fresh, fewest, most)

    def priced(self, price: Floats, batches: int) -> GraphPriced:
        """Round prices and compute what they prove, exactly."""
        return GraphPriced(self, batches, self.walks.table(price, batches))


def _end_facts(graph: MergedGraph, pools: Pools) -> EndFacts:
    """Return what searches know of ends."""
    ends = graph.ends
    row = np.full(graph.nodes, -1, dtype=np.int32)
    row[ends.closing] = np.arange(len(ends.closing))
    closing: Words = np.array([pools.words_of(taken) for taken in ends.taken])
    closing[:, 0] = ends.closing
    return EndFacts(graph.classes.tokens, ends.first, ends.due, ends.early, ends.passing, row, closing)


@dataclass(frozen=True)
class GraphPriced:
    """What prices of items prove of one number of batches."""

    relaxation: GraphRelaxation
    batches: int
    table: Table

    @property
    def bound(self) -> int:
        """No schedule costs less, without the constant work, in units."""
        table, walks = self.table, self.relaxation.walks
        return walks.pays + int(table.least[self.batches, 0]) + int(table.price[self.batches] @ walks.fresh)

    def of(self, batches: int) -> GraphPriced:
        """Return what the same prices prove of fewer batches."""
        return GraphPriced(self.relaxation, batches, self.table)

    def space(self) -> GraphSpace:
        """Return the states that these prices bound."""
        return GraphSpace(self.relaxation, self.batches, self.table)


class GraphSpace:
    """States of one number of batches: a node and a pool.

    Attributes
    ----------
    taken
        Prices that were found for layers, and after how many batches.
    """

    most_states, raises_beams = _MOST_STATES, False

    def __init__(self, relaxation: GraphRelaxation, batches: int, table: Table) -> None:
        self.pools, self.source = relaxation.pools, relaxation.pools.source
        self._relaxation, self._batches, self._table = relaxation, batches, table
        self.taken: list[tuple[int, Ints]] = []

    def through(  # noqa: PLR0917
        self, done: int, here: Layer, count: int, there: Layer, hashed: Numbers, progress: Ints, limit: int
    ) -> int:
        """Run the batch after the first ``done``."""
        walks, table, left = self._relaxation.walks, self._table, self._batches - done
        return through_a_batch(
            self._relaxation.graph.arcs,
            self._relaxation.ends,
            self.pools.fields,
            (table.price[left], table.price[left - 1]),
            walks.extra,
            walks.run_extra,
            table.least[left],
            table.composing[left],
            table.least[left - 1],
            walks.pays + done * walks.base,
            walks.base,
            (left - 1) * walks.idle,
            here,
            count,
            there,
            hashed,
            NO_LIMIT,
            NOWHERE,
            progress,
            limit,
        )

    def raised(self, done: int, layer: Layer, count: int, budget: int, over: Callable[[], bool]) -> int:
        """Find prices for states of a large layer and raise all bounds by them; the best stay."""
        walks, left = self._relaxation.walks, self._batches - done
        spent = walks.pays + done * walks.base
        for _ in range(_TRIES if left > _FEW_LEFT else 0):
            if count <= _LARGE or over():
                break
            sample = self._relaxation.random.integers(count, size=_SAMPLE)
            state = int(sample[np.argmin(layer.bound[sample])])
            enough = (budget - spent - int(layer.extra[state])) / walks.base + 0.02
            node, pool = int(layer.words[state, 0]), self.pools.waiting(layer.words[state])
            begin = Begin(node, pool, left, left)
            _, price = walks.improved(self._table.price / walks.base, begin, enough, _ROUNDS, over)
            tried = walks.table(price, left)
            before = count
            count = raise_bounds(self.pools.fields, layer, count, tried.price[left], tried.least[left], spent, budget)
            if before - count < _WEAK * before:
                break
            self._table = tried
            self.taken.append((done, tried.price[left]))
        return count

    def compile_rest(self, layer: Layer) -> None:
        """Run the loop that only large layers need, on no states."""
        raise_bounds(self.pools.fields, layer, 0, self._table.price[0], self._table.least[0], 0, 0)
