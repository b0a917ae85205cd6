"""Certificates of an optimum that a search has found: prices with which the checker's own search ends soon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.resident_graph import ResidentGraph
from optsched_formulations.batching.search.resident_walk import Prices


def priced_certificate(graph: ResidentGraph, prices: Prices, bound: int) -> dict[str, Any]:
    """Return what `optsched.check` needs to prove ``bound`` by a search with the prices of `resident_walk`.

    These also have to pay for the constant work, which is left out there: that of an item for its first fill or decode,
    and those of all tokens that follow.
    """
    item = [int(price) + prices.scale * rest for price, rest in zip(prices.item, work_from(graph.classes), strict=True)]
    return {
        "kind": "resident_search",
        "bound": bound,
        "tracked": sorted(graph.tracked),
        "scale": prices.scale,
        "item_prices": item,
    }


def work_from(classes: Classes) -> list[int]:
    """Return the constant work of every item and of all tokens that follow, in ps."""
    work, rest = [0] * len(classes.size), 0
    for i in reversed(range(len(work))):
        rest *= classes.following[i] >= 0
        rest += classes.decode_ps[i] if classes.token[i] > 1 else classes.fill_ps[i]
        work[i] = rest
    return work


def plain_certificate(classes: Classes, shares: Sequence[int], scale: int, bound: int) -> dict[str, Any]:
    """Return what `optsched.check` needs to prove ``bound`` by a search, with prices that need no linear programme.

    ``shares`` are of a batch's base, in ps / ``scale``, for every item; those of a batch add up to at most the base.
    An item's price pays for its fill and the decodes of all tokens that follow, with all their shares. In a weighted
    sum each request pays its weight times this, and since it is unfinished until its last batch ends, every batch that
    it runs in may count with the whole base: every move then costs at least what those that take part in it pay.
    """
    item, rest = [0] * len(classes.size), 0
    for i in reversed(range(len(item))):
        rest *= classes.following[i] >= 0
        weight = classes.kinds[classes.owner[i]][2] if classes.weighted else 1
        share = scale * classes.base_ps if classes.weighted else shares[i]
        item[i] = rest + weight * (share + scale * classes.fill_ps[i])
        rest += weight * (share + scale * classes.decode_ps[i])
    return {"kind": "resident_search", "bound": bound, "scale": scale, "item_prices": item}
