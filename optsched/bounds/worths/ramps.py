"""What prices of layers prove of one machine, whatever it serves; the theorem on them is in `optsched.bounds.ramp`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any

import numpy as np

from optsched.bounds.priced import search
from optsched.bounds.priced.demand import Demand, between, each, sketch
from optsched.bounds.priced.prompt_paths import Prices
from optsched.bounds.priced.proof import Part
from optsched.bounds.worths.rules import Line, Range
from optsched.model.domain import replace
from optsched.model.instance import Instance, Request

_MOST_KINDS = 12
"""Kinds of requests for which prices are sought."""
_MOST_STEPS = 2_000_000
"""Tokens in layers, of all prompts, of one ramp."""
_LOST = 2_000
"""Part of the time that may be lost from the first to the last number of batches of a range."""
_EFFORT = search.Effort(32, 8)


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
    layers
        The fewest batches for which it says something.
    """

    def __init__(self, part: Part, demand: Demand, prices: Prices) -> None:
        assert prices.repeated is not None, "a layer stands for any number of batches"
        self.layers, self._prices, self._part = prices.layers, prices, part
        self._gap, self._prompts = demand.gap, [prompt.tokens for prompt in demand.numbers]
        rooms = part.rooms(prices)
        self._paid = {
            (prompt.tokens, output): int(ends.min())
            for prompt, paths in part.paths(demand, prices).items()
            for output, ends in paths.ends.items()
        }
        taken = [
            part.attention_ps(request.input, request.output) + self._least(request) // prices.scale
            for request in part.instance.requests
            if request.arrival_ps >= part.release_ps
        ]
        each = rooms[prices.repeated] // prices.scale
        left = sum(map(mul, rooms, prices.widths)) // prices.scale - self.layers * each
        self._line = Line(each, left, np.array(taken, dtype=np.int64))

    def line(self, range_: Range) -> Line | None:
        """Return what it proves of a machine in a range; None if that begins too soon, or loses without an end."""
        first, last = range_
        return None if first < self.layers or (last is None and self._line.base < 0) else self._line

    def _least(self, request: Request) -> int:
        """Return the least that a request pays, × scale, rounded down."""
        low = request.input - (request.input - self._prompts[0]) % self._gap
        paid = self._paid[low, request.output]
        if low == request.input:
            return paid
        more = self._paid[low + self._gap, request.output]
        return ((low + self._gap - request.input) * paid + (request.input - low) * more) // self._gap

    def stated(self) -> dict[str, Any]:
        """Return the ramp as certificates have it."""
        prompts = {} if self._gap == 1 else {"prompts": self._prompts}
        return {"prefill_step_ps": self._part.step_ps, **prompts, **self._prices.stated()}


def find_ramp(machine: Instance, release_ps: int, mixture: Sequence[Request], range_: Range) -> Ramp | None:
    """Return the best prices found for a machine with a mixture in some batches or more; None if there are none.

    Parameters
    ----------
    machine
        One machine with all requests.
    release_ps
        Requests that arrive earlier do not count.
    mixture
        What it may serve.
    range_
        Numbers of batches.
    """
    step, (fewest, last) = 0, range_
    if not mixture:
        return None
    whole, part = Part(machine, release_ps, step), Part(replace(machine, requests=tuple(mixture)), release_ps, step)
    demand = each(whole.kinds)
    if demand.steps * fewest > _MOST_STEPS:
        prompts = _MOST_STEPS // (demand.longest * fewest)
        if prompts < 2 or machine.limits.kv_block > 1:
            return None
        demand = between(whole.kinds, prompts)
    loss = 0 if last is None else part.plain(fewest) // _LOST // max(1, last - fewest)
    within = search.Range(fewest, None, loss)
    prices, _ = search.best_prices(part, sketch(part.kinds, _MOST_KINDS), within, 2 * part.plain(fewest), _EFFORT)
    return None if prices is None or not whole.fits(prices) else Ramp(whole, demand, prices)
