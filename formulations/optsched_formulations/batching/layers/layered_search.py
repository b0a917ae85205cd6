"""Certificates of a makespan that is known: prices for each number of batches, for the checker's own search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optsched.bounds.volume import volume_bound
from optsched.model.instance import Instance
from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.climb_kernel import Begin
from optsched_formulations.batching.layers.graph import merged_graph
from optsched_formulations.batching.layers.walks import MOST_PAID, Walks, most_steps
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.resident_graph import TooLargeError
from optsched_formulations.batching.search.resident_search import work_from
from optsched_formulations.batching.search.resident_walk import scale_of

_MOST_NODES, _MOST_PLACES = 150_000, 8_000_000
"""Nodes of the graph, and nodes times batches."""
_MOST_COUNTS = 60
"""Numbers of batches that are worth prices of their own."""
_ROUNDS = 300
_GRAPH_SHARE = 0.3


def layered_certificate(
    instance: Instance, classes: Classes, bound: int, pairs: int, deadline: float
) -> dict[str, Any] | None:
    """Return what `optsched.check` needs to prove a bound on the makespan by a search with ``pairs`` pairs.

    None where batches have no base, or if the graph of resident sets or the time is too large for it.
    """
    base, left = classes.base_ps, deadline - now_s()
    if base == 0 or left <= 0:
        return None
    most = (bound - classes.constant_ps - 1) // base
    fewest = max(volume_bound(instance).batches, *(output for _, output, _ in classes.kinds))
    scale = scale_of(classes)
    steps = most_steps(max(most, fewest), len(instance.requests))
    largest = scale * max(base, *classes.fill_ps, *classes.decode_ps)
    if most - fewest >= _MOST_COUNTS or largest * steps > MOST_PAID:
        return None
    try:
        graph = merged_graph(classes, min(_MOST_NODES, _MOST_PLACES // (most + 2)), now_s() + _GRAPH_SHARE * left)
    except TooLargeError:
        return None
    walks, work = Walks(graph, scale, max(most, 1)), work_from(classes)
    price, enough, found = walks.first_prices(most), (bound - classes.constant_ps) / base, []
    for count in range(most, fewest - 1, -1):
        until = now_s() + (deadline - now_s()) / (count - fewest + 1)
        price = walks.improved(price, Begin(0, walks.fresh, count, count), enough, _ROUNDS, _over(until))[1]
        # The checker's prices also pay for the constant work, which is left out here.
        prices = [
            one + scale * rest for one, rest in zip(walks.rounded(price, count)[count].tolist(), work, strict=True)
        ]
        found.append({"count": count, "item_prices": prices})
    return {"kind": "layered_search", "bound": bound, "scale": scale, "pairs": pairs, "batches": found[::-1]}


def _over(until: float) -> Callable[[], bool]:
    return lambda: now_s() > until
