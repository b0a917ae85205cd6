r"""List scheduling backward in time, for the makespan of requests that all arrive at once: the last to end comes first.

Looked at backward, a request takes the most memory when it comes, I + O − 1 tokens, and ever less from then on. So if
it fits when it comes, it fits in all its batches, and taking the next one as soon as it fits fills the cache from the
last batch on until no request is left. Forward in time these are staggered starts, each just in time for the requests
to take turns in being large; only the first O batches or so have memory to spare, which no schedule without evictions
can avoid altogether: requests that start together grow together. (An eviction buys O/M of a batch's base at the price
of a refill.)

Prompts run in chunks before the first decode step, filling batches up to a level of tokens as in `forward`. A prompt
for which the batch before has no room is filled earlier and keeps its KV until its decode steps begin.
"""

from __future__ import annotations

import numpy as np

from optsched.arrays import InstanceArrays, blocks_of, prefill_ps
from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched.planner.plan import BATCHES, SPANS, ScheduleArrays, add_chunk, room_for, write
from optsched.planner.steps import ListRule, Sums, effective, most_chunks_of, no_sums, rooms, run_of


@compiled
def _backward(arrays: InstanceArrays, rule: ListRule, waiting: Ints, sums: Sums, made: ScheduleArrays) -> bool:
    """Place all requests, the last batch first, those that wait in their order; say whether there was room."""
    waits, at = len(waiting), 0
    while waits > 0:
        failed = kept = 0
        for place in range(waits):
            request = waiting[place]
            if at + arrays.requests.output[request] > len(sums.tokens):
                return False
            if failed < rule.tries and _fits(arrays, rule, request, at, sums):
                if not _place(arrays, rule, request, at, sums, made):
                    return False
            else:
                failed += 1
                waiting[kept] = request
                kept += 1
        waits = kept
        at += 1
    return True


@compiled_part
def _fits(arrays: InstanceArrays, rule: ListRule, request: int, at: int, sums: Sums) -> bool:
    """Say whether a request fits whose last batch is ``at``."""
    limits, prompt, output = arrays.limits, arrays.requests.input[request], arrays.requests.output[request]
    blocks, tokens, runs = sums.blocks, sums.tokens, sums.runs
    if blocks[at] + blocks_of(prompt + output - 1, limits.block) > limits.blocks:
        return False
    for batch in range(at, at + output - 1):
        if tokens[batch] >= limits.tokens or runs[batch] >= limits.runs:
            return False
    # Else a request without decode steps would come before it fits, to wait for room.
    return output > 1 or (runs[at] < limits.runs and run_of(prompt, rule, limits, tokens[at], sums.prefill[at]) > 0)


@compiled_part
def _place(  # noqa: PLR0917 - compiled functions take positions
    arrays: InstanceArrays, rule: ListRule, request: int, at: int, sums: Sums, made: ScheduleArrays
) -> bool:
    """Place a request whose last batch is ``at``; say whether there was room."""
    limits, costs = arrays.limits, arrays.costs
    prompt, output = arrays.requests.input[request], arrays.requests.output[request]
    blocks, tokens, prefill, runs, attention = sums
    held, batch = prompt + output - 1, at
    while held > prompt:
        blocks[batch] += blocks_of(held, limits.block)
        tokens[batch] += 1
        runs[batch] += 1
        attention[batch] += costs.decode_kv * (held - 1) + costs.decode_req
        held -= 1
        batch += 1
    write(made.spans, request, request, at, output - 1)
    while held > 0 and batch < len(tokens):
        run = run_of(held, rule, limits, tokens[batch], prefill[batch]) if runs[batch] < limits.runs else 0
        blocks[batch] += blocks_of(held, limits.block)
        if run > 0:
            held -= run
            tokens[batch] += run
            prefill[batch] += run
            runs[batch] += 1
            attention[batch] += prefill_ps(costs, run, held)
            add_chunk(made, request, batch, run)
        batch += 1
    made.size[BATCHES] = max(made.size[BATCHES], batch)
    made.size[SPANS] += 1
    return bool(held == 0)


def backward(arrays: InstanceArrays, rule: ListRule, rank: Ints) -> ScheduleArrays:
    """Return the schedule of a rule.

    Parameters
    ----------
    arrays
        An instance that allows hybrid batches, whose requests all arrive at once and may start in any order.
    rule
        The rule.
    rank
        A number for every request: the least ends last.
    """
    requests, costs, count = arrays.requests, arrays.costs, len(rank)
    most_chunks = most_chunks_of(arrays, rule)
    most_batches = int(requests.output.sum()) + most_chunks + 2
    rule, order = effective(rule, arrays.limits), np.argsort(rank, kind="stable")
    for room in rooms(most_batches):
        made, sums = room_for(count, most_chunks, most_batches, spans=count), no_sums(room)
        if _backward(arrays, rule, order.copy(), sums, made):
            break
    made = made.written()
    total, chunks, spans = len(made.start_ps), made.chunks[::-1].copy(), made.spans
    chunks[:, 1] = total - 1 - chunks[:, 1]
    spans[:, 1] = total - spans[:, 1] - spans[:, 2]
    tokens, attention = sums.tokens[:total][::-1], sums.attention[:total][::-1]
    durations = (costs.base[:, None] + costs.token[:, None] * tokens).max(axis=0) + attention
    end = requests.arrival[0] + np.cumsum(durations)
    first = np.zeros(count, dtype=np.int64)
    np.maximum.at(first, chunks[:, 0], chunks[:, 1])
    last = np.where(requests.output == 1, first, spans[:, 1] + spans[:, 2] - 1)
    return made._replace(
        chunks=chunks, steps=np.arange(total), start_ps=end - durations, end_ps=end, first=first, last=last
    )
