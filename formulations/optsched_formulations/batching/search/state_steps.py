"""What the compiled loops of `state_search` have in common: kinds of steps, and where successors are written."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints

Words = npt.NDArray[np.uint64]

BEGIN, EVICT, PAUSE, FILL, RUN = range(5)
"""Kinds of steps: a batch begins, someone is evicted, pauses, is filled, the batch runs."""
_ITEMS = 28
"""Bits of a step's item."""


class Buffer(NamedTuple):
    """The successors of a state: words, cost, label, step."""

    words: Words
    cost: Ints
    label: Ints
    step: npt.NDArray[np.int32]


@compiled
def step_of(kind: int, item: int) -> int:
    """Return kind and item of a step as one number; item −1 stands for none."""
    return (kind << _ITEMS) + item + 1


@compiled
def kind_of(step: int) -> int:
    """Return the kind of a step."""
    return step >> _ITEMS


def item_of(step: int) -> int:
    """Return the item of a step."""
    return (step & ((1 << _ITEMS) - 1)) - 1


@compiled
def arrived(time: Ints, clock: int) -> int:
    """Return how many of the arrivals, ascending, are not after a moment."""
    count = 0
    while count < len(time) and time[count] <= clock:
        count += 1
    return count
