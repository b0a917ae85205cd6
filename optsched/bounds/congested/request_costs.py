"""The least cost of each request by itself at given prices, whenever it runs."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optsched.bounds.alone import alone
from optsched.bounds.congested.backlog import Floats
from optsched.bounds.congested.batches import Worths
from optsched.bounds.congested.terms import GRAINS, LARGEST, UNIT, Windows
from optsched.bounds.congested.together import Alive, SurelyAlive
from optsched.compiled import compiled, compiled_part
from optsched.model.instance import Instance
from optsched.model.ints import Ints

_TURNED = (5**0.5 - 1) / 2
"""What part of a stretch of decodes one that is looked at lies later from turn to turn: so all are, about as often."""
_PARTS = 1024
"""Such parts are multiples of 1 by this."""
_BLOCK = 32
"""Windows whose least is known beforehand, so that a search for the cheapest can skip them, and end."""


@dataclass(frozen=True)
class Least:
    """The least cost of all requests.

    Parameters
    ----------
    value
        The bound, ps.
    change
        How it changes with θ, β and ε of each window, shape (3, windows); in 64ths of ps.
    short
        How it changes with δ.
    visits
        How often a cheaper window was found for a decode or half of a prompt: what it took.
    """

    value: int
    change: Floats
    short: float
    visits: int


class Sample(NamedTuple):
    """What is looked at of requests for an estimate: others from turn to turn, and the middle ones at turn 0.

    Parameters
    ----------
    thinned
        One decode of a request for that number.
    apart
        One request for that number.
    turn
        Which ones.
    """

    thinned: int = 1
    apart: int = 1
    turn: int = 0


_ALL = Sample()


class RequestCosts:
    """Requests as they bear on the bound.

    Parameters
    ----------
    instance
        The problem.
    window_ps
        Length of windows.
    end_ps
        When the last one begins at the latest.
    alive
        How many requests are surely alive; None with several machines, of which none is known to have any.
    machines
        How many equal machines there are.
    """

    def __init__(
        self, instance: Instance, window_ps: int, end_ps: int, alive: SurelyAlive | None, machines: int
    ) -> None:
        requests = instance.requests
        least = alone(instance)
        self.cost, self.end_ps = instance.cost, end_ps
        self.arrival = np.array(instance.arrivals_ps, np.int64)
        self.input = np.array([request.input for request in requests], np.int64)
        self.output = np.array([request.output for request in requests], np.int64)
        self.alone = np.array(least.e2e, np.int64)
        self.machines = machines
        self._eviction = instance.rules.eviction
        self._first = np.array(least.ttft, np.int64)
        self._single = instance.cost.linear_ps(1)
        self._surely = alive
        self._cut(window_ps, GRAINS)

    def of_windows(self, window_ps: int, grains: int) -> RequestCosts:
        """Return the same by other windows, and other parts of one, in which what requests keep is counted."""
        other = copy(self)
        other._cut(window_ps, grains)
        return other

    def _cut(self, window_ps: int, grains: int) -> None:
        self.window_ps, self.grain_ps = window_ps, window_ps // grains
        self.last = self.end_ps // window_ps + 1
        """The window that does not end."""
        self._begins: Ints = np.minimum(self.arrival // window_ps, self.last)
        self.alive = self._none_else() if self._surely is None else self._surely.by_windows(window_ps, self.last)

    def _none_else(self) -> Alive:
        """Return numbers where none but itself is known to be on a request's machine."""
        return Alive.of(np.zeros(self.last + 1, np.int64), np.ones_like(self.arrival), self._begins)

    def least(self, windows: Windows, worths: Worths, sample: Sample = _ALL) -> Least:
        """Return the bound of prices, and how it changes with them; an estimate if not all requests are looked at."""
        thinned, apart, turn = sample
        clock = np.append(0, np.cumsum(self.window_ps * windows.kept))
        blocks = np.arange(0, windows.price.size, _BLOCK)
        floors, tokens, factors = (
            np.minimum.reduceat(worth, blocks) for worth in (worths.decode, worths.token, worths.factor)
        )
        onward: list[Ints] = [np.minimum.accumulate(least[::-1])[::-1].copy() for least in (floors, tokens, factors)]
        change, covered = np.zeros((3, windows.price.size)), np.zeros(windows.price.size + 1)
        terms = (
            *(self.window_ps, UNIT * self.grain_ps, UNIT * windows.short, self._single),
            *(worths.step, thinned, self.cost.prefill_sq, int(self._eviction)),
            int((0.5 + turn * _TURNED) % 1 * _PARTS),
        )
        factor = (UNIT - windows.kept[self._begins]) * self.alive.since + windows.price[self._begins]
        columns = np.stack([self.arrival, self.input, self.output, self._first, factor, self.alive.since])
        falls = np.zeros(int(clock[-1]) // (UNIT * self.grain_ps) + 1, np.int64)
        costs, short, visits = _cheapest(
            # Contiguous: for compiled code another layout is another type.
            columns[:, turn % apart :: apart].copy(),
            (worths.decode, worths.token, worths.factor, clock),
            (floors, onward[0], onward[1], onward[2], tokens),
            terms,
            (worths.change, windows.slope, self.alive.always, falls, change, covered),
        )
        change[2] += self.window_ps * np.cumsum(covered)[:-1]
        change *= apart
        change[0] -= self.machines * self.window_ps
        total = apart * _total(costs) - self.machines * self.window_ps * int(windows.price.sum())
        return Least(max(total, 0) // UNIT, change, apart * short, visits)


@compiled_part
def _worth(decode: Ints, token: int, read: int, step: int, eviction: int) -> int:
    """Return what a decode is worth by its window's points, or a refill in its place."""
    place, after = read // step, read % step
    worth: int = ((step - after) * decode[place] + after * decode[place + 1]) // step
    return min(worth, token * (read + 1)) if eviction else worth


@compiled_part
def _cheaper_decode(
    w: int,
    below: tuple[int, int],
    run: tuple[int, int, int],
    worths: tuple[Ints, Ints, Ints, Ints],
    floors: tuple[Ints, Ints, Ints, Ints, Ints],
) -> int:
    """Return the first window from w on where a decode is worth less than what was best ``below``, or last + 1.

    Only windows whose clock is at most the limit, the other of the two, count. ``run`` is what it reads, the tokens
    between two points, and the tokens of a refill, or 0 without eviction.
    """
    decode, token, _, clock = worths
    limit, best = below
    read, step, refill = run
    last = decode.shape[0] - 1
    floor, floor_on, token_on, _, token_floor = floors
    place, after = read // step, read % step
    ahead, most = step - after, best * step
    found: int = last + 1
    while w <= last:
        b = w // _BLOCK
        onward = ahead * floor_on[b, place] + after * floor_on[b, place + 1] < most
        if clock[w] > limit or not (onward or (refill > 0 and token_on[b] * refill < best)):
            break
        end = min((b + 1) * _BLOCK, last + 1)
        here = ahead * floor[b, place] + after * floor[b, place + 1] < most
        if not (here or (refill > 0 and token_floor[b] * refill < best)):
            w = end
        while w < end and clock[w] <= limit:
            batched = ahead * decode[w, place] + after * decode[w, place + 1] < most
            if batched or (refill > 0 and token[w] * refill < best):
                found, end = w, w
            w += 1
        if found <= last:
            break
    return found


@compiled_part
def _cheaper_prompt(
    w: int,
    below: tuple[int, int],
    half: tuple[int, int],
    worths: tuple[Ints, Ints, Ints, Ints],
    floors: tuple[Ints, Ints, Ints, Ints, Ints],
) -> int:
    """Return the first window from w on where half of a prompt is worth less than what was best, or last + 1."""
    limit, best = below
    _, token, factor, clock = worths
    _, _, token_on, factor_on, _ = floors
    size, attention = half
    last = token.size - 1
    found: int = last + 1
    while w <= last and clock[w] <= limit:
        b = w // _BLOCK
        if (token_on[b] * size + factor_on[b] * attention) // 2 >= best:
            break
        if (token[w] * size + factor[w] * attention) // 2 < best:
            found = w
            break
        w += 1
    return found


@compiled
def _cheapest(
    requests: Ints,
    worths: tuple[Ints, Ints, Ints, Ints],
    floors: tuple[Ints, Ints, Ints, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int, int, int],
    changes: tuple[Floats, Ints, Ints, Ints, Floats, Floats],
) -> tuple[Ints, float, int]:
    """Return the least cost of every request, how their sum changes with δ, and how often a cheaper window was found.

    What a request pays falls in steps with the grains that it keeps, which open later windows to its tokens. In the
    window in which it arrives its prompt counts on those alive from then on: its ``requests`` have a factor of that.
    The last ``changes`` are room for falls by grains, and where changes by window and the windows that requests keep
    are added. Of ``thinned`` decodes one is looked at.
    """
    decode, token, factor, clock = worths
    _, floor_on, token_on, factor_on, _ = floors
    window_ps, grain, short, single, step, thinned, square, eviction, place_in = terms
    rise, slope, alive, falls, change, covered = changes
    last, dearest = decode.shape[0] - 1, LARGEST // step
    costs = np.empty(requests.shape[1], np.int64)
    of_short, visits = 0.0, 0
    for r in range(costs.size):
        arrival, size, output, first, own, since = requests[:, r]
        begin = min(arrival // window_ps, last)
        part = arrival - begin * window_ps
        clock_then = clock[begin] + (clock[begin + 1] - clock[begin]) // window_ps * part
        # The grains that it keeps at least, and with which nothing cheaper is left.
        least, gain = 0, 0
        for lowest in range(1, output, thinned):
            weight = min(thinned, output - lowest)
            k = lowest + weight * place_in // _PARTS
            read, w = size + k - 1, min((arrival + first + (k - 1) * single) // window_ps, last)
            least = max(least, (clock[w] - clock_then - k * short) // grain)
            here = _worth(decode[w], token[w], read, step, eviction)
            gain += weight * (here - _worth(floor_on[w // _BLOCK], token_on[w // _BLOCK], read, step, eviction))
        for place in (1, size):
            attention = square * (2 * place - 1) * size
            gain += (slope[begin] * own - token_on[begin // _BLOCK]) * size
            gain += (own - factor_on[begin // _BLOCK]) * attention
        most = min(clock[last] // grain, least + gain // grain + 1)
        falls[: most + 1] = 0
        limit = clock_then + (most + 1) * grain - 1
        for place in (1, size):
            attention, w = square * (2 * place - 1) * size, begin + 1
            best = (slope[begin] * size + attention) * own // 2
            falls[0] += best
            while w <= last:
                w = _cheaper_prompt(w, (limit, best), (size, attention), worths, floors)
                if w <= last:
                    cost = (token[w] * size + factor[w] * attention) // 2
                    falls[max(clock[w] - clock_then, 0) // grain] += cost - best
                    best = cost
                    visits += 1
        for lowest in range(1, output, thinned):
            weight = min(thinned, output - lowest)
            k = lowest + weight * place_in // _PARTS
            read, w = size + k - 1, min((arrival + first + (k - 1) * single) // window_ps, last)
            then, best, refill = clock_then + k * short, dearest, (read + 1) * eviction
            while w <= last:
                w = _cheaper_decode(w, (limit + k * short, best), (read, step, refill), worths, floors)
                if w <= last:
                    cost = _worth(decode[w], token[w], read, step, eviction)
                    falls[max(clock[w] - then, 0) // grain] += weight * (cost - best % dearest)
                    best = cost
                    visits += 1
        cost, keeps = 0, least
        for grains in range(most + 1):
            cost += falls[grains]
            if grains == least or (grains > least and cost + grains * grain < costs[r]):
                costs[r], keeps = cost + grains * grain, grains
        limit = clock_then + (keeps + 1) * grain - 1
        # The same again: where its runs cost least, and which of them decides what it keeps.
        latest, number = begin, 0
        for place in (1, size):
            attention, w, where = square * (2 * place - 1) * size, begin + 1, begin
            best, paid, counted = (slope[begin] * size + attention) * own // 2, own, since
            while w <= last:
                w = _cheaper_prompt(w, (limit, best), (size, attention), worths, floors)
                if w <= last:
                    best, where = (token[w] * size + factor[w] * attention) // 2, w
                    paid, counted = factor[w], alive[w]
            if (clock[where] - clock_then) // grain == keeps:
                latest = where
            change[0, where] += (slope[where] * size + attention) / 2
            change[1, where] += paid * size / 2
            change[2, where] -= counted * (slope[where] * size + attention) / 2
        for lowest in range(1, output, thinned):
            weight = min(thinned, output - lowest)
            k = lowest + weight * place_in // _PARTS
            read, w = size + k - 1, min((arrival + first + (k - 1) * single) // window_ps, last)
            then, best, where, refill = clock_then + k * short, dearest, w, (read + 1) * eviction
            while w <= last:
                w = _cheaper_decode(w, (limit + k * short, best), (read, step, refill), worths, floors)
                if w <= last:
                    best, where = _worth(decode[w], token[w], read, step, eviction), w
            if (clock[where] - then) // grain == keeps and where >= latest:
                latest, number = where, k
            point = read // step + (2 * (read % step) >= step)
            for of in range(3):
                change[of, where] += weight * rise[of, where, point]
            of_short += weight * rise[3, where, point]
        if keeps and latest > begin:
            covered[begin] += 1 - part / window_ps
            covered[begin + 1] += part / window_ps
            covered[latest] -= 1
            of_short -= number * 64
    return costs, of_short, visits


def _total(numbers: Ints) -> int:
    """Add numbers up, beyond 64 bits if need be."""
    half = 2**31
    return int((numbers // half).sum()) * half + int((numbers % half).sum())
