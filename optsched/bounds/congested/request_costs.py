"""The least cost of each request by itself at given prices, whenever it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from optsched.bounds.alone import alone
from optsched.bounds.congested.batches import Batches, Worth
from optsched.bounds.congested.terms import LARGEST, UNIT, Terms, Windows, least_alive
from optsched.compiled import compiled
from optsched.model.instance import Instance
from optsched.model.ints import Ints

_BLOCK = 64
"""Windows whose least is known beforehand, so that a search for the cheapest can skip them, and end."""
_FARTHEST = 10**15
"""Waiting beyond this many ps counts as this much, so that numbers stay in 64 bits."""


@dataclass(frozen=True)
class Least:
    """The least cost of all requests.

    Parameters
    ----------
    value
        The bound, ps.
    decodes, prompts
        In which window each decode and each prompt costs least.
    """

    value: int
    decodes: Ints
    prompts: Ints


@dataclass(frozen=True)
class Levels:
    """Windows that are alike share a level.

    Parameters
    ----------
    of
        Level of every window.
    worths
        What runs are worth, by level.
    """

    of: Ints
    worths: list[Worth]

    @cached_property
    def decodes(self) -> Ints:
        """What decodes are worth, by level and tokens read."""
        return np.stack([worth.decode for worth in self.worths])

    @cached_property
    def floors(self) -> Ints:
        """The least that decodes are worth in a block of windows, and from it on, shape (2, blocks, most tokens).

        The last window is left out: it is far, and cheap.
        """
        least = np.stack(
            [
                self.decodes[np.unique(self.of[begin : min(begin + _BLOCK, self.of.size - 1)])].min(axis=0)
                for begin in range(0, self.of.size - 1, _BLOCK)
            ]
        )
        return np.stack([least, np.minimum.accumulate(least[::-1])[::-1]])

    @cached_property
    def factors(self) -> Ints:
        """Factors n by level."""
        return np.array([worth.factor for worth in self.worths])

    @cached_property
    def tokens(self) -> Ints:
        """B by level."""
        return np.array([worth.token for worth in self.worths])

    def decode(self, window: Ints, read: Ints) -> Ints:
        """Return what decodes are worth in windows."""
        return self.decodes[self.of[window], read]

    def prompt(self, window: Ints, size: Ints) -> Ints:
        """Return what prompts are worth in windows, without their attention."""
        return self.tokens[self.of[window]] * size


class RequestCosts:
    """Requests as they bear on the bound.

    Parameters
    ----------
    instance
        The problem.
    terms
        The bound's constants.
    """

    def __init__(self, instance: Instance, terms: Terms) -> None:
        requests, start = instance.requests, instance.start_ps
        self.terms, self.cost = terms, instance.cost
        least = alone(instance)
        self.arrival = np.array([request.arrival_ps - start for request in requests], np.int64)
        self.input = np.array([request.input for request in requests], np.int64)
        later = np.array([request.output - 1 for request in requests], np.int64)
        self.alone = np.array(least.e2e, np.int64)
        self.last = int(self.arrival.max() + max(least.e2e)) // terms.window_ps + 1
        """The window that does not end."""
        self.alive = least_alive(self.arrival, self.arrival + self.alone, terms.window_ps, self.last)
        self._kept_of_prompt = np.where(later > 0, terms.prefill_share, UNIT)
        self._owner = np.repeat(np.arange(len(requests)), later)
        self.number = np.arange(self._owner.size) - np.repeat(np.cumsum(later) - later, later) + 1
        """k of every decode."""
        self.read = self.input[self._owner] + self.number - 1
        """Tokens that every decode reads."""
        first = np.array(least.ttft, np.int64)[self._owner]
        self._from = self._window(self.arrival[self._owner] + first + (self.number - 1) * instance.cost.linear_ps(1))
        self._free = self.arrival[self._owner] + self.number * terms.short_ps
        self._parts = UNIT * later[self._owner]

    def _window(self, times: Ints) -> Ints:
        return np.minimum(times // self.terms.window_ps, self.last)

    def levels(self, batches: Batches, windows: Windows) -> Levels:
        """Return what runs are worth in every window."""
        keys = np.stack([windows.price, self.alive, windows.slope])
        distinct, of = np.unique(keys, axis=1, return_inverse=True)
        return Levels(of.ravel(), [batches.worth(*map(int, key)) for key in distinct.T])

    def least(self, windows: Windows, levels: Levels) -> Least:
        """Return the bound of prices, and where every run costs least."""
        decodes, where = self._decodes(levels)
        first, last, places = self._prompts(levels)
        total = _total(decodes) + (_total(first) + _total(last)) // 2 - self.terms.window_ps * int(windows.price.sum())
        return Least(max(total, 0) // UNIT, where, places)

    def _decodes(self, levels: Levels) -> tuple[Ints, Ints]:
        share = self.terms.kept * (UNIT - self.terms.prefill_share)
        runs = np.stack([self._from, self.read, self._free, self._parts])
        rate = np.array([self.terms.window_ps, share])
        return _cheapest_decodes(runs, levels.of, levels.decodes, levels.floors, rate)

    def _prompts(self, levels: Levels) -> tuple[Ints, Ints, Ints]:
        """Return I times the least cost at the place of the first token and of the last, and the latter's window."""
        bests = []
        for place in (np.ones_like(self.input), self.input):
            attention = self.cost.prefill_sq * (2 * place - 1) * self.input + self.cost.prefill_req
            best, where = _cheapest_prompts(
                self.arrival,
                np.stack([self.input, attention, self.terms.kept * self._kept_of_prompt]),
                levels.of,
                np.stack([levels.tokens, levels.factors]),
                self.terms.window_ps,
            )
            bests.append(best)
        return bests[0], bests[1], where


