"""The least cost of each request by itself at given prices, whenever it runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optsched.bounds.alone import alone
from optsched.bounds.congested.backlog import Floats
from optsched.bounds.congested.batches import Worths
from optsched.bounds.congested.terms import GRAINS, UNIT, Windows, end_of, least_alive
from optsched.compiled import compiled, compiled_part
from optsched.model.instance import Instance
from optsched.model.ints import Ints

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
    """

    value: int
    change: Floats
    short: float


class RequestCosts:
    """Requests as they bear on the bound.

    Parameters
    ----------
    instance
        The problem.
    window_ps
        Length of windows.
    machines
        How many equal machines there are; of several none is known to have requests that are alive.
    """

    def __init__(self, instance: Instance, window_ps: int, machines: int = 1) -> None:
        requests, start = instance.requests, instance.start_ps
        least = alone(instance)
        self.cost, self.window_ps, self.grain_ps = instance.cost, window_ps, window_ps // GRAINS
        self.arrival = np.array([request.arrival_ps - start for request in requests], np.int64)
        self.input = np.array([request.input for request in requests], np.int64)
        self.output = np.array([request.output for request in requests], np.int64)
        self.alone = np.array(least.e2e, np.int64)
        self.machines = machines
        self.last = end_of(instance, machines) // self.window_ps + 1
        """The window that does not end."""
        surely = least_alive(self.arrival, self.arrival + self.alone, self.window_ps, self.last)
        self.alive = surely if machines == 1 else np.zeros_like(surely)
        self._eviction = instance.rules.eviction
        self._first = np.array(least.ttft, np.int64)
        self._single = instance.cost.linear_ps(1)

    def least(self, windows: Windows, worths: Worths, thinned: int = 1) -> Least:
        """Return the bound of prices, and how it changes with them.

        With ``thinned`` above 1 it is an estimate: one decode of a request is looked at for that number.
        """
        clock = np.append(0, np.cumsum(self.window_ps * windows.kept))
        blocks = range(0, windows.price.size, _BLOCK)
        floors = np.stack([worths.decode[begin : begin + _BLOCK].min(axis=0) for begin in blocks])
        tokens = np.array([worths.token[begin : begin + _BLOCK].min() for begin in blocks])
        factors = np.array([worths.factor[begin : begin + _BLOCK].min() for begin in blocks])
        onward: list[Ints] = [np.minimum.accumulate(least[::-1])[::-1].copy() for least in (floors, tokens, factors)]
        change, covered = np.zeros((3, windows.price.size)), np.zeros(windows.price.size + 1)
        terms = (
            *(self.window_ps, UNIT * self.grain_ps, UNIT * windows.short, self._single),
            *(worths.step, thinned, self.cost.prefill_sq, int(self._eviction)),
        )
        falls = np.zeros(int(clock[-1]) // (UNIT * self.grain_ps) + 1, np.int64)
        costs, short = _cheapest(
            np.stack([self.arrival, self.input, self.output, self._first]),
            (worths.decode, worths.token, worths.factor, clock),
            (floors, onward[0], onward[1], onward[2], tokens),
            terms,
            (worths.change, windows.slope, np.maximum(1, self.alive), falls, change, covered),
        )
        change[0] -= self.machines * self.window_ps
        change[2] += self.window_ps * np.cumsum(covered)[:-1]
        total = _total(costs) - self.machines * self.window_ps * int(windows.price.sum())
        return Least(max(total, 0) // UNIT, change, short)


@compiled_part
def _worth(decode: Ints, token: int, read: int, step: int, eviction: int) -> int:
    """Return what a decode is worth by its window's points, or a refill in its place."""
    place, after = read // step, read % step
    worth: int = ((step - after) * decode[place] + after * decode[place + 1]) // step
    return min(worth, token * (read + 1)) if eviction else worth


@compiled
def _cheapest(
    requests: Ints,
    worths: tuple[Ints, Ints, Ints, Ints],
    floors: tuple[Ints, Ints, Ints, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int, int],
    changes: tuple[Floats, Ints, Ints, Ints, Floats, Floats],
) -> tuple[Ints, float]:
    """Return the least cost of every request, and how their sum changes with δ.

    What a request pays falls in steps with the grains that it keeps, which open later windows to its tokens. The last
    ``changes`` are room for falls by grains, and where changes by window and the windows that requests keep are added.
    """
    decode, token, factor, clock = worths
    floor, floor_on, token_on, factor_on, token_floor = floors
    window_ps, grain, short, single, step, thinned, square, eviction = terms
    rise, slope, alive, falls, change, covered = changes
    last = decode.shape[0] - 1
    costs = np.empty(requests.shape[1], np.int64)
    of_short = 0.0
    for r in range(costs.size):
        arrival, size, output, first = requests[:, r]
        begin = min(arrival // window_ps, last)
        part = arrival - begin * window_ps
        clock_then = clock[begin] + (clock[begin + 1] - clock[begin]) // window_ps * part
        # The grains that it keeps at least, and with which nothing cheaper is left.
        least, gain = 0, 0
        for k in range(1, output, thinned):
            read = size + k - 1
            w = min((arrival + first + (k - 1) * single) // window_ps, last)
            least = max(least, (clock[w] - clock_then - k * short) // grain)
            here = _worth(decode[w], token[w], read, step, eviction)
            onward = _worth(floor_on[w // _BLOCK], token_on[w // _BLOCK], read, step, eviction)
            gain += min(thinned, output - k) * (here - onward)
        for place in (1, size):
            attention = square * (2 * place - 1) * size
            gain += (token[begin] - token_on[begin // _BLOCK]) * size
            gain += (factor[begin] - factor_on[begin // _BLOCK]) * attention
        most = min(clock[last] // grain, least + gain // grain + 1)
        falls[: most + 1] = 0
        limit = (most + 1) * grain - 1
        for place in (1, size):
            attention = square * (2 * place - 1) * size
            best = -1
            for w in range(begin, last + 1):
                kept = max(clock[w] - clock_then, 0)
                b = w // _BLOCK
                if kept > limit or (best >= 0 and (token_on[b] * size + factor_on[b] * attention) // 2 >= best):
                    break
                cost = (token[w] * size + factor[w] * attention) // 2
                if best < 0 or cost < best:
                    falls[kept // grain] += cost - max(best, 0)
                    best = cost
        for k in range(1, output, thinned):
            read, weight = size + k - 1, min(thinned, output - k)
            w = min((arrival + first + (k - 1) * single) // window_ps, last)
            best = -1
            while w <= last:
                kept = max(clock[w] - clock_then - k * short, 0)
                b = w // _BLOCK
                if kept > limit or (best >= 0 and _worth(floor_on[b], token_on[b], read, step, eviction) >= best):
                    break
                if best >= 0 and _worth(floor[b], token_floor[b], read, step, eviction) >= best:
                    w = (b + 1) * _BLOCK
                    continue
                cost = _worth(decode[w], token[w], read, step, eviction)
                if best < 0 or cost < best:
                    falls[kept // grain] += weight * (cost - max(best, 0))
                    best = cost
                w += 1
        cost, keeps = 0, least
        for grains in range(most + 1):
            cost += falls[grains]
            if grains == least or (grains > least and cost + grains * grain < costs[r]):
                costs[r], keeps = cost + grains * grain, grains
        limit = (keeps + 1) * grain - 1
        # The same again: where its runs cost least, and which of them decides what it keeps.
        latest, number = begin, 0
        for place in (1, size):
            attention = square * (2 * place - 1) * size
            best, where = -1, begin
            for w in range(begin, last + 1):
                kept = max(clock[w] - clock_then, 0)
                b = w // _BLOCK
                if kept > limit or (best >= 0 and (token_on[b] * size + factor_on[b] * attention) // 2 >= best):
                    break
                cost = (token[w] * size + factor[w] * attention) // 2
                if best < 0 or cost < best:
                    best, where = cost, w
            if (clock[where] - clock_then) // grain == keeps:
                latest = where
            change[0, where] += (slope[where] * size + attention) / 2
            change[1, where] += factor[where] * size / 2
            change[2, where] -= alive[where] * (slope[where] * size + attention) / 2
        for k in range(1, output, thinned):
            read, weight = size + k - 1, min(thinned, output - k)
            w = min((arrival + first + (k - 1) * single) // window_ps, last)
            best, where = -1, w
            while w <= last:
                kept = max(clock[w] - clock_then - k * short, 0)
                b = w // _BLOCK
                if kept > limit or (best >= 0 and _worth(floor_on[b], token_on[b], read, step, eviction) >= best):
                    break
                if best >= 0 and _worth(floor[b], token_floor[b], read, step, eviction) >= best:
                    w = (b + 1) * _BLOCK
                    continue
                cost = _worth(decode[w], token[w], read, step, eviction)
                if best < 0 or cost < best:
                    best, where = cost, w
                w += 1
            if (clock[where] - clock_then - k * short) // grain == keeps and where >= latest:
                latest, number = where, k
            place = read // step + (2 * (read % step) >= step)
            for of in range(3):
                change[of, where] += weight * rise[of, where, place]
            of_short += weight * rise[3, where, place]
        if keeps and latest > begin:
            covered[begin] += 1 - part / window_ps
            covered[begin + 1] += part / window_ps
            covered[latest] -= 1
            of_short -= number * 64
    return costs, of_short


def _total(numbers: Ints) -> int:
    """Add numbers up, beyond 64 bits if need be."""
    half = 2**31
    return int((numbers // half).sum()) * half + int((numbers % half).sum())
