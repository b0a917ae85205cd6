"""The choice of prices: whatever they are, the bound holds; these make it large."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from optsched.bounds.bound import Bound
from optsched.bounds.congested.backlog import Floats, delayed
from optsched.bounds.congested.batches import Batches
from optsched.bounds.congested.request_costs import Least, RequestCosts
from optsched.bounds.congested.terms import LONGEST_SHORT, UNIT, Windows, alive_at, window_of
from optsched.model.instance import Instance

_STRETCH = 2.0
"""How much longer requests are alive than alone, at first guess."""
_SMOOTH, _KNOT = 500, 250
"""Batches of one token to either side over which the first guess is averaged, and between two adjusted prices."""
_STARTS = ((1.0, 0.5, 3.0), (2.0, 0.85, 7.0))
"""First guesses: multiples of the requests that lost machine time delays, ε, and δ / ε in batches of one token."""
_TRIED = 12
"""Rounds after which the better start goes on."""
_SLOWER = 1.1
"""How much more of a machine than they must requests take, at first guess."""
_WORK, _FEWEST, _MOST, _WINDOW = 60_000_000, 40, 120, 256
"""Decodes that all rounds look at together, fewest and most rounds, and decodes that take as long as a window."""
_THINNED, _SEEN = 4, 500_000
"""While prices are adjusted one decode of a request in four is looked at, or fewer if these are more than that."""


def priced_bound(instance: Instance, needs: Sequence[int], machines: int = 1) -> Bound | None:
    """Return the bound of the best prices that are found; None if numbers are too large.

    Parameters
    ----------
    instance
        The problem.
    needs
        What the requests, as the instance has them, take of a machine.
    machines
        How many machines like the instance's share the requests.
    """
    window_ps = window_of(instance, machines)
    if window_ps is None:
        return None
    requests = RequestCosts(instance, window_ps, machines)
    batches = Batches(instance, requests.alive)
    if batches.dearest < 4 * UNIT:
        return None
    # All machines as one that is that much faster; what delays it by a second delays each machine's part of requests.
    jobs = sorted(zip(requests.arrival.tolist(), (_SLOWER * need / machines for need in needs), strict=True))
    waiting, balanced = delayed(jobs, window_ps, requests.last) / machines, _balanced(requests)
    searches = [
        _Search(requests, batches, np.maximum(multiple * waiting, balanced), kept, granted)
        for multiple, kept, granted in _STARTS
    ]
    for search in searches:
        search.go_on(_TRIED)
    best = max(searches, key=lambda search: search.best[0])
    work = int(requests.output.sum()) + _WINDOW * requests.last
    best.go_on(min(max(_WORK // work, _FEWEST), _MOST) - _TRIED)
    windows = best.best[1]
    value = requests.least(windows, batches.worths(windows)).value
    stated = {"window_ps": window_ps, "grain_ps": requests.grain_ps, "short_ps": windows.short}
    return Bound(value, {"kind": "congestion", **stated, "windows": runs_of(windows)})


def runs_of(windows: Windows) -> list[list[int]]:
    """Return windows as certificates have them: how many are alike, θ, β and ε; the last one by itself."""
    rows = list(zip(windows.price.tolist(), windows.slope.tolist(), windows.kept.tolist(), strict=True))
    runs = [[len(list(same)), *row] for row, same in groupby(rows[:-1])]
    return [*runs, [1, *rows[-1]]]


class _Search:
    """An ascent from a first guess.

    At the best prices requests that choose their cheapest windows take of each window just the machine time that it
    has; where they take more its price rises. θ, β and ε are affine between knots; δ is one number. Steps are those of
    Adam (Kingma and Ba 2015).

    Parameters
    ----------
    requests, batches
        What is bounded.
    guess
        θ in requests, by window but the last.
    kept, granted
        ε, and δ / ε in batches of one token, at first.

    Attributes
    ----------
    best
        The largest estimate of the bound so far, and its windows.
    """

    def __init__(self, requests: RequestCosts, batches: Batches, guess: Floats, kept: float, granted: float) -> None:
        self._requests, self._batches = requests, batches
        single = requests.cost.linear_ps(1)
        knot = max(1, _KNOT * single // requests.window_ps)
        places, knots = np.arange(requests.last), requests.last // knot + 2
        self._spread = np.zeros((knots, requests.last))
        self._spread[places // knot, places] = 1 - places % knot / knot
        self._spread[places // knot + 1, places] += places % knot / knot
        self._reach = self._spread.sum(axis=1) + 1e-9
        price = self._spread @ guess / self._reach
        self._at = [price, np.full(knots, 0.99), np.full(knots, kept), np.log(np.full(1, kept * granted * single))]
        self._steps = _Steps([knots, knots, knots, 1])
        self._thinned = max(_THINNED, int(requests.output.sum()) // _SEEN)
        self._turn = 0
        self.best = 0, self._windows()

    def go_on(self, rounds: int) -> None:
        """Try some more prices."""
        for _ in range(rounds):
            self._turn += 1
            windows = self._windows()
            least = self._requests.least(windows, self._batches.worths(windows), self._thinned)
            if least.value > self.best[0]:
                self.best = least.value, windows
            self._move(least)

    def _windows(self) -> Windows:
        price, slope, kept = (at @ self._spread for at in self._at[:3])
        units = np.rint(np.minimum(UNIT * price, self._batches.dearest)).astype(np.int64)
        slopes = np.floor(slope * self._batches.steepest).astype(np.int64)
        shares = np.rint(UNIT * kept).astype(np.int64)
        short = round(float(np.exp(self._at[3][0])))
        return Windows(np.append(units, 0), np.append(slopes, slopes[-1]), np.append(shares, shares[-1]), short)

    def _move(self, least: Least) -> None:
        window_ps, price = self._requests.window_ps, self._at[0]
        by_knot = least.change[:, :-1] @ self._spread.T / self._reach / window_ps
        pulls = [
            by_knot[0],
            by_knot[1] * self._batches.steepest / UNIT / 50,
            by_knot[2] / 50,
            np.full(1, least.short * np.exp(self._at[3][0]) / UNIT / window_ps),
        ]
        widths: list[Floats | float] = [np.minimum(1.5 * np.sqrt(price), 0.15 * price) + 0.15, 0.01, 0.03, 0.05]
        single = self._requests.cost.linear_ps(1)
        ranges = [(0.0, np.inf), (0.0, 1.0), (0.0, 1.0), (np.log(single / 4), np.log(LONGEST_SHORT * single))]
        for at, step, width, (low, high) in zip(
            self._at, self._steps.next(self._turn, pulls), widths, ranges, strict=True
        ):
            np.clip(at + width / (1 + self._turn / 40) * step, low, high, out=at)


class _Steps:
    """Directions of Adam for some arrays of given sizes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._mean = [np.zeros(size) for size in sizes]
        self._square = [np.zeros(size) for size in sizes]

    def next(self, turn: int, pulls: Sequence[Floats]) -> list[Floats]:
        """Return the steps of a turn, from 1 on."""
        steps = []
        for number, pull in enumerate(pulls):
            self._mean[number] = 0.8 * self._mean[number] + 0.2 * pull
            self._square[number] = 0.95 * self._square[number] + 0.05 * pull**2
            root = np.sqrt(self._square[number] / (1 - 0.95**turn) + 1e-3)
            steps.append(self._mean[number] / (1 - 0.8**turn) / root)
        return steps


def _balanced(requests: RequestCosts) -> Floats:
    """Return prices, in requests, that balance a batch of the requests that are probably alive."""
    begins = requests.window_ps * np.arange(requests.last)
    ends = requests.arrival + (_STRETCH * requests.alone).astype(np.int64)
    number = alive_at(begins, requests.arrival, ends) / requests.machines
    smooth = max(1, _SMOOTH * requests.cost.linear_ps(1) // requests.window_ps)
    width = 2 * smooth + 1
    alive = np.convolve(np.pad(number, smooth, mode="edge"), np.full(width, 1 / width), mode="valid")
    base, token = requests.cost.affine[0]
    read = int((requests.input + requests.output // 2).mean())
    guess: Floats = alive**2 * (token + requests.cost.decode_ps(read)) / max(base, 1)
    return guess
