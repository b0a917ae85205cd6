"""The merged graph of resident sets: from the items that are due in a batch to those that run in it.

It covers what `resident_graph` covers, offline, and rests on the same argument that no request pauses. A node is a
multiset of items (class, token) that are to run in the next batch; it may exceed the capacity before evictions. There
are three kinds of arcs: *evict* an item that is due, or take an end for it; where the node fits, *fill* one more item
that fits too; and where it fits and is not empty, *run*: every item moves on to the next token, those of last tokens
leave. In each batch a schedule evicts, then fills, then runs; after the last one what is due takes ends.

There is one node where `resident_graph` has two, composing and left after: fewer nodes, and arcs that no schedule
takes, such as evicting what has just been filled, only weaken what is proved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from optsched.model.ints import Ints
from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.graph_kernel import (
    DONE,
    FULL,
    NOTHING,
    Arcs,
    Bytes,
    Growing,
    Items,
    Numbers,
    Places,
    enumerate_nodes,
)
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.resident_graph import TooLargeError

MOST_ITEMS = NOTHING
"""Items have to be told from `NOTHING` in a byte."""
_MOST_CAPACITY = 10_000
"""In blocks: nodes of larger caches are not counted before they are enumerated."""
_STEP = 20_000
"""Nodes between two looks at the clock."""
_ARCS_OF_NODE = 8
"""Arcs of each kind that there is room for at first; then their number doubles."""


@dataclass(frozen=True)
class Ends:
    """What a graph knows of ends.

    Parameters
    ----------
    first, due
        The first item of the class of every end, and the item that a request is due for when it takes it.
    early
        Requests in a node that may still take an end, or an earlier one; shape (nodes, ends).
    passing
        Those of them that do not take it if they run; shape (nodes, ends).
    closing, taken
        Nodes whose items can all take ends, and how many of every item do; shapes (n,) and (n, items).
    """

    first: Ints
    due: Ints
    early: Bytes
    passing: Bytes
    closing: Ints
    taken: Ints


@dataclass(frozen=True)
class MergedGraph:
    """The graph of some requests; node 0 is the empty one.

    Parameters
    ----------
    classes
        The items.
    arcs
        Nodes and arcs.
    present
        Requests of every class in a node, shape (nodes, classes).
    room
        Blocks that a node leaves, negative where it does not fit.
    ends
        What it knows of ends.
    """

    classes: Classes
    arcs: Arcs
    present: Ints
    room: Ints
    ends: Ends

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.arcs.fits)

    @property
    def fresh(self) -> Ints:
        """How many requests wait for every item at the begin."""
        fresh: Ints = np.array(self.classes.fresh, dtype=np.int64)
        return fresh

    @property
    def idling(self) -> MergedGraph:
        """The same graph for batches that others fill: in those of the empty node nothing of it runs."""
        run_head = self.arcs.run_head.copy()
        run_head[0] = 0
        return replace(self, arcs=self.arcs._replace(run_head=run_head))


def merged_graph(classes: Classes, most_nodes: int, deadline: float = math.inf) -> MergedGraph:
    """Enumerate the graph.

    Raises
    ------
    TooLargeError
        If there are more than ``most_nodes`` nodes or too many items, or ``now_s()`` passes ``deadline``.
    """
    number = len(classes.size)
    if number > MOST_ITEMS or not can_be_few(classes, most_nodes):
        raise TooLargeError
    items = Items(
        size=np.array(classes.size, dtype=np.int64),
        following=np.array(classes.following, dtype=np.int64),
        fillable=np.array([_fillable(classes, item) for item in range(classes.tokens)], dtype=np.int64),
        leaving=np.array([_leaving(classes, item) for item in range(classes.tokens)], dtype=np.int64),
        first=np.array([k == 1 for k in classes.token], dtype=np.int64),
        ending=np.array(classes.ending, dtype=np.int64),
        tokens=classes.tokens,
        reach=np.array(classes.reach, dtype=np.int64),
    )
    width = min(sum(map(len, classes.members)), classes.capacity // min(classes.size[: classes.tokens])) + 1
    room = most_nodes + number + width + 2
    growing = Growing(
        rows=np.full((room, width), NOTHING, dtype=np.uint8),
        volume=np.zeros(room, dtype=np.int64),
        table=np.full(1 << (2 * room).bit_length(), -1, dtype=np.int32),
        fill_begin=np.zeros(room + 1, dtype=np.int32),
        fill_head=np.zeros(_ARCS_OF_NODE * room, dtype=np.int32),
        fill_item=np.zeros(_ARCS_OF_NODE * room, dtype=np.uint8),
        evict_begin=np.zeros(room + 1, dtype=np.int32),
        evict_head=np.zeros(_ARCS_OF_NODE * room, dtype=np.int32),
        evict_item=np.zeros(_ARCS_OF_NODE * room, dtype=np.uint8),
        run_head=np.full(room, -1, dtype=np.int32),
    )
    progress: Ints = np.zeros(4, dtype=np.int64)
    while True:
        outcome = enumerate_nodes(items, classes.capacity, growing, progress, _STEP)
        if progress[1] > most_nodes or (outcome != DONE and now_s() > deadline):
            raise TooLargeError
        if outcome == DONE:
            return _sorted(classes, growing, progress)
        if outcome == FULL:
            growing = _with_more_arcs(growing)


def can_be_few(classes: Classes, most: int) -> bool:
    """Return whether at most ``most`` nodes fit the cache: multisets of what may be filled, counted by size."""
    if classes.capacity > _MOST_CAPACITY:
        return True
    sets = np.zeros(classes.capacity + 1)
    sets[0] = 1.0
    for number, members in enumerate(classes.members):
        # Of each number of requests of the class how many multisets there are of each size, the last items first.
        ways = np.zeros((len(members) + 1, classes.capacity + 1))
        ways[0] = sets
        for item in reversed(range(classes.tokens)):
            size = classes.size[item]
            if classes.owner[item] == number and size <= classes.capacity and _fillable(classes, item):
                for requests in range(classes.reach[item]):
                    ways[requests + 1, size:] += ways[requests, : len(sets) - size]
        sets = ways.sum(axis=0)
    return float(sets.sum()) <= most


def _fillable(classes: Classes, item: int) -> bool:
    """Return whether a request may be filled for an item, for the first time or again."""
    return classes.fresh[item] > 0 or _leaving(classes, item)


def _leaving(classes: Classes, item: int) -> bool:
    """Return whether a request that is due for an item may be evicted."""
    return classes.token[item] > 1 and classes.evictable[item - 1]


def _with_more_arcs(growing: Growing) -> Growing:
    """Double the room for arcs."""
    more = {name: getattr(growing, name) for name in ("fill_head", "fill_item", "evict_head", "evict_item")}
    return growing._replace(**{name: np.concatenate([array, np.zeros_like(array)]) for name, array in more.items()})


def _sorted(classes: Classes, growing: Growing, progress: Ints) -> MergedGraph:
    """Return the graph with nodes in order of the number of their items."""
    nodes = int(progress[1])
    rows = growing.rows[:nodes]
    order = np.argsort((rows != NOTHING).sum(axis=1), kind="stable")
    place = np.empty(nodes, dtype=np.int32)
    place[order] = np.arange(nodes, dtype=np.int32)
    run = growing.run_head[:nodes][order]
    room = classes.capacity - growing.volume[:nodes][order]
    change = np.ones(len(classes.owner), dtype=np.int64)
    change[classes.tokens :] = -1
    arcs = Arcs(
        room >= 0,
        *_reordered(order, place, growing.fill_begin[: nodes + 1], growing.fill_head, growing.fill_item),
        *_reordered(order, place, growing.evict_begin[: nodes + 1], growing.evict_head, growing.evict_item),
        change,
        np.where(run >= 0, place[run], -1).astype(np.int32),
    )
    owner = np.append(np.array(classes.owner), len(classes.members))
    items = np.minimum(rows[order], len(classes.owner))
    present: Ints = np.zeros((nodes, len(classes.members) + 1), dtype=np.int64)
    for column in owner[items].T:
        present[np.arange(nodes), column] += 1
    return MergedGraph(classes, arcs, present[:, :-1].copy(), room, _ends_of(classes, items))


def _ends_of(classes: Classes, items: Ints) -> Ends:
    """Return what nodes know of ends, by their items: as many of no item as there is room for."""
    due, nodes = classes.ends, len(items)
    first = np.array([classes.first[classes.owner[item]] for item in due], dtype=np.int64)
    early: Bytes = np.zeros((nodes, len(due)), dtype=np.uint8)
    passing: Bytes = np.zeros_like(early)
    # Nodes whose items can all take ends, and how many of every end.
    closing = np.ones(nodes, dtype=np.bool_)
    ending = np.array([*classes.ending, len(classes.owner)])
    for column in items.T:
        closing &= ending[column] >= 0
        for end, item in enumerate(due):
            early[:, end] += (column >= first[end]) & (column <= item)
            passing[:, end] += column == item
    able = passing <= np.array([classes.reach[classes.tokens + end] for end in range(len(due))], dtype=np.int64)
    closing &= able.all(axis=1)
    taken: Ints = np.zeros((int(closing.sum()), len(classes.owner)), dtype=np.int64)
    taken[:, classes.tokens :] = passing[closing]
    return Ends(first, np.array(due, dtype=np.int64), early, passing, np.flatnonzero(closing), taken)


def _reordered(
    order: npt.NDArray[np.int64], place: Numbers, begin: Numbers, head: Numbers, item: Bytes
) -> tuple[Numbers, Places, Bytes]:
    """Return begins, heads and items of arcs whose tails come in another order."""
    count = np.diff(begin)[order]
    new: Numbers = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
    from_ = np.repeat(begin[:-1][order] - new[:-1], count) + np.arange(new[-1])
    return new, place[head[from_]].astype(np.uint32), item[from_]
