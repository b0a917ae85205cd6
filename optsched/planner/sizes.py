"""The arrays that the planner works on, and instances too large for them."""

from __future__ import annotations

from collections import Counter

from optsched.arrays import InstanceArrays, arrays_of
from optsched.model.instance import Instance
from optsched.model.restrictions import Restrictions

LEAST_CHUNK = 16
"""Least tokens of a chunk that is not the last one of its prompt, unless a budget is smaller."""
MOST_REFILLS = 4
"""Mean number of evictions per request at which list scheduling is given up."""
_MOST_TIME = 1 << 61
_MOST_RUNS = 100_000_000


class TooLargeToPlanError(Exception):
    """Times could exceed 64 bits, or the arrays of a schedule the machine's memory."""


def arrays_to_plan(instance: Instance, restrictions: Restrictions) -> InstanceArrays:
    """Return the arrays of an instance to whose rules the restrictions have been applied.

    Raises
    ------
    TooLargeToPlanError
        If a schedule's times could exceed 64 bits, or it could have too many runs.
    """
    requests = instance.requests
    shapes = Counter((request.input, request.output) for request in requests)
    alone = sum(times * _alone_ps(instance, *shape) for shape, times in shapes.items())
    # Any requests may be evicted, each any number of times.
    refills = MOST_REFILLS * len(requests) * max(_fill_ps(instance, *shape) for shape in shapes)
    if max(request.arrival_ps for request in requests) + alone + refills > _MOST_TIME:
        raise TooLargeToPlanError("times beyond 64 bits")
    if sum(times * (prompt // LEAST_CHUNK + output) for (prompt, output), times in shapes.items()) > _MOST_RUNS:
        raise TooLargeToPlanError(f"more than {_MOST_RUNS} runs")
    return arrays_of(instance, restrictions)


def _alone_ps(instance: Instance, prompt: int, output: int) -> int:
    """Return an upper bound on the time of a request that is not evicted: two fills, each batch for it alone."""
    cost, last = instance.cost, prompt + output
    decode = cost.linear_ps(1) + cost.decode_kv * last + cost.decode_req
    return 2 * _fill_ps(instance, prompt, output) + output * decode


def _fill_ps(instance: Instance, prompt: int, output: int) -> int:
    """Return an upper bound on the time of a fill: in least chunks, each batch for it alone."""
    cost, last = instance.cost, prompt + output
    least = min(LEAST_CHUNK, instance.limits.prefill_tokens)
    chunks = last // least + 1
    return chunks * (cost.linear_ps(least) + cost.prefill_kv * last + cost.prefill_req) + cost.prefill_sq * last**2
