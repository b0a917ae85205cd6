"""An instance as plain arrays, for compiled loops."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.model.instance import Instance
from optsched.model.restrictions import Restrictions

Ints = npt.NDArray[np.int64]

LEAST_CHUNK = 16
"""Plans cut prompts into chunks of so many tokens at least, unless a budget is smaller."""
_MOST_TIME = 1 << 61
MOST_REFILLS = 4
"""Evictions per request, in all, at which a plan is given up."""
_MOST_RUNS = 100_000_000
_NO_LIMIT = 1 << 40


class TooLargeError(Exception):
    """Times, or what the loops keep in memory, may grow beyond what 64 bits or the machine hold."""


class Requests(NamedTuple):
    """T in ps, I and O of every request."""

    arrival: Ints
    input: Ints
    output: Ints


class Limits(NamedTuple):
    """Capacities: blocks of the cache and their size, C, P, N; and what batches may do, evictions without limit."""

    blocks: int
    block: int
    tokens: int
    prefill: int
    runs: int
    hybrid: bool
    chunked: bool
    eviction: bool


class Costs(NamedTuple):
    """The cost model: pieces of the non-attention time, and the attention's coefficients, in ps."""

    base: Ints
    token: Ints
    decode_kv: int
    decode_req: int
    prefill_sq: int
    prefill_kv: int
    prefill_req: int


class Rule(NamedTuple):
    """What list scheduling leaves to choose.

    Parameters
    ----------
    level
        Tokens up to which chunks of prompts fill a batch; without hybrid batches what a batch of prompts may gather.
    least
        The smallest chunk that is not the end of a prompt; without hybrid batches the tokens of prompts that wait
        before decode steps pause for them.
    tries
        How many that do not fit are passed over at a time.
    ahead
        Where requests are evicted: for how many batches all who are there must be able to grow when one is admitted.
    """

    level: int
    least: int
    tries: int
    ahead: int


class Problem(NamedTuple):
    """What the loops know of an instance.

    Parameters
    ----------
    requests, limits, costs
        The instance.
    queue
        The place of every request in the order in which first runs must stand; empty for any order.
    """

    requests: Requests
    limits: Limits
    costs: Costs
    queue: Ints

    @property
    def offline(self) -> bool:
        """Whether all requests arrive at the same time."""
        arrival = self.requests.arrival
        return bool((arrival == arrival[0]).all())

    @property
    def start_ps(self) -> int:
        """The earliest arrival."""
        return int(self.requests.arrival.min())


def problem_of(instance: Instance, restrictions: Restrictions) -> Problem:
    """Return the arrays of an instance to whose rules the restrictions have been applied.

    Raises
    ------
    TooLargeError
        If a schedule's times could exceed 64 bits.
    """
    requests, cost = instance.requests, instance.cost
    shapes = Counter((request.input, request.output) for request in requests)
    alone = sum(times * _alone_ps(instance, *shape) for shape, times in shapes.items())
    # Whichever requests are evicted, and however often.
    refills = MOST_REFILLS * len(requests) * max(_fill_ps(instance, *shape) for shape in shapes)
    if max(request.arrival_ps for request in requests) + alone + refills > _MOST_TIME:
        raise TooLargeError("times beyond 64 bits")
    if sum(times * (prompt // LEAST_CHUNK + output) for (prompt, output), times in shapes.items()) > _MOST_RUNS:
        raise TooLargeError(f"more than {_MOST_RUNS} runs")
    queue = np.empty(len(restrictions.first_runs(instance)), dtype=np.int64)
    queue[list(restrictions.first_runs(instance))] = np.arange(len(queue))
    limits, rules = instance.limits, instance.rules
    return Problem(
        Requests(
            np.array([request.arrival_ps for request in requests], dtype=np.int64),
            np.array([request.input for request in requests], dtype=np.int64),
            np.array([request.output for request in requests], dtype=np.int64),
        ),
        Limits(
            limits.kv_blocks,
            limits.kv_block,
            limits.batch_tokens,
            limits.prefill_tokens,
            limits.batch_requests or _NO_LIMIT,
            rules.hybrid,
            rules.chunked_prefill,
            rules.eviction and restrictions.max_evictions is None,
        ),
        Costs(
            np.array([base for base, _ in cost.affine], dtype=np.int64),
            np.array([token for _, token in cost.affine], dtype=np.int64),
            cost.decode_kv,
            cost.decode_req,
            cost.prefill_sq,
            cost.prefill_kv,
            cost.prefill_req,
        ),
        queue,
    )


def _alone_ps(instance: Instance, prompt: int, output: int) -> int:
    """Return the most that a request takes in a plan that evicts none: filled twice, every batch for it alone."""
    cost, last = instance.cost, prompt + output
    decode = cost.linear_ps(1) + cost.decode_kv * last + cost.decode_req
    return 2 * _fill_ps(instance, prompt, output) + output * decode


def _fill_ps(instance: Instance, prompt: int, output: int) -> int:
    """Return the most that a fill takes: in least chunks, every batch for it alone."""
    cost, last = instance.cost, prompt + output
    least = min(LEAST_CHUNK, instance.limits.prefill_tokens)
    chunks = last // least + 1
    return chunks * (cost.linear_ps(least) + cost.prefill_kv * last + cost.prefill_req) + cost.prefill_sq * last**2
