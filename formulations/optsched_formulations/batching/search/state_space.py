"""The states of `state_search` in memory: where they begin and end, and a store of them that grows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optsched.model.ints import Ints
from optsched.stopwatch import now_s
from optsched_formulations.batching.search.node_kernel import Arcs
from optsched_formulations.batching.search.request_kernel import OWNER, REST, Requests
from optsched_formulations.batching.search.state_kernel import (
    DONE,
    FULL,
    NONE,
    PAUSED,
    Numbers,
    Store,
    beam,
    enter_all,
    search,
    start,
)
from optsched_formulations.batching.search.state_steps import RUN, Buffer, Words, item_of, kind_of, step_of

_BUCKETS = 1 << 14
_FIRST_STATES = 1 << 16
_MOST_BYTES = 4 << 30
_LOOK = 20_000
"""States of a beam between two looks at the clock."""


@dataclass(frozen=True)
class Space:
    """What to search, as the compiled loops take it.

    Parameters
    ----------
    arcs, requests
        One of them says how states follow each other, the other is empty.
    source, goal
        Words of the first state and of the finished one.
    label
        Of the first state.
    clock
        The word of the clock, −1 if there is none.
    breadth
        Most successors of a state.
    scale
        Units of cost in a ps.
    bound, constant_ps
        The objective of all schedules is at least ``constant_ps`` and ``bound`` units; costs are what exceeds that.
    """

    arcs: Arcs
    requests: Requests
    source: Words
    goal: Words
    label: int
    clock: int
    breadth: int
    scale: int
    bound: int
    constant_ps: int

    def value_of(self, cost: int) -> int:
        """Return the least objective value of a schedule of that cost."""
        return self.constant_ps - (-(self.bound + cost) // self.scale)

    def left(self, words: Words) -> Ints:
        """Return the machine time that requests still need in some states after a batch, 0 if there are only nodes."""
        if not self.requests.request.size:
            return np.zeros(len(words), dtype=np.int64)
        owner = self.requests.request[OWNER]
        bytes_of = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 8 * words.shape[1])
        left: Ints = self.requests.byte[REST][owner, bytes_of[:, : len(owner)]].sum(axis=1)
        return left

    def budget(self, value: int) -> int:
        """Return the cost from which on a schedule is no better than ``value``."""
        return (value - self.constant_ps) * self.scale - self.bound


class States:
    """The states that a search has reached.

    Parameters
    ----------
    space
        What to search.
    budget
        Cost from which on nothing matters.
    """

    def __init__(self, space: Space, budget: int) -> None:
        self._space = space
        self._width = max(budget, 0) // _BUCKETS + 1
        self._store = _empty(_FIRST_STATES, len(space.source))
        self._store.words[0], self._store.label[0], self._store.parent[0] = space.source, space.label, NONE
        self._buckets: Numbers = np.full(_BUCKETS, NONE, dtype=np.int32)
        start(self._store, self._buckets)
        self._progress: Ints = np.array([1, 0, budget, NONE, 0], dtype=np.int64)
        self._buffer = Buffer(
            words=np.zeros((space.breadth, len(space.source)), dtype=np.uint64),
            cost=np.zeros(space.breadth, dtype=np.int64),
            label=np.zeros(space.breadth, dtype=np.int64),
            step=np.zeros(space.breadth, dtype=np.int32),
        )
        self.full = False

    @property
    def budget(self) -> int:
        """The cost to beat: of the best finished state, if there is one."""
        return int(self._progress[2])

    @property
    def finished(self) -> bool:
        """Whether the finished state has been reached."""
        return bool(self._progress[3] != NONE)

    @property
    def expanded(self) -> int:
        """Number of expansions."""
        return int(self._progress[4])

    @property
    def floor(self) -> int:
        """No state that has not been looked at costs less."""
        return min(int(self._progress[1]) * self._width, self.budget)

    def expand(self, limit: int) -> bool:
        """Look at up to ``limit`` more states; return whether some are left."""
        space, until = self._space, self.expanded + limit
        while True:
            outcome = search(
                space.arcs,
                space.requests,
                space.goal,
                self._store,
                self._buckets,
                self._width,
                space.clock,
                self._progress,
                self._buffer,
                until - self.expanded,
            )
            if outcome != FULL:
                return bool(outcome == PAUSED)
            if not self._grow():
                return True

    def through_a_batch(self, layer: Ints, width: int, limit: int, deadline: float) -> Ints:
        """Run one batch from every state of a layer; return the best states after it.

        There are none if ``limit`` expansions in all or the deadline, on the clock of `optsched.stopwatch`, come first.
        """
        space, room = self._space, len(self._store.cost)
        waiting, following = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
        waiting[: len(layer)] = layer
        heights: Ints = np.array([len(layer), 0], dtype=np.int64)
        while True:
            outcome = beam(
                space.arcs,
                space.requests,
                space.goal,
                self._store,
                waiting,
                following,
                heights,
                self._progress,
                self._buffer,
                min(limit - self.expanded, _LOOK),
            )
            if outcome == PAUSED and self.expanded < limit and now_s() < deadline:
                continue
            if outcome != FULL or not self._grow():
                break
            waiting, following = (np.resize(stack, len(self._store.cost)) for stack in (waiting, following))
        if outcome != DONE:
            return np.zeros(0, dtype=np.int64)
        unique = np.unique(following[: heights[1]]).astype(np.int64)
        # What was there earlier by an eviction has been expanded already.
        ran = unique[self._store.step[unique] >= step_of(RUN, -1)]
        order = np.lexsort((self._store.label[ran] + space.left(self._store.words[ran]), self._store.cost[ran]))
        return ran[order[:width]]

    def steps(self) -> list[tuple[int, int]]:
        """Return kind and item of the steps that lead to the finished state."""
        store, state = self._store, int(self._progress[3])
        found = []
        while store.parent[state] != NONE:
            step = int(store.step[state])
            found.append((kind_of(step), item_of(step)))
            state = int(store.parent[state])
        return found[::-1]

    def _grow(self) -> bool:
        """Double the store; False if it may not grow, or memory is short."""
        old, count = self._store, int(self._progress[0])
        try:
            if 2 * sum(getattr(old, name).nbytes for name in Store._fields) > _MOST_BYTES:
                raise MemoryError
            new = _empty(2 * len(old.cost), old.words.shape[1])
        except MemoryError:
            self.full = True
            return False
        for name in Store._fields[:-1]:
            getattr(new, name)[:count] = getattr(old, name)[:count]
        self._store = new
        enter_all(new, count, self._space.clock)
        return True


def compile_loops(space: Space) -> None:
    """Compile what a search needs, some seconds the first time on a machine; to be stopped by nothing."""
    states = States(space, 1)
    states.expand(0)
    states.through_a_batch(np.zeros(0, dtype=np.int64), 1, 1, 0.0)
    enter_all(_empty(1, len(space.source)), 0, space.clock)


def _empty(room: int, words: int) -> Store:
    """Return a store of that number of states, with a hash table that they half fill."""
    return Store(
        words=np.zeros((room, words), dtype=np.uint64),
        cost=np.zeros(room, dtype=np.int64),
        label=np.zeros(room, dtype=np.int64),
        parent=np.zeros(room, dtype=np.int32),
        step=np.zeros(room, dtype=np.int32),
        after=np.zeros(room, dtype=np.int32),
        before=np.zeros(room, dtype=np.int32),
        twin=np.zeros(room, dtype=np.int32),
        table=np.full(2 * room, NONE, dtype=np.int32),
    )
