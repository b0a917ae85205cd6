"""Expanding states on the graph of resident sets, compiled.

Word 0 of a state is the node, and in its upper half how many requests have arrived when the batch begins that is being
composed; the others are the pool: how many requests of every priced item wait, in fields of bits. Arcs of the graph
lead from state to state, at their reduced cost. With arrivals there is idle time besides, and the label is the clock.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.solvers.compiled import compiled
from optsched_formulations.batching.search.state_steps import BEGIN, RUN, Buffer, Ints, Words, arrived, step_of


class Arcs(NamedTuple):
    """The graph, arcs by their tail; empty where states are expanded request by request.

    ``begins`` has shape (nodes + 1,), all others (arcs,): head, reduced cost, kind and item, and the pool's field that
    the arc changes (its word, shift and mask) by ``change``, −1, 0 or +1. With arrivals ``work`` is the time that arcs
    take, ``gate`` the class of which a first fill takes somebody, else −1, and ``time`` and ``place`` are as in
    `request_kernel.Requests`.
    """

    begins: Ints
    head: Ints
    reduced: Ints
    kind: Ints
    item: Ints
    word: Ints
    shift: Words
    mask: Words
    change: Ints
    work: Ints
    gate: Ints
    time: Ints
    place: Ints


_NONE, _NO_WORDS = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
NO_ARCS = Arcs(
    begins=_NONE,
    head=_NONE,
    reduced=_NONE,
    kind=_NONE,
    item=_NONE,
    word=_NONE,
    shift=_NO_WORDS,
    mask=_NO_WORDS,
    change=_NONE,
    work=_NONE,
    gate=_NONE,
    time=_NONE,
    place=np.zeros((1, 1), dtype=np.int64),
)
_HALF, _LOWER = np.uint64(32), np.uint64(2**32 - 1)


@compiled
def expand_node(  # noqa: PLR0917
    arcs: Arcs, words: Words, state: int, cost: int, label: int, buffer: Buffer
) -> int:
    """Write a state's successors into the buffer; return their number."""
    begins, head, reduced, kinds, items, field, shift, mask, changes, work, gates, time, place = arcs
    found_words, found_cost, found_label, found_step = buffer
    node, usable = int(np.int64(words[state, 0] & _LOWER)), int(np.int64(words[state, 0] >> _HALF))
    online, count = len(time) > 0, 0
    for arc in range(begins[node], begins[node + 1]):
        w, change = field[arc], changes[arc]
        if change < 0:
            there = (words[state, w] >> shift[arc]) & mask[arc]
            if there == np.uint64(0) or (online and gates[arc] >= 0 and place[gates[arc], np.int64(there)] >= usable):
                continue
        upper, idle = usable, 0
        if online and kinds[arc] == BEGIN:
            upper = arrived(time, label)
        elif kinds[arc] == RUN:
            upper = 0
        while True:
            for i in range(words.shape[1]):
                found_words[count, i] = words[state, i]
            found_words[count, 0] = np.uint64(head[arc]) | (np.uint64(upper) << _HALF)
            if change < 0:
                found_words[count, w] -= np.uint64(1) << shift[arc]
            elif change > 0:
                found_words[count, w] += np.uint64(1) << shift[arc]
            found_cost[count] = found_label[count] = cost + reduced[arc] + idle
            if online:
                found_label[count] = label + work[arc] + idle
            found_step[count] = step_of(kinds[arc], items[arc])
            count += 1
            if not online or kinds[arc] != BEGIN or upper >= len(time):
                break
            # Or the batch waits for the next arrivals.
            idle = int(time[upper] - label)
            upper = arrived(time, time[upper])
    return count
