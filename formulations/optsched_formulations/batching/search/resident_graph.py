r"""The graph of resident sets: what the KV cache can hold from batch to batch, whatever requests do elsewhere.

It covers offline makespan instances with whole prefills, hybrid batches and one affine piece, in which only memory
binds (C, P and N admit a step of every request at once) and no refill costs less than the decode in its place.

*No pauses.* In such an instance some optimal schedule never keeps KV without running: if a request pauses between two
of its tokens, run the tokens before the pause, back to the last (re)fill, later and without a gap. Until the pause
ends the request then holds fewer tokens than it did; refills cost the same; work moves to later batches, but not beyond
the end of the pause, so no batch ends later. An eviction right after a pause moves to its beginning. A batch that loses
all its runs is left out; where it was the only pause of an eviction, keep the KV instead, which costs no more. So
between two batches a resident request either is evicted or runs.

*Items and nodes.* Item (class, k) is a request of a class (I, O) in the batch that generates its token k; it holds I
+ k − 1 tokens. A node is a multiset of items that fits M: *composing* a batch, or what is left *after* one.

*Arcs.* after(S) → composing(S with every k one higher): the next batch begins, every resident request runs. after(S) →
after(S − i): i is evicted. composing(T) → composing(T + i): a request is filled, for the first time (k = 1)
or again (k ≥ 2, at the cost of the refill less the decode). composing(T) → after(T less what finished): the batch runs,
at the cost base.

A schedule is a closed walk from after(∅) that fills every request once for the first time, and refills what it
evicts; its cost is the makespan less the constant work of prefills and decodes.

*Bound.* Give every item a price: λ for a first fill, μ for being evicted and due for a refill. If no cycle of the
graph has negative cost after every first fill is paid its λ, every eviction charged its μ and every refill paid its
μ, then every closed walk costs at least Σ λ over the requests (`resident_walk`).

*Tracking.* Nodes may also count how many requests of some classes are still to come: first fills of a tracked class
need no price, and a schedule is a walk from after(∅) with all requests to come to after(∅) with none. The bound is
then Σ λ over the requests of the other classes plus the least priced cost of such a walk. A request is refilled only
where some of its class is neither to come nor resident.

*With arrivals* a machine that waits may do work early, so that requests may pause: items leave those that run, and come
back when the batch has run. Everything else is as offline: that requests are not there yet is another relaxation.

Relaxed are the order of evictions and refills and that the walk hangs together; the knapsack of every batch and which
can follow which are exact. Nothing else in the graph depends on how many requests a class has, except that no more are
resident.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optsched.model.ints import Ints
from optsched.stopwatch import now_s
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.state_steps import BEGIN, EVICT, FILL, PAUSE, RUN

_MOST_NODES = 70_000
"""A linear programme of that many rows takes HiGHS most of a minute."""
_ENOUGH_NODES = 20_000
"""Tracking more classes than fit this many nodes costs more time than it saves."""
Items = tuple[int, ...]
"""A multiset of items: their indices, sorted."""
Node = tuple[Items, Items, int]
"""Items that ran or run, items that pause, and tracked requests to come as a number of digits."""


class TooLargeError(Exception):
    """The graph has more nodes than asked for."""


@dataclass(frozen=True)
class ResidentGraph:
    """Nodes and arcs as arrays.

    Parameters
    ----------
    classes
        The items.
    tracked
        The classes whose requests that have not started are counted in the nodes.
    nodes
        Node 0 is the source, after(∅) with all requests to come.
    sink
        after(∅) with no tracked request to come.
    tail, head, kind, item
        Arcs; item is −1 for arcs that begin or run a batch.
    cost_ps
        Cost of every arc, constant work left out.
    """

    classes: Classes
    tracked: frozenset[int]
    nodes: list[Node]
    sink: int
    tail: Ints
    head: Ints
    kind: Ints
    item: Ints
    cost_ps: Ints

    @property
    def priced(self) -> list[int]:
        """The items that have a price: refills, and first fills of classes that are not tracked."""
        classes = self.classes
        return [i for i, k in enumerate(classes.token) if k > 1 or classes.owner[i] not in self.tracked]


def build_graph(
    classes: Classes,
    tracked: frozenset[int],
    most_nodes: int,
    deadline: float = math.inf,
    *,
    pauses: bool = False,
) -> ResidentGraph:
    """Enumerate the graph from its source.

    Raises
    ------
    TooLargeError
        If there are more than ``most_nodes`` nodes, or ``now_s()`` passes ``deadline``.
    """
    return _Builder(classes, tracked, most_nodes, pauses).build(deadline)


class _Builder:
    """Enumerates one graph."""

    def __init__(self, classes: Classes, tracked: frozenset[int], most_nodes: int, pauses: bool) -> None:
        self._classes, self._tracked, self._most, self._pauses = classes, tracked, most_nodes, pauses
        self._counts = [len(members) for members in classes.members]
        self._fillable = [i for i, k in enumerate(classes.token) if k == 1 or classes.evictable[i - 1]]
        fresh = sum(
            classes.places[first] * self._counts[classes.owner[first]]
            for first in classes.first
            if classes.owner[first] in tracked
        )
        source: Node = ((), (), fresh)
        self._nodes: list[Node] = [source]
        self._number: tuple[dict[Node, int], dict[Node, int]] = ({source: 0}, {})
        self._composing: list[bool] = [False]
        self._arcs: list[tuple[int, int, int, int, int]] = []

    def build(self, deadline: float) -> ResidentGraph:
        """Go from node to node until no new ones turn up."""
        current = 0
        while current < len(self._nodes):
            if current % 1024 == 0 and now_s() > deadline:
                raise TooLargeError
            if self._composing[current]:
                self._run(current)
                self._fill(current)
            else:
                self._begin(current)
                self._leave(current)
            current += 1
        columns = np.array(self._arcs, dtype=np.int64).reshape(-1, 5).T
        return ResidentGraph(self._classes, self._tracked, self._nodes, self._number[False][(), (), 0], *columns)

    def _arc(self, tail: int, head: Node, kind: int, item: int, cost: int) -> None:
        """Add an arc, and its head if it is new."""
        composing = kind in {BEGIN, FILL}
        numbers = self._number[composing]
        found = numbers.get(head)
        if found is None:
            found = numbers[head] = len(self._nodes)
            self._nodes.append(head)
            self._composing.append(composing)
            if len(self._nodes) > self._most:
                raise TooLargeError
        self._arcs.append((tail, found, kind, item, cost))

    def _run(self, current: int) -> None:
        """Let the batch run; what has finished leaves it, and what paused comes back."""
        items, paused, fresh = self._nodes[current]
        if items:
            left = sorted((*(i for i in items if self._classes.following[i] >= 0), *paused))
            self._arc(current, (tuple(left), (), fresh), RUN, -1, self._classes.base_ps)

    def _fill(self, current: int) -> None:
        """Fill one more."""
        items, paused, fresh = self._nodes[current]
        classes, size, owner = self._classes, self._classes.size, self._classes.owner
        room = classes.capacity - sum(size[i] for i in items + paused)
        present = Counter(owner[i] for i in items + paused)
        for i in self._fillable:
            if size[i] > room:
                continue
            number, rest = owner[i], fresh
            to_come = classes.waiting(fresh, classes.first[number]) if number in self._tracked else 0
            if classes.token[i] == 1 and number in self._tracked:
                if not to_come:
                    continue
                rest -= classes.places[i]
            elif present[number] + to_come >= self._counts[number]:
                continue
            self._arc(current, (_plus(items, i), paused, rest), FILL, i, classes.extra_ps(i))

    def _begin(self, current: int) -> None:
        """Begin the next batch: every request that does not pause runs."""
        items, paused, fresh = self._nodes[current]
        grown = tuple(self._classes.following[i] for i in items)
        if sum(self._classes.size[i] for i in grown + paused) <= self._classes.capacity:
            self._arc(current, (grown, paused, fresh), BEGIN, -1, 0)

    def _leave(self, current: int) -> None:
        """Evict one, or let one pause."""
        items, paused, fresh = self._nodes[current]
        for i in sorted(set(items)):
            rest = _minus(items, i)
            if self._classes.evictable[i]:
                self._arc(current, (rest, paused, fresh), EVICT, self._classes.following[i], 0)
            if self._pauses:
                self._arc(current, (rest, _plus(paused, i), fresh), PAUSE, i, 0)


def growing_graphs(classes: Classes, deadline: float, *, track: bool = True) -> Iterator[ResidentGraph]:
    """Yield the graph without tracked classes, then one that tracks as many as pay, those that hold most memory first.

    A graph that is too large, or not built by the deadline, is left out; without ``track`` so is the second.
    """
    try:
        graph = build_graph(classes, frozenset(), _MOST_NODES, deadline)
    except TooLargeError:
        return
    yield graph
    if not track:
        return
    plain = graph
    volume = [len(m) * o * (2 * i + o) for m, (i, o, _) in zip(classes.members, classes.kinds, strict=True)]
    for number in sorted(range(len(volume)), key=lambda number: -volume[number]):
        if len(graph.nodes) * (len(classes.members[number]) + 1) > 2 * _ENOUGH_NODES:
            continue
        try:
            graph = build_graph(classes, graph.tracked | {number}, _ENOUGH_NODES, deadline)
        except TooLargeError:
            continue
    if graph is not plain:
        yield graph


def _plus(items: Items, item: int) -> Items:
    return tuple(sorted((*items, item)))


def _minus(items: Items, item: int) -> Items:
    position = items.index(item)
    return items[:position] + items[position + 1 :]
