r"""Searching the schedules of one number of batches from both ends.

Prices of items on the merged graph (`walks`) say of every state, a node and a pool, what a schedule costs from there on
at least. By how much a step raises that, what is spent included, is its *loss*, never below 0. All losses of a schedule
add up to what it costs beyond the bound L of its number of batches.

*Theorem.* Let φ and β be positive. Let forward layers hold all states that are reached from the begin at a loss below
φ, and backward layers all states from which the end is reached at a loss below β; where a state is reached in several
ways, at the least cost. A schedule of J batches of the least cost below L + φ + β, if there is one, is among those that
end in a forward layer, and those that one batch leads from a state of a forward layer, at a loss of φ or more in all,
to a state that is in the next backward layer, too.

*Proof.* Take such a schedule, and the first of its states with a loss of φ or more so far. If there is none, all its
states are in forward layers, the end too. Otherwise the state before is in one, and what is left from this state on is
a loss below φ + β less φ; so it and all after it are in backward layers. Costs of its parts are the least, or the
schedule would not be. ∎

So no better schedule than L + φ + β or the best of these exists. Layers of half of the loss have far fewer states than
those of all of it: on the ladder the number of states doubles for every twentieth of a batch and less. A state is also
dropped if walks through its node cost no less than the budget, forward and backward together.

Backwards there is no other space: what the batch before a state ran are the items before those that are due, and any
that may have been last; of these some had been filled, and of what waits some had been evicted. Fills are taken back
from the greatest item down, then evictions, so that every batch is met once, by the nodes of the way forward.

Source: searches from both ends with potentials, Ikeda et al. 1994; that the sum of both reaches suffices, Nicholson
1966.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from optsched.model.ints import Ints
from optsched_formulations.batching.layers.backward_kernel import ArcsBack, Costs, back_through_a_batch, walk_forth
from optsched_formulations.batching.layers.graph import MergedGraph
from optsched_formulations.batching.layers.graph_kernel import Bytes, Numbers, Places
from optsched_formulations.batching.layers.graph_layers import GraphPriced, GraphRelaxation
from optsched_formulations.batching.layers.layer_kernel import (
    DONE,
    FULL,
    Layer,
    Meeting,
    Words,
    enter_again,
    through_a_batch,
)
from optsched_formulations.batching.layers.search import Found, empty_layer, grown, next_layer, steps_between
from optsched_formulations.batching.layers.walks import NO_WAY

_STEP = 20_000
"""States between two looks at the clock."""
_MOST_STATES = 12_000_000
"""That are kept in all, for the schedule that they lead to."""
_MOST_REACHED = 40_000_000
"""Nodes × batches whose costs are kept, 24 bytes each."""
_FIRST_STEP = 0.02
"""In batches: how far each end is searched at first."""
_SMALL, _TIMES = 400_000, 5
"""States that a search may take, and times as many as the one before: with more it goes less far."""
_UNEQUAL = 3
"""Times as much as the other end: it goes no further then."""
_FEW_MORE, _MANY_MORE = 2.0, 5.0
"""Times as many states of an end as before: with fewer or more than these steps grow or shrink."""
_LONGER, _SHORTER, _HALF = 1.8, 0.7, 0.5
"""Times as long as the last step."""


class Reach(NamedTuple):
    """How far both searches go, in units of loss: φ and β."""

    forward: int
    backward: int


class Effort(NamedTuple):
    """What the searches of a reach took: states and looks for others."""

    forward: int
    backward: int


class _Backward(NamedTuple):
    """A layer that is done: states, what they cost onwards without batches, the states after them, the hash table."""

    words: Words
    extra: Ints
    next: Numbers
    table: Numbers


class TwoSided:
    """The search of one number of batches, further and further.

    Parameters
    ----------
    relaxation
        The graph and its walks.
    priced
        What prices prove of the number of batches.

    Attributes
    ----------
    reach
        How far it has been searched.
    effort
        Of the last reach.
    """

    def __init__(self, relaxation: GraphRelaxation, back: ArcsBack, priced: GraphPriced) -> None:
        self.reach, self.effort = Reach(0, 0), Effort(0, 0)
        self._steps_of_ends = [round(_FIRST_STEP * relaxation.walks.base) for _ in Reach._fields]
        self._relaxation, self._priced, self._back = relaxation, priced, back
        classes, walks = relaxation.graph.classes, relaxation.walks
        last = [item for item in range(classes.tokens) if classes.following[item] < 0]
        passing = [classes.reach[item] for item in classes.ends]
        takers: Ints = np.array([classes.reach[classes.tokens :], passing], dtype=np.int64)
        self._members = np.array(classes.owner), np.array([classes.reach[item] for item in last]), takers
        self._reached = np.full((priced.batches + 1, relaxation.graph.nodes), NO_WAY, dtype=np.int64)
        self._reached[0, 0] = 0
        for done in range(priced.batches):
            self._in_batch(done, self._reached[done + 1])
        self._fresh = walks.pays + int(priced.table.price[priced.batches] @ walks.fresh)

    def further(self, budget: int, over: Callable[[], bool]) -> Found:
        """Look for schedules that cost less than the budget, a little further, at the end where less was to do or both.

        It is not complete if time or room end before.
        """
        before, enough = self.effort, budget - self._priced.bound
        ends = [end for end, effort in enumerate(before) if effort <= _UNEQUAL * min(before)]
        while True:
            more = [step if end in ends else 0 for end, step in enumerate(self._steps_of_ends)]
            share = min(1.0, (enough - sum(self.reach)) / sum(more))
            reach = Reach(*(each + max(1, round(share * step)) for each, step in zip(self.reach, more, strict=True)))
            most = min(_MOST_STATES, max(_SMALL, _TIMES * max(before)))
            found = self.search(reach, budget, over, most)
            if found.complete:
                break
            if over() or most == _MOST_STATES or max(more) <= 1:
                return found
            for end in ends:
                self._steps_of_ends[end] = round(_HALF * self._steps_of_ends[end])
        self.reach = reach
        for end in ends:
            times = self.effort[end] / max(1, before[end])
            pace = _LONGER if times < _FEW_MORE else _SHORTER if times > _MANY_MORE else 1.0
            self._steps_of_ends[end] = round(pace * self._steps_of_ends[end])
        return found

    def search(self, reach: Reach, budget: int, over: Callable[[], bool], most: int = _MOST_STATES) -> Found:
        """Look for schedules that cost less than the budget, as far as the reach goes.

        It is not complete if time or room for states, ``most`` at each end, end before.
        """
        bound = self._priced.bound
        beyond = min(budget, bound + sum(reach))
        back = self._all_back(beyond, min(reach.backward, beyond - bound), over, most)
        if back is None:
            return Found(False, budget)
        found = self._meet(beyond, back, bound + reach.forward, over, most)
        if found is None:
            return Found(False, budget)
        found.bound = found.budget
        found.budget = min(budget, found.budget) if found.steps else budget
        return found

    def _in_batch(self, done: int, after: Ints) -> tuple[Ints, Ints]:
        """Return what nodes in a batch cost from the begin, among its evictions and its fills; lower that after it."""
        walks, price = self._relaxation.walks, self._priced.table.price[self._priced.batches - done]
        arcs = self._relaxation.graph.arcs
        evict = price * arcs.change
        return walk_forth(arcs, walks.extra - price, evict, walks.run_cost, NO_WAY, self._reached[done], after)

    def _all_back(self, budget: int, loss: int, over: Callable[[], bool], most_states: int) -> list[_Backward] | None:
        """Return the backward layers, that before the first batch first; None if time or room end before."""
        relaxation, table, batches = self._relaxation, self._priced.table, self._priced.batches
        walks, pools = relaxation.walks, relaxation.pools
        closing = relaxation.ends.closing
        states = len(closing)
        end = empty_layer(states, pools.words)
        end.words[:] = closing
        hashed: Numbers = np.full(2 << states.bit_length(), -1, dtype=np.int32)
        enter_again(end, states, hashed)
        layers = [_Backward(end.words, end.extra, end.parent, hashed)]
        for done in range(batches - 1, -1, -1):
            left, last = batches - done, layers[-1]
            leaving, filling = self._in_batch(done, self._reached[done + 1])
            costs = Costs(table.least[left], table.composing[left], self._reached[done], leaving, filling)
            here = Layer(last.words, last.extra, last.extra, last.next)
            there, hashed = next_layer(pools.words)
            progress: Ints = np.zeros(2, dtype=np.int64)
            while True:
                outcome = back_through_a_batch(
                    self._back,
                    relaxation.ends,
                    pools.fields,
                    table.price[left],
                    walks.extra,
                    walks.run_extra,
                    self._members,
                    costs,
                    left * walks.base,
                    self._fresh,
                    (loss, budget),
                    here,
                    len(here.extra),
                    there,
                    hashed,
                    progress,
                    _STEP,
                )
                if outcome == DONE:
                    break
                if over() or states + progress[1] > most_states:
                    return None
                if outcome == FULL:
                    there, hashed = grown(there, int(progress[1]))
            count = int(progress[1])
            states += count
            layers.append(_Backward(there.words[:count], there.extra[:count], there.parent[:count], hashed))
        self.effort = Effort(0, states)
        return layers[::-1]

    def _meet(
        self, budget: int, back: list[_Backward], keep: int, over: Callable[[], bool], most_states: int
    ) -> Found | None:
        """Return the best schedule that forward layers lead to; None if time or room end before."""
        relaxation, table, batches = self._relaxation, self._priced.table, self._priced.batches
        walks, pools = relaxation.walks, relaxation.pools
        layer, count, history, states, looks = empty_layer(1, pools.words), 1, [], 1, 0
        layer.words[0], layer.parent[0] = pools.source, -1
        found = Found(True, budget)
        for done in range(batches):
            if count == 0:
                break
            history.append((layer.words[:count].copy(), layer.parent[:count].copy()))
            left, rest = batches - done, back[done + 1]
            meeting = Meeting(rest.words, rest.extra + (left - 1) * walks.base, rest.table)
            there, hashed = next_layer(pools.words)
            progress: Ints = np.array([0, 0, found.budget, -1, -1, 0], dtype=np.int64)
            while True:
                outcome = through_a_batch(
                    relaxation.graph.arcs,
                    relaxation.ends,
                    pools.fields,
                    (table.price[left], table.price[left - 1]),
                    walks.extra,
                    walks.run_extra,
                    table.least[left],
                    table.composing[left],
                    table.least[left - 1],
                    walks.pays + done * walks.base,
                    walks.base,
                    (left - 1) * walks.idle,
                    layer,
                    count,
                    there,
                    hashed,
                    keep,
                    meeting,
                    progress,
                    _STEP,
                )
                if progress[3] >= 0:
                    found.budget = int(progress[2])
                    found.steps = self._steps(history, int(progress[3]), back, done + 1, int(progress[4]))
                    progress[3] = -1
                if outcome == DONE:
                    break
                if over() or states + progress[1] > most_states:
                    return None
                if outcome == FULL:
                    there, hashed = grown(there, int(progress[1]))
            layer, count = there, int(progress[1])
            states, looks = states + count, looks + int(progress[5])
        self.effort = Effort(states + looks, self.effort.backward)
        return found

    def _steps(
        self, history: list[tuple[Words, Numbers]], state: int, back: list[_Backward], done: int, met: int
    ) -> list[tuple[int, int]]:
        """Return the steps of the schedule through a state of the last forward layer and one after it, or the end."""
        pools = self._relaxation.pools
        waiting = []
        for words, parent in reversed(history):
            waiting.append(pools.waiting(words[state]))
            state = int(parent[state])
        waiting.reverse()
        while met >= 0 and done < len(back) - 1:
            waiting.append(pools.waiting(back[done].words[met]))
            met, done = int(back[done].next[met]), done + 1
        return steps_between([*waiting, np.zeros_like(waiting[0])])


def affordable(graph: MergedGraph, batches: int, searches: int = 1) -> bool:
    """Return whether there is room for what nodes cost from the begin and to the end, in some searches."""
    return searches * graph.nodes * (batches + 1) <= _MOST_REACHED


def arcs_back(graph: MergedGraph) -> ArcsBack:
    """Return the arcs of a graph by their heads."""
    arcs, nodes = graph.arcs, graph.nodes
    fills = _by_head(arcs.fill_begin, arcs.fill_head, arcs.fill_item, nodes)
    evictions = _by_head(arcs.evict_begin, arcs.evict_head, arcs.evict_item, nodes)
    running = np.flatnonzero(arcs.run_head >= 0)
    head = arcs.run_head[running].astype(np.int64)
    runs = _begins(head, nodes), running[np.argsort(head, kind="stable")]
    return ArcsBack(*fills, *evictions, arcs.change, *runs, graph.present)


def _by_head(begin: Numbers, head: Places, item: Bytes, nodes: int) -> tuple[Ints, Ints, Ints]:
    """Return begins, tails and items of arcs by their heads, the greatest items first."""
    tail, last = np.repeat(np.arange(nodes), np.diff(begin)), int(begin[-1])
    heads, items = head[:last].astype(np.int64), item[:last].astype(np.int64)
    order = np.lexsort((-items, heads))
    return _begins(heads, nodes), tail[order], items[order]


def _begins(heads: Ints, nodes: int) -> Ints:
    """Return where the arcs of every head begin, and end, once they are sorted by them."""
    begins: Ints = np.concatenate([[0], np.cumsum(np.bincount(heads, minlength=nodes))]).astype(np.int64)
    return begins
