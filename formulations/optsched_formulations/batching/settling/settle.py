"""One number of batches after the other, by what proves most of it: the steps of `layer_search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from optsched.solvers.formulation import Outcome, Task, UnsupportedError
from optsched.solvers.interrupt import until_interrupted
from optsched_formulations.batching.layers.graph import MergedGraph
from optsched_formulations.batching.layers.graph_layers import GraphRelaxation
from optsched_formulations.batching.layers.outputs import Steps, by_output
from optsched_formulations.batching.layers.pattern_layers import PatternRelaxation
from optsched_formulations.batching.layers.walks import FEW_PLACES, Walks
from optsched_formulations.batching.settling.by_block import BlockSettler
from optsched_formulations.batching.settling.by_core import settle_cores, settle_large_core
from optsched_formulations.batching.settling.by_item import ItemSettler
from optsched_formulations.batching.settling.by_size import settle_sizes
from optsched_formulations.batching.settling.known import Known
from optsched_formulations.batching.settling.loops import compile_graphs, compile_patterns

_FEW_PACKED = 12
"""Of no more requests, where the cache holds many at a time, arcs are packed, without a large core."""


class Sizes(NamedTuple):
    """Of graphs: the parameters of `LayerSearch`."""

    graph: int
    few_places: int | None
    cores: Sequence[tuple[int, float]]
    large_core: int


def settle(task: Task, sizes: Sizes) -> Outcome:
    """Return what is known of a task that `layer_search` covers when all numbers are settled, or time is over."""
    known = Known(task)
    until_interrupted(lambda _: _settle(known, sizes))
    return known.outcome()


def _settle(known: Known, sizes: Sizes) -> None:
    """Settle one number of batches after the other."""
    few_places = FEW_PLACES if sizes.few_places is None else sizes.few_places
    sized = False
    if known.exact and not _small(known, sizes):
        settle_cores(known, sizes.cores)
        # Where many are resident blocks prove more.
        if known.open and not known.many_resident:
            sized = settle_sizes(known, known.most_nodes(sizes.graph), few_places)
    if not known.open:
        return
    graph = known.graph(known.by_input, known.most_nodes(sizes.graph))
    if graph is not None:
        _settle_on(graph, known, few_places)
        return
    # HiGHS packs the arcs of few requests soon: it needs all the time that there is.
    packs = known.many_resident and len(known.rest.requests) <= _FEW_PACKED
    if known.exact and not packs and not sized:
        settle_large_core(known, known.most_nodes(sizes.large_core))
    compile_patterns()
    if known.open:
        blocks = PatternRelaxation(known.classes, known.scale, known.budget, known.task.seed)
        BlockSettler(known).settle(blocks)


def _small(known: Known, sizes: Sizes) -> bool:
    """Return whether the graph of all requests is as small as those of cores."""
    most_nodes = max((nodes for nodes, _ in sizes.cores), default=0)
    return known.graph(known.by_input, most_nodes) is not None


def _settle_on(graph: MergedGraph, known: Known, few_places: int) -> None:
    """Settle numbers of batches by prices of items on the graph of all requests."""
    if not known.exact:
        raise UnsupportedError("times beyond 64 bits")
    compile_graphs()
    walks = Walks(graph, known.scale, known.reach, few_places)

    def named(steps: Steps, _: int) -> Steps:
        return by_output(known.by_input, known.classes, steps)

    ItemSettler(known, named, partial=False).settle(GraphRelaxation(graph, walks, known.task.seed, known.start))
