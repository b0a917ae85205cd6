"""What prices of layers prove of one machine, whatever it serves; the theorem on them is in `optsched.bounds.ramp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optsched.bounds.priced import search
from optsched.bounds.priced.demand import Demand, Kinds, between, each, sketch
from optsched.bounds.priced.prompt_paths import Prices
from optsched.bounds.priced.proof import Part
from optsched.bounds.worths.rules import Line, Range
from optsched.model.domain import replace
from optsched.model.instance import Request
from optsched.model.ints import Ints

_MOST_KINDS = 16
"""Kinds of requests for which prices are sought."""
_MOST_STEPS = 4_000_000
"""Tokens in layers, of all prompts, of one ramp."""
_MOST_PROMPTS = 4
"""Prompts between which others lie."""
_LOST = 2_000
"""Part of the time that may be lost from the first to the last number of batches of a range."""
_NARROW = 32
"""A range ends by its first number and this part of it where its ramps have a layer for each batch."""
_EFFORT = search.Effort(32, 4)


def is_narrow(first: int, last: int | None) -> bool:
    """Return whether ramps with ``last`` layers, one for each batch, lose little at ``first`` batches."""
    return last is not None and (last - first) * _NARROW <= first


class Ramp:
    """Prices of layers, and what they leave and requests pay.

    Parameters
    ----------
    part
        All requests that count, as if on one machine.
    demand
        Prompts and outputs of those that may be on a machine with these layers, as `taken` counts them.
    prices
        The prices.

    Attributes
    ----------
    layers, prices
        The number of layers, and their prices.
    """

    def __init__(self, part: Part, demand: Demand, prices: Prices) -> None:
        self.layers, self.prices, self._part = prices.layers, prices, part
        self._gap, self._prompts = demand.gap, [prompt.tokens for prompt in demand.numbers]
        self._requests = [request for request in part.instance.requests if request.arrival_ps >= part.release_ps]
        self._paid = {
            (prompt.tokens, output): np.minimum.accumulate(ends)
            for prompt, paths in part.paths(demand, prices).items()
            for output, ends in paths.ends.items()
        }
        rooms = np.array(part.rooms(prices), dtype=np.int64)
        self._left = np.cumsum(np.repeat(rooms, prices.widths)) // prices.scale
        self._each = None if prices.repeated is None else int(rooms[prices.repeated]) // prices.scale
        self._taken: dict[int, Ints] = {}

    @property
    def repeats(self) -> bool:
        """Whether a layer represents any number of batches."""
        return self._each is not None

    def line(self, range_: Range) -> Line | None:
        """Return what it proves of a machine in a range.

        With a repeated layer that is None if the range begins before the last layer, or if it has no end and every
        batch loses; without one, if the range is not narrow, or ends beyond the last layer.
        """
        first, last = range_
        if self._each is not None:
            if first < self.layers or (last is None and self._each < 0):
                return None
            left = int(self._left[-1]) - self.layers * self._each
            return Line(first, self._each, (left,), self._taken_by(self.layers))
        if last is None or last > self.layers or not is_narrow(first, self.layers):
            return None
        return Line(first, 0, tuple(self._left[first - 1 : last].tolist()), self._taken_by(last))

    def _taken_by(self, last: int) -> Ints:
        """Return what requests take that end by a layer, 0 where they have more tokens than any path through these."""
        if last not in self._taken:
            found = [
                self._part.attention_ps(request.input, request.output) + self._least(request, last)
                if self.repeats or request.output <= last
                else 0
                for request in self._requests
            ]
            self._taken[last] = np.array(found, dtype=np.int64)
        return self._taken[last]

    def _least(self, request: Request, last: int) -> int:
        """Return the least that a request pays by a layer, rounded down."""
        low = request.input - (request.input - self._prompts[0]) % self._gap
        paid = int(self._paid[low, request.output][last - 1])
        if low != request.input:
            more = int(self._paid[low + self._gap, request.output][last - 1])
            paid = ((low + self._gap - request.input) * paid + (request.input - low) * more) // self._gap
        return paid // self.prices.scale

    def stated(self) -> dict[str, Any]:
        """Return the ramp as certificates have it."""
        prompts = {} if self._gap == 1 else {"prompts": self._prompts}
        return {"prefill_step_ps": self._part.step_ps, **prompts, **self.prices.stated()}


def find_ramp(whole: Part, mixture: Sequence[Request], range_: Range) -> Ramp | None:
    """Return the best prices found for a machine with a mixture and a number of batches in a range, or None.

    In a narrow range there is a layer for each batch; otherwise prices count for more batches, too.

    Parameters
    ----------
    whole
        One machine with all requests.
    mixture
        What it may serve.
    range_
        Numbers of batches.
    """
    first, last = range_
    if not mixture:
        return None
    part = Part(replace(whole.instance, requests=tuple(mixture)), whole.release_ps, whole.step_ps)
    kinds = whole.kinds
    if last is not None and is_narrow(first, last):
        within = search.Range(first, last)
        kinds = _ended(kinds, last)
    else:
        loss = 0 if last is None else part.plain(first) // _LOST // max(1, last - first)
        within = search.Range(first, None, loss)
    demand = _demand(whole, kinds, within.layers)
    if demand is None:
        return None
    prices, _ = search.best_prices(part, sketch(part.kinds, _MOST_KINDS), within, 2 * part.plain(first), _EFFORT)
    return None if prices is None or not whole.fits(prices) else Ramp(whole, demand, prices)


def resized(whole: Part, prices: Prices, layers: int) -> Ramp | None:
    """Return a ramp with another number of layers, one for each batch, at prices for a similar number."""
    before = np.cumsum([0, *prices.widths])
    widths = np.diff((before * layers + before[-1] // 2) // before[-1])
    kept = np.flatnonzero(widths).tolist()

    def of(row: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(row[stretch] for stretch in kept)

    prices = Prices(
        of(tuple(widths.tolist())),
        of(prices.memory),
        of(prices.tokens),
        of(prices.prefill_tokens),
        of(prices.runs),
        None,
        prices.scale,
    )
    demand = _demand(whole, _ended(whole.kinds, layers), layers)
    return None if demand is None or not whole.fits(prices) else Ramp(whole, demand, prices)


def _ended(kinds: Kinds, layers: int) -> Kinds:
    """Return the kinds with a layer for each token."""
    return {kind: number for kind, number in kinds.items() if kind[1] <= layers}


def _demand(whole: Part, kinds: Kinds, layers: int) -> Demand | None:
    """Return prompts and outputs for which payments are computed; None if there are too many."""
    demand = each(kinds)
    prompts = min(_MOST_PROMPTS, _MOST_STEPS // (demand.longest * layers))
    if len(demand.numbers) <= prompts:
        return demand
    return None if prompts < 2 or whole.instance.limits.kv_block > 1 else between(kinds, prompts)
