"""Expanding states on the graph of resident sets, compiled.

Word 0 of a state is the node, and in its upper half how many requests have arrived when the batch begins that is being
composed; the others are the pool: how many requests of every priced item wait, in fields of bits. Arcs of the graph
lead from state to state, at their reduced cost. With arrivals there is idle time besides, and the label is the clock.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.search.state_steps import BEGIN, RUN, Buffer, Words, arrived, step_of


class Arcs(NamedTuple):
    """The graph; empty where states are expanded request by request.

    Parameters
    ----------
    begins
        The first arc of every node, and the end, shape (nodes + 1,).
    arc
        Of every arc, by its tail: `HEAD`, `REDUCED` cost, `KIND` and `ITEM`; the pool's field that it changes (`WORD`,
        `SHIFT` and `MASK`) by `CHANGE`, −1, 0 or +1; and with arrivals the `WORK` in time units and as `GATE` the class
        of which a first fill takes a request, else −1. Shape (arcs, 10): what is read together lies together.
    time, place
        Arrivals, ascending, and as in `request_kernel.Requests` the place there of the i-th last of every class.
    """

    begins: Ints
    arc: Ints
    time: Ints
    place: Ints


HEAD, REDUCED, KIND, ITEM, WORD, SHIFT, MASK, CHANGE, WORK, GATE = range(10)
NO_ARCS = Arcs(*(np.zeros((0,) * dimensions, dtype=np.int64) for dimensions in (1, 2, 1, 2)))
_HALF, _LOWER = np.uint64(32), np.uint64(2**32 - 1)


@compiled
def expand_node(  # noqa: PLR0917
    arcs: Arcs, words: Words, state: int, cost: int, label: int, buffer: Buffer
) -> int:
    """Write a state's successors into the buffer; return their number."""
    begins, table, time, place = arcs
    found_words, found_cost, found_label, found_step = buffer
    node, usable = int(np.int64(words[state, 0] & _LOWER)), int(np.int64(words[state, 0] >> _HALF))
    online, count = len(time) > 0, 0
    for arc in range(begins[node], begins[node + 1]):
        kind, w, change, gate = table[arc, KIND], table[arc, WORD], table[arc, CHANGE], table[arc, GATE]
        shift = np.uint64(table[arc, SHIFT])
        if change < 0:
            there = (words[state, w] >> shift) & np.uint64(table[arc, MASK])
            if there == np.uint64(0) or (online and gate >= 0 and place[gate, np.int64(there)] >= usable):
                continue
        upper, idle = usable, 0
        if online and kind == BEGIN:
            upper = arrived(time, label)
        elif kind == RUN:
            upper = 0
        while True:
            for i in range(words.shape[1]):
                found_words[count, i] = words[state, i]
            found_words[count, 0] = np.uint64(table[arc, HEAD]) | (np.uint64(upper) << _HALF)
            if change < 0:
                found_words[count, w] -= np.uint64(1) << shift
            elif change > 0:
                found_words[count, w] += np.uint64(1) << shift
            found_cost[count] = found_label[count] = cost + table[arc, REDUCED] + idle
            if online:
                found_label[count] = label + table[arc, WORK] + idle
            found_step[count] = step_of(kind, table[arc, ITEM])
            count += 1
            if not online or kind != BEGIN or upper >= len(time):
                break
            # Or the batch waits for the next arrivals.
            idle = int(time[upper] - label)
            upper = arrived(time, time[upper])
    return count
