"""What a compiled run notes over time: distributions, in memory that grows with how many different values they have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched.model.spread import Spread

QUEUED, ENDED = range(2)
"""Until when the queue has been noted, and when the latest batch has ended, ps."""


class Watch(NamedTuple):
    """Distributions.

    The first three are tables in which values are found by their hash. A row has a value and its weight, and is free
    without a weight. The last row says how many are taken.

    Parameters
    ----------
    gaps
        How often which time lies between two tokens of a request.
    kv_tokens, batch_tokens
        For how long each number of KV tokens is occupied, and each number of tokens runs.
    queue
        For how long each number of requests waits.
    until
        How far they reach.
    """

    gaps: Ints
    kv_tokens: Ints
    batch_tokens: Ints
    queue: Ints
    until: Ints


@compiled
def new_watch(requests: int, start: int) -> Watch:
    """Return what has seen nothing of ``requests`` requests, the first of which arrives at ``start``."""
    queue, until = np.zeros(requests + 1, np.int64), np.full(2, start, np.int64)
    return Watch(_new_table(1024), _new_table(1024), _new_table(1024), queue, until)


@compiled
def _new_table(length: int) -> Ints:
    """Return an empty table of ``length`` rows, a power of two."""
    return np.zeros((length + 1, 2), np.int64)


@compiled
def ready(watch: Watch, runs: int, batches: int) -> Watch:
    """Return the same with room for ``batches`` batches of ``runs`` runs."""
    # Each run of the first batch may have a gap of its own, those of a later one have one; idle time is one more value.
    gaps, kv_tokens = _with_room(watch.gaps, runs + batches), _with_room(watch.kv_tokens, 1 + batches)
    return Watch(gaps, kv_tokens, _with_room(watch.batch_tokens, 2), watch.queue, watch.until)


@compiled
def _with_room(table: Ints, more: int) -> Ints:
    """Return a table that is at most half full with ``more`` more values."""
    rows = length = len(table) - 1
    while length < 2 * (table[-1, 0] + more):
        length *= 2
    if length == rows:
        return table
    larger = _new_table(length)
    for row in range(rows):
        weigh(larger, table[row, 0], table[row, 1])
    return larger


@compiled
def weigh(table: Ints, value: int, weight: int) -> None:
    """Add to the weight of a value ≥ 0."""
    if weight == 0:
        return
    last = len(table) - 1
    # Fibonacci hashing (Knuth, The Art of Computer Programming, section 6.4): 2^64 divided by the golden ratio.
    row = (value * -7046029254386353131 >> 32) & (last - 1)
    while table[row, 1] != 0 and table[row, 0] != value:
        row = (row + 1) & (last - 1)
    table[last, 0] += table[row, 1] == 0
    table[row, 0] = value
    table[row, 1] += weight


@compiled
def note_queue(watch: Watch, waiting: int, until: int) -> None:
    """Note how many have been waiting until then."""
    watch.queue[waiting] += until - watch.until[QUEUED]
    watch.until[QUEUED] = until


@compiled
def note_start(watch: Watch, start: int, waiting: int, occupied: int) -> None:
    """Note, when a batch starts, how many have been waiting until then, and what has been kept since the latest one."""
    note_queue(watch, waiting, start)
    idle = start - watch.until[ENDED]
    if idle > 0:
        weigh(watch.kv_tokens, occupied, idle)
        weigh(watch.batch_tokens, 0, idle)


@compiled
def note_tokens(watch: Watch, start: int, end: int, tokens: int) -> None:
    """Note how many tokens each batch of a decision runs."""
    weigh(watch.batch_tokens, tokens, end - start)
    watch.until[ENDED] = end


def spread(table: Ints) -> Spread | None:
    """Return the distribution of the values that have a weight in a table."""
    rows = table[table[:, 1] > 0]
    rows = rows[np.argsort(rows[:, 0])]
    return Spread.of_ascending(rows[:, 0].tolist(), rows[:, 1].tolist())
