"""The replay of a long schedule on arrays, whether it is of tables or of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING

import numpy as np

from optsched.check.problem import Problem
from optsched.check.schedule.arrays import ArrayReplay, replay_tables
from optsched.model.ints import Ints
from optsched.model.schedule import Batch, Schedule
from optsched.model.table import BatchTable

if TYPE_CHECKING:
    from optsched.model.table import ShortInts

_STRETCH = 1 << 16
"""Batches of a table."""
_SHORT = np.iinfo(np.int32)


def replay_schedule(problem: Problem, schedule: Schedule) -> ArrayReplay | None:
    """Replay a schedule on arrays, as `replay_tables` does; None where the readable form has to decide."""
    tables = tables_of(schedule) if schedule.tables is None else schedule.tables
    return None if tables is None else replay_tables(problem, tables)


def tables_of(schedule: Schedule) -> list[BatchTable] | None:
    """Return the batches as tables of one machine; None if these cannot say all that the schedule says."""
    batches = schedule.batches
    if schedule.routes or schedule.moves or any(map(_says_more, batches)):
        return None
    try:
        return [_table(batches[first : first + _STRETCH]) for first in range(0, len(batches), _STRETCH)]
    except OverflowError:
        return None


def _says_more(batch: Batch) -> bool:
    """Whether a batch says what no table does."""
    return bool(batch.replica or batch.swap_out or batch.swap_in or batch.considered or batch.hits or batch.drop)


def _table(batches: Sequence[Batch]) -> BatchTable:
    """Return batches as a table.

    Raises
    ------
    OverflowError
        If a number does not fit its column.
    """
    named = _column(chain.from_iterable(chain.from_iterable(batch.run for batch in batches))).reshape(-1, 2)
    return BatchTable(
        _column(batch.start_ps for batch in batches),
        _column(batch.end_ps for batch in batches),
        _column(batch.repeat for batch in batches),
        _begins(len(batch.run) for batch in batches),
        _shortened(named[:, 0]),
        _shortened(named[:, 1]),
        _begins(len(batch.evict) for batch in batches),
        _shortened(_column(chain.from_iterable(batch.evict for batch in batches))),
    )


def _column(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)


def _begins(lengths: Iterator[int]) -> Ints:
    return _column(accumulate(lengths, initial=0))


def _shortened(column: Ints) -> ShortInts:
    if len(column) and not _SHORT.min <= column.min() <= column.max() <= _SHORT.max:
        raise OverflowError
    return np.ascontiguousarray(column, dtype=np.int32)
