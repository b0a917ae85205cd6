"""The choice of prices: whatever they are, the bound holds; these make it large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from optsched.bounds.bound import Bound
from optsched.bounds.congested.terms import end_of
from optsched.bounds.queued.costs import RequestCosts
from optsched.bounds.queued.served import busy_prices, jobs_of
from optsched.bounds.queued.worths import (
    LARGEST,
    POINTS,
    UNIT,
    DecodeWorths,
    Floats,
    Terms,
    Worths,
    certificate_of,
    rounded,
)
from optsched.model.instance import Instance
from optsched.stopwatch import STOPWATCH

_WINDOWS = 6000
"""Most windows."""
_SCALES = (0.9, 1.0)
"""What first prices are multiplied by."""
_SHARES = ((32, 5), (40, 5), (56, 6))
"""First guesses of ε in 64ths, and of δ / ε in batches of one token."""
_STAGES = ((4, 1), (2, 130), (1, 80))
"""Windows of the bound in one, and rounds at most, of the parts of the search."""
_LONGER = (1, 4, 16)
"""How much longer windows are where they have to be."""
_BLOCKS = 4, 64
"""Blocks of a request's decodes, while prices are adjusted and in the bound."""
_SOONER = 200
"""Rounds after which steps would be as short as they are at the begin of a stage that goes on with prices."""
_MEAN = 15
"""Rounds of which the last one tries a mean of prices."""
_FEWEST = 6
"""Rounds of a stage at least; it is left out if that would take too much."""
_WORK = 700_000_000
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
    single, worths = instance.cost.linear_ps(1), DecodeWorths(instance)
    if not single or not worths.token:
        return None
    requests = RequestCosts(instance, worths)
    dearest = _dearest(instance, requests, worths)
    if dearest < 4 * UNIT:
        return None
    guesses = _Guesses(jobs_of(requests.arrival, needs), single, end_of(instance, 1))
    window = max(-(-guesses.end // _WINDOWS), int(np.median(requests.need)) // 2, single)
    # Where requests queue for long, fewer windows fit the work.
    found = (_searched(requests, worths, dearest, guesses, window * longer) for longer in _LONGER)
    best = next((each for each in found if each is not None), None)
    if best is None:
        return None
    value, terms, price = best
    finer = _Search(requests, worths, dearest).value(price, terms._replace(blocks=_BLOCKS[1]))
    if finer is not None and finer > value:
        value, terms = finer, terms._replace(blocks=_BLOCKS[1])
    prices = rounded(price, dearest)
    return Bound(value, certificate_of(worths.token, terms, prices, np.zeros_like(prices)))


@dataclass(frozen=True)
class _Guesses:
    """First prices: those of mean busy times.

    Parameters
    ----------
    jobs
        Arrivals and needs, by arrival.
    single
        Time of a batch of one token, ps.
    end
        When the last window begins.
    """

    jobs: list[tuple[float, float]]
    single: int
    end: int

    def prices(self, length: int) -> Floats:
        """Return prices for windows of a length."""
        return busy_prices(self.jobs, length, self.end // length + 2)

    def terms(self, length: int) -> Iterator[Terms]:
        """Yield windows, ε and δ."""
        for kept, short in _SHARES:
            yield Terms(length, kept, short * kept * self.single // UNIT, _BLOCKS[0], 1)


def _searched(
    requests: RequestCosts, worths: DecodeWorths, dearest: int, guesses: _Guesses, window: int
) -> tuple[int, Terms, Floats] | None:
    """Return the best value that is found with windows of some length or longer, with its terms and prices, if any."""
    best: tuple[int, Terms, Floats] | None = None
    for parts, rounds in _STAGES:
        length = window * parts
        search, guess = _Search(requests, worths, dearest), guesses.prices(length)
        if best is None:
            for scale, terms in product(_SCALES, guesses.terms(length)):
                if search.attempt(scale * guess, terms) is None:
                    return None
        else:
            _, terms, longer = best
            search.attempt(guess, terms._replace(window=length))
            places = np.minimum(np.arange(guess.size - 1) * length // terms.window, longer.size - 2)
            search.attempt(np.append(longer[places], 0.0), terms._replace(window=length))
        found = search.climb(rounds, _SOONER if parts == 1 else 0)
        if found is None:
            break
        best = found
    return best


def _dearest(instance: Instance, requests: RequestCosts, worths: DecodeWorths) -> int:
    """Return a price, in 64ths of a request, up to which all numbers stay below `LARGEST`; ≤ 0 if there is none."""
    cost, most, end = instance.cost, instance.limits.batch_tokens, end_of(instance, 1)
    read = cost.decode_ps(worths.step * POINTS)
    batch = cost.linear_ps(most) + cost.prefill_req + read
    output = requests.most_output
    need, single = int(requests.need.max()), cost.linear_ps(1) + read
    granted = UNIT * max(short for _, short in _SHARES) * cost.linear_ps(1)
    spans = UNIT * (4 * end + 4 * need + output * (single + granted))
    batches = (LARGEST - UNIT * worths.count * batch - granted) // (2 * batch)
    refill = worths.token * worths.step * (POINTS + 1)
    request = (LARGEST - spans - output * granted) // (4 * need + 2 * max(output, worths.step) * single + refill)
    return min(batches, request - UNIT)


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

    def attempt(self, price: Floats, terms: Terms) -> Floats | None:
        """Return how the bound changes with prices, per length of a window; keep them if they are the best so far.

        None if that takes too much.
        """
        least = self._requests.least(self._of(price, terms), terms, _WORK // _FEWEST)
        if least is None:
            self._work += _WORK
            return None
        self._work += least.visits
        if self._best is None or least.value > self._best[0]:
            self._best = least.value, terms, price
        pull: Floats = least.change[:-1] / terms.window
        return pull

    def value(self, price: Floats, terms: Terms) -> int | None:
        """Return the bound of prices; None if that takes too much."""
        least = self._requests.least(self._of(price, terms), terms, _WORK)
        return None if least is None else least.value

    def _of(self, price: Floats, terms: Terms) -> Worths:
        prices = rounded(price, self._dearest)
        return self._worths.of(prices, np.zeros_like(prices), terms)

    def climb(self, rounds: int, sooner: int) -> tuple[int, Terms, Floats] | None:
        """Try some more prices, fewer if that takes too much; return the best value, its terms and prices, if any."""
        if self._best is None:
            return None
        _, terms, price = self._best
        at = price[:-1].copy()
        mean, square, smooth = np.zeros(at.size), np.zeros(at.size), at
        for turn in range(1, rounds + 1):
            if self._work >= _WORK or STOPWATCH.is_over():
                break
            # The mean of prices around a maximum is nearer to it than they are.
            pull = self.attempt(np.append(smooth if turn % _MEAN == 0 else at, 0.0), terms)
            if pull is None:
                break
            smooth = 0.9 * smooth + 0.1 * at
            if turn % _MEAN == 0:
                continue
            mean, square = 0.8 * mean + 0.2 * pull, 0.95 * square + 0.05 * pull**2
            step = mean / (1 - 0.8**turn) / np.sqrt(square / (1 - 0.95**turn) + 1e-3)
            width = 0.1 * (np.minimum(1.5 * np.sqrt(at), 0.15 * at) + 0.15) / (1 + (sooner + turn) / 40)
            at = np.maximum(at + width * step, 0)
        return self._best
