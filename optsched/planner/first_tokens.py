r"""First tokens first: prompts alone, the shortest first, each request evicted once it has its first token.

For TTFT nothing counts but prompts. Decode steps would only slow them down, and the KV of a request that has its first
token would only fill the cache; so it is dropped, and all that is left is done by `forward` after the last first token.

Of the requests that wait, the one with the least work left goes first, or one that has waited long. Others join its
batch while the base that this saves all that wait outweighs the work that those already in it wait for. As arrivals are
known, a long prompt runs up to the next arrival of one so short that going first pays, and goes on after it (shortest
remaining time first, Schrage 1968).
"""

from __future__ import annotations

import numpy as np

from optsched.arrays import InstanceArrays, RequestArrays, blocks_of, linear_ps, prefill_ps
from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched.planner.forward import forward
from optsched.planner.plan import BATCHES, ScheduleArrays, add_batch, add_chunk, add_eviction, room_for
from optsched.planner.sizes import LEAST_CHUNK
from optsched.planner.steps import ARRIVED, WAITING, ListRule, Queue, arrive, new_queue, next_arrival, not_taken


@compiled_part
def _alone_ps(arrays: InstanceArrays, run: int, held: int) -> int:
    """Return the time of a batch of one prefill step."""
    return linear_ps(arrays.costs, run) + prefill_ps(arrays.costs, run, held)


@compiled_part
def _rank_of(arrays: InstanceArrays, rule: ListRule, request: int, held: int, start: int) -> int:
    """Return what a request is ordered by: the time that it still needs, and its arrival."""
    waited = (arrays.requests.arrival[request] - start) // 16 * rule.tries
    return _alone_ps(arrays, arrays.requests.input[request] - held, held) + int(waited)


@compiled
def _first_tokens(arrays: InstanceArrays, rule: ListRule, queue: Queue, held: Ints, made: ScheduleArrays) -> None:
    """Fill all prompts; ``held`` is what requests have cached, and ``partial`` the blocks of those not yet filled."""
    limits, prompts = arrays.limits, arrays.requests.input
    room = min(limits.tokens, limits.prefill)
    start = now = next_arrival(queue)
    partial = largest = 0
    for request in range(len(prompts)):
        queue.rank[request] = _rank_of(arrays, rule, request, 0, start)
        largest = max(largest, blocks_of(prompts[request], limits.block))
    while not_taken(queue) > 0:
        if queue.size[WAITING] == 0:
            now = max(now, next_arrival(queue))
        arrive(queue, now)
        head = queue.waiting[0]
        left, others = prompts[head] - held[head], partial - blocks_of(held[head], limits.block)
        run, members = min(left, room), 1
        duration = _alone_ps(arrays, run, held[head])
        if run == left:
            members, duration = _join(arrays, rule, queue, held, others)
        if members == 1 and limits.chunked:
            cut = _cut(arrays, rule, queue, run, held[head], now)
            if cut < run and others + blocks_of(held[head] + cut, limits.block) + largest <= limits.blocks:
                run, duration = cut, _alone_ps(arrays, cut, held[head])
        if run == left:
            partial -= _finish(arrays, queue, held, members, made)
        else:
            add_chunk(made, head, made.size[BATCHES], run)
            held[head] += run
            partial = others + blocks_of(held[head], limits.block)
            queue.rank[head] = _rank_of(arrays, rule, head, held[head], start)
        now = add_batch(made, now, duration)


@compiled_part
def _join(arrays: InstanceArrays, rule: ListRule, queue: Queue, held: Ints, others: int) -> tuple[int, int]:
    """Return how many of those that wait run to their first token in the next batch, and how long it takes."""
    limits, costs, prompts = arrays.limits, arrays.costs, arrays.requests.input
    waits, room = queue.size[WAITING], min(limits.tokens, limits.prefill)
    head = queue.waiting[0]
    tokens, blocks = prompts[head] - held[head], others + blocks_of(prompts[head], limits.block)
    members, work, alone = 1, prefill_ps(costs, tokens, held[head]), linear_ps(costs, tokens)
    while members < waits and members < limits.runs:
        request = queue.waiting[members]
        kept = held[request]
        more = prompts[request] - kept
        blocks += blocks_of(prompts[request], limits.block) - blocks_of(kept, limits.block)
        if tokens + more > room or blocks > limits.blocks:
            break
        joined, own = linear_ps(costs, tokens + more), prefill_ps(costs, more, kept)
        saved = alone + linear_ps(costs, more) - joined
        if members * (joined - alone + own) * 16 > saved * (waits - members) * rule.level:
            break
        tokens, work, alone = tokens + more, work + own, joined
        members += 1
    return members, alone + work


@compiled_part
def _cut(  # noqa: PLR0917 - compiled functions take positions
    arrays: InstanceArrays, rule: ListRule, queue: Queue, run: int, held: int, now: int
) -> int:
    """Return the tokens of a run up to an arrival that should go before the rest of it; all if there is none."""
    arrival, by_arrival, prompts, costs = queue.arrival, queue.by_arrival, arrays.requests.input, arrays.costs
    came, until = arrival[queue.waiting[0]], now + _alone_ps(arrays, run, held)
    lost = (linear_ps(costs, 1) + costs.prefill_req) * rule.least // 16 * queue.size[WAITING]
    for place in range(queue.size[ARRIVED], len(arrival)):
        request = by_arrival[place]
        at = arrival[request]
        if at >= until:
            break
        if until - at - (at - came) // 16 * rule.tries > _alone_ps(arrays, prompts[request], 0) + lost:
            low, high = 1, run
            while low < high:
                middle = (low + high) // 2
                if now + _alone_ps(arrays, middle, held) >= at:
                    high = middle
                else:
                    low = middle + 1
            return low
    return run


