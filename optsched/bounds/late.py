r"""How many requests can be in time: a bound on missed SLOs.

Take the machine of `machine`: request r needs at least :math:`p_r` of its time between its arrival :math:`T_r` and its
deadline :math:`d_r = T_r + \mathrm{SLO}_r`, until its last token, or where there is no SLO on e2e latency until its
first. Who could not be in time even `alone` misses an SLO. Of the others, those that are in time in a schedule are in
time on the machine, with preemption.

*Agreeing deadlines.* Let later arrivals never have earlier deadlines; where they do, deadlines are put off to the
latest so far, which only helps. Then a set of requests can be in time if and only if it is in time first come, first
served, and the largest such set is found by taking requests in this order, and, whenever one would be late, leaving out
that one whose absence lets the last one end earliest (Kise, Ibaraki and Mine 1978, Operations Research 26, theorem 1).

Without request i the last one ends earlier by :math:`\min(p_i, \min_{k > i} (S_k - T_k))`, with :math:`S_k` the starts:
nobody starts before its arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.bounds.alone import out_of_reach
from optsched.bounds.bound import Bound
from optsched.bounds.machine import Split, best_share, needs
from optsched.bounds.own import Rate
from optsched.model.instance import Instance, Request
from optsched.model.objectives import Objective

Ints = npt.NDArray[np.int64]


_MOST_PS = 1 << 62
"""Times beyond this would not fit their 64 bits."""


def late_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the number of requests that miss an SLO; None for another objective, or if numbers are too large."""
    if objective != Objective.SLO_MISSES:
        return None
    requests, missed = instance.requests, out_of_reach(instance)
    deadlines = {
        r: request.arrival_ps + slo
        for r, request in enumerate(requests)
        if not missed[r] and (slo := _slo(request)) is not None
    }
    outputs = [1 if request.slo_e2e_ps is None else request.output for request in requests]

    def misses(rate: Rate, split: Split) -> int:
        needed = needs(instance, rate, split, outputs)
        if max(deadlines.values(), default=0) + sum(needed[r] for r in deadlines) > _MOST_PS:
            return sum(missed)
        jobs = [Job(requests[r].arrival_ps, needed[r], deadline) for r, deadline in deadlines.items()]
        return sum(missed) + len(jobs) - most_in_time(jobs)

    return best_share(instance, "late", misses)


def _slo(request: Request) -> int | None:
    """Return the SLO on the e2e latency or, without one, on TTFT."""
    return request.slo_ttft_ps if request.slo_e2e_ps is None else request.slo_e2e_ps


class Job(NamedTuple):
    """A request on the machine: arrival, need and deadline."""

    arrival: int
    need: int
    deadline: int


def most_in_time(jobs: Iterable[Job]) -> int:
    """Return how many jobs can be in time at most (see the module)."""
    ordered = sorted(jobs)
    taken = _Taken(len(ordered))
    latest = 0
    for job in ordered:
        latest = max(latest, job.deadline)
        if taken.append(job) > latest:
            taken.drop()
    return taken.count


class _Taken:
    """The jobs taken so far, first come, first served."""

    def __init__(self, room: int) -> None:
        self._arrival, self._need, self._start = (np.zeros(room, dtype=np.int64) for _ in range(3))
        self.count = 0
        self._block = 0
        """The last that starts when it arrives: nobody before it delays the last one."""

    def append(self, job: Job) -> int:
        """Take a job; return its end."""
        last = self.count - 1
        free = int(self._start[last] + self._need[last]) if self.count else job.arrival
        if free <= job.arrival:
            self._block = self.count
        start = max(free, job.arrival)
        self._arrival[self.count], self._need[self.count], self._start[self.count] = job.arrival, job.need, start
        self.count += 1
        return start + job.need

    def drop(self) -> None:
        """Leave out the job without which the last one ends earliest."""
        slack = self._start[self._block : self.count] - self._arrival[self._block : self.count]
        # The least slack of all that come after: the last may go as a whole.
        after: Ints = np.append(np.minimum.accumulate(slack[:0:-1])[::-1], np.iinfo(np.int64).max)
        place = int(np.argmax(np.minimum(self._need[self._block : self.count], after)))
        out, need = self._block + place, self._need[self._block + place]
        following = slice(out + 1, self.count)
        self._start[following] -= np.minimum(need, np.minimum.accumulate(slack[place + 1 :]))
        for column in (self._arrival, self._need, self._start):
            column[out : self.count - 1] = column[following]
        self.count -= 1
        at_once = np.flatnonzero(self._start[: self.count] == self._arrival[: self.count])
        self._block = int(at_once[-1]) if len(at_once) else 0
