r"""Prices of items on the merged graph, for numbers of batches: what is left to pay at least.

Every item i has a price :math:`π_{ib}`, of any sign, in every batch b, which never falls from batch to batch: a request
that waits for item i (for its first fill, or after an eviction) pays it when it is filled and is paid it when it is
evicted. For a node v and t ≥ 0 let :math:`H_t(v)` be the least cost of a walk from v to the empty node that runs
exactly t batches, the last ones, where a batch costs the base, a fill of i in batch b its extra cost less
:math:`π_{ib}`, and an eviction :math:`π_{ib}`.

Where requests end that are not told from others (`memory_only`), an end is an item, too: a walk pays the price of one
that it takes, as if it filled it, before the evictions of a batch, or after the last one at the price of that.

*Theorem.* A schedule that is at node v before the evictions of batch b, with :math:`p_i` requests that wait for item i,
and that ends after exactly t more batches, costs at least

.. math:: \sum_i π_{ib} p_i + H_t(v)

from there on, without the constant work (that of all first fills and decodes).

*Proof.* What it does is such a walk. Along it every request that waits is filled, every end that waits is taken, and
every eviction is followed by a fill of the same item, no earlier than itself. So fills and ends pay at least what
evictions along the walk are paid, and :math:`π_{ib}` for each request that waits in batch b: the cost of the walk is at
most that of the schedule less :math:`\sum π_{ib} p_i`, and it is at least :math:`H_t(v)`. ∎

From the start this is a bound on schedules of exactly J batches, for any such prices; the best ones are those of a
Lagrangian relaxation. Prices that are the same in all batches relax the order of evictions and fills: walks may fill
what they evict later on. What a price rises by between two batches is the multiplier of the condition that in between
no fewer than none wait. Prices of the last t batches bound schedules of any number of batches up to t, so that the
least bound of several numbers is maximised at once, too. All these functions are concave in the prices, with the
balance of the least walk as a slope. A bundle method finds what to add to the price of an item in all batches, steps
along slopes find how prices rise, in floats; then prices are rounded to whole units and :math:`H` is computed again, in
integers. Both look at all walks, or, where that takes long, mostly at near ones (`looks`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Evaluate, Floats, maximise
from optsched_formulations.batching.layers.climb_kernel import LEAST_AIM, Begin, climb
from optsched_formulations.batching.layers.fillers import Filled
from optsched_formulations.batching.layers.graph import MergedGraph
from optsched_formulations.batching.layers.looks import (
    BACK,
    FAR,
    FIRST_SLACK,
    TIMES_BACK,
    TOLERANCE,
    Costs,
    Looks,
    least_near,
    maximise_by_near_walks,
)
from optsched_formulations.batching.layers.walk_kernel import close, walk_back
from optsched_formulations.batching.memory_only import Classes

NO_WAY = 1 << 60
"""Cost of a way that does not exist, in units."""
MOST_PAID = 1 << 57
"""In units, along a walk, and as much by prices: too little to make up for a way that does not exist."""
_EXACT_LOOKS = 4.0
"""Looks at all walks in which they are counted exactly once."""
_DEARER = 1.2
"""What is held costs that many times as much as if the cache were full."""
_UNEVEN = 0.02
"""Share by which first prices of items differ from the even ones at most: many walks would cost the same."""
FEW_PLACES = 1_000_000
"""Looking at them takes less than the bundle method does."""
_LEAST_FIRST_AIM, _MOST_FIRST_AIM = 0.5, 8.0
"""In batches: how much more than the best value steps aim at first."""
_LARGE_AIM, _FEW_STEPS, _MANY_STEPS = 0.1, 100, 300
"""Steps on near walks before the next look at all, where that takes long and more than that is aimed at, and else."""
_LATELY, _LITTLE = 3, 0.02
"""Steps end where looks take long and that many gain less than that in batches: searches prove more then."""


def most_steps(batches: int, requests: int) -> int:
    """Return how many arcs a walk can have."""
    return (2 * requests + 1) * (batches + 1)


@dataclass(frozen=True)
class Table:
    """What prices prove.

    Parameters
    ----------
    price
        Of every item in every batch, in units; row t is of the batch with which t are left.
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
    filled
        What others do in the room that nodes leave, if they are not all requests.

    Attributes
    ----------
    base, idle
        Cost of a batch, and of one in which nothing runs, where that is possible, in units.
    run_cost, run_extra
        What the batch of every node costs, and that beyond the base.
    pays
        What others pay in all.
    """

    def __init__(
        self, graph: MergedGraph, scale: int, most: int, few_places: int = FEW_PLACES, filled: Filled | None = None
    ) -> None:
        classes = graph.classes
        self._few_places = few_places
        self._graph = graph
        self.base = classes.base_ps * scale
        self.extra: Ints = np.array([classes.extra_ps(i) * scale for i in range(len(classes.size))], dtype=np.int64)
        self.run_extra: Ints = np.zeros(graph.nodes, dtype=np.int64)
        self.idle = self.pays = 0
        if filled is not None:
            self.run_extra -= filled.worth[np.maximum(graph.room, 0)]
            self.idle, self.pays = self.base + int(self.run_extra[0]), filled.pays
        self.run_cost = self.base + self.run_extra
        self._runs, kind = np.unique((self.run_cost / self.base).astype(np.float32), return_inverse=True)
        self._looks = Looks(graph, kind, most)
        self.fresh = graph.fresh
        self._by_tokens = prices_by_tokens(classes)
        self._in_batches: Floats = self.extra / self.base

    def first_prices(self, batches: int) -> Floats:
        """Return prices, in batches, that share what is used of each batch by what items hold, but for a little."""
        classes = self._graph.classes
        price = np.zeros(len(self.extra))
        for i in reversed(range(len(price))):
            after = classes.following[i]
            price[i] = _DEARER * classes.size[i] / classes.capacity + (price[after] if after >= 0 else 0.0)
            # What an end leaves undone was paid for at the begin.
            if classes.ending[i] >= 0:
                price[classes.ending[i]] = -price[i]
        uneven = np.random.default_rng(0).uniform(-_UNEVEN, _UNEVEN, len(price))
        return np.tile(price * (1 + uneven), (batches + 1, 1))

    def improved(
        self, price: Floats, begin: Begin, enough: float, rounds: int, over: Callable[[], bool]
    ) -> tuple[float, Floats]:
        """Return the best bound found and its prices, all in batches and rounded.

        Parameters
        ----------
        price
            Prices to begin with.
        begin
            Where schedules are, and how many batches they may have.
        enough
            A bound that no more is asked of.
        rounds
            Looks at all walks.
        over
            Whether time is over.
        """
        start, basis = _fitted(price, begin.most), self._by_tokens

        def look(added: Floats) -> tuple[float, Floats]:
            value, slopes = self._look(start + basis @ added, begin)
            return value, slopes.sum(axis=0) @ basis

        added = np.zeros(len(self.extra))
        if not self.many_places(begin.most):
            value, added = maximise(look, added, [], enough, rounds, TOLERANCE, over)
            return value, start + basis @ added

        def near(added: Floats, value: float, slack: float) -> tuple[Evaluate, float]:
            price = start + basis @ added
            walks, slack = self._looks.near(self._costs(price), begin, self._paid(price, begin), value, slack)

            def evaluate(added: Floats) -> tuple[float, Floats]:
                price = start + basis @ added
                least = least_near(walks, self._costs(price), begin, self._paid(price, begin))
                return least.value, (least.balance.sum(axis=0) + begin.pool) @ basis

            return evaluate, slack

        value, added = maximise_by_near_walks(look, near, added, enough, rounds, over=over)
        return value, start + basis @ added

    def many_places(self, batches: int) -> bool:
        """Return whether prices are found on near walks, as looks at all walks take long."""
        return batches * self._graph.nodes > self._few_places

    def exact_s(self, batches: int) -> float:
        """Return about how long `table` takes, by the last look at all walks."""
        return _EXACT_LOOKS * self._looks.batch_s * batches

    def raised(
        self, price: Floats, begin: Begin, enough: float, rounds: int, over: Callable[[], bool]
    ) -> tuple[float, Floats]:
        """Return a better bound, if there is one, by prices that may rise, as `improved` does."""
        price = _fitted(price, begin.most)
        (value, _), looks, slack = self._look(price, begin), 1, FIRST_SLACK
        aim, dear = min(max(enough - value, _LEAST_FIRST_AIM), _MOST_FIRST_AIM), self.many_places(begin.most)
        values = [value]
        while looks < rounds and value < min(enough, FAR) and aim >= LEAST_AIM and not over():
            if dear and len(values) > _LATELY and value < values[-_LATELY] + _LITTLE:
                break
            near, slack = self._looks.near(self._costs(price), begin, self._paid(price, begin), value, slack)
            there, steps = price.copy(), _FEW_STEPS if dear and aim > _LARGE_AIM else _MANY_STEPS
            next_aim = climb(near, self._in_batches, self._runs, begin, there, value, aim, enough, steps)
            aim = 0.5 * aim
            for _ in range(1 + TIMES_BACK):
                (found, _), looks = self._look(there, begin), looks + 1
                if found > value:
                    value, price, aim = found, there, max(aim, next_aim)
                    break
                there = price + BACK * (there - price)
            values.append(value)
        return value, price

    def bound(self, price: Floats, begin: Begin) -> float:
        """Return the least that prices prove, in batches and rounded."""
        return self._look(_fitted(price, begin.most), begin)[0]

    def _look(self, price: Floats, begin: Begin) -> tuple[float, Floats]:
        """Return the least that prices prove, in batches and rounded, and its slopes, by a look at all walks."""
        least = self._looks.all(self._costs(price), begin, self._paid(price, begin))
        slopes = least.balance
        slopes[least.batches] += begin.pool
        return least.value, slopes.astype(np.float64)

    def _costs(self, price: Floats) -> Costs:
        fill, evict = self._in_batches - price, price * self._graph.arcs.change
        return Costs(fill.astype(np.float32), evict.astype(np.float32), self._runs)

    @staticmethod
    def _paid(price: Floats, begin: Begin) -> Floats:
        """Return what requests pay that wait at the begin, by the number of batches."""
        paid: Floats = price @ begin.pool
        return paid

    def rounded(self, price: Floats, batches: int) -> Ints:
        """Return prices in whole units; those that could add up beyond 64 bits are cut down, as any prove something."""
        most = MOST_PAID // most_steps(batches, int(self.fresh.sum()))
        whole: Ints = np.rint(np.clip(_fitted(price, batches) * self.base, -most, most)).astype(np.int64)
        return whole

    def proved(self, price: Floats, batches: int) -> list[int]:
        """Return what prices prove of every number of batches from 0 on, from the start and exactly, in units."""
        whole = self.rounded(price, batches)
        here = np.full((2, self._graph.nodes), NO_WAY, dtype=np.int64)
        composing, change = np.full_like(here, NO_WAY), self._graph.arcs.change
        close(self._graph.arcs, whole[0] * change, NO_WAY, here[1])
        found = [int(whole[0] @ self.fresh)]
        for t in range(1, batches + 1):
            here[0], rows = here[1], whole[t - 1 : t + 1]
            walk_back(self._graph.arcs, self.extra - rows, rows * change, self.run_cost, NO_WAY, here, composing, 1)
            found.append(int(here[1, 0]) + int(whole[t] @ self.fresh))
        return found

    def table(self, price: Floats, batches: int) -> Table:
        """Round prices and compute what they prove, exactly."""
        whole = self.rounded(price, batches)
        least = np.full((batches + 1, self._graph.nodes), NO_WAY, dtype=np.int64)
        composing = np.full_like(least, NO_WAY)
        evict = whole * self._graph.arcs.change
        close(self._graph.arcs, evict[0], NO_WAY, least[0])
        walk_back(self._graph.arcs, self.extra - whole, evict, self.run_cost, NO_WAY, least, composing, batches)
        return Table(whole, least, composing)


def prices_by_tokens(classes: Classes) -> Floats:
    """Return prices of items by those of tokens: of all that follow one; an end gives back what it leaves, and its own.

    With these the bundle method takes half as many looks, and converges where with prices of items it stops before.
    """
    basis = np.eye(len(classes.owner))
    for item in reversed(range(classes.tokens)):
        after = classes.following[item]
        if after >= 0:
            basis[item] += basis[after]
    for end, item in enumerate(classes.ends, start=classes.tokens):
        basis[end] -= basis[item]
    return basis


def _fitted(price: Floats, batches: int) -> Floats:
    """Return prices for another number of batches: those of the first batches are left out, or repeated."""
    return price[np.minimum(np.arange(batches + 1), len(price) - 1)]
