"""The choice of prices: whatever they are, the bound holds; these make it large."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from optsched.bounds.alone import alone
from optsched.bounds.bound import Bound
from optsched.bounds.queued.costs import RequestCosts
from optsched.bounds.queued.served import busy_prices
from optsched.bounds.queued.worths import LARGEST, POINTS, UNIT, DecodeWorths, Floats, Terms, Worths
from optsched.bounds.volume import busy_ps
from optsched.model.instance import Instance
from optsched.model.ints import Ints

_GRAIN = 8
"""Prices are multiples of this, in 64ths of a request: of different ones there are fewer."""
_WINDOWS = 6000
"""Most windows."""
_SLOWER = (1.0, 1.05)
"""How much more of a machine than they must requests take, at first guess."""
_SCALES = (0.85, 0.95, 1.05)
"""What first prices are multiplied by."""
_SHARES = ((32, 4), (40, 5), (56, 6))
"""First guesses of ε in 64ths, and of δ / ε in batches of one token."""
_STAGES = ((4, 60), (1, 30))
"""Windows of the bound in one, and rounds, of the parts of the search."""
_WORK = 1_500_000_000
"""Windows that a stage may look at."""


def priced_bound(instance: Instance, needs: Sequence[int]) -> Bound | None:
    """Return the bound of the best prices that are found; None if numbers are too large.

    Parameters
    ----------
    instance
        The problem.
    needs
        What the requests take of the machine.
    """
    end, single = _end(instance), instance.cost.linear_ps(1)
    worths = DecodeWorths(instance)
    if not single or not worths.token:
        return None
    requests = RequestCosts(instance, worths)
    window = max(-(-end // _WINDOWS), int(np.median(requests.need)) // 2, single)
    dearest = _dearest(instance, requests, worths, end)
    if dearest < 4 * UNIT:
        return None
    best: tuple[int, Terms, Floats] | None = None
    for parts, rounds in _STAGES:
        length = window * parts
        count = end // length + 1
        search = _Search(requests, worths, dearest)
        if best is None:
            jobs = sorted(zip(requests.arrival.tolist(), needs, strict=True))
            for slower, scale, (kept, short) in product(_SLOWER, _SCALES, _SHARES):
                shares = [(float(arrival), max(1.0, slower * need)) for arrival, need in jobs]
                guess = scale * busy_prices(shares, length, count + 1)
                search.attempt(guess, Terms(length, kept, short * kept * single // UNIT))
        else:
            _, terms, coarse = best
            places = np.minimum(np.arange(count + 1) * length // terms.window, coarse.size - 1)
            guess = np.append(coarse[places][:-1], 0.0)
            search.attempt(guess, terms._replace(window=length))
        best = search.climb(rounds)
    assert best is not None, "there is a stage"
    value, terms, price = best
    stated = {"window_ps": terms.window, "kept": terms.kept, "short_ps": terms.short}
    return Bound(value, {"kind": "waiting", **stated, "prices": _rounded(price, dearest)[:-1].tolist()})


def _end(instance: Instance) -> int:
    """Return when the last window begins, in ps from the first arrival on: when all may have ended."""
    span = max(request.arrival_ps for request in instance.requests) - instance.start_ps
    return max(span + max(alone(instance).e2e), busy_ps(instance) * 11 // 10)


def _dearest(instance: Instance, requests: RequestCosts, worths: DecodeWorths, end: int) -> int:
    """Return a price, in 64ths of a request, up to which all numbers stay below `LARGEST`; ≤ 0 if there is none."""
    cost, most = instance.cost, instance.limits.batch_tokens
    read = cost.decode_ps(worths.step * POINTS)
    batch = cost.linear_ps(most) + cost.prefill_req + read
    output = max(request.output for request in instance.requests)
    need, single = int(requests.need.max()), cost.linear_ps(1) + read
    granted = UNIT * max(short for _, short in _SHARES) * cost.linear_ps(1)
    spans = UNIT * (4 * end + 4 * need + output * (single + granted))
    batches = (LARGEST - UNIT * worths.count * batch - granted) // (2 * batch)
    refill = worths.token * worths.step * (POINTS + 1)
    request = (LARGEST - spans - output * granted) // (4 * need + 2 * max(output, worths.step) * single + refill)
    return min(batches, request - UNIT)


def _rounded(price: Floats, dearest: int) -> Ints:
    """Return prices in 64ths of a request."""
    rounded: Ints = _GRAIN * np.rint(np.minimum(UNIT * price, dearest - _GRAIN) / _GRAIN).astype(np.int64)
    return rounded


class _Search:
    """An ascent from the best of some guesses.

    At the best prices requests that choose their cheapest windows take of each window just the machine time that it
    has; where they take more its price rises. Steps are those of Adam (Kingma and Ba 2015).

    Parameters
    ----------
    requests, worths
        What is bounded.
    dearest
        The highest price, in 64ths.
    """

    def __init__(self, requests: RequestCosts, worths: DecodeWorths, dearest: int) -> None:
        self._requests, self._worths, self._dearest = requests, worths, dearest
        self._work = 0
        self._best: tuple[int, Terms, Floats] | None = None

    def attempt(self, price: Floats, terms: Terms) -> Floats:
        """Return how the bound changes with prices, per length of a window; keep them if they are the best so far."""
        rounded = _rounded(price, self._dearest)
        worths: Worths = self._worths.of(rounded, terms)
        least = self._requests.least(worths, terms)
        self._work += least.visits
        if self._best is None or least.value > self._best[0]:
            self._best = least.value, terms, price
        pull: Floats = least.change[:-1] / terms.window
        return pull

    def climb(self, rounds: int) -> tuple[int, Terms, Floats]:
        """Try some more prices, fewer if that takes too much; return the best value, its terms and prices."""
        assert self._best is not None, "a first guess has been tried"
        _, terms, price = self._best
        at = price[:-1].copy()
        mean, square = np.zeros(at.size), np.zeros(at.size)
        for turn in range(1, rounds + 1):
            if self._work > _WORK:
                break
            pull = self.attempt(np.append(at, 0.0), terms)
            mean, square = 0.8 * mean + 0.2 * pull, 0.95 * square + 0.05 * pull**2
            step = mean / (1 - 0.8**turn) / np.sqrt(square / (1 - 0.95**turn) + 1e-3)
            width = 0.1 * (np.minimum(1.5 * np.sqrt(at), 0.15 * at) + 0.15) / (1 + turn / 40)
            at = np.maximum(at + width * step, 0)
        return self._best
