r"""Bounds for machines of which some only prefill and some only decode: what each pool has to do, and what follows it.

A request's first token comes from a machine of role ``prefill`` or ``both``. After it, a request with more tokens stays
on a machine of role ``both``, or moves from one of role ``prefill`` to one of another role, for at least the time
:math:`ℓ_r` of a copy of :math:`I_r` tokens.

*Times.* Alone on the machine where that takes least, r has its first token after :math:`f_r` or more. Its last token
comes at least :math:`q_r` later: the least time of tokens 2 to O on a machine of role ``both`` where it may start, or
:math:`ℓ_r` and the least time of these tokens on a machine that it may move to; 0 if O = 1.

*Pools.* By the rate and the split of bases of `optsched.bounds.machine` machine m gives r at least :math:`p^1_{rm}` of
its time for the first token, and :math:`p^+_{rm}` for the others, as own times and shares of bases add up over tokens.

===========  ==============  ==================================================================  ===================
pool         machines        need of r                                                           from … on
===========  ==============  ==================================================================  ===================
``first``    not ``decode``  :math:`\min p^1_{rm}`                                               :math:`T_r`
``later``    not ``prefill`` :math:`\min p^+_{rm}`, 0 if O = 1                                   :math:`T_r + f_r`,
                                                                                                 and :math:`ℓ_r` if it
                                                                                                 has to move
``all``      all             :math:`\min p^1_{rm} + p^+_{rm}` where it stays, or
                             :math:`\min p^1_{rm} + \min p^+_{rm}` where it moves                :math:`T_r`
===========  ==============  ==================================================================  ===================

Theorem
-------
*Any objective that rises with latencies* is at least its value at TTFT :math:`f_r` and e2e latency
:math:`\min (f_r + q_r)`, the minimum over staying and moving.

*Makespan.* Let a pool have R machines. For any :math:`t_0` and :math:`q ≥ 0` the last batch ends no earlier than
:math:`t_0 + ⌈\sum p_r / R⌉ + q`, the sum over requests of the pool that come at :math:`t_0` or later and, in the pool
``first``, have :math:`q_r ≥ q`; in the other pools q = 0.

*Sums.* The i-th end in a pool is no earlier than the i-th of one machine that is R times as fast and always runs the
request with the least work left, nor than the i-th of the times above. If all come together, the sum of ends is also
at least :math:`\sum_k ⌈k/R⌉\, p_{(k)}`. The sum of TTFT is what the pool ``first`` has, less the arrivals; that of e2e
latencies is at least the sum of TTFT and :math:`\sum q_r`; what the pool ``later`` has, and the times alone of requests
with one token; and what the pool ``all`` has.

Proof
-----
The batches that run r do not overlap, and each lasts at least as long as if it ran r alone (`optsched.bounds.alone`);
a move starts when the first token is there, and nothing runs r until it has ended. For the pools the proofs are those
of `assignment`: what machines give to requests between :math:`t_0` and the end of the pool's last batch is at most R
times that stretch, and when the last request of ``first`` has its first token, :math:`q_r ≥ q` has still to pass. ∎

*Tight* where machines are not full. *Loose* where decodes of many requests share batches: nothing here says that they
wait for each other, beyond their shares of the base.

Conditions
----------
No caches, and no rule ``migration``. `optsched.check.certificates.roles.roles_bound` computes all of it anew from the
rates and splits that a certificate states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optsched.bounds.alone import Alone, alone
from optsched.bounds.bound import Bound
from optsched.bounds.machine import Needs, share_certificate
from optsched.model.cluster import Role
from optsched.model.instance import Instance, Machine
from optsched.model.objectives import Objective, value_of
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.routing.fleet import equal_machines
from optsched_formulations.routing.speedy import ends_of_fast_machine, ends_offline

POOLS = ("first", "later", "all")
_POOLED = (Objective.MAKESPAN, Objective.MEAN_TTFT, Objective.MEAN_E2E)
_TAILS = 8
"""Values of q that are tried, evenly spaced among those of requests."""

_Pair = tuple[int, int]
"""Of a request on a machine, up to the first token, and to the last or what is left."""


@dataclass(frozen=True)
class _Options:
    """What a request may do, by kind of machine: start and stay, start and leave, and go to."""

    stays: list[_Pair]
    leaves: list[_Pair]
    targets: list[_Pair]


@dataclass(frozen=True)
class _Job:
    """A request in a pool: from when on, how much of the pool's time, and what follows at least; times in ps."""

    release: int
    need: int
    tail: int


