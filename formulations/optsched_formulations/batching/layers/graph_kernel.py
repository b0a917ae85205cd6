"""Enumerating the merged graph of resident sets, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled, compiled_helper
from optsched.model.ints import Ints

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int32]
Places = npt.NDArray[np.uint32]
"""Compiled code need not look whether an index is negative."""

NOTHING = 255
"""Fills the row of a node behind its items."""
DONE, PAUSED, FULL = range(3)
"""Why `enumerate_nodes` returns: all is enumerated, the limit is reached, the nodes or arcs are full."""


class Items(NamedTuple):
    """What the graph knows of items, and of classes.

    Parameters
    ----------
    size, following
        Blocks, and the item of the next token (−1 after the last); shape (items,).
    fillable, leaving
        Whether a request may be filled for the item, for the first time or again, and evicted; shape (items,).
    first
        Whether it is a first token; shape (items,).
    ending
        The end that may be taken by a request that is due for the item, −1 if there is none; shape (items,).
    tokens
        How many items are tokens, not ends.
    reach
        How many requests generate the item's token; shape (items,).
    """

    size: Ints
    following: Ints
    fillable: Ints
    leaving: Ints
    first: Ints
    ending: Ints
    tokens: int
    reach: Ints


class Arcs(NamedTuple):
    """The merged graph as the compiled loops take it; its nodes are in order of the number of their items.

    Parameters
    ----------
    fits
        Whether a node may run as it is.
    fill_begin, fill_head, fill_item
        Arcs of node v that fill an item are those from ``fill_begin[v]`` to ``fill_begin[v + 1] - 1``.
    evict_begin, evict_head, evict_item
        Arcs that evict one, or take an end for it.
    change
        By how many more wait for an item after such an arc: an end is one that waits no more.
    run_head
        The node after the batch, −1 if there is none.
    """

    fits: npt.NDArray[np.bool_]
    fill_begin: Numbers
    fill_head: Places
    fill_item: Bytes
    evict_begin: Numbers
    evict_head: Places
    evict_item: Bytes
    change: Ints
    run_head: Numbers


class Growing(NamedTuple):
    """Nodes and arcs as they are found, with room for more.

    Parameters
    ----------
    rows
        The items of every node, ascending, then `NOTHING`; one byte more than items can fit.
    volume
        Blocks that they hold.
    table
        Hash table of nodes, −1 where it is empty.
    fill_begin, fill_head, fill_item
        Arcs that fill an item, by their tail.
    evict_begin, evict_head, evict_item
        Arcs that evict one.
    run_head
        The node after the batch, −1 if nothing could run.
    """

    rows: Bytes
    volume: Ints
    table: Numbers
    fill_begin: Numbers
    fill_head: Numbers
    fill_item: Bytes
    evict_begin: Numbers
    evict_head: Numbers
    evict_item: Bytes
    run_head: Numbers


@compiled_helper
def _number(  # noqa: PLR0917
    rows: Bytes, volume: Ints, table: Numbers, key: Bytes, held: int, known: int
) -> int:
    """Return the number of the node of a row, which is ``known``, the next one, if it is new."""
    mixed = np.uint64(0xCBF29CE484222325)
    for p in range(len(key)):
        mixed = (mixed ^ np.uint64(key[p])) * np.uint64(0x100000001B3)
        mixed ^= mixed >> np.uint64(29)
    mask = len(table) - 1
    place = np.int64(mixed & np.uint64(mask))
    while table[place] >= 0:
        found = table[place]
        same = True
        for p in range(len(key)):
            if rows[found, p] != key[p]:
                same = False
                break
        if same:
            return int(found)
        place = (place + 1) & mask
    table[place] = known
    for p in range(len(key)):
        rows[known, p] = key[p]
    volume[known] = held
    return known


@compiled
def enumerate_nodes(items: Items, capacity: int, growing: Growing, progress: Ints, limit: int) -> int:
    """Take up to ``limit`` nodes and add what follows them; return why it stops.

    ``progress`` goes in and out: nodes taken, nodes, fill arcs and eviction arcs known.
    """
    size, following, fillable, leaving, first, ending, tokens, reach = items
    rows, volume, table, fill_begin, fill_head, fill_item, evict_begin, evict_head, evict_item, run_head = growing
    width, number = rows.shape[1], tokens
    key = np.empty(width, dtype=np.uint8)
    # Requests of an item's class that are due for it or for later ones.
    beyond = np.zeros(number + 1, dtype=np.int64)
    current, nodes, fills, evictions = progress[0], progress[1], progress[2], progress[3]
    if nodes == 0:
        key[:] = NOTHING
        nodes += _number(rows, volume, table, key, 0, 0) == 0
    until, outcome = current + limit, DONE
    while current < nodes:
        if current >= until:
            outcome = PAUSED
            break
        if (
            nodes + number + width + 1 > len(volume)
            or fills + number > len(fill_item)
            or evictions + 2 * width > len(evict_item)
        ):
            outcome = FULL
            break
        length, held = 0, volume[current]
        beyond[:] = 0
        while length < width and rows[current, length] != NOTHING:
            beyond[rows[current, length]] += 1
            length += 1
        possible = True
        for item in range(number - 1, -1, -1):
            if not first[item + 1 if item + 1 < number else 0]:
                beyond[item] += beyond[item + 1]
            if beyond[item] > reach[item]:
                possible = False
        for p in range(length):
            item = rows[current, p]
            if (p > 0 and item == rows[current, p - 1]) or not (leaving[item] or ending[item] >= 0):
                continue
            for other in range(width - 1):
                key[other] = rows[current, other + (other >= p)]
            key[width - 1] = NOTHING
            head = _number(rows, volume, table, key, held - size[item], nodes)
            nodes += head == nodes
            if leaving[item]:
                evict_head[evictions], evict_item[evictions] = head, item
                evictions += 1
            if ending[item] >= 0:
                evict_head[evictions], evict_item[evictions] = head, ending[item]
                evictions += 1
        run_head[current] = -1
        if held <= capacity and possible:
            for item in range(number):
                if not fillable[item] or size[item] > capacity - held:
                    continue
                before = item
                while before >= 0 and beyond[before] < reach[before] and not first[before]:
                    before -= 1
                if beyond[before] >= reach[before]:
                    continue
                p = 0
                while p < length and rows[current, p] <= item:
                    key[p] = rows[current, p]
                    p += 1
                key[p] = item
                for other in range(p + 1, width):
                    key[other] = rows[current, other - 1]
                head = _number(rows, volume, table, key, held + size[item], nodes)
                nodes += head == nodes
                fill_head[fills], fill_item[fills] = head, item
                fills += 1
            if length:
                key[:] = NOTHING
                left, grown = 0, 0
                for p in range(length):
                    after = following[rows[current, p]]
                    if after >= 0:
                        key[left] = after
                        left += 1
                        grown += size[after]
                head = _number(rows, volume, table, key, grown, nodes)
                nodes += head == nodes
                run_head[current] = head
        current += 1
        fill_begin[current], evict_begin[current] = fills, evictions
    progress[0], progress[1], progress[2], progress[3] = current, nodes, fills, evictions
    return outcome
