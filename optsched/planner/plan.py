"""Schedules as arrays, as the compiled loops write them: prefill steps, spans of decode steps, evictions, batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched.model.schedule import Schedule
from optsched.model.table import BatchTable


class ScheduleArrays(NamedTuple):
    """A schedule without empty batches; while a loop writes it, ``size`` says how many rows count.

    Parameters
    ----------
    chunks
        Rows of request, batch, tokens: the prefill steps.
    spans
        Rows of request, first step, number of steps: decode steps in successive batches that decode.
    steps
        The batch of every decode step's number; with hybrid batches each batch may have one.
    evictions
        Rows of request, batch.
    start_ps, end_ps
        Times of every batch.
    first, last
        The batches that generate the first and the last token of every request.
    size
        Numbers of `CHUNKS`, `SPANS`, `STEPS`, `EVICTIONS` and `BATCHES` written.
    """

    chunks: Ints
    spans: Ints
    steps: Ints
    evictions: Ints
    start_ps: Ints
    end_ps: Ints
    first: Ints
    last: Ints
    size: Ints

    @property
    def runs(self) -> int:
        """Number of runs in all batches."""
        return len(self.chunks) + int(self.spans[:, 2].sum())

    def written(self) -> ScheduleArrays:
        """Return the rows that count."""
        chunks, spans, steps, evictions, batches = self.size.tolist()
        return self._replace(
            chunks=self.chunks[:chunks],
            spans=self.spans[:spans],
            steps=self.steps[:steps],
            evictions=self.evictions[:evictions],
            start_ps=self.start_ps[:batches],
            end_ps=self.end_ps[:batches],
        )

    def schedule(self) -> Schedule:
        """Return the schedule, prefill steps first in every batch."""
        offsets, requests, tokens = _by_batch(len(self.start_ps), self.chunks, self.spans, self.steps)
        evictions = self.evictions[np.lexsort((self.evictions[:, 0], self.evictions[:, 1]))]
        batches = np.arange(len(self.start_ps) + 1)
        table = BatchTable(
            self.start_ps,
            self.end_ps,
            np.ones_like(self.start_ps),
            offsets,
            requests.astype(np.int32),
            tokens.astype(np.int32),
            np.searchsorted(evictions[:, 1], batches),
            evictions[:, 0].astype(np.int32),
        )
        return Schedule.of_tables((table,))


CHUNKS, SPANS, STEPS, EVICTIONS, BATCHES = range(5)


def room_for(
    requests: int, chunks: int, batches: int, *, spans: int = 0, steps: int = 0, evictions: int = 0
) -> ScheduleArrays:
    """Return arrays with room for these numbers of rows, of which none is written."""
    return ScheduleArrays(
        np.empty((chunks, 3), dtype=np.int64),
        np.empty((spans, 3), dtype=np.int64),
        np.empty(steps, dtype=np.int64),
        np.empty((evictions, 2), dtype=np.int64),
        start_ps=np.empty(batches, dtype=np.int64),
        end_ps=np.empty(batches, dtype=np.int64),
        first=np.empty(requests, dtype=np.int64),
        last=np.empty(requests, dtype=np.int64),
        size=np.zeros(5, dtype=np.int64),
    )


@compiled_part
def write(rows: Ints, row: int, request: int, at: int, number: int) -> None:
    """Write a row of chunks or spans."""
    rows[row, 0], rows[row, 1], rows[row, 2] = request, at, number


@compiled_part
def add_chunk(made: ScheduleArrays, request: int, batch: int, tokens: int) -> None:
    """Write a prefill step."""
    write(made.chunks, made.size[CHUNKS], request, batch, tokens)
    made.size[CHUNKS] += 1


@compiled_part
def add_span(made: ScheduleArrays, request: int, step: int, steps: int) -> None:
    """Write successive decode steps."""
    write(made.spans, made.size[SPANS], request, step, steps)
    made.size[SPANS] += 1


@compiled_part
def add_eviction(made: ScheduleArrays, request: int, batch: int) -> None:
    """Write an eviction."""
    row = made.size[EVICTIONS]
    made.evictions[row, 0], made.evictions[row, 1] = request, batch
    made.size[EVICTIONS] += 1


@compiled_part
def add_batch(made: ScheduleArrays, start: int, duration: int) -> int:
    """Write a batch; return when it ends."""
    batch = made.size[BATCHES]
    made.start_ps[batch], made.end_ps[batch] = start, start + duration
    made.size[BATCHES] += 1
    return start + duration


@compiled
def _by_batch(batches: int, chunks: Ints, spans: Ints, steps: Ints) -> tuple[Ints, Ints, Ints]:
    """Return where the runs of every batch begin, and the request and tokens of all runs, batch after batch."""
    offsets = np.zeros(batches + 1, dtype=np.int64)
    for row in range(len(chunks)):
        offsets[chunks[row, 1] + 1] += 1
    for row in range(len(spans)):
        for step in range(spans[row, 1], spans[row, 1] + spans[row, 2]):
            offsets[steps[step] + 1] += 1
    for batch in range(batches):
        offsets[batch + 1] += offsets[batch]
    place = offsets[:-1].copy()
    requests = np.empty(offsets[batches], dtype=np.int64)
    tokens = np.ones(offsets[batches], dtype=np.int64)
    for row in range(len(chunks)):
        at = place[chunks[row, 1]]
        requests[at], tokens[at] = chunks[row, 0], chunks[row, 2]
        place[chunks[row, 1]] += 1
    for row in range(len(spans)):
        for step in range(spans[row, 1], spans[row, 1] + spans[row, 2]):
            requests[place[steps[step]]] = spans[row, 0]
            place[steps[step]] += 1
    return offsets, requests, tokens
