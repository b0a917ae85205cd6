"""Certificates of a bound that is known already, for the checker's own searches: cheap ones first.

Whatever has found the bound, these are weights and prices with which the checker finds no schedule below it:
`packing`'s weights for a search request by request, and for the makespan prices on the graph of resident sets, for each
number of batches or, by a linear programme, for all of them. None of these need be good for the bound to hold; they
decide how long the checker searches.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from optsched.bounds.volume import volume_bound
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.stopwatch import now_s
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.request_search import request_certificate
from optsched_formulations.batching.search.weights import weights_of

_STATES_A_SECOND, _SLOWER = 30_000, 0.5
"""States that the checker looks at in a second, about; and of many a share of those, as far as a few tell."""
_FEW_STATES, _MOST_STATES = 20_000, 4_000_000
"""States that the checker tries before prices, and at most."""
_PAUSE_STEPS_A_SECOND, _MOST_PAUSE_STEPS = 20_000, 200_000
"""Steps of a search with free pauses that the checker takes in a second, about, a third of the time; and at most."""
_LOOKS_A_SECOND, _MOST_LOOKS = 3_000_000, 200_000_000
"""Looks at pairs of a state and a pool that the checker takes in a second, about, and at most."""
_SEED = 0
_PACKING_SHARE, _LAYERED_SHARE, _GRAPH_SHARE, _PRICE_SHARE = 0.1, 0.6, 0.3, 0.6
"""Shares of the time left for weights, for prices by number of batches, for the graph, and for prices on it."""
_MOST_PAUSING = 800_000
_PART_MORE = 8
"""By this part there may be more batches than volume needs."""


def optimum_certificates(
    instance: Instance, objective: Objective, bound: int, seconds: float, workers: int
) -> Iterator[dict[str, Any]]:
    """Yield certificates of a bound for the checker to try, until a time limit.

    They are of use where only memory binds; the checker refuses others at once.
    """
    if len(instance.cost.affine) > 1 or instance.rules.chunked_prefill or not instance.rules.hybrid:
        return
    deadline = now_s() + seconds
    if objective == Objective.MAKESPAN and not instance.offline:
        steps = min(_MOST_PAUSE_STEPS, int(seconds * _PAUSE_STEPS_A_SECOND) + 1)
        yield {"kind": "free_pauses", "bound": bound, "steps": steps}
    classes = Classes(instance, objective)
    prices = None
    if classes.weighted and instance.offline:
        from optsched_formulations.batching.pairs.best_prices import batch_prices  # noqa: PLC0415  # loads a solver

        batches = volume_bound(instance).batches
        prices = batch_prices(classes, batches + batches // _PART_MORE, seconds * _PACKING_SHARE)
    a_second: float = _STATES_A_SECOND
    weights, most = weights_of(classes, seconds * _PACKING_SHARE)
    by_request = request_certificate(classes, bound, _FEW_STATES, weights, most, prices)
    if not classes.weighted or not instance.offline:
        begun = now_s()
        yield by_request
        # The more requests, the longer each state takes, and longer where they arrive.
        a_second = min(a_second, _SLOWER * _FEW_STATES / max(now_s() - begun, _FEW_STATES / _STATES_A_SECOND))
    if not classes.weighted:
        if instance.offline and now_s() < deadline:
            yield from _layered(instance, bound, deadline, workers)
        priced = _priced(instance, classes, bound, deadline, workers) if now_s() < deadline else None
        if priced is not None:
            yield priced
    if now_s() < deadline:
        states = min(_MOST_STATES, max(_FEW_STATES, (deadline - now_s()) * a_second))
        yield by_request | {"states": int(states)}


def _layered(instance: Instance, bound: int, deadline: float, workers: int) -> Iterator[dict[str, Any]]:
    """Yield certificates of kind ``layered_search``: of the largest requests, then of all."""
    # Compiled code takes a while to load.
    from optsched_formulations.batching.layers.layered_search import LayeredCertificates  # noqa: PLC0415

    def until() -> float:
        return now_s() + _LAYERED_SHARE * (deadline - now_s())

    looks = min(_MOST_LOOKS, int((deadline - now_s()) * _LOOKS_A_SECOND) + 1)
    certificates = LayeredCertificates(instance, bound, looks)
    for make in (partial(certificates.of_core, workers=workers), certificates.of_all):
        made = make(until(), seed=_SEED)
        if made is not None:
            yield made


def _priced(instance: Instance, classes: Classes, bound: int, deadline: float, workers: int) -> dict[str, Any] | None:
    """Return a certificate of kind ``resident_search`` for the makespan; None if the graph is too large."""
    from optsched_formulations.batching.search.resident_graph import (  # noqa: PLC0415  # as above
        TooLargeError,
        build_graph,
        growing_graphs,
    )
    from optsched_formulations.batching.search.resident_search import priced_certificate  # noqa: PLC0415
    from optsched_formulations.batching.search.resident_walk import evaluate, price  # noqa: PLC0415

    graphs = list(growing_graphs(classes, now_s() + _GRAPH_SHARE * (deadline - now_s()), track=instance.offline))
    if not graphs:
        return None
    graph = graphs[-1]
    prices = price(graph, _PRICE_SHARE * (deadline - now_s()), workers)
    if prices is not None and not instance.offline:
        # Prices hold on the graph with pauses as well: see `state_search`.
        try:
            graph = build_graph(classes, frozenset(), _MOST_PAUSING, deadline, pauses=True)
        except TooLargeError:
            return None
        prices = evaluate(graph, prices.item, np.zeros(len(graph.nodes), dtype=np.int64))
    return None if prices is None else priced_certificate(graph, prices, bound)
