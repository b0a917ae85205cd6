"""Certificates of kind ``request_search``: weights of tokens for the checker's own search, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.pairs.batch_prices import UNIT, BatchPrices

_COARSER = 12
"""Bits of prices of batches that a certificate leaves out."""


def request_certificate(  # noqa: PLR0917
    classes: Classes,
    bound: int,
    states: int,
    weights: Sequence[int],
    most: int,
    prices: BatchPrices | None = None,
) -> dict[str, Any]:
    """Return a certificate of kind ``request_search``, by weights of items of which no batch holds more than ``most``.

    Blocks will do, with the cache for ``most``; `weights.weights_of` has better ones.
    """
    stated = {
        "kind": "request_search",
        "bound": bound,
        "states": states,
        "shares": [weight * classes.base_ps // most for weight in weights],
    }
    if prices is None:
        return stated
    return stated | {"unit": UNIT >> _COARSER, "prices": (prices.item >> _COARSER).tolist()}
