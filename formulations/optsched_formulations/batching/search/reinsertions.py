"""Pairs of requests taken out and put elsewhere, as `reinsertion` says."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np

from optsched.model.ints import Ints
from optsched.model.metrics import evaluate
from optsched.model.result import Badge
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination
from optsched.solvers.interrupt import until_interrupted
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import one_after_another
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.reinsertion_kernel import PICKS, Scratch, ending, move_pairs
from optsched_formulations.batching.search.token_places import UNITS, TokenPlaces

_MOST_STATES = 1 << 18
"""Batches times tokens that one move looks at."""
_CHEAP, _SPREAD, _DEAR, _DEARER = 0.15, 2.0, 5.0, 1.5
"""In bases, the price of as much as the cache holds: where it has fallen, times as much and as little as that; where it
has risen; and what it rises by at a time."""
_UNEVEN = 0.7
"""Share by which it differs from batch to batch where it has fallen."""
_FEWEST_ASTRAY, _MOST_ASTRAY, _BACK, _RETURNS = 20, 50, 60, 6
"""Moves at the low price, and at the high one, and how often those follow until a schedule is legal."""
_FEWEST_ROUNDS, _STALE = 200, 3
"""A run has at least that number of rounds, and that many times as many as its best schedule took to find."""
_AGREE = 5
"""Runs that end with the best value, after which there are no more."""
_LOOK = 20
"""Moves between two looks at the clock."""
_FAR, _PART = 2, 40
"""Batches by which J differs at most from that of the best schedule, and part of that, whichever is more."""
_NEW, _NEXT = 0.5, 0.7
"""How often it is any of these, and else how far down the list of the best ones it is on average."""
_WORSE = 0.01
"""Share by which a schedule may be worse at most than the best of as many batches to be what is changed next."""


class Reinsertions:
    """One task: the best schedule so far.

    Attributes
    ----------
    _best
        When the last batch ends, in units, and where tokens are, in this run's best schedule of some number of batches.
    _last
        Where tokens are after the last moves, which may hold too much.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._started = task, now_s()
        self._schedule, self._value = task.incumbent, task.incumbent_value
        at_most = task.restrictions.at_most
        known = [] if self._value is None else [self._value]
        # Only schedules of less are looked for.
        self._beyond = min(known if at_most is None else [*known, at_most + 1], default=None)
        self._rng = np.random.default_rng(task.seed)
        classes = Classes(task.instance)
        self._capacity, self._places = classes.capacity, TokenPlaces(task.instance, classes)
        self._tokens = self._places.tokens
        self._fewest = int(np.diff(self._tokens.first).max())
        self._states = np.zeros(4 * _MOST_STATES, dtype=np.int64)
        self._first = self._places.of(self._schedule or one_after_another(task))
        self._best: dict[int, tuple[int, Ints]] = {}
        self._last: dict[int, Ints] = {}

    def best(self) -> Outcome:
        """Return the best schedule, at Ctrl-C that so far."""
        until_interrupted(self._search)
        return Outcome(Termination.LIMIT, self._schedule, None, Badge.HEURISTIC)

    def _search(self, interrupted: threading.Event) -> None:
        ends: list[int] = []
        while not self._over(interrupted) and ends.count(min(ends, default=0)) < _AGREE:
            ends.append(self._run(interrupted))

    def _run(self, interrupted: threading.Event) -> int:
        """Change the schedule that is given until nothing better is found; return when the best one ends, in units."""
        self._best, self._last = {}, {}
        self._keep(self._first)
        rng, full = self._rng, UNITS / self._capacity
        rounds, found_at, best = 0, 0, self._least
        while not self._over(interrupted) and rounds < max(_FEWEST_ROUNDS, _STALE * found_at):
            rounds += 1
            batches = self._drawn()
            at, cheap = self._begun(batches), _CHEAP * full * _SPREAD ** rng.uniform(-1.0, 1.0)
            uneven = rng.uniform(1.0 - _UNEVEN, 1.0 + _UNEVEN, batches)
            astray = int(rng.integers(_FEWEST_ASTRAY, _MOST_ASTRAY + 1))
            self._move(at, _whole(cheap * uneven), 0, astray, interrupted)
            price = _whole(np.full(batches, _DEAR * full))
            for _ in range(_RETURNS):
                if self._move(at, price, round(_DEARER * full), _BACK, interrupted) == 0:
                    self._move(at, np.full(batches, self._places.never), 0, _BACK, interrupted)
                    self._keep(at)
                    break
            else:
                self._last[batches] = at
            if self._least < best:
                found_at, best = rounds, self._least
        return best

    @property
    def _least(self) -> int:
        """When the last batch of this run's best schedule ends."""
        return min(ends for ends, _ in self._best.values())

    def _over(self, interrupted: threading.Event) -> bool:
        """Return whether nothing more is to be tried."""
        reached = self._beyond is not None and self._beyond <= self._task.bound
        return reached or interrupted.is_set() or now_s() > self._started + self._task.time_limit_s

    def _drawn(self) -> int:
        """Return a number of batches to try."""
        order, rng = sorted(self._best, key=lambda batches: self._best[batches][0]), self._rng
        if rng.random() < _NEW:
            far = max(_FAR, order[0] // _PART)
            return max(self._fewest, order[0] + int(rng.integers(-far, far + 1)))
        return order[min(int(rng.exponential(_NEXT)), len(order) - 1)]

    def _begun(self, batches: int) -> Ints:
        """Return where tokens are in a schedule of some number of batches that is to be changed, made of a near one."""
        near = min(self._last, key=lambda other: (abs(other - batches), other))
        at = self._last[near].copy()
        for number in range(near, batches, -1):
            gone, clock = int(self._rng.integers(number)), np.zeros((3, number), dtype=np.int64)
            ending(self._tokens, at, clock)
            for request, (begin, end) in enumerate(pairwise(self._tokens.first.tolist())):
                mine = at[begin:end]
                if gone in mine:
                    released = int(np.searchsorted(clock[2], self._tokens.arrival[request]))
                    mine[:] = min(released, number - 1 - len(mine)) + np.arange(len(mine))
                else:
                    mine[mine > gone] -= 1
        return at

    def _move(self, at: Ints, price: Ints, dearer: int, moves: int, interrupted: threading.Event) -> int:
        """Move pairs at prices of a block too much, which rise; return what overflows, 1 where time is over before."""
        over, batches = 1, len(price)
        room, clock = np.zeros(batches, dtype=np.int64), np.zeros((3, batches), dtype=np.int64)
        scratch = Scratch(room, self._states, clock, np.zeros_like(at))
        for done in range(0, moves, _LOOK):
            if self._over(interrupted):
                return 1
            draws = self._rng.random((min(_LOOK, moves - done), PICKS + len(price)))
            over = move_pairs(self._tokens, self._capacity, at, price, dearer, scratch, draws)
        return over

    def _keep(self, at: Ints) -> None:
        """Keep a schedule if it is the best of its number of batches, without those that are empty."""
        used, at = np.unique(at, return_inverse=True)
        batches = len(used)
        ends = ending(self._tokens, at, np.zeros((3, batches), dtype=np.int64))
        self._last[batches] = at
        if not self._best or ends < self._least:
            self._offer(at)
        if batches not in self._best or ends < self._best[batches][0]:
            self._best[batches] = ends, at
        elif ends > self._best[batches][0] * (1.0 + _WORSE * self._rng.random()):
            self._last[batches] = self._best[batches][1]

    def _offer(self, at: Ints) -> None:
        """Take a schedule that is better than all before."""
        schedule = self._places.schedule(at)
        value = int(evaluate(self._task.instance, schedule)["objectives"][self._task.objective.value])
        if self._beyond is None or value < self._beyond:
            self._schedule, self._value, self._beyond = schedule, value, value
            self._task.progress(ProgressEvent(now_s() - self._started, value, self._task.bound))


def _whole(price: Floats) -> Ints:
    """Return prices in whole units, at least one."""
    whole: Ints = np.maximum(1.0, price).astype(np.int64)
    return whole
