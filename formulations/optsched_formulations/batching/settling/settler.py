"""Prices of numbers of batches, and searches by them."""

from __future__ import annotations

from collections.abc import Callable

from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.outputs import Steps
from optsched_formulations.batching.layers.search import Found, Priced, Relaxation, search_layers
from optsched_formulations.batching.settling.known import Known

QUICK, LONG = 30, 400
"""Rounds of looking for prices of a number of batches, at first and then for those still open."""
GAIN = 0.003
"""In batches: with less from one time to the next prices have converged."""
QUICK_SHARE = 0.3
"""Share of the time left that the first rounds may take."""
_ROOM = 1.2
"""Times as many batches as needed: with room for more, schedules are looked for from below."""

Become = Callable[[Steps, int], Steps]
"""What steps found for a number of batches are of all requests; none where they are of no use."""


class Settler:
    """Prices of numbers of batches and searches by them, of one kind of relaxation.

    Parameters
    ----------
    known
        What is known, which they add to.
    become
        What steps of these schedules are of all requests.

    Attributes
    ----------
    prices
        The best ones so far, by the number of batches.
    """

    def __init__(self, known: Known, become: Become) -> None:
        self.known = known
        self._become = become
        self.prices: dict[int, Floats] = {}

    def priced(self, relaxation: Relaxation, batches: int, price: Floats) -> Priced:
        """Take prices of a number of batches and what they prove."""
        self.prices[batches] = price
        priced = relaxation.priced(price, batches)
        self.known.raise_bound(batches, priced.bound)
        return priced

    def improved(
        self, relaxation: Relaxation, batches: int, price: Floats, rounds: int, over: Callable[[], bool]
    ) -> Priced:
        """Look for better prices of a number of batches and take what they prove."""
        better = relaxation.improved(price, batches, self.known.enough, rounds, over)
        return self.priced(relaxation, batches, better)

    def search(self, priced: Priced, batches: int, width: int | None, over: Callable[[], bool]) -> bool:
        """Search a number of batches, unless it is settled, take what is found, and return whether that was all.

        Of a core the least cost of its schedules is a bound; they may become some of all requests.
        """
        if batches not in self.known.open:
            return False
        found = search_layers(priced.space(), batches, self.known.budget, width, over)
        self.take_found(found, batches)
        return found.complete

    def take_found(self, found: Found, batches: int) -> None:
        """Take the schedule that was found of a number of batches, and a bound on it."""
        self.known.take(self._become(found.steps, batches) if found.steps else found.steps)
        self.known.raise_bound(batches, found.bound)

    def begin(self, relaxation: Relaxation) -> None:
        """Look for a schedule of few batches where the best one known leaves room for many more than are needed."""
        known, more = self.known, 1
        over = known.over(known.at(QUICK_SHARE))
        while known.most > _ROOM * (known.fewest + more) and not over():
            batches = known.fewest + more
            priced = self.improved(relaxation, batches, relaxation.first_prices(batches), QUICK, over)
            self.search(priced, batches, relaxation.widths[0], over)
            more *= 2

    def improve_all(self, relaxation: Relaxation, most: int, rounds: int, width: int, until: float) -> None:
        """Bound the numbers of batches that are open, most first, and look for schedules."""
        known, price = self.known, relaxation.first_prices(most)
        for batches in range(most, known.fewest - 1, -1):
            if batches not in known.open or now_s() > known.deadline:
                continue
            # Each has twice its share of the time left, since others need less.
            over = known.over(min(until, now_s() + 2.0 * (until - now_s()) / len(known.open)))
            price = self.prices.get(batches, price)
            priced = self.improved(relaxation, batches, price, rounds, over)
            while rounds == LONG and batches in known.open and not over():
                before = priced.bound
                priced = self.improved(relaxation, batches, self.prices[batches], rounds, over)
                if priced.bound < before + GAIN * known.base:
                    break
            price = self.prices[batches]
            self.search(priced, batches, width, known.over(until))

    def search_all(self, relaxation: Relaxation) -> None:
        """Search the numbers of batches that are open, those of the best bounds first."""
        known = self.known
        for batches in sorted(known.open, key=lambda batches: -known.open[batches]):
            if batches in known.open and now_s() < known.deadline:
                priced = relaxation.priced(self.prices[batches], batches)
                self.search(priced, batches, None, known.over(known.at(1 / len(known.open))))
