r"""List scheduling forward in time: requests that have arrived are admitted in a given order, if they fit to the end.

A request that is admitted keeps its KV and runs in every batch that decodes until it ends, so that all its runs are
known when it starts: which batches run chunks of its prompt, and what every later batch holds of it. Sums of these are
kept for all batches to come; a request is admitted only if its runs fit beside those of all that were admitted before.
No request is ever evicted, nothing is reserved beyond what will be used, and a batch's time is read off the sums.

With hybrid batches the chunks of a prompt fill batches up to a *level* of tokens; a chunk that would be smaller than
the *least* one waits, and what would be left over joins the last one, for every prefill step costs time of its own.
The more requests wait for each that runs, the higher the level may be: a longer batch delays those that run, and saves
bases, of which each delays all that wait.
Without hybrid batches whole prompts are *gathered* for batches of their own; decode steps pause meanwhile.
"""

from __future__ import annotations

import numpy as np

from optsched.arrays import Capacities, InstanceArrays, blocks_of, linear_ps, prefill_ps
from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched.planner.plan import BATCHES, CHUNKS, SPANS, STEPS, ScheduleArrays, add_batch, add_chunk, room_for, write
from optsched.planner.steps import (
    ARRIVED,
    WAITING,
    ListRule,
    Queue,
    Sums,
    arrive,
    effective,
    most_chunks_of,
    new_queue,
    next_arrival,
    no_sums,
    not_taken,
    rooms,
    run_of,
    take,
)

_DONE, _NONE_FITS, _NO_ROOM = range(3)
"""How list scheduling ends: all are scheduled, none fits although nothing runs, or there may be too few sums."""


