"""Certificates of kind ``percentile``: too few requests can have their tokens within a given time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optsched.check.certificates.alone import latencies_alone
from optsched.check.certificates.late import Job, least_late
from optsched.check.certificates.machine import needs_of
from optsched.check.problem import Problem
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Latency, Objective


def percentile_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the ``bound`` of a ``percentile`` certificate if it holds.

    Besides, it has ``piece_weights`` and ``share_weights`` as kind ``machine``. Let every request have 1 ps less than
    the bound, from its arrival until its first token or until its last. A request that takes longer even alone is not
    in time, and of the others at least as many are late as kind ``late`` says. If fewer than q percent of all are left,
    percentile q is not that small: as many requests as its rank would be in time.
    """
    if objective.percentile is None:
        raise UnprovedError(f"kind percentile bounds percentiles, the objective is {objective.value}")
    bound = certificate.get("bound")
    if type(bound) is not int:
        raise UnprovedError(f"bound is {shown(bound)}, expected an integer")
    first = objective.latency is Latency.TTFT
    needs = needs_of(problem, certificate, [1 if first else request.output for request in problem.requests])
    jobs = []
    for request, need, (ttft, e2e) in zip(problem.requests, needs, latencies_alone(problem), strict=True):
        if (ttft if first else e2e) < bound:
            jobs.append(Job(request.arrival_ps, request.arrival_ps + bound - 1, need))
    count, in_time = len(needs), len(jobs) - least_late(jobs)
    if 100 * in_time >= objective.percentile * count:
        raise UnprovedError(f"bound is {bound}, but {in_time} of {count} requests may take less")
    return bound
