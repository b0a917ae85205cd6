"""The graph of resident sets and its prices as a space of states: a node and a pool.

A state is a node of `resident_graph` and a pool: how many requests of every priced item wait, for their first fill or
for a refill. The prices make a consistent estimate of what is still to come,

    h(node, pool) = Σ over the pool of λ, μ + least priced cost from the node to the sink,

since every arc's reduced cost is ≥ 0 (`resident_walk`).
"""

from __future__ import annotations

import numpy as np

from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched_formulations.batching.search.arrivals import arrivals
from optsched_formulations.batching.search.node_kernel import (
    CHANGE,
    GATE,
    HEAD,
    ITEM,
    KIND,
    MASK,
    REDUCED,
    SHIFT,
    WORD,
    WORK,
    Arcs,
)
from optsched_formulations.batching.search.request_kernel import NO_REQUESTS
from optsched_formulations.batching.search.resident_graph import ResidentGraph
from optsched_formulations.batching.search.resident_walk import Prices
from optsched_formulations.batching.search.state_kernel import NONE
from optsched_formulations.batching.search.state_space import Space
from optsched_formulations.batching.search.state_steps import BEGIN, EVICT, FILL, RUN

_BITS = 64


def node_space(instance: Instance, graph: ResidentGraph, prices: Prices) -> Space:
    """Lay out the pool in fields of bits, as wide as counts need, none across words."""
    classes = graph.classes
    word, shift = np.zeros(len(classes.size), dtype=np.int64), np.zeros(len(classes.size), dtype=np.uint64)
    width = [len(classes.members[owner]).bit_length() for owner in classes.owner]
    words, used = 1, _BITS
    for item in graph.priced:
        if used + width[item] > _BITS:
            words, used = words + 1, 0
        word[item], shift[item] = words - 1, used
        used += width[item]
    source, goal = np.zeros(words, dtype=np.uint64), np.zeros(words, dtype=np.uint64)
    goal[0] = graph.sink
    for first, members in zip(classes.first, classes.members, strict=True):
        if first in graph.priced:
            source[word[first]] += np.uint64(len(members) << int(shift[first]))
    arrival, place = arrivals(instance, classes, prices.scale)
    order = np.argsort(graph.tail, kind="stable")
    kind, items = graph.kind[order], graph.item[order]
    in_pool = np.zeros(len(classes.size), dtype=bool)
    in_pool[graph.priced] = True
    begins = np.searchsorted(graph.tail[order], np.arange(len(graph.nodes) + 1)).astype(np.int64)
    columns = {
        HEAD: graph.head[order],
        REDUCED: prices.reduced[order],
        KIND: kind,
        ITEM: items,
        WORD: word[items],
        SHIFT: shift[items].astype(np.int64),
        MASK: np.array([(1 << bits) - 1 for bits in width], dtype=np.int64)[items],
        CHANGE: np.where((kind == FILL) & in_pool[items], -1, np.where(kind == EVICT, 1, 0)),
        WORK: _work(graph)[order] * prices.scale,
        GATE: np.where((kind == FILL) & (np.array(classes.token)[items] == 1), np.array(classes.owner)[items], -1),
    }
    table = np.column_stack([columns[column] for column in sorted(columns)]).astype(np.int64)
    arcs = Arcs(begins, table, arrival[0], place)
    return Space(
        arcs=arcs,
        requests=NO_REQUESTS,
        source=source,
        goal=goal,
        label=0,
        clock=NONE,
        breadth=int(np.diff(begins).max()) + arrival.shape[1],
        scale=prices.scale,
        bound=prices.start,
        constant_ps=prices.constant_ps,
    )


def _work(graph: ResidentGraph) -> Ints:
    """Return the time of every arc in ps, constant work included."""
    classes = graph.classes
    fill, decode = np.array(classes.fill_ps), classes.decode_ps
    work = np.where(graph.kind == FILL, fill[graph.item], np.where(graph.kind == RUN, classes.base_ps, 0))
    for arc in np.flatnonzero(graph.kind == BEGIN).tolist():
        work[arc] = sum(decode[i] for i in graph.nodes[graph.head[arc]][0])
    return work
