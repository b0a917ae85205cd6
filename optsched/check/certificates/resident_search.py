r"""Certificates of kind ``resident_search``: a search of the checker's own finds no schedule below the bound.

`contents` says which problems this is about, and what walks through the graph of cache contents are. The objective is
the makespan, or one of these if all requests arrive together: the largest e2e latency, which then is the makespan, or
a sum of e2e latencies, weighted or not. If all arrive together, and eviction is allowed, no refill takes less time than
the decode in its place: then states without pauses suffice. If not, requests may pause.

*Exact states.* A schedule is a walk in the graph, but not the other way round. So search over pairs of a state and a
*pool*, which counts for every item how many requests wait to be filled with it: after an eviction, and for first items
of groups that are not tracked from the start. An eviction adds one to the pool, a fill takes one out, and is only
possible if there is one. A schedule is a walk from the source, with all requests of groups that are not tracked in the
pool, to the sink with an empty pool; it costs the objective.

*Arrivals.* The cost of a walk is then a clock, which begins with the earliest arrival. A batch begins at once or waits
for the next arrivals: at another time it could as well begin earlier with the same requests. A pair that is composing
a batch also counts the requests that have arrived when it begins. Requests of a group differ in nothing but their
arrival, so let them start in the order in which they arrive: if w have not started, the next one is the w-th last to
arrive, and it must be there. Whatever follows from a pair at some time is also possible from the same pair at an
earlier time, by waiting, and costs no more at the end. So one label suffices for every pair, the least cost.

*Estimate.* With the certificate's prices (``item_prices``, one for each item, group by group, k ascending; ``tracked``,
the numbers of the tracked groups, from 0, none if it is missing; ``scale`` ≥ 1, 1 if it is missing: costs are in
ps / scale) let D(s) be the least priced cost of a way in the graph from state s to the sink; that there is no negative
cycle on such a way is checked. A pair is then estimated to cost at least this much more::

    h(s, pool) = Σ over the pool, and over the tracked requests that wait, of the prices + D(s).

A move s → s' changes the sum of prices by what its priced cost leaves out of its cost. So its *reduced* cost,
cost + h' − h = priced cost + D(s') − D(s), is ≥ 0, and idle time only adds to it. Since h is 0 at the end, no way on
costs less than h, and the estimated total, cost + h, never decreases on a walk. If a state has no way to the sink,
neither have its pairs.

*Bound.* The certificate has ``bound``. The search (Dijkstra's, on reduced costs) looks at pairs by increasing estimated
total. Those whose total is ``bound`` or more are left out, for nothing less follows from them. If the sink with an
empty pool is not among the others, ``bound`` is proved. If it is, its cost is the least there is, and is proved. And if
more pairs are looked at than the checker is ready to look at, the total of the last one is proved.

The graph's walks that evict an item and refill it in the next batch are searched too. They are no schedules, but a
bound on them holds for schedules too, and where refills take no less time than decodes, keeping would cost no more, so
that the least cost is that of a schedule.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from optsched.check.certificates.shared.contents import (
    SUMS,
    Graph,
    Item,
    Kind,
    Move,
    Prices,
    Rules,
    explore,
    group_of,
    items_of,
    offline,
    prices_of,
    require_memory_only,
)
from optsched.check.certificates.shared.least import least_to_sink
from optsched.check.certificates.shared.packed import MOST_STATES_COMPILED, integers, packed
from optsched.check.certificates.shared.refills import require_dear_refills
from optsched.check.certificates.shared.resident_states import explore_graph, least_to_end, search_pairs
from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError, natural
from optsched.model.objectives import Objective

MOST_PAIRS = 2_000_000
"""A search looks at no more pairs; these take up to a minute."""
MOST_PAIRS_COMPILED = 5_000_000
"""Pairs of the compiled form: some seconds, and up to a gigabyte."""
_FEW_STATES, _FEW_PAIRS = 1_000, 10_000
"""With so few the readable form takes as long as to load the compiled one; to compile that takes nine seconds."""
_KIND = "resident_search"


def resident_search_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of a ``resident_search`` certificate; the module says why it holds."""
    together = offline(problem)
    if objective is not Objective.MAKESPAN:
        if objective not in SUMS | {Objective.MAX_E2E}:
            raise UnprovedError(f"kind {_KIND} bounds makespan and e2e latencies, the objective is {objective.value}")
        if not together:
            raise UnprovedError(f"kind {_KIND} needs requests that arrive at the same time for {objective.value}")
    require_memory_only(_KIND, problem)
    items = items_of(problem, objective)
    if together:
        require_dear_refills(_KIND, problem)
    prices = prices_of(certificate, items)
    bound = natural(certificate, "bound")
    if objective not in SUMS:
        if _few_prove(problem, items, prices, bound):
            return bound
        found = _compiled(problem, items, prices, bound)
        if found is not None:
            return found
    graph = explore(Rules(problem, objective, items, prices, pauses=not together))
    return _Search(graph, items, prices, _arrivals(problem, objective, prices.scale)).least(bound, MOST_PAIRS)


