r"""How many requests can be in time: a bound on missed SLOs.

Take the machine of `machine`: request r needs at least :math:`p_r` of its time between its arrival :math:`T_r` and its
deadline :math:`d_r = T_r + \mathrm{SLO}_r`, until its last token, or where there is no SLO on e2e latency until its
first. A request that could not be in time even `alone` misses its SLO. Of the others, those that are in time in a
schedule are in time on the machine, with preemption.

*Agreeing deadlines.* Let later arrivals never have earlier deadlines; where they do, deadlines are put off to the
latest so far, which only helps. Earliest deadline first is then first come, first served, so a set of requests can be
in time if and only if it is in time in this order. The largest such set is found by taking requests in this order, and,
whenever one would be late, leaving out one of those taken without which the machine is free earliest (Kise, Ibaraki and
Mine 1978, Operations Research 26, theorem 1).

*Proof.* By induction on the number of requests, numbered in this order. Let j be the first that is late, N = {1, …, j},
and i the one left out. First come, first served, the machine has done a set A ⊆ N, and j has arrived, at

.. math:: g(A) = \max_{k ≤ j} \Bigl(T_k + \sum_{l ∈ A,\, l ≥ k} p_l\Bigr).

N ∖ i is in time: no request before j was late, and if j stays it ends at :math:`g(N ∖ i) ≤ g(N ∖ j)`, which is when j
arrives or j − 1 ends, both by the deadline of j.

Some largest set in time leaves i out. Let F be one with i. N is not in time, so there is a first u in N that is not in
F. Exchange i for u: what is then taken of N is in time, as part of N ∖ i, and the machine is free for the rest no later
than before, :math:`g(F ∩ N ∖ i ∪ u) ≤ g(F ∩ N)`. For let D be all of N but F and u; they come after u. In the maximum
on the left, where k > u, the sum is over no more than on the right. Where k ≤ u, it is over all of N ∖ i from k on but
D, so at most :math:`g(N ∖ i) - p(D) ≤ g(N ∖ u) - p(D) ≤ g(F ∩ N)` by the choice of i.

If i were not there the rule would take and leave out the same others; by induction it leaves a largest set. ∎

Without i the machine is free earlier by :math:`\min(p_i, \min_{i < k ≤ j} (S_k - T_k))`, with :math:`S_k` the starts:
no request starts before its arrival.

*Conditions.* Those of `machine`, tested by the same functions (`work.rate_of`, `work.step_of`, `machine.needs_of`);
`optsched.check.certificates.late.late_bound` takes the deadlines from the instance, and nothing else from the
certificate.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from optsched.bounds.alone import out_of_reach
from optsched.bounds.bound import Bound
from optsched.bounds.machine import Needs, best_share
from optsched.model.instance import Instance, Request
from optsched.model.objectives import Objective


def late_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the number of requests that miss an SLO; None for another objective."""
    if objective != Objective.SLO_MISSES:
        return None
    requests, missed = instance.requests, out_of_reach(instance)
    deadlines = {
        r: request.arrival_ps + slo
        for r, request in enumerate(requests)
        if not missed[r] and (slo := _slo(request)) is not None
    }
    needs = Needs(instance, [1 if request.slo_e2e_ps is None else request.output for request in requests])

    def misses(needed: list[int]) -> int:
        jobs = [DueJob(requests[r].arrival_ps, needed[r], deadline) for r, deadline in deadlines.items()]
        return sum(missed) + len(jobs) - most_in_time(jobs)

    return best_share(needs, "late", misses)


def _slo(request: Request) -> int | None:
    """Return the SLO on the e2e latency or, without one, on TTFT."""
    return request.slo_ttft_ps if request.slo_e2e_ps is None else request.slo_e2e_ps


class DueJob(NamedTuple):
    """A request on the machine: arrival, need and deadline."""

    arrival: int
    need: int
    deadline: int


def most_in_time(jobs: Iterable[DueJob]) -> int:
    """Return how many jobs can be in time at most (see the module)."""
    ordered = sorted(jobs, key=lambda job: (job.arrival, job.deadline))
    return len(ordered) - sum(1 for _ in crowded_out(ordered))


def crowded_out(jobs: list[DueJob]) -> Iterator[DueJob]:
    """Yield the jobs, given by arrival and deadline, that would be late; whenever one would be, one is left out."""
    taken = _Taken(len(jobs), sum(job.need for job in jobs))
    latest = 0
    for job in jobs:
        latest = max(latest, job.deadline)
        if taken.append(job) > latest:
            taken.drop()
            yield job


class _Taken:
    """The jobs taken since the machine was last idle, first come, first served.

    They form groups: a group begins with a job that waits less than all later ones. Whichever job is dropped, the
    least wait after it is that of the next group's first job; so of a group the job with the largest need is dropped.

    Parameters
    ----------
    room
        Most jobs.
    total
        What all of them need, which no wait exceeds.
    """

    def __init__(self, room: int, total: int) -> None:
        self._total = total
        self._end = 0
        self._count = 0
        kind = np.int64 if total < 1 << 63 else object
        self._waits = np.full(room + 1, total, dtype=kind)
        """Of the first job of every group, rising, from 0 on; then one that is no limit."""
        self._most = np.zeros(room + 1, dtype=kind)
        """The largest need in every group."""
        self._needs: list[list[int]] = []
        """All needs in every group, negative, as heaps."""

    def append(self, job: DueJob) -> int:
        """Take a job; return its end."""
        wait = self._end - job.arrival
        if wait <= 0:
            self._end, wait = job.arrival, 0
            self._count = 0
            self._needs.clear()
        elif self._waits[self._count - 1] >= wait:
            self._join(wait, self._count)
        self._waits[self._count], self._most[self._count] = wait, job.need
        self._needs.append([-job.need])
        self._count += 1
        self._waits[self._count] = self._total
        self._end += job.need
        return self._end

    def drop(self) -> None:
        """Leave out a job without which the last one ends earliest."""
        gains = np.minimum(self._most[: self._count], self._waits[1 : self._count + 1])
        group = int(gains.argmax())
        needs, gain, after = self._needs[group], int(gains[group]), group + 1
        heapq.heappop(needs)
        self._most[group] = -needs[0] if needs else 0
        self._end -= gain
        self._waits[after : self._count] -= gain
        if after == self._count:
            return
        wait = int(self._waits[after])
        if wait:
            self._join(wait, after)
        else:
            self._delete(0, after)

    def _join(self, wait: int, until: int) -> None:
        """Join groups before ``until`` that begin with such a wait or more to the one before them."""
        first = int(np.searchsorted(self._waits[:until], wait))
        parts = self._needs[first - 1 : until]
        largest = max(parts, key=len)
        for part in parts:
            if part is not largest:
                for need in part:
                    heapq.heappush(largest, need)
        self._needs[first - 1] = largest
        self._most[first - 1] = self._most[first - 1 : until].max()
        self._delete(first, until)

    def _delete(self, first: int, until: int) -> None:
        """Delete groups."""
        del self._needs[first:until]
        left = self._count - (until - first)
        for column in (self._waits, self._most):
            column[first : left + 1] = column[until : self._count + 1]
        self._count = left
