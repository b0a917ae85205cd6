"""The least way to divide sets of requests among machines, compiled: the dynamic programme of `joint`.

A set is a vector of counts, one for each class, and the number whose digits these are. Beyond `MOST_VALUE` nothing is
added: a set that a machine cannot serve has that value.
"""

from __future__ import annotations

from itertools import accumulate, product
from operator import mul

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints

MOST_VALUE = 1 << 61
"""Of a set that cannot be served; sums of two are within 64 bits."""


class Subsets:
    """All sets of requests, by counts.

    Parameters
    ----------
    sizes
        Number of requests of every class.

    Attributes
    ----------
    counts
        Of every set, by its number.
    digit
        What one request more of every class adds to a set's number.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        radix = [size + 1 for size in reversed(sizes)]
        places = list(accumulate(radix[:-1], mul, initial=1))[::-1]
        self.digit: Ints = np.array(places, dtype=np.int64)
        self.counts: Ints = np.array(list(product(*(range(size + 1) for size in sizes))), dtype=np.int64)

    def below(self, counts: Ints) -> npt.NDArray[np.bool_]:
        """Return which sets contain one with these counts."""
        return np.asarray(np.all(self.counts >= counts, axis=1))

    def number(self, counts: Ints) -> int:
        """Return the number of a set."""
        return int(counts @ self.digit)


@compiled
def add_machine(others: Ints, own: Ints, counts: Ints, digit: Ints, largest: bool) -> tuple[Ints, Ints]:
    """Return the least value of every set with one more machine, and which part of it that machine serves.

    Parameters
    ----------
    others, own
        Value of every set without the machine, and on it alone.
    counts, digit
        As in `Subsets`.
    largest
        Whether the value is the largest of all machines', or else their sum.
    """
    best = np.full(len(own), MOST_VALUE, dtype=np.int64)
    part = np.zeros(len(own), dtype=np.int64)
    classes = counts.shape[1]
    digits = np.zeros(classes, dtype=np.int64)
    for whole in range(len(own)):
        digits[:] = 0
        mine = 0
        while True:
            one, rest = own[mine], others[whole - mine]
            value = max(one, rest) if largest else min(one + rest, MOST_VALUE)
            if value < best[whole]:
                best[whole], part[whole] = value, mine
            place = classes - 1
            while place >= 0 and digits[place] == counts[whole, place]:
                mine -= digits[place] * digit[place]
                digits[place] = 0
                place -= 1
            if place < 0:
                break
            digits[place] += 1
            mine += digit[place]
    return best, part