@compiled_part
def _finish(arrays: InstanceArrays, queue: Queue, held: Ints, members: int, made: ScheduleArrays) -> int:
    """Write the last chunks of the first that wait; return the blocks that they held before."""
    batch, before, prompts, waiting = made.size[BATCHES], 0, arrays.requests.input, queue.waiting
    others_follow = not_taken(queue) > members
    for k in range(members):
        request = waiting[k]
        add_chunk(made, request, batch, prompts[request] - held[request])
        before += blocks_of(held[request], arrays.limits.block)
        made.first[request] = batch
        if others_follow and arrays.requests.output[request] > 1:
            add_eviction(made, request, batch + 1)
    queue.size[WAITING] -= members
    for k in range(queue.size[WAITING]):
        waiting[k] = waiting[k + members]
    return before


def first_tokens(arrays: InstanceArrays, rule: ListRule, rank: Ints) -> ScheduleArrays:
    """Return the schedule of a rule.

    Parameters
    ----------
    arrays
        An instance in which `may_drop` holds.
    rule
        ``level``: weight in sixteenths of the requests that wait when another joins a batch; ``least``: their weight in
        sixteenths of an empty batch when a prompt is split; ``tries``: sixteenths of the time since others arrived for
        which a request is placed behind them. What follows the first tokens has a fixed rule.
    rank
        The order in which the rest is done.
    """
    requests, limits = arrays.requests, arrays.limits
    count, room = len(rank), min(limits.tokens, limits.prefill)
    most = 2 * count + int((requests.input // room + 1).sum())
    made = room_for(count, most, most, evictions=count)
    queue = new_queue(requests.arrival, np.empty(count, dtype=np.int64))
    _first_tokens(arrays, rule, queue, np.zeros(count, dtype=np.int64), made)
    made = made.written()
    made = made._replace(last=made.first.copy())
    longer = np.flatnonzero(requests.output > 1)
    # Requests with their first token in the last batch still hold KV: one goes on, while the others are evicted.
    there = longer[made.first[longer] == len(made.start_ps) - 1]
    if len(there):
        goes = int(there[np.argmin(requests.output[there])])
        others = there[there != goes]
        dropped = np.column_stack((others, np.full(len(others), len(made.start_ps))))
        made = made._replace(evictions=np.concatenate((made.evictions, dropped)))
        made = _followed(made, _decoded(arrays, goes, int(made.end_ps[-1])), np.array([goes]))
        longer = longer[longer != goes]
    if len(longer):
        again = np.full(len(longer), made.end_ps[-1]), requests.input[longer] + 1, requests.output[longer] - 1
        rest = forward(
            arrays._replace(requests=RequestArrays(*again)), ListRule(room, 8 * LEAST_CHUNK, 8, 0), rank[longer]
        )
        made = _followed(made, rest, longer)
    return made


def _decoded(arrays: InstanceArrays, request: int, now: int) -> ScheduleArrays:
    """Return the decode steps of a request that has its first token and is alone, as those of request 0."""
    later, costs = int(arrays.requests.output[request]) - 1, arrays.costs
    held = int(arrays.requests.input[request]) + np.arange(later)
    durations = int((costs.base + costs.token).max()) + costs.decode_kv * held + costs.decode_req
    end = now + np.cumsum(durations)
    return room_for(1, 0, 0)._replace(
        spans=np.array([[0, 0, later]]),
        steps=np.arange(later),
        start_ps=end - durations,
        end_ps=end,
        last=np.array([later - 1]),
    )


def _followed(made: ScheduleArrays, rest: ScheduleArrays, requests: Ints) -> ScheduleArrays:
    """Return a schedule followed by another one, of the given requests, after their first tokens."""
    batches, steps, last = len(made.start_ps), len(made.steps), made.last.copy()
    last[requests] = rest.last + batches
    chunks = np.column_stack((requests[rest.chunks[:, 0]], rest.chunks[:, 1] + batches, rest.chunks[:, 2]))
    spans = np.column_stack((requests[rest.spans[:, 0]], rest.spans[:, 1] + steps, rest.spans[:, 2]))
    return made._replace(
        chunks=np.concatenate((made.chunks, chunks)),
        spans=np.concatenate((made.spans, spans)),
        steps=np.concatenate((made.steps, rest.steps + batches)),
        start_ps=np.concatenate((made.start_ps, rest.start_ps)),
        end_ps=np.concatenate((made.end_ps, rest.end_ps)),
        last=last,
    )


def may_drop(arrays: InstanceArrays) -> bool:
    """Say whether every request may be evicted after its first token, in any order, and be filled again."""
    requests, limits = arrays.requests, arrays.limits
    longer = requests.input[requests.output > 1]
    refills = limits.chunked or len(longer) == 0 or int(longer.max()) < limits.prefill
    return limits.eviction and refills and len(arrays.queue) == 0