@compiled
def _cheapest_decodes(runs: Ints, of: Ints, worth: Ints, floors: Ints, rate: Ints) -> tuple[Ints, Ints]:
    """Return the least cost of every decode, and its window.

    ``runs`` are its first window, the tokens that it reads, until when it keeps nothing, and in how many parts what it
    keeps is shared; ``rate`` the length of a window, and how many parts of time are kept.
    """
    count, last = runs.shape[1], of.size - 1
    window_ps, share = rate
    best, where = np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        window, read = runs[0, i], runs[1, i]
        least = share * min(max(last * window_ps - runs[2, i], 0), _FARTHEST) // runs[3, i] + worth[of[last], read]
        where[i] = last
        while window < last:
            block = window // _BLOCK
            kept = share * min(max(window * window_ps - runs[2, i], 0), _FARTHEST) // runs[3, i]
            if kept + floors[1, block, read] >= least:
                break
            if kept + floors[0, block, read] >= least:
                window = (block + 1) * _BLOCK
                continue
            cost = kept + worth[of[window], read]
            if cost < least:
                least, where[i] = cost, window
            window += 1
        best[i] = least
    return best, where


@compiled
def _cheapest_prompts(arrival: Ints, prompts: Ints, of: Ints, worths: Ints, window_ps: int) -> tuple[Ints, Ints]:
    """Return the least cost of every prompt, and its window; ``prompts`` are tokens, attention, and what is kept."""
    best, where = np.empty(arrival.size, np.int64), np.empty(arrival.size, np.int64)
    last = of.size - 1
    token, factor = np.int64(LARGEST), np.int64(LARGEST)
    for level in of[:-1]:
        token, factor = min(token, worths[0, level]), min(factor, worths[1, level])
    for i in range(arrival.size):
        size, attention, share = prompts[0, i], prompts[1, i], prompts[2, i]
        waited = min(max(last * window_ps - arrival[i], 0), _FARTHEST)
        least = share * waited // UNIT + worths[0, of[last]] * size + worths[1, of[last]] * attention
        where[i] = last
        window = arrival[i] // window_ps
        while window < last:
            waited = min(max(window * window_ps - arrival[i], 0), _FARTHEST)
            kept = share * waited // UNIT
            if kept + token * size + factor * attention >= least:
                break
            level = of[window]
            cost = kept + worths[0, level] * size + worths[1, level] * attention
            if cost < least:
                least, where[i] = cost, window
            window += 1
        best[i] = least
    return best, where


def _total(numbers: Ints) -> int:
    """Add numbers up, beyond 64 bits if need be."""
    half = 2**31
    return int((numbers // half).sum()) * half + int((numbers % half).sum())
