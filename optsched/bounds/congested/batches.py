"""What the runs of a batch are worth in a window: the functions B, F and u of the theorem."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from optsched.bounds.congested.terms import UNIT, Ints, Terms
from optsched.model.instance import Instance

STEP = 64
"""Tokens between the points at which u is computed; it lies above its chords."""
_FEW = 128
"""Half of the runs that are looked at first; more hardly ever matter."""


@dataclass(frozen=True)
class Worth:
    """What runs are worth, in 64ths of ps.

    Parameters
    ----------
    factor
        n, of attention times of prefills.
    token, step
        B, a token of a prefill, and G, a prefill step.
    decode
        u by tokens read, shape (most tokens,).
    """

    factor: int
    token: int
    step: int
    decode: Ints


class Batches:
    """What runs are worth, by price, number surely alive, and β.

    Parameters
    ----------
    instance
        The problem.
    terms
        The bound's constants.
    """

    def __init__(self, instance: Instance, terms: Terms) -> None:
        self._cost, self._terms, self._eviction = instance.cost, terms, instance.rules.eviction
        limits, requests = instance.limits, instance.requests
        self._most = min(len(requests), limits.kv_blocks, limits.batch_tokens, limits.batch_requests or len(requests))
        self._tokens = self._candidates(limits.batch_tokens)
        longest = max(request.peak_tokens for request in requests)
        read = np.arange(0, longest + STEP, STEP, dtype=np.int64)
        self._attention = self._cost.decode_kv * read + self._cost.decode_req
        self._known: dict[tuple[int, int, int, int], Worth | None] = {}

    def worth(self, price: int, alive: int, slope: int, step: int) -> Worth | None:
        """Return what runs are worth; None if β or G is too large for the theorem."""
        key = price, alive, slope, step
        if key not in self._known:
            self._known[key] = self._worth(*key)
        return self._known[key]

    def _candidates(self, most: int) -> list[int]:
        """Return numbers of tokens x such that f(x) less a multiple of x is least at one of them, or at the fewest."""
        bends = {
            (base - other) // (slope - token)
            for (base, token), (other, slope) in combinations(sorted(self._cost.affine, key=lambda piece: piece[1]), 2)
            if slope > token
        }
        return sorted({place for bend in bends for place in (bend, bend + 1) if 1 <= place <= most} | {1, most})

    def _time(self, tokens: Ints) -> Ints:
        """Return f."""
        pieces = [base + token * tokens for base, token in self._cost.affine]
        time: Ints = np.maximum.reduce(pieces)
        return time

    def _worth(self, price: int, alive: int, slope: int, step: int) -> Worth | None:
        factor = (UNIT - self._terms.kept) * max(1, alive) + price
        runs, enough = _FEW, False
        while not enough:
            runs = min(2 * runs, self._most)
            lines = self._lines(runs, price, alive, slope * factor, step)
            if lines is None:
                return None
            start, rise = lines
            least: Ints = (start[:, None] + rise[:, None] * self._attention[None, :]).min(axis=0)
            enough = runs == self._most or (
                self._suppositions_hold_beyond(runs, alive, step)
                and bool((self._least_beyond(runs, price, slope * factor + step) >= least).all())
            )
        parts = np.arange(STEP, dtype=np.int64)
        decode = ((STEP - parts) * least[:-1, None] + parts * least[1:, None]) // STEP
        worth = decode.ravel()
        if self._eviction:
            np.minimum(worth, step + slope * factor * np.arange(1, worth.size + 1, dtype=np.int64), out=worth)
        return Worth(factor, slope * factor, step, worth)

    def _suppositions_hold_beyond(self, runs: int, alive: int, step: int) -> bool:
        """Whether for q ≥ a and f(1) a further run adds more to their left sides than to their right."""
        given, kept = UNIT - self._terms.kept, self._terms.kept * self._terms.short_ps
        single = self._cost.linear_ps(1)
        return runs >= alive and given * single >= step and UNIT * single >= kept + step

    def _least_beyond(self, runs: int, price: int, prefill: int) -> Ints:
        """Return less than what decodes are worth in batches of more runs: s and l are at least B + G + εD."""
        given, kept = UNIT - self._terms.kept, self._terms.kept * self._terms.short_ps
        return prefill + kept + (given * (runs + 1) + price) * self._attention

    def _lines(self, most: int, price: int, alive: int, token: int, step: int) -> tuple[Ints, Ints] | None:
        """Return s and l for up to ``most`` runs, and S and L; None if the suppositions fail."""
        given, kept = UNIT - self._terms.kept, self._terms.kept * self._terms.short_ps
        runs = np.arange(1, most + 1, dtype=np.int64)
        steep = UNIT * runs + given * np.maximum(alive - runs, 0) + price
        flat = given * np.maximum(alive, runs) + price
        base = self._time(runs)
        at_steep, at_flat = steep * base // runs, (flat * base + kept * runs) // runs
        for place in self._tokens:
            tokens = np.maximum(runs, place)
            time = self._time(tokens)
            beyond = step * runs + token * tokens
            if (steep * time < kept * runs + beyond).any() or (flat * time < beyond).any():
                return None
            prompt = step + token * (tokens - runs + 1)
            others = np.maximum(runs - 1, 1)
            beside_steep = (steep * time - kept - prompt) // others
            beside_flat = (flat * time + kept * (runs - 1) - prompt) // others
            at_steep[1:] = np.minimum(at_steep, beside_steep)[1:]
            at_flat[1:] = np.minimum(at_flat, beside_flat)[1:]
        return np.concatenate([at_steep, at_flat]), np.concatenate([steep, flat])
