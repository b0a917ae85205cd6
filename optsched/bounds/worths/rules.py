"""What one machine earns, by rules for ranges of its number of batches; the theorem is in `optsched.bounds.worth`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from optsched.bounds.own import OwnTimes, Rate, fewest_steps, held_blocks
from optsched.bounds.worths.programme import Floats
from optsched.model.instance import Instance, Request
from optsched.model.ints import Ints

NEVER = 1 << 100
"""A duration that no machine takes."""


class Range(NamedTuple):
    """Numbers of batches of a machine, from ``first`` to ``last``; without an end if that is None."""

    first: int
    last: int | None


class Line(NamedTuple):
    """A lower bound on a machine's time in a range.

    Parameters
    ----------
    first
        The range's first number of batches.
    base
        What each batch takes, in ps.
    lefts
        What all together take besides, whatever the machine serves, in ps: for every number of batches from ``first``
        to the range's end, or one for all.
    taken
        What every request takes besides, in ps, shape (requests,).
    """

    first: int
    base: int
    lefts: tuple[int, ...]
    taken: Ints

    @property
    def left(self) -> int:
        """What all batches together take besides, at least."""
        return min(self.lefts)

    def spent(self, batches: int) -> int:
        """Return what a number of batches in the range takes, whatever the machine serves."""
        return self.base * batches + self.lefts[min(batches - self.first, len(self.lefts) - 1)]


class Demand:
    """What requests take of machines that are equal.

    Attributes
    ----------
    batches
        The least number of batches of every request.
    volumes
        V of every request, in blocks.
    bases
        The base of every rate, in ps, rounded down.
    own
        Own times by rate and request, in ps, rounded down.
    """

    def __init__(self, machine: Instance, requests: Sequence[Request], rates: Sequence[Rate]) -> None:
        self.rates = tuple(rates)
        self.blocks = machine.limits.kv_blocks
        self.batches = np.array([fewest_steps(machine, each.input) + each.output - 1 for each in requests])
        self.volumes = [held_blocks(machine, each.input, each.output) for each in requests]
        self.bases = [rate.base // rate.scale for rate in rates]
        times = [OwnTimes(machine, rate) for rate in rates]
        self.own: Ints = np.array(
            [
                [own.of(each.input, each.output) // rate.scale for each in requests]
                for rate, own in zip(rates, times, strict=True)
            ],
            dtype=np.int64,
        )

    @cached_property
    def held(self) -> Floats:
        """V of every request, in what one batch can hold."""
        return np.array(self.volumes, dtype=np.float64) / self.blocks


@dataclass(frozen=True)
class Rule:
    """Weights of rates, and the price of all that a batch can hold, for a range.

    Parameters
    ----------
    range_
        Numbers of batches.
    weights
        By rate, integers ≥ 0.
    memory
        g, an integer ≥ 0.
    ramps
        Weights, integers ≥ 0, lines of ramps in the range, and their places among all ramps.
    """

    range_: Range
    weights: tuple[int, ...]
    memory: int
    ramps: tuple[tuple[int, Line, int], ...] = ()

    def bound(self, demand: Demand, worths: Sequence[int], machines: int) -> int | None:
        """Return what a machine takes at least that earns the mean; None if nothing is proved.

        It is `NEVER` where no machine can earn it, however long it takes.
        """
        each = sum(weight * base for weight, base in zip(self.weights, demand.bases, strict=True)) - self.memory
        first, last = self.range_
        if last is None and each + sum(weight * line.base for weight, line, _ in self.ramps) < 0:
            return None
        # Between its ends it is affine, but for ramps with a layer for each batch.
        listed = last is not None and any(len(line.lefts) > 1 for _, line, _ in self.ramps)
        numbers = range(first, last + 1) if last is not None and listed else {first, last or first}
        spent = min(each * J + sum(weight * line.spent(J) for weight, line, _ in self.ramps) for J in numbers)
        ramped = [0] * len(worths)
        for weight, line, _ in self.ramps:
            ramped = [more + weight * taken for more, taken in zip(ramped, line.taken.tolist(), strict=True)]
        columns = zip(*(own.tolist() for own in demand.own), strict=True)
        spare = 0
        rows = zip(worths, columns, demand.batches.tolist(), demand.volumes, ramped, strict=True)
        for worth, own, batches, volume, more in rows:
            if worth and (last is None or batches <= last):
                cost = sum(weight * each for weight, each in zip(self.weights, own, strict=True)) + more
                spare += max(0, worth - cost - self.memory * volume // demand.blocks)
        missing = sum(worths) + machines * (spent - spare)
        total = machines * (sum(self.weights) + sum(weight for weight, _, _ in self.ramps))
        if not total:
            return NEVER if missing > 0 else None
        return -(-missing // total)

    def stated(self, rates: Sequence[Rate], used: Sequence[int]) -> dict[str, Any]:
        """Return the rule as certificates have it, which list the ``used`` ramps."""
        stated = [
            {"weight": weight, "piece_weights": list(rate.weights), "prefill_step_ps": rate.step_ps}
            for weight, rate in zip(self.weights, rates, strict=True)
            if weight
        ]
        ramps = [{"weight": weight, "ramp": used.index(number)} for weight, _, number in self.ramps]
        found = {"last": self.range_.last, "memory_ps": self.memory, "rates": stated}
        return {**found, "ramps": ramps} if ramps else found