def _few_prove(problem: Problem, items: list[Item], prices: Prices, bound: int) -> bool:
    """Return whether few states and pairs prove a bound of the makespan: then nothing has to be compiled."""
    rules = Rules(problem, Objective.MAKESPAN, items, prices, pauses=not offline(problem))
    try:
        graph = explore(rules, _FEW_STATES)
        search = _Search(graph, items, prices, _arrivals(problem, Objective.MAKESPAN, prices.scale))
    except UnprovedError:
        return False  # the compiled form says why
    return search.least(bound, _FEW_PAIRS) == bound


def _compiled(problem: Problem, items: list[Item], prices: Prices, bound: int) -> int | None:
    """Return what the compiled form of the search proves of the makespan; None if only the readable form may tell.

    It costs a unit of the objective for a unit of time, so that weights are 0.
    """
    scale, arrivals = prices.scale, _arrivals(problem, Objective.MAKESPAN, prices.scale)
    others = scale * bound, max(arrivals.times, default=0)
    # Word 0 of a pair is its state, word 1 how many have arrived.
    arrays = packed(problem, items, prices, first_word=2, others=others)
    if arrays is None:
        return None
    pauses = bool(arrivals.times)
    most, nothing = MOST_STATES_COMPILED, integers(())
    graph = explore_graph(
        arrays.items, problem.blocks, arrays.base, nothing, problem.eviction, pauses, arrays.lanes, most
    )
    if not graph.complete:
        raise UnprovedError(f"the graph has more than {most} states, which are not searched")
    home = np.zeros(len(graph.lengths), dtype=np.int64)
    if not least_to_end(graph, home):
        raise UnprovedError("item_prices: a cycle of cache contents costs less than 0, so they prove nothing")
    firsts = [(item, price) for item, price in zip(items, prices.items, strict=True) if item.k == 1]
    estimate = int(home[0]) + sum(item.requests * price for item, price in firsts)
    places = np.full((len(firsts), 1 + max(item.requests for item, _ in firsts)), -1, dtype=np.int64)
    for group, row in enumerate(arrivals.places):
        places[group, : len(row)] = row
    least, reached = search_pairs(
        graph,
        home,
        arrays.items,
        arrays.field,
        np.array(arrivals.times, dtype=np.int64),
        places,
        arrays.start,
        estimate,
        scale * (bound - 1) + 1,
        MOST_PAIRS_COMPILED,
    )
    return least // scale if reached else -(-least // scale)


class _Arrivals(NamedTuple):
    """When requests arrive, ascending; ``places[g][w]`` is the place there of the w-th last of group g, w ≥ 1.

    Both are empty if all arrive together.
    """

    times: list[int]
    places: list[list[int]]


def _arrivals(problem: Problem, objective: Objective, scale: int) -> _Arrivals:
    if offline(problem):
        return _Arrivals([], [])
    order = sorted(range(len(problem.requests)), key=lambda request: problem.requests[request].arrival_ps)
    times = [problem.requests[request].arrival_ps * scale for request in order]
    groups = [group_of(problem, objective, request) for request in order]
    places = [[-1, *(p for p in reversed(range(len(order))) if groups[p] == group)] for group in sorted(set(groups))]
    return _Arrivals([time - times[0] for time in times], places)


class _Field(NamedTuple):
    """Where a number is in the bits of a larger one."""

    shift: int
    mask: int


class _Way(NamedTuple):
    """A move as it changes pairs: what it adds to a pair; for a fill the field of the pool that it takes from.

    For a first fill that has to wait for arrivals, ``places`` are those of its group, and if the group is tracked,
    ``waiting`` is how many have not started.
    """

    reduced: int
    cost: int
    kind: Kind
    change: int
    pool: _Field | None
    places: list[int]
    waiting: int


