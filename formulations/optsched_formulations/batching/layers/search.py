"""Searching the schedules of one number of batches, layer by layer.

A layer holds the states after the same number of batches that may still lead to a schedule below the budget. Cut down
to a number of states, those of the least bounds, it is a *beam*, which finds good schedules; in full it is a proof: if
no schedule turns up there is none, and where time or room end before, no schedule is better than the least bound of the
last layer that is complete. What states are, and what bounds them, is a `Relaxation`'s: prices on the merged graph of
resident sets (`graph_layers`), or of blocks in batches where that graph is too large (`pattern_layers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, cast

import numpy as np

from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.graph_kernel import Numbers
from optsched_formulations.batching.layers.layer_kernel import DONE, FULL, Fields, Layer, Words, enter_again
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.state_steps import EVICT, FILL, RUN

_BITS = 64
_STEP, _BEAM_STEP = 20_000, 100
"""States between two looks at the clock, and at the size of the next layer of a beam."""
_CROWDED = 8
"""Times the width of a beam that its next layer may have before it is cut."""
_FIRST_ROOM = 1 << 14
"""Of a layer at first."""


@dataclass
class Found:
    """How a search of some number of batches ended.

    Parameters
    ----------
    complete
        Whether no state was left out: then no schedule costs less than the budget.
    budget
        The cost of the best schedule found, or what it was.
    bound
        No schedule of this number of batches costs less than this or the budget, without the constant work.
    steps
        Kind and item of the steps of the best schedule found; none if there is none.
    """

    complete: bool
    budget: int
    bound: int = 0
    steps: list[tuple[int, int]] = field(default_factory=list)


class Space(Protocol):
    """The states of one number of batches, and what bounds them."""

    pools: Pools
    source: Words
    """The state before the first batch."""
    most_states: int
    """That are kept in all, for the schedule that they lead to."""
    raises_beams: bool
    """Whether the bounds of a beam are raised, too: where that takes little."""

    def through(  # noqa: PLR0917
        self, done: int, here: Layer, count: int, there: Layer, hashed: Numbers, progress: Ints, limit: int
    ) -> int:
        """Run the batch after the first ``done``, as `layer_kernel.through_a_batch` does."""

    def raised(self, done: int, layer: Layer, count: int, budget: int, over: Callable[[], bool]) -> int:
        """Raise the bounds of states after ``done`` batches, drop those that reach the budget; return how many stay."""

    def compile_rest(self, layer: Layer) -> None:
        """Run the loop that only large layers need, on no states."""


class Priced(Protocol):
    """What prices prove of one number of batches."""

    @property
    def bound(self) -> int:
        """No schedule costs less, without the constant work, in units."""

    def space(self) -> Space:
        """Return the states that these prices bound."""


class Relaxation(Protocol):
    """Prices that bound schedules of any number of batches."""

    widths: tuple[int, int]
    """States of a beam, at first and then where a number of batches is still open."""

    def first_prices(self, batches: int) -> Floats:
        """Return prices to begin with."""

    def improved(self, price: Floats, batches: int, enough: float, rounds: int, over: Callable[[], bool]) -> Floats:
        """Return the best prices found; a bound of ``enough``, in batches, suffices."""

    def priced(self, price: Floats, batches: int) -> Priced:
        """Round prices and compute what they prove, exactly."""


class Pools:
    """How many requests wait for each item, in fields of bits.

    Parameters
    ----------
    classes
        The items.
    first
        Words of a state before its pool.

    Attributes
    ----------
    fields
        Where a state has the number of every item.
    words
        Those before the pool, and its own.
    source
        The one in which all wait for their first tokens.
    """

    def __init__(self, classes: Classes, first: int) -> None:
        items = len(classes.size)
        word, shift = np.zeros(items, dtype=np.int64), np.zeros(items, dtype=np.uint64)
        width = [len(classes.members[owner]).bit_length() for owner in classes.owner]
        words, used = first, _BITS
        for item, bits in enumerate(width):
            if used + bits > _BITS:
                words, used = words + 1, 0
            word[item], shift[item] = words - 1, used
            used += bits
        mask = np.array([(1 << bits) - 1 for bits in width], dtype=np.uint64)
        self.fields, self.words = Fields(word, shift, mask), words
        self.source = self.words_of(np.array(classes.fresh))

    def words_of(self, waiting: Ints) -> Words:
        """Return a state with a pool in which as many wait for every item, and zeros before it."""
        state: Words = np.zeros(self.words, dtype=np.uint64)
        for item in np.flatnonzero(waiting):
            state[self.fields.word[item]] += np.uint64(int(waiting[item]) << int(self.fields.shift[item]))
        return state

    def waiting(self, words: Words) -> Ints:
        """Return how many wait for every item in a state."""
        word, shift, mask = self.fields
        return cast(Ints, ((words[word] >> shift) & mask).astype(np.int64))


def search_layers(space: Space, batches: int, budget: int, width: int | None, over: Callable[[], bool]) -> Found:
    """Look for a schedule of some number of batches that costs less than the budget, without the constant work.

    ``width`` is the number of states that a layer is cut down to, None for all.
    """
    layer = empty_layer(1, len(space.source))
    layer.words[0], layer.extra[0], layer.bound[0], layer.parent[0] = space.source, 0, 0, -1
    count, history, found = 1, [], Found(True, budget)
    for done in range(batches):
        history.append((layer.words[:count].copy(), layer.parent[:count].copy()))
        if sum(len(words) for words, _ in history) > space.most_states:
            found.complete = False
            break
        layer, count, finished = _through(space, layer, count, done, found, width, over)
        if finished >= 0:
            found.steps = _steps(space.pools, history, finished)
        if count < 0:
            found.complete = False
            break
        if width is None or space.raises_beams:
            count = space.raised(done + 1, layer, count, found.budget, over)
        if width is not None and count > width:
            layer, count, found.complete = _cut(layer, count, width), width, False
        if found.complete:
            found.bound = int(layer.bound[:count].min(initial=found.budget))
        if count == 0:
            break
    if found.complete:
        # States that are left have no batch any more.
        found.bound = found.budget
    return found


def compile_rest(space: Space) -> None:
    """Run the loops that only large layers need, on no states."""
    layer = empty_layer(1, len(space.source))
    space.compile_rest(layer)
    enter_again(layer, 0, np.full(2, -1, dtype=np.int32))


def _through(  # noqa: PLR0917
    space: Space, here: Layer, count: int, done: int, found: Found, width: int | None, over: Callable[[], bool]
) -> tuple[Layer, int, int]:
    """Return the next layer, its number of states (−1 if it was not finished), and which state finished, or −1."""
    there, hashed = next_layer(here.words.shape[1])
    progress: Ints = np.array([0, 0, found.budget, -1, -1, 0], dtype=np.int64)
    step, finished = (_STEP if width is None else _BEAM_STEP), -1
    while True:
        outcome = space.through(done, here, count, there, hashed, progress, step)
        if progress[3] >= 0:
            found.budget, finished, progress[3] = int(progress[2]), int(progress[3]), -1
        if outcome == DONE:
            return there, int(progress[1]), finished
        if over() or progress[1] > space.most_states:
            return there, -1, finished
        if outcome == FULL:
            there, hashed = grown(there, int(progress[1]))
        elif width is not None and progress[1] > _CROWDED * width:
            there, found.complete = _cut(there, int(progress[1]), width), False
            # States that are no better than the worst of those would be cut, too.
            progress[1], progress[2] = width, min(progress[2], there.bound[:width].max())
            hashed[:] = -1
            enter_again(there, width, hashed)


def _steps(pools: Pools, history: list[tuple[Words, Numbers]], finished: int) -> list[tuple[int, int]]:
    """Return the steps of the schedule that a state of the last layer finishes in one more batch."""
    waiting = [np.zeros_like(pools.fields.word)]
    state = finished
    for words, parent in reversed(history):
        waiting.append(pools.waiting(words[state]))
        state = int(parent[state])
    waiting.reverse()
    return steps_between(waiting)


def steps_between(waiting: Sequence[Ints]) -> list[tuple[int, int]]:
    """Return the steps of batches between which as many requests wait for every item."""
    steps: list[tuple[int, int]] = []
    for before, after in pairwise(waiting):
        change = after - before
        steps += [(EVICT, item) for item in np.flatnonzero(change > 0).tolist() for _ in range(change[item])]
        steps += [(FILL, item) for item in np.flatnonzero(change < 0).tolist() for _ in range(-change[item])]
        steps.append((RUN, -1))
    return steps


def empty_layer(room: int, words: int) -> Layer:
    """Return a layer with room for some states."""
    return Layer(
        words=np.zeros((room, words), dtype=np.uint64),
        extra=np.zeros(room, dtype=np.int64),
        bound=np.zeros(room, dtype=np.int64),
        parent=np.zeros(room, dtype=np.int32),
    )


def _cut(layer: Layer, count: int, width: int) -> Layer:
    """Return a layer of the same room with the states of the least bounds first."""
    chosen = np.argpartition(layer.bound[:count], width)[:width]
    return _taken(layer, np.concatenate([chosen, np.zeros(len(layer.extra) - width, dtype=np.int64)]))


def next_layer(words: int) -> tuple[Layer, Numbers]:
    """Return a layer that is to be filled, and its hash table."""
    return empty_layer(_FIRST_ROOM, words), np.full(2 * _FIRST_ROOM, -1, dtype=np.int32)


def grown(layer: Layer, count: int) -> tuple[Layer, Numbers]:
    """Return a layer of twice the room, with the same states, and its hash table."""
    larger = _taken(layer, np.arange(2 * len(layer.extra)) % len(layer.extra))
    hashed: Numbers = np.full(2 * len(larger.extra), -1, dtype=np.int32)
    enter_again(larger, count, hashed)
    return larger, hashed


def _taken(layer: Layer, states: Ints) -> Layer:
    words, extra, bound, parent = layer
    return Layer(words[states], extra[states], bound[states], parent[states])
