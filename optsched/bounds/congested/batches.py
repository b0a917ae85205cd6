"""What the runs of a batch are worth in a window: the functions B, F and u of the theorem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optsched.bounds.congested.terms import LARGEST, UNIT, Terms
from optsched.bounds.own import most_decodes, turns
from optsched.model.instance import Instance
from optsched.model.ints import Ints

STEP = 64
"""Tokens between the points at which u is computed; it lies above its chords."""
_FEW = 128
"""Two thirds of the runs that are looked at first; more hardly ever matter."""


@dataclass(frozen=True)
class Worth:
    """What runs are worth, in 64ths of ps.

    Parameters
    ----------
    factor
        n, of attention times of prefills.
    token
        B, a token of a prefill.
    decode
        u by tokens read, shape (most tokens,).
    """

    factor: int
    token: int
    decode: Ints


class Batches:
    """What runs are worth, by price, number surely alive, and β.

    Parameters
    ----------
    instance
        The problem.
    terms
        The bound's constants.

    Attributes
    ----------
    steepest
        The largest β, in ps.
    dearest
        The largest θ, in 64ths of a request, with which all numbers stay below `LARGEST`, whatever is alive; ≤ 0 if
        there is none.
    """

    def __init__(self, instance: Instance, terms: Terms) -> None:
        self._cost, self._terms, self._eviction = instance.cost, terms, instance.rules.eviction
        self._most = min(most_decodes(instance), len(instance.requests))
        self._turns = turns(instance, instance.limits.batch_tokens)
        self.steepest = min(instance.cost.linear_ps(tokens) // tokens for tokens in self._turns)
        longest = max(request.peak_tokens for request in instance.requests)
        read = np.arange(0, longest + STEP, STEP, dtype=np.int64)
        self._attention = self._cost.decode_kv * read + self._cost.decode_req
        self._known: dict[tuple[int, int, int], Worth] = {}
        self.dearest = self._dearest(instance, longest + STEP)

    def _dearest(self, instance: Instance, longest: int) -> int:
        """Return the price at which the first of three numbers would be too large, less an eighth of it.

        They are what a batch pays, what a decode is worth between two reads, and twice what a prompt is worth.
        """
        cost, count, most = self._cost, len(instance.requests), instance.limits.batch_tokens + 1
        read = cost.decode_ps(longest)
        batch, single, granted = (
            cost.linear_ps(most) + read,
            cost.linear_ps(1) + read,
            self._terms.kept * self._terms.short_ps,
        )
        prompt = (self.steepest + 2 * cost.prefill_sq * longest) * longest + cost.prefill_req
        paid = LARGEST - count * (3 * UNIT * batch + granted + UNIT * self.steepest * most)
        ends = (
            paid // (batch + self.steepest * most),
            (LARGEST // UNIT - granted) // single - UNIT * count,
            LARGEST // (2 * prompt + 1) - UNIT * count,
        )
        return min(ends) * 8 // 9

    def worth(self, price: int, alive: int, slope: int) -> Worth:
        """Return what runs are worth."""
        key = price, alive, slope
        if key not in self._known:
            self._known[key] = self._worth(*key)
        return self._known[key]

    def _time(self, tokens: Ints) -> Ints:
        """Return f."""
        pieces = [base + token * tokens for base, token in self._cost.affine]
        time: Ints = np.maximum.reduce(pieces)
        return time

    def _worth(self, price: int, alive: int, slope: int) -> Worth:
        factor = (UNIT - self._terms.kept) * max(1, alive) + price
        decodes, enough = _FEW, False
        while not enough:
            decodes = min(decodes * 3 // 2, self._most)
            start, rise = self._lines(decodes, price, alive, slope * factor)
            # Lines that begin above where another ends are nowhere least.
            low = start + rise * self._attention[0] <= (start + rise * self._attention[-1]).min()
            least: Ints = (start[low, None] + rise[low, None] * self._attention).min(axis=0)
            enough = decodes == self._most or bool((self._least_beyond(decodes, price, alive, slope) >= least).all())
        parts = np.arange(STEP, dtype=np.int64)
        worth = (((STEP - parts) * least[:-1, None] + parts * least[1:, None]) // STEP).ravel()
        if self._eviction:
            np.minimum(worth, slope * factor * np.arange(1, worth.size + 1, dtype=np.int64), out=worth)
        return Worth(factor, slope * factor, worth)

    def _least_beyond(self, decodes: int, price: int, alive: int, slope: int) -> Ints:
        """Return no more than what decodes are worth in batches of more."""
        if decodes + 1 < alive:
            return np.zeros_like(self._attention)
        given, kept, fewest = UNIT - self._terms.kept, self._terms.kept, decodes + 1
        rise = given * fewest + price
        # A batch that runs prompts as well has this much time for each token at least that is not paid as a prompt's.
        token = max(slope, *(token for _, token in self._cost.affine))
        alone, beside = given * self._cost.linear_ps(fewest), rise * token
        keep_alone, keep_beside = (
            kept * min(time, self._terms.short_ps) for time in (self._cost.linear_ps(fewest), fewest * token)
        )
        return min(alone + keep_alone, beside + keep_beside) + rise * self._attention

    def _lines(self, most: int, price: int, alive: int, token: int) -> tuple[Ints, Ints]:
        """Return starts and rises of what up to ``most`` decodes in a batch are worth."""
        given, granted = UNIT - self._terms.kept, self._terms.kept * self._terms.short_ps
        y = np.arange(1, most + 1, dtype=np.int64)
        starts, rises = [], []
        for beside in (0, 1):
            there = np.maximum(alive, y + beside)
            tokens = np.maximum(y + 1, np.array(self._turns)[:, None]) if beside else y[None, :]
            time, prompts = self._time(tokens), token * (tokens - y)
            for decode, keep in ((y, 0), (np.zeros_like(y), granted)):
                factor = UNIT * decode + given * (there - decode) + price
                starts.append((factor * time - prompts).min(axis=0) // y + keep)
                rises.append(factor)
        return np.concatenate(starts), np.concatenate(rises)