@compiled
def _forward(arrays: InstanceArrays, rule: ListRule, queue: Queue, sums: Sums, made: ScheduleArrays) -> int:
    """Schedule all requests; say how it ended."""
    count, step, now = len(queue.arrival), 0, next_arrival(queue)
    while not_taken(queue) > 0 or sums.tokens[step] > 0:
        arrive(queue, now)
        if arrays.limits.hybrid:
            level = max(rule.level, rule.ahead * queue.size[WAITING] // (sums.runs[step] + 1))
            if not _admit(arrays, ListRule(level, rule.least, rule.tries, rule.ahead), queue, step, sums, made):
                return _NO_ROOM
        elif _enough_wait(arrays, rule, queue, sums.tokens[step]):
            batch = made.size[BATCHES]
            now = _run_prompts(arrays, rule, queue, step, now, sums, made)
            if now < 0:
                return _NO_ROOM
            if made.size[BATCHES] > batch:
                continue
        if sums.tokens[step] == 0:
            if queue.size[ARRIVED] == count:
                return _NONE_FITS
            now = max(now, next_arrival(queue))
            continue
        made.steps[step] = made.size[BATCHES]
        now = add_batch(made, now, linear_ps(arrays.costs, sums.tokens[step]) + sums.attention[step])
        step += 1
    made.size[STEPS], made.size[SPANS] = step, count
    return _DONE


@compiled_part
def _is_barred(arrays: InstanceArrays, queue: Queue, request: int) -> bool:
    """Say whether a request must wait for another one by the order in which requests must first run."""
    return len(arrays.queue) > 0 and arrays.queue[request] != queue.size[ARRIVED] - queue.size[WAITING]


@compiled_part
def _admit(  # noqa: PLR0917 - compiled functions take positions
    arrays: InstanceArrays, rule: ListRule, queue: Queue, step: int, sums: Sums, made: ScheduleArrays
) -> bool:
    """Admit waiting requests whose prompts can start at a step, with hybrid batches; say whether there was room."""
    place = failed = 0
    while place < queue.size[WAITING] and failed < rule.tries:
        request = queue.waiting[place]
        if _is_barred(arrays, queue, request):
            break
        prompt, output = arrays.requests.input[request], arrays.requests.output[request]
        after = _try_chunks(arrays, rule, request, step, sums, made)
        if after + output > len(sums.tokens):
            return False
        if after < 0 or not _decodes_fit(prompt, output, after, arrays.limits, sums):
            place += 1
            failed += 1
            continue
        _add_chunks(arrays, step, after, sums, made)
        made.first[request] = after - 1
        _add_decodes(arrays, request, after, sums, made)
        take(queue, place)
    return True


@compiled_part
def _try_chunks(  # noqa: PLR0917 - compiled functions take positions
    arrays: InstanceArrays, rule: ListRule, request: int, step: int, sums: Sums, made: ScheduleArrays
) -> int:
    """Write a prompt's chunks from a step on, without counting them; return the step after them, -1 if it cannot start.

    If there is no room that step is the last one.
    """
    limits, prompt = arrays.limits, arrays.requests.input[request]
    blocks, tokens, prefill, runs, _ = sums
    at, left, row, chunks = step, prompt, made.size[CHUNKS], made.chunks
    while left > 0 and at < len(tokens):
        run = run_of(left, rule, limits, tokens[at], prefill[at]) if runs[at] < limits.runs else 0
        left -= run
        held = prompt - left
        if held == 0 or blocks[at] + blocks_of(held, limits.block) > limits.blocks:
            return -1
        if run > 0:
            write(chunks, row, request, at, run)
            row += 1
        at += 1
    return at


@compiled_part
def _add_chunks(arrays: InstanceArrays, step: int, after: int, sums: Sums, made: ScheduleArrays) -> None:
    """Count the chunks in that `_try_chunks` has written."""
    blocks, tokens, prefill, runs, attention = sums
    held, row, block, chunks = 0, made.size[CHUNKS], arrays.limits.block, made.chunks
    for at in range(step, after):
        if chunks[row, 1] == at:
            run = chunks[row, 2]
            tokens[at] += run
            prefill[at] += run
            runs[at] += 1
            attention[at] += prefill_ps(arrays.costs, run, held)
            held += run
            row += 1
        blocks[at] += blocks_of(held, block)
    made.size[CHUNKS] = row


@compiled_part
def _decodes_fit(prompt: int, output: int, step: int, limits: Capacities, sums: Sums) -> bool:
    """Say whether the decode steps of a request fit, from a step on."""
    most, block, most_tokens, most_runs = limits.blocks, limits.block, limits.tokens, limits.runs
    blocks, tokens, runs = sums.blocks, sums.tokens, sums.runs
    for k in range(1, output):
        at = step + k - 1
        held = blocks_of(prompt + k, block)
        if blocks[at] + held > most or tokens[at] >= most_tokens or runs[at] >= most_runs:
            return False
    return True


@compiled_part
def _add_decodes(arrays: InstanceArrays, request: int, step: int, sums: Sums, made: ScheduleArrays) -> None:
    """Count the decode steps of a request in, from a step on."""
    prompt, output = arrays.requests.input[request], arrays.requests.output[request]
    block, kv, req = arrays.limits.block, arrays.costs.decode_kv, arrays.costs.decode_req
    blocks, tokens, runs, attention = sums.blocks, sums.tokens, sums.runs, sums.attention
    for k in range(1, output):
        at = step + k - 1
        blocks[at] += blocks_of(prompt + k, block)
        tokens[at] += 1
        runs[at] += 1
        attention[at] += kv * (prompt + k - 1) + req
    write(made.spans, request, request, step, output - 1)


@compiled_part
def _enough_wait(arrays: InstanceArrays, rule: ListRule, queue: Queue, decodes: int) -> bool:
    """Say whether waiting prompts are worth a pause of the decode steps, without hybrid batches."""
    known, prompts, waiting = 0, arrays.requests.input, queue.waiting
    for place in range(queue.size[WAITING]):
        known += prompts[waiting[place]]
        if decodes == 0 or known >= rule.least:
            return True
    return False


@compiled_part
def _run_prompts(  # noqa: PLR0917 - compiled functions take positions
    arrays: InstanceArrays, rule: ListRule, queue: Queue, step: int, now: int, sums: Sums, made: ScheduleArrays
) -> int:
    """Run waiting prompts that fit in a batch, or one alone in several, without hybrid batches; return the end.

    It is -1 if there may be too few sums.
    """
    limits, costs = arrays.limits, arrays.costs
    room = min(limits.tokens, limits.prefill)
    place = failed = members = gathered = work = extra = 0
    while place < queue.size[WAITING] and failed < rule.tries:
        request = queue.waiting[place]
        if _is_barred(arrays, queue, request):
            break
        prompt, output = arrays.requests.input[request], arrays.requests.output[request]
        if step + output > len(sums.tokens):
            return -1
        held = extra + blocks_of(prompt, limits.block)
        fits = sums.blocks[step] + held <= limits.blocks and members < limits.runs
        fits = fits and (members == 0 or gathered + prompt <= min(room, rule.level))
        if not (fits and _decodes_fit(prompt, output, step, limits, sums)):
            place += 1
            failed += 1
            continue
        filled = 0
        while prompt - filled > room:
            add_chunk(made, request, made.size[BATCHES], room)
            now = add_batch(made, now, linear_ps(costs, room) + prefill_ps(costs, room, filled))
            filled += room
        add_chunk(made, request, made.size[BATCHES], prompt - filled)
        gathered += prompt - filled
        work += prefill_ps(costs, prompt - filled, filled)
        members += 1
        if output == 1:
            extra += blocks_of(prompt, limits.block)
        made.first[request] = made.size[BATCHES]
        _add_decodes(arrays, request, step, sums, made)
        take(queue, place)
        if filled > 0:
            break
    return now if members == 0 else add_batch(made, now, linear_ps(costs, gathered) + work)


def forward(arrays: InstanceArrays, rule: ListRule, rank: Ints) -> ScheduleArrays:
    """Return the schedule of a rule.

    Parameters
    ----------
    arrays
        The instance.
    rule
        The rule.
    rank
        A number for every request: of those that wait, the least is tried first. If the order of first runs is
        prescribed, that order counts instead.
    """
    requests, count = arrays.requests, len(rank)
    most_chunks = most_chunks_of(arrays, rule)
    most_batches = int(requests.output.sum()) + most_chunks + 2
    rule = effective(rule, arrays.limits)
    if len(arrays.queue):
        rule, rank = rule._replace(tries=1), arrays.queue
    for room in rooms(most_batches):
        made = room_for(count, most_chunks, most_batches, spans=count, steps=most_batches)
        ended = _forward(arrays, rule, new_queue(requests.arrival, rank), no_sums(room), made)
        if ended != _NO_ROOM:
            break
    assert ended == _DONE, "the next request fits when nothing runs"
    last = np.where(requests.output == 1, made.first, made.steps[made.spans[:, 1] + requests.output - 2])
    return made.written()._replace(last=last)
