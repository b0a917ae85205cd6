"""Going through one batch from every state of a layer, compiled.

A state is a node of the merged graph and a pool: how many requests of every item wait, for their first fill or for a
refill, or to end, in fields of bits. Word 0 of a state is the node. All costs are in time units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled, compiled_helper
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.graph_kernel import Arcs, Bytes, Numbers

Words = npt.NDArray[np.uint64]

DONE, PAUSED, FULL = range(3)
"""Why `through_a_batch` returns: the layer is done, the limit is reached, the next layer has no room."""


class Fields(NamedTuple):
    """Where a pool has the number of every item: word, shift and mask."""

    word: Ints
    shift: Words
    mask: Words


class Layer(NamedTuple):
    """States after the same number of batches.

    Parameters
    ----------
    words
        Node and pool, shape (room, words).
    extra
        Cost of all refills so far, beyond the decodes in their place, and of batches beyond the base.
    bound
        Every schedule through the state costs at least this, without the constant work.
    parent
        The state before the last batch, in its layer.
    """

    words: Words
    extra: Ints
    bound: Ints
    parent: Numbers


class Meeting(NamedTuple):
    """States from which the rest of schedules is known: of a layer, with its hash table.

    Parameters
    ----------
    words, cost
        Node and pool, and what all that comes after the state costs, without the constant work.
    table
        The hash table.
    """

    words: Words
    cost: Ints
    table: Numbers


class EndFacts(NamedTuple):
    """What searches know of ends.

    Parameters
    ----------
    tokens
        Items that are tokens; ends come after them.
    first, due
        Of every end: the first item of its class, and the item that a request is due for when it takes it.
    early, passing
        Requests in a node that may still take an end, or an earlier one, and those of them that do not if they run.
    row
        Of every node: the row of ``closing`` if its items can all take ends, else −1.
    closing
        That node and its pool where nothing but these ends is left.
    """

    tokens: int
    first: Ints
    due: Ints
    early: Bytes
    passing: Bytes
    row: Numbers
    closing: Words


@compiled_helper
def place_of(words: Words, table: Numbers, wanted: Words) -> int:
    """Return where a state is in a hash table, or where it would be entered."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for w in range(len(wanted)):
        mixed ^= wanted[w]
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xC4CEB9FE1A85EC53)
        mixed ^= mixed >> np.uint64(33)
    mask = len(table) - 1
    place = np.int64(mixed & np.uint64(mask))
    while table[place] >= 0:
        known = table[place]
        same = True
        for w in range(len(wanted)):
            if words[known, w] != wanted[w]:
                same = False
                break
        if same:
            break
        place = (place + 1) & mask
    return int(place)


@compiled_helper
def enter(  # noqa: PLR0917
    layer: Layer, table: Numbers, wanted: Words, extra: int, bound: int, parent: int, count: int
) -> int:
    """Enter a state, at the least cost of refills; return how many there are then."""
    words, extras, bounds, parents = layer
    place = place_of(words, table, wanted)
    known = table[place]
    if known >= 0:
        if extra < extras[known]:
            extras[known], bounds[known], parents[known] = extra, bound, parent
        return count
    table[place] = count
    for w in range(len(wanted)):
        words[count, w] = wanted[w]
    extras[count], bounds[count], parents[count] = extra, bound, parent
    return count + 1


@compiled_helper
def waiting(fields: Fields, words: Words, item: int) -> int:
    """Return how many of an item wait."""
    return int(np.int64((words[fields.word[item]] >> fields.shift[item]) & fields.mask[item]))


@compiled_helper
def wait(fields: Fields, words: Words, item: int, change: int) -> None:
    """Let one more of an item wait, or one fewer where the change is −1."""
    if change > 0:
        words[fields.word[item]] += np.uint64(1) << fields.shift[item]
    else:
        words[fields.word[item]] -= np.uint64(1) << fields.shift[item]


@compiled
def pool_price(fields: Fields, words: Words, price: Ints) -> int:
    """Return what a pool pays."""
    total = 0
    for item in range(len(price)):
        total += price[item] * waiting(fields, words, item)
    return total


