r"""Requests that fill the room that others leave: what they are worth there, by prices of their tokens.

Some classes of requests are the *core*, whose resident sets make the merged graph; the others are *fillers*. Every item
i of a filler has a price :math:`p_i`, of any sign. Let :math:`g(r)` be the most that fillers can be worth which run in
one batch and hold at most r blocks: of class c no more than its :math:`n_c` requests, each for one item.

*Theorem.* Let a batch cost the base less :math:`g(r)` where the core leaves r blocks in it, r = M where nothing of it
runs, and let all else cost what it costs the core alone. Then a schedule of J batches costs, without the constant work,
at least what the cheapest schedule of the core in J batches does, and

.. math:: \sum_c n_c \sum_{i \in c} p_i .

*Proof.* Take a schedule in which no request pauses (`resident_graph`), and leave out all that fillers do. What is left
is a schedule of the core in J batches, some of which may be empty. In each batch the fillers that run hold what the
core leaves, at most, and are worth :math:`g(r)`, at most. A filler generates each of its tokens once, so that in all
batches together they are worth the sum above, and their refills cost no less than decodes. ∎

That is a Lagrangian relaxation of the condition that every token is generated once. What it leaves out is the order of
the tokens of fillers, and where they wait. Prices that are good come from a linear programme (`core`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.memory_only import Classes


@dataclass(frozen=True)
class Filled:
    """What fillers pay in all, and are worth at most in a batch, by the blocks that are left to them."""

    pays: int
    worth: Ints


class _Facts(NamedTuple):
    """First and last item, and requests, of every class; sizes of items, ascending within each class."""

    first: Ints
    last: Ints
    requests: Ints
    size: Ints


class Fillers:
    """Requests outside the core.

    Parameters
    ----------
    classes
        Their items.
    """

    def __init__(self, classes: Classes) -> None:
        requests = [len(members) for members in classes.members]
        last = [first + output - 1 for first, (_, output, _) in zip(classes.first, classes.kinds, strict=True)]
        self.classes, self._capacity = classes, classes.capacity
        self.requests: Ints = np.array([requests[owner] for owner in classes.owner], dtype=np.int64)
        self._facts = _Facts(
            np.array(classes.first, dtype=np.int64),
            np.array(last, dtype=np.int64),
            np.array(requests, dtype=np.int64),
            np.array(classes.size, dtype=np.int64),
        )

    @property
    def effort(self) -> int:
        """Additions that it takes to say what they are worth."""
        return int(self.requests.sum()) * self._capacity

    def filled(self, price: Ints) -> Filled:
        """Return what prices of items, in units, say."""
        worth = np.zeros(self._capacity + 1, dtype=np.int64)
        _most_worth(self._facts, price, worth, self._choices(0))
        return Filled(int(price @ self.requests), worth)

    def best(self, price: Floats, rooms: Ints) -> tuple[Floats, Ints]:
        """Return what fillers are worth in some rooms, and how many of every item make that, shape (rooms, items)."""
        worth, choice = np.zeros(self._capacity + 1), self._choices(int(self._facts.requests.sum()))
        _most_worth(self._facts, price, worth, choice)
        counts: Ints = np.zeros((len(rooms), len(price)), dtype=np.int64)
        _chosen(self._facts.size, choice, rooms, counts)
        return worth[rooms], counts

    def _choices(self, requests: int) -> npt.NDArray[np.int16]:
        """Return room for the choices of some requests; of none, they are not asked for."""
        return np.full((requests, self._capacity + 1), -1, dtype=np.int16)


@compiled
def _most_worth(facts: _Facts, price: Ints | Floats, worth: Ints | Floats, choice: npt.NDArray[np.int16]) -> None:
    """Write what fillers are worth at most by the blocks that they have; the item that each of them is for, or −1.

    One request after another is added, of which each is for one item of its class, or for none.
    """
    first, last, requests, size = facts
    row = 0
    for c in range(len(first)):
        for _ in range(requests[c]):
            # From the most blocks down, so that what is left has the requests before.
            for blocks in range(len(worth) - 1, -1, -1):
                best, chosen = worth[blocks], -1
                for i in range(first[c], last[c] + 1):
                    if size[i] > blocks:
                        break
                    with_it = worth[blocks - size[i]] + price[i]
                    if with_it > best:
                        best, chosen = with_it, i
                worth[blocks] = best
                if len(choice):
                    choice[row, blocks] = chosen
            row += 1


@compiled
def _chosen(size: Ints, choice: npt.NDArray[np.int16], rooms: Ints, counts: Ints) -> None:
    """Count the items of the choices for some rooms."""
    for k in range(len(rooms)):
        blocks = rooms[k]
        for row in range(len(choice) - 1, -1, -1):
            i = choice[row, blocks]
            if i >= 0:
                counts[k, i] += 1
                blocks -= size[i]
