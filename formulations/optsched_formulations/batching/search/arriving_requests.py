"""Requests in order of arrival, as the searches with arrivals take them, and what their refills take."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.packing import HeldClass, packing
from optsched_formulations.batching.search.free_pauses_kernel import MOST_TOKENS, Requests

MOST_TIME = 1 << 60
"""Times that are added up stay below 64 bits."""


def arriving_requests(instance: Instance, order: list[int], seconds: float) -> Requests:
    """Return the requests in order of arrival.

    Raises
    ------
    UnsupportedError
        If numbers are too large.
    """
    classes = Classes(instance)
    owner = {request: c for c, members in enumerate(classes.members) for request in members}
    requests = [instance.requests[r] for r in order]
    outputs = [request.output for request in requests]
    if max(outputs) > MOST_TOKENS:
        raise UnsupportedError(f"more than {MOST_TOKENS} output tokens")
    volume = sum(len(m) * sum(classes.size[f : f + kind[1]]) for f, m, kind in _by_class(classes))
    weights, most = [classes.size], [min(classes.capacity, volume)]
    held = [HeldClass(len(m), [classes.size[f + k] for k in range(kind[1])]) for f, m, kind in _by_class(classes)]
    found = packing(held, classes.capacity, seconds)
    if found is not None and found.most > 0:
        pairs = zip(classes.owner, classes.token, strict=True)
        weights.append([found.weights.get((c, k), 0) for c, k in pairs])
        most.append(found.most)
    number, longest = len(order), max(outputs)
    size = np.zeros((number, longest + 2), dtype=np.int64)
    done = np.zeros((number, longest + 1), dtype=np.int64)
    weight = np.zeros((len(weights), number, longest + 1), dtype=np.int64)
    arrivals = instance.arrivals_ps
    arrival = [arrivals[r] for r in order]
    steps = [
        [classes.fill_ps[item] if k == 1 else classes.decode_ps[item] for item, k in _items(classes, owner[r])]
        for r in order
    ]
    work = sum(map(sum, steps))
    total = max(classes.base_ps * number * MOST_TOKENS + work + max(arrival), volume * max(most) * number * MOST_TOKENS)
    if total > MOST_TIME or max(map(sum, weights)) * max(most) * number * MOST_TOKENS > MOST_TIME:
        raise UnsupportedError("times beyond 64 bits")
    for place, r in enumerate(order):
        for item, k in _items(classes, owner[r]):
            size[place, k] = classes.size[item]
            done[place, k] = done[place, k - 1] + steps[place][k - 1]
            for v, each in enumerate(weights):
                weight[v, place, k] = weight[v, place, k - 1] + each[item]
    prompts = [request.input for request in requests]
    return Requests(
        request=np.array([arrival, [owner[r] for r in order], prompts, outputs], dtype=np.int64),
        size=size,
        done=done,
        weight=weight,
        most=np.array(most, dtype=np.int64),
        limits=np.array([min(classes.capacity, volume), classes.base_ps, work], dtype=np.int64),
    )


def refill_prices(instance: Instance, order: list[int]) -> Ints:
    """Return what a refill of each request takes beyond the decode in its place, after each number of tokens."""
    classes = Classes(instance)
    price = np.zeros((len(order), max(request.output for request in instance.requests) + 1), dtype=np.int64)
    place = {r: number for number, r in enumerate(order)}
    for first, members, (_, output, _) in _by_class(classes):
        for r in members:
            price[place[r], 1:output] = [classes.extra_ps(first + k) for k in range(1, output)]
    return price


def _by_class(classes: Classes) -> Iterator[tuple[int, list[int], tuple[int, int, int]]]:
    """Yield the first item, the members and the kind of every class."""
    return zip(classes.first, classes.members, classes.kinds, strict=True)


def _items(classes: Classes, owner: int) -> Iterator[tuple[int, int]]:
    """Yield the items of a class with their token counts."""
    first = classes.first[owner]
    return ((first + k - 1, k) for k in range(1, classes.kinds[owner][1] + 1))
