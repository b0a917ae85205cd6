"""Certificates of kind ``roles``: machines that only prefill, or only decode, and moves between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import ceil
from typing import Any, NamedTuple

from optsched.check.certificates.alone import latencies_alone, objective_at
from optsched.check.certificates.assignment import ends_at_speed, shortest_first
from optsched.check.certificates.machine import needs_of
from optsched.check.problem import Problem, problem_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.cluster import Role
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions


class _Way(NamedTuple):
    """A way to serve a request: on one machine, or from a machine that prefills to another one."""

    first: int
    """Index of the machine that makes the first token."""
    last: int
    """Of the one that makes the last token."""
    move: int
    """What the move between them takes at least, ps; 0 if there is none."""


class _Part(NamedTuple):
    """What a request needs of a group of machines: not before ``release``, and ``tail`` passes after it; all in ps."""

    release: int
    need: int
    tail: int


def roles_bound(instance: Instance, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of a ``roles`` certificate.

    Every way of serving a request is listed (`_ways`). It takes at least the first token alone on its first machine,
    the move, and the other tokens alone on its last one. An objective that grows with every latency is at least what
    it is at the least of these.

    That is all, unless the certificate has ``shares``, for every machine what a certificate of kind ``machine`` states,
    by which a request needs some of its time for the first token, and some for the others. Then three groups of
    machines are looked at: those that make first tokens, which is needed from the arrival on; those that make the
    others, needed from the least TTFT on, and the move if no way is without; and all of them. In a stretch of time a
    group gives no more than its number of machines times that. For the makespan a certificate names the group as
    ``pool``, and ``release_ps`` and ``tail_ps``: only requests that come then or later, and after whose first token at
    least that has to pass, are counted, and in the other two groups the tail is 0. The sums of ends are at least those
    of one machine with the speed of the group, the least work left first; with the i-th end no earlier than the i-th
    alone.
    """
    if instance.is_cached or any(machine.rules.migration for machine in instance.machines):
        raise UnprovedError("kind roles covers neither caches nor the rule migration")
    if not objective.is_monotone:
        raise UnprovedError(f"kind roles does not bound {objective.value}")
    whole = [instance.on(place) for place in range(len(instance.machines))]
    known = {each: problem_of(each, Restrictions()) for each in dict.fromkeys(whole)}
    ways = _ways(instance, [known[each] for each in whole])
    latencies = {each: latencies_alone(problem) for each, problem in known.items()}
    alone = [latencies[each] for each in whole]
    requests = instance.requests
    ttft = [min(alone[way.first][r][0] for way in ways[r]) for r in range(len(requests))]
    rest = [
        [way.move + (alone[way.last][r][1] - alone[way.last][r][0] if requests[r].output > 1 else 0) for way in ways[r]]
        for r in range(len(requests))
    ]
    e2e = [
        min(alone[way.first][r][0] + after for way, after in zip(ways[r], rest[r], strict=True))
        for r in range(len(requests))
    ]
    bound = objective_at(requests, list(zip(ttft, e2e, strict=True)), objective)
    if "shares" not in certificate:
        return bound
    start = min(request.arrival_ps for request in requests)
    arrivals = [request.arrival_ps - start for request in requests]
    tails = [min(after) for after in rest]
    needs = _needs(instance, [known[each] for each in whole], certificate["shares"])
    first, later, everything = [], [], []
    for r, request in enumerate(requests):
        begun = [needs[way.first][r][0] for way in ways[r]]
        rest_of = [needs[way.last][r][1] for way in ways[r]]
        first.append(_Part(arrivals[r], min(begun), tails[r]))
        everything.append(_Part(arrivals[r], min(map(sum, zip(begun, rest_of, strict=True))), 0))
        if request.output > 1:
            move = min(way.move for way in ways[r])
            later.append(_Part(arrivals[r] + ttft[r] + move, min(rest_of), 0))
    roles = [machine.role for machine in instance.machines]
    pools = {
        "first": (first, len(roles) - roles.count(Role.DECODE)),
        "later": (later, len(roles) - roles.count(Role.PREFILL)),
        "all": (everything, len(roles)),
    }
    if objective is Objective.MAKESPAN:
        return max(bound, _makespan(certificate, pools, start))
    waited = _ends(*pools["first"], [a + f for a, f in zip(arrivals, ttft, strict=True)]) - sum(arrivals)
    if objective is Objective.MEAN_TTFT:
        return max(bound, waited)
    if objective is not Objective.MEAN_E2E:
        raise UnprovedError(f"kind roles with shares does not bound {objective.value}")
    ends = [a + e for a, e in zip(arrivals, e2e, strict=True)]
    single = sum(end for end, request in zip(ends, requests, strict=True) if request.output == 1)
    longer = [end for end, request in zip(ends, requests, strict=True) if request.output > 1]
    return max(
        bound,
        waited + sum(tails),
        _ends(*pools["later"], longer) + single - sum(arrivals),
        _ends(*pools["all"], ends) - sum(arrivals),
    )


