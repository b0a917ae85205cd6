r"""The graph of resident sets: what the KV cache can hold from batch to batch, whatever requests do elsewhere.

It covers offline makespan instances with whole prefills, hybrid batches and one affine piece, in which only memory
binds (C, P and N admit a step of every request at once) and no refill costs less than the decode in its place.

*No pauses.* In such an instance some optimal schedule never keeps KV without running: if a request pauses between two
of its tokens, run the tokens before the pause, back to the last (re)fill, later and without a gap. Until the pause
ends the request then holds fewer tokens than it did, and refills cost the same. An eviction right after a pause moves
to its beginning. A batch that loses all its runs is left out, which shortens the makespan; where it was the only
pause of an eviction, keep the KV instead, which costs no more. So between two batches a resident request either is
evicted or runs.

*Items and nodes.* Item (class, k) is a request of a class (I, O) in the batch that generates its token k; it holds I
+ k − 1 tokens. A node is a multiset of items that fits M: *composing* a batch, or what is left *after* one.

*Arcs.* after(S) → composing(S with every k one higher): the next batch begins, everybody resident runs. after(S) →
after(S − i): i is evicted. composing(T) → composing(T + i): a request is filled, for the first time (k = 1) or again
(k ≥ 2, at the cost of the refill less the decode). composing(T) → after(T less what finished): the batch runs, at the
cost base.

A schedule is a closed walk from after(∅) that fills every request once for the first time, and refills what it
evicts; its cost is the makespan less the constant work of prefills and decodes.

*Bound.* Give every item a price: λ for a first fill, μ for being evicted and due for a refill. If no cycle of the
graph has negative cost after every first fill is paid its λ, every eviction charged its μ and every refill paid its
μ, then every closed walk costs at least Σ λ over the requests. Best prices are the dual of a minimum-cost
circulation. The theorem needs no floating point: prices are rounded to integers, potentials that prove the absence of
negative cycles are computed in integers, and `optsched.check` does the same from the prices alone.

*Tracking.* Nodes may also count how many requests of some classes are still to come: first fills of a tracked class
need no price, and a schedule is a walk from after(∅) with everybody to come to after(∅) with nobody. The bound is
then Σ λ over the requests of the other classes plus the least priced cost of such a walk. With every class tracked
only refills are priced.

Relaxed are the order of evictions and refills and that the walk hangs together; the knapsack of every batch and who
can follow whom are exact. Nothing in the graph depends on how many requests a class has, except that no more are
resident.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.solvers.formulation import Task, UnsupportedError
from optsched.solvers.highs import solve_equality_lp

Ints = npt.NDArray[np.int64]

_MOST_NODES = 60_000
"""A linear programme of that many rows takes HiGHS most of a minute."""
_ENOUGH_NODES = 12_000
"""Tracking more classes than fit this many nodes costs more time than it saves."""
_FINE = 2**32
"""Prices have at least that many units in a batch's base."""
_NO_WAY = 2**60
"""Cost of a way to the sink where there is none: from an empty batch that nobody is left to fill."""
_ROUNDS = 2_000
"""Rounds of Bellman and Ford after which prices are given up."""
Items = tuple[int, ...]
"""A multiset of items: their indices, sorted."""

BEGIN, EVICT, FILL, RUN = range(4)
"""Kinds of arcs."""


class TooLargeError(Exception):
    """The graph has more nodes, or takes more time, than allowed."""


