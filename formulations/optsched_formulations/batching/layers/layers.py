"""Searching the schedules of one number of batches, layer by layer, with the bounds of `walks`.

A layer holds the states after the same number of batches that may still lead to a schedule below the budget. Cut down
to a number of states, those of the least bounds, it is a *beam*, which finds good schedules; in full it is a proof: if
no schedule turns up there is none. Where a layer is large, prices are found again for one of its states, and the bounds
of all its states raised by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import numpy as np

from optsched.model.ints import Ints
from optsched_formulations.batching.layers.graph import MergedGraph
from optsched_formulations.batching.layers.graph_kernel import Numbers
from optsched_formulations.batching.layers.layer_kernel import (
    DONE,
    FULL,
    Fields,
    Layer,
    Words,
    enter_again,
    raise_bounds,
    through_a_batch,
)
from optsched_formulations.batching.layers.walks import Table, Walks
from optsched_formulations.batching.search.state_steps import EVICT, FILL, RUN

_BITS = 64
_STEP = 20_000
"""States between two looks at the clock."""
_FIRST_ROOM = 1 << 14
_LARGE, _FEW_LEFT = 3_000, 3
"""States of a layer from which on prices are found again, unless that few batches are left."""
_TRIES, _ROUNDS = 4, 40
"""Prices that are tried for a layer, and the rounds that each may take."""
_WEAK = 0.1
"""Share of a layer that prices have to drop to be worth more of them."""
_SAMPLE = 5


@dataclass
class Found:
    """How a search of some number of batches ended.

    Parameters
    ----------
    complete
        Whether no state was left out: then no schedule costs less than the budget.
    budget
        The cost of the best schedule found, or what it was.
    steps
        Kind and item of the steps of the best schedule found; none if there is none.
    """

    complete: bool
    budget: int
    steps: list[tuple[int, int]] = field(default_factory=list)


class Layers:
    """Searches of one graph.

    Parameters
    ----------
    graph, walks
        The graph, and what prices prove on it.
    most_states
        States that are kept in all, for the schedule that they lead to.
    seed
        Of the choice of states to find prices for.
    """

    def __init__(self, graph: MergedGraph, walks: Walks, most_states: int, seed: int) -> None:
        self._graph, self._walks, self._most_states = graph, walks, most_states
        self._random = np.random.default_rng(seed)
        classes = graph.classes
        word, shift = np.zeros(len(classes.size), dtype=np.int64), np.zeros(len(classes.size), dtype=np.uint64)
        width = [len(classes.members[owner]).bit_length() for owner in classes.owner]
        words, used = 1, _BITS
        for item, bits in enumerate(width):
            if used + bits > _BITS:
                words, used = words + 1, 0
            word[item], shift[item] = words - 1, used
            used += bits
        mask = np.array([(1 << bits) - 1 for bits in width], dtype=np.uint64)
        self._fields = Fields(word, shift, mask)
        self._source = np.zeros(words, dtype=np.uint64)
        for item in np.flatnonzero(walks.fresh).tolist():
            self._source[word[item]] += np.uint64(int(walks.fresh[item]) << int(shift[item]))

    def search(self, table: Table, batches: int, budget: int, width: int | None, over: Callable[[], bool]) -> Found:
        """Look for a schedule of some number of batches that costs less than the budget, without the constant work.

        ``width`` is the number of states that a layer is cut down to, None for all.
        """
        layer = _empty(1, len(self._source))
        layer.words[0], layer.extra[0], layer.bound[0], layer.parent[0] = self._source, 0, 0, -1
        count, history, found = 1, [], Found(True, budget)
        for done in range(batches):
            history.append((layer.words[:count].copy(), layer.parent[:count].copy()))
            if sum(len(words) for words, _ in history) > self._most_states:
                found.complete = False
                break
            following, count, finished = self._through(table, layer, count, done, batches, found, over)
            if finished >= 0:
                found.steps = self._steps(history, finished)
            if count < 0:
                found.complete = False
                break
            layer, left = following, batches - done - 1
            if width is not None and count > width:
                chosen = np.argpartition(layer.bound[:count], width)[:width]
                layer, count, found.complete = _taken(layer, chosen), width, False
            elif width is None and count > _LARGE and left > _FEW_LEFT:
                table, count = self._priced_again(table, layer, count, left, batches, found.budget, over)
            if count == 0:
                break
        return found

    def compile_rest(self, table: Table) -> None:
        """Run the loops that only large layers need, on no states."""
        layer = _empty(1, len(self._source))
        raise_bounds(self._fields, layer, 0, table.price, table.least[0], 0, 0)
        enter_again(layer, 0, np.full(2, -1, dtype=np.int32))

    def _through(  # noqa: PLR0917
        self, table: Table, layer: Layer, count: int, done: int, batches: int, found: Found, over: Callable[[], bool]
    ) -> tuple[Layer, int, int]:
        """Return the next layer, its number of states (−1 if it was not finished), and which state finished, or −1."""
        left = batches - done
        there = _empty(_FIRST_ROOM, len(self._source))
        hashed: Numbers = np.full(2 * _FIRST_ROOM, -1, dtype=np.int32)
        progress: Ints = np.array([0, 0, found.budget, -1], dtype=np.int64)
        while True:
            outcome = through_a_batch(
                self._graph.arcs,
                self._fields,
                table.price,
                self._walks.extra,
                table.least[left],
                table.composing[left],
                table.least[left - 1],
                done * self._walks.base,
                self._walks.base,
                layer,
                count,
                there,
                hashed,
                progress,
                _STEP,
            )
            found.budget = int(progress[2])
            if outcome == DONE:
                return there, int(progress[1]), int(progress[3])
            if over() or progress[1] > self._most_states:
                return there, -1, int(progress[3])
            if outcome == FULL:
                there = _grown(there)
                hashed = np.full(2 * len(there.extra), -1, dtype=np.int32)
                enter_again(there, int(progress[1]), hashed)

    def _priced_again(  # noqa: PLR0917
        self, table: Table, layer: Layer, count: int, left: int, batches: int, budget: int, over: Callable[[], bool]
    ) -> tuple[Table, int]:
        """Find prices for states of a layer and raise all bounds by them; return the best table and what stays."""
        walks, base = self._walks, self._walks.base
        spent = (batches - left) * base
        for _ in range(_TRIES):
            if count <= _LARGE or over():
                break
            sample = self._random.integers(count, size=_SAMPLE)
            state = int(sample[np.argmin(layer.bound[sample])])
            enough = (budget - spent - int(layer.extra[state])) / base + 0.02
            _, price = walks.improved(
                table.price / base,
                int(layer.words[state, 0]),
                self._pool(layer.words[state]),
                left,
                enough,
                _ROUNDS,
                over,
            )
            tried = walks.table(price, left)
            before = count
            count = raise_bounds(self._fields, layer, count, tried.price, tried.least[left], spent, budget)
            if before - count < _WEAK * before:
                break
            table = tried
        return table, count

    def _pool(self, words: Words) -> Ints:
        word, shift, mask = self._fields
        return cast(Ints, ((words[word] >> shift) & mask).astype(np.int64))

    def _steps(self, history: list[tuple[Words, Numbers]], finished: int) -> list[tuple[int, int]]:
        """Return the steps of the schedule that a state of the last layer finishes in one more batch."""
        pools = [np.zeros_like(self._walks.fresh)]
        state = finished
        for words, parent in reversed(history):
            pools.append(self._pool(words[state]))
            state = int(parent[state])
        pools.reverse()
        steps: list[tuple[int, int]] = []
        for before, after in pairwise(pools):
            change = after - before
            steps += [(EVICT, item) for item in np.flatnonzero(change > 0).tolist() for _ in range(change[item])]
            steps += [(FILL, item) for item in np.flatnonzero(change < 0).tolist() for _ in range(-change[item])]
            steps.append((RUN, -1))
        return steps


def _empty(room: int, words: int) -> Layer:
    return Layer(
        words=np.zeros((room, words), dtype=np.uint64),
        extra=np.zeros(room, dtype=np.int64),
        bound=np.zeros(room, dtype=np.int64),
        parent=np.zeros(room, dtype=np.int32),
    )


def _grown(layer: Layer) -> Layer:
    """Return a layer of twice the room, with the same states."""
    return _taken(layer, np.arange(2 * len(layer.extra)) % len(layer.extra))


def _taken(layer: Layer, states: Ints) -> Layer:
    words, extra, bound, parent = layer
    return Layer(words[states], extra[states], bound[states], parent[states])
