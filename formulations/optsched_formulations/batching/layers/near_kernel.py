"""Walks of the merged graph that cost little more than the least one, as a small graph of their own, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.graph_kernel import DONE, FULL, Arcs, Numbers

Floats32 = npt.NDArray[np.float32]


class Near(NamedTuple):
    """States of walks, a node in a batch before its evictions or after them, each before all that follow it.

    Parameters
    ----------
    begin
        Arcs of state s are those from ``begin[s]`` to ``begin[s + 1] - 1``.
    head, label
        Of arcs: the state behind it, and what it does; with n items, i < n fills item i, n + i evicts it or takes it,
        an end, 2 n ends the evictions of the batch, and 2 n + 1 + q runs it at the cost number q. To that t times as
        many as there are of these is added in the batch with which t are left.
    """

    begin: Numbers
    head: Numbers
    label: Numbers


class NearWalks(NamedTuple):
    """Near walks, and what it takes to find the least one.

    Parameters
    ----------
    near
        Their states and arcs.
    change
        By how many more wait for an item that is evicted, or taken.
    starts
        The state at which walks of t batches begin, −1 if there are none.
    states
        How many there are.
    left
        Room for what is left to pay from every state and from the end.
    none
        A cost that is as good as infinite.
    """

    near: Near
    change: Ints
    starts: Ints
    states: int
    left: Floats32
    none: np.float32


@compiled
def near_walks(  # noqa: PLR0917 - compiled functions take positions
    arcs: Arcs,
    items: int,
    run: Numbers,
    cost: Floats32,
    least: Floats32,
    composing: Floats32,
    node: int,
    start: Floats,
    none: np.float32,
    most: float,
    near: Near,
    starts: Ints,
    counts: Ints,
) -> int:
    """Write all arcs of walks from a node that cost up to ``most``; return whether there was room (`DONE`, `FULL`).

    ``run`` has the label of every node's batch, ``cost[t]`` what every label costs in the batch with which t are left;
    ``start[t]`` is paid by walks of t batches, or ``none`` where they are not asked for; ``least`` and ``composing``
    are those of `walk_kernel.walk_back`. The states that walks of t batches begin at are written to ``starts``, −1 if
    there are none, the numbers of states, without the end, and of arcs to ``counts``.
    """
    fits, fill_begin, fill_head, fill_item, evict_begin, evict_head, evict_item, change, run_head = arcs
    begin, head, label = near
    batches, nodes, labels = len(start) - 1, len(fits), cost.shape[1]
    open_ = 2 * items
    due, after = np.full(nodes, none, dtype=np.float32), np.full(nodes, none, dtype=np.float32)
    filling = np.empty(nodes, dtype=np.float32)
    before_of, after_of = np.empty(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32)
    starts[:] = -1
    states, found, running = 0, 0, 0
    for t in range(batches, 0, -1):
        rest, opened, next_rest, costs, below = least[t], composing[t], least[t - 1], cost[t], t * labels
        due[node] = min(due[node], start[t])
        for v in range(nodes - 1, -1, -1):
            if due[v] + rest[v] <= most:
                for arc in range(evict_begin[v], evict_begin[v + 1]):
                    there = evict_head[arc]
                    due[there] = min(due[there], due[v] + costs[items + evict_item[arc]])
        after[:] = none
        for v in range(nodes):
            filling[v] = due[v] if fits[v] else none
        for v in range(nodes):
            if filling[v] + opened[v] <= most:
                for arc in range(fill_begin[v], fill_begin[v + 1]):
                    there = fill_head[arc]
                    filling[there] = min(filling[there], filling[v] + costs[fill_item[arc]])
                if run_head[v] >= 0:
                    after[run_head[v]] = min(after[run_head[v]], filling[v] + costs[run[v]])
        # Numbers of the states of this batch: that of a node comes before those of what it may evict, or fill, to.
        first = states
        for v in range(nodes - 1, -1, -1):
            before_of[v] = -1
            if due[v] + rest[v] <= most:
                before_of[v] = states
                states += 1
        if start[t] + rest[node] <= most:
            starts[t] = before_of[node]
        middle = states
        for v in range(nodes):
            after_of[v] = -1
            if filling[v] + opened[v] <= most:
                after_of[v] = states
                states += 1
        if states + 1 >= len(begin):
            return FULL
        # Runs of the batch before have the nodes that they lead to so far.
        for arc in range(running, found):
            if label[arc] > below + labels + open_:
                head[arc] = before_of[head[arc]]
        running = found
        at = first
        for v in range(nodes - 1, -1, -1):
            if before_of[v] < 0:
                continue
            begin[at] = found
            at += 1
            if found + evict_begin[v + 1] - evict_begin[v] >= len(head):
                return FULL
            if after_of[v] >= 0 and due[v] + opened[v] <= most:
                head[found], label[found] = after_of[v], below + open_
                found += 1
            for arc in range(evict_begin[v], evict_begin[v + 1]):
                there = evict_head[arc]
                if due[v] + costs[items + evict_item[arc]] + rest[there] <= most and before_of[there] >= 0:
                    head[found], label[found] = before_of[there], below + items + evict_item[arc]
                    found += 1
        at = middle
        for v in range(nodes):
            if after_of[v] < 0:
                continue
            begin[at] = found
            at += 1
            if found + fill_begin[v + 1] - fill_begin[v] >= len(head):
                return FULL
            for arc in range(fill_begin[v], fill_begin[v + 1]):
                there = fill_head[arc]
                if filling[v] + costs[fill_item[arc]] + opened[there] <= most and after_of[there] >= 0:
                    head[found], label[found] = after_of[there], below + fill_item[arc]
                    found += 1
            if run_head[v] >= 0 and filling[v] + costs[run[v]] + next_rest[run_head[v]] <= most:
                head[found], label[found] = run_head[v], below + run[v]
                found += 1
        due, after = after, due
    # What ends after the last batch: the empty node comes last.
    rest, costs, first = least[0], cost[0], states
    for v in range(nodes - 1, -1, -1):
        before_of[v] = -1
        if v > 0 and due[v] + rest[v] <= most:
            before_of[v] = states
            states += 1
            for arc in range(evict_begin[v], evict_begin[v + 1]):
                there = evict_head[arc]
                if change[evict_item[arc]] < 0:
                    due[there] = min(due[there], due[v] + costs[items + evict_item[arc]])
    if states + 1 >= len(begin):
        return FULL
    before_of[0] = states
    for arc in range(running, found):
        if label[arc] > labels + open_:
            head[arc] = before_of[head[arc]]
    at = first
    for v in range(nodes - 1, 0, -1):
        if before_of[v] < 0:
            continue
        begin[at] = found
        at += 1
        if found + evict_begin[v + 1] - evict_begin[v] >= len(head):
            return FULL
        for arc in range(evict_begin[v], evict_begin[v + 1]):
            there = evict_head[arc]
            ends = change[evict_item[arc]] < 0 and before_of[there] >= 0
            if ends and due[v] + costs[items + evict_item[arc]] + rest[there] <= most:
                head[found], label[found] = before_of[there], items + evict_item[arc]
                found += 1
    begin[states] = found
    counts[0], counts[1] = states, found
    return DONE


@compiled
def least_near_walk(walks: NearWalks, cost: Floats32, start: Floats, balance: Ints, ran: Ints) -> tuple[float, int]:
    """Return the least cost of a walk and its batches, and write what it does in the batch with which t are left.

    To ``balance[t]`` is added how often it evicts items more than it fills them, less the ends that it takes, in row 1
    those after the last batch, too; ``ran[t]`` is the number of the cost that the batch runs at. ``cost`` is that of
    every label, batch after batch from the last one on; ``start`` is as in `near_walks`.
    """
    (begin, head, label), change, starts, states, left, none = walks
    items, labels = balance.shape[1], len(cost) // len(start)
    left[states] = 0.0
    for state in range(states - 1, -1, -1):
        best = none
        for arc in range(begin[state], begin[state + 1]):
            best = min(best, cost[label[arc]] + left[head[arc]])
        left[state] = best
    value, batches = float(none), 0
    for t in range(len(starts)):
        if starts[t] >= 0 and start[t] + left[starts[t]] < value:
            value, batches = start[t] + left[starts[t]], t
    state = int(starts[batches])
    while 0 <= state < states:
        chosen = -1
        for arc in range(begin[state], begin[state + 1]):
            if chosen < 0 or cost[label[arc]] + left[head[arc]] < cost[label[chosen]] + left[head[chosen]]:
                chosen = arc
        if chosen < 0:
            break
        batch, step = divmod(label[chosen], labels)
        if step < items:
            balance[batch, step] -= 1
        elif step < 2 * items:
            balance[max(1, batch), step - items] += change[step - items]
        elif step > 2 * items:
            ran[batch] = step - 2 * items - 1
        state = int(head[chosen])
    return float(value), batches
