"""Certificates of kind ``assignment``: what requests need of the machines that they may go to."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

from optsched.check.certificates.alone import latencies_alone
from optsched.check.certificates.machine import needs_of
from optsched.check.problem import feasible, problem_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.domain import replace
from optsched.model.instance import Instance
from optsched.model.objectives import Latency, Objective
from optsched.model.restrictions import Restrictions


def assignment_bound(machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of an ``assignment`` certificate; ``machines`` are their problems with all requests each.

    It has ``shares``, for every machine what a certificate of kind ``machine`` states, by which each request needs some
    of its time.

    For the makespan also ``weights``, an integer ≥ 0 for every machine, not all 0, and ``release_ps``. What requests
    that arrive then or later need of a machine that serves them, all of it fits between that and the end. The weighted
    sum over machines is at most that time and the sum of weights, and at least what each request needs of the machine
    where that, weighted, is least.

    The sum of latencies is at least that of one machine with the speed of all, which completes as many as possible by
    any time if the least work left goes first; no request takes less than alone, so that the i-th completion is also
    no earlier than the i-th of these. If all arrive together it is at least that of shortest first on R machines.
    """
    if certificate.get("kind") != "assignment":
        raise UnprovedError(f"kind is {shown(certificate.get('kind'))}, expected assignment")
    shares = certificate.get("shares")
    if not isinstance(shares, list) or len(shares) != len(machines) or not machines:
        raise UnprovedError(f"shares are {shown(shares)}, expected one for each of {len(machines)} machines")
    if any(machine.requests != machines[0].requests for machine in machines):
        raise UnprovedError("the machines are not of one problem")
    if objective not in {Objective.MAKESPAN, Objective.MEAN_E2E, Objective.MEAN_TTFT}:
        raise UnprovedError(f"kind assignment does not bound {objective.value}")
    requests, first = machines[0].requests, objective.latency is Latency.TTFT
    outputs = [1 if first else request.output for request in requests]
    options: list[dict[int, int]] = [{} for _ in requests]
    alone: list[list[int]] = [[] for _ in requests]
    for number, (machine, share) in enumerate(zip(machines, shares, strict=True)):
        if not isinstance(share, Mapping):
            raise UnprovedError(f"shares[{number}] is {shown(share)}, expected an object")
        problem = problem_of(machine, Restrictions())
        needs = needs_of(problem, share, outputs)
        for index, (need, latency) in enumerate(zip(needs, latencies_alone(problem), strict=True)):
            if feasible(problem_of(replace(machine, requests=(requests[index],)), Restrictions())):
                options[index][number] = need
                alone[index].append(latency[0 if first else 1])
    for index, choice in enumerate(options):
        if not choice:
            raise UnprovedError(f"request {index} fits no machine")
    start = min(request.arrival_ps for request in requests)
    arrivals = [request.arrival_ps - start for request in requests]
    if objective is Objective.MAKESPAN:
        return _makespan(certificate, len(machines), [r.arrival_ps for r in requests], options)
    least = [min(choice.values()) for choice in options]
    completed = sorted(arrival + min(latencies) for arrival, latencies in zip(arrivals, alone, strict=True))
    fast = ends_at_speed(sorted(zip(arrivals, least, strict=True)), len(machines))
    bound = sum(ceil(max(one, Fraction(other))) for one, other in zip(fast, completed, strict=True)) - sum(arrivals)
    if not any(arrivals):
        bound = max(bound, shortest_first(least, len(machines)))
    return bound


def _makespan(certificate: Mapping[str, Any], machines: int, arrivals: list[int], options: list[dict[int, int]]) -> int:
    weights, release = certificate.get("weights"), certificate.get("release_ps")
    if not isinstance(weights, list) or len(weights) != machines:
        raise UnprovedError(f"weights are {shown(weights)}, expected one for each of {machines} machines")
    if any(type(weight) is not int or weight < 0 for weight in weights) or not any(weights):
        raise UnprovedError(f"weights are {shown(weights)}, expected integers ≥ 0, not all 0")
    if type(release) is not int:
        raise UnprovedError(f"release_ps is {shown(release)}, expected an integer")
    total = sum(
        min(weights[machine] * need for machine, need in choice.items())
        for arrival, choice in zip(arrivals, options, strict=True)
        if arrival >= release
    )
    # With nothing left to serve the release itself would be no bound.
    return ceil(release + Fraction(total, sum(weights))) - min(arrivals) if release in arrivals else 0


def shortest_first(needs: Sequence[int], machines: int) -> int:
    """Return the sum of ends on that many machines, from 0 on, each next request where it ends first."""
    ends = [0] * machines
    total = 0
    for need in sorted(needs):
        ends.sort()
        ends[0] += need
        total += ends[0]
    return total


def ends_at_speed(jobs: list[tuple[int, int]], speed: int) -> list[Fraction]:
    """Return the ends on a machine of that speed, the least work left first, ascending; jobs by arrival."""
    ends: list[Fraction] = []
    left: list[Fraction] = []
    clock = Fraction(0)
    for position, (arrival, need) in enumerate(jobs):
        clock = max(clock, Fraction(arrival))
        insort(left, Fraction(need, speed))
        until = jobs[position + 1][0] if position + 1 < len(jobs) else None
        while left and (until is None or clock + left[0] <= until):
            clock += left.pop(0)
            ends.append(clock)
        if left and until is not None:
            left[0] -= until - clock
            clock = Fraction(until)
    return ends
