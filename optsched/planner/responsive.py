r"""List scheduling batch by batch: the fewer requests decode and the more wait, the longer are the chunks of prompts.

A batch with a chunk of a prompt costs all that wait its base, h, once; and it is long for those that decode. If y
decode and w wait, batches of a length near h w / y balance both: a longer one delays y requests by as much as w save.
So the level of tokens is a multiple of w / (y + 1), but at least a constant. If many decode it is half of that: there
the first tokens of a prompt are nearly free, and more would delay all.

Of the prompts the one with the least rank goes first, in proportion to what is left of it: a short prompt overtakes a
long one that has begun. A request is admitted if all that hold KV could end beside it, so that none is ever evicted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.arrays import InstanceArrays, blocks_of, linear_ps, prefill_ps
from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched.planner.plan import BATCHES, SPANS, STEPS, ScheduleArrays, add_batch, add_chunk, room_for, write
from optsched.planner.steps import (
    WAITING,
    ListRule,
    Queue,
    arrive,
    effective,
    most_chunks_of,
    new_queue,
    next_arrival,
    run_of,
    take,
)

_PASSED = 8
"""Requests that do not fit and are passed over for a batch."""


class _Admitted(NamedTuple):
    """Requests that hold KV.

    Parameters
    ----------
    held, generated
        Tokens of every request.
    filling, decoding
        Those whose prompts have begun, and those that decode.
    size
        Numbers of `FILLING`, `DECODING`, blocks that are `RESERVED`, and requests that are `DONE`.
    """

    held: Ints
    generated: Ints
    filling: Ints
    decoding: Ints
    size: Ints


FILLING, DECODING, RESERVED, DONE = range(4)


@compiled
def _responsive(arrays: InstanceArrays, rule: ListRule, queue: Queue, state: _Admitted, made: ScheduleArrays) -> None:
    """Schedule all requests."""
    prompts, outputs, costs = arrays.requests.input, arrays.requests.output, arrays.costs
    held, generated, _, decoding, size = state
    now = next_arrival(queue)
    while size[DONE] < len(prompts):
        if size[FILLING] + size[DECODING] + queue.size[WAITING] == 0:
            now = max(now, next_arrival(queue))
        arrive(queue, now)
        step, tokens, attention, there = made.size[BATCHES], size[DECODING], 0, size[DECODING]
        for k in range(there):
            attention += costs.decode_kv * held[decoding[k]] + costs.decode_req
            held[decoding[k]] += 1
        more, work = _add_prompts(arrays, _level(rule, there, size[FILLING] + queue.size[WAITING]), queue, state, made)
        made.steps[step] = step
        now = add_batch(made, now, linear_ps(costs, tokens + more) + attention + work)
        kept = 0
        for k in range(size[DECODING]):
            request = decoding[k]
            generated[request] += 1
            if k >= there:
                made.first[request] = step
                write(made.spans, request, request, step + 1, outputs[request] - 1)
            if generated[request] == outputs[request]:
                made.last[request] = step
                size[RESERVED] -= _most_blocks(arrays, request)
                size[DONE] += 1
                continue
            decoding[kept] = request
            kept += 1
        size[DECODING] = kept
    made.size[STEPS] = made.size[BATCHES]


@compiled_part
def _level(rule: ListRule, decodes: int, waiting: int) -> ListRule:
    """Return the rule with the level for a batch."""
    level = rule.level if decodes < rule.tries else max(rule.level // 2, 1)
    return ListRule(max(level, rule.ahead * waiting // (decodes + 1)), rule.least, rule.tries, rule.ahead)


@compiled_part
def _most_blocks(arrays: InstanceArrays, request: int) -> int:
    """Return the blocks that a request holds in the end."""
    tokens = arrays.requests.input[request] + arrays.requests.output[request] - 1
    return int(blocks_of(tokens, arrays.limits.block))


@compiled_part
def _add_prompts(
    arrays: InstanceArrays, rule: ListRule, queue: Queue, state: _Admitted, made: ScheduleArrays
) -> tuple[int, int]:
    """Add prefill steps to the batch; return their tokens and the ps of their attention.

    Prompts that end with them are those that decode from the next batch on.
    """
    held, _, filling, decoding, size = state
    limits, prompts, step, decodes = arrays.limits, arrays.requests.input, made.size[BATCHES], size[DECODING]
    place = failed = added = work = runs = 0
    while decodes + runs < min(limits.runs, limits.tokens):
        best, least = -1, 0
        for k in range(size[FILLING]):
            request = filling[k]
            due = queue.rank[request] * (prompts[request] - held[request]) // prompts[request]
            if best < 0 or due < least:
                best, least = k, due
        begins = place < queue.size[WAITING] and (best < 0 or queue.rank[queue.waiting[place]] < least)
        if best < 0 and not begins:
            break
        request = queue.waiting[place] if begins else filling[best]
        if begins and size[RESERVED] + _most_blocks(arrays, request) > limits.blocks:
            place, failed = place + 1, failed + 1
            if failed == _PASSED:
                place = queue.size[WAITING]
            continue
        left = prompts[request] - held[request]
        run = run_of(left, rule, limits, decodes + added, added)
        if run == 0:
            break
        if begins:
            take(queue, place)
            size[RESERVED] += _most_blocks(arrays, request)
            best = size[FILLING]
            filling[best] = request
            size[FILLING] += 1
        add_chunk(made, request, step, run)
        work += prefill_ps(arrays.costs, run, held[request])
        held[request] += run
        added, runs = added + run, runs + 1
        if run < left:
            break
        size[FILLING] -= 1
        filling[best] = filling[size[FILLING]]
        decoding[size[DECODING]] = request
        size[DECODING] += 1
    return added, work


def responsive(arrays: InstanceArrays, rule: ListRule, rank: Ints) -> ScheduleArrays:
    """Return the schedule of a rule.

    Parameters
    ----------
    arrays
        An instance in which `may_respond` holds.
    rule
        ``level`` and ``least`` as in `forward`; ``tries``: how many requests decode where the level is halved;
        ``ahead``: tokens of the level for each request that waits for its first token, shared by those that decode.
    rank
        A number for every request: of those that wait, the least goes first.
    """
    requests, count = arrays.requests, len(rank)
    most_chunks = most_chunks_of(arrays, rule)
    most_batches = int(requests.output.sum()) + most_chunks
    made = room_for(count, most_chunks, most_batches, spans=count, steps=most_batches)
    held, generated, filling, decoding = np.zeros((4, count), dtype=np.int64)
    state = _Admitted(held, generated, filling, decoding, np.zeros(4, dtype=np.int64))
    # Ranks may be negative, or too large to be multiplied by a prompt.
    least = int(rank.min())
    bits = (int(rank.max()) - least).bit_length() + int(requests.input.max()).bit_length()
    due = ((rank - least) >> max(0, bits - 62)) + 1
    _responsive(arrays, effective(rule, arrays.limits), new_queue(requests.arrival, due), state, made)
    made.size[SPANS] = count
    return made.written()


def may_respond(arrays: InstanceArrays) -> bool:
    """Say whether batches may mix steps and cut prompts, and requests start in any order."""
    return arrays.limits.hybrid and arrays.limits.chunked and len(arrays.queue) == 0