@dataclass(frozen=True)
class _Times:
    """Least times of a request: to its first token, from there to the last, both together, and of its move."""

    first: int
    rest: int
    e2e: int
    link: int


def roles_bound(cluster: Instance, objective: Objective) -> Bound | None:
    """Bound an objective that rises with latencies; the makespan and means of TTFT and e2e latency by pools, too."""
    if not objective.is_monotone:
        return None
    machines = cluster.machines
    if cluster.is_cached or any(machine.rules.migration for machine in machines):
        raise UnsupportedError("caches, or the rule migration, on machines with roles")
    kinds = dict.fromkeys(equal_machines(cluster))
    whole = {kind: cluster.on(kind) for kind in kinds}
    times = _times(cluster, {kind: alone(instance) for kind, instance in whole.items()})
    value = value_of(cluster.requests, objective, [each.first for each in times], [each.e2e for each in times])
    best = Bound(value, {"kind": "roles"})
    if objective not in _POOLED:
        return best
    shares = {kind: list(_shares(instance, machines[kind].role)) for kind, instance in whole.items()}
    for choice in range(max(map(len, shares.values()))):
        chosen = {kind: listed[min(choice, len(listed) - 1)] for kind, listed in shares.items()}
        pools = _pools(cluster, times, {kind: needs for kind, (needs, _) in chosen.items()})
        stated = {"kind": "roles", "shares": [chosen[kind][1] for kind in equal_machines(cluster)]}
        if objective is Objective.MAKESPAN:
            found = _makespan(cluster, pools, stated)
        else:
            found = Bound(_latencies(cluster, times, pools, first=objective is Objective.MEAN_TTFT), stated)
        if found.value > best.value:
            best = found
    return best


def _options(cluster: Instance, index: int, values: Mapping[int, Sequence[_Pair]]) -> _Options:
    """Return what is known of a request on each kind of machine that it may start on or move to."""
    request = cluster.requests[index]
    stays, leaves, targets = list[_Pair](), list[_Pair](), list[_Pair]()
    for kind, known in values.items():
        machine = cluster.machines[kind]
        holds_all = _holds(machine, request.peak_tokens)
        starts = machine.rules.chunked_prefill or request.input <= machine.limits.prefill_tokens
        if machine.role is not Role.PREFILL and holds_all:
            targets.append(known[index])
        if machine.role is Role.BOTH and holds_all and starts:
            stays.append(known[index])
        if machine.role is Role.PREFILL and _holds(machine, request.input) and starts:
            leaves.append(known[index])
    if request.output == 1:
        return _Options(stays + leaves, [], [])
    return _Options(stays, leaves if targets else [], targets)


def _holds(machine: Machine, tokens: int) -> bool:
    return machine.limits.occupied(tokens) <= machine.limits.kv_capacity


def _times(cluster: Instance, least: dict[int, Alone]) -> list[_Times]:
    links, found = cluster.links, []
    latencies = {kind: list(zip(known.ttft, known.e2e, strict=True)) for kind, known in least.items()}
    for index, request in enumerate(cluster.requests):
        options = _options(cluster, index, latencies)
        # Layer by layer a copy may have been made when its prefill ends.
        link = links.base_ps if links.layerwise else links.copy_ps(request.input)
        firsts = [first for first, _ in options.stays + options.leaves]
        rests = [last - first for first, last in options.stays]
        ends = [last for _, last in options.stays]
        if options.leaves:
            rest = link + min(last - first for first, last in options.targets)
            rests.append(rest)
            ends.append(min(first for first, _ in options.leaves) + rest)
        found.append(_Times(min(firsts), min(rests), min(ends), 0 if options.stays else link))
    return found


