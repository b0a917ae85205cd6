"""Ranges of numbers of batches with the lines that hold there, and weights of these, in floating point."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from optsched.bounds.worths.programme import Floats
from optsched.bounds.worths.ramps import Ramp, is_narrow
from optsched.bounds.worths.rules import Demand, Range, Rule

_RAMPS, _NEAR = 3, 20
"""Ramps with a repeated layer of a range, for not fewer batches than its first less a part of it."""

Numbered = tuple[Ramp, int]
"""A ramp and its place among all."""


class Place:
    """A range and the lines that hold in it: one for every rate, then ramps.

    Attributes
    ----------
    bases, left, own
        What every line has for each batch, for all together, and for requests; the last of shape (lines, requests).
    """

    def __init__(self, range_: Range, demand: Demand, ramps: Sequence[Numbered]) -> None:
        self.range_, self.ramps = range_, ramps
        found = [(ramp.line(range_), number) for ramp, number in ramps]
        self.lines = [(line, number) for line, number in found if line is not None]
        self.bases: Floats = np.array([*demand.bases, *(line.base for line, _ in self.lines)], dtype=np.float64)
        self.left: Floats = np.array([*[0] * len(demand.bases), *(line.left for line, _ in self.lines)], np.float64)
        # Requests that no machine of the range serves take nothing of its ramps.
        fits = demand.batches <= (inf if range_.last is None else range_.last)
        self.own: Floats = np.vstack([demand.own, *(line.taken * fits for line, _ in self.lines)]).astype(np.float64)

    def like(self, row: Row, other: Place) -> Row:
        """Return the weights that lines have in a row of another place, as far as they hold here."""
        known = {number: at for at, (_, number) in enumerate(other.lines, start=len(other.bases) - len(other.lines))}
        rates = row.weights[: len(self.bases) - len(self.lines)]
        ramps = [row.weights[known[number]] if number in known else 0.0 for _, number in self.lines]
        weights = np.array([*rates, *ramps])
        slope = float(weights @ self.bases)
        return Row(weights, row.memory if self.range_.last is not None else min(row.memory, max(slope, 0.0)))

    def wants_ramp(self) -> bool:
        """Return whether prices for what a machine serves there may prove more than those that there are."""
        first = self.range_.first
        near = (ramp.repeats and ramp.layers * _NEAR > first * (_NEAR - 1) for ramp, _ in self.ramps)
        return is_narrow(*self.range_) or sum(near) < _RAMPS


class Row(NamedTuple):
    """Weights of lines and the price of all that a batch can hold."""

    weights: Floats
    memory: float

    def costs(self, place: Place, demand: Demand) -> Floats:
        """Return what requests take."""
        return np.asarray(self.weights @ place.own + self.memory * demand.held)


class Tuned(NamedTuple):
    """A row whose weights add up to 1, a multiple of worths, and what a machine takes at least with them, in ps."""

    row: Row
    multiple: float
    value: float

    def rule(self, place: Place, unit: float) -> Rule:
        """Return the rule in integers where worths are multiplied by ``unit``."""
        scale = unit / self.multiple
        weights = [int(weight * scale) for weight in self.row.weights]
        rates = len(weights) - len(place.lines)
        ramps = tuple((weight, *line) for weight, line in zip(weights[rates:], place.lines, strict=True) if weight)
        return Rule(place.range_, tuple(weights[:rates]), int(self.row.memory * scale), ramps)


def value_of(tuned: Tuned) -> float:
    """Return what a row proves."""
    return tuned.value


def most_of(bases: Floats) -> float:
    """Return the unit of memory in the linear programme: the largest base."""
    return max(float(bases.max()), 1.0)
