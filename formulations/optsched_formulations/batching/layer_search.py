r"""Every number of batches by itself: what prices prove of it, then a search in layers.

It covers what `memory_only` says, offline, for the makespan. There a schedule of J batches takes

.. math:: \mathrm{constant} + \mathrm{base} \cdot J + \text{the extra cost of its refills},

and the constant is the work of all first fills and decodes. With few batches many refills are needed, with many the
batches alone take too long; so each J between the fewest possible and what the best schedule known leaves room for is
settled by itself:

1. *A core*: the largest classes alone, on their merged graph, where the others only fill the room that is left, at
   prices of their tokens (`layers.fillers`, `layers.core`). Its graph is small, and what its schedules cost at least is
   found exactly, by the searches below. Where a schedule of the core costs little, the others are fitted in
   (`layers.completion`). That settles what a few large requests decide. Where the graph of all requests is too large,
   a core with as many nodes as there is time for comes first (`layers.joint_prices`).
2. *Sizes*: prices as below where nothing but their sizes tells requests apart (`Alike.SIZE`): a graph that is smaller
   by far, and bounds that are hardly less.
3. *Prices*: a Lagrangian bound on the extra cost of schedules of J batches, whose search begins with the prices of
   J + 1. They are of items on the merged graph of resident sets (`layers.walks`): the same in all batches at first,
   then such that rise; where that graph is large, for all J at once. Requests of one input are one class there
   (`Alike.INPUT`), as nothing tells them apart before they end. Where the cache holds many requests and there are
   too many such sets, they are of blocks in batches (`layers.pattern_layers`). They refute many J.
4. *A beam* (`layers.search`) looks for schedules, guided by the same prices.
5. *Arcs*: where prices are of blocks, all steps that requests may do in a better schedule are listed, and HiGHS packs
   them into the batches (`layers.arc_programme`).
6. *A search from both ends* (`layers.two_sided`) where prices are of items: of the J with the least bound so far, once
   its prices have converged, each time a little further. It ends with the best schedule of J batches, or with a better
   bound.
7. *A search* of all states, layer by layer, for the J that are left, those of the best bounds first. Where it is not
   finished, the least bound of its last layer is one of J.

*Requests that leave no room for any other* run first, one after another, without being looked at: a batch in which one
runs holds nothing else, so that of any schedule these batches can be left out. What others are evicted before them and
refilled behind them is kept then, which costs no more. Each takes O batches and its constant work at least.

The bound on the makespan is the least over all J, where a J that is settled is worth the best schedule's value. Prices
are rounded, and what they prove is computed again in integers, as searches do; what HiGHS says of arcs is its claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from optsched.bounds.volume import volume_bound
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import (
    Outcome,
    ProgressEvent,
    Task,
    Termination,
    UnsupportedError,
    nothing_beside,
    nothing_better,
    require_seconds,
)
from optsched.solvers.interrupt import until_interrupted, wait_interruptibly
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import value_to_beat
from optsched_formulations.batching.flow.model import find_packing
from optsched_formulations.batching.layers.arc_programme import ArcProgramme, tightened
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.completion import among, completed
from optsched_formulations.batching.layers.core import Core, Master, core_of
from optsched_formulations.batching.layers.fillers import Fillers
from optsched_formulations.batching.layers.graph import merged_graph
from optsched_formulations.batching.layers.graph_layers import GraphPriced, GraphRelaxation
from optsched_formulations.batching.layers.joint_prices import JointPrices
from optsched_formulations.batching.layers.lonely import lonely_of
from optsched_formulations.batching.layers.outputs import by_output, prices_by_input, prices_by_size
from optsched_formulations.batching.layers.pattern_layers import PatternPriced, PatternRelaxation
from optsched_formulations.batching.layers.search import Found, Priced, Relaxation, compile_rest, search_layers
from optsched_formulations.batching.layers.two_sided import Reach, TwoSided, affordable, arcs_back
from optsched_formulations.batching.layers.walks import FEW_PLACES, MOST_PAID, Walks, most_steps
from optsched_formulations.batching.memory_only import Alike, Classes, require_memory_only
from optsched_formulations.batching.search.naming import schedule_of_steps
from optsched_formulations.batching.search.resident_graph import TooLargeError
from optsched_formulations.batching.search.resident_walk import scale_of

_MOST_NODES, _MOST_PLACES, _PLACES_PER_S = 3_000_000, 80_000_000, 2_000_000
"""Nodes of the graph, and nodes × batches, of which each takes some 24 bytes; and those by the time limit."""
_LARGE_CORE_NODES = 1_000_000
"""Of a core: enumerating more, and prices of them, take a minute that blocks need."""
_MOST_REQUESTS = 255
_PACKING_SHARE, _GRAPH_SHARE = 0.02, 0.2
"""Shares of the time left that the fewest batches, and the graph, may take."""
_CORES = (300, 0.8), (1_500, 0.6)
"""Nodes of the cores that are tried, and the share of the time left that each may take."""
_MASTER_SHARE, _CORE_SEARCH_SHARE, _COMPLETION_SHARE = 0.3, 0.05, 0.01
"""Of a core's time, for its prices; of the time left, for a search of a number of batches, and for fillers."""
_MANY_RESIDENT, _FEW_PACKED = 5.0, 12
"""Where κ is at least that, blocks prove more than sizes do; of no more requests arcs are packed, without a core."""
_LARGE_CORE_SHARE, _JOINT_SHARE = 0.8, 0.4
"""Shares of the time left for a large core, and for its first prices."""
_FEW_REFILLS = 0.2
"""In batches beyond the fewest: where a large core proves no more, it is left."""
_REFILLS = 1.0
"""In batches: where a core takes fewer refills, at prices of a linear programme, it is no use but for schedules."""
_QUICK, _LONG = 30, 400
"""Rounds of looking for prices of a number of batches, at first and then for those still open."""
_QUICK_SHARE, _LONG_SHARE = 0.3, 0.5
"""Shares of the time left that they may take."""
_SIZES_SHARE, _SIZES_JOINT_SHARE = 0.8, 0.4
"""Shares of the time left for prices where only sizes tell requests apart, and for the first ones."""
_TOGETHER_SHARE, _RISE_SHARE = 0.7, 0.05
"""Shares of the time left for prices of all numbers of batches at once, and for letting those of one rise."""
_GAIN = 0.003
"""In batches: with less from one time to the next prices have converged."""
_LEAST_SHARE = 0.9
"""Share of the time left for raising the least bound, by prices and from both ends."""
_VISIT_SHARE, _SEARCH_SHARE = 0.15, 0.04
"""Shares of the time left for a visit to the prices of the least bound, and for a search once they have converged."""
_ROOM = 1.2
"""Times as many batches as needed: with room for more, schedules are looked for from below."""
_LEAST_ARCS_S = 0.5
"""The shortest time for which the arcs of a number of batches are packed."""
_MOST_OPEN = 3
"""Numbers of batches of which all states are searched with prices of blocks: of more the time would not suffice."""
_MOST_ARCS = 20_000
"""Items × batches, of which each has up to three arcs, that are packed."""
_RISE, _MORE, _EARLY_SHARE = 0.2, 1.5, 0.6
"""Batches by which the budget of arcs rises at first, and times as many at a time; share of the time left for each
number of batches but with the last budget."""


