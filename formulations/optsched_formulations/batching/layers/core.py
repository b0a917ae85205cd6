r"""The core of an instance: its largest classes, on their merged graph, with prices of all tokens for each J.

`fillers` says what a core proves. Prices that are the same in all batches are those of a linear programme: a flow of
one unit through the core's merged graph, whose J runs are each combined with a set of fillers that fits what is left,

.. math:: \min \sum_{v, s} λ_{vs} + \sum_i e_i φ_i

for :math:`λ_{vs}` batches of node v that set s fills up, and :math:`φ_i` fills of item i, of extra cost :math:`e_i` in
batches; every item of a filler is in as many sets as it has requests, and every item of the core is filled as often as
it waits, by evictions or from the begin, as every end is taken. The duals of the latter are prices. Sets are added as
long as duals say that they lower the cost (column generation, with `Fillers.best` for the subproblem). The flow may be
of several closed walks that do not meet, so that walks may prove more than the programme with its own prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from scipy.sparse import csc_array

from optsched.model.domain import replace as replace_model
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.solvers.highs import growing_solver, programme_of, solved_within
from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.fillers import Fillers
from optsched_formulations.batching.layers.graph import MergedGraph, can_be_few, merged_graph
from optsched_formulations.batching.layers.outputs import prices_by_output
from optsched_formulations.batching.layers.walks import MOST_PAID, Walks
from optsched_formulations.batching.memory_only import Alike, Classes
from optsched_formulations.batching.search.resident_graph import TooLargeError

_BEYOND, _FEW_BEYOND = 2, 100_000
"""With those beyond the capacity a core may have that many times as many nodes, or that many."""
_MOST_EFFORT = 500_000
"""Additions for what fillers are worth in one batch: more take too long."""
_LEAST_SHARE = 0.25
"""Of what all requests hold in all batches the core holds that share: of less it proves little."""
_SMALL = 1e-7
"""In batches: sets of fillers that are worth so little more are not added."""


@dataclass(frozen=True)
class Core:
    """The largest classes of an instance, and the others.

    Parameters
    ----------
    classes
        Of all.
    inside
        Those of them that are the core.
    graph
        Of the core, requests of one input as a class; its empty node may run.
    fillers
        The others.
    """

    classes: Classes
    inside: Classes
    graph: MergedGraph
    fillers: Fillers

    @property
    def items(self) -> int:
        """Number of the core's items."""
        return len(self.graph.classes.size)

    def prices(self, waiting: Floats, tokens: Floats) -> Floats:
        """Return prices of all items that prove no less than those of the core's items, and of the fillers' tokens.

        A filler that waits for an item pays for its token and those after it.
        """
        fillers, found = self.fillers.classes, np.zeros(len(self.classes.size))
        still = tokens.copy()
        for item in reversed(range(len(still))):
            if fillers.following[item] >= 0:
                still[item] += still[fillers.following[item]]
        for some, price in (
            (self.inside, prices_by_output(self.inside, self.graph.classes, waiting)),
            (fillers, still),
        ):
            found[items_among(self.classes, some)] = price
        return found

    def rounded(self, tokens: Floats, batches: int, scale: int) -> Ints:
        """Return prices of the fillers' tokens, in batches, in whole units, none of which can add up beyond 64 bits."""
        most = MOST_PAID // (4 * (batches + 1) * (int(self.fillers.requests.sum()) + 1))
        whole: Ints = np.rint(np.clip(tokens * self.classes.base_ps * scale, -most, most)).astype(np.int64)
        return whole

    def walks(self, tokens: Ints, batches: int, scale: int) -> Walks:
        """Return the walks of the core up to a number of batches, at whole prices of the fillers' tokens."""
        return Walks(self.graph, scale, batches, filled=self.fillers.filled(tokens))


def core_of(instance: Instance, classes: Classes, most_nodes: int) -> Core | None:
    """Return the core of as many of the largest classes as have ``most_nodes`` nodes, if some are left for fillers.

    In its graph requests of one input are alike. Classes are in order of what their requests hold at the end. A
    core that holds little proves little: then there is none.
    """
    order = sorted(range(len(classes.kinds)), key=lambda kind: (sum(classes.kinds[kind][:2]), classes.kinds[kind]))
    held = [sum(map(classes.held, _items_of(classes, kind))) * len(classes.members[kind]) for kind in order]
    core = None
    for number in range(len(order) - 1, 0, -1):
        if not can_be_few(_of(instance, classes, order[number:], Alike.INPUT), most_nodes):
            break
        core = order[number:] if sum(held[number:]) >= _LEAST_SHARE * sum(held) else None
    if core is None:
        return None
    try:
        found = core_with(instance, classes, core, max(_FEW_BEYOND, _BEYOND * most_nodes))
    except TooLargeError:
        return None
    return None if found.fillers.effort > _MOST_EFFORT else found


def core_with(instance: Instance, classes: Classes, kinds: list[int], most_nodes: int = _FEW_BEYOND) -> Core:
    """Return the core of some classes, by their numbers.

    Raises
    ------
    TooLargeError
        If there are more than ``most_nodes`` nodes.
    """
    others = [kind for kind in range(len(classes.kinds)) if kind not in kinds]
    graph = merged_graph(_of(instance, classes, kinds, Alike.INPUT), most_nodes).idling
    return Core(classes, _of(instance, classes, kinds), graph, Fillers(_of(instance, classes, others)))


def items_among(every: Classes, some: Classes) -> Ints:
    """Return the items of some classes among those of all."""
    place = {kind: number for number, kind in enumerate(every.kinds)}
    first = [every.first[place[kind]] for kind in some.kinds]
    return np.array([first[owner] + token - 1 for owner, token in zip(some.owner, some.token, strict=True)])