def _shares(machine: Instance, role: Role) -> Iterator[tuple[list[_Pair], dict[str, Any]]]:
    """Yield what requests need of a machine for their first token and for the others, and what certificates state."""
    outputs = [1 if role is Role.PREFILL else request.output for request in machine.requests]
    first, whole = Needs(machine, [1] * len(outputs)), Needs(machine, outputs)
    for rate, split, needs in whole.shares():
        # Both are rounded down, so that their difference may be too large by less than 1.
        pairs = [(begin, max(0, need - begin - 1)) for need, begin in zip(needs, first.of(rate, split), strict=True)]
        yield pairs, share_certificate("machine", rate, split)


def _pools(
    cluster: Instance, times: Sequence[_Times], needs: Mapping[int, Sequence[_Pair]]
) -> dict[str, tuple[int, list[_Job]]]:
    """Return the number of machines and the jobs of every pool."""
    jobs: dict[str, list[_Job]] = {pool: [] for pool in POOLS}
    arrivals = cluster.arrivals_ps
    for index, (request, least) in enumerate(zip(cluster.requests, times, strict=True)):
        options, arrival = _options(cluster, index, needs), arrivals[index]
        firsts = [first for first, _ in options.stays + options.leaves]
        jobs["first"].append(_Job(arrival, min(firsts), least.rest))
        wholes = [first + later for first, later in options.stays]
        if options.leaves:
            wholes.append(min(first for first, _ in options.leaves) + min(later for _, later in options.targets))
        jobs["all"].append(_Job(arrival, min(wholes), 0))
        if request.output > 1:
            jobs["later"].append(
                _Job(arrival + least.first + least.link, min(later for _, later in options.targets), 0)
            )
    roles = [machine.role for machine in cluster.machines]
    counts = {
        "first": sum(role is not Role.DECODE for role in roles),
        "later": sum(role is not Role.PREFILL for role in roles),
        "all": len(roles),
    }
    return {pool: (counts[pool], jobs[pool]) for pool in POOLS}


def _makespan(cluster: Instance, pools: dict[str, tuple[int, list[_Job]]], stated: dict[str, Any]) -> Bound:
    best = Bound(0, stated)
    for pool, (machines, jobs) in pools.items():
        tails = sorted({job.tail for job in jobs})
        for tail in tails[:: max(1, len(tails) // _TAILS)]:
            total = 0
            for job in sorted((job for job in jobs if job.tail >= tail), key=lambda job: -job.release):
                total += job.need
                value = job.release - (-total // machines) + tail
                if value > best.value:
                    chosen = {"pool": pool, "release_ps": job.release + cluster.start_ps, "tail_ps": tail}
                    best = Bound(value, stated | chosen)
    return best


def _latencies(
    cluster: Instance, times: Sequence[_Times], pools: dict[str, tuple[int, list[_Job]]], *, first: bool
) -> int:
    arrivals = cluster.arrivals_ps

    def ends(pool: str, least: Sequence[int]) -> int:
        """Return the least sum of ends in a pool, no i-th end earlier than the i-th of ``least``."""
        machines, jobs = pools[pool]
        releases, needs = [job.release for job in jobs], [job.need for job in jobs]
        found = sum(map(max, ends_of_fast_machine(releases, needs, machines), sorted(least)))
        if len(set(releases)) == 1:
            found = max(found, releases[0] * len(jobs) + ends_offline(needs, machines))
        return found

    waited = ends("first", [at + least.first for at, least in zip(arrivals, times, strict=True)]) - sum(arrivals)
    if first:
        return waited
    alone_ends = [at + least.e2e for at, least in zip(arrivals, times, strict=True)]
    single = [end for end, request in zip(alone_ends, cluster.requests, strict=True) if request.output == 1]
    others = [end for end, request in zip(alone_ends, cluster.requests, strict=True) if request.output > 1]
    return max(
        waited + sum(least.rest for least in times),
        ends("later", others) + sum(single) - sum(arrivals),
        ends("all", alone_ends) - sum(arrivals),
    )
