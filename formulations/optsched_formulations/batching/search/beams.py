"""Beams on the clock, one after the other; what they keep and why is in `clock_beam`."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
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
from optsched_formulations.batching.search.arriving_requests import arriving_requests, refill_prices
from optsched_formulations.batching.search.clock_beam_kernel import (
    FINISHED,
    Chosen,
    Floats,
    States,
    follow,
    not_worse,
    sort_equal,
)
from optsched_formulations.batching.search.free_pauses_kernel import BASE, KIND

_WEIGHTS_SHARE = 0.05
"""Share of the time left that weights may take."""
_NARROWEST, _WIDER, _WIDEST = 50, 3, 50_000
"""States of a group that a narrow beam keeps, times as many that a wider one keeps, and most."""
_SPREAD = 0.03
"""Standard deviation of the logarithms of factors, of each token and of all of a kind of request."""
_CHOICES, _WRITTEN = 8, 20_000
"""Batches after one state, and states that are written at a time."""
_MOST, _KEPT, _COMPARED = 20, 3, 6
"""Times its width that a group grows to, is then cut to, and is compared at its end."""


@dataclass(frozen=True)
class _Beam:
    """How a beam differs from others: its width, whether it guesses what is worse, its weights and their factors."""

    width: int
    guess: bool
    weight: Ints
    factors: Floats


class Beams:
    """One task: beam after beam, with the best schedule so far."""

    def __init__(self, task: Task) -> None:
        self._task, instance = task, task.instance
        self._started = now_s()
        self._until = self._started + task.time_limit_s
        self._order = sorted(range(len(instance.requests)), key=lambda r: instance.requests[r].arrival_ps)
        self._requests = arriving_requests(instance, self._order, _WEIGHTS_SHARE * task.time_limit_s)
        self._price = refill_prices(instance, self._order)
        self._schedule, self._value = task.incumbent, task.incumbent_value
        at_most = task.restrictions.at_most
        beyond = [] if self._value is None else [self._value]
        # Only schedules of less matter.
        self._beyond = min(beyond if at_most is None else [*beyond, at_most + 1], default=(1 << 60))
        self._factors = np.ones((int(self._requests.request[KIND].max()) + 1, self._requests.done.shape[1] - 1))

    def solve(self) -> Outcome:
        """Send out beams."""
        until_interrupted(self._search)
        return Outcome(Termination.LIMIT, self._schedule, None, Badge.HEURISTIC)

    def _search(self, interrupted: threading.Event) -> None:
        number = 1
        while not self._over(interrupted) and self._send(self._drawn(number), interrupted):
            number += 1

    def _drawn(self, number: int) -> _Beam:
        """Draw the beam of a number, from 1 on."""
        wider, plain = _wider(number), (number + 1).bit_count() == 1
        rng = np.random.default_rng([self._task.seed, number])
        weight, factors = self._requests.weight[-1], np.ones_like(self._factors)
        if not plain:
            if rng.random() < 1 / 2:
                factors = self._factors
            spread = rng.normal(0, _SPREAD, factors.shape) + rng.normal(0, _SPREAD, (len(factors), 1))
            factors = factors * np.exp(spread)
            steps = np.rint(np.diff(weight, axis=1) * factors[self._requests.request[KIND]]).astype(np.int64)
            weight = np.concatenate([weight[:, :1], weight[:, :1] + np.cumsum(steps, axis=1)], axis=1)
        width = min(_WIDEST, _NARROWEST * _WIDER**wider)
        return _Beam(width, guess=number % 2 == 1, weight=weight, factors=factors)

    def _over(self, interrupted: threading.Event) -> bool:
        return interrupted.is_set() or now_s() > self._until or self._beyond <= self._task.bound

    def _send(self, beam: _Beam, interrupted: threading.Event) -> bool:
        """Go through all groups; return whether another beam may find more."""
        requests, base = self._requests, int(self._requests.limits[BASE])
        number = requests.request.shape[1]
        there = _empty(_WRITTEN, number)
        chosen = Chosen(np.zeros(_CHOICES), np.zeros((_CHOICES, number), dtype=np.int64))
        groups: dict[int, list[States]] = defaultdict(list)
        groups[0].append(_empty(1, number)._replace(parent=np.array([-1])))
        past: list[States] = []
        before, cut = 0, beam.guess
        while groups and not self._over(interrupted):
            here, some_cut = self._best(_joined(groups.pop(min(groups))), beam, beam.width)
            past.append(here)
            first, cut = 0, cut or some_cut
            while first < len(here.waste) and not self._over(interrupted):
                first, written, some_cut = follow(
                    requests, beam.weight, self._price, self._evictions, here, first, there, chosen, self._beyond
                )
                cut = cut or some_cut
                for state in np.flatnonzero(there.key[:written] == FINISHED).tolist():
                    self._take(_taken(there, np.array([state])), past, beam)
                open_ones = np.flatnonzero(there.key[:written] != FINISHED)
                group = there.clock[open_ones] // base
                for place in np.unique(group).tolist():
                    states = _taken(there, open_ones[group == place])
                    states.parent[:] += before
                    groups[place].append(states)
                    if sum(len(part.waste) for part in groups[place]) > _MOST * beam.width:
                        states, some_cut = self._best(_joined(groups[place]), beam, _KEPT * beam.width)
                        groups[place], cut = [states], cut or some_cut
            before += len(here.waste)
        return cut or bool(groups)

    @property
    def _evictions(self) -> bool:
        return self._task.instance.rules.eviction

    def _best(self, states: States, beam: _Beam, width: int) -> tuple[States, bool]:
        """Return the best states, and whether others were cut that may be no worse."""
        chosen, most = np.arange(len(states.waste)), _COMPARED * width
        cut = len(chosen) > most
        if cut:
            chosen = np.argpartition(states.key, most)[:most]
        tokens, resident = states.tokens[chosen], states.resident[chosen]
        sort_equal(self._requests.request[KIND], tokens, resident)
        owed = np.where(resident == 0, self._price[np.arange(tokens.shape[1]), tokens], 0).sum(axis=1)
        paid = states.waste[chosen] + owed
        order = np.argsort(paid, kind="stable")
        tokens, resident = tokens[order], resident[order]
        if beam.guess:
            chosen = chosen[order[not_worse(self._price, tokens, resident, paid[order])]]
        else:
            chosen = chosen[order[np.unique(np.hstack([tokens, resident]), axis=0, return_index=True)[1]]]
        if len(chosen) > width:
            chosen, cut = chosen[np.argpartition(states.key[chosen], width)[:width]], True
        return _taken(states, chosen), cut

    def _take(self, finished: States, past: list[States], beam: _Beam) -> None:
        """Take the schedule that ends in a finished state, if it is better; the state before is in the last group."""
        if finished.clock[0] >= self._beyond:
            return
        ends = np.cumsum([len(states.waste) for states in past])
        chain, number = [finished], int(ends[-1]) - len(past[-1].waste) + int(finished.parent[0])
        while number >= 0:
            place = int(np.searchsorted(ends, number, side="right"))
            state = number - int(ends[place]) + len(past[place].waste)
            chain.append(_taken(past[place], np.array([state])))
            number = int(chain[-1].parent[0])
        chain.reverse()
        schedule = _schedule(self._task.instance, self._order, chain)
        value = int(evaluate(self._task.instance, schedule)["objectives"][Objective.MAKESPAN.value])
        if value < self._beyond:
            self._schedule, self._factors = schedule, beam.factors
            self._value = self._beyond = value
            self._task.progress(ProgressEvent(now_s() - self._started, value, None))


def _wider(number: int) -> int:
    """Return how many times wider than the narrowest the beam of a number is, as a power: 0, 0, 1, 0, 0, 1, 2, …."""
    while (number + 1).bit_count() > 1:
        number -= (1 << (number.bit_length() - 1)) - 1
    return number.bit_length() - 1


def _schedule(instance: Instance, order: list[int], chain: list[States]) -> Schedule:
    """Return the schedule that leads from state to state, one batch after the other."""
    assignments = []
    for here, there in pairwise(chain):
        ran = there.tokens[0] > here.tokens[0]
        gone = (here.resident[0] > there.resident[0]) & ~ran
        run = [
            (order[r], 1 if here.resident[0, r] else instance.requests[order[r]].input + int(here.tokens[0, r]))
            for r in np.flatnonzero(ran).tolist()
        ]
        assignments.append(Assignment(sorted(run), sorted(order[r] for r in np.flatnonzero(gone).tolist())))
    return timed(instance, assignments)


def _empty(room: int, number: int) -> States:
    return States(
        tokens=np.zeros((room, number), dtype=np.uint8),
        resident=np.zeros((room, number), dtype=np.uint8),
        waste=np.zeros(room, dtype=np.int64),
        clock=np.zeros(room, dtype=np.int64),
        parent=np.zeros(room, dtype=np.int64),
        key=np.zeros(room, dtype=np.int64),
    )


def _joined(parts: list[States]) -> States:
    if len(parts) == 1:
        return parts[0]
    return States(
        tokens=np.concatenate([part.tokens for part in parts]),
        resident=np.concatenate([part.resident for part in parts]),
        waste=np.concatenate([part.waste for part in parts]),
        clock=np.concatenate([part.clock for part in parts]),
        parent=np.concatenate([part.parent for part in parts]),
        key=np.concatenate([part.key for part in parts]),
    )


def _taken(states: States, chosen: Ints) -> States:
    tokens, resident, waste, clock, parent, key = states
    return States(tokens[chosen], resident[chosen], waste[chosen], clock[chosen], parent[chosen], key[chosen])
