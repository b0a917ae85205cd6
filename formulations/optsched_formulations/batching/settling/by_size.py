"""Settling numbers of batches where only sizes tell requests apart: bounds alone."""

from __future__ import annotations

from optsched_formulations.batching.layers.graph_layers import GraphRelaxation
from optsched_formulations.batching.layers.outputs import prices_by_size
from optsched_formulations.batching.layers.walks import Walks
from optsched_formulations.batching.memory_only import Alike, Classes
from optsched_formulations.batching.settling.by_item import VISIT_SHARE
from optsched_formulations.batching.settling.known import Known
from optsched_formulations.batching.settling.loops import compile_graphs
from optsched_formulations.batching.settling.settler import LONG

_SHARE, _JOINT_SHARE = 0.8, 0.4
"""Shares of the time left for all of it, and for prices of all numbers of batches at once."""


def settle_sizes(known: Known, most_nodes: int, few_places: int) -> bool:
    """Bound the numbers of batches that are open; return whether the graph was small enough.

    Parameters
    ----------
    known
        What is known, which they add to: prices to begin with, too.
    most_nodes, few_places
        Of the graph, and where prices are found on near walks, as `layer_search.LayerSearch` has them.
    """
    sizes = Classes(known.rest, alike=Alike.SIZE)
    if len(sizes.kinds) == len(known.by_input.kinds):
        return False
    graph = known.graph(sizes, most_nodes)
    if graph is None:
        return False
    compile_graphs()
    walks, until = Walks(graph, known.scale, known.reach, few_places), known.at(_SHARE)
    relaxation = GraphRelaxation(graph, walks, known.task.seed)
    # First fills are charged like refills here; that is taken off.
    charged = known.classes.constant_ps - sizes.constant_ps
    enough = known.enough + charged / known.classes.base_ps
    fewest, most, soon = min(known.open), max(known.open), known.over(known.at(_JOINT_SHARE))
    price = relaxation.improved_together(fewest, most, enough, LONG, soon)
    for batches, proved in enumerate(walks.proved(price, most)):
        known.raise_bound(batches, proved - charged * known.scale)
    found, over = dict.fromkeys(known.open, price[0]), known.over(until)
    visited: set[int] = set()
    while known.open.keys() - visited and not over():
        batches = next(batches for batches in known.by_bound() if batches not in visited)
        visited.add(batches)
        soon = known.over(min(until, known.at(VISIT_SHARE)))
        better = relaxation.improved(price, batches, enough, LONG, soon)
        for each in (better, relaxation.raised(better, batches, enough, LONG, soon)):
            known.raise_bound(batches, walks.proved(each, batches)[batches] - charged * known.scale)
        found[batches] = better[0]
    if known.open:
        known.start = prices_by_size(known.by_input, sizes, found[known.least])
    return True
