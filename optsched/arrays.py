"""An instance as arrays and integers for compiled loops: Algorithm 1 (`optsched.simulator.kernel`) and the planner.

The compiled functions here are those that both need: blocks, and the two parts of a batch's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled_part
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Request
from optsched.model.ints import Ints
from optsched.model.restrictions import Restrictions

_NO_LIMIT = 1 << 40
"""N where there is no limit."""


class RequestArrays(NamedTuple):
    """T in ps, I and O of every request."""

    arrival: Ints
    input: Ints
    output: Ints


class Capacities(NamedTuple):
    """Blocks of the cache and tokens of a block, C, P, N; and whether batches may mix, chunk and evict."""

    blocks: int
    block: int
    tokens: int
    prefill: int
    runs: int
    hybrid: bool
    chunked: bool
    eviction: bool


class Coefficients(NamedTuple):
    """The cost model: pieces of the linear time, a base and a slope each, and the attention's coefficients, in ps."""

    base: Ints
    token: Ints
    decode_kv: int
    decode_req: int
    prefill_sq: int
    prefill_kv: int
    prefill_req: int


class InstanceArrays(NamedTuple):
    """An instance, as far as compiled loops know it.

    Parameters
    ----------
    requests, limits, costs
        The instance's own. Evictions are allowed only if their number is not limited.
    queue
        Place of every request in the order in which requests must first run; empty if any order is allowed.
    """

    requests: RequestArrays
    limits: Capacities
    costs: Coefficients
    queue: Ints


def arrays_of(instance: Instance, restrictions: Restrictions) -> InstanceArrays:
    """Return the arrays of an instance to whose rules the restrictions have been applied; its numbers fit 64 bits."""
    order = list(restrictions.first_runs(instance))
    queue = np.empty(len(order), dtype=np.int64)
    queue[order] = np.arange(len(order))
    requests = request_arrays(instance.requests)
    return InstanceArrays(requests, _capacities(instance, restrictions), _coefficients(instance.cost), queue)


def machine_arrays(instance: Instance, requests: RequestArrays) -> InstanceArrays:
    """Return the same for other requests, which may first run in any order."""
    queue = np.empty(0, dtype=np.int64)
    return InstanceArrays(requests, _capacities(instance, Restrictions()), _coefficients(instance.cost), queue)


def request_arrays(requests: Iterable[Request]) -> RequestArrays:
    """Return the arrays of requests."""
    rows = [(request.arrival_ps, request.input, request.output) for request in requests]
    return RequestArrays(*np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy())


def _capacities(instance: Instance, restrictions: Restrictions) -> Capacities:
    limits, rules = instance.limits, instance.rules
    return Capacities(
        limits.kv_blocks,
        limits.kv_block,
        limits.batch_tokens,
        limits.prefill_tokens,
        limits.batch_requests or _NO_LIMIT,
        rules.hybrid,
        rules.chunked_prefill,
        rules.eviction and restrictions.max_evictions is None,
    )


def _coefficients(cost: CostModel) -> Coefficients:
    return Coefficients(
        np.array([base for base, _ in cost.affine], dtype=np.int64),
        np.array([token for _, token in cost.affine], dtype=np.int64),
        cost.decode_kv,
        cost.decode_req,
        cost.prefill_sq,
        cost.prefill_kv,
        cost.prefill_req,
    )


@compiled_part
def blocks_of(tokens: int, block: int) -> int:
    """Return the number of blocks that hold a number of tokens."""
    # Divisions take a third of the kernel's time.
    return tokens if block == 1 else (tokens + block - 1) // block


@compiled_part
def linear_ps(costs: Coefficients, tokens: int) -> int:
    """Return the time in ps of a batch without attention."""
    longest = 0
    for piece in range(len(costs.base)):
        longest = max(longest, costs.base[piece] + costs.token[piece] * tokens)
    return longest


@compiled_part
def prefill_ps(costs: Coefficients, run: int, cached: int) -> int:
    """Return the attention time in ps of a prefill step of ``run`` tokens after ``cached`` ones."""
    return costs.prefill_sq * run * (run + 2 * cached) + costs.prefill_kv * cached + costs.prefill_req
