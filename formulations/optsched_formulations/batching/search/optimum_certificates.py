"""Certificates of a bound that is known already, for the checker's own searches: cheap ones first.

Whatever has found the bound, these are weights and prices with which the checker finds no schedule below it:
`packing`'s weights for a search request by request, and for the makespan the prices of a linear programme on the graph
of resident sets. Neither needs to be good for the bound to hold; they decide how long the checker searches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.stopwatch import now_s
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.packing import HeldClass, packing
from optsched_formulations.batching.search.resident_graph import TooLargeError, build_graph, growing_graphs
from optsched_formulations.batching.search.resident_search import priced_certificate
from optsched_formulations.batching.search.resident_walk import evaluate, price

_STATES_A_SECOND = 30_000
"""States that the checker looks at in a second, about."""
_FEWEST_STATES, _MOST_STATES = 20_000, 4_000_000
_PACKING_SHARE, _SEARCH_SHARE, _PRICE_SHARE = 0.1, 0.3, 0.7
"""Shares of the time left: for weights; for the checker's search with them, where prices may follow; for prices."""
_MOST_PAUSING = 800_000


def optimum_certificates(
    instance: Instance, objective: Objective, bound: int, seconds: float, workers: int
) -> Iterator[dict[str, Any]]:
    """Yield certificates of a bound for the checker to try, until a time limit.

    They are of use where only memory binds; the checker refuses others at once.
    """
    if len(instance.cost.affine) > 1 or instance.rules.chunked_prefill or not instance.rules.hybrid:
        return
    deadline = now_s() + seconds
    classes = Classes(instance, objective)
    priced = not classes.weighted
    share = _SEARCH_SHARE if priced else 1.0
    states = min(_MOST_STATES, max(_FEWEST_STATES, int(seconds * share * _STATES_A_SECOND)))
    yield request_certificate(classes, bound, states, seconds * _PACKING_SHARE)
    if not priced or now_s() > deadline:
        return
    graphs = list(growing_graphs(classes, _part(deadline, _PRICE_SHARE), track=instance.offline))
    if not graphs:
        return
    graph = graphs[-1]
    prices = price(graph, _PRICE_SHARE * (deadline - now_s()), workers)
    if prices is not None and not instance.offline:
        # Prices hold on the graph with pauses as well: see `state_search`.
        try:
            graph = build_graph(classes, frozenset(), _MOST_PAUSING, deadline, pauses=True)
        except TooLargeError:
            return
        prices = evaluate(graph, prices.item, np.zeros(len(graph.nodes), dtype=np.int64))
    if prices is not None:
        yield priced_certificate(graph, prices, bound)


def request_certificate(classes: Classes, bound: int, states: int, seconds: float) -> dict[str, Any]:
    """Return a certificate of kind ``request_search``; weights of tokens are sought for some time."""
    held = [
        HeldClass(len(members), [classes.size[first + k] for k in range(output)])
        for first, members, (_, output, _) in zip(classes.first, classes.members, classes.kinds, strict=True)
    ]
    found = packing(held, classes.capacity, seconds)
    weights, most = classes.size, classes.capacity
    if found is not None:
        numbers = zip(classes.owner, classes.token, strict=True)
        weights, most = [found.weights.get(number, 0) for number in numbers], found.most
    return {
        "kind": "request_search",
        "bound": bound,
        "states": states,
        "shares": [weight * classes.base_ps // most for weight in weights],
    }


def _part(deadline: float, share: float) -> float:
    now = now_s()
    return now + share * max(0.0, deadline - now) if math.isfinite(deadline) else deadline
