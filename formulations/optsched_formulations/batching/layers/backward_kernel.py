"""Going backwards through one batch of the merged graph from every state of a layer, compiled.

States and costs are those of `layer_kernel`; here a state's extra cost is that of the refills after it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.graph_kernel import Arcs, Numbers
from optsched_formulations.batching.layers.layer_kernel import (
    DONE,
    FULL,
    PAUSED,
    EndFacts,
    Fields,
    Layer,
    count_spare,
    enter,
    pool_price,
    wait,
    waiting,
)


class ArcsBack(NamedTuple):
    """The arcs of the merged graph by their heads; those that fill or evict have the greatest items first.

    Parameters
    ----------
    fill_begin, fill_tail, fill_item
        Arcs that fill an item and lead to node v are those from ``fill_begin[v]`` to ``fill_begin[v + 1] - 1``.
    evict_begin, evict_tail, evict_item
        Arcs that evict one, or take an end.
    change
        By how many more wait for an item after such an arc.
    run_begin, run_tail
        Nodes whose batch leads to a node.
    present
        Requests of every class in a node, shape (nodes, classes).
    """

    fill_begin: Ints
    fill_tail: Ints
    fill_item: Ints
    evict_begin: Ints
    evict_tail: Ints
    evict_item: Ints
    change: Ints
    run_begin: Ints
    run_tail: Ints
    present: Ints


class Costs(NamedTuple):
    """Least priced costs of walks, by node, in units; shape (nodes,).

    Parameters
    ----------
    due, composing
        Onwards from this batch: before its evictions, and after them.
    before, leaving, filling
        From the begin to this batch, without it: before its evictions, among them, and among its fills.
    """

    due: Ints
    composing: Ints
    before: Ints
    leaving: Ints
    filling: Ints


@compiled
def walk_forth(  # noqa: PLR0917
    arcs: Arcs, fill_cost: Ints, evict_cost: Ints, run_cost: Ints, none: int, here: Ints, after: Ints
) -> tuple[Ints, Ints]:
    """Return the least priced cost of every node among the evictions of a batch, and among its fills.

    ``here`` is that before its evictions; ``after`` is lowered to that behind the batch. Of nodes beyond reach it is
    ``none``, which is as good as infinite.
    """
    fits, fill_begin, fill_head, fill_item, evict_begin, evict_head, evict_item, _, run_head = arcs
    nodes = len(fits)
    leaving, filling = here.copy(), np.full(nodes, none, dtype=np.int64)
    for node in range(nodes - 1, -1, -1):
        if leaving[node] < none:
            for arc in range(evict_begin[node], evict_begin[node + 1]):
                head = evict_head[arc]
                leaving[head] = min(leaving[head], leaving[node] + evict_cost[evict_item[arc]])
    for node in range(nodes):
        if fits[node]:
            filling[node] = min(filling[node], leaving[node])
        if filling[node] < none:
            for arc in range(fill_begin[node], fill_begin[node + 1]):
                head = fill_head[arc]
                filling[head] = min(filling[head], filling[node] + fill_cost[fill_item[arc]])
            if run_head[node] >= 0:
                after[run_head[node]] = min(after[run_head[node]], filling[node] + run_cost[node])
    return leaving, filling


@compiled
def back_through_a_batch(  # noqa: PLR0917 - compiled functions take positions
    arcs: ArcsBack,
    ends: EndFacts,
    fields: Fields,
    price: Ints,
    extra_cost: Ints,
    run_extra: Ints,
    members: tuple[Ints, Ints, Ints],
    costs: Costs,
    onwards: int,
    fresh: int,
    limits: tuple[int, int],
    here: Layer,
    count: int,
    there: Layer,
    table: Numbers,
    progress: Ints,
    limit: int,
) -> int:
    """Run one batch backwards from up to ``limit`` states; return why it stops.

    Fills are taken back, the greatest items first, then evictions: the ways of `layer_kernel.through_a_batch` back to
    front. What is left is kept below the limits by the costs of nodes; no step lowers what a way back costs beyond what
    prices prove.

    Parameters
    ----------
    ends
        Of the graph.
    price, extra_cost
        What a waiting request of an item pays, and what its fill costs.
    run_extra
        What the batch of a node costs beyond the base.
    members
        The class of every item; the requests of every class that do not take an end: no more of it are in a node and
        its pool beside those that do; and how many take every end, or pass it.
    costs
        What nodes cost at least.
    onwards
        Bases of this batch and those after it.
    fresh
        What all requests pay that wait at the begin.
    limits
        For what a way back costs beyond what prices prove of it, and for what any schedule through it costs.
    here, count
        The layer after the batch.
    there, table
        The one before it, and its hash table.
    progress
        Goes in and out: states done, and states found.
    """
    fill_begin, fill_tail, fill_item, evict_begin, evict_tail, evict_item, change, run_begin, run_tail, present = arcs
    due, composing, before, leaving, filling = costs
    (owner, requests, takers), (most, budget) = members, limits
    items, size, classes = len(price), here.words.shape[1], len(requests)
    current, found = progress[0], progress[1]
    words = np.empty(size, dtype=np.uint64)
    filled, there_are = np.zeros(items, dtype=np.int64), np.zeros(classes, dtype=np.int64)
    spare = np.zeros(len(ends.due), dtype=np.int64)
    deepest = 512
    at, arc, evicts, item_of = (
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
        words[:] = here.words[current]
        pays = pool_price(fields, words, price)
        there_are[:] = 0
        for item in range(items):
            there_are[owner[item]] += change[item] * waiting(fields, words, item)
        count_spare(ends, fields, words, spare)
        last = int(words[0])
        for run in range(run_begin[last], run_begin[last + 1]):
            ran = run_tail[run]
            possible = True
            for kind in range(classes):
                if present[ran, kind] + there_are[kind] > requests[kind]:
                    possible = False
                    break
            for end in range(len(spare)):
                if ends.passing[ran, end] + spare[end] > takers[1, end]:
                    possible = False
                    break
            cost, pool = onwards + here.extra[current] + run_extra[ran], pays
            if not possible or cost - pool - composing[ran] >= most or cost + filling[ran] + fresh - pool >= budget:
                continue
            # A stack of nodes: those before some fills, and those before some evictions.
            depth = 0
            at[0], arc[0], evicts[0], item_of[0] = ran, -1, 0, items
            while depth >= 0:
                node, forward = at[depth], False
                if evicts[depth] == 0:
                    if arc[depth] < 0:
                        arc[depth] = fill_begin[node]
                        if cost - pool - due[node] < most and cost + leaving[node] + fresh - pool < budget:
                            depth += 1
                            at[depth], arc[depth], evicts[depth], item_of[depth] = node, -1, 1, items
                            continue
                    while arc[depth] < fill_begin[node + 1]:
                        taken, item = fill_tail[arc[depth]], fill_item[arc[depth]]
                        arc[depth] += 1
                        # Descending, from the last fill on.
                        if item > item_of[depth]:
                            continue
                        cost_then, pool_then = cost + extra_cost[item], pool + price[item]
                        if (
                            cost_then - pool_then - composing[taken] >= most
                            or cost_then + filling[taken] + fresh - pool_then >= budget
                        ):
                            continue
                        wait(fields, words, item, 1)
                        cost, pool = cost_then, pool_then
                        filled[item] += 1
                        depth += 1
                        at[depth], arc[depth], evicts[depth], item_of[depth] = taken, -1, 0, item
                        forward = True
                        break
                else:
                    if arc[depth] < 0:
                        arc[depth] = evict_begin[node]
                        if cost + before[node] + fresh - pool < budget:
                            if found >= len(there.extra) or 2 * found >= len(table):
                                outcome = FULL
                                break
                            words[0] = np.uint64(node)
                            found = enter(there, table, words, cost - onwards, 0, current, found)
                    while arc[depth] < evict_begin[node + 1]:
                        taken, item = evict_tail[arc[depth]], evict_item[arc[depth]]
                        arc[depth] += 1
                        if item > item_of[depth] or filled[item] > 0:
                            continue
                        if change[item] < 0:
                            if waiting(fields, words, item) == takers[0, item - ends.tokens]:
                                continue
                        elif waiting(fields, words, item) == 0:
                            continue
                        pool_then = pool - change[item] * price[item]
                        if cost - pool_then - due[taken] >= most or cost + leaving[taken] + fresh - pool_then >= budget:
                            continue
                        wait(fields, words, item, -change[item])
                        pool = pool_then
                        depth += 1
                        at[depth], arc[depth], evicts[depth], item_of[depth] = taken, -1, 2, item
                        forward = True
                        break
                if forward:
                    continue
                item = item_of[depth]
                if evicts[depth] == 0 and item < items:
                    wait(fields, words, item, -1)
                    cost -= extra_cost[item]
                    pool -= price[item]
                    filled[item] -= 1
                elif evicts[depth] == 2:
                    wait(fields, words, item, change[item])
                    pool += change[item] * price[item]
                depth -= 1
            if outcome != DONE:
                filled[:] = 0
                break
        if outcome == DONE:
            current += 1
    progress[0], progress[1] = current, found
    return outcome
