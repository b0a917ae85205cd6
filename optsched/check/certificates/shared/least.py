"""Least priced costs of ways through the graph of cache contents, where no cycle is negative."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from optsched.check.certificates.shared.contents import Graph
from optsched.check.reading import UnprovedError

_ROUNDS = 16
"""Rounds of correcting labels between two looks for a cycle."""

_Arcs = list[list[tuple[int, int]]]
"""For every state the heads and priced costs of its moves."""


def least_from_source(graph: Graph) -> list[int | None]:
    """Return the least priced cost of a way from the source to every state."""
    forwards = [[(move.head, move.priced) for move in leaving] for leaving in graph.moves]
    return _least_costs(forwards, graph.order, graph.source)


def least_to_sink(graph: Graph) -> list[int | None]:
    """Return the least priced cost of a way from every state to the sink, None where there is none."""
    backwards: _Arcs = [[] for _ in graph.moves]
    for tail, leaving in enumerate(graph.moves):
        for move in leaving:
            backwards[move.head].append((tail, move.priced))
    return _least_costs(backwards, graph.order[::-1], graph.sink)


def _least_costs(arcs: _Arcs, order: Sequence[int], start: int) -> list[int | None]:
    """Return the least cost of a way from ``start`` to every state, None where there is none.

    Labels are corrected in rounds, each of which goes on from those that have changed, in ``order``. Only runs lead
    backwards in it, so round n finds all ways with less than n runs, and least ways visit no state twice. A cycle of
    moves that labels came from is negative, and if there is a negative cycle, one shows at last (Cherkassky and
    Goldberg 1999, Negative-cycle detection algorithms).
    """
    place_of = [0] * len(arcs)
    for place, state in enumerate(order):
        place_of[state] = place
    labels: list[int | None] = [None] * len(arcs)
    previous: list[int | None] = [None] * len(arcs)
    changed = [False] * len(arcs)
    labels[start], changed[start] = 0, True
    # Places of those that have changed: for this round, a heap, and for the next one.
    here, later = [place_of[start]], list[int]()
    for number in range(1, len(arcs) + 1):
        while here:
            place = heappop(here)
            state = order[place]
            changed[state] = False
            label = labels[state]
            if label is None:
                continue
            for head, cost in arcs[state]:
                old, new = labels[head], label + cost
                if old is None or new < old:
                    labels[head], previous[head] = new, state
                    if not changed[head]:
                        changed[head] = True
                        if place_of[head] > place:
                            heappush(here, place_of[head])
                        else:
                            later.append(place_of[head])
        if not later:
            return labels
        if number % _ROUNDS == 0 and _circular(previous):
            break
        here, later = sorted(later), []
    raise UnprovedError("item_prices: a cycle of cache contents costs less than 0, so they prove nothing")


def _circular(previous: Sequence[int | None]) -> bool:
    """Whether going back from some state leads round in a cycle."""
    visit = [0] * len(previous)
    for start in range(1, len(previous) + 1):
        state: int | None = start - 1
        while state is not None and not visit[state]:
            visit[state] = start
            state = previous[state]
        if state is not None and visit[state] == start:
            return True
    return False
