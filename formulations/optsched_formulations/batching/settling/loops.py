"""Compiling what settles numbers of batches, on the smallest of instances."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.solvers.interrupt import until_interrupted, wait_interruptibly
from optsched_formulations.batching.layers.fillers import Fillers
from optsched_formulations.batching.layers.graph import merged_graph
from optsched_formulations.batching.layers.graph_layers import GraphPriced, GraphRelaxation
from optsched_formulations.batching.layers.pattern_layers import PatternRelaxation
from optsched_formulations.batching.layers.search import Relaxation, compile_rest, search_layers
from optsched_formulations.batching.layers.two_sided import Reach, TwoSided, arcs_back
from optsched_formulations.batching.layers.walks import Walks
from optsched_formulations.batching.memory_only import Classes


def compile_graphs() -> None:
    """Compile the loops of prices of items where Ctrl-C does not reach the compiler, which would complain of it."""
    _compile(_tiny_graph)


def compile_patterns() -> None:
    """Compile the loops of prices of blocks in the same way."""
    _compile(_tiny_patterns)


def _compile(relaxation: Callable[[Classes], Relaxation]) -> None:
    if until_interrupted(lambda _: wait_interruptibly(lambda: _run_loops(relaxation), lambda: None)):
        raise KeyboardInterrupt


def _tiny_patterns(tiny: Classes) -> PatternRelaxation:
    return PatternRelaxation(tiny, 1, 3, 0)


def _tiny_graph(tiny: Classes) -> GraphRelaxation:
    graph = merged_graph(tiny, 4)
    return GraphRelaxation(graph, Walks(graph, 1, 2, few_places=0), 0)


def _run_loops(relaxation: Callable[[Classes], Relaxation]) -> None:
    """Run every loop on the smallest of instances."""
    limits, rules, cost = Limits(2, 2, 2), Rules(chunked_prefill=False), CostModel(base=1, token=0)
    tiny = relaxation(Classes(Instance("compiled", limits, rules, cost, (Request(1, 2),))))
    priced = tiny.priced(tiny.improved(tiny.first_prices(2), 2, math.inf, 3, lambda: False), 2)
    space = priced.space()
    search_layers(space, 2, 3, None, lambda: False)
    compile_rest(space)
    if isinstance(tiny, GraphRelaxation) and isinstance(priced, GraphPriced):
        tiny.raised_together(2, 2, math.inf, 3, lambda: False)
        TwoSided(tiny, arcs_back(tiny.graph), priced).search(Reach(1, 1), 3, lambda: False)
        fillers = Fillers(tiny.graph.classes)
        fillers.filled(fillers.requests)
        fillers.best(np.zeros(len(fillers.requests)), np.zeros(1, dtype=np.int64))
