"""What the runs of a batch are worth in a window: the functions B, n and u of the theorem, and how they change."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from optsched.bounds.congested.backlog import Floats
from optsched.bounds.congested.terms import LARGEST, LONGEST_SHORT, UNIT, Windows
from optsched.bounds.congested.together import Alive
from optsched.bounds.lines import is_lower
from optsched.bounds.own import most_decodes
from optsched.compiled import compiled, compiled_part
from optsched.model.cost import CostModel
from optsched.model.instance import Instance
from optsched.model.ints import Ints

_POINTS = 64
"""Stretches of tokens read, in the bound."""
_ROUNDING = 1e-9
"""More than what floating-point numbers are rounded by."""


@dataclass(frozen=True)
class Worths:
    """What runs are worth by window, in 64ths of ps.

    Parameters
    ----------
    factor
        n, of attention times of prefills.
    token
        B, a token of a prefill.
    decode
        u at multiples of ``step`` tokens read, shape (windows, points), in batches and by refills both.
    step
        Tokens between two points.
    change
        How u changes with θ, β, ε and δ, shape (4, windows, points).
    """

    factor: Ints
    token: Ints
    decode: Ints
    step: int
    change: Floats


class Batches:
    """What runs are worth, at any prices.

    Parameters
    ----------
    instance
        The problem.
    alive
        Requests that are surely alive.
    points
        Stretches of tokens read between whose ends u is taken to be affine; it lies above its chords.

    Attributes
    ----------
    steepest
        The largest β, in ps.
    dearest
        The largest θ, in 64ths of a request, with which all numbers stay below `LARGEST`; ≤ 0 if there is none.
    """

    def __init__(self, instance: Instance, alive: Alive, points: int = _POINTS) -> None:
        cost, most = instance.cost, instance.limits.batch_tokens
        self.alive = alive
        self._most = min(most_decodes(instance), len(instance.requests))
        spans = _spans(cost, most)
        firsts, lasts = ({span[end] for span in spans} for end in (0, 1))
        self.steepest = min((cost.linear_ps(tokens) + cost.prefill_req) // tokens for tokens in firsts | lasts)
        # Where f turns; of two neighbours one is enough for estimates.
        places = sorted(firsts | lasts if points == _POINTS else lasts)
        longest = max(request.peak_tokens for request in instance.requests)
        self._step = -(-longest // points)
        read = self._step * np.arange(points + 1, dtype=np.int64)
        self._attention = cost.decode_kv * read + cost.decode_req
        # Contiguous however many there are: for compiled code another layout is another type.
        self._spans = np.ascontiguousarray(np.array(spans, np.int64).T)
        self._turns = np.ascontiguousarray(np.array([(at, cost.linear_ps(at)) for at in places], np.int64).T)
        self._charge = cost.prefill_req
        self.dearest = self._dearest(instance, self._step * points)

    def _dearest(self, instance: Instance, longest: int) -> int:
        """Return the price at which the first of two numbers would be too large, less an eighth of it.

        They are what a batch pays, and twice what all runs of a request are worth, or a decode between two points.
        """
        cost, most = instance.cost, instance.limits.batch_tokens + 1
        alive, count = int(self.alive.most.max()), len(instance.requests)
        read, output = cost.decode_ps(longest), max(request.output for request in instance.requests)
        batch, single = cost.linear_ps(most) + cost.prefill_req + read, cost.linear_ps(1) + read
        prompt = (self.steepest + 2 * cost.prefill_sq * longest) * longest + cost.prefill_req
        granted = UNIT * LONGEST_SHORT * cost.linear_ps(1)
        paid = LARGEST - UNIT * (3 * count + alive) * batch - count * granted - UNIT * alive * self.steepest * most
        request = max(output, self._step) * single + 2 * prompt
        ends = paid // (batch + self.steepest * most), LARGEST // (4 * request) - UNIT * (alive + 1)
        return min(ends) * 8 // 9

    def worths(self, windows: Windows) -> Worths:
        """Return what runs are worth."""
        factor = (UNIT - windows.kept) * self.alive.always + windows.price
        token = windows.slope * factor
        shape = (windows.price.size, self._attention.size)
        decode, change = np.full(shape, LARGEST), np.zeros((4, *shape))
        _pay(
            np.stack([windows.price, windows.slope, windows.kept, self.alive.by_window, self.alive.most, token]),
            (self._spans, self._turns, self._attention),
            (self._most, self._charge, UNIT * windows.short),
            decode,
            change,
        )
        return Worths(factor, token, decode, self._step, change)


def _spans(cost: CostModel, most: int) -> list[tuple[int, int, int, int]]:
    """Return for each piece from and to how many tokens it is the largest, its base and its time a token."""
    spans = []
    for base, token in cost.affine:
        first, last = 1, most
        for other, slope in cost.affine:
            if token > slope:
                first = max(first, -((base - other) // (token - slope)))
            elif token < slope:
                last = min(last, (base - other) // (slope - token))
            elif other > base:
                last = 0
        if first <= last:
            spans.append((first, last, base, token))
    return spans


@compiled_part
def _root(c: int, flat: int, first: int, last: int) -> float:
    """Return where between two numbers c / y + flat y is least."""
    if c <= 0:
        return float(first)
    return min(max(float(first), sqrt(c / flat)), float(last)) if flat > 0 else float(last)


@compiled_part
def _least(
    c: int, flat: tuple[int, int], affine: tuple[float, int], attention: int, span: tuple[int, int]
) -> tuple[float, float]:
    """Return what c / y and affine functions of y and of attention are at least in a span of y, and where."""
    slope = flat[0] + flat[1] * attention
    root = _root(c, slope, span[0], span[1])
    shared, rest = c / root, slope * root + affine[0] + affine[1] * float(attention)
    return shared + rest - _ROUNDING * (abs(shared) + rest) - 2, root


@compiled
def _pay(
    windows: Ints,
    times: tuple[Ints, Ints, Ints],
    constants: tuple[int, int, int],
    decode: Ints,
    change: Floats,
) -> None:
    """Lower what decodes are worth to what the batches of every window pay.

    In a span of decodes y in which tokens x, batch time, requests that are there and those that prompts count on are
    affine, a batch pays ``(p + q y) (b + t y) - (g + h y) (r + v y)`` for its decodes besides ``(p + q y) A`` for each:
    a decode is paid a multiple of 1/y, a constant and a multiple of y, least beside a root. What that is in
    floating-point numbers tells whether it is worth computing exactly.

    What one y pays is affine in A, and the least over a span is concave: where it is no less than one of these lines at
    both ends it is nowhere less. ``lines`` are those of three y, which pay least at the first point, in the middle, and
    at the last one.
    """
    spans, turns, attention = times
    most, charge, granted = constants
    points, pieces = attention.size, spans.shape[1]
    lines = np.empty((3, 2), np.int64)
    for w in range(windows.shape[1]):
        price, slope, kept, alive, counted, token = windows[:, w]
        given = 64 - kept
        lines[:] = LARGEST
        for beside in range(2):
            for option in range(pieces + beside * turns.shape[1]):
                if option < pieces:
                    low, high = max(spans[0, option] - beside, 1), min(spans[1, option] - beside, most)
                    t = spans[3, option]
                    b = spans[2, option] + t * beside + charge * beside
                    r, v = beside, 0
                else:
                    tokens = turns[0, option - pieces]
                    low, high = 1, min(most, tokens - 1)
                    b, t = turns[1, option - pieces] + charge, 0
                    r, v = tokens, -1
                # Up to few decodes requests besides those that run are surely alive, and up to some a prompt may count
                # on as many as run.
                few = alive - beside
                some = max(few, counted - 1) if beside else few
                for part in range(6):
                    long, more = part // 3, part % 3
                    if more:
                        p = given * beside + price
                        q = given if long else np.int64(64)
                    else:
                        p = given * alive + price
                        q = 0 if long else kept
                    if more == 0:
                        first, last = low, min(high, few)
                        g, h = token, np.int64(0)
                    elif more == 1:
                        first, last = max(low, few + 1), min(high, some)
                        g, h = slope * p, slope * given
                    else:
                        first, last = max(low, some + 1), high
                        g, h = slope * (given * counted + price), np.int64(0)
                    if first > last:
                        continue
                    keep = granted if long else 0
                    c, others = p * b - g * r, p * float(t) + q * float(b) - g * float(v) - h * float(r) + keep
                    flat, affine = (int(q * t - h * v), int(q)), (float(others), p)
                    low_end, _ = _least(c, flat, affine, attention[0], (first, last))
                    high_end, _ = _least(c, flat, affine, attention[points - 1], (first, last))
                    if not is_lower(lines, low_end, high_end):
                        continue
                    for j in range(points):
                        below, root = _least(c, flat, affine, attention[j], (first, last))
                        if below > decode[w, j]:
                            continue
                        y = np.int64(root)
                        for _ in range(2):
                            time = b + t * y
                            factor, paid = p + q * y, r + v * y
                            pays = (factor * time - (g + h * y) * paid) // y + keep + factor * attention[j]
                            if pays < decode[w, j]:
                                decode[w, j] = pays
                                for line in range(3):
                                    if j == line * (points - 1) // 2:
                                        for end in range(2):
                                            beyond = attention[end * (points - 1)] - attention[j]
                                            lines[line, end] = pays + factor * beyond
                                there = y + beside if more else alive
                                waiting = there if long else there - y
                                number = min(max(1, there), counted)
                                change[0, w, j] = (time - slope * paid) / y + attention[j]
                                change[1, w, j] = -(given * number + price) * paid / y
                                change[2, w, j] = (slope * number * paid - waiting * time) / y - waiting * attention[j]
                                change[3, w, j] = 64 if long else 0
                            y = min(y + 1, last)
