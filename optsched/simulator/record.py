"""What a compiled run writes down: enough for the schedule and for its metrics, in memory that grows with decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled, compiled_helper, compiled_part
from optsched.model.ints import Ints
from optsched.model.metrics import Tally
from optsched.model.schedule import Batch, Schedule, batches_of
from optsched.model.table import BatchTable
from optsched.simulator.watch import Watch, spread

ShortInts = npt.NDArray[np.int32]

START, STOP, REPEAT, DECODES, PLACE, STEPS, CHANGES = range(7)
"""Columns of entries."""
ENTRIES, NOTED_STEPS, NOTED_CHANGES, KV_HIGH, KV_LOW, BUSY = range(6)
TOKENS, RUNS, RESIDENT, PEAK, BATCHES, EVICTIONS, FINISHED = range(6, 13)
"""Totals: rows of the arrays, sums over batches, most KV tokens, and how many batches, evictions and ends there are."""
SHIFT = 20
"""KV tokens times duration exceed 64 bits: the sum is kept in two parts, of which the lower has that many bits."""
_STRETCH = 1 << 20
"""Runs of one table, if a batch does not have more."""


class Log(NamedTuple):
    """Decisions by rank, the place in the order of arrival.

    Parameters
    ----------
    entries
        A row for each decision: start and stop in ps, how many batches, how many of the requests that decode run in
        it, the first ones by rank, after how many of its other runs, and where its rows of the other arrays end.
    steps
        Rank and tokens of runs that are no decode steps.
    changes
        Ranks, from 1 on: evicted before its runs (rank, 0), decoding from then on (rank, 1), ended (rank, 2).
    totals
        Sums over all batches, and how many rows there are.
    """

    entries: Ints
    steps: ShortInts
    changes: ShortInts
    totals: Ints


def new_log() -> Log:
    """Return an empty log."""
    return Log(
        np.zeros((1024, 7), np.int64),
        np.zeros((1024, 2), np.int32),
        np.zeros((1024, 2), np.int32),
        np.zeros(13, np.int64),
    )


@compiled_helper
def with_room(log: Log, steps: int, changes: int) -> Log:
    """Return the log with room for one more entry and more rows of the other arrays."""
    entries, noted, changed = log.entries, log.steps, log.changes
    if log.totals[ENTRIES] == len(entries):
        entries = np.concatenate((entries, np.zeros_like(entries)))
    while log.totals[NOTED_STEPS] + steps > len(noted):
        noted = np.concatenate((noted, np.zeros_like(noted)))
    while log.totals[NOTED_CHANGES] + changes > len(changed):
        changed = np.concatenate((changed, np.zeros_like(changed)))
    return Log(entries, noted, changed, log.totals)


@compiled_part
def note_step(log: Log, rank: int, tokens: int) -> None:
    """Note a run that is no decode step."""
    row = log.totals[NOTED_STEPS]
    log.steps[row, 0], log.steps[row, 1] = rank, tokens
    log.totals[NOTED_STEPS] = row + 1


@compiled_part
def note_change(log: Log, rank: int, kind: int) -> None:
    """Note that a request is evicted (0), decodes from now on (1), or has ended (2)."""
    row = log.totals[NOTED_CHANGES]
    log.changes[row, 0], log.changes[row, 1] = rank, kind
    log.totals[NOTED_CHANGES] = row + 1


@compiled_part
def note_batch(  # noqa: PLR0917 - compiled functions take positions
    totals: Ints, duration: int, tokens: int, runs: int, resident: int, occupied: int
) -> None:
    """Count one batch."""
    low = totals[KV_LOW] + occupied * (duration & ((1 << SHIFT) - 1))
    totals[KV_HIGH] += occupied * (duration >> SHIFT) + (low >> SHIFT)
    totals[KV_LOW] = low & ((1 << SHIFT) - 1)
    totals[BUSY] += duration
    totals[TOKENS] += tokens
    totals[RUNS] += runs
    totals[RESIDENT] += resident
    totals[PEAK] = max(totals[PEAK], occupied)
    totals[BATCHES] += 1


@compiled_part
def note_entry(  # noqa: PLR0917 - compiled functions take positions
    log: Log, start: int, stop: int, repeat: int, decodes: int, place: int
) -> None:
    """Note a decision, after all that belongs to it."""
    row = log.entries[log.totals[ENTRIES]]
    row[START], row[STOP], row[REPEAT], row[DECODES], row[PLACE] = start, stop, repeat, decodes, place
    row[STEPS], row[CHANGES] = log.totals[NOTED_STEPS], log.totals[NOTED_CHANGES]
    log.totals[ENTRIES] += 1


@compiled_part
def join_entries(log: Log) -> None:
    """Make one of the latest two decisions, the same decode steps before and after a pause."""
    last = log.totals[ENTRIES] - 1
    before, row = log.entries[last - 1], log.entries[last]
    before[STOP], before[STEPS], before[CHANGES] = row[STOP], row[STEPS], row[CHANGES]
    before[REPEAT] += row[REPEAT]
    log.totals[ENTRIES] = last


class Record:
    """What a compiled run has done.

    Parameters
    ----------
    order
        Index of every request, by rank.
    log
        What was decided.
    watch
        Distributions over time.
    ends
        When every request has its first and its last token, by rank, shape (2, requests).
    """

    def __init__(self, order: Sequence[int], log: Log, watch: Watch, ends: Ints) -> None:
        self._order, self._log, self._watch, self._ends = order, log, watch, ends

    def tally(self) -> Tally:
        """Return what metrics need (see `optsched.model.metrics.metrics`)."""
        totals = [int(total) for total in self._log.totals]
        watch, ends = self._watch, np.empty_like(self._ends)
        ends[:, self._order] = self._ends
        return Tally(
            first=ends[0].tolist(),
            last=ends[1].tolist(),
            batches=totals[BATCHES],
            evictions=totals[EVICTIONS],
            tokens=totals[TOKENS],
            runs=totals[RUNS],
            resident=totals[RESIDENT],
            peak=totals[PEAK],
            busy=totals[BUSY],
            kv_time=(totals[KV_HIGH] << SHIFT) + totals[KV_LOW],
            gaps=spread(watch.gaps),
            waiting=spread(np.column_stack((np.arange(len(watch.queue)), watch.queue))),
            kv_tokens=spread(watch.kv_tokens),
            batch_tokens=spread(watch.batch_tokens),
        )

    def schedule(self) -> Schedule:
        """Return the schedule, equal batches in a row as one."""
        return Schedule.of_tables(self)

    def batches(self, machine: int, names: Sequence[int]) -> Iterator[Batch]:
        """Yield the batches of the schedule as objects.

        Parameters
        ----------
        machine
            Which machine has run them.
        names
            What each request is called in them.
        """
        known = np.array(names, np.int32)
        for table in self:
            yield from batches_of(table._replace(request=known[table.request], evict=known[table.evict]), machine)

    def __iter__(self) -> Iterator[BatchTable]:
        """Yield the schedule in stretches (`optsched.model.table.Tables`)."""
        log, order = self._log, np.array(self._order, np.int32)
        entries = log.entries[: log.totals[ENTRIES]]
        evictions = np.append(0, np.cumsum(log.changes[:, 1] == 0))
        runs = np.append(0, np.cumsum(entries[:, DECODES]) + entries[:, STEPS])
        evicted = np.append(0, evictions[entries[:, CHANGES]])
        decoding, size = np.zeros(len(order), np.int32), np.zeros(1, np.int64)
        first = 0
        while first < len(entries):
            last = max(int(np.searchsorted(runs, runs[first] + _STRETCH, side="right")) - 1, first + 1)
            part = slice(first, last + 1)
            table = BatchTable(
                entries[first:last, START],
                entries[first:last, STOP],
                entries[first:last, REPEAT],
                runs[part] - runs[first],
                np.empty(runs[last] - runs[first], np.int32),
                np.ones(runs[last] - runs[first], np.int32),
                evicted[part] - evicted[first],
                np.empty(evicted[last] - evicted[first], np.int32),
            )
            _expand(log, order, decoding, size, first, last, table)
            yield table
            first = last


@compiled
def _expand(  # noqa: PLR0917 - compiled functions take positions
    log: Log, order: ShortInts, decoding: ShortInts, size: Ints, first: int, last: int, table: BatchTable
) -> None:
    """Write down what some decisions run and evict, given the ranks that decode before, in order, and how many.

    Both are afterwards as they are after the last of them.
    """
    step = log.entries[first - 1, STEPS] if first else 0
    change = log.entries[first - 1, CHANGES] if first else 0
    row = lost = 0
    for entry in range(first, last):
        decodes, place = log.entries[entry, DECODES], log.entries[entry, PLACE]
        while change < log.entries[entry, CHANGES] and log.changes[change, 1] == 0:
            table.evict[lost] = order[log.changes[change, 0]]
            _take_out(decoding, size, log.changes[change, 0])
            lost, change = lost + 1, change + 1
        before = step + place
        while step < before:
            table.request[row], table.tokens[row] = order[log.steps[step, 0]], log.steps[step, 1]
            row, step = row + 1, step + 1
        for i in range(decodes):
            table.request[row + i] = order[decoding[i]]
        row += decodes
        while step < log.entries[entry, STEPS]:
            table.request[row], table.tokens[row] = order[log.steps[step, 0]], log.steps[step, 1]
            row, step = row + 1, step + 1
        while change < log.entries[entry, CHANGES]:
            rank = log.changes[change, 0]
            if log.changes[change, 1] == 1:
                at = size[0]
                while at > 0 and decoding[at - 1] > rank:
                    decoding[at] = decoding[at - 1]
                    at -= 1
                decoding[at] = rank
                size[0] += 1
            else:
                _take_out(decoding, size, rank)
            change += 1


@compiled_part
def _take_out(decoding: ShortInts, size: Ints, rank: int) -> None:
    """Take a rank out; one that was still filling is not there."""
    kept = 0
    for i in range(size[0]):
        if decoding[i] != rank:
            decoding[kept] = decoding[i]
            kept += 1
    size[0] = kept
