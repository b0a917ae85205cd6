"""What an instance and a policy class permit, read from docs/problem.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from optsched.model.cluster import Role
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Machine, Request, Rules
from optsched.model.restrictions import Restrictions

Number = TypeVar("Number", int, int | float)


@dataclass(frozen=True)
class Problem:
    """An instance and what its rules, less the restrictions, still permit.

    ``runs`` is the most runs of a batch, ``evictions`` the most evictions of a schedule, None for any number;
    ``queue`` holds the requests in the order in which first runs must come, if there is one. ``added`` are the names of
    all rules beyond the first three that are not at their defaults.
    """

    requests: tuple[Request, ...]
    limits: Limits
    cost: CostModel
    hybrid: bool
    chunked: bool
    eviction: bool
    swap: bool
    runs: int | None
    evictions: int | None
    queue: tuple[int, ...]
    added: tuple[str, ...]

    @cached_property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """`pieces_of` its cost."""
        return pieces_of(self.cost)

    @property
    def blocks(self) -> int:
        """Whole blocks that the KV cache has."""
        return self.limits.kv_tokens // self.limits.kv_block

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that ``tokens`` cached tokens occupy, the last one perhaps in part."""
        return (tokens + self.limits.kv_block - 1) // self.limits.kv_block

    def fewest_steps(self, tokens: int) -> int:
        """Return how many prefill steps a fill of ``tokens`` takes at least: ceil(tokens / P), or 1 if it is whole."""
        return (tokens - 1) // self.limits.prefill_tokens + 1 if self.chunked else 1

    def may_refill(self, tokens: int) -> bool:
        """Whether a request may be evicted and filled again with ``tokens``."""
        return self.eviction and (self.chunked or tokens <= self.limits.prefill_tokens)


def problem_of(instance: Instance, restrictions: Restrictions) -> Problem:
    """Return what an instance of one machine and the restrictions leave."""
    instance.require_plain()
    return _restricted(instance.machines[0], instance.requests, restrictions)


def problems_of(instance: Instance, restrictions: Restrictions) -> tuple[Problem, ...]:
    """Return what every machine of an instance and the restrictions leave, each for all requests.

    Evictions are limited together, and what a problem says of them counts for the sum.
    """
    found: dict[tuple[Limits, Rules, CostModel], Problem] = {}
    problems = []
    for machine in instance.machines:
        key = machine.limits, machine.rules, machine.cost
        if key not in found:
            found[key] = _restricted(machine, instance.requests, restrictions)
        problems.append(found[key])
    return tuple(problems)


def _restricted(machine: Machine, requests: tuple[Request, ...], restrictions: Restrictions) -> Problem:
    forbidden = set(restrictions.forbid)
    eviction = machine.rules.eviction and "eviction" not in forbidden and restrictions.max_evictions != 0
    caps = [cap for cap in (machine.limits.batch_requests, restrictions.max_batch) if cap is not None]
    queue = restrictions.order
    if "reordering" in forbidden:
        arrivals = [(request.arrival_ps, index) for index, request in enumerate(requests)]
        queue = tuple(index for _, index in sorted(arrivals))
    return Problem(
        requests=requests,
        limits=machine.limits,
        cost=machine.cost,
        hybrid=machine.rules.hybrid and "hybrid" not in forbidden,
        chunked=machine.rules.chunked_prefill and "chunked" not in forbidden,
        eviction=eviction,
        swap=machine.rules.swap and "swap" not in forbidden,
        runs=min(caps, default=None),
        evictions=restrictions.max_evictions if eviction else None,
        queue=queue,
        added=machine.rules.added,
    )


def feasible(problem: Problem) -> bool:
    """Whether each request can be served alone, so that one after another is a schedule."""
    return all(
        problem.blocks_of(request.input + request.output - 1) <= problem.blocks
        and (problem.chunked or request.input <= problem.limits.prefill_tokens)
        for request in problem.requests
    )


def feasible_cluster(instance: Instance, restrictions: Restrictions) -> bool:
    """Whether each request, alone and with nothing cached, fits a machine that it may be routed to.

    A machine of role ``prefill`` needs room for I tokens, and, unless the first token is the last, there must be one of
    another role with room for I + O − 1.
    """
    pairs = list(dict.fromkeys(zip(instance.machines, problems_of(instance, restrictions), strict=True)))

    def fits(problem: Problem, tokens: int) -> bool:
        return problem.blocks_of(tokens) <= problem.blocks

    def served(request: Request) -> bool:
        whole = request.input + request.output - 1
        ends = request.output == 1 or any(
            machine.role is not Role.PREFILL and fits(problem, whole) for machine, problem in pairs
        )
        return any(
            machine.role is not Role.DECODE
            and (problem.chunked or request.input <= problem.limits.prefill_tokens)
            and (fits(problem, whole) if machine.role is Role.BOTH else ends and fits(problem, request.input))
            for machine, problem in pairs
        )

    return all(map(served, instance.requests))


def pieces_of(cost: CostModel) -> tuple[tuple[int, int], ...]:
    """Return the affine pieces ``(base, token)`` of the non-attention time, each with what the CPU takes of a batch."""
    return tuple((base + cost.cpu_batch, token) for base, token in ((cost.base, cost.token), *cost.pieces))


def tokens_ps(cost: CostModel, tokens: int) -> int:
    """Return the time of a batch of some tokens, attention and prefill steps aside: f of the proofs."""
    return max(base + token * tokens for base, token in pieces_of(cost))


def percentile_of(values: Sequence[Number], q: int) -> Number:
    """Return the least value that at least q percent of the values do not exceed: the ceil(q n / 100)-th smallest."""
    return sorted(values)[(q * len(values) + 99) // 100 - 1]