@compiled_helper
def count_spare(ends: EndFacts, fields: Fields, words: Words, spare: Ints) -> None:
    """Count how many more requests may pass every end: of those that could take it or an earlier one some have to."""
    tokens, first, due, early = ends.tokens, ends.first, ends.due, ends.early
    for end in range(len(due)):
        spare[end] = early[int(words[0]), end]
        for item in range(first[end], due[end] + 1):
            spare[end] += waiting(fields, words, item)
        for other in range(end + 1):
            if first[other] == first[end]:
                spare[end] -= waiting(fields, words, tokens + other)


@compiled_helper
def may_run(ends: EndFacts, node: int, spare: Ints) -> bool:
    """Return whether enough requests are left for every end if a node runs."""
    enough = True
    for end in range(len(spare)):
        enough = enough and ends.passing[node, end] <= spare[end]
    return enough


@compiled
def raise_bounds(  # noqa: PLR0917
    fields: Fields, layer: Layer, count: int, price: Ints, least: Ints, spent: int, budget: int
) -> int:
    """Raise the bounds of states by other prices, drop those that reach the budget; return how many stay."""
    words, extra, bound, parent = layer
    kept = 0
    for state in range(count):
        found = spent + extra[state] + pool_price(fields, words[state], price) + least[int(words[state, 0])]
        found = max(found, bound[state])
        if found >= budget:
            continue
        words[kept] = words[state]
        extra[kept], bound[kept], parent[kept] = extra[state], found, parent[state]
        kept += 1
    return kept


