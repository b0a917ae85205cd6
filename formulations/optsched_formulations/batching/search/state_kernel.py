"""The compiled loops of `state_search`: a best-first search and a beam search over two kinds of states.

A state is a row of 64-bit words, found by a hash table with open addressing. It has a *cost*, a lower bound on the
objective of all schedules through it, less a constant; and a *label*, what is minimised when two ways lead to it: the
cost itself, the clock where requests arrive over time (a state that is there earlier can wait), or the weighted time
spent so far where e2e latencies are summed, with arrivals for every clock apart.

*On the graph of resident sets* (`node_kernel`) word 0 is the node and the others are the pool. *Request by request*
(`request_kernel`) each request has a byte.

*Best first.* States wait in buckets of cost, each a doubly linked list, last in first out. A state that is reached at
a lower label moves to another bucket, also if it was expanded before; so costs within a bucket need no order, and when
all buckets below a cost are empty, every state below it has its least label.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.search.node_kernel import Arcs, expand_node
from optsched_formulations.batching.search.request_kernel import Requests, expand_requests
from optsched_formulations.batching.search.state_steps import RUN, Buffer, Words, kind_of

Numbers = npt.NDArray[np.int32]

NONE = -1
_CLOSED = -2
"""`Store.after` of a state that does not wait in a bucket."""
DONE, PAUSED, FULL = range(3)
"""Why `search` returns: nothing is left to look at, the limit of expansions, the store is full."""


class Store(NamedTuple):
    """States by number: words, cost, label, and how they were reached: from which, by which step.

    ``after`` and ``before`` link the states of a bucket, ``twin`` those that differ in their clocks.
    """

    words: Words
    cost: Ints
    label: Ints
    parent: Numbers
    step: Numbers
    after: Numbers
    before: Numbers
    twin: Numbers
    table: Numbers


# Named tuples are unpacked where they come in: taking an array out of one costs more than a step of a search.


@compiled
def place_of(words: Words, table: Numbers, wanted: Words, row: int, clock: int) -> int:
    """Return where the words of a row of ``wanted``, without that of the clock, are in the hash table, or would be."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for w in range(words.shape[1]):
        if w == clock:
            continue
        mixed ^= wanted[row, w]
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xC4CEB9FE1A85EC53)
        mixed ^= mixed >> np.uint64(33)
    mask = np.uint64(len(table) - 1)
    place = mixed & mask
    while True:
        known = table[place]
        if known == NONE:
            return int(np.int64(place))
        same = True
        for w in range(words.shape[1]):
            if w != clock and words[known, w] != wanted[row, w]:
                same = False
                break
        if same:
            return int(np.int64(place))
        place = (place + np.uint64(1)) & mask


@compiled
def enter_all(store: Store, count: int, clock: int) -> None:
    """Fill an empty hash table with the first states."""
    words, twin, table = store.words, store.twin, store.table
    for row in range(count):
        place = place_of(words, table, words, row, clock)
        twin[row] = table[place]
        table[place] = row


@compiled
def _unlink(after: Numbers, before: Numbers, buckets: Numbers, bucket: int, state: int) -> None:
    """Take a state out of its bucket."""
    right, left = after[state], before[state]
    if left == NONE:
        buckets[bucket] = right
    else:
        after[left] = right
    if right != NONE:
        before[right] = left
    after[state] = _CLOSED


@compiled
def _link(after: Numbers, before: Numbers, buckets: Numbers, bucket: int, state: int) -> None:
    """Put a state first in a bucket."""
    first = buckets[bucket]
    after[state] = first
    before[state] = NONE
    if first != NONE:
        before[first] = state
    buckets[bucket] = state


@compiled
def start(store: Store, buckets: Numbers) -> None:
    """Enter state 0, at no cost."""
    enter_all(store, 1, NONE)
    _link(store.after, store.before, buckets, 0, 0)


