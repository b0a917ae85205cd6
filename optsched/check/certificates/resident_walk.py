r"""Certificates of kind ``resident_walk``: a makespan bound from prices that no cycle of cache contents beats.

`contents` says which problems this is about, and what walks through the graph of cache contents are. All requests
arrive together, and if eviction is allowed, no refill takes less time than the decode in its place. So states without
pauses suffice.

*Work.* The makespan of a schedule without idle time is::

    W + base J + Σ extras,

where J is its number of batches, W the time of all first fills and of the decodes of all later tokens, and the extras
are what its refills take beyond these decodes. It refills each (request, k) at most once.

*Bound.* The certificate has ``item_prices``, an integer for every item, group by group, k ascending; and ``tracked``,
the numbers of the tracked groups (from 0; none if it is missing); and the integer ``scale`` ≥ 1 (1 if it is missing):
costs are in ps / scale. The prices pay for what is not in W: the price of an item in the sense of `contents` is the
stated one plus the first fill or decode of this item and all its successors. With Π the sum of the stated prices of
the first items of all requests, scale W + Π is paid. If no cycle that the source reaches has a negative priced cost,
then the walks from the source to the sink that have a move have a least priced cost D, and::

    scale (base J + Σ extras) ≥ Π + D.

If nothing is tracked, source and sink are the same state, and D ≥ 0 is what leaving it and coming back costs.

*Lift.* The left side takes few values near the right side. J is at least the blocks that all items hold in their
batches over the blocks that there are, and at least each O. A walk that refills item i costs at least::

    D(i) = min D(source → tail) + priced cost + D(head → sink)    over all refills tail → head of i,

so it takes the time (Π + D(i)) / scale or more. The least t ≥ (Π + D) / scale with t = base J + Σ extras is therefore
a lower bound, where all J that are large enough count, and all sums of extras of items with Π + D(i) ≤ scale t, each
at most as often as its group has requests. Items are admitted by increasing D(i), and the sums of either half of them
are listed; where these become too many, the bound is not lifted further.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from optsched.check.certificates.shared.contents import (
    Graph,
    Item,
    Kind,
    Prices,
    Rules,
    explore,
    items_of,
    offline,
    prices_of,
    require_memory_only,
)
from optsched.check.certificates.shared.least import least_from_source, least_to_sink
from optsched.check.certificates.shared.refills import require_dear_refills
from optsched.check.problem import Problem, pieces_of
from optsched.check.reading import UnprovedError
from optsched.model.objectives import Objective

MOST_SUMS = 50_000
"""Where either half of the refilled items has more sums of extras, the bound is not lifted further."""
_KIND = "resident_walk"


def resident_walk_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the makespan bound of a ``resident_walk`` certificate; the module says why it holds."""
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind {_KIND} bounds the makespan, the objective is {objective.value}")
    if not offline(problem):
        raise UnprovedError(f"kind {_KIND} needs requests that arrive at the same time")
    require_memory_only(_KIND, problem)
    items = items_of(problem, objective)
    require_dear_refills(_KIND, problem)
    stated = prices_of(certificate, items)

    work = [price + stated.scale * rest for price, rest in zip(stated.items, _rests(items), strict=True)]
    graph = explore(Rules(problem, objective, items, Prices(work, stated.tracked, stated.scale)))
    paid = sum(item.requests * price for item, price in zip(items, stated.items, strict=True) if item.k == 1)
    times = {refill: -(-(paid + cost) // stated.scale) for refill, cost in _least_through(graph, items).items()}
    refilling = {refill: time for refill, time in times.items() if refill is not None}
    constant = sum(item.requests * item.work_ps for item in items)
    return constant + _lifted(problem, items, refilling, min(times.values()))


def _rests(items: Sequence[Item]) -> list[int]:
    """Return for every item the work of it and its successors."""
    found: list[int] = []
    for _, members in groupby(items, key=lambda item: item.group):
        found.extend([*accumulate(item.work_ps for item in reversed(list(members)))][::-1])
    return found


def _least_through(graph: Graph, items: Sequence[Item]) -> dict[int | None, int]:
    """Return the least cost of walks from source to sink with a refill of each item, and None: with another move."""
    away, home = least_from_source(graph), least_to_sink(graph)
    least: dict[int | None, int] = {}
    for start, moves in zip(away, graph.moves, strict=True):
        for move in moves:
            end = home[move.head]
            if start is not None and end is not None:
                refill = move.item if move.kind is Kind.FILL and items[move.item].k > 1 else None
                through = start + move.priced + end
                least[refill] = min(through, least.get(refill, through))
    return least


# The lift --------------------------------------------------------------------------------------------------


def _lifted(problem: Problem, items: Sequence[Item], refilling: Mapping[int, int], time: int) -> int:
    """Return the least value of base J + Σ extras that is at least ``time``, or a lower bound on it.

    ``refilling`` says for each item that can be refilled how large the value is at least if it is.
    """
    [(base, _)] = pieces_of(problem.cost)
    if base == 0:
        return time
    blocks = sum(item.requests * item.blocks for item in items)
    fewest = max(-(-blocks // problem.blocks), *(item.k for item in items))
    aim = base * max(fewest, -(-time // base))
    runs = range(base * fewest, aim + 1, base)
    sums, others = [0], [0]
    for value, number in sorted((value, number) for number, value in refilling.items() if value < aim):
        if time < value:
            found = _least(time, runs, sums, others)
            if found < value:
                return found
            time = value
        item = items[number]
        added = [item.extra_ps * times for times in range(item.requests + 1)]
        longer = {total for one in sums for extra in added if (total := one + extra) <= aim - runs[0]}
        if len(longer) > MOST_SUMS:
            return time
        sums, others = others, sorted(longer)
    return _least(time, runs, sums, others)


def _least(time: int, *summands: Sequence[int]) -> int:
    """Return the least sum of one number from each of three ascending lists that is at least ``time``."""
    first, second, third = sorted(summands, key=len)
    return min(
        one + two + third[place]
        for one in first
        for two in second
        if (place := bisect_left(third, time - one - two)) < len(third)
    )
