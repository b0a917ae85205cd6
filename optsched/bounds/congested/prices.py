"""The choice of prices: whatever they are, the bound holds; these make it large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

import numpy as np

from optsched.bounds.bound import Bound
from optsched.bounds.congested.backlog import Floats, delayed
from optsched.bounds.congested.batches import Batches
from optsched.bounds.congested.request_costs import Least, Levels, RequestCosts
from optsched.bounds.congested.terms import UNIT, Setting, Windows, alive_at, terms_of
from optsched.model.instance import Instance
from optsched.model.ints import Ints

_STRETCH = 1.7
"""How much longer requests are alive than alone, at first guess."""
_SMOOTH, _KNOT = 21, 10
"""Windows over which the first guess is averaged, and between two prices that are adjusted."""
_POWER = 1.25
_SLOWER = 1.05
"""How much more of a machine than they must requests take, at first guess."""
_SLOPES = 16
"""Number of equal steps, up to the largest, in which β is tried."""
_SAMPLE = 256


def priced_bound(instance: Instance, setting: Setting, needs: Sequence[int]) -> Bound | None:
    """Return the bound of the best prices that are found; None if numbers are too large.

    ``needs`` are what the requests, as the instance has them, take of a machine.
    """
    terms = terms_of(instance, setting)
    if terms is None:
        return None
    batches = Batches(instance, terms)
    if batches.dearest < 4 * UNIT:
        return None
    requests = RequestCosts(instance, terms)
    jobs = sorted(zip(requests.arrival.tolist(), (_SLOWER * need for need in needs), strict=True))
    waiting = delayed(jobs, terms.window_ps, requests.last) * terms.kept / UNIT
    guess = np.maximum(_balanced(requests), waiting)
    value, windows = best_prices(requests, batches, guess, setting.rounds)
    return Bound(value, {"kind": "congestion", **asdict(terms), "windows": stated(windows)})


def best_prices(requests: RequestCosts, batches: Batches, guess: Floats, rounds: int) -> tuple[int, Windows]:
    """Return a large bound, in ps, and the prices that give it; a first guess is in requests, by window.

    At the best prices requests that choose their cheapest windows take of each window just the machine time that it
    has; where they take more its price rises. Prices are affine between knots, and steps are those of Adam (Kingma and
    Ba 2015).
    """
    slopes = _Slopes(requests, batches)
    places = np.arange(requests.last)
    knots = requests.last // _KNOT + 2
    spread = np.zeros((knots, requests.last))
    spread[places // _KNOT, places] = 1 - places % _KNOT / _KNOT
    spread[places // _KNOT + 1, places] = places % _KNOT / _KNOT
    reach = spread.sum(axis=1) + 1e-9
    at = spread @ guess / reach
    mean, square = np.zeros(knots), np.zeros(knots)
    found: list[tuple[int, Windows]] = []
    for turn in range(1, rounds + 1):
        windows = slopes.chosen(_rounded(at @ spread, batches.dearest))
        levels = requests.levels(batches, windows)
        least = requests.least(windows, levels)
        found.append((least.value, windows))
        pull = spread @ (_taken(requests, batches, windows, levels, least) - 1) / reach
        mean, square = 0.8 * mean + 0.2 * pull, 0.95 * square + 0.05 * pull**2
        step = mean / (1 - 0.8**turn) / np.sqrt(square / (1 - 0.95**turn) + 1e-3)
        at = np.maximum(at + 0.25 / (1 + turn / 15) * np.sqrt(at + 0.3) * step, 0)
    return max(found, key=lambda pair: pair[0])


def stated(windows: Windows) -> list[list[int]]:
    """Return windows as certificates have them: how many are alike, θ and β; the last one by itself."""
    rows = list(zip(windows.price.tolist(), windows.slope.tolist(), strict=True))
    runs = [[len(list(same)), *row] for row, same in groupby(rows[:-1])]
    return [*runs, [1, *rows[-1]]]


def _balanced(requests: RequestCosts) -> Floats:
    """Return prices, in requests, that balance a batch of the requests that are probably alive."""
    begins = requests.terms.window_ps * np.arange(requests.last)
    number = alive_at(begins, requests.arrival, requests.arrival + (_STRETCH * requests.alone).astype(np.int64))
    alive = np.convolve(np.pad(number, _SMOOTH // 2, mode="edge"), np.full(_SMOOTH, 1 / _SMOOTH), mode="valid")
    base, token = requests.cost.affine[0]
    own = token + requests.cost.decode_ps(int(requests.read.sum()) // max(requests.read.size, 1))
    guess: Floats = (alive**2).mean() * own / max(base, 1) * (alive / alive.mean()) ** _POWER
    return guess


def _rounded(prices: Floats, dearest: int) -> Ints:
    """Return prices in 64ths, on a grid that is finer where they are low; 0 is added for the last window.

    They are at most ``dearest``, rounded down to the widest grid.
    """
    units = np.minimum(UNIT * prices, dearest // (4 * UNIT) * (4 * UNIT))
    grid = np.select([units < 16 * UNIT, units < 64 * UNIT], [UNIT // 2, UNIT], 4 * UNIT)
    return np.append(np.rint(units / grid).astype(np.int64) * grid, 0)


class _Slopes:
    """The β that suits a price and a number alive: prompts and decodes share what a batch can give."""

    def __init__(self, requests: RequestCosts, batches: Batches) -> None:
        self._batches, self._alive = batches, requests.alive
        order = np.sort(requests.read)
        self._reads = order[np.linspace(0, order.size - 1, _SAMPLE).astype(np.int64)] if order.size else order
        self._decodes_a_read = order.size / max(self._reads.size, 1)
        self._tokens = int(requests.input.sum())
        self._known: dict[tuple[int, int], int] = {}
        self._part = _SLOPES // 2

    def chosen(self, price: Ints) -> Windows:
        """Return windows of given prices."""
        pairs = list(zip(price.tolist(), self._alive.tolist(), strict=True))
        for pair in sorted(set(pairs) - self._known.keys()):
            self._known[pair] = self._climb(*pair)
        return Windows(price, np.array([self._known[pair] for pair in pairs], np.int64))

    def _climb(self, price: int, alive: int) -> int:
        """Return the slope up to which what runs are worth rises, tried from the last one on."""
        values: dict[int, float] = {}

        def value(part: int) -> float:
            if part not in values:
                inside = 0 <= part <= _SLOPES
                values[part] = self._total(price, alive, self._slope(part)) if inside else -1.0
            return values[part]

        part = self._part
        while value(part + 1) > value(part):
            part += 1
        while part and value(part - 1) > value(part):
            part -= 1
        self._part = part
        return self._slope(part)

    def _slope(self, part: int) -> int:
        return part * self._batches.steepest // _SLOPES

    def _total(self, price: int, alive: int, slope: int) -> float:
        """Return what all runs would be worth in one window."""
        worth = self._batches.worth(price, alive, slope)
        return float(worth.decode[self._reads].sum()) * self._decodes_a_read + float(worth.token) * self._tokens


def _taken(requests: RequestCosts, batches: Batches, windows: Windows, levels: Levels, least: Least) -> Floats:
    """Return how much of each window's time the cheapest requests take, for each but the last."""
    rise = np.maximum(UNIT // 2, windows.price // 8 // UNIT * UNIT)
    dearer = requests.levels(batches, Windows(windows.price + rise, windows.slope))
    decodes = dearer.decode(least.decodes, requests.read) - levels.decode(least.decodes, requests.read)
    prompts = dearer.prompt(least.prompts, requests.input) - levels.prompt(least.prompts, requests.input)
    count = requests.last + 1
    taken = np.bincount(least.decodes, decodes, count) + np.bincount(least.prompts, prompts, count)
    share: Floats = taken / rise / requests.terms.window_ps
    return share[:-1]