class _Sizes(NamedTuple):
    """Of graphs: the parameters of `LayerSearch`."""

    graph: int
    few_places: int
    cores: Sequence[tuple[int, float]]
    large_core: int


class LayerSearch:
    """The method of this module, as `optsched.solvers.formulation.Formulation`.

    Parameters
    ----------
    most_nodes
        Of the graph of resident sets: where it would have more, prices are of blocks in batches.
    few_places
        Nodes of the graph times batches beyond which prices are found on walks near the least one.
    cores
        Nodes of the cores that are tried, and the share of the time left that each may take.
    large_core
        Nodes of the core that is tried where the graph would have too many.
    """

    declaration = Declaration(
        sequential=True,
        turns=(
            Turn(45, 0.8, (Regime.FEW_RESIDENT,)),
            Turn(45, 0.85, (Regime.FEW_TOGETHER,)),
            Turn(45, 1.0, (Regime.MANY_TOGETHER,)),
        ),
    )
    """It comes after the state search, whose small proofs are certified."""

    def __init__(
        self,
        most_nodes: int = _MOST_NODES,
        few_places: int = FEW_PLACES,
        cores: Sequence[tuple[int, float]] = _CORES,
        large_core: int = _LARGE_CORE_NODES,
    ) -> None:
        self._sizes = _Sizes(most_nodes, few_places, cores, large_core)

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan of an offline instance in which only memory binds.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it.

        Raises
        ------
        UnsupportedError
            For any other instance, a limit in deterministic time, or if numbers are too large.
        """
        _require_layers(task)
        return _Solution(task, self._sizes).solve()


def _require_layers(task: Task) -> None:
    """Raise `UnsupportedError` for a task that layers do not cover."""
    require_memory_only(task)
    if task.objective not in {Objective.MAKESPAN, Objective.MAX_E2E}:
        raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan")
    if not task.instance.offline:
        raise UnsupportedError("requests that arrive at different times, it is offline")
    require_seconds(task)
    if task.instance.cost.affine[0][0] == 0:
        raise UnsupportedError("batches without a base, it settles their number")
    if len(task.instance.requests) > _MOST_REQUESTS:
        raise UnsupportedError(f"more than {_MOST_REQUESTS} requests")


def _compile(relaxation: Callable[[Classes], Relaxation]) -> None:
    """Compile the loops where Ctrl-C does not reach the compiler, which would complain of it."""
    if until_interrupted(lambda _: wait_interruptibly(lambda: _compile_loops(relaxation), lambda: None)):
        raise KeyboardInterrupt


def _tiny_patterns(tiny: Classes) -> PatternRelaxation:
    return PatternRelaxation(tiny, 1, 3, 0)


def _tiny_graph(tiny: Classes) -> GraphRelaxation:
    graph = merged_graph(tiny, 4)
    return GraphRelaxation(graph, Walks(graph, 1, 2, few_places=0), 0)


def _compile_loops(relaxation: Callable[[Classes], Relaxation]) -> None:
    """Run every loop on the smallest of instances."""
    limits, rules, cost = Limits(2, 2, 2), Rules(chunked_prefill=False), CostModel(base=1, token=0)
    tiny = relaxation(Classes(Instance("compiled", limits, rules, cost, (Request(1, 2),))))
    priced = tiny.priced(tiny.improved(tiny.first_prices(2), 2, math.inf, 3, lambda: False), 2)
    space = priced.space()
    search_layers(space, 2, 3, None, lambda: False)
    compile_rest(space)
    if isinstance(tiny, GraphRelaxation) and isinstance(priced, GraphPriced):
        tiny.raised_together(2, 2, math.inf, 3, lambda: False)
        TwoSided(tiny, arcs_back(tiny.graph), priced).search(Reach(1, 1), 3, lambda: False)
        fillers = Fillers(tiny.graph.classes)
        fillers.filled(fillers.requests)
        fillers.best(np.zeros(len(fillers.requests)), np.zeros(1, dtype=np.int64))


class _Solution:
    """One task: what is known of every number of batches, and the best schedule so far."""

    def __init__(self, task: Task, sizes: _Sizes) -> None:
        self._task, self._sizes = task, sizes
        self._started = now_s()
        self._deadline = self._started + task.time_limit_s
        self._lonely = lonely_of(task.instance)
        self._classes = classes = Classes(self._lonely.rest)
        self._by_input = Classes(self._lonely.rest, alike=Alike.INPUT)
        self._constant_ps = self._lonely.classes.constant_ps + classes.base_ps * self._lonely.batches
        self._scale = scale = scale_of(classes)
        self._base = classes.base_ps * scale
        self._schedule = task.incumbent
        most = value_to_beat(task)
        # Value of a schedule that is as good as asked, if there is one. Only schedules of less than ``beyond`` matter;
        # whether that is the value of one that was found beside.
        self._value = most if task.incumbent_value == most else None
        self._beyond = most if task.incumbent_value == most else most + 1
        self._beside = False
        rest = replace(
            task, instance=self._lonely.rest, incumbent=None, incumbent_value=None, value_beside=nothing_beside
        )
        packing = find_packing(rest, _PACKING_SHARE * task.time_limit_s)
        least = [volume_bound(rest.instance).batches, max(output for _, output, _ in classes.kinds)]
        self._fewest = max(least if packing is None else [*least, packing.batches])
        # In units, for every number of batches that is not settled, without the constant work.
        self._open = {batches: batches * self._base for batches in range(self._fewest, self._most + 1)}
        self._prices: dict[int, Floats] = {}
        # Of which schedules are looked for, if not of all; and prices of all items, by input, to begin with.
        self._core: Core | None = None
        self._start: Floats | None = None
        # Whether prices have bounded them where only sizes tell requests apart.
        self._sized = False
        largest = scale * max(classes.base_ps, *classes.fill_ps, *classes.decode_ps)
        steps = most_steps(max(self._fewest, self._most), len(task.instance.requests))
        self._exact = largest * steps <= MOST_PAID

    def _relaxed(self) -> Relaxation:
        """Return prices of items if their graph is small enough, else of blocks."""
        classes, scale, seed = self._classes, self._scale, self._task.seed
        try:
            graph = merged_graph(self._by_input, self._most_nodes(self._sizes.graph), self._at(_GRAPH_SHARE))
        except TooLargeError:
            if self._exact and not self._packs and not self._sized:
                self._settle_large_core()
            _compile(_tiny_patterns)
            return PatternRelaxation(classes, scale, self._budget, seed)
        if not self._exact:
            raise UnsupportedError("times beyond 64 bits")
        _compile(_tiny_graph)
        return GraphRelaxation(graph, Walks(graph, scale, self._reach, self._sizes.few_places), seed, self._start)

    @property
    def _small(self) -> bool:
        """Whether the graph of all requests is as small as those of cores."""
        try:
            merged_graph(self._by_input, max((nodes for nodes, _ in self._sizes.cores), default=0))
        except TooLargeError:
            return False
        return True

    @property
    def _many_resident(self) -> bool:
        """Whether the cache holds many requests at a time."""
        return self._lonely.rest.kappa >= _MANY_RESIDENT

    @property
    def _packs(self) -> bool:
        """Whether HiGHS packs the arcs of all requests soon: it needs all the time that there is."""
        return len(self._lonely.rest.requests) <= _FEW_PACKED and self._many_resident

    @property
    def _reach(self) -> int:
        """The largest number of batches that prices may be asked for."""
        return max(self._fewest, self._most)

    def _most_nodes(self, most: int) -> int:
        """Return how many nodes, of at most some number, there is time and room for."""
        places = min(_MOST_PLACES, _PLACES_PER_S * self._task.time_limit_s)
        return min(most, int(places) // (self._reach + 1))

    @property
    def _budget(self) -> int:
        """Cost in units from which on a schedule is of no use, without the constant work."""
        return (self._beyond - self._constant_ps) * self._scale

    @property
    def _enough(self) -> float:
        """The budget in batches."""
        return self._budget / self._base

    @property
    def _most(self) -> int:
        """More batches take too long."""
        return (self._budget - 1) // self._base

    @property
    def _bound(self) -> int:
        """No schedule is better, in ps."""
        least = min(self._open.values(), default=self._budget)
        return min(self._beyond, self._constant_ps - (-least // self._scale))

    def solve(self) -> Outcome:
        """Settle one number of batches after the other."""
        until_interrupted(lambda _: self._settle_each())
        badge = Badge.SOLVER_CLAIMED
        if self._bound < self._beyond or self._beside:
            return Outcome(Termination.LIMIT, self._schedule, self._bound, badge)
        if self._value is None:
            return replace(nothing_better(self._task), badge=badge)
        return Outcome(Termination.OPTIMAL, self._schedule, self._value, badge)

    def _settle_each(self) -> None:
        if self._exact and not self._small:
            self._settle_cores()
            if self._open and not self._many_resident:
                self._settle_sizes()
        if not self._open:
            return
        self._relaxation = self._relaxed()
        if self._open:
            self._begin()
        if not self._open:
            return
        most = self._most
        quick, long = self._relaxation.widths
        if isinstance(self._relaxation, GraphRelaxation) and self._relaxation.walks.many_places(most):
            until = self._at(_TOGETHER_SHARE)
            self._raise_together(self._relaxation, until, (quick,), until)
        else:
            self._improve_all(most, _QUICK, quick, self._at(_QUICK_SHARE))
        if isinstance(self._relaxation, GraphRelaxation):
            self._raise_least(dict.fromkeys(self._open, self._relaxation), long, self._at(_LEAST_SHARE))
            self._search_all()
        elif isinstance(self._relaxation, PatternRelaxation) and self._affordable(self._relaxation):
            self._pack_all(self._relaxation)
            self._improve_all(most, _LONG, long, self._at(_LONG_SHARE))
            if len(self._open) <= _MOST_OPEN:
                self._search_all()

    def _settle_cores(self) -> None:
        """Bound the numbers of batches that are open by the largest classes, with others in the room left."""
        known, linear = 0, dict[int, int]()
        for most_nodes, share in self._sizes.cores:
            if known and (self._start is None or not self._open):
                break
            core = core_of(self._lonely.rest, self._classes, most_nodes)
            if core is None:
                break
            if core.items == known:
                continue
            if not known:
                _compile(_tiny_graph)
                _compile(_tiny_patterns)
            self._core, known, until = core, core.items, self._at(share)
            relaxations = self._cores(core, linear, self._at(share * _MASTER_SHARE))
            bounds = self._start is not None
            self._search_cores(relaxations, until, bounds=bounds)
            if bounds and self._open and relaxations.keys() >= self._open.keys():
                self._raise_least(relaxations, GraphRelaxation.widths[1], until)
            self._core, self._prices = None, {}

    def _cores(self, core: Core, linear: dict[int, int], until: float) -> dict[int, GraphRelaxation]:
        """Return what prices of a linear programme prove of the numbers of batches that are open, the least first.

        ``linear`` is what those of a smaller core prove, and then those of this one; if no more, the smaller one does.
        """
        master = Master(core, self._most, self._task.workers, self._task.seed)
        relaxations: dict[int, GraphRelaxation] = {}
        starts: dict[int, Floats] = {}
        for batches in sorted(self._open, key=lambda batches: (self._open[batches], batches)):
            prices = master.prices(batches, until) if now_s() < until else None
            if prices is None:
                break
            waiting, tokens = prices
            relaxation = self._core_relaxation(core, batches, tokens)
            priced = self._priced(relaxation, batches, np.tile(waiting, (batches + 1, 1)))
            if batches in self._open:
                if not relaxations and priced.bound < linear.get(batches, 0) + _GAIN * self._base:
                    return {}
                relaxations[batches], linear[batches] = relaxation, priced.bound
                starts[batches] = core.prices(waiting, tokens)
        least = min(relaxations, key=lambda batches: linear[batches], default=None)
        if least is not None:
            useful = linear[least] > (least + _REFILLS) * self._base
            self._start = prices_by_input(self._by_input, self._classes, starts[least]) if useful else None
        return relaxations

    def _settle_sizes(self) -> None:
        """Bound the numbers of batches that are open where only sizes tell requests apart."""
        sizes, seed = Classes(self._lonely.rest, alike=Alike.SIZE), self._task.seed
        if len(sizes.kinds) == len(self._by_input.kinds):
            return
        try:
            graph = merged_graph(sizes, self._most_nodes(self._sizes.graph), self._at(_GRAPH_SHARE))
        except TooLargeError:
            return
        _compile(_tiny_graph)
        walks, until = Walks(graph, self._scale, self._reach, self._sizes.few_places), self._at(_SIZES_SHARE)
        relaxation, charged = GraphRelaxation(graph, walks, seed), self._classes.constant_ps - sizes.constant_ps
        enough = self._enough + charged / self._classes.base_ps
        fewest, most, soon = min(self._open), max(self._open), self._over(self._at(_SIZES_JOINT_SHARE))
        price = relaxation.improved_together(fewest, most, enough, _LONG, soon)
        for batches, proved in enumerate(walks.proved(price, most)):
            self._raise(batches, proved - charged * self._scale)
        found, over = dict.fromkeys(self._open, price[0]), self._over(until)
        visited: set[int] = set()
        while self._open.keys() - visited and not over():
            batches = min(self._open.keys() - visited, key=lambda batches: (self._open[batches], batches))
            visited.add(batches)
            soon = self._over(min(until, self._at(_VISIT_SHARE)))
            better = relaxation.improved(price, batches, enough, _LONG, soon)
            for each in (better, relaxation.raised(better, batches, enough, _LONG, soon)):
                self._raise(batches, walks.proved(each, batches)[batches] - charged * self._scale)
            found[batches] = better[0]
        self._sized = True
        least = min(self._open.keys() & found.keys(), key=lambda batches: self._open[batches], default=None)
        if least is not None:
            self._start = prices_by_size(self._by_input, sizes, found[least])

    def _settle_large_core(self) -> None:
        """Bound the numbers of batches that are open by a core that is too large for a linear programme."""
        core = core_of(self._lonely.rest, self._classes, self._most_nodes(self._sizes.large_core))
        if core is None:
            return
        _compile(_tiny_graph)
        _compile(_tiny_patterns)
        self._core, until = core, self._at(_LARGE_CORE_SHARE)
        over = self._over(self._at(_JOINT_SHARE))
        waiting, tokens = JointPrices(core, min(self._open), self._reach).improved(self._enough, _LONG, over)
        relaxation = self._core_relaxation(core, self._reach, tokens, waiting)
        self._raise_together(relaxation, self._at(_RISE_SHARE), relaxation.widths, until)
        # Where it takes no refills it is no use: others need the time.
        if self._open and min(self._open.values()) > (min(self._open) + _FEW_REFILLS) * self._base:
            self._raise_least(dict.fromkeys(self._open, relaxation), relaxation.widths[1], until)
        self._core, self._prices = None, {}

    def _core_relaxation(
        self, core: Core, batches: int, tokens: Floats, start: Floats | None = None
    ) -> GraphRelaxation:
        """Return prices of the core's items, with those of tokens of fillers in whole units."""
        walks = core.walks(core.rounded(tokens, batches, self._scale), batches, self._scale)
        return GraphRelaxation(core.graph, walks, self._task.seed, start)

    def _search_cores(self, relaxations: dict[int, GraphRelaxation], until: float, *, bounds: bool) -> None:
        """Look for schedules of the least bounds; then settle what takes least, until something takes too long."""
        order = sorted(relaxations, key=lambda batches: self._open.get(batches, 0))
        for width in (*GraphRelaxation.widths, None) if bounds else GraphRelaxation.widths[:1]:
            for batches in order if width else order[::-1]:
                soon = self._over(min(until, self._at(_CORE_SEARCH_SHARE)))
                if batches in self._open and not soon():
                    priced = relaxations[batches].priced(self._prices[batches], batches)
                    if not self._search(priced, batches, width, soon) and width is None:
                        return

    def _begin(self) -> None:
        """Look for a schedule of few batches where the best one known leaves room for many more than are needed."""
        more, until = 1, self._at(_QUICK_SHARE)
        over = self._over(until)
        while self._most > _ROOM * (self._fewest + more) and not over():
            batches = self._fewest + more
            priced = self._improved(batches, self._relaxation.first_prices(batches), _QUICK, over)
            self._search(priced, batches, self._relaxation.widths[0], over)
            more *= 2

    def _affordable(self, relaxation: PatternRelaxation) -> bool:
        """Whether there is time for prices to converge: else others make more of it."""
        return sum(self._open) * relaxation.batch_s < self._deadline - now_s()

    def _improve_all(self, most: int, rounds: int, width: int, until: float) -> None:
        """Bound the numbers of batches that are open, most first, and look for schedules."""
        price = self._relaxation.first_prices(most)
        for batches in range(most, self._fewest - 1, -1):
            if batches not in self._open or now_s() > self._deadline:
                continue
            # Each has twice its share of the time left, since others need less.
            over = self._over(min(until, now_s() + 2.0 * (until - now_s()) / len(self._open)))
            price = self._prices.get(batches, price)
            priced = self._improved(batches, price, rounds, over)
            while rounds == _LONG and batches in self._open and not over():
                before = priced.bound
                priced = self._improved(batches, self._prices[batches], rounds, over)
                if priced.bound < before + _GAIN * self._base:
                    break
            price = self._prices[batches]
            self._search(priced, batches, width, self._over(until))

    def _raise_together(
        self, relaxation: GraphRelaxation, rise_until: float, widths: Sequence[int], until: float
    ) -> None:
        """Bound all numbers of batches that are open by the same prices, and look for schedules."""
        fewest, most, over = min(self._open), max(self._open), self._over(until)
        price = relaxation.raised_together(fewest, most, self._enough, _LONG, self._over(rise_until))
        every = relaxation.priced(price, most) if self._time_for(relaxation, most) else None
        proved = relaxation.walks.proved(price, most) if every is None else [every.of(n).bound for n in range(most + 1)]
        for batches in list(self._open):
            self._prices[batches] = price
            self._raise(batches, proved[batches])
        if every is None:
            return
        for width in widths:
            for batches in sorted(self._open, key=lambda batches: (self._open[batches], batches)):
                self._search(every.of(batches), batches, width, over)

    def _time_for(self, relaxation: GraphRelaxation, batches: int) -> bool:
        """Return whether what prices prove of a number of batches can be computed in time."""
        return relaxation.walks.exact_s(batches) < self._deadline - now_s()

    def _pack_all(self, relaxation: PatternRelaxation) -> None:
        """Pack arcs for the numbers of batches that are open, with budgets that rise from the bound.

        Arcs within a small budget are few: it is refuted soon, or HiGHS finds what ends the search.
        """
        seed, priced = self._task.seed, {}
        for batches in list(self._open):
            now = now_s()
            if batches in self._open and now < self._deadline and batches * len(self._classes.size) <= _MOST_ARCS:
                before = relaxation.priced(self._prices[batches], batches)
                priced[batches] = tightened(before, self._budget, (self._deadline - now) / len(self._open), seed)
                self._prices[batches] = priced[batches].price / relaxation.base
                self._raise(batches, priced[batches].bound)
        settled, rise = True, _RISE * self._base
        while settled and priced.keys() >= self._open.keys() and self._open:
            budget = min(self._budget, min(self._open.values()) + int(rise))
            order = sorted(self._open, key=lambda batches: self._open[batches])
            rise *= _MORE
            while order and settled:
                share, batches = (1 / len(order) if budget == self._budget else _EARLY_SHARE), order.pop()
                budget, seconds = min(budget, self._budget), share * (self._deadline - now_s())
                if self._open.get(batches, budget) < budget:
                    settled = seconds > _LEAST_ARCS_S and self._pack(priced[batches], budget, seconds)

    def _pack(self, priced: PatternPriced, budget: int, seconds: float) -> bool:
        """Pack the arcs of a number of batches; return whether none costs less than the budget, or one was found."""
        packed = ArcProgramme(priced, budget).pack(seconds, self._task.seed)
        self._take(packed.steps)
        self._raise(priced.batches, packed.bound)
        return self._budget < budget or self._open.get(priced.batches, budget) >= budget

    def _search_all(self) -> None:
        """Search the numbers of batches that are open, those of the best bounds first."""
        for batches in sorted(self._open, key=lambda batches: -self._open[batches]):
            if batches in self._open and now_s() < self._deadline:
                priced = self._relaxation.priced(self._prices[batches], batches)
                self._search(priced, batches, None, self._over(self._at(1 / len(self._open))))

    def _improved(self, batches: int, price: Floats, rounds: int, over: Callable[[], bool]) -> Priced:
        """Look for better prices of a number of batches and take what they prove."""
        relaxation = self._relaxation
        return self._priced(relaxation, batches, relaxation.improved(price, batches, self._enough, rounds, over))

    def _priced(self, relaxation: Relaxation, batches: int, price: Floats) -> Priced:
        """Take prices of a number of batches and what they prove."""
        self._prices[batches] = price
        priced = relaxation.priced(price, batches)
        self._raise(batches, priced.bound)
        return priced

    def _raise_least(self, relaxations: dict[int, GraphRelaxation], width: int, until: float) -> None:
        """Raise the least bound: by prices until they have converged, then by searches from both ends.

        Each search of a number of batches goes a little further than the one before. Where it is large, prices may rise
        before it begins again.
        """
        if not self._open:
            return
        over, graph = self._over(until), relaxations[min(self._open)].graph
        dear = relaxations[min(self._open)].walks.many_places(min(self._open))
        converged: set[int] = set()
        # What is known of them is all that there is.
        searched: set[int] = set()
        # Where looks take long prices may rise from the begin.
        risen = set(self._open) if dear else set[int]()
        searches: dict[int, TwoSided] = {}
        back = arcs_back(graph)
        while self._open and not over():
            batches = min(self._open, key=lambda batches: (self._open[batches], batches))
            relaxation = relaxations[batches]
            if batches in searched or not self._time_for(relaxation, batches):
                break
            if batches not in converged:
                before = self._open[batches]
                known = [self._prices[other] for other in (batches - 1, batches, batches + 1) if other in self._prices]
                soon = self._over(min(until, self._at(_VISIT_SHARE)))
                better = relaxation.raised if dear else relaxation.improved
                start = relaxation.best_of(known, batches)
                priced = self._priced(relaxation, batches, better(start, batches, self._enough, _LONG, soon))
                self._search(priced, batches, width, over)
                if priced.bound < before + _GAIN * self._base:
                    converged.add(batches)
                    soon = self._over(min(until, self._at(_SEARCH_SHARE)))
                    if not affordable(graph, batches) and self._search(priced, batches, None, soon):
                        searched.add(batches)
                continue
            if batches not in risen:
                risen.add(batches)
                priced = self._priced(relaxation, batches, self._risen(relaxation, batches, until))
                self._search(priced, batches, width, over)
                continue
            if not affordable(graph, batches):
                break
            if batches not in searches:
                if not affordable(graph, batches, len(searches) + 1):
                    searches.clear()
                searches[batches] = TwoSided(relaxation, back, relaxation.priced(self._prices[batches], batches))
            found = searches[batches].further(self._budget, over)
            self._take_found(found, batches)
            if found.steps and self._core is not None:
                searched.add(batches)
            if not found.complete:
                break

    def _risen(self, relaxation: GraphRelaxation, batches: int, until: float) -> Floats:
        """Return prices that rise, or those that are known if these prove more.

        They begin with first prices: where steps along slopes end depends on that, and with what is known of other
        numbers of batches they end lower.
        """
        soon = self._over(min(until, self._at(_RISE_SHARE)))
        first = relaxation.improved(relaxation.first_prices(batches), batches, self._enough, _LONG, soon)
        risen = relaxation.raised(first, batches, self._enough, _LONG, soon)
        return relaxation.best_of([self._prices[batches], risen], batches)

    def _raise(self, batches: int, bound: int) -> None:
        """Take a bound on a number of batches."""
        if batches in self._open:
            self._open[batches] = max(self._open[batches], bound)
        self._settle()

    def _take(self, steps: list[tuple[int, int]]) -> None:
        """Take a schedule that is better, unless there are no steps."""
        if steps:
            found = self._lonely.steps + among(self._lonely.classes, self._classes, steps)
            self._schedule = schedule_of_steps(self._task.instance, self._lonely.classes, found)
            metrics = evaluate(self._task.instance, self._schedule)
            self._value = self._beyond = int(metrics["objectives"][self._task.objective.value])
            self._beside = False

    def _search(self, priced: Priced, batches: int, width: int | None, over: Callable[[], bool]) -> bool:
        """Search a number of batches, unless it is settled, take what is found, and return whether that was all.

        Of a core the least cost of its schedules is a bound; they may become some of all requests.
        """
        if batches not in self._open:
            return False
        found = search_layers(priced.space(), batches, self._budget, width, over)
        self._take_found(found, batches)
        return found.complete

    def _take_found(self, found: Found, batches: int) -> None:
        """Take the schedule that was found of a number of batches, and a bound on it."""
        steps = found.steps
        if steps and self._core is not None:
            over = self._over(self._at(_COMPLETION_SHARE))
            steps = by_output(self._core.graph.classes, self._core.inside, steps)
            steps = completed(self._core, steps, batches, self._scale, self._budget, seed=self._task.seed, over=over)
        elif steps and isinstance(self._relaxation, GraphRelaxation):
            steps = by_output(self._by_input, self._classes, steps)
        self._take(steps)
        self._raise(batches, found.bound)

    def _settle(self) -> None:
        """Drop the numbers of batches that cannot be better than what is known by now, and tell what is."""
        beside = self._task.value_beside()
        if beside is not None and beside < self._beyond:
            self._beyond, self._beside = beside, True
        self._open = {batches: bound for batches, bound in self._open.items() if bound < self._budget}
        elapsed = now_s() - self._started
        self._task.progress(ProgressEvent(elapsed, self._value or self._task.incumbent_value, self._bound))

    def _at(self, share: float) -> float:
        """Return the moment when a share of the time left will have passed."""
        now = now_s()
        return now + share * (self._deadline - now)

    @staticmethod
    def _over(until: float) -> Callable[[], bool]:
        return lambda: now_s() > until
