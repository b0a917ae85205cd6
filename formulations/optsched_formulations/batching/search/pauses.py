"""Searches with free pauses and with those that hold something; the theorems are in `free_pauses`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

import numpy as np

from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination
from optsched.solvers.interrupt import until_interrupted
from optsched.stopwatch import now_s
from optsched_formulations.batching.search.arriving_requests import MOST_TIME, arriving_requests, refill_prices
from optsched_formulations.batching.search.free_pauses_kernel import (
    ARRIVAL,
    BASE,
    COUNT,
    ENDED,
    FINISHED,
    LIMIT,
    OUTPUT,
    PRUNED,
    STOPPED,
    WAITING,
    WIDE,
    WORK,
    Requests,
    Store,
    enter_all,
    least_makespan,
    search,
)
from optsched_formulations.batching.search.held_pauses_kernel import MOST_REQUESTS, search_holding


class _Pauses(IntEnum):
    """What requests hold that pause, search by search: nothing, all that they have, or their prompt."""

    FREE = 0
    HOLD_ALL = 1
    HOLD_PROMPT = 2


_SHARES = {_Pauses.FREE: 0.2, _Pauses.HOLD_ALL: 0.25, _Pauses.HOLD_PROMPT: 1.0}
"""Share of the time left that a search may take."""
_GROWTH = 1.25
"""How much larger a set is than the one before in the second search."""
_SHARE = 0.4
"""Share of the time left that a set of requests may take."""
_WEIGHTS_SHARE = 0.05
"""Share of the time left that weights may take."""
_QUICK_SHARE = 0.03
"""The threshold grows in larger steps while a search takes less than this share of its time."""
_STEP, _FEW = 5_000, 200
"""States between two looks at the clock, in the first search and in the second."""
_FIRST_STATES, _MOST_STATES = 1 << 12, 1 << 23


@dataclass(frozen=True)
class _Prices:
    """What evicting every request takes, what it holds when it pauses, and whether any may be evicted."""

    price: Ints
    hold: Ints
    evictions: bool


@dataclass(frozen=True)
class _Found:
    """What a search of some requests has found: a bound on their makespan and, if that is theirs, the batches."""

    bound: int
    batches: list[list[int]] | None


class PauseSearch:
    """One task: sets of requests, each with those that arrive one moment earlier."""

    def __init__(self, task: Task, held: bool) -> None:
        self._task, self._held = task, held
        self._started = now_s()
        instance = task.instance
        self._order = sorted(range(len(instance.requests)), key=lambda r: instance.requests[r].arrival_ps)
        self._in_time = True
        self._price = _least_prices(instance, self._order)
        self._requests = arriving_requests(instance, self._order, _WEIGHTS_SHARE * task.time_limit_s)
        self._bound, self._schedule, self._value = 0, task.incumbent, task.incumbent_value
        at_most = task.restrictions.at_most
        enough = [] if self._value is None else [self._value]
        # A bound that settles the task.
        self._enough = min(enough if at_most is None else [*enough, at_most + 1], default=None)

    def solve(self) -> Outcome:
        """Solve set after set."""
        until_interrupted(lambda came: all(self._solve_all(came, mode) for mode in _Pauses))
        at_most, bound = self._task.restrictions.at_most, self._bound
        outcome = Outcome(Termination.LIMIT, self._schedule, bound, Badge.SOLVER_CLAIMED)
        if self._value is not None and bound >= self._value and (at_most is None or self._value <= at_most):
            return replace(outcome, termination=Termination.OPTIMAL, bound=self._value)
        if at_most is not None and bound > at_most:
            return replace(outcome, termination=Termination.INFEASIBLE, schedule=None)
        return outcome

    def _solve_all(self, interrupted: threading.Event, mode: _Pauses) -> bool:
        """Solve set after set; return whether more may be said."""
        left, former = self._task.time_limit_s - (now_s() - self._started), 0
        until = now_s() + _SHARES[mode] * left
        if mode != _Pauses.FREE and (not self._held or len(self._order) > MOST_REQUESTS):
            return False
        for first in self._firsts():
            number = len(self._order) - first
            if first > 0 and (mode == _Pauses.HOLD_ALL or (mode == _Pauses.HOLD_PROMPT and number < _GROWTH * former)):
                continue
            if interrupted.is_set() or now_s() > until:
                break
            if not self._solve_from(first, until, interrupted, mode):
                return False
            # Of larger sets than one that takes too long only the largest, all requests, may be worth its time.
            former = number if self._in_time else len(self._order)
        return not interrupted.is_set()

    def _firsts(self) -> Iterator[int]:
        """Yield the first request of every set, the smallest set first."""
        arrival = self._requests.request[ARRIVAL]
        for first in range(len(arrival) - 1, -1, -1):
            if first == 0 or arrival[first] != arrival[first - 1]:
                yield first

    def _solve_from(self, first: int, until: float, interrupted: threading.Event, mode: _Pauses) -> bool:
        """Solve the requests from one on; return whether larger sets may still say more."""
        part = _from(self._requests, first)
        before = int(self._requests.request[ARRIVAL, first])
        if first > 0:
            until = now_s() + _SHARE * (until - now_s())
        prices = None
        if mode != _Pauses.FREE:
            hold = part.size.copy()
            if mode == _Pauses.HOLD_PROMPT:
                hold[:] = part.size[:, 1:2]
            prices = _Prices(self._price[first:].copy(), hold, self._task.instance.rules.eviction)
        beyond = None if self._enough is None else self._enough - before
        for found in _search(part, prices, self._bound - before, beyond, until, interrupted):
            # With all that they hold, more for less is no longer true: then it looks for schedules only.
            if mode != _Pauses.HOLD_ALL and before + found.bound > self._bound:
                self._bound = before + found.bound
                self._tell()
            if first == 0 and found.batches is not None:
                self._realise(found.batches)
        self._in_time = now_s() <= until
        return self._enough is None or self._bound < self._enough

    def _realise(self, batches: list[list[int]]) -> None:
        """Take a schedule of the problem with these batches if it is better."""
        instance = self._task.instance
        for latest_first in (True, False):
            schedule = _realised(instance, [[self._order[r] for r in batch] for batch in batches], latest_first)
            if schedule is None:
                continue
            value = int(evaluate(instance, schedule)["objectives"][Objective.MAKESPAN.value])
            if self._value is None or value < self._value:
                self._schedule, self._value = schedule, value
                self._tell()

    def _tell(self) -> None:
        self._task.progress(ProgressEvent(now_s() - self._started, self._value, self._bound))


def _least_prices(instance: Instance, order: list[int]) -> Ints:
    """Return the least that a refill of each request takes beyond the decode in its place."""
    price = refill_prices(instance, order)
    outputs = (instance.requests[r].output for r in order)
    return np.array([min(row[1:output], default=0) for row, output in zip(price, outputs, strict=True)], dtype=np.int64)


def _from(requests: Requests, first: int) -> Requests:
    """Return the requests from one on, with times from its arrival on."""
    request, size, done, weight, most, limits = requests
    part, before = request[:, first:].copy(), request[ARRIVAL, first]
    part[ARRIVAL] -= before
    limits = limits.copy()
    outputs = request[OUTPUT, first:]
    limits[WORK] = sum(int(done[first + place, output]) for place, output in enumerate(outputs))
    return Requests(
        request=part,
        size=size[first:].copy(),
        done=done[first:].copy(),
        weight=weight[:, first:].copy(),
        most=most,
        limits=limits,
    )


def _search(  # noqa: PLR0917
    requests: Requests,
    prices: _Prices | None,
    bound: int,
    beyond: int | None,
    until: float,
    interrupted: threading.Event,
) -> Iterator[_Found]:
    """Yield better and better bounds on the makespan, and last if it is found the least, unless it is ``beyond``."""
    number = requests.request.shape[1]
    bound = max(bound, least_makespan(requests, np.zeros(number, dtype=np.int64), 0))
    # One token after the other, after the last arrival.
    most = int(requests.request[ARRIVAL].max() + requests.limits[WORK])
    most += int(requests.limits[BASE]) * int(requests.request[OUTPUT].sum()) + 1
    most = most if beyond is None else min(most, beyond)
    step = max(1, int(requests.limits[BASE]) // 2)
    yield _Found(min(bound, most), None)
    while bound < most:
        threshold, began = min(most, bound + step), now_s()
        states = _States(requests, prices, threshold)
        if not states.search(until, interrupted):
            return
        finished = states.finished
        if finished is not None:
            yield finished
            return
        bound = max(threshold, min(states.pruned, most))
        yield _Found(bound, None)
        if now_s() - began < _QUICK_SHARE * (until - began):
            step *= 2


class _States:
    """The states of one search below a threshold."""

    def __init__(self, requests: Requests, prices: _Prices | None, threshold: int) -> None:
        self._requests, self._prices = requests, prices
        words = -(-requests.request.shape[1] // 8) + (prices is not None)
        self._store = _empty(_FIRST_STATES, words)
        self._progress: Ints = np.zeros(6, dtype=np.int64)
        self._progress[[COUNT, WAITING, LIMIT, FINISHED, PRUNED]] = 1, 1, threshold, -1, MOST_TIME
        self._store.parent[0] = -1
        enter_all(self._store, 1)

    def search(self, until: float, interrupted: threading.Event) -> bool:
        """Look at all states; return whether time sufficed."""
        while True:
            outcome = self._go_on()
            if outcome == ENDED:
                return True
            if outcome == WIDE or now_s() > until or interrupted.is_set():
                return False
            if outcome != STOPPED and not self._grow():
                return False

    def _go_on(self) -> int:
        """Look at some states; return why the search stops."""
        prices = self._prices
        if prices is None:
            return search(self._requests, self._store, self._progress, _STEP)
        price = prices.price if prices.evictions else np.full_like(prices.price, MOST_TIME)
        store, progress = self._store, self._progress
        return search_holding(self._requests, price, prices.hold, prices.evictions, store, progress, _FEW)

    @property
    def pruned(self) -> int:
        """The least bound of states that were left out."""
        return int(self._progress[PRUNED])

    @property
    def finished(self) -> _Found | None:
        """The best schedule below the threshold, if there is one, as the requests of every batch."""
        state = int(self._progress[FINISHED])
        if state < 0:
            return None
        number = self._requests.request.shape[1]
        tokens = []
        while state >= 0:
            tokens.append(self._store.words[state].view(np.uint8)[:number].astype(np.int64))
            state = int(self._store.parent[state])
        tokens.reverse()
        batches = [np.flatnonzero(after - at).tolist() for at, after in pairwise(tokens)]
        return _Found(int(self._progress[LIMIT]), batches)

    def _grow(self) -> bool:
        """Double the store; False if it may not grow, or memory is short."""
        old, count = self._store, int(self._progress[COUNT])
        if 2 * len(old.waste) > _MOST_STATES:
            return False
        try:
            new = _empty(2 * len(old.waste), old.words.shape[1])
        except MemoryError:
            return False
        for name in ("words", "waste", "work", "parent", "heap", "front"):
            getattr(new, name)[: len(old.waste)] = getattr(old, name)
        enter_all(new, count)
        self._store = new
        return True


def _empty(room: int, words: int) -> Store:
    """Return a store of that number of states, the first of which waits in the heap."""
    return Store(
        words=np.zeros((room, words), dtype=np.uint64),
        waste=np.zeros(room, dtype=np.int64),
        work=np.zeros(room, dtype=np.int64),
        parent=np.zeros(room, dtype=np.int32),
        heap=np.zeros(room, dtype=np.int32),
        front=np.zeros(room, dtype=np.int32),
        table=np.full(2 * room, -1, dtype=np.int32),
    )


def _realised(instance: Instance, batches: list[list[int]], latest_first: bool) -> Schedule | None:
    """Run these requests in every batch; return None if others do not fit and may not be evicted.

    Of those that do not run, the one that runs again the latest, or that costs the least to refill, is evicted first.
    """
    limits, requests = instance.limits, instance.requests
    generated, resident = [0] * len(requests), dict.fromkeys(range(len(requests)), False)
    assignments = []
    for place, batch in enumerate(batches):
        run = [(r, 1 if resident[r] else requests[r].input + generated[r]) for r in batch]
        held = {r: limits.blocks(requests[r].input + generated[r] - 1) for r in resident if resident[r]}
        for r in batch:
            held[r] = limits.blocks(requests[r].input + generated[r])
        idle = [r for r in held if r not in batch]

        def again(r: int, place: int = place) -> int:
            return next(later for later in range(place, len(batches)) if r in batches[later])

        idle.sort(key=again if latest_first else lambda r: -requests[r].input - generated[r])
        evicted = []
        while sum(held.values()) > limits.kv_blocks:
            evicted.append(idle.pop())
            del held[evicted[-1]]
        if evicted and not instance.rules.eviction:
            return None
        assignments.append(Assignment(sorted(run), sorted(evicted)))
        for r in evicted:
            resident[r] = False
        for r in batch:
            generated[r] += 1
            resident[r] = generated[r] < requests[r].output
    return timed(instance, assignments)
