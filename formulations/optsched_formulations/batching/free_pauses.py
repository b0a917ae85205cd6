r"""Pauses for free: a bound on the makespan with arrivals, exact where the memory hardly binds, and a schedule.

*Relaxation.* Only memory binds (`memory_only`). Let a request that does not run in a batch hold nothing, and go on
later with a decode. A batch is then a set of unfinished requests that have arrived; request r generates its next token
k in it, which needs the blocks of I + k − 1 tokens and takes the own time of a first fill (k = 1) or of a decode; the
batch takes the base and its own times. Every schedule is one of the relaxation that ends no later, since refills are no
cheaper than decodes, and since what a batch holds of those that run is no more than all it holds.

*Waste.* All own times add up to a constant W. So a schedule ends, counted from the first arrival, at W and its *waste*:
a base for every batch, and idle time. A state after a batch is p, the tokens that every request has generated, and the
waste w so far; its clock is w and the own time of p.

*More for less.* If p ≥ p' for every request and w ≤ w', the best schedule from (p, w) ends no later than the best
from (p', w'), *also where its clock is later*. Proof: take a schedule σ' from (p', w') and leave out the tokens that p
has already, and batches that then run nothing; let the others begin when they did, or when the batch before has ended.
What they run has arrived, since they begin no earlier, and is a part of what they ran, so that it fits. With D the own
time of p less that of p', the batches take t_i ≤ t'_i, and together at least D less. Look at the last batch i that
begins when it did, at s'_i: the schedule ends at s'_i + Σ_{l ≥ i} t_l, no later than σ'. Or there is none: it ends
at the clock of (p, w), which is at most D after that of (p', w'), and the sum of all t_l, at most that of the t'_l less
D: no later either. ∎

So of the sets that a batch could run only those matter to which nothing can be added: running more wastes no more. If
everything fits there is one. A batch begins at the end of the one before, or at an arrival; but not at an arrival by
which some batch with one request that is there could have ended: that one wastes a base, no more than the wait.

*Equal inputs.* Of two requests that have arrived, with equal inputs and as many tokens k, r with no more output tokens
than s: if one of them runs, it may be s. For let r generate token k + i in batch b_i and s in c_i, b_1 < c_1. Give s
the batches min(b_i, c_i) and r the batches max(b_i, c_i) for all i up to r's last, and s its other c_i: each is in
order, sizes and own times are those of the same tokens, and the last of both does not change. Requests of equal
outputs, too, may exchange names when both have arrived, so that the one that arrived first has the most tokens.

*Bounds of a state.* From a moment t on, now or an arrival later: batches that begin before t do so at least a base
apart, which limits the tokens that each request can have by then, and what all have together, in weights of which a
batch holds at most W' (blocks, and those of `packing`). What is left needs as many batches as the longest of those that
have arrived by t has tokens, and as its weight says; and all its own time. If t is an arrival, the requests that arrive
from t on take as long as they do alone: without the runs of others batches take no longer.

*Search.* States are looked at by growing waste, so that one is left out if a former one has as many tokens of every
request; those make the *front*, seldom more than a few. All states are looked at whose bound is below a threshold; if
no schedule is found, the least bound of those left out holds for all, and the threshold grows. The last requests alone
come first, as in `last_arrivals`: their makespan bounds that of all, for without the runs of others no batch takes
longer.

*Pauses that hold.* Where memory binds a second search knows which requests are *resident*: they have run, and have not
been evicted since. One that pauses holds its prompt. To evict one takes time, between two batches: its *price*, the
least over its tokens k ≥ 2 of what a refill takes beyond a decode; the refill then takes what a decode takes. This is a
relaxation, too: KV that pauses is no less than the prompt, and with d_i the prices of those that are evicted and not
refilled yet after batch i, no batch i ends later than d_i after it did, since what a refill takes less makes up for its
price. Nothing is evicted at the end. The waste has the prices in it. Where all unfinished requests fit with all their
tokens, pauses are free again.

Here (p, w) with residents R is at least as good as (p', w') with residents R' if p ≥ p' and w, with the prices of R
less R', is at most w'. Evict those of R less R'; then do as above: run what p does not have yet when σ' runs it, evict
what is resident when σ' evicts it. So one is resident only if it is in σ', where it holds its prompt or more; those
that run hold what they held; and the price of a request is always the same, however far it is. Prices take time as
batches do, begin no earlier than in σ', and are part of those of σ', so that the end is no later, by the same argument.
(Were the price to grow with the tokens, being ahead could be worse.) Where nothing may be evicted R must be part of R'.

So nothing is chosen where a resident request pauses, or one waits that would finish, and has room to run: running it
gives more tokens and no other residents. Nor, if the machine does not wait, where one is evicted that has room to
pause: that can follow later at the same price. While the machine waits evictions may take time that is left anyway, so
there they are all tried. A first fill takes memory from then on, so all sets of those are tried. The machine does not
wait for an arrival if there is time before it for the evictions and for a batch that runs one resident, or one that
finishes with it, while the residents pause: that one is ahead for a base, no more than the wait, and the evictions
follow in time.

*Schedule.* One of a relaxation becomes one of the problem: requests that do not run keep their KV as far as it fits,
others are evicted, and refilled. Where it takes no longer it is optimal. A search in which those that pause hold all
that they have finds better ones. There being ahead may be worse, so that it bounds nothing.
"""

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
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError
from optsched.solvers.interrupt import until_interrupted
from optsched.stopwatch import now_s
from optsched_formulations.batching.memory_only import require_memory_only
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


class FreePauses:
    """The method of this module, as `optsched.solvers.formulation.Formulation`.

    Parameters
    ----------
    held
        Whether to search again with pauses that hold something.
    """

    declaration = Declaration(
        sequential=True, turns=(Turn(25, 0.08, (Regime.FEW_ARRIVING,)), Turn(25, 0.35, (Regime.MANY_ARRIVING,)))
    )
    """It takes little time wherever the memory hardly binds, and then ends the search."""

    def __init__(self, held: bool = True) -> None:
        self._held = held

    def solve(self, task: Task) -> Outcome:
        """Bound the makespan of an instance with arrivals in which only memory binds, and look for a schedule.

        Raises
        ------
        UnsupportedError
            For any other instance or objective, or if numbers are too large.
        """
        if task.objective != Objective.MAKESPAN:
            raise UnsupportedError(f"objective {task.objective.value}, it bounds the makespan")
        if task.instance.offline:
            raise UnsupportedError("requests that arrive together, it is for arrivals")
        require_memory_only(task)
        return _Solution(task, self._held).solve()


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


class _Solution:
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