@compiled
def search(  # noqa: PLR0917 - compiled functions take positions
    arcs: Arcs,
    requests: Requests,
    goal: Words,
    store: Store,
    buckets: Numbers,
    width: int,
    clock: int,
    progress: Ints,
    buffer: Buffer,
    limit: int,
) -> int:
    """Expand up to ``limit`` states, cheapest buckets first; return why it stops.

    ``clock`` is the word of the clock, −1 if there is none. ``goal`` are the words of the finished state. ``progress``
    goes in and out: number of states; the bucket looked at; the cost from which on nothing matters, which is that of
    the finished state once it is found; the finished state's number, or −1; states expanded.
    """
    words, costs, labels, parent, by, after, before, twin, table = store
    found_words, found_cost, found_label, found_step = buffer
    count, bucket, budget, finished = progress[0], progress[1], progress[2], progress[3]
    on_graph = len(arcs.begins) > 0
    room, slots, breadth, size = len(costs), len(table), len(found_cost), words.shape[1]
    expanded, outcome = 0, DONE
    while True:
        while bucket < len(buckets) and buckets[bucket] == NONE:
            bucket += 1
        if bucket >= len(buckets) or bucket * width >= budget:
            break
        if expanded >= limit:
            outcome = PAUSED
            break
        if count + breadth > room or 2 * (count + breadth) > slots:
            outcome = FULL
            break
        state = buckets[bucket]
        _unlink(after, before, buckets, bucket, state)
        expanded += 1
        if on_graph:
            successors = expand_node(arcs, words, state, costs[state], labels[state], buffer)
        else:
            successors = expand_requests(requests, words, state, costs[state], labels[state], buffer)
        for row in range(successors):
            total = found_cost[row]
            if total >= budget:
                continue
            place = place_of(words, table, found_words, row, clock)
            reached = table[place]
            if clock >= 0 and reached != NONE:
                # A state reached earlier, whose completions sum up to no more, can wait.
                dominated = False
                while reached != NONE and not dominated:
                    dominated = words[reached, clock] <= found_words[row, clock] and labels[reached] <= found_label[row]
                    reached = twin[reached]
                if dominated:
                    continue
                last, other = NONE, table[place]
                while other != NONE:
                    if words[other, clock] < found_words[row, clock] or labels[other] < found_label[row]:
                        last = other
                    else:
                        if after[other] != _CLOSED:
                            _unlink(after, before, buckets, costs[other] // width, other)
                        if last == NONE:
                            table[place] = twin[other]
                        else:
                            twin[last] = twin[other]
                    other = twin[other]
            if reached == NONE:
                reached = count
                count += 1
                twin[reached] = table[place]
                table[place] = reached
                for w in range(size):
                    words[reached, w] = found_words[row, w]
            else:
                if found_label[row] >= labels[reached]:
                    continue
                if after[reached] != _CLOSED:
                    _unlink(after, before, buckets, costs[reached] // width, reached)
            costs[reached], labels[reached], parent[reached], by[reached] = (
                total,
                found_label[row],
                state,
                found_step[row],
            )
            complete = True
            for w in range(size):
                complete = complete and words[reached, w] == goal[w]
            if complete:
                budget, finished = total, reached
                after[reached] = _CLOSED
            else:
                _link(after, before, buckets, total // width, reached)
    progress[0], progress[1], progress[2], progress[3] = count, bucket, budget, finished
    progress[4] += expanded
    return outcome


@compiled
def beam(  # noqa: PLR0917
    arcs: Arcs,
    requests: Requests,
    goal: Words,
    store: Store,
    waiting: Numbers,
    following: Numbers,
    heights: Ints,
    progress: Ints,
    buffer: Buffer,
    limit: int,
) -> int:
    """Go through one batch from every state that waits, up to ``limit`` expansions; return why it stops.

    ``heights`` says how many states wait and how many follow after the batch, some of these perhaps twice; both stacks
    have room for the states of the store. ``goal`` and ``progress`` are as for `search`.
    """
    words, costs, labels, parent, by, _, _, _, table = store
    found_words, found_cost, found_label, found_step = buffer
    count, budget, finished = progress[0], progress[2], progress[3]
    on_graph = len(arcs.begins) > 0
    room, slots, breadth, size = len(costs), len(table), len(found_cost), words.shape[1]
    high, found = heights[0], heights[1]
    expanded, outcome = 0, DONE
    while high > 0:
        if expanded >= limit:
            outcome = PAUSED
            break
        if max(count, high, found) + breadth > room or 2 * (count + breadth) > slots:
            outcome = FULL
            break
        high -= 1
        expanded += 1
        state = waiting[high]
        if on_graph:
            successors = expand_node(arcs, words, state, costs[state], labels[state], buffer)
        else:
            successors = expand_requests(requests, words, state, costs[state], labels[state], buffer)
        for row in range(successors):
            if found_cost[row] >= budget:
                continue
            place = place_of(words, table, found_words, row, NONE)
            reached = table[place]
            if reached == NONE:
                reached = count
                count += 1
                table[place] = reached
                for w in range(size):
                    words[reached, w] = found_words[row, w]
            elif found_label[row] >= labels[reached]:
                continue
            costs[reached], labels[reached], parent[reached], by[reached] = (
                found_cost[row],
                found_label[row],
                state,
                found_step[row],
            )
            if kind_of(found_step[row]) != RUN:
                waiting[high] = reached
                high += 1
                continue
            complete = True
            for w in range(size):
                complete = complete and words[reached, w] == goal[w]
            if complete:
                budget, finished = found_cost[row], reached
            else:
                following[found] = reached
                found += 1
    progress[0], progress[2], progress[3] = count, budget, finished
    progress[4] += expanded
    heights[0], heights[1] = high, found
    return outcome
