"""Certificates of kind ``alone``: what every request takes if it has the machine to itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from optsched.check.certificates.shared.work import least_sum
from optsched.check.problem import Problem, feasible, percentile_of, pieces_of, problem_of, tokens_ps
from optsched.check.reading import UnprovedError
from optsched.model.instance import Instance, Request
from optsched.model.objectives import Latency, Objective
from optsched.model.restrictions import Restrictions


def alone_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of an ``alone`` certificate, which has nothing but its kind.

    A request's batches do not overlap and none begins before it arrives; each lasts at least as long as if it ran that
    request alone. So its latencies are at least those of `latencies_alone`, and an objective that grows with every
    latency is at least what it is at these latencies.

    The other two look at the times between tokens. All batches that produce token k ≥ 2, a decode or the steps of a
    refill, lie between the ends of token k - 1 and of token k. So this time is at least that of the cheaper, and the
    time from the first token to the last at least their sum, which `latencies_alone` tells apart; and percentile 99 of
    the times at least percentile 99 of these least times.
    """
    if objective is Objective.P99_TBT:
        return _between_tokens(problem, 99)
    return objective_at(problem.requests, latencies_alone(problem), objective)


def alone_bound_of_several(machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of several machines; ``machines`` are their problems with all requests each.

    A request takes no less than on the machine where it takes least, of those that it fits.
    """
    if not objective.is_monotone:
        raise UnprovedError(f"kind alone does not bound {objective.value} of several machines")
    requests = machines[0].requests
    options: list[list[tuple[int, int]]] = [[] for _ in requests]
    for problem in dict.fromkeys(problem_of(machine, Restrictions()) for machine in machines):
        for request, latencies, choice in zip(requests, latencies_alone(problem), options, strict=True):
            if feasible(replace(problem, requests=(request,))):
                choice.append(latencies)
    for index, choice in enumerate(options):
        if not choice:
            raise UnprovedError(f"request {index} fits no machine")
    pairs = [(min(first for first, _ in choice), min(last for _, last in choice)) for choice in options]
    return objective_at(requests, pairs, objective)


def objective_at(requests: Sequence[Request], pairs: Sequence[tuple[int, int]], objective: Objective) -> int:
    """Return an objective's value at TTFT and e2e latencies, but for percentiles of times between tokens."""
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
        Objective.MEAN_TPOT: sum(
            (end - begin) // (request.output - 1)
            for request, (begin, end) in zip(requests, pairs, strict=True)
            if request.output >= 2
        ),
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
    single, cost = tokens_ps(problem.cost, 1), problem.cost

    def decode(tokens: int) -> int:
        return single + cost.decode_kv * (tokens - 1) + cost.decode_req

    fill = partial(_fill_ps, problem)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for request in problem.requests:
        shape = (request.input, request.output)
        if shape not in found:
            first = fill(request.input)
            found[shape] = (first, first + least_sum(problem, *shape, fill, decode))
    return [found[request.input, request.output] for request in problem.requests]


def _fill_ps(problem: Problem, tokens: int) -> int:
    """Return the least time of the batches that fill ``tokens`` tokens, all of one request."""
    steps = problem.fewest_steps(tokens)
    shared = [steps * base + tokens * token for base, token in pieces_of(problem.cost)]
    return max(shared) + tokens * tokens * problem.cost.prefill_sq + steps * problem.cost.prefill_req


def _between_tokens(problem: Problem, q: int) -> int:
    """Return percentile q of the least times between consecutive tokens, 0 if there are none.

    Token k ≥ 2 of a request is decoded with I + k - 1 tokens cached, or filled with that many, and both take longer the
    more there are. Refills without chunks may be of up to P tokens. So with a decode that takes at most x for the first
    d of its tokens, and a refill for the first f, the least of both does for the first max(d, f).
    """
    shapes = Counter((request.input, request.output - 1) for request in problem.requests if request.output >= 2)
    times = sum(later * count for (_, later), count in shapes.items())
    if not times:
        return 0
    single, growth, longest = tokens_ps(problem.cost, 1) + problem.cost.decode_req, problem.cost.decode_kv, 0
    known: list[tuple[int, int, int, int, int]] = []
    for (prompt, later), count in shapes.items():
        shortest = single + growth * prompt
        longest = max(longest, shortest + growth * (later - 1))
        refills = 0
        if problem.may_refill(prompt + 1) and _fill_ps(problem, prompt + 1) < shortest + growth * (later - 1):
            refills = later if problem.chunked else min(later, problem.limits.prefill_tokens - prompt)
        known.append((count, prompt, later, shortest, refills))

    def at_most(limit: int) -> int:
        found = 0
        for count, prompt, later, shortest, refills in known:
            decoded = 0
            if limit >= shortest:
                decoded = min(later, (limit - shortest) // growth + 1) if growth else later
            found += count * max(decoded, _filled(problem, prompt, refills, limit))
        return found

    below, reached = -1, longest
    while reached - below > 1:
        middle = (below + reached) // 2
        if 100 * at_most(middle) >= q * times:
            reached = middle
        else:
            below = middle
    return reached


def _filled(problem: Problem, prompt: int, refills: int, limit: int) -> int:
    """Return how many of the fills of prompt + 1, …, prompt + refills tokens take at most ``limit``."""
    within, beyond = 0, refills + 1
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if _fill_ps(problem, prompt + middle) <= limit:
            within = middle
        else:
            beyond = middle
    return within
