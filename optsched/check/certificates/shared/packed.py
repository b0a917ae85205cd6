"""Items, groups and pools as arrays of 64 bits, for the compiled searches of walks through cache contents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from optsched.check.certificates.shared.contents import Item, Prices
from optsched.check.certificates.shared.resident_states import Items64
from optsched.check.problem import Problem, pieces_of
from optsched.model.ints import Ints

MOST_STATES_COMPILED = 1_000_000
"""States of the compiled form: some seconds, and up to a gigabyte."""
_WORD = 62
"""Bits of a word of counters that are used."""
MOST_LANES, _MOST_ITEMS = 48, 2**15
"""Resident requests and items that rows of the compiled form have room for."""
_MOST_COST = 2**58
"""Costs, prices and arrivals of the compiled form are less, so that no sum of its own wraps."""


class Packed(NamedTuple):
    """What a search needs of items.

    Attributes
    ----------
    items
        What they and groups are, costs in ps / scale.
    field
        Of every item word, shift and mask of its pool; word −1 if it has none.
    start
        The words of the source: all wait that are not tracked; those before the pools are 0.
    base
        Cost of a batch.
    lanes
        Requests that are resident at most, and one more.
    """

    items: Items64
    field: Ints
    start: Ints
    base: int
    lanes: int


def packed(
    problem: Problem, items: list[Item], prices: Prices, *, first_word: int, others: Iterable[int]
) -> Packed | None:
    """Return the arrays, pools from word ``first_word`` on; None if numbers might not fit, or requests a row.

    ``others`` are further numbers that have to fit.
    """
    scale, fields = prices.scale, list[tuple[int, int, int]]()
    [(base, _)] = pieces_of(problem.cost)
    words, bits = first_word - 1, _WORD
    for item in items:
        if item.first and item.group in prices.tracked:
            fields.append((-1, 0, 0))
            continue
        width = item.requests.bit_length()
        if bits + width > _WORD:
            words, bits = words + 1, 0
        fields.append((words, bits, (1 << width) - 1))
        bits += width
    requests = sum(item.requests for item in items if item.first)
    lanes = 1 + min(requests, problem.blocks // min(item.blocks for item in items))
    largest = max(
        scale * max(base, *(item.work_ps + item.extra_ps for item in items)),
        scale * lanes * max(item.work_ps for item in items),
        sum(item.requests * abs(price) for item, price in zip(items, prices.items, strict=True)),
        *others,
    )
    if lanes > MOST_LANES or largest >= _MOST_COST or len(items) >= _MOST_ITEMS:
        return None
    firsts = [item for item in items if item.first]
    start = np.zeros(words + 1, dtype=np.int64)
    for item, (word, shift, _) in zip(items, fields, strict=True):
        if word >= 0:
            start[word] += item.fresh << shift
    arrays = Items64(
        group=integers(item.group for item in items),
        k=integers(item.k for item in items),
        last=integers(item.last for item in items),
        blocks=integers(item.blocks for item in items),
        work=integers(scale * item.work_ps for item in items),
        fill=integers(scale * (item.work_ps + item.extra_ps) for item in items),
        price=integers(prices.items),
        reach=integers(item.reach for item in items),
        of=integers(item.of for item in items),
        requests=integers(item.requests for item in firsts),
        tracked=integers(item.group in prices.tracked for item in firsts),
    )
    return Packed(arrays, np.array(fields, dtype=np.int64), start, scale * base, lanes)


def integers(numbers: Iterable[int]) -> Ints:
    """Return an array of integers."""
    return np.array(list(numbers), dtype=np.int64)
