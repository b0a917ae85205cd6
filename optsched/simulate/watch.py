"""What a compiled run notes over time: distributions, in memory that grows with how many different values they have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.spread import Spread

Ints = npt.NDArray[np.int64]

QUEUED, ENDED = range(2)
"""Until when the queue has been noted, and when the latest batch has ended, ps."""


class Weights(NamedTuple):
    """Values ≥ 0, of which each has a weight.

    Parameters
    ----------
    rows
        A table in which values are found by their hash: value, and weight, which is 0 in a row that is free.
    size
        How many rows are taken.
    """

    rows: Ints
    size: Ints


class Watch(NamedTuple):
    """Distributions.

    Parameters
    ----------
    gaps
        How often which time lies between two tokens of a request.
    kv_tokens, batch_tokens
        For how long so many KV tokens are occupied, and so many tokens run.
    queue
        For how long so many requests wait.
    until
        How far they reach.
    """

    gaps: Weights
    kv_tokens: Weights
    batch_tokens: Weights
    queue: Ints
    until: Ints


@compiled
def new_watch(requests: int, start: int) -> Watch:
    """Return what has seen nothing of so many requests, the first of which arrives at ``start``."""
    return Watch(
        _new_weights(), _new_weights(), _new_weights(), np.zeros(requests + 1, np.int64), np.full(2, start, np.int64)
    )


@compiled
def _new_weights() -> Weights:
    return Weights(np.zeros((1024, 2), np.int64), np.zeros(1, np.int64))


@compiled
def ready(watch: Watch, runs: int, batches: int) -> Watch:
    """Return the same with room for so many batches of so many runs."""
    # Each run of the first batch may have a gap of its own, those of a later one have one; idle time is one more value.
    gaps, kv_tokens = _with_room(watch.gaps, runs + batches), _with_room(watch.kv_tokens, 1 + batches)
    return Watch(gaps, kv_tokens, _with_room(watch.batch_tokens, 2), watch.queue, watch.until)


@compiled
def _with_room(weights: Weights, more: int) -> Weights:
    """Return a table that is at most half full with so many more values."""
    length = len(weights.rows)
    while length < 2 * (weights.size[0] + more):
        length *= 2
    if length == len(weights.rows):
        return weights
    larger = Weights(np.zeros((length, 2), np.int64), np.zeros(1, np.int64))
    for i in range(len(weights.rows)):
        weigh(larger, weights.rows[i, 0], weights.rows[i, 1])
    return larger


@compiled
def weigh(weights: Weights, value: int, weight: int) -> None:
    """Add to a value's weight."""
    if weight == 0:
        return
    rows = weights.rows
    # Fibonacci hashing (Knuth, The Art of Computer Programming, section 6.4): 2^64 divided by the golden ratio.
    row = (value * -7046029254386353131 >> 32) & (len(rows) - 1)
    while rows[row, 1] != 0 and rows[row, 0] != value:
        row = (row + 1) & (len(rows) - 1)
    weights.size[0] += rows[row, 1] == 0
    rows[row, 0] = value
    rows[row, 1] += weight


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
    """Return the distribution of the values that have a weight in a table of both."""
    rows = table[table[:, 1] > 0]
    rows = rows[np.argsort(rows[:, 0])]
    return Spread.of_ascending(rows[:, 0].tolist(), rows[:, 1].tolist())
