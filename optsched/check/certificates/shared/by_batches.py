r"""A search of walks through cache contents that have some number of runs, batch by batch.

It is the search of `layered_search`: see there for what walks, pools and prices are. After every run it has the pairs
of a state and a pool that some walk reaches, each at the least *cost* of those, with a *bound*: no walk that goes on
from that costs less in all. From each it takes every batch: evictions, in the order of items, then the begin, then
fills and ends, in that order too, and the run. Wherever a walk is, its cost, the prices of what waits and the least
priced cost to the sink, in as many runs as are left, are what it costs in all, at least. If that reaches ``beyond``,
the walk is left. What is evicted is not filled with the same item in the same batch: a walk without both costs no more,
since refills take no less time than decodes.

*Stages.* A stage has prices that hold after some number of runs, until the next one. Any prices estimate any pair; so
where a stage begins, every bound is raised to what its prices say, and a pair whose bound reaches ``beyond`` is
dropped. Prices that are good for the pairs of a batch leave far fewer of them than those that are good for the source.

The readable form is here; the compiled one (`batch_pairs`) does the same where numbers fit into 64 bits, but asks the
prices of the stages to come before it keeps a pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import mul
from typing import NamedTuple

from optsched.check.certificates.shared import batch_pairs
from optsched.check.certificates.shared.contents import (
    MOST_STATES,
    Graph,
    Item,
    Kind,
    Prices,
    Rules,
    explore,
    layered,
    repriced,
)
from optsched.check.certificates.shared.least import least_to_sink
from optsched.check.certificates.shared.packed import MOST_STATES_COMPILED, integers, packed
from optsched.check.certificates.shared.resident_states import explore_graph
from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError
from optsched.model.objectives import Objective

MOST_COPIES = 20_000_000
"""States times numbers of runs of the compiled form, of which each takes a number."""


class Stage(NamedTuple):
    """Prices of items that hold after some number of runs."""

    after: int
    prices: list[int]


class Walkers(NamedTuple):
    """What walks.

    Attributes
    ----------
    items
        Of the groups that are in the graph.
    worth
        What others are worth at most in a batch, in ps / scale, by the blocks that are left to them; empty if there are
        none. A run takes so much less, and may be one of no item.
    scale
        Costs are in ps / scale.
    """

    items: list[Item]
    worth: Sequence[int]
    scale: int


def least_of_walks(
    problem: Problem, walkers: Walkers, stages: Sequence[Stage], beyond: int, *, batches: int, most: int
) -> tuple[int, int]:
    """Return the least cost of a walk with that many runs, ``beyond`` if there is none below it.

    If more than ``most`` pairs would be looked at on the way, it is what is proved by then. How many were comes second.
    The first stage begins before the first batch.
    """
    found = _compiled(problem, walkers, stages, beyond, batches=batches, most=most)
    if found is not None:
        return found
    prices = Prices(stages[0].prices, frozenset(), walkers.scale)
    rules = Rules(problem, Objective.MAKESPAN, walkers.items, prices, worth=walkers.worth)
    search = _Search(explore(rules, MOST_STATES // (batches + 1)), walkers.items, beyond, batches)
    return search.least(stages, most), search.looked


def _compiled(
    problem: Problem, walkers: Walkers, stages: Sequence[Stage], beyond: int, *, batches: int, most: int
) -> tuple[int, int] | None:
    """Return what the compiled form says; None if only the readable one may tell."""
    items = walkers.items
    paid = [
        sum(item.requests * abs(price) for item, price in zip(items, stage.prices, strict=True)) for stage in stages
    ]
    prices = Prices(stages[0].prices, frozenset(), walkers.scale)
    # Word 0 of a pair is its state.
    arrays = packed(problem, items, prices, first_word=1, others=[abs(beyond), max(walkers.worth, default=0), *paid])
    if arrays is None:
        return None
    most_states = min(MOST_STATES_COMPILED, MOST_COPIES // (batches + 1))
    graph = explore_graph(
        arrays.items,
        problem.blocks,
        arrays.base,
        integers(walkers.worth),
        problem.eviction,
        False,
        arrays.lanes,
        most_states,
    )
    if not graph.complete:
        raise UnprovedError(f"the graph has more than {most_states} states, which are not searched")
    each = [(stage.after, integers(stage.prices)) for stage in stages]
    found = batch_pairs.least_of_walks(graph, arrays, each, beyond, batches=batches, most=most)
    if found is None:
        raise UnprovedError("item_prices: a way through cache contents costs 2^61 or more either way")
    return found


_Pair = tuple[int, tuple[int, ...]]
"""A state and, for every item, how many wait."""


class _Known(NamedTuple):
    """The least cost at which a pair is reached, and what a walk on from there costs in all, at least."""

    cost: int
    bound: int


class _Step(NamedTuple):
    """Where a walk is within a batch, what it cost, what it is estimated at, the item of the last such move.

    And the items that requests wait for since they were evicted in this batch.
    """

    state: int
    pool: tuple[int, ...]
    cost: int
    total: int
    last: int
    evicted: frozenset[int] = frozenset()


class _Search:
    """The readable form.

    Attributes
    ----------
    looked
        Pairs that were looked at, each as often as walks get there within a batch.
    """

    def __init__(self, graph: Graph, items: Sequence[Item], beyond: int, batches: int) -> None:
        self.looked = 0
        self._graph, self._beyond, self._batches = graph, beyond, batches
        self._start = tuple(item.fresh for item in items)

    def least(self, stages: Sequence[Stage], most: int) -> int:
        """Return the least cost of a walk, or ``beyond``, or what is proved."""
        self._take(stages[0])
        source = self._graph.source, self._start
        layer = {source: _Known(0, self._estimate(source, 0, 0))} if self._home[source[0]] is not None else {}
        layer = self._below(layer)
        for done in range(self._batches):
            for stage in stages[1:]:
                if stage.after == done:
                    self._take(stage)
                    layer = self._below(
                        {
                            pair: _Known(known.cost, max(known.bound, self._estimate(pair, known.cost, done)))
                            for pair, known in layer.items()
                        }
                    )
            left, later = [*layer.items()], dict[_Pair, _Known]()
            for place, (pair, known) in enumerate(left):
                if self.looked >= most:
                    return min(known.bound for known in (*later.values(), *(known for _, known in left[place:])))
                total = self._estimate(pair, known.cost, done)
                for after, cost, found in self._batch(_Step(*pair, known.cost, total, -1), done):
                    bound, before = max(found, known.bound), later.get(after)
                    if before is None or (cost, -bound) < (before.cost, -before.bound):
                        later[after] = _Known(cost, bound)
            layer = later
        end = layer.get((self._graph.sink, (0,) * len(self._start)))
        return self._beyond if end is None else end.cost

    def _take(self, stage: Stage) -> None:
        """Let the prices of a stage hold."""
        self._prices, self._graph = stage.prices, repriced(self._graph, stage.prices)
        self._home = least_to_sink(layered(self._graph, self._batches))

    def _below(self, layer: dict[_Pair, _Known]) -> dict[_Pair, _Known]:
        return {pair: known for pair, known in layer.items() if known.bound < self._beyond}

    def _estimate(self, pair: _Pair, cost: int, done: int) -> int:
        home = self._home[done * len(self._graph.states) + pair[0]]
        assert home is not None
        paid: int = sum(map(mul, self._prices, pair[1]))
        return cost + paid + home

    def _batch(self, step: _Step, done: int) -> Iterator[tuple[_Pair, int, int]]:
        """Yield the pairs after the batch, what they cost and, with all that follows, are estimated at."""
        self.looked += 1
        states, home = len(self._graph.states), self._home
        here = home[done * states + step.state]
        for move in self._graph.moves[step.state]:
            ahead = home[(done + (move.kind is Kind.RUN)) * states + move.head]
            if here is None or ahead is None:
                continue
            cost, total, pool = step.cost + move.cost, step.total + move.priced + ahead - here, step.pool
            if total >= self._beyond:
                continue
            if move.kind is Kind.RUN:
                yield (move.head, pool), cost, total
            elif move.kind is Kind.BEGIN:
                yield from self._batch(step._replace(state=move.head, cost=cost, total=total, last=-1), done)
            elif move.item >= step.last:
                evicts = move.kind is Kind.EVICT
                item, more = (move.item + 1, 1) if evicts else (move.item, -1)
                if evicts or (pool[item] > 0 and item not in step.evicted):
                    pool = (*pool[:item], pool[item] + more, *pool[item + 1 :])
                    evicted = step.evicted | {item} if evicts else step.evicted
                    yield from self._batch(_Step(move.head, pool, cost, total, move.item, evicted), done)
