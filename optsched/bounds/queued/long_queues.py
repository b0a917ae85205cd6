"""Prices where requests queue for as long as they arrive: few are tried, on some of the requests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.bounds.bound import Bound
from optsched.bounds.congested.terms import end_of
from optsched.bounds.machine import Needs
from optsched.bounds.queued.costs import RequestCosts
from optsched.bounds.queued.served import busy_prices, jobs_of
from optsched.bounds.queued.worths import LARGEST, UNIT, DecodeWorths, Terms, certificate_of, rounded
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.stopwatch import STOPWATCH

_WINDOWS = 900
"""Windows: what a bound takes grows with their square."""
_BLOCKS = 4, 8
"""Blocks of a request's decodes, while prices are compared and in the bound."""
_PARTS = 4
"""Parts of εW in which Z is counted: windows are long."""
_LOOKED_AT = 1000
"""Requests that are looked at while prices are compared."""


class _Choice(NamedTuple):
    """What prices are made of.

    Parameters
    ----------
    scale
        What prices of mean busy times are multiplied by.
    lost
        Part of what decodes lose by full batches that no price of memory pays.
    kept, short
        ε in 64ths, and δ / ε in batches of one token.
    """

    scale: float
    lost: float
    kept: int
    short: int


_FIRST = _Choice(0.99, 0.35, 56, 6)
_OTHERS = ({"lost": 0.6}, {"lost": 0.15}, {"kept": 52}, {"kept": 60}, {"scale": 0.97}, {"scale": 1.0})
"""Changes that are tried one after the other."""


def long_queue_bound(instance: Instance) -> Bound | None:
    """Return the bound of the best of a few prices; None if numbers are too large.

    Parameters
    ----------
    instance
        The problem.
    """
    prices = _Prices(instance)
    if not instance.cost.linear_ps(1) or not prices.worths.token:
        return None
    best, value = _FIRST, prices.estimate(_FIRST)
    for change in _OTHERS:
        if STOPWATCH.is_over():
            break
        other = best._replace(**change)
        found = prices.estimate(other)
        if found > value:
            best, value = other, found
    return prices.bound(best)


class _Prices:
    """Prices of time are those of mean busy times; of memory, what full batches leave of their bases.

    A batch of y decodes that hold m tokens each and fill the memory takes a + b y. Where time costs θ, one decode of
    ``(θ + y) (a + b y) / y`` would choose y so that b y² is θ a. If fewer fit, θ a - b y² is what all of the memory is
    worth.
    """

    def __init__(self, instance: Instance) -> None:
        requests, cost, end = instance.requests, instance.cost, end_of(instance, 1)
        everything = Needs(instance, [request.output for request in requests])
        rate, split, needs = max(everything.shares(), key=lambda share: sum(share[2]))
        self.worths = DecodeWorths(instance, rate.prompt // rate.scale)
        self._requests = RequestCosts(instance, self.worths)
        self._single = cost.linear_ps(1)
        self._window = max(-(-end // _WINDOWS), self._single, 1)
        self._busy = busy_prices(jobs_of(self._requests.arrival, needs), self._window, end // self._window + 2)
        decodes = sum(request.output - 1 for request in requests)
        read = sum((request.output - 1) * (2 * request.input + request.output) // 2 for request in requests)
        mean = max(read // max(decodes, 1), 1)
        together = instance.limits.kv_tokens / mean
        self._base = rate.base // rate.scale if split.memory else 0
        self._loss = (rate.prompt / rate.scale + cost.decode_ps(mean)) * together**2

    def estimate(self, choice: _Choice) -> int:
        """Return about the bound of a choice; 0 if numbers are too large."""
        apart = max(1, self._requests.arrival.size // _LOOKED_AT)
        return self._value(self._terms(choice, _BLOCKS[0]), *self._of(choice), apart)

    def bound(self, choice: _Choice) -> Bound | None:
        """Return the bound of a choice."""
        terms, (price, memory) = self._terms(choice, _BLOCKS[1]), self._of(choice)
        value = self._value(terms, price, memory, 1)
        if not value:
            return None
        return Bound(value, certificate_of(self.worths.token, terms, price, memory))

    def _terms(self, choice: _Choice, blocks: int) -> Terms:
        return Terms(self._window, choice.kept, choice.short * choice.kept * self._single // UNIT, blocks, _PARTS)

    def _of(self, choice: _Choice) -> tuple[Ints, Ints]:
        """Return prices of time and of memory."""
        price = rounded(choice.scale * self._busy)
        left = price * float(self._base) - UNIT * choice.lost * self._loss
        return price, np.maximum(left / self.worths.held, 0).astype(np.int64)

    def _value(self, terms: Terms, price: Ints, memory: Ints, apart: int) -> int:
        requests, worths = self._requests, self.worths
        if worths.largest_batch(int(price.max()), int(memory.max()), terms) >= LARGEST:
            return 0
        found = worths.of(price, memory, terms)
        if requests.largest(found, terms) >= LARGEST:
            return 0
        least = requests.least(found, terms, LARGEST, apart)
        return 0 if least is None else least.value
