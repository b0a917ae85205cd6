"""Waiting requests, kept in order from batch to batch."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any

from optsched.simulator.replica import Job, Replica

Place = tuple[Any, int, Job]
"""A request's key, its rank among those of the same key, and the request."""
Key = Callable[[Job], Any]

_job = itemgetter(-1)


class StableQueue:
    """An order by what stays the same while a request waits; ties by arrival.

    Waiting requests are kept in order, so that a decision takes time for those that have come or gone, and not for all.
    Call `candidates` for every decision: absence from one call removes a request.

    Parameters
    ----------
    key
        The smallest goes first.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._queue: list[Place] = []
        self._places: dict[Job, Place] = {}

    def __call__(self, job: Job, replica: Replica) -> Any:
        """Return the key."""
        return self._key(job)

    def candidates(self, waiting: Sequence[Job], running: Sequence[Job] = ()) -> Iterable[Job]:
        """Return the waiting requests in order, and among them those that run."""
        now = set(waiting)
        for job in self._places.keys() - now:
            del self._queue[bisect_left(self._queue, self._places.pop(job))]
        for job in now - self._places.keys():
            self._places[job] = self._key(job), job.rank, job
            insort(self._queue, self._places[job])
        if not running:
            return map(_job, self._queue)
        return map(_job, merge(sorted((self._key(job), job.rank, job) for job in running), self._queue))
