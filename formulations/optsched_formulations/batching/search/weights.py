"""Weights of items of which no batch holds more than a number: `packing` for the items of classes."""

from __future__ import annotations

from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.packing import HeldClass, packing


def weights_of(classes: Classes, seconds: float) -> tuple[list[int], int]:
    """Return a weight for every item, and the most that a batch holds; they are sought for some time."""
    held = [
        HeldClass(len(members), [classes.size[first + k] for k in range(kind[1])])
        for first, members, kind in zip(classes.first, classes.members, classes.kinds, strict=True)
    ]
    found = packing(held, classes.capacity, seconds)
    if found is None:
        return classes.size, classes.capacity
    return [found.weights.get((c, k), 0) for c, k in zip(classes.owner, classes.token, strict=True)], found.most
