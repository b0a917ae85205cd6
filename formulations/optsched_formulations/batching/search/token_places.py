"""Schedules in which only memory binds as the batch of every token."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from optsched.model.following import unrolled
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.model.schedule import Schedule
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.naming import schedule_of_steps, steps_of_batches
from optsched_formulations.batching.search.reinsertion_kernel import NEVER, Tokens
from optsched_formulations.batching.search.state_steps import EVICT, FILL

UNITS = 1_000_000
"""Units of time in a base."""
_DEAREST = 1_000 * UNITS
"""No price of a block is more, however often it has risen."""


class TokenPlaces:
    """The tokens of all requests, and schedules by the batches that they are generated in.

    Parameters
    ----------
    instance, classes
        The problem, and its classes.

    Attributes
    ----------
    tokens
        Of all requests, times in units, rounded, since the first arrival.
    never
        A price of a block that is more than moving two requests can save.

    Raises
    ------
    UnsupportedError
        If times may add up beyond 64 bits.
    """

    def __init__(self, instance: Instance, classes: Classes) -> None:
        self._instance, self._classes = instance, classes
        kind_of = {request: kind for kind, members in enumerate(classes.members) for request in members}
        items = [classes.first[kind_of[r]] + k for r, each in enumerate(instance.requests) for k in range(each.output)]
        outputs = [request.output for request in instance.requests]
        base = classes.base_ps
        own = [classes.decode_ps[item] if classes.token[item] > 1 else classes.fill_ps[item] for item in items]
        work = [UNITS * each // base for each in own]
        arrival = [-(-UNITS * each // base) for each in instance.arrivals_ps]
        # More than the time of one request after another: what a refill takes where nothing is ever evicted.
        ends = UNITS * len(items) + sum(work) + max(arrival) + 1
        extra = [
            UNITS * classes.extra_ps(item) // base if instance.rules.eviction or classes.token[item] == 1 else ends
            for item in items
        ]
        size = [classes.size[item] for item in items]
        self.never = 2 * sum(extra) + max(arrival) + 1
        if ends + sum(extra) + (self.never + _DEAREST) * sum(size) >= NEVER // 4:
            raise UnsupportedError("times beyond 64 bits")
        self._items = items
        first = np.concatenate([[0], np.cumsum(outputs)]).astype(np.int64)
        self.tokens = Tokens(first, np.array(size), np.array(work), np.array(extra), np.array(arrival), UNITS)

    def of(self, schedule: Schedule) -> Ints:
        """Return the batch of every token."""
        at, done = np.zeros(len(self._items), dtype=np.int64), self.tokens.first.copy()
        for number, batch in enumerate(unrolled(self._instance, schedule).batches):
            for request, _ in batch.run:
                at[done[request]] = number
                done[request] += 1
        return at

    def schedule(self, at: Ints) -> Schedule:
        """Return the schedule in which tokens are in some batches, none of which is empty."""
        before: list[list[tuple[int, int]]] = [[] for _ in range(int(at.max()) + 1)]
        for begin, end in pairwise(self.tokens.first.tolist()):
            for token in range(begin, end):
                if token == begin:
                    before[at[token]].append((FILL, self._items[token]))
                elif at[token] != at[token - 1] + 1:
                    before[at[token - 1] + 1].append((EVICT, self._items[token]))
                    before[at[token]].append((FILL, self._items[token]))
        return schedule_of_steps(self._instance, self._classes, steps_of_batches(before))
