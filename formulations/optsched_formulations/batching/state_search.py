"""Best-first search over class multisets, guided by the exact costs to the sink of the graph of resident sets.

A state is a node of `resident_graph` and a pool: how many requests of every priced item wait, for their first fill or
for a refill. The prices make a consistent estimate of what is still to come,

    h(node, pool) = Σ over the pool of λ, μ + least priced cost from the node to the sink,

since every arc's reduced cost is ≥ 0 (see there). A beam first keeps the best states after every batch and ends in a
good schedule. A* then visits states in the order of their bound on the makespan: the first finished one is optimal,
and stopped early, the smallest bound among the open states holds for every schedule.

Evicting a request and refilling it for the very next batch is not allowed by the problem; the graph has it, at the
cost of a refill in place of the decode that keeping would have cost. Read as keeping, it is legal and no dearer.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict

from optsched.model.instance import Instance
from optsched.model.result import Badge
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination
from optsched_formulations.batching.resident_graph import (
    EVICT,
    FILL,
    RUN,
    Classes,
    Prices,
    ResidentGraph,
    certificate,
    growing_graphs,
    price,
    require_memory_only,
)

State = tuple[int, int]
"""Node and pool."""

_GRAPH_SHARE, _PRICE_SHARE = 0.2, 0.7
"""Shares of the time left that building graphs, and the prices of each, may take."""
_BEAM_WIDTHS = (100, 400)
_MOST_STATES = 4_000_000
"""Some 1.5 GB."""
_LOOK_AT_CLOCK = 4096


class StateSearch:
    """The method of this module, as `optsched.solvers.formulation.Formulation`."""

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan of an offline instance in which only memory binds.

        Raises
        ------
        UnsupportedError
            For any other instance.
        """
        require_memory_only(task)
        started = time.perf_counter()
        deadline = started + task.time_limit_s
        search = None
        for graph in growing_graphs(Classes(task.instance), started + _GRAPH_SHARE * task.time_limit_s):
            prices = price(graph, _PRICE_SHARE * (deadline - time.perf_counter()), task.workers)
            if prices is not None:
                search = _Search(task, graph, prices)
                task.progress(ProgressEvent(time.perf_counter() - started, task.incumbent_value, prices.bound_ps))
        if search is None:
            return Outcome(Termination.LIMIT, None, None, Badge.HEURISTIC)
        best, value = task.incumbent, task.incumbent_value
        for width in _BEAM_WIDTHS:
            found = search.beam(width, deadline)
            if found is not None and (value is None or found[0] < value):
                value, best = found
            task.progress(ProgressEvent(time.perf_counter() - started, value, None))
        return search.best_first(best, value, deadline)


Link = tuple["Link", int, int] | None
"""How a state was reached: the link before, and kind and item of the arc."""


