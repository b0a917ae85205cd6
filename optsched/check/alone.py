"""Certificates of kind ``alone``: what every request takes if it has the machine to itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optsched.check.problem import Problem, percentile_of, pieces_of
from optsched.check.work import least_sum
from optsched.model.instance import Request
from optsched.model.objectives import Latency, Objective


def alone_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of an ``alone`` certificate, which has nothing but its kind.

    A request's batches do not overlap and none begins before it arrives; each lasts at least as long as if it ran that
    request alone. So its latencies are at least those of `latencies_alone`, and any objective is at least what it is at
    these latencies: all of them grow with every latency.
    """
    requests = problem.requests
    pairs = latencies_alone(problem)
    first, last = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if objective.percentile is not None:
        return percentile_of(first if objective.latency is Latency.TTFT else last, objective.percentile)
    arrivals = [request.arrival_ps for request in requests]
    return {
        Objective.MAKESPAN: max(map(sum, zip(arrivals, last, strict=True))) - min(arrivals),
        Objective.MEAN_TTFT: sum(first),
        Objective.MAX_TTFT: max(first),
        Objective.MEAN_E2E: sum(last),
        Objective.MAX_E2E: max(last),
        Objective.WEIGHTED_E2E: sum(request.weight * end for request, end in zip(requests, last, strict=True)),
        Objective.SLO_MISSES: sum(map(misses, requests, pairs)),
    }[objective]


def misses(request: Request, latencies: tuple[int, int]) -> bool:
    """Whether a TTFT and an e2e latency are beyond an SLO of the request."""
    slos = (request.slo_ttft_ps, request.slo_e2e_ps)
    return any(slo is not None and slo < latency for slo, latency in zip(slos, latencies, strict=True))


def latencies_alone(problem: Problem) -> list[tuple[int, int]]:
    """Return the least TTFT and e2e latency of every request.

    A fill of n tokens takes s ≥ ceil(n / P) steps, one if fills are whole. Their non-attention times add up to
    s base + n token or more under every piece, their quadratic terms to n². Token k ≥ 2 takes a batch that decodes
    it, or ends a fill of all I + k - 1 tokens if the request may be evicted.
    """
    cost = problem.cost

    def fill(tokens: int) -> int:
        steps = problem.fewest_steps(tokens)
        shared = [steps * base + tokens * token for base, token in pieces_of(cost)]
        return max(shared) + tokens * tokens * cost.prefill_sq + steps * cost.prefill_req

    def decode(tokens: int) -> int:
        return single + cost.decode_kv * (tokens - 1) + cost.decode_req

    single = max(base + token for base, token in pieces_of(cost))
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for request in problem.requests:
        shape = (request.input, request.output)
        if shape not in found:
            first = fill(request.input)
            found[shape] = (first, first + least_sum(problem, *shape, fill, decode))
    return [found[request.input, request.output] for request in problem.requests]
