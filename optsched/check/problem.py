"""What an instance and a policy class permit, read from docs/problem.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request
from optsched.model.restrictions import Restrictions

Number = TypeVar("Number", int, int | float)


@dataclass(frozen=True)
class Problem:
    """An instance and what its rules, less the restrictions, still permit.

    ``runs`` is the most runs of a batch, ``evictions`` the most evictions of a schedule, None for any number;
    ``queue`` holds the requests in the order in which first runs must stand, if there is one.
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
    forbidden = set(restrictions.forbid)
    eviction = instance.rules.eviction and "eviction" not in forbidden and restrictions.max_evictions != 0
    caps = [cap for cap in (instance.limits.batch_requests, restrictions.max_batch) if cap is not None]
    queue = restrictions.order
    if "reordering" in forbidden:
        arrivals = [(request.arrival_ps, index) for index, request in enumerate(instance.requests)]
        queue = tuple(index for _, index in sorted(arrivals))
    return Problem(
        requests=instance.requests,
        limits=instance.limits,
        cost=instance.cost,
        hybrid=instance.rules.hybrid and "hybrid" not in forbidden,
        chunked=instance.rules.chunked_prefill and "chunked" not in forbidden,
        eviction=eviction,
        swap=instance.rules.swap and "swap" not in forbidden,
        runs=min(caps, default=None),
        evictions=restrictions.max_evictions if eviction else None,
        queue=queue,
    )


def feasible(problem: Problem) -> bool:
    """Whether each request can be served alone, so that one after another is a schedule."""
    return all(
        problem.blocks_of(request.input + request.output - 1) <= problem.blocks
        and (problem.chunked or request.input <= problem.limits.prefill_tokens)
        for request in problem.requests
    )


def pieces_of(cost: CostModel) -> tuple[tuple[int, int], ...]:
    """Return the affine pieces ``(base, token)`` of the non-attention time, each with what the CPU takes of a batch."""
    return tuple((base + cost.cpu_batch, token) for base, token in ((cost.base, cost.token), *cost.pieces))


def percentile_of(values: Sequence[Number], q: int) -> Number:
    """Return the least value that at least q percent of the values do not exceed: the ceil(q n / 100)-th smallest."""
    return sorted(values)[(q * len(values) + 99) // 100 - 1]
