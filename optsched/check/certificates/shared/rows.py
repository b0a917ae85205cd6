"""Rows of integers found again by a hash table, in compiled searches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled_helper
from optsched.model.ints import Ints

Rows = npt.NDArray[np.integer[Any]]

NONE = -1
"""Of a table: no row is here."""


@compiled_helper
def place_of(rows: Rows, table: Ints, wanted: Rows) -> int:
    """Return where a row is in the table, or would be; the table's length is a power of two."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for number in wanted:
        mixed = (mixed ^ np.uint64(number)) * np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
    mask = np.uint64(len(table) - 1)
    place = mixed & mask
    while True:
        known = table[np.int64(place)]
        if known == NONE:
            return int(np.int64(place))
        same = True
        for number in range(len(wanted)):
            same = same and rows[known, number] == wanted[number]
        if same:
            return int(np.int64(place))
        place = (place + np.uint64(1)) & mask


@compiled_helper
def table_of(rows: Rows, count: int) -> Ints:
    """Return a table of the first ``count`` rows, for as many as there is room for."""
    table = np.full(2 * len(rows), NONE, dtype=np.int64)
    for known in range(count):
        table[place_of(rows, table, rows[known])] = known
    return table