class _Search:
    """A search over pairs, which are numbers: in the lowest bits the state, then the arrivals, then the pool."""

    def __init__(self, graph: Graph, items: list[Item], prices: Prices, arrivals: _Arrivals) -> None:
        self._graph, self._items, self._prices, self._arrivals = graph, items, prices, arrivals
        self._home = {state: cost for state, cost in enumerate(least_to_sink(graph)) if cost is not None}
        self._ways: dict[int, list[_Way]] = {}
        bits = len(graph.states).bit_length()
        self._states = (1 << bits) - 1
        self._seen = _Field(bits, (1 << len(arrivals.times).bit_length()) - 1)
        bits += len(arrivals.times).bit_length()
        self._pool: list[_Field | None] = []
        for item in items:
            if item.k == 1 and item.group in prices.tracked:
                self._pool.append(None)
                continue
            self._pool.append(_Field(bits, (1 << item.requests.bit_length()) - 1))
            bits += item.requests.bit_length()

    def least(self, bound: int, most_pairs: int = MOST_PAIRS) -> int:
        """Return the least cost of a walk from source to sink if it is less than ``bound``, else ``bound``.

        If more than ``most_pairs`` are looked at, return what is proved by then, which is less than ``bound``.
        """
        scale = self._prices.scale
        most = scale * (bound - 1)
        if self._graph.source not in self._home:
            return bound
        source, total = self._graph.source, self._home[self._graph.source]
        for item, price, field in zip(self._items, self._prices.items, self._pool, strict=True):
            if item.k == 1:
                total += item.requests * price
                source += item.requests << field.shift if field else 0
        if total > most:
            return bound
        least = {source: total}
        queue, looked = [(total, source, 0)], 0
        while queue:
            total, pair, spent = heapq.heappop(queue)
            if total > least[pair]:
                continue
            if pair == self._graph.sink:
                return total // scale
            looked += 1
            if looked > most_pairs:
                return -(-total // scale)
            for after, more, cost in self._steps(pair, spent, most - total):
                found = total + more
                if found < least.get(after, found + 1):
                    least[after] = found
                    heapq.heappush(queue, (found, after, spent + cost))
        return bound

    def _steps(self, pair: int, spent: int, most: int) -> Iterator[tuple[int, int, int]]:
        """Yield where moves lead from a pair: the pair, reduced cost of at most ``most`` and cost, both with idle time.

        ``spent`` is the clock if requests arrive over time.
        """
        seen = pair >> self._seen.shift & self._seen.mask
        for way in self._ways_from(pair & self._states):
            if way.reduced > most:
                break
            after = pair + way.change
            if way.kind is Kind.BEGIN:
                for present, idle in self._beginnings(spent):
                    if way.reduced + idle <= most:
                        yield after + (present << self._seen.shift), way.reduced + idle, way.cost + idle
                continue
            if way.kind is Kind.RUN:
                after -= seen << self._seen.shift
            elif way.kind is Kind.FILL:
                waiting = pair >> way.pool.shift & way.pool.mask if way.pool else way.waiting
                if not waiting or (way.places and way.places[waiting] >= seen):
                    continue
            yield after, way.reduced, way.cost

    def _beginnings(self, clock: int) -> Iterator[tuple[int, int]]:
        """Yield how many are there when a batch begins, at once or at an arrival, and for how long it has waited."""
        times = self._arrivals.times
        present = bisect_right(times, clock)
        yield present, 0
        while present < len(times):
            time = times[present]
            present = bisect_right(times, time)
            yield present, time - clock

    def _ways_from(self, state: int) -> list[_Way]:
        """Return the ways from a state that can lead to the sink, by increasing reduced cost."""
        known = self._ways.get(state)
        if known is None:
            moves = [move for move in self._graph.moves[state] if move.head in self._home]
            known = self._ways[state] = sorted((self._way(state, move) for move in moves), key=lambda way: way.reduced)
        return known

    def _way(self, state: int, move: Move) -> _Way:
        reduced = move.priced + self._home[move.head] - self._home[state]
        pool, change, places, waiting = None, move.head - state, [], 0
        if move.kind is Kind.EVICT:
            due = self._pool[move.item + 1]
            change += 1 << due.shift if due else 0
        elif move.kind is Kind.FILL:
            item, pool = self._items[move.item], self._pool[move.item]
            change -= 1 << pool.shift if pool else 0
            waiting = self._graph.states[state].waiting[item.group]
            if item.k == 1 and self._arrivals.places:
                places = self._arrivals.places[item.group]
        return _Way(reduced, move.cost, move.kind, change, pool, places, waiting)
