"""Flows of whole requests of every class through the batches, without pauses: what `pairs.model` and others price.

As in `flow.model` without idle arcs, for a number of batches, within which no request has to complete.
"""

from __future__ import annotations

from collections.abc import Callable

from optsched_formulations.batching.flow.model import Program, Terms
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.packing import Packing

Place = tuple[int, int]
"""``(item, batch)``: what a request that is due for an item does in a batch, counted from 1."""


class Flows:
    """Fills, decodes, evictions and waits, and the memory of every batch.

    Parameters
    ----------
    classes
        The requests by class.
    horizon
        Number of batches, at least the longest output.

    Attributes
    ----------
    program
        Variables, rows and objective, which is empty.
    """

    def __init__(self, classes: Classes, horizon: int) -> None:
        self.program = Program()
        self._classes = classes
        self._number = [len(members) for members in classes.members]
        self._batches = range(1, horizon + 1)
        self._fill: dict[Place, int] = {}
        self._decode: dict[Place, int] = {}
        self._evict: dict[Place, int] = {}
        self._wait: dict[Place, int] = {}
        for item in range(len(classes.owner)):
            self._add_flows(item)

    def _add_flows(self, item: int) -> None:
        """Add what requests that are due for an item may do: run or wait, or run or be evicted."""
        classes, number, row = self._classes, self._number[self._classes.owner[item]], self.program.row
        first = classes.token[item] == 1
        waits = first or classes.evictable[item - 1]
        for batch in self._batches[classes.token[item] - 1 :]:
            here, before = (item, batch), (item, batch - 1)
            if waits:
                self._fill[here] = self.program.variable(0, number)
                self._wait[here] = self.program.variable(0, number)
            if not first:
                self._decode[here] = self.program.variable(0, number)
                if waits:
                    self._evict[here] = self.program.variable(0, number)
                token_before = (item - 1, batch - 1)
                come = some_terms(1, token_before, self._fill, self._decode)
                row(come + some_terms(-1, here, self._decode, self._evict), 0, 0)
            if waits:
                source = number if first and batch == 1 else 0
                come = some_terms(1, before, self._wait, self._evict)
                row(come + some_terms(-1, here, self._fill, self._wait), -source, -source)

    def runs(self, item: int, batch: int) -> list[int]:
        """Return the variables of steps that generate an item in a batch."""
        return [flows[item, batch] for flows in (self._fill, self._decode) if (item, batch) in flows]

    def add_capacity(self, weights: list[int], most: int) -> None:
        """Let the items of every batch weigh no more than ``most``: a row for each batch."""
        for batch in self._batches:
            held = [(weight, run) for item, weight in enumerate(weights) if weight for run in self.runs(item, batch)]
            self.program.row(held, None, most)

    def add_packing(self, packing: Packing) -> None:
        """Add an inequality on what a batch holds to all batches."""
        items = zip(self._classes.owner, self._classes.token, strict=True)
        self.add_capacity([packing.weights.get(item, 0) for item in items], packing.most)

    def held(self, value_of: Callable[[int], float]) -> dict[tuple[int, int], list[float]]:
        """Return how many requests hold each (class, tokens) in every batch of a solution."""
        items = zip(self._classes.owner, self._classes.token, strict=True)
        return {
            place: [sum(map(value_of, self.runs(item, batch))) for batch in self._batches]
            for item, place in enumerate(items)
        }


def some_terms(coefficient: int, place: Place, *flows: dict[Place, int]) -> Terms:
    """Return a term of each of these flows that exists at a place."""
    return [(coefficient, flow[place]) for flow in flows if place in flow]
