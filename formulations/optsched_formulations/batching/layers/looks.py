r"""Least walks of the merged graph at prices in floats: among all, or among those near the least.

*Near walks.* Of millions of states a few can be on the least walk while prices change little. So what maximises over
prices looks, most of the time, only at walks that cost up to a slack more than the least one (`near_kernel`): their
function is no less than that of all, and the same around the prices that they are found at. Where it has led to, all
walks are looked at, and those near it are the next ones; if the bound is no better there, prices go back part of the
way. In the bundle method the least walks of such looks stay cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from optsched.model.ints import Ints
from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.bundle import Cut, Evaluate, Floats, maximise
from optsched_formulations.batching.layers.climb_kernel import Begin
from optsched_formulations.batching.layers.graph import MergedGraph
from optsched_formulations.batching.layers.graph_kernel import DONE
from optsched_formulations.batching.layers.near_kernel import Floats32, Near, NearWalks, least_near_walk, near_walks
from optsched_formulations.batching.layers.walk_kernel import close, steps_of, walk_back

NO_WAY = np.float32(1e9)
"""Cost of a way that does not exist, in batches."""
FAR = 5e8
"""Beyond what schedules cost, in batches."""
TOLERANCE = 5e-4
"""In batches: less is not worth another round."""
FIRST_SLACK, _LEAST_SLACK, _MOST_SLACK, _LESS_SLACK = 0.3, 1e-3, 1.0, 0.6
"""In batches, of near walks: at first, at least, at most, and how many times as much where there are too many."""
_SPARSE = 8
"""Where near walks have less than this part of the arcs that there is room for, the slack grows."""
_FEWEST_ARCS, _MOST_ARCS, _ARCS_SHARE = 200_000, 2_000_000, 0.03
"""Of near walks: room for them, a share of all arcs."""
_FEW_ROUNDS, _MANY_ROUNDS = 120, 600
"""Of the bundle method on near walks before the next look at all, and where those gain nothing."""
_FAR_BELOW = 10.0
"""In batches: cuts of prices that prove so much less are not kept."""
_FIRST_AIM, _LEAST_AIM, _MOST_AIM, _MORE_AIM, _LESS_AIM = 1.0, 0.02, 8.0, 2.0, 0.4
"""In batches, what is hoped for of near walks at a time: at first, at least, at most; how many times as much where it
comes true at once, and else."""
BACK, TIMES_BACK = 0.3, 4
"""Part of the way that prices keep when they go back, and how often."""


class Costs(NamedTuple):
    """What steps cost in batches: fills and evictions in the batch with which t are left, shape (batches + 1, items).

    Ends are among the evictions; those after the last batch cost what row 0 says.
    ``run`` is that of batches, by their kind.
    """

    fill: Floats32
    evict: Floats32
    run: Floats32

    @property
    def by_label(self) -> Floats32:
        """Costs of arcs of near walks, by their labels."""
        same = np.append(np.float32(0.0), self.run)
        return np.hstack([self.fill, self.evict, np.tile(same, (len(self.fill), 1))])


class Least(NamedTuple):
    """The least walk.

    Parameters
    ----------
    value
        Its cost, with what is paid for it at the begin.
    batches
        How many it has.
    balance
        How often it evicts every item more than it fills it, less the ends that it takes, in the batch with which t are
        left.
    ran
        The kind of that batch; row 0 says nothing.
    """

    value: float
    batches: int
    balance: Ints
    ran: Ints


class Looks:
    """Looks at walks of one graph.

    Parameters
    ----------
    graph
        The graph.
    kind
        The kind of every node's batch: those of one kind cost the same.
    most
        The largest number of batches to be asked for.

    Attributes
    ----------
    batch_s
        Seconds that the last look at all walks has taken, by their batches.
    """

    def __init__(self, graph: MergedGraph, kind: Ints, most: int) -> None:
        self._graph, self._kind, self._items = graph, kind, len(graph.classes.size)
        self._label = (2 * self._items + 1 + kind).astype(np.int32)
        self._rough = tuple(np.full((most + 1, graph.nodes), NO_WAY) for _ in range(2))
        arcs = most * (2 * graph.nodes + len(graph.arcs.fill_item) + len(graph.arcs.evict_item))
        self._room = _room(min(max(_FEWEST_ARCS, int(_ARCS_SHARE * arcs)), _MOST_ARCS))
        self.batch_s = 0.0

    def all(self, costs: Costs, begin: Begin, paid: Floats) -> Least:
        """Return the least of all walks; those of t batches pay ``paid[t]`` at the begin."""
        fill, evict, run = costs.fill, costs.evict, costs.run[self._kind]
        least, composing = self._rough
        started = now_s()
        close(self._graph.arcs, evict[0], NO_WAY, least[0])
        walk_back(self._graph.arcs, fill, evict, run, NO_WAY, least, composing, begin.most)
        self.batch_s = (now_s() - started) / max(1, begin.most)
        values = paid[begin.fewest : begin.most + 1] + least[begin.fewest : begin.most + 1, begin.node]
        batches = begin.fewest + int(values.argmin())
        balance, ran = np.zeros(fill.shape, dtype=np.int64), np.zeros(len(fill), dtype=np.int64)
        steps_of(self._graph.arcs, fill, evict, run, least, composing, batches, begin.node, balance, ran)
        return Least(float(values.min()), batches, balance, self._kind[ran])

    def near(self, costs: Costs, begin: Begin, paid: Floats, value: float, slack: float) -> tuple[NearWalks, float]:
        """Return walks near the least of all by the last look at them, and the slack for the next ones.

        The slack is cut down while there are too many arcs, and grows where there are few.
        """
        least, composing = self._rough
        by_label, start = costs.by_label, _starts(begin, paid)
        starts: Ints = np.zeros(len(start), dtype=np.int64)
        counts: Ints = np.zeros(2, dtype=np.int64)
        least_arcs = len(self._room.head) // _SPARSE
        while True:
            outcome = near_walks(
                self._graph.arcs,
                self._items,
                self._label,
                by_label,
                least,
                composing,
                begin.node,
                start,
                NO_WAY,
                value + slack,
                self._room,
                starts,
                counts,
            )
            done = outcome == DONE
            if done and (counts[1] > least_arcs or slack >= _MOST_SLACK):
                left = np.empty(counts[0] + 1, dtype=np.float32)
                change = self._graph.arcs.change
                return NearWalks(self._room, change, starts, int(counts[0]), left, NO_WAY), slack
            if done:
                slack *= 2
            elif slack > _LEAST_SLACK:
                slack, least_arcs = _LESS_SLACK * slack, 0
            else:
                self._room = _room(2 * len(self._room.head))


def least_near(near: NearWalks, costs: Costs, begin: Begin, paid: Floats) -> Least:
    """Return the least of near walks."""
    balance, ran = np.zeros(costs.fill.shape, dtype=np.int64), np.zeros(len(costs.fill), dtype=np.int64)
    value, batches = least_near_walk(near, costs.by_label.ravel(), _starts(begin, paid), balance, ran)
    return Least(value, batches, balance, ran)


def maximise_by_near_walks(
    look: Evaluate,
    near: Callable[[Floats, float, float], tuple[Evaluate, float]],
    prices: Floats,
    enough: float,
    rounds: int,
    *,
    over: Callable[[], bool],
) -> tuple[float, Floats]:
    """Return the best value found of a concave function of prices, and the prices.

    Parameters
    ----------
    look
        The function, by a look at all walks.
    near
        Returns that of walks near the least one at some prices, of some value and up to a slack more, and the slack for
        the next ones. It is called after a look at these prices.
    prices
        Prices to begin with.
    enough
        A value that no more is asked of.
    rounds
        Looks at all walks.
    over
        Whether time is over.
    """
    value, slope = look(prices)
    known = [Cut.through(prices, value, slope)]
    slack, aim, most, looks = FIRST_SLACK, _FIRST_AIM, _FEW_ROUNDS, 1
    while value < min(enough, FAR) and looks < rounds and not over():
        evaluate, slack = near(prices, value, slack)
        hoped, there = maximise(evaluate, prices, known, min(enough, value + aim), most, TOLERANCE, over)
        if hoped < value + TOLERANCE:
            if most == _MANY_ROUNDS:
                break
            most = _MANY_ROUNDS
            continue
        before = looks
        for _ in range(1 + TIMES_BACK):
            (found, slope), looks = look(there), looks + 1
            # Far away prices are large, and what is rounded there is too much here.
            if found > value - _FAR_BELOW:
                known.append(Cut.through(there, found, slope))
            if found > value:
                value, prices = found, there
                break
            there = prices + BACK * (there - prices)
        else:
            # Walks are near the least one at the last look, which was elsewhere.
            look(prices)
            looks += 1
        aim = min(_MORE_AIM * aim, _MOST_AIM) if looks == before + 1 else max(_LESS_AIM * aim, _LEAST_AIM)
    return value, prices


def _starts(begin: Begin, paid: Floats) -> Floats:
    """Return what walks pay at the begin, as good as infinite for numbers of batches that are not asked for."""
    start = np.full(begin.most + 1, float(NO_WAY))
    start[begin.fewest :] = paid[begin.fewest : begin.most + 1]
    return start


def _room(arcs: int) -> Near:
    """Return room for near walks."""
    return Near(np.empty(arcs // 2, np.int32), np.empty(arcs, np.int32), np.empty(arcs, np.int32))
