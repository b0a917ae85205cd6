"""What a decode is worth at a price of machine time: the function u of the theorem, and how it changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.bounds.lines import is_lower
from optsched.bounds.own import most_decodes, turns
from optsched.compiled import compiled, compiled_part
from optsched.model.instance import Instance
from optsched.model.ints import Ints

UNIT = 64
"""Prices and shares are counted in parts of a request: 1/64."""
LARGEST = 2**62
"""Numbers stay below."""
POINTS = 16
"""Stretches of tokens read, between whose ends u is taken to be affine."""
_GRAIN = 8
"""Prices are multiples of this, in 64ths of a request: of different ones there are fewer."""

_MOST_ROWS = 20_000
"""Different prices of which what decodes are worth is kept."""

Floats = npt.NDArray[np.float64]


class Terms(NamedTuple):
    """What a certificate states besides prices: window in ps, ε in 64ths, δ in ps, blocks of decodes, parts of εW."""

    window: int
    kept: int
    short: int
    blocks: int
    parts: int


def certificate_of(token: int, terms: Terms, price: Ints, memory: Ints) -> dict[str, Any]:
    """Return the certificate of β and prices; the last window has none."""
    stated = dict(zip(("window_ps", "kept", "short_ps", "blocks", "parts"), terms, strict=True))
    prices = {"prices": price[:-1].tolist(), "memory": memory[:-1].tolist()}
    return {"kind": "waiting", "slope_ps": token, **stated, **prices}


def rounded(price: Floats, most: float = LARGEST) -> Ints:
    """Return prices in 64ths of a request, the dearest a grain below ``most``."""
    found: Ints = _GRAIN * np.rint(np.minimum(UNIT * price, most - _GRAIN) / _GRAIN).astype(np.int64)
    return found


class Worths(NamedTuple):
    """What runs are worth, in 64ths of ps.

    Parameters
    ----------
    price
        θ of each window, 64ths; the last one is 0.
    decode
        u at multiples of ``step`` tokens, shape (windows, points + 1), refills aside.
    refill
        (1 - ε + θ) β of each window, or `LARGEST` without eviction.
    rise
        How ``decode`` changes with θ.
    step
        Tokens between two points.
    """

    price: Ints
    decode: Ints
    refill: Ints
    rise: Floats
    step: int


class _Rows(NamedTuple):
    """Worths of decodes and how they change, by prices of time, which ascend, and of memory."""

    price: Ints
    memory: Ints
    decode: Ints
    rise: Floats

    def joined(self, rows: _Rows) -> _Rows:
        """Return these rows and others, which replace those of the same prices of time."""
        stay = ~np.isin(self.price, rows.price, assume_unique=True)
        both = [np.concatenate((mine[stay], new)) for mine, new in zip(self, rows, strict=True)]
        order = np.argsort(both[0], kind="stable")[:_MOST_ROWS]
        return _Rows(*(each[order] for each in both))


class DecodeWorths:
    """What decodes are worth at any prices.

    Parameters
    ----------
    instance
        The problem.
    token
        β, in ps, at most; the largest that is allowed if it is None.

    Attributes
    ----------
    token
        β, in ps.
    held
        M, in tokens.
    longest
        H, the most tokens that a request holds.
    """

    def __init__(self, instance: Instance, token: int | None = None) -> None:
        cost, most = instance.cost, instance.limits.batch_tokens
        places = turns(instance, most)
        steepest = min((cost.linear_ps(x) + cost.prefill_req) // x for x in places)
        self.token = steepest if token is None else min(token, steepest)
        self.held = instance.limits.kv_tokens
        self.count = min(most_decodes(instance), len(instance.requests))
        self.longest = max(request.peak_tokens for request in instance.requests)
        self.step = -(-self.longest // POINTS)
        read = self.step * np.arange(POINTS + 1, dtype=np.int64)
        self._attention = cost.decode_kv * read + cost.decode_req
        self._places = np.array([(x, cost.linear_ps(x) + cost.prefill_req) for x in places], np.int64)
        self._pieces = np.array(cost.affine, np.int64)
        self._charge, self._most, self._eviction = cost.prefill_req, most, instance.rules.eviction
        self._known: dict[tuple[int, int], _Rows] = {}

    def largest_batch(self, price: int, memory: int, terms: Terms) -> int:
        """Return what no number of a batch exceeds, at the highest prices of time and memory."""
        together = UNIT * min(self.count, self._most) + price
        longest = int(self._places[:, 1].max()) + self._charge + int(self._attention[-1])
        granted = UNIT * terms.short * min(self.count, self._most)
        return together * longest + granted + price * self.token * self._most + 2 * memory * (self.held + self.longest)

    def of(self, price: Ints, memory: Ints, terms: Terms) -> Worths:
        """Return what runs are worth in windows of some prices of time, and of memory, which are functions of these."""
        different, first, which = np.unique(price, return_index=True, return_inverse=True)
        rows = self._rows(different, memory[first], terms)
        refill = (UNIT - terms.kept + price) * self.token if self._eviction else np.full_like(price, LARGEST)
        return Worths(price, rows.decode[which], refill, rows.rise[which], self.step)

    def _rows(self, price: Ints, memory: Ints, terms: Terms) -> _Rows:
        """Return what decodes are worth at prices; from one search step to the next most of them are the same."""
        known = self._known.get((terms.kept, terms.short))
        shape = price.size, POINTS + 1
        rows = _Rows(price, memory, np.empty(shape, np.int64), np.empty(shape))
        fresh = np.ones(price.size, np.bool_)
        if known is not None:
            place = np.minimum(np.searchsorted(known.price, price), known.price.size - 1)
            fresh = (known.price[place] != price) | (known.memory[place] != memory)
            rows.decode[~fresh], rows.rise[~fresh] = known.decode[place[~fresh]], known.rise[place[~fresh]]
        decode, rise = np.full((fresh.sum(), POINTS + 1), LARGEST), np.zeros((fresh.sum(), POINTS + 1))
        _lower(
            (price[fresh], memory[fresh], UNIT - terms.kept, UNIT * terms.short),
            (self.held, self.longest, self.step),
            (self._places, self._pieces, self._attention),
            (self.token, self._charge, min(self.count, self._most), self._most),
            decode,
            rise,
        )
        rows.decode[fresh], rows.rise[fresh] = decode, rise
        self._known[terms.kept, terms.short] = rows if known is None else known.joined(rows)
        return rows


@compiled_part
def _linear(pieces: Ints, tokens: int) -> int:
    """Return f."""
    time = 0
    for piece in range(pieces.shape[0]):
        time = max(time, pieces[piece, 0] + pieces[piece, 1] * tokens)
    return time


@compiled
def _lower(  # noqa: PLR0917 - compiled functions take positions
    prices: tuple[Ints, Ints, int, int],
    sizes: tuple[int, int, int],
    times: tuple[Ints, Ints, Ints],
    constants: tuple[int, int, int, int],
    decode: Ints,
    rise: Floats,
) -> None:
    """Lower what decodes are worth to what batches with any number of them pay.

    With y decodes and more each is worth at least what f(y), its own attention and its part of the memory are, however
    cheap prompts are. What y pay is affine in what a decode reads: ``lines`` are those of three y, which pay least at
    the first point, in the middle, and at the last one, by their two ends.
    """
    different, memory, given, granted = prices
    held, longest, step = sizes
    places, pieces, attention = times
    token, charge, count, most = constants
    last, lines = attention.size - 1, np.empty((3, 2), np.int64)
    for w in range(different.size):
        price, rent = different[w], memory[w]
        lines[:] = LARGEST
        for y in range(1, count + 1):
            alone, beside = _linear(pieces, y), _linear(pieces, y + 1) + charge
            more, room = False, rent * min(held, y * longest)
            for long in range(2):
                factor, extra = (given if long else 64) * y + price, granted if long else 0
                low, high = factor * attention[0] + rent, factor * attention[last] + rent * (step * last + 1)
                flat = (given if long else 64) * alone + extra - -(-room // y)
                more |= is_lower(lines, flat + low, flat + high)
                least, change = factor * alone, alone
                if y < most and factor * beside - price * token < least:
                    least, change = factor * beside - price * token, beside - token
                for place in range(places.shape[0]):
                    x, time = places[place, 0], places[place, 1]
                    if x > y and factor * time - price * token * (x - y) < least:
                        least, change = factor * time - price * token * (x - y), time - token * (x - y)
                pays = (least - room) // y + extra
                if not is_lower(lines, pays + low, pays + high):
                    continue
                for j in range(last + 1):
                    value = pays + factor * attention[j] + rent * (step * j + 1)
                    if value < decode[w, j]:
                        decode[w, j], rise[w, j] = value, change / y + attention[j]
                        for line in range(3):
                            if j == line * last // 2:
                                lines[line, 0], lines[line, 1] = pays + low, pays + high
            if not more:
                break
