"""Certificates of kind ``late``: how many requests can be in time on one machine that may be preempted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from optsched.check.certificates.alone import latencies_alone, misses
from optsched.check.certificates.machine import needs_of
from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError
from optsched.model.objectives import Objective


class Job(NamedTuple):
    """A request on the machine: when it arrives, by when its last token counts, and what it needs until then."""

    arrival: int
    deadline: int
    need: int


def late_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return how many requests miss an SLO at least, by a ``late`` certificate.

    It has ``piece_weights`` and ``share_weights`` as kind ``machine``, whose theorem says what a request needs of one
    machine from its arrival until a token. A request whose latencies alone exceed an SLO misses it. The others with an
    SLO are jobs: until the last token with the SLO on the e2e latency, or where there is none until the first.
    """
    if objective is not Objective.SLO_MISSES:
        raise UnprovedError(f"kind late bounds slo_misses, the objective is {objective.value}")
    firsts = [request.slo_e2e_ps is None for request in problem.requests]
    outputs = [1 if first else request.output for first, request in zip(firsts, problem.requests, strict=True)]
    needs = needs_of(problem, certificate, outputs)
    missed, jobs = 0, []
    for request, need, latencies in zip(problem.requests, needs, latencies_alone(problem), strict=True):
        if misses(request, latencies):
            missed += 1
            continue
        due = request.slo_ttft_ps if request.slo_e2e_ps is None else request.slo_e2e_ps
        if due is not None:
            jobs.append(Job(request.arrival_ps, request.arrival_ps + due, need))
    return missed + least_late(jobs)


def least_late(jobs: list[Job]) -> int:
    """Return how many of the jobs are late at least.

    Put deadlines off so that none is earlier than that of a job that arrived before. A job that is in time in a
    schedule is then in time on the machine, first come, first served: if a set of jobs can be in time, it is in this
    order. Take jobs in it, and whenever one is late leave out one without which the machine is free earliest. This
    leaves the largest set (Kise, Ibaraki and Mine 1978).

    Proof. The machine has done jobs A, and all up to the last of N have arrived, at::

        free(A) = max over k in N of T_k + (what those of A need from k on)

    Let i be the first that is left out, and N the jobs up to then. N without i is in time: if its last is the late one,
    it ends now by free(N without the late one), when it arrives or the one before it ends, by its deadline. Take a set
    F in time that has i. It lacks some of N: let u be the first of these, and D the needs of the others, which come
    after u. F with u for i has of N a part of N without i, and the machine is free for the jobs after N no later than
    in F. For if k is after u in the maximum for F with u for i, F needs as much from k on. Else it is at most
    free(N without i) - D ≤ free(N without u) - D ≤ free(F). So some largest set leaves i out, and by induction the
    rule, which goes on as if i had never been, finds one.
    """
    line = _Line(len(jobs))
    late, latest = 0, 0
    ordered = sorted(jobs)
    for place, job in enumerate(ordered):
        latest = max(latest, job.deadline)
        line.put(place, job.arrival, job.need)
        if line.end > latest:
            late += 1
            worst = line.worst()
            line.put(worst, ordered[worst].arrival, 0)
    return late


class _Line:
    """Jobs first come, first served, as the leaves of a binary tree: a job is put in or taken out in log n steps.

    Every node knows what the jobs below it need, in all and at most, and when they end were there no others.
    """

    def __init__(self, size: int) -> None:
        self._leaves = 1 << size.bit_length()
        self._needs = [0] * (2 * self._leaves)
        self._ends = [0] * (2 * self._leaves)
        self._most = [(0, 0)] * (2 * self._leaves)

    @property
    def end(self) -> int:
        """When the last job ends."""
        return self._ends[1]

    def put(self, place: int, arrival: int, need: int) -> None:
        """Let a job at its place in the line have a need, 0 if it is left out."""
        node = self._leaves + place
        self._needs[node], self._ends[node], self._most[node] = need, arrival + need, (need, place)
        while node > 1:
            node //= 2
            first, second = 2 * node, 2 * node + 1
            self._needs[node] = self._needs[first] + self._needs[second]
            self._ends[node] = max(self._ends[first] + self._needs[second], self._ends[second])
            self._most[node] = max(self._most[first], self._most[second])

    def worst(self) -> int:
        """Return the place of a job without which the last one ends earliest.

        Let E(c) be when all end if no job is before place c, and P(c) the largest need from c on. Without job i the end
        is earlier by its need or end - E(i + 1), whichever is less. Take the last place c with P(c) + E(c) ≥ end; at
        the first place E is the end. After c, needs are less than end - E at their place, so they count in
        full, and c counts for its need or, if that is less, end - E(c + 1), more than P(c + 1). So of these the one
        that needs most counts most. That is end - E(c) or more, and no job before c counts for more than that.
        """
        node, needs, ends, most = 1, 0, 0, (0, 0)  # the last three of all jobs to the right of the node
        while node < self._leaves:
            node = 2 * node + 1
            from_here = max(ends, self._ends[node] + needs)
            largest = max(most, self._most[node])
            if from_here + largest[0] < self.end:
                needs, ends, most = needs + self._needs[node], from_here, largest
                node -= 1
        return max(most, self._most[node])[1]
