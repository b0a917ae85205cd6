r"""Prices of items on the merged graph, for numbers of batches: what is left to pay at least.

Every item i has a price :math:`π_{ib}`, of any sign, in every batch b, which never falls from batch to batch: a request
that waits for item i (for its first fill, or after an eviction) pays it when it is filled and is paid it when it is
evicted. For a node v and t ≥ 0 let :math:`H_t(v)` be the least cost of a walk from v to the empty node that runs
exactly t batches, the last ones, where a batch costs the base, a fill of i in batch b its extra cost less
:math:`π_{ib}`, and an eviction :math:`π_{ib}`.

*Theorem.* A schedule that is at node v before the evictions of batch b, with :math:`p_i` requests that wait for item i,
and that ends after exactly t more batches, costs at least

.. math:: \sum_i π_{ib} p_i + H_t(v)

from there on, without the constant work (that of all first fills and decodes).

*Proof.* What it does is such a walk. Along it every request that waits is filled, and every eviction is followed by a
fill of the same item, no earlier than itself. So fills pay at least what evictions along the walk are paid, and
:math:`π_{ib}` for each request that waits in batch b: the cost of the walk is at most that of the schedule less
:math:`\sum π_{ib} p_i`, and it is at least :math:`H_t(v)`. ∎

From the start this is a bound on schedules of exactly J batches, for any such prices; the best ones are those of a
Lagrangian relaxation. Prices that are the same in all batches relax the order of evictions and fills: walks may fill
what they evict later on. What a price rises by between two batches is the multiplier of the condition that in between
no fewer than none wait. Prices of the last t batches bound schedules of any number of batches up to t, so that the
least bound of several numbers is maximised at once, too. All these functions are concave in the prices, with the
balance of the least walk as a slope. A bundle method finds what to add to the price of an item in all batches, steps
along slopes find how prices rise, in floats; then prices are rounded to whole units and :math:`H` is computed again, in
integers.

*Near walks.* Of millions of states a few can be on the least walk while prices change little. So both look only at
walks that cost up to a slack more than the least one (`near_kernel`): their function is no less than that of all, and
the same around the prices that they are found at. Where it has led to, all walks are looked at, and those near it are
the next ones; if the bound is no better there, prices go back part of the way. In the bundle method the least walks of
such looks stay cuts, and small graphs are looked at in full each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optsched.model.ints import Ints
from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.bundle import Cut, Evaluate, Floats, maximise
from optsched_formulations.batching.layers.climb_kernel import LEAST_AIM, Begin, climb
from optsched_formulations.batching.layers.fillers import Filled
from optsched_formulations.batching.layers.graph import MergedGraph
from optsched_formulations.batching.layers.graph_kernel import DONE
from optsched_formulations.batching.layers.near_kernel import Floats32, Near, NearWalks, least_near_walk, near_walks
from optsched_formulations.batching.layers.walk_kernel import steps_of, walk_back

NO_WAY = 1 << 60
"""Cost of a way that does not exist, in units."""
MOST_PAID = 1 << 57
"""In units, along a walk, and as much by prices: too little to make up for a way that does not exist."""
_NO_WAY_IN_BATCHES = np.float32(1e9)
_EXACT_LOOKS = 4.0
"""Looks at all walks in which they are counted exactly once."""
_FAR = 5e8
"""Beyond what schedules cost, in batches."""
_TOLERANCE = 5e-4
"""In batches: less is not worth another round."""
_DEARER = 1.2
"""What is held costs that many times as much as if the cache were full."""
_UNEVEN = 0.02
"""Share by which first prices of items differ from the even ones at most: many walks would cost the same."""
_SLACK, _LEAST_SLACK, _MOST_SLACK, _LESS_SLACK = 0.3, 1e-3, 1.0, 0.6
"""In batches, of near walks: at first, at least, at most, and how many times as much where there are too many."""
_SPARSE = 8
"""Where near walks have less than this part of the arcs that there is room for, the slack grows."""
FEW_PLACES = 1_000_000
"""Looking at them takes less than the bundle method does."""
_FEWEST_ARCS, _MOST_ARCS, _ARCS_SHARE = 200_000, 2_000_000, 0.03
"""Of near walks: room for them, a share of all arcs."""
_FEW_ROUNDS, _MANY_ROUNDS = 120, 600
"""Of the bundle method on near walks before the next look at all, and where those gain nothing."""
_FAR_BELOW = 10.0
"""In batches: cuts of prices that prove so much less are not kept."""
_LEAST_FIRST_AIM, _MOST_FIRST_AIM = 0.5, 8.0
"""In batches: how much more than the best value steps aim at first."""
_LARGE_AIM, _FEW_STEPS, _MANY_STEPS = 0.1, 100, 300
"""Steps on near walks before the next look at all, where that takes long and more than that is aimed at, and else."""
_LATELY, _LITTLE = 3, 0.02
"""Steps end where looks take long and that many gain less than that in batches: searches prove more then."""
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
        self._run = (self.run_cost / self.base).astype(np.float32)
        self._runs, kinds = np.unique(self._run, return_inverse=True)
        self._run_label = (2 * len(self.extra) + 1 + kinds).astype(np.int32)
        self.fresh: Ints = np.zeros(len(self.extra), dtype=np.int64)
        for first, members in zip(classes.first, classes.members, strict=True):
            self.fresh[first] = len(members)
        self._in_batches: Floats = self.extra / self.base
        self._rough = tuple(np.full((most + 1, graph.nodes), _NO_WAY_IN_BATCHES) for _ in range(2))
        self._rough[0][0, 0] = 0.0
        arcs = most * (2 * graph.nodes + len(graph.arcs.fill_item) + len(graph.arcs.evict_item))
        self._batch_s = 0.0
        self._room = _room(min(max(_FEWEST_ARCS, int(_ARCS_SHARE * arcs)), _MOST_ARCS))

    def first_prices(self, batches: int) -> Floats:
        """Return prices, in batches, that share what is used of each batch by what items hold, but for a little."""
        classes = self._graph.classes
        price = np.zeros(len(self.extra))
        for i in reversed(range(len(price))):
            after = classes.following[i]
            price[i] = _DEARER * classes.size[i] / classes.capacity + (price[after] if after >= 0 else 0.0)
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
        start = _fitted(price, begin.most)

        def look(added: Floats) -> tuple[float, Floats]:
            value, slopes = self._look(start + added, begin)
            return value, slopes.sum(axis=0)

        added = np.zeros(len(self.extra))
        if not self.many_places(begin.most):
            value, added = maximise(look, added, [], enough, rounds, _TOLERANCE, over)
            return value, start + added
        value, slope = look(added)
        known = [Cut.through(added, value, slope)]
        slack, most, looks = _SLACK, _FEW_ROUNDS, 1
        while value < min(enough, _FAR) and looks < rounds and not over():
            near, slack = self._near(start + added, begin, value, slack)
            hoped, there = maximise(self._evaluation(near, start, begin), added, known, enough, most, _TOLERANCE, over)
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
                    value, added = found, there
                    break
                there = added + _BACK * (there - added)
        return value, start + added

    def many_places(self, batches: int) -> bool:
        """Return whether prices are found on near walks, as looks at all walks take long."""
        return batches * self._graph.nodes > self._few_places

    def exact_s(self, batches: int) -> float:
        """Return about how long `table` takes, by the last look at all walks."""
        return _EXACT_LOOKS * self._batch_s * batches

    def raised(
        self, price: Floats, begin: Begin, enough: float, rounds: int, over: Callable[[], bool]
    ) -> tuple[float, Floats]:
        """Return a better bound, if there is one, by prices that may rise, as `improved` does."""
        price = _fitted(price, begin.most)
        (value, _), looks, slack = self._look(price, begin), 1, _SLACK
        aim, dear = min(max(enough - value, _LEAST_FIRST_AIM), _MOST_FIRST_AIM), self.many_places(begin.most)
        values = [value]
        while looks < rounds and value < min(enough, _FAR) and aim >= LEAST_AIM and not over():
            if dear and len(values) > _LATELY and value < values[-_LATELY] + _LITTLE:
                break
            near, slack = self._near(price, begin, value, slack)
            there, steps = price.copy(), _FEW_STEPS if dear and aim > _LARGE_AIM else _MANY_STEPS
            next_aim = climb(near, self._in_batches, self._runs, begin, there, value, aim, enough, steps)
            aim = 0.5 * aim
            for _ in range(1 + _TIMES_BACK):
                (found, _), looks = self._look(there, begin), looks + 1
                if found > value:
                    value, price, aim = found, there, max(aim, next_aim)
                    break
                there = price + _BACK * (there - price)
            values.append(value)
        return value, price

    def bound(self, price: Floats, begin: Begin) -> float:
        """Return the least that prices prove, in batches and rounded."""
        return self._look(_fitted(price, begin.most), begin)[0]

    def _look(self, price: Floats, begin: Begin) -> tuple[float, Floats]:
        """Return the least that prices prove, in batches and rounded, and its slopes, by a look at all walks."""
        (fill, evict), run = self._costs(price), self._run
        least, composing = self._rough
        started = now_s()
        walk_back(self._graph.arcs, fill, evict, run, _NO_WAY_IN_BATCHES, least, composing, begin.most)
        self._batch_s = (now_s() - started) / max(1, begin.most)
        numbers = np.arange(begin.fewest, begin.most + 1)
        values = price[numbers] @ begin.pool + least[numbers, begin.node]
        worst = int(values.argmin())
        batches, balance = int(numbers[worst]), np.zeros(price.shape, dtype=np.int64)
        balance[batches] = begin.pool
        steps_of(self._graph.arcs, fill, evict, run, least, composing, batches, begin.node, balance)
        return float(values[worst]), balance.astype(np.float64)

    def _costs(self, price: Floats) -> tuple[Floats32, Floats32]:
        """Return what fills and evictions cost, in batches."""
        return (self._in_batches - price).astype(np.float32), price.astype(np.float32)

    def _costs_by_label(self, price: Floats) -> Floats32:
        """Return what arcs of near walks cost, in batches."""
        same = np.append(np.float32(0.0), self._runs)
        return np.hstack([*self._costs(price), np.tile(same, (len(price), 1))])

    @staticmethod
    def _starts(price: Floats, begin: Begin) -> Floats:
        """Return what requests pay that wait at the begin, for all numbers of batches asked for."""
        start = np.full(begin.most + 1, float(_NO_WAY_IN_BATCHES))
        start[begin.fewest :] = price[begin.fewest :] @ begin.pool
        return start

    def _evaluation(self, near: NearWalks, start: Floats, begin: Begin) -> Evaluate:
        """Return the function of what is added to prices that near walks alone have, no less than that of all."""

        def evaluate(added: Floats) -> tuple[float, Floats]:
            price, balance = start + added, np.zeros(start.shape, dtype=np.int64)
            least, _ = least_near_walk(near, self._costs_by_label(price).ravel(), self._starts(price, begin), balance)
            return least, (balance.sum(axis=0) + begin.pool).astype(np.float64)

        return evaluate

    def _near(self, price: Floats, begin: Begin, value: float, slack: float) -> tuple[NearWalks, float]:
        """Return near walks by the last look at all, and the slack for the next ones.

        The slack is cut down while there are too many arcs, and grows where there are few.
        """
        least, composing = self._rough
        cost, start = self._costs_by_label(price), self._starts(price, begin)
        starts: Ints = np.zeros(len(start), dtype=np.int64)
        counts: Ints = np.zeros(2, dtype=np.int64)
        least_arcs = len(self._room.head) // _SPARSE
        while True:
            outcome = near_walks(
                self._graph.arcs,
                len(self.extra),
                self._run_label,
                cost,
                least,
                composing,
                begin.node,
                start,
                _NO_WAY_IN_BATCHES,
                value + slack,
                self._room,
                starts,
                counts,
            )
            done = outcome == DONE
            if done and (counts[1] > least_arcs or slack >= _MOST_SLACK):
                left = np.empty(counts[0] + 1, dtype=np.float32)
                return NearWalks(self._room, starts, int(counts[0]), left, _NO_WAY_IN_BATCHES), slack
            if done:
                slack *= 2
            elif slack > _LEAST_SLACK:
                slack, least_arcs = _LESS_SLACK * slack, 0
            else:
                self._room = _room(2 * len(self._room.head))

    def rounded(self, price: Floats, batches: int) -> Ints:
        """Return prices in whole units; those that could add up beyond 64 bits are cut down, as any prove something."""
        most = MOST_PAID // most_steps(batches, int(self.fresh.sum()))
        whole: Ints = np.rint(np.clip(_fitted(price, batches) * self.base, -most, most)).astype(np.int64)
        return whole

    def proved(self, price: Floats, batches: int) -> list[int]:
        """Return what prices prove of every number of batches from 0 on, from the start and exactly, in units."""
        whole = self.rounded(price, batches)
        here = np.full((2, self._graph.nodes), NO_WAY, dtype=np.int64)
        composing = np.full_like(here, NO_WAY)
        here[1, 0] = 0
        found = [int(whole[0] @ self.fresh)]
        for t in range(1, batches + 1):
            here[0], rows = here[1], whole[t - 1 : t + 1]
            walk_back(self._graph.arcs, self.extra - rows, rows, self.run_cost, NO_WAY, here, composing, 1)
            found.append(int(here[1, 0]) + int(whole[t] @ self.fresh))
        return found

    def table(self, price: Floats, batches: int) -> Table:
        """Round prices and compute what they prove, exactly."""
        whole = self.rounded(price, batches)
        least = np.full((batches + 1, self._graph.nodes), NO_WAY, dtype=np.int64)
        composing = np.full_like(least, NO_WAY)
        least[0, 0] = 0
        walk_back(self._graph.arcs, self.extra - whole, whole, self.run_cost, NO_WAY, least, composing, batches)
        return Table(whole, least, composing)


def _room(arcs: int) -> Near:
    """Return room for near walks."""
    return Near(np.empty(arcs // 2, np.int32), np.empty(arcs, np.int32), np.empty(arcs, np.int32))


def _fitted(price: Floats, batches: int) -> Floats:
    """Return prices for another number of batches: those of the first batches are left out, or repeated."""
    return price[np.minimum(np.arange(batches + 1), len(price) - 1)]
