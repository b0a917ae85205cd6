"""Certificates of kind ``late``: how many requests can be in time on one machine that may be preempted."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from optsched.check.alone import latencies_alone, misses
from optsched.check.machine import needs_of
from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError
from optsched.model.objectives import Objective


def late_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return how many requests miss an SLO at least, by a ``late`` certificate.

    It has ``piece_weights`` and ``share_weights`` as kind ``machine``, whose theorem says what a request needs of one
    machine from its arrival until a token. A request whose latencies alone exceed an SLO misses it. The others with an
    SLO are jobs: until the last token with the SLO on the e2e latency, or where there is none until the first.

    Put deadlines off so that none is earlier than that of somebody who arrived before. Who is in time in a schedule is
    then in time on the machine, first come, first served: if a set of jobs can be in time at all, it is in this order.
    Taking jobs in it, and leaving out whenever one is late the one whose absence lets the last end earliest, leaves the
    largest set (Kise, Ibaraki and Mine 1978).
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
            jobs.append((request.arrival_ps, need, request.arrival_ps + due))
    return missed + _least_late(sorted(jobs))


def _least_late(jobs: list[tuple[int, int, int]]) -> int:
    """Return how many of the jobs (arrival, need, deadline), by arrival, are late at least."""
    late = 0
    end = deadline = 0
    run: list[tuple[int, int, int]] = []  # arrival, need, start of jobs that follow each other without a gap
    for arrival, need, due in jobs:
        deadline = max(deadline, due)
        if arrival >= end:
            run = []
        run.append((arrival, need, max(arrival, end)))
        end = run[-1][2] + need
        if end > deadline:
            late += 1
            run = _without_worst(run)
            # Whoever was before the run ended before it began.
            end = run[-1][2] + run[-1][1] if run else 0
    return late


def _without_worst(run: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Leave out the job without which the last ends earliest, and move the others up; return the run's rest."""
    waits = [start - arrival for arrival, _, start in run]
    least = list(accumulate(reversed(waits[1:]), min))[::-1]
    gains = [min(job[1], wait) for job, wait in zip(run, least, strict=False)] + [run[-1][1]]
    worst = gains.index(max(gains))
    moved = accumulate(waits[worst + 1 :], min, initial=run[worst][1])
    next(moved)
    after = [(arrival, need, start - by) for (arrival, need, start), by in zip(run[worst + 1 :], moved, strict=True)]
    left = run[:worst] + after
    gaps = [place for place, (arrival, _, start) in enumerate(left) if start == arrival]
    return left[gaps[-1] :] if gaps else left
