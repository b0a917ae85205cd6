"""What a compiled run writes down: enough for the schedule and for its metrics, in memory that grows with decisions."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched.model.metrics import Tally
from optsched.model.schedule import Batch, Schedule
from optsched.model.state import Step
from optsched.simulator.watch import Watch, spread

ShortInts = npt.NDArray[np.int32]

START, STOP, REPEAT, DECODES, PLACE, STEPS, CHANGES = range(7)
"""Columns of entries."""
ENTRIES, NOTED_STEPS, NOTED_CHANGES, KV_HIGH, KV_LOW, BUSY = range(6)
TOKENS, RUNS, RESIDENT, PEAK, BATCHES, EVICTIONS, FINISHED = range(6, 13)
"""Totals: rows of the arrays, sums over batches, most KV tokens, and how many batches, evictions and ends there are."""
SHIFT = 20
"""KV tokens times duration exceed 64 bits: the sum is kept in two parts, of which the lower has so many."""


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


@compiled
def new_log() -> Log:
    """Return an empty log."""
    return Log(
        np.zeros((1024, 7), np.int64),
        np.zeros((1024, 2), np.int32),
        np.zeros((1024, 2), np.int32),
        np.zeros(13, np.int64),
    )


@compiled
def with_room(log: Log, steps: int, changes: int) -> Log:
    """Return the log with room for one more entry and so many more rows."""
    entries, noted, changed = log.entries, log.steps, log.changes
    if log.totals[ENTRIES] == len(entries):
        entries = np.concatenate((entries, np.zeros_like(entries)))
    while log.totals[NOTED_STEPS] + steps > len(noted):
        noted = np.concatenate((noted, np.zeros_like(noted)))
    while log.totals[NOTED_CHANGES] + changes > len(changed):
        changed = np.concatenate((changed, np.zeros_like(changed)))
    return Log(entries, noted, changed, log.totals)


@compiled
def note_step(log: Log, rank: int, tokens: int) -> None:
    """Note a run that is no decode step."""
    row = log.totals[NOTED_STEPS]
    log.steps[row, 0], log.steps[row, 1] = rank, tokens
    log.totals[NOTED_STEPS] = row + 1


@compiled
def note_change(log: Log, rank: int, kind: int) -> None:
    """Note that somebody is evicted (0), decodes from now on (1), or has ended (2)."""
    row = log.totals[NOTED_CHANGES]
    log.changes[row, 0], log.changes[row, 1] = rank, kind
    log.totals[NOTED_CHANGES] = row + 1


@compiled
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


@compiled
def note_entry(  # noqa: PLR0917 - compiled functions take positions
    log: Log, start: int, stop: int, repeat: int, decodes: int, place: int
) -> None:
    """Note a decision, after all that belongs to it."""
    row = log.entries[log.totals[ENTRIES]]
    row[START], row[STOP], row[REPEAT], row[DECODES], row[PLACE] = start, stop, repeat, decodes, place
    row[STEPS], row[CHANGES] = log.totals[NOTED_STEPS], log.totals[NOTED_CHANGES]
    log.totals[ENTRIES] += 1


@compiled
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
        return Schedule(tuple(self.batches()))

    def batches(self, machine: int = 0, names: Sequence[int] = ()) -> Iterator[Batch]:
        """Yield the batches of the schedule.

        Parameters
        ----------
        machine
            Which machine has run them.
        names
            What each request is called in them; empty for its index.
        """
        order, log = [names[index] for index in self._order] if names else self._order, self._log
        steps, changes = log.steps.tolist(), log.changes.tolist()
        decode: list[Step] = [(index, 1) for index in order]
        decoding: list[int] = []
        step = change = 0
        for start, stop, repeat, decodes, place, last_step, last_change in log.entries[: log.totals[ENTRIES]].tolist():
            evict = []
            while change < last_change and changes[change][1] == 0:
                rank = changes[change][0]
                # Whoever was still filling is not there.
                at = bisect_left(decoding, rank)
                if at < len(decoding) and decoding[at] == rank:
                    del decoding[at]
                evict.append(order[rank])
                change += 1
            run: list[Step] = [(order[rank], tokens) for rank, tokens in steps[step:last_step]]
            run[place:place] = [decode[rank] for rank in decoding[:decodes]]
            step = last_step
            for rank, kind in changes[change:last_change]:
                if kind == 1:
                    insort(decoding, rank)
                elif (at := bisect_left(decoding, rank)) < len(decoding) and decoding[at] == rank:
                    del decoding[at]
            change = last_change
            yield Batch(start, stop, tuple(run), tuple(evict), machine, repeat)