class Classes:
    """Requests grouped by (I, O), their items, and what items hold and cost.

    Attributes
    ----------
    kinds
        (I, O) of every class, sorted.
    members
        Request indices of every class.
    owner, token
        Class and k ≥ 1 of every item.
    size
        Blocks that it holds in its batch.
    following
        The item of the next token; −1 after the last.
    places, radix
        A pool is a number whose digits count how many of every item wait: the digits' values and bases.
    extra_ps
        What filling the item costs beyond the constant work: 0 for first fills.
    constant_ps
        Work of all first fills and decode steps.
    """

    def __init__(self, instance: Instance) -> None:
        cost, limits = instance.cost, instance.limits
        slope = cost.token
        groups: dict[tuple[int, int], list[int]] = {}
        for index, request in enumerate(instance.requests):
            groups.setdefault((request.input, request.output), []).append(index)
        self.kinds = sorted(groups)
        self.members = [groups[kind] for kind in self.kinds]
        self.capacity = limits.kv_tokens // limits.kv_block
        self.base_ps = cost.base
        self.owner: list[int] = []
        self.token: list[int] = []
        self.size: list[int] = []
        self.following: list[int] = []
        self.extra_ps: list[int] = []
        self.constant_ps = 0
        for number, (prompt, output) in enumerate(self.kinds):
            for k in range(1, output + 1):
                held = prompt + k - 1
                fill = slope * held + cost.prefill_ps(held, 0)
                decode = slope + cost.decode_ps(held - 1)
                self.owner.append(number)
                self.token.append(k)
                self.size.append(limits.occupied(held) // limits.kv_block)
                self.following.append(len(self.following) + 1 if k < output else -1)
                self.extra_ps.append(fill - decode if k > 1 else 0)
                self.constant_ps += len(self.members[number]) * (fill if k == 1 else decode)
        # Without eviction nothing is ever due for a refill.
        self.evictable = [
            instance.rules.eviction and following >= 0 and instance.limits.prefill_tokens >= self.held(following)
            for following in self.following
        ]

        self.radix = [len(self.members[owner]) + 1 for owner in self.owner]
        self.places = list(accumulate(self.radix[:-1], lambda product, base: product * base, initial=1))

    def waiting(self, pool: int, item: int) -> int:
        """Return how many of ``item`` are in a pool, a number whose digits count every item."""
        return pool // self.places[item] % self.radix[item]

    def held(self, item: int) -> int:
        """Return the tokens that an item holds in its batch: I + k − 1."""
        return self.kinds[self.owner[item]][0] + self.token[item] - 1

    @property
    def first(self) -> list[int]:
        """The item of the first token of every class."""
        return [item for item, k in enumerate(self.token) if k == 1]


def require_memory_only(task: Task) -> None:
    """Raise `UnsupportedError` unless the task is of the kind that the graph covers."""
    instance, limits = task.instance, task.instance.limits
    if task.objective != Objective.MAKESPAN:
        raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan")
    if not instance.offline:
        raise UnsupportedError("requests that arrive at different times, it is offline")
    if instance.rules.chunked_prefill:
        raise UnsupportedError("chunked prefill, it runs prefills whole (forbid chunked)")
    if not instance.rules.hybrid:
        raise UnsupportedError("batches of one kind, it needs hybrid ones")
    if len(instance.cost.affine) > 1:
        raise UnsupportedError("a batch time of several pieces, it needs one")
    restrictions = task.restrictions
    if restrictions.max_evictions is not None or restrictions.first_runs(instance):
        raise UnsupportedError("an order of first runs or a number of evictions")
    most = sum(request.peak_tokens for request in instance.requests)
    if most > min(limits.batch_tokens, limits.prefill_tokens):
        raise UnsupportedError("token budgets that may bind, only memory may")
    if limits.batch_requests is not None and limits.batch_requests < len(instance.requests):
        raise UnsupportedError("a cap on the batch size, only memory may bind")
    if min(Classes(instance).extra_ps) < 0:
        raise UnsupportedError("refills that are cheaper than decode steps")


@dataclass(frozen=True)
class ResidentGraph:
    """Nodes and arcs as arrays.

    Parameters
    ----------
    classes
        The items.
    tracked
        The classes whose requests that have not started are counted in the nodes.
    nodes
        Multiset and count of every node; node 0 is the source, after(∅) with everybody to come.
    sink
        after(∅) with no tracked request to come.
    tail, head, kind, item
        Arcs; item is −1 for arcs that begin or run a batch.
    cost_ps
        Cost of every arc.
    """

    classes: Classes
    tracked: frozenset[int]
    nodes: list[tuple[Items, int]]
    sink: int
    tail: Ints
    head: Ints
    kind: Ints
    item: Ints
    cost_ps: Ints

    @property
    def priced(self) -> list[int]:
        """The items that have a price: refills, and first fills of classes that are not tracked."""
        classes = self.classes
        return [i for i, k in enumerate(classes.token) if k > 1 or classes.owner[i] not in self.tracked]


def build_graph(
    classes: Classes, tracked: frozenset[int], most_nodes: int, deadline: float = math.inf
) -> ResidentGraph:
    """Enumerate the graph from its source.

    Raises
    ------
    TooLargeError
        If there are more than ``most_nodes`` nodes, or ``time.perf_counter()`` passes ``deadline``.
    """
    size, owner, following = classes.size, classes.owner, classes.following
    counts = [len(members) for members in classes.members]
    place = classes.places
    capacity, base = classes.capacity, classes.base_ps
    everybody = sum(place[first] * counts[owner[first]] for first in classes.first if owner[first] in tracked)
    source = ((), everybody)
    number: tuple[dict[tuple[Items, int], int], dict[tuple[Items, int], int]] = ({source: 0}, {})
    nodes: list[tuple[Items, int]] = [source]
    composing: list[bool] = [False]
    arcs: list[tuple[int, int, int, int, int]] = []

    def node(items: Items, pool: int, compose: bool) -> int:
        found = number[compose].get((items, pool))
        if found is None:
            found = number[compose][items, pool] = len(nodes)
            nodes.append((items, pool))
            composing.append(compose)
            if len(nodes) > most_nodes:
                raise TooLargeError
        return found

    fillable = [i for i, k in enumerate(classes.token) if k == 1 or classes.evictable[i - 1]]
    current = 0
    while current < len(nodes):
        if current % 1024 == 0 and time.perf_counter() > deadline:
            raise TooLargeError
        items, pool = nodes[current]
        if composing[current]:
            room = capacity - sum(size[i] for i in items)
            if items:
                left = tuple(following[i] - 1 for i in items if following[i] >= 0)
                arcs.append((current, node(left, pool, False), RUN, -1, base))
            resident = Counter(owner[i] for i in items)
            for i in fillable:
                if size[i] <= room and resident[owner[i]] < counts[owner[i]]:
                    rest = pool
                    if classes.token[i] == 1 and owner[i] in tracked:
                        if not classes.waiting(pool, i):
                            continue
                        rest -= place[i]
                    arcs.append((current, node(_plus(items, i), rest, True), FILL, i, classes.extra_ps[i]))
        else:
            grown = tuple(following[i] for i in items)
            if sum(size[i] for i in grown) <= capacity:
                arcs.append((current, node(grown, pool, True), BEGIN, -1, 0))
            arcs += [
                (current, node(_minus(items, i), pool, False), EVICT, following[i], 0)
                for i in sorted(set(items))
                if classes.evictable[i]
            ]
        current += 1
    columns = np.array(arcs, dtype=np.int64).reshape(-1, 5).T
    return ResidentGraph(classes, tracked, nodes, number[False][(), 0], *columns)


def growing_graphs(classes: Classes, deadline: float) -> Iterator[ResidentGraph]:
    """Yield the graph without tracked classes, then one that tracks as many as pay, those that hold most memory first.

    A graph that is too large, or not built by the deadline, is left out.
    """
    try:
        graph = build_graph(classes, frozenset(), _MOST_NODES, deadline)
    except TooLargeError:
        return
    yield graph
    plain = graph
    volume = [len(m) * o * (2 * i + o) for m, (i, o) in zip(classes.members, classes.kinds, strict=True)]
    for number in sorted(range(len(volume)), key=lambda number: -volume[number]):
        if len(graph.nodes) * (len(classes.members[number]) + 1) > 2 * _ENOUGH_NODES:
            continue
        try:
            graph = build_graph(classes, graph.tracked | {number}, _ENOUGH_NODES, deadline)
        except TooLargeError:
            continue
    if graph is not plain:
        yield graph


def _plus(items: Items, item: int) -> Items:
    return tuple(sorted((*items, item)))


def _minus(items: Items, item: int) -> Items:
    position = items.index(item)
    return items[:position] + items[position + 1 :]


@dataclass(frozen=True)
class Prices:
    """Integer prices of items, and what they prove.

    Parameters
    ----------
    scale
        Prices and costs count in 1 / scale ps, so that rounding does not matter where coefficients are small.
    constant_ps
        The constant work, in ps.
    item
        λ of first fills, μ of refills; 0 for items without a price. Shape (items,).
    reduced
        Cost of every arc beyond what it brings nearer to the sink, ≥ 0. Shape (arcs,).
    start
        Least cost of a schedule without the constant work.
    """

    scale: int
    constant_ps: int
    item: Ints
    reduced: Ints
    start: int

    @property
    def bound_ps(self) -> int:
        """Lower bound on the makespan."""
        return self.makespan_ps(0)

    def makespan_ps(self, spent: int) -> int:
        """Return the least makespan of a walk that has spent so much reduced cost."""
        return self.constant_ps - (-(self.start + spent) // self.scale)

    def budget(self, makespan_ps: int) -> int:
        """Return the reduced cost from which on a walk is no better than ``makespan_ps``."""
        return (makespan_ps - self.constant_ps) * self.scale - self.start


def certificate(graph: ResidentGraph, prices: Prices) -> dict[str, Any]:
    """Return what `optsched.check` needs to recompute the bound."""
    return {
        "kind": "resident_walk",
        "tracked": sorted(graph.tracked),
        "scale": prices.scale,
        "item_prices": [int(price) for price in prices.item],
    }


def price(graph: ResidentGraph, time_limit_s: float, workers: int) -> Prices | None:
    """Return the best prices that the flow's dual gives, exactly evaluated; None if time runs out."""
    classes = graph.classes
    nodes, arcs = len(graph.nodes), len(graph.tail)
    row = np.full(len(classes.size), -1)
    row[graph.priced] = nodes + np.arange(len(graph.priced))
    fills = np.flatnonzero((graph.kind == FILL) & (row[graph.item] >= 0))
    evictions = np.flatnonzero(graph.kind == EVICT)
    moving = np.flatnonzero(graph.tail != graph.head)
    rows = np.concatenate([graph.tail[moving], graph.head[moving], row[graph.item[fills]], row[graph.item[evictions]]])
    columns = np.concatenate([moving, moving, fills, evictions])
    ones = [np.ones(len(moving)), -np.ones(len(moving)), np.ones(len(fills)), -np.ones(len(evictions))]
    matrix = csc_array((np.concatenate(ones), (rows, columns)), shape=(nodes + len(graph.priced), arcs))
    right = np.zeros(matrix.shape[0])
    right[0] += 1
    right[graph.sink] -= 1
    for first, members in zip(classes.first, classes.members, strict=True):
        if row[first] >= 0:
            right[row[first]] = len(members)
    unit = max(classes.base_ps, 1)
    solution = solve_equality_lp(graph.cost_ps / unit, matrix, right, time_limit_s, workers)
    if solution is None:
        return None
    scale = max(1, _FINE // unit)
    for shrink in (1e-9, 1e-7, 1e-5, 1e-3):
        # A little less than the optimal prices leaves every cycle a margin for what rounding takes.
        exact = solution.prices * (unit * scale * (1 - shrink))
        item = np.zeros(len(classes.size), dtype=np.int64)
        item[graph.priced] = np.rint(exact[nodes:])
        found = _evaluate(graph, scale, item, np.floor(-exact[:nodes]).astype(np.int64))
        if found is not None:
            return found
    return None


def _evaluate(graph: ResidentGraph, scale: int, item: Ints, potential: Ints) -> Prices | None:
    """Prove that no cycle is negative (Bellman and Ford, in integers), then measure every way on; or None."""
    cost = graph.cost_ps * scale
    fills, evictions = graph.kind == FILL, graph.kind == EVICT
    cost[fills] -= item[graph.item[fills]]
    cost[evictions] += item[graph.item[evictions]]
    order = np.argsort(graph.head, kind="stable")
    tail, sorted_cost = graph.tail[order], cost[order]
    entered, first = np.unique(graph.head[order], return_index=True)
    for _ in range(_ROUNDS):
        best = np.minimum.reduceat(potential[tail] + sorted_cost, first)
        lower = best < potential[entered]
        if not lower.any():
            break
        potential[entered[lower]] = best[lower]
    else:
        return None
    reduced = cost + potential[graph.tail] - potential[graph.head]
    onward = _distances(graph, reduced) + potential[graph.sink] - potential
    classes = graph.classes
    paid = sum(int(item[i]) * len(members) for i, members in zip(classes.first, classes.members, strict=True))
    reduced = cost + onward[graph.head] - onward[graph.tail]
    return Prices(scale, classes.constant_ps, item, reduced, paid + int(onward[0]))


def _distances(graph: ResidentGraph, reduced: Ints) -> Ints:
    """Return the least reduced cost of a way from every node to the sink (Dijkstra, backwards)."""
    order = np.argsort(graph.head, kind="stable")
    tails, costs = graph.tail[order].tolist(), reduced[order].tolist()
    begins = np.searchsorted(graph.head[order], np.arange(len(graph.nodes) + 1)).tolist()
    distance = [_NO_WAY] * len(graph.nodes)
    queue = [(0, graph.sink)]
    while queue:
        far, node = heapq.heappop(queue)
        if distance[node] < _NO_WAY:
            continue
        distance[node] = far
        for arc in range(begins[node], begins[node + 1]):
            if distance[tails[arc]] == _NO_WAY:
                heapq.heappush(queue, (far + costs[arc], tails[arc]))
    return np.array(distance, dtype=np.int64)
