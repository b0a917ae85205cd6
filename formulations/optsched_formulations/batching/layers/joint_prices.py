r"""Prices of all tokens at once, of a core and of its fillers, by looks at walks of the core.

What they prove of schedules of J batches (`walks`, `fillers`) is, in batches,

.. math:: \sum_j p_j m_j + \min_{\text{walks}} \Bigl( \sum_{\text{batches}} (1 - g(r)) + \sum_{\text{fills}} (e_i - π_i)
          + \sum_{\text{evictions}} π_i \Bigr), \qquad π_i = \sum_{j \ge i} p_j,

for :math:`m_j` requests that generate token j, of the core or of fillers: a request that waits for item i pays for its
token and those after it. :math:`g(r)`, what fillers are worth in the room r that a batch leaves, is a maximum of linear
functions of their prices, so that all of it is concave in all prices together. A slope is how many requests have to
generate every token less how many do, on the least walk and where its batches have room for fillers. The bundle method
goes up from prices that share each batch by what tokens hold. In contrast to the linear programme of `core` its effort
grows no faster than the graph does. Prices of waiting instead, which prove the same, take twice as many looks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from optsched_formulations.batching.layers.bundle import Evaluate, Floats, maximise
from optsched_formulations.batching.layers.climb_kernel import Begin
from optsched_formulations.batching.layers.core import Core
from optsched_formulations.batching.layers.looks import (
    TOLERANCE,
    Costs,
    Least,
    Looks,
    least_near,
    maximise_by_near_walks,
)
from optsched_formulations.batching.layers.near_kernel import Floats32
from optsched_formulations.batching.layers.walks import prices_by_tokens

_DEARER = 1.2
"""What the core holds costs that many times as much as if the cache were full."""
_UNEVEN = 0.02
"""Share by which prices of the core differ from the even ones at most: many walks would cost the same."""
_FIRST_GAIN = 3.0
"""In batches, what the first step promises."""
_FIRST_LOOKS = 8
"""At all walks, before most looks are at near ones."""


class JointPrices:
    """What prices of a core's tokens and of fillers' tokens prove.

    Parameters
    ----------
    core
        The core.
    fewest, most
        Numbers of batches that they are to bound, all at once.
    """

    def __init__(self, core: Core, fewest: int, most: int) -> None:
        graph = core.graph
        self._core = core
        self._rooms, kind = np.unique(np.maximum(graph.room, 0), return_inverse=True)
        self._looks = Looks(graph, kind, most)
        self._begin = Begin(0, graph.fresh, fewest, most)
        self._extra = np.array([graph.classes.extra_ps(i) / graph.classes.base_ps for i in range(core.items)])
        self._after = prices_by_tokens(graph.classes)
        self._tokens = np.concatenate([self._begin.pool @ self._after, core.fillers.requests])

    def improved(self, enough: float, rounds: int, over: Callable[[], bool]) -> tuple[Floats, Floats]:
        """Return the best prices found, in batches: of waiting for items of the core, and of tokens of fillers.

        Parameters
        ----------
        enough
            A bound, in batches without the constant work, that no more is asked of.
        rounds
            Most looks at all walks.
        over
            Whether time is over.
        """
        mine, theirs = (
            np.array(classes.size) / classes.capacity
            for classes in (self._core.graph.classes, self._core.fillers.classes)
        )
        uneven = 1 + np.random.default_rng(0).uniform(-_UNEVEN, _UNEVEN, len(mine))
        start = np.concatenate([_DEARER * mine * uneven, theirs])
        first = min(rounds, _FIRST_LOOKS)
        value, prices = maximise(self._look, start, [], enough, first, TOLERANCE, over, _FIRST_GAIN)
        if value < enough and not over():
            _, prices = maximise_by_near_walks(self._look, self._near, prices, enough, rounds - first, over=over)
        waiting: Floats = self._after @ prices[: self._core.items]
        return waiting, prices[self._core.items :]

    def _costs(self, prices: Floats) -> tuple[Costs, Floats32]:
        """Return what steps cost, and how many of every item fillers run in every room."""
        items, rows = self._core.items, (self._begin.most + 1, 1)
        waiting = self._after @ prices[:items]
        worth, counts = self._core.fillers.best(prices[items:], self._rooms)
        evictions = self._core.graph.arcs.change * waiting
        fill, evict = (np.tile(cost.astype(np.float32), rows) for cost in (self._extra - waiting, evictions))
        return Costs(fill, evict, (1.0 - worth).astype(np.float32)), counts.astype(np.float32)

    def _paid(self, prices: Floats) -> Floats:
        return np.full(self._begin.most + 1, float(prices @ self._tokens))

    def _slope(self, least: Least, counts: Floats32) -> Floats:
        """Return by how many requests tokens are generated too rarely."""
        ran = least.ran[1 : least.batches + 1]
        generated = -(least.balance.sum(axis=0) @ self._after), counts[ran].sum(axis=0)
        slope: Floats = self._tokens - np.concatenate(generated)
        return slope

    def _look(self, prices: Floats) -> tuple[float, Floats]:
        """Return the least that prices prove of all numbers of batches, and the slope of the number that it is of."""
        costs, counts = self._costs(prices)
        least = self._looks.all(costs, self._begin, self._paid(prices))
        return least.value, self._slope(least, counts)

    def _near(self, prices: Floats, value: float, slack: float) -> tuple[Evaluate, float]:
        """Return what near walks alone say, no less than that."""
        walks, slack = self._looks.near(self._costs(prices)[0], self._begin, self._paid(prices), value, slack)

        def evaluate(prices: Floats) -> tuple[float, Floats]:
            costs, counts = self._costs(prices)
            least = least_near(walks, costs, self._begin, self._paid(prices))
            return least.value, self._slope(least, counts)

        return evaluate, slack