def _ways(instance: Instance, problems: Sequence[Problem]) -> list[list[_Way]]:
    """Return all ways to serve each request, of equal machines by the first."""
    machines, links = instance.machines, instance.links
    kinds = [place for place, machine in enumerate(machines) if machines.index(machine) == place]

    def holds(place: int, tokens: int) -> bool:
        return problems[place].blocks_of(tokens) <= problems[place].blocks

    found = []
    for r, request in enumerate(instance.requests):
        whole = request.input + request.output - 1
        begins = [
            place
            for place in kinds
            if machines[place].role is not Role.DECODE
            and (problems[place].chunked or request.input <= problems[place].limits.prefill_tokens)
        ]
        ways = [
            _Way(place, place, 0)
            for place in begins
            if (machines[place].role is Role.BOTH or request.output == 1) and holds(place, whole)
        ]
        if request.output > 1:
            copied = links.base_ps + (0 if links.layerwise else links.kv_ps * request.input)
            sources = [one for one in begins if machines[one].role is Role.PREFILL and holds(one, request.input)]
            targets = [other for other in kinds if machines[other].role is not Role.PREFILL and holds(other, whole)]
            ways += [_Way(one, other, copied) for one, other in product(sources, targets)]
        if not ways:
            raise UnprovedError(f"request {r} fits no machine")
        found.append(ways)
    return found


def _needs(instance: Instance, problems: Sequence[Problem], shares: object) -> list[list[tuple[int, int]]]:
    """Return for every machine what requests need of it for their first token, and for the others."""
    if not isinstance(shares, list) or len(shares) != len(problems):
        raise UnprovedError(f"shares are {shown(shares)}, expected one for each of {len(problems)} machines")
    found: list[list[tuple[int, int]]] = []
    for place, (problem, share) in enumerate(zip(problems, shares, strict=True)):
        if not isinstance(share, Mapping):
            raise UnprovedError(f"shares[{place}] is {shown(share)}, expected an object")
        begun = needs_of(problem, share, [1] * len(problem.requests))
        prefills = instance.machines[place].role is Role.PREFILL
        ended = begun if prefills else needs_of(problem, share, [request.output for request in problem.requests])
        # Each is rounded down: the exact difference is more than that of the two less 1.
        found.append([(one, max(other - one - 1, 0)) for one, other in zip(begun, ended, strict=True)])
    return found


def _makespan(certificate: Mapping[str, Any], pools: Mapping[str, tuple[list[_Part], int]], start: int) -> int:
    pool, release, tail = (certificate.get(name) for name in ("pool", "release_ps", "tail_ps"))
    if not isinstance(pool, str) or pool not in pools:
        raise UnprovedError(f"pool is {shown(pool)}, expected one of {', '.join(pools)}")
    if type(release) is not int or type(tail) is not int or tail < 0:
        raise UnprovedError(f"release_ps and tail_ps are {shown([release, tail])}, expected integers, the second ≥ 0")
    parts, machines = pools[pool]
    counted = [part for part in parts if start + part.release >= release and part.tail >= tail]
    # With nothing left to do, neither the release nor the tail would be a bound.
    return release - start + ceil(Fraction(sum(part.need for part in counted), machines)) + tail if counted else 0


def _ends(parts: Sequence[_Part], machines: int, alone: Sequence[int]) -> int:
    """Return the least sum of ends of what a group of machines does, the i-th no earlier than the i-th alone."""
    fast = ends_at_speed(sorted((part.release, part.need) for part in parts), machines)
    found = sum(ceil(max(one, Fraction(other))) for one, other in zip(fast, sorted(alone), strict=True))
    if len({part.release for part in parts}) == 1:
        found = max(found, len(parts) * parts[0].release + shortest_first([part.need for part in parts], machines))
    return found