@compiled
def through_a_batch(  # noqa: PLR0917 - compiled functions take positions
    arcs: Arcs,
    ends: EndFacts,
    fields: Fields,
    prices: tuple[Ints, Ints],
    extra_cost: Ints,
    run_extra: Ints,
    due: Ints,
    composing: Ints,
    after: Ints,
    spent: int,
    base: int,
    idle: int,
    here: Layer,
    count: int,
    there: Layer,
    table: Numbers,
    keep: int,
    meeting: Meeting,
    progress: Ints,
    limit: int,
) -> int:
    """Run one batch from up to ``limit`` states; return why it stops.

    Evictions are taken in ascending order of items, then ends, then fills; an item that has just been evicted is not
    filled, which would be keeping it.

    Parameters
    ----------
    ends
        Of the graph.
    prices, extra_cost
        What a waiting request of an item pays, in this batch and after it, and what its fill costs.
    run_extra
        What the batch of a node costs beyond the base.
    due, composing, after
        Least priced cost onwards from every node: before the evictions of this batch, after them, and after it.
    spent, base, idle
        Bases of the batches before, that of one, and what follows costs where nothing is left to do.
    here, count
        The layer.
    there, table
        The next one, and its hash table.
    keep, meeting
        States whose bound is not below ``keep`` are not entered, but looked for among those whose rest is known.
    progress
        Goes in and out: states done; states found; the budget, from which on a schedule is of no use and which falls to
        the cost of the best one found; the state from which that one is finished in this batch, or goes on, or −1; the
        state whose rest it has, or −1; how often one was looked for.
    """
    fits, fill_begin, fill_head, fill_item, evict_begin, evict_head, evict_item, change, run_head = arcs
    price, later = prices
    size = here.words.shape[1]
    current, found, budget, finished, met = progress[0], progress[1], progress[2], progress[3], progress[4]
    looks = progress[5]
    words = np.empty(size, dtype=np.uint64)
    evicted = np.zeros(len(price), dtype=np.int64)
    spare = np.zeros(len(ends.due), dtype=np.int64)
    deepest = 512
    at, arc, fills, item_of = (
        np.empty(deepest, dtype=np.int64),
        np.empty(deepest, dtype=np.int64),
        np.empty(deepest, dtype=np.int64),
        np.empty(deepest, dtype=np.int64),
    )
    until, outcome = current + limit, DONE
    while current < count and outcome == DONE:
        if current >= until:
            outcome = PAUSED
            break
        if here.bound[current] >= budget:
            current += 1
            continue
        words[:] = here.words[current]
        node = int(words[0])
        extra, inherited = here.extra[current], here.bound[current]
        pool, rest_pool = pool_price(fields, words, price), pool_price(fields, words, later)
        evicted[:] = 0
        count_spare(ends, fields, words, spare)
        # A stack of nodes: those that still evict, and those that fill; arc −1 is the way from the first to the second.
        depth = 0
        at[0], arc[0], fills[0], item_of[0] = node, -1, 0, -1
        while depth >= 0:
            node = at[depth]
            forward = False
            if fills[depth] == 0:
                if arc[depth] < 0:
                    arc[depth] = evict_begin[node]
                    if fits[node] and spent + extra + pool + composing[node] < budget:
                        depth += 1
                        at[depth], arc[depth], fills[depth], item_of[depth] = node, -1, 1, -1
                        continue
                while arc[depth] < evict_begin[node + 1]:
                    taken, item = arc[depth], int(evict_item[arc[depth]])
                    arc[depth] += 1
                    # Ascending, from the last eviction on.
                    if item < item_of[depth] or (change[item] < 0 and waiting(fields, words, item) == 0):
                        continue
                    if spent + extra + pool + change[item] * price[item] + due[evict_head[taken]] >= budget:
                        continue
                    wait(fields, words, item, change[item])
                    pool += change[item] * price[item]
                    rest_pool += change[item] * later[item]
                    evicted[item] += 1
                    depth += 1
                    at[depth], arc[depth], fills[depth], item_of[depth] = int(evict_head[taken]), -1, 0, item
                    forward = True
                    break
            else:
                if arc[depth] < 0:
                    arc[depth] = fill_begin[node]
                    if run_head[node] >= 0 and may_run(ends, node, spare):
                        then = extra + run_extra[node]
                        total = max(spent + base + then + rest_pool + after[run_head[node]], inherited)
                        if total < budget:
                            words[0] = np.uint64(run_head[node])
                            row = ends.row[run_head[node]]
                            complete = row >= 0
                            for w in range(size):
                                complete = complete and words[w] == ends.closing[row, w]
                            if complete:
                                # Perhaps in fewer batches than the bound is for.
                                if spent + base + then + idle < budget:
                                    budget, finished, met = spent + base + then + idle, current, -1
                            elif total >= keep:
                                looks += 1
                                rest = int(meeting.table[place_of(meeting.words, meeting.table, words)])
                                if rest >= 0 and spent + base + then + meeting.cost[rest] < budget:
                                    budget, finished, met = spent + base + then + meeting.cost[rest], current, rest
                            else:
                                if found >= len(there.extra) or 2 * found >= len(table):
                                    outcome = FULL
                                    break
                                found = enter(there, table, words, then, total, current, found)
                while arc[depth] < fill_begin[node + 1]:
                    taken, item = arc[depth], int(fill_item[arc[depth]])
                    arc[depth] += 1
                    if item < item_of[depth] or evicted[item] > 0 or waiting(fields, words, item) == 0:
                        continue
                    if spent + extra + extra_cost[item] + pool - price[item] + composing[fill_head[taken]] >= budget:
                        continue
                    wait(fields, words, item, -1)
                    pool -= price[item]
                    rest_pool -= later[item]
                    extra += extra_cost[item]
                    depth += 1
                    at[depth], arc[depth], fills[depth], item_of[depth] = int(fill_head[taken]), -1, 2, item
                    forward = True
                    break
            if forward:
                continue
            item = item_of[depth]
            if fills[depth] == 0 and item >= 0:
                wait(fields, words, item, -change[item])
                pool -= change[item] * price[item]
                rest_pool -= change[item] * later[item]
                evicted[item] -= 1
            elif fills[depth] == 2:
                wait(fields, words, item, 1)
                pool += price[item]
                rest_pool += later[item]
                extra -= extra_cost[item]
            depth -= 1
        if outcome == DONE:
            current += 1
    progress[0], progress[1], progress[2], progress[3] = current, found, budget, finished
    progress[4], progress[5] = met, looks
    return outcome


@compiled
def enter_again(layer: Layer, count: int, table: Numbers) -> None:
    """Fill an empty hash table with the first states of a layer."""
    for state in range(count):
        # Each finds its own row: its words are those that it is written over with.
        enter(layer, table, layer.words[state], layer.extra[state], layer.bound[state], layer.parent[state], state)
