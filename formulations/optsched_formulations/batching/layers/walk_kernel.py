"""Least priced walks through the merged graph in a given number of batches, compiled: in integers, or in floats."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.graph_kernel import Arcs

Costs = npt.NDArray[np.int64] | npt.NDArray[np.float32]
"""Times, exact, or in batches."""


@compiled
def close(arcs: Arcs, end_cost: Costs, none: int | np.float32, least: Costs) -> None:
    """Write the cost of taking ends until a node is empty, for every node; ``end_cost`` is that of taking one."""
    least[0] = 0
    for node in range(1, len(least)):
        best = none
        for arc in range(arcs.evict_begin[node], arcs.evict_begin[node + 1]):
            item = arcs.evict_item[arc]
            if arcs.change[item] < 0:
                best = min(best, end_cost[item] + least[arcs.evict_head[arc]])
        least[node] = best


@compiled
def walk_back(  # noqa: PLR0917 - compiled functions take positions
    arcs: Arcs,
    fill_cost: Costs,
    evict_cost: Costs,
    run_cost: Costs,
    none: int | np.float32,
    least: Costs,
    composing: Costs,
    batches: int,
) -> None:
    """Write the least priced cost of being empty after exactly t more batches, for every node and t up to ``batches``.

    ``fill_cost[t]`` and ``evict_cost[t]`` are of the batch with which t are left, ``run_cost`` is that of a batch, by
    node. ``least[t]`` is that of a node before evictions, ``composing[t]`` after them, and ``none``, as good as
    infinite, what is beyond reach. Row 0 of ``least`` is given.
    """
    fits, fill_begin, fill_head, fill_item, evict_begin, evict_head, evict_item, _, run_head = arcs
    nodes = len(fits)
    for t in range(1, batches + 1):
        fill_costs, evict_costs = fill_cost[t], evict_cost[t]
        before, here, open_ = least[t - 1], least[t], composing[t]
        for node in range(nodes - 1, -1, -1):
            best = none
            if fits[node]:
                if run_head[node] >= 0:
                    best = min(best, run_cost[node] + before[run_head[node]])
                for arc in range(fill_begin[node], fill_begin[node + 1]):
                    best = min(best, fill_costs[fill_item[arc]] + open_[fill_head[arc]])
            open_[node] = best
        for node in range(nodes):
            best = open_[node]
            for arc in range(evict_begin[node], evict_begin[node + 1]):
                best = min(best, evict_costs[evict_item[arc]] + here[evict_head[arc]])
            here[node] = best


@compiled
def steps_of(  # noqa: PLR0917
    arcs: Arcs,
    fill_cost: Costs,
    evict_cost: Costs,
    run_cost: Costs,
    least: Costs,
    composing: Costs,
    batches: int,
    node: int,
    balance: Ints,
    ran: Ints,
) -> None:
    """Follow the least priced walk from a node, and write what it does in the batch with which t are left.

    To ``balance[t]`` is added how often it evicts items more than it fills them, less the ends that it takes, in row 1
    those after the last batch, too; ``ran[t]`` is the node that runs.
    """
    _, fill_begin, fill_head, fill_item, evict_begin, evict_head, evict_item, change, run_head = arcs
    for t in range(batches, 0, -1):
        while least[t, node] < composing[t, node]:
            chosen = -1
            for arc in range(evict_begin[node], evict_begin[node + 1]):
                if chosen < 0 or (
                    evict_cost[t, evict_item[arc]] + least[t, evict_head[arc]]
                    < evict_cost[t, evict_item[chosen]] + least[t, evict_head[chosen]]
                ):
                    chosen = arc
            balance[t, evict_item[chosen]] += change[evict_item[chosen]]
            node = int(evict_head[chosen])
        while True:
            chosen = -1
            for arc in range(fill_begin[node], fill_begin[node + 1]):
                if chosen < 0 or (
                    fill_cost[t, fill_item[arc]] + composing[t, fill_head[arc]]
                    < fill_cost[t, fill_item[chosen]] + composing[t, fill_head[chosen]]
                ):
                    chosen = arc
            if chosen < 0 or (
                run_head[node] >= 0
                and run_cost[node] + least[t - 1, run_head[node]]
                <= fill_cost[t, fill_item[chosen]] + composing[t, fill_head[chosen]]
            ):
                break
            balance[t, fill_item[chosen]] -= 1
            node = int(fill_head[chosen])
        if run_head[node] < 0:
            break
        ran[t] = node
        node = int(run_head[node])
    while node > 0:
        chosen = -1
        for arc in range(evict_begin[node], evict_begin[node + 1]):
            if change[evict_item[arc]] < 0 and (
                chosen < 0
                or evict_cost[0, evict_item[arc]] + least[0, evict_head[arc]]
                < evict_cost[0, evict_item[chosen]] + least[0, evict_head[chosen]]
            ):
                chosen = arc
        if chosen < 0:
            break
        balance[1, evict_item[chosen]] -= 1
        node = int(evict_head[chosen])
