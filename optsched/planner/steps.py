"""Parts that the schemes of list scheduling share: rule, queue of waiting requests, sums by batch, sizes of chunks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.arrays import Capacities, InstanceArrays
from optsched.compiled import compiled_part
from optsched.model.ints import Ints

_ROOM, _PART = 512, 16
"""The least number of batches that there is room for at first, and the part of those that there may be."""


class ListRule(NamedTuple):
    """What list scheduling leaves to choose.

    Parameters
    ----------
    level
        Tokens up to which chunks of prompts fill a batch; without hybrid batches what a batch of prompts may gather.
    least
        The smallest chunk that is not the end of a prompt; without hybrid batches the tokens of prompts that wait
        before decode steps pause for them.
    tries
        Number of requests that do not fit and are passed over for a batch.
    ahead
        Where requests are evicted: a request is admitted if all residents could then grow for that number of batches.
        Elsewhere tokens of the level for each request that waits, shared by those that run.
    """

    level: int
    least: int
    tries: int
    ahead: int


class Queue(NamedTuple):
    """Waiting requests by rank, the least first.

    Parameters
    ----------
    arrival, rank
        Of every request.
    by_arrival
        All requests in order of arrival.
    waiting
        Those that wait, in order of rank.
    size
        Numbers of requests `WAITING`, of which ``waiting`` has room for more, and `ARRIVED`.
    """

    arrival: Ints
    rank: Ints
    by_arrival: Ints
    waiting: Ints
    size: Ints


WAITING, ARRIVED = range(2)


def new_queue(arrival: Ints, rank: Ints) -> Queue:
    """Return a queue at which no request has arrived."""
    by_arrival = np.argsort(arrival, kind="stable")
    return Queue(arrival, rank, by_arrival, np.empty_like(arrival), np.zeros(2, dtype=np.int64))


@compiled_part
def insert(queue: Queue, request: int) -> None:
    """Put a request behind those of the same rank or less."""
    rank, waiting, size = queue.rank, queue.waiting, queue.size
    place, own = size[WAITING], rank[request]
    while place > 0 and rank[waiting[place - 1]] > own:
        waiting[place] = waiting[place - 1]
        place -= 1
    waiting[place] = request
    size[WAITING] += 1


@compiled_part
def take(queue: Queue, place: int) -> None:
    """Take the request at a place out of the queue."""
    waiting, left = queue.waiting, queue.size[WAITING] - 1
    for other in range(place, left):
        waiting[other] = waiting[other + 1]
    queue.size[WAITING] = left


@compiled_part
def not_taken(queue: Queue) -> int:
    """Return the number of requests that wait or have not arrived."""
    return int(len(queue.arrival) - queue.size[ARRIVED] + queue.size[WAITING])


@compiled_part
def next_arrival(queue: Queue) -> int:
    """Return when the next request arrives."""
    return int(queue.arrival[queue.by_arrival[queue.size[ARRIVED]]])


@compiled_part
def arrive(queue: Queue, now: int) -> None:
    """Insert the requests that have arrived."""
    arrival, by_arrival, arrived = queue.arrival, queue.by_arrival, queue.size[ARRIVED]
    while arrived < len(arrival) and arrival[by_arrival[arrived]] <= now:
        insert(queue, by_arrival[arrived])
        arrived += 1
    queue.size[ARRIVED] = arrived


class Sums(NamedTuple):
    """Sums over all requests placed, by batch: blocks held, tokens, prefill tokens, runs, ps of attention."""

    blocks: Ints
    tokens: Ints
    prefill: Ints
    runs: Ints
    attention: Ints


def no_sums(batches: int) -> Sums:
    """Return the sums of a number of batches, all 0."""
    return Sums(*np.zeros((len(Sums._fields), batches), dtype=np.int64))


def rooms(batches: int) -> tuple[int, int]:
    """Return numbers of batches to make room for, one after the other, where there may be some but are hardly as many.

    Sums of all that there may be take longer to clear than a schedule to make.
    """
    return max(min(batches, _ROOM), batches // _PART), batches


def effective(rule: ListRule, limits: Capacities) -> ListRule:
    """Return the rule with a level and a least chunk that an empty batch has room for."""
    level = max(rule.level, 1)
    return ListRule(level, max(1, min(rule.least, level, limits.tokens, limits.prefill)), rule.tries, rule.ahead)


@compiled_part
def run_of(left: int, rule: ListRule, limits: Capacities, tokens: int, prefill: int) -> int:
    """Return how many of a prompt's remaining tokens run in a batch, 0 for none.

    Whole prompts go beyond the level only if there is no other in the batch.
    """
    hard = min(limits.tokens - tokens, limits.prefill - prefill)
    if not limits.chunked:
        return left if left <= hard and (prefill == 0 or tokens + left <= rule.level) else 0
    room = min(rule.level - tokens, hard)
    if room >= 1 and left <= min(room + rule.least, hard):
        return left
    return room if room >= rule.least else 0


def most_chunks_of(arrays: InstanceArrays, rule: ListRule) -> int:
    """Return how many prefill steps a schedule may have, each request filled once."""
    limits, prompts = arrays.limits, arrays.requests.input
    smallest = min(limits.tokens, limits.prefill)
    if limits.hybrid:
        smallest = effective(rule, limits).least if limits.chunked else int(prompts.max())
    return int((prompts // smallest + 1).sum())