class _Search:
    """Walks from the source with everybody in the pool to the sink with nobody."""

    def __init__(self, task: Task, graph: ResidentGraph, prices: Prices) -> None:
        self._task, self._graph, self._prices = task, graph, prices
        classes = graph.classes
        self._places = classes.places
        self._radix = classes.radix
        # First fills of tracked classes are counted by the node, not by the pool.
        priced = set(graph.priced)
        self._arcs: list[list[tuple[int, int, int, int, bool]]] = [[] for _ in graph.nodes]
        columns = (graph.tail, graph.head, graph.kind, graph.item, prices.reduced)
        for tail, head, kind, item, reduced in zip(*(column.tolist() for column in columns), strict=True):
            self._arcs[tail].append((head, kind, item, reduced, kind == FILL and item in priced))
        pool = sum(
            classes.places[first] * len(members)
            for first, members in zip(classes.first, classes.members, strict=True)
            if first in priced
        )
        self._source, self._sink = (0, pool), (graph.sink, 0)

    def beam(self, width: int, deadline: float) -> tuple[int, Schedule] | None:
        """Return value and schedule of the best walk that keeps ``width`` states after every batch."""
        places, radix, arcs = self._places, self._radix, self._arcs
        layer: dict[State, tuple[int, Link]] = {self._source: (0, None)}
        while layer:
            if self._sink in layer:
                spent, link = layer[self._sink]
                return self._prices.makespan_ps(spent), self._schedule(link)
            if time.perf_counter() > deadline:
                return None
            following: dict[State, tuple[int, Link]] = {}
            stack = list(layer)
            while stack:
                node, pool = state = stack.pop()
                spent, link = layer[state]
                for head, kind, item, reduced, counted in arcs[node]:
                    rest = pool
                    if counted:
                        if not pool // places[item] % radix[item]:
                            continue
                        rest -= places[item]
                    elif kind == EVICT:
                        rest += places[item]
                    total, reached = spent + reduced, (head, rest)
                    into = following if kind == RUN else layer
                    known = into.get(reached)
                    if known is None or total < known[0]:
                        into[reached] = (total, (link, kind, item))
                        if kind != RUN:
                            stack.append(reached)
            layer = dict(heapq.nsmallest(width, following.items(), key=lambda entry: entry[1][0]))
        return None

    def best_first(self, best: Schedule | None, value: int | None, deadline: float) -> Outcome:
        """Run A*; ``best`` and ``value`` are what is to be beaten."""
        places, radix, arcs = self._places, self._radix, self._arcs
        prices = self._prices
        # Only schedules better than the best are worth finding.
        budget = None if value is None else prices.budget(value)
        spent_at: dict[State, int] = {self._source: 0}
        queue: list[tuple[int, int, int, State, Link]] = [(0, 0, 0, self._source, None)]
        pushed = popped = 0
        while queue:
            spent, depth, _, state, link = heapq.heappop(queue)
            if spent > spent_at[state]:
                continue
            if state == self._sink:
                return Outcome(
                    Termination.OPTIMAL, self._schedule(link), prices.makespan_ps(spent), Badge.SOLVER_CLAIMED
                )
            popped += 1
            if popped % _LOOK_AT_CLOCK == 0 and (time.perf_counter() > deadline or len(spent_at) > _MOST_STATES):
                return self._stopped(best, prices.makespan_ps(spent))
            node, pool = state
            for head, kind, item, reduced, counted in arcs[node]:
                total = spent + reduced
                if budget is not None and total >= budget:
                    continue
                rest = pool
                if counted:
                    if not pool // places[item] % radix[item]:
                        continue
                    rest -= places[item]
                elif kind == EVICT:
                    rest += places[item]
                reached = (head, rest)
                known = spent_at.get(reached)
                if known is None or total < known:
                    spent_at[reached] = total
                    pushed += 1
                    # Among equals the deepest first: it is nearest to a schedule.
                    step = (link, kind, item)
                    heapq.heappush(queue, (total, depth - (kind == RUN), pushed, reached, step))
        return Outcome(Termination.OPTIMAL, best, value, Badge.SOLVER_CLAIMED)

    def _stopped(self, best: Schedule | None, bound: int) -> Outcome:
        if bound > self._prices.bound_ps:
            return Outcome(Termination.LIMIT, best, bound, Badge.SOLVER_CLAIMED)
        proof = certificate(self._graph, self._prices)
        return Outcome(Termination.LIMIT, best, bound, Badge.CERTIFIED, proof)

    def _schedule(self, link: Link) -> Schedule:
        steps = []
        while link is not None:
            link, kind, item = link
            steps.append((kind, item))
        return _named(self._task.instance, self._graph.classes, steps[::-1])


def _named(instance: Instance, classes: Classes, steps: list[tuple[int, int]]) -> Schedule:
    """Turn a walk into a schedule: each (kind, item) step acts on some request that is in the item's place."""
    waiting: dict[int, list[int]] = defaultdict(list)
    for first, members in zip(classes.first, classes.members, strict=True):
        waiting[first] = members[::-1]
    resident: dict[int, int] = {}  # request -> item that it generated last
    evicted: dict[int, int] = {}  # request -> item that it is due for, since the last batch
    filled: dict[int, int] = {}  # request -> item that it is filled for in this batch
    assignments: list[Assignment] = []
    for kind, item in steps:
        if kind == EVICT:
            request = next(r for r, last in resident.items() if classes.following[last] == item)
            del resident[request]
            evicted[request] = item
        elif kind == FILL:
            again = next((r for r, due in evicted.items() if due == item), None)
            if again is None:
                filled[waiting[item].pop()] = item
            else:
                # Evicted and refilled between two batches: keep instead.
                del evicted[again]
                resident[again] = item - 1
        elif kind == RUN:
            resident = {request: classes.following[last] for request, last in resident.items()}
            run = [(request, 1) for request in resident]
            run += [(request, classes.held(due)) for request, due in filled.items()]
            assignments.append(Assignment(sorted(run), sorted(evicted)))
            for request, due in evicted.items():
                waiting[due].append(request)
            resident = {r: last for r, last in (resident | filled).items() if classes.following[last] >= 0}
            evicted, filled = {}, {}
    return timed(instance, assignments)
