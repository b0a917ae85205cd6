"""The choice of prices: whatever they are, the bound holds; these make it large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from optsched.bounds.alone import alone
from optsched.bounds.bound import Bound
from optsched.bounds.congested.backlog import Floats, delayed
from optsched.bounds.congested.batches import Batches
from optsched.bounds.congested.request_costs import Least, RequestCosts, Sample
from optsched.bounds.congested.terms import LONGEST_SHORT, UNIT, Windows, alive_at, end_of, window_of
from optsched.bounds.congested.together import SurelyAlive
from optsched.model.instance import Instance
from optsched.stopwatch import STOPWATCH

_STRETCH = 2.0
"""How much longer requests are alive than alone, at first guess."""
_SMOOTH = 500
"""Batches of one token to either side over which the first guess is averaged."""
_STARTS = ((1.0, 0.5, 3.0), (2.0, 0.85, 7.0), (4.0, 0.85, 7.0))
"""First guesses: multiples of the requests that lost machine time delays, ε, and δ / ε in batches of one token."""
_TRIED = 12
"""Rounds after which the best start goes on."""
_SLOWER = 1.1
"""How much more of a machine than they must requests take, at first guess."""
_LOOKS = 10_000
"""Times at which requests that wait are counted, for their mean latency at first guess."""
_Jobs = Sequence[tuple[int, float]]


class _Stage(NamedTuple):
    """A part of the search: windows longer than those of the bound, and more prices held equal, cost less a round.

    Parameters
    ----------
    batches
        How long its windows are, in batches of one token; they are no shorter than those of the bound.
    knot
        Its windows between two adjusted prices.
    rounds
        How often they are adjusted at most.
    turn
        Rounds after which steps would be as short as they are at its begin.
    """

    batches: int
    knot: int
    rounds: int
    turn: int


_STAGES = _Stage(200, 1, 150, 0), _Stage(50, 2, 300, 40), _Stage(0, 1, 300, 80)
_WORK, _WINDOW = 800_000_000, 75
"""What all may take: windows that are looked at for a run, and one more in which batches are is as many."""
_SHARES = 1 / 4, 1 / 3, 1
"""Shares of that for the first stage, and of what is left for later ones."""
_MOST_FIRST, _MORE, _GAIN = 1 / 2, 50, 1.003
"""If its rounds take less than its share, the first stage goes on up to a larger one, as long as some rounds gain much:
by such a factor."""
_LEAST = 16
"""Rounds of a stage that takes more."""
_GRAINS, _PARTS = 2**17, (16, 128)
"""Grains in all, if a window has 16 to 128 of them, while prices are adjusted."""
_POINTS = 12, 32
"""Fewest and most stretches of tokens read meanwhile. One is half of what a decode reads in the median, or a little
more, so that most decodes read about as much as at an end of one, where worths are not estimated."""
_SEEN, _THINNED = 15_000, (4, 64)
"""Decodes that are looked at while prices are adjusted, if that is one in 4 to one in 64 of a request."""
_MEMORY = 33
"""Rounds of which prices are averaged."""
_MOST_SHORT_PS = 10**13
"""The largest δ that the checker takes."""
_REQUESTS = 8000
"""Requests times windows in one that are looked at while prices are adjusted: of twice as many every second."""


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
    jobs, end_ps = _jobs(instance, needs, machines), end_of(instance, machines)
    window_ps = window_of(instance, end_ps, _latency(instance, end_ps, jobs))
    if window_ps is None:
        return None
    alive = SurelyAlive(instance) if machines == 1 else None
    requests = RequestCosts(instance, window_ps, end_ps, alive, machines)
    batches = Batches(instance, requests.alive)
    if batches.dearest < 4 * UNIT:
        return None
    windows = _searched(instance, requests, jobs)
    value = requests.least(windows, batches.worths(windows)).value
    stated = {"window_ps": window_ps, "grain_ps": requests.grain_ps, "short_ps": windows.short}
    return Bound(value, {"kind": "congestion", **stated, "windows": runs_of(windows)})


def runs_of(windows: Windows) -> list[list[int]]:
    """Return windows as certificates have them: how many are alike, θ, β and ε; the last one by itself."""
    rows = list(zip(windows.price.tolist(), windows.slope.tolist(), windows.kept.tolist(), strict=True))
    runs = [[len(list(same)), *row] for row, same in groupby(rows[:-1])]
    return [*runs, [1, *rows[-1]]]


def _searched(instance: Instance, requests: RequestCosts, jobs: _Jobs) -> Windows:
    """Return the best prices of all stages, by windows of the bound."""
    window_ps = requests.window_ps
    first, *later = _STAGES
    parts, points = _parts(instance, first, window_ps), _points(requests)
    longer, few = _coarse(instance, requests, parts * window_ps, points)
    searches = [_Search(longer, few, first, guess, parts) for guess in _guesses(longer, few, jobs)]
    for search in searches:
        search.go_on(_TRIED, _WORK)
    best = max(searches, key=lambda search: search.best[0])
    most = _SHARES[0] * _WORK
    best.go_on(first.rounds - _TRIED - _MORE, most)
    before = 0.0
    while best.best[0] > _GAIN * before and best.work < most:
        before = best.best[0]
        best.go_on(_MORE, most)
        most = _MOST_FIRST * _WORK
    left, windows = _WORK - sum(search.work for search in searches), best.best[1]
    if _parts(instance, later[-1], window_ps) == _parts(instance, later[-2], window_ps):
        del later[-1]  # the one before it goes on
    for stage, share in zip(later, _SHARES[-len(later) :], strict=True):
        before, known, parts = parts, few, _parts(instance, stage, window_ps)
        longer, few = _coarse(instance, requests, parts * window_ps, points)
        search = _Search(longer, few, stage, _shorter(windows, before // parts, known, few), parts)
        search.go_on(stage.rounds, share * left)
        left, windows = left - search.work, search.best[1]
    return windows


def _parts(instance: Instance, stage: _Stage, window_ps: int) -> int:
    """Return how many windows of the bound are one of a stage, a power of two."""
    return 1 << max(0, (stage.batches * instance.cost.linear_ps(1) // window_ps).bit_length() - 1)


def _coarse(instance: Instance, requests: RequestCosts, window_ps: int, points: int) -> tuple[RequestCosts, Batches]:
    """Return what estimates of the bound need."""
    grains = int(np.clip(_GRAINS * window_ps // requests.end_ps, *_PARTS))
    longer = requests.of_windows(window_ps, grains)
    return longer, Batches(instance, longer.alive, points)


def _points(requests: RequestCosts) -> int:
    """Return into how many stretches the tokens that decodes read are cut for estimates."""
    middle, decodes = requests.input + requests.output // 2, requests.output
    order = np.argsort(middle, kind="stable")
    total = np.cumsum(decodes[order])
    median = middle[order[np.searchsorted(total, total[-1] / 2)]]
    return int(np.clip(2 * (requests.input + decodes).max() // median, *_POINTS))


def _jobs(instance: Instance, needs: Sequence[int], machines: int) -> _Jobs:
    """Return when requests arrive after the first, and what they need of all machines as one that is that much faster.

    What delays that one by a second delays each machine's part of the requests.
    """
    return sorted(zip(instance.arrivals_ps, (_SLOWER * need / machines for need in needs), strict=True))


def _latency(instance: Instance, end_ps: int, jobs: _Jobs) -> int:
    """Return a mean e2e latency in ps, at first guess."""
    least = alone(instance).e2e
    window_ps = max(1, -(-end_ps // _LOOKS))
    waiting = float(delayed(jobs, window_ps, _LOOKS).sum())
    return (sum(least) + int(window_ps * waiting)) // len(least)


def _guesses(requests: RequestCosts, batches: Batches, jobs: _Jobs) -> Iterator[Windows]:
    """Yield first prices."""
    machines, last = requests.machines, requests.last
    waiting, balanced = delayed(jobs, requests.window_ps, last) / machines, _balanced(requests)
    for multiple, kept, granted in _STARTS:
        price = np.append(np.minimum(UNIT * np.maximum(multiple * waiting, balanced), batches.dearest), 0)
        slope = np.full(last + 1, batches.steepest * 99 // 100)
        short = round(kept * granted * requests.cost.linear_ps(1))
        yield Windows(price.astype(np.int64), slope, np.full(last + 1, round(UNIT * kept)), short)


def _shorter(windows: Windows, parts: int, known: Batches, batches: Batches) -> Windows:
    """Return the same prices by windows of which ``parts`` are one of these, ``batches``' instead of ``known``'s.

    More requests are surely alive in shorter windows: B stays as it is.
    """
    alive, longer = batches.alive.always, known.alive.always
    places = np.append(np.minimum(np.arange(alive.size - 1) // parts, longer.size - 2), -1)
    price, kept = windows.price[places], windows.kept[places]
    before, after = ((UNIT - kept) * number + price for number in (longer[places], alive))
    slope = np.minimum(windows.slope[places] * before // np.maximum(after, 1), batches.steepest)
    return Windows(price, slope, kept, windows.short)


class _Search:
    """An ascent from a first guess.

    At the best prices requests that choose their cheapest windows take of each window just the machine time that it
    has; where they take more its price rises. θ, β and ε are affine between knots; δ is one number. Steps are those of
    Adam (Kingma and Ba 2015), by other samples of decodes and requests from round to round. What proves most is the
    mean of the last prices (Polyak and Juditsky 1992).

    Parameters
    ----------
    requests, batches
        What is bounded.
    stage
        How finely.
    guess
        The first prices.
    parts
        How many windows of the bound are one of these.

    Attributes
    ----------
    best
        The largest estimate of the bound so far, and its windows.
    """

    def __init__(self, requests: RequestCosts, batches: Batches, stage: _Stage, guess: Windows, parts: int) -> None:
        self._requests, self._batches = requests, batches
        self._knots = _Knots(stage.knot, requests.last)
        self._at = [
            self._knots.mean(guess.price[:-1] / UNIT),
            self._knots.mean(guess.slope[:-1] / max(batches.steepest, 1)),
            self._knots.mean(guess.kept[:-1] / UNIT),
            np.log(np.full(1, float(max(guess.short, 1)))),
        ]
        self._steps = _Steps([at.size for at in self._at])
        self._apart = max(1, requests.output.size * parts // _REQUESTS)
        self._thinned = int(np.clip(requests.output.sum() // _SEEN, *_THINNED))
        self._mean = [at.copy() for at in self._at]
        self._shorter, self._turn, self.work = stage.turn, 0, 0
        self.best = 0, self._windows(self._at)

    def go_on(self, rounds: int, most: float) -> None:
        """Go through some more prices, fewer if that takes too much; try their mean, and the last."""
        for _ in range(rounds):
            if STOPWATCH.is_over() or (self._turn >= _LEAST and self.work > most):
                break
            self._turn += 1
            self._move(self._estimate(self._windows(self._at), self._turn))
            weight = 1 / min(self._turn, _MEMORY)
            self._mean = [(1 - weight) * mean + weight * at for mean, at in zip(self._mean, self._at, strict=True)]
        for at in (self._mean, self._at):
            windows = self._windows(at)
            least = self._estimate(windows)
            if least.value > self.best[0]:
                self.best = least.value, windows

    def _estimate(self, windows: Windows, turn: int = 0) -> Least:
        least = self._requests.least(windows, self._batches.worths(windows), Sample(self._thinned, self._apart, turn))
        self.work += least.visits + _WINDOW * windows.price.size
        return least

    def _windows(self, at: Sequence[Floats]) -> Windows:
        price, slope, kept = (self._knots.spread(each) for each in at[:3])
        units = np.rint(np.minimum(UNIT * price, self._batches.dearest)).astype(np.int64)
        slopes = np.floor(slope * self._batches.steepest).astype(np.int64)
        shares = np.rint(UNIT * kept).astype(np.int64)
        short = min(round(float(np.exp(at[3][0]))), _MOST_SHORT_PS)
        return Windows(np.append(units, 0), np.append(slopes, slopes[-1]), np.append(shares, shares[-1]), short)

    def _move(self, least: Least) -> None:
        window_ps, price = self._requests.window_ps, self._at[0]
        by_price, by_slope, by_kept = (self._knots.mean(change[:-1]) / window_ps for change in least.change)
        pulls = [
            by_price,
            by_slope * self._batches.steepest / UNIT / 50,
            by_kept / 50,
            np.full(1, least.short * np.exp(self._at[3][0]) / UNIT / window_ps),
        ]
        widths: list[Floats | float] = [np.minimum(1.5 * np.sqrt(price), 0.15 * price) + 0.15, 0.01, 0.03, 0.05]
        single = self._requests.cost.linear_ps(1)
        ranges = [(0.0, np.inf), (0.0, 1.0), (0.0, 1.0), (np.log(single / 4), np.log(LONGEST_SHORT * single))]
        for at, step, width, (low, high) in zip(
            self._at, self._steps.next(self._turn, pulls), widths, ranges, strict=True
        ):
            np.clip(at + width / (1 + (self._shorter + self._turn) / 40) * step, low, high, out=at)


class _Knots:
    """Windows at which prices are adjusted; between two of them they are affine.

    Parameters
    ----------
    apart
        Windows from one to the next.
    windows
        How many windows there are.
    """

    def __init__(self, apart: int, windows: int) -> None:
        places = np.arange(windows)
        self._before, self._after = places // apart, places % apart / apart
        self._size = windows // apart + 2
        self._reach = self._added(np.ones(windows)) + 1e-9

    def spread(self, at: Floats) -> Floats:
        """Return the prices of all windows."""
        return at[self._before] * (1 - self._after) + at[self._before + 1] * self._after

    def mean(self, by_window: Floats) -> Floats:
        """Return a mean at each knot of numbers of the windows that it bears on."""
        return self._added(by_window) / self._reach

    def _added(self, by_window: Floats) -> Floats:
        added = np.zeros(self._size)
        np.add.at(added, self._before, by_window * (1 - self._after))
        np.add.at(added, self._before + 1, by_window * self._after)
        return added


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