def _items_of(classes: Classes, kind: int) -> range:
    first = classes.first[kind]
    return range(first, first + classes.kinds[kind][1])


def _of(instance: Instance, classes: Classes, kinds: list[int], alike: Alike = Alike.OUTPUT) -> Classes:
    """Return the requests of some classes alone."""
    members = sorted(request for kind in kinds for request in classes.members[kind])
    requests = tuple(instance.requests[request] for request in members)
    return Classes(replace_model(instance, requests=requests), alike=alike)


class Master:
    """The linear programme of a core, over a growing number of sets of fillers.

    Parameters
    ----------
    core
        The core.
    most
        The largest number of batches to be asked for.
    workers, seed
        For the solver.
    """

    def __init__(self, core: Core, most: int, workers: int, seed: int) -> None:
        self._core = core
        graph, arcs = core.graph, core.graph.arcs
        running = np.flatnonzero(arcs.run_head >= 0)
        self._rooms: Ints = np.unique(graph.room[running])
        self._solver = growing_solver(workers, seed)
        # Rows: nodes before evictions, and after them; items of the core; rooms; items of fillers; batches.
        nodes, items, fillers = graph.nodes, core.items, len(core.fillers.requests)
        self._items = 2 * nodes
        self._room_rows = self._items + items
        self._tokens = self._room_rows + len(self._rooms)
        self._batches = self._tokens + fillers
        extra = np.array([graph.classes.extra_ps(i) for i in range(items)]) / graph.classes.base_ps
        fill_head, fill_item = arcs.fill_head.astype(np.int64), arcs.fill_item.astype(np.int64)
        evict_head, evict_item = arcs.evict_head.astype(np.int64), arcs.evict_item.astype(np.int64)
        fill_tail, evict_tail = (np.repeat(np.arange(nodes), np.diff(b)) for b in (arcs.fill_begin, arcs.evict_begin))
        fits, room = np.flatnonzero(arcs.fits), np.searchsorted(self._rooms, graph.room[running])
        dear = 2.0 * (most + float(extra.sum()) * sum(map(len, graph.classes.members))) + 1.0
        columns = _Columns()
        for change in (1, -1):
            some = arcs.change[evict_item] == change
            entries = (evict_tail[some], -1), (evict_head[some], 1), (self._items + evict_item[some], -change)
            columns.add(np.zeros(int(some.sum())), *entries)
        columns.add(np.zeros(len(fits)), (fits, -1), (nodes + fits, 1))
        columns.add(extra[fill_item], (nodes + fill_tail, -1), (nodes + fill_head, 1), (self._items + fill_item, 1))
        columns.add(
            np.ones(len(running)),
            (nodes + running, -1),
            (arcs.run_head[running].astype(np.int64), 1),
            (self._room_rows + room, 1),
            (np.full(len(running), self._batches), 1),
        )
        # No fillers in a batch; and, worse than any schedule, tokens that are not generated, and batches beyond J.
        columns.add(np.zeros(len(self._rooms)), (self._room_rows + np.arange(len(self._rooms)), -1))
        columns.add(np.full(fillers, dear), (self._tokens + np.arange(fillers), 1))
        columns.add(np.full(1, dear), (np.full(1, self._batches), -1))
        sides = np.zeros(self._batches + 1)
        sides[self._items : self._room_rows] = graph.fresh
        sides[self._tokens : self._batches] = core.fillers.requests
        cost, matrix = columns.matrix(len(sides))
        bounds = np.zeros(len(cost)), np.full(len(cost), highspy.kHighsInf)
        self._solver.passModel(programme_of(cost, bounds, matrix, (sides, sides.copy())))

    def prices(self, batches: int, until: float) -> tuple[Floats, Floats] | None:
        """Return prices, in batches, of waiting for items of the core, and of tokens of fillers; None without time."""
        solver, core = self._solver, self._core
        solver.changeRowBounds(self._batches, float(batches), float(batches))
        found = None
        while True:
            if not solved_within(solver, until - now_s()):
                return found
            dual = np.asarray(solver.getSolution().row_dual, dtype=np.float64)
            price = dual[self._tokens : self._batches]
            found = dual[self._items : self._items + core.items], price
            worth, counts = core.fillers.best(price, self._rooms)
            better = np.flatnonzero(worth > dual[self._room_rows : self._tokens] + _SMALL)
            if not better.size or now_s() > until:
                return found
            for k in better.tolist():
                items = np.flatnonzero(counts[k])
                rows = np.concatenate([[self._room_rows + k], self._tokens + items]).astype(np.int32)
                values = np.concatenate([[-1.0], counts[k, items]])
                solver.addCol(0.0, 0.0, highspy.kHighsInf, len(rows), rows, values)


class _Columns:
    """Columns of a programme, group by group."""

    def __init__(self) -> None:
        self._cost: list[Floats] = []
        self._rows: list[Ints] = []
        self._columns: list[Ints] = []
        self._values: list[Floats] = []
        self._count = 0

    def add(self, cost: Floats, *entries: tuple[Ints, int]) -> None:
        """Add columns of some costs, each with the same values in rows of its own."""
        for row, value in entries:
            self._rows.append(row)
            self._columns.append(self._count + np.arange(len(row)))
            self._values.append(np.full(len(row), float(value)))
        self._cost.append(cost)
        self._count += len(cost)

    def matrix(self, rows: int) -> tuple[Floats, csc_array]:
        """Return costs, and the matrix."""
        entries = np.concatenate(self._values), (np.concatenate(self._rows), np.concatenate(self._columns))
        return np.concatenate(self._cost), csc_array(entries, shape=(rows, self._count))
