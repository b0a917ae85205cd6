"""Certificates of kind ``request_search``: weights of tokens for the checker's own search, request by request."""

from __future__ import annotations

from typing import Any

from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.packing import HeldClass, packing
from optsched_formulations.batching.pairs.batch_prices import UNIT, BatchPrices

_COARSER = 12
"""Bits of prices of batches that a certificate leaves out."""


def request_certificate(
    classes: Classes, bound: int, states: int, seconds: float, prices: BatchPrices | None = None
) -> dict[str, Any]:
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
    stated = {
        "kind": "request_search",
        "bound": bound,
        "states": states,
        "shares": [weight * classes.base_ps // most for weight in weights],
    }
    if prices is None:
        return stated
    return stated | {"unit": UNIT >> _COARSER, "prices": (prices.item >> _COARSER).tolist()}
