"""Plans: fills and the decode steps that follow, in batches by number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optsched.compiled import compiled
from optsched.model.schedule import Batch, Schedule
from optsched.planner.problem import Ints


@dataclass(frozen=True)
class Plan:
    """What every batch does, without empty batches.

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
        When every batch starts and ends.
    first, last
        The batches that generate the first and the last token of every request.
    """

    chunks: Ints
    spans: Ints
    steps: Ints
    evictions: Ints
    start_ps: Ints
    end_ps: Ints
    first: Ints
    last: Ints

    @property
    def runs(self) -> int:
        """Number of runs in all batches."""
        return len(self.chunks) + int(self.spans[:, 2].sum())

    def schedule(self) -> Schedule:
        """Return the plan as a schedule; prefill steps first in every batch."""
        offsets, requests, tokens = _by_batch(len(self.start_ps), self.chunks, self.spans, self.steps)
        evicted: list[list[int]] = [[] for _ in self.start_ps]
        for request, batch in self.evictions.tolist():
            evicted[batch].append(request)
        bounds, starts, ends = offsets.tolist(), self.start_ps.tolist(), self.end_ps.tolist()
        pairs = list(zip(requests.tolist(), tokens.tolist(), strict=True))
        return Schedule(
            tuple(
                Batch(starts[b], ends[b], tuple(pairs[bounds[b] : bounds[b + 1]]), tuple(sorted(evicted[b])))
                for b in range(len(starts))
            )
        )


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
