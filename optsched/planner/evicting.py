r"""List scheduling forward in time without a look ahead: requests that fit now are admitted, and evicted if need be.

The opposite of `forward`: memory is used at once, and paid for with refills. That pays where a batch's base is dear and
prompts are short. A rule in between admits a request only if all that then hold KV could grow for some batches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.arrays import InstanceArrays, blocks_of, linear_ps, prefill_ps
from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched.planner.plan import (
    BATCHES,
    CHUNKS,
    EVICTIONS,
    STEPS,
    ScheduleArrays,
    add_batch,
    add_chunk,
    add_eviction,
    add_span,
    room_for,
)
from optsched.planner.sizes import MOST_REFILLS
from optsched.planner.steps import (
    WAITING,
    ListRule,
    Queue,
    arrive,
    effective,
    insert,
    most_chunks_of,
    new_queue,
    next_arrival,
    run_of,
    take,
)


class _Residents(NamedTuple):
    """What requests hold, and the batch that is being formed.

    Parameters
    ----------
    generated, held, decoding
        Tokens of every request, generated and cached, and whether it runs decode steps.
    opened
        The step with which its present decode steps began.
    dropped
        The batch before which it was last evicted; -1 if none.
    there
        The requests that hold KV, in order of admission.
    size
        Numbers of `RESIDENTS`, of `DECODERS` among them, and of requests that are `DONE`; blocks `USED`; and of the
        batch, `TOKENS`, tokens of `PREFILL` and `RUNS`, and the ps of `ATTENTION`.
    """

    generated: Ints
    held: Ints
    decoding: Ints
    opened: Ints
    dropped: Ints
    there: Ints
    size: Ints


RESIDENTS, DECODERS, DONE, USED, TOKENS, PREFILL, RUNS, ATTENTION = range(8)


@compiled
def _evicting(arrays: InstanceArrays, rule: ListRule, queue: Queue, state: _Residents, made: ScheduleArrays) -> bool:
    """Schedule all requests; return False if that takes too many chunks or evictions."""
    size, count, now = state.size, len(queue.arrival), next_arrival(queue)
    while size[DONE] < count:
        arrive(queue, now)
        decodes = _form(arrays, rule, queue, state, made)
        # A batch adds at most one row of each for every request: for these the arrays have room beyond the limits.
        if made.size[CHUNKS] > len(made.chunks) - count or made.size[EVICTIONS] >= len(made.evictions) - count:
            return False
        if size[RUNS] == 0:
            if size[RESIDENTS] == 0:
                now = max(now, next_arrival(queue))
            continue
        if decodes:
            _decode(arrays, state)
            made.steps[made.size[STEPS]] = made.size[BATCHES]
            made.size[STEPS] += 1
        now = add_batch(made, now, linear_ps(arrays.costs, size[TOKENS]) + size[ATTENTION])
        _generate(arrays, state, made)
    return True


@compiled_part
def _form(arrays: InstanceArrays, rule: ListRule, queue: Queue, state: _Residents, made: ScheduleArrays) -> bool:
    """Form a batch; return whether it has decode steps.

    Without hybrid batches prompts are tried first, and decode steps if no prompt can run.
    """
    size, hybrid = state.size, arrays.limits.hybrid
    size[TOKENS] = size[PREFILL] = size[RUNS] = size[ATTENTION] = 0
    if not hybrid:
        _add_prompts(arrays, rule, queue, state, made)
        if size[RUNS] > 0:
            return False
    _make_room(arrays, queue, state, made)
    size[TOKENS] = size[RUNS] = size[DECODERS]
    if hybrid:
        _add_prompts(arrays, rule, queue, state, made)
    if size[RUNS] == 0 and size[RESIDENTS] > 0:
        # Prompts block each other: the last one gives way.
        _evict(arrays, queue, state, size[RESIDENTS] - 1, made)
    return True


@compiled_part
def _make_room(arrays: InstanceArrays, queue: Queue, state: _Residents, made: ScheduleArrays) -> None:
    """Take blocks for the next token of all that decode; while they are too few, evict the resident of largest rank."""
    size, there, held, decoding, rank = state.size, state.there, state.held, state.decoding, queue.rank
    growth, block = 0, arrays.limits.block
    for k in range(size[RESIDENTS]):
        if decoding[there[k]] and (block == 1 or held[there[k]] % block == 0):
            growth += 1
    while size[USED] + growth > arrays.limits.blocks:
        worst = 0
        for k in range(1, size[RESIDENTS]):
            if rank[there[k]] >= rank[there[worst]]:
                worst = k
        if decoding[there[worst]] and held[there[worst]] % block == 0:
            growth -= 1
        _evict(arrays, queue, state, worst, made)
    size[USED] += growth


@compiled_part
def _evict(arrays: InstanceArrays, queue: Queue, state: _Residents, place: int, made: ScheduleArrays) -> None:
    """Evict a resident."""
    there = state.there
    request = there[place]
    state.size[RESIDENTS] -= 1
    for k in range(place, state.size[RESIDENTS]):
        there[k] = there[k + 1]
    if state.decoding[request]:
        _close(state, request, made)
    state.size[USED] -= blocks_of(state.held[request], arrays.limits.block)
    state.held[request], state.decoding[request], state.dropped[request] = 0, False, made.size[BATCHES]
    add_eviction(made, request, made.size[BATCHES])
    insert(queue, request)


@compiled_part
def _close(state: _Residents, request: int, made: ScheduleArrays) -> None:
    """Write the decode steps that end."""
    add_span(made, request, state.opened[request], made.size[STEPS] - state.opened[request])
    state.size[DECODERS] -= 1


@compiled_part
def _add_prompts(arrays: InstanceArrays, rule: ListRule, queue: Queue, state: _Residents, made: ScheduleArrays) -> None:
    """Add prefill steps to the batch: first of residents, then of waiting requests."""
    limits, size, there, decoding = arrays.limits, state.size, state.there, state.decoding
    waiting, dropped, generated, prompts = queue.waiting, state.dropped, state.generated, arrays.requests.input
    if size[DECODERS] < size[RESIDENTS]:
        for k in range(size[RESIDENTS]):
            if not decoding[there[k]]:
                _add_prompt(arrays, rule, state, there[k], 0, made)
    place = failed = 0
    while place < queue.size[WAITING] and failed < rule.tries and size[RESIDENTS] < min(limits.runs, limits.tokens):
        request = waiting[place]
        if dropped[request] == made.size[BATCHES]:
            place += 1
            continue
        left = prompts[request] + generated[request]
        ahead = rule.ahead * (size[RESIDENTS] + 1) // limits.block if size[RESIDENTS] > 0 else 0
        if not _add_prompt(arrays, rule, state, request, blocks_of(left, limits.block) + ahead, made):
            place += 1
            failed += 1
            continue
        there[size[RESIDENTS]] = request
        size[RESIDENTS] += 1
        take(queue, place)


@compiled_part
def _add_prompt(  # noqa: PLR0917 - compiled functions take positions
    arrays: InstanceArrays, rule: ListRule, state: _Residents, request: int, needed: int, made: ScheduleArrays
) -> bool:
    """Add a prefill step of a request if there are blocks for it, and as many as it needs; say whether there are."""
    limits, size, held = arrays.limits, state.size, state.held[request]
    left = arrays.requests.input[request] + state.generated[request] - held
    run = run_of(left, rule, limits, size[TOKENS], size[PREFILL])
    more = blocks_of(held + run, limits.block) - blocks_of(held, limits.block)
    if run == 0 or size[RUNS] >= min(limits.runs, limits.tokens) or size[USED] + max(more, needed) > limits.blocks:
        return False
    add_chunk(made, request, made.size[BATCHES], run)
    state.held[request] += run
    size[USED] += more
    size[TOKENS] += run
    size[PREFILL] += run
    size[RUNS] += 1
    size[ATTENTION] += prefill_ps(arrays.costs, run, held)
    return True


@compiled_part
def _decode(arrays: InstanceArrays, state: _Residents) -> None:
    """Run a decode step of all that decode."""
    read, there, held, decoding = 0, state.there, state.held, state.decoding
    for k in range(state.size[RESIDENTS]):
        request = there[k]
        if decoding[request]:
            read += held[request]
            held[request] += 1
    state.size[ATTENTION] += arrays.costs.decode_kv * read + arrays.costs.decode_req * state.size[DECODERS]


@compiled_part
def _generate(arrays: InstanceArrays, state: _Residents, made: ScheduleArrays) -> None:
    """Generate the tokens of the batch written last; requests that have all of theirs leave."""
    _, prompts, outputs = arrays.requests
    generated, held, decoding, opened, _, there, size = state
    batch, kept = made.size[BATCHES] - 1, 0
    for k in range(size[RESIDENTS]):
        request = there[k]
        if held[request] == prompts[request] + generated[request]:
            generated[request] += 1
            if generated[request] == 1:
                made.first[request] = batch
            if not decoding[request]:
                decoding[request], opened[request] = True, made.size[STEPS]
                size[DECODERS] += 1
            if generated[request] == outputs[request]:
                made.last[request] = batch
                _close(state, request, made)
                size[USED] -= blocks_of(held[request], arrays.limits.block)
                size[DONE] += 1
                continue
        there[kept] = request
        kept += 1
    size[RESIDENTS] = kept


def evicting(arrays: InstanceArrays, rule: ListRule, rank: Ints) -> ScheduleArrays | None:
    """Return the schedule of a rule.

    Parameters
    ----------
    arrays
        An instance in which `may_refill` holds.
    rule
        The rule.
    rank
        A number for every request: the least is admitted first and evicted last.

    Returns
    -------
    ScheduleArrays | None
        None if requests are evicted too often for the schedule to be of use.
    """
    count, tokens = len(rank), int(arrays.requests.output.sum())
    most_refills, most_chunks = MOST_REFILLS * count, MOST_REFILLS * most_chunks_of(arrays, rule)
    most_batches = tokens + most_chunks
    made = room_for(
        count,
        most_chunks + count,
        most_batches,
        spans=count + most_refills,
        steps=most_batches,
        evictions=most_refills + count,
    )
    generated, held, decoding, opened, dropped, there = np.zeros((6, count), dtype=np.int64)
    state = _Residents(generated, held, decoding, opened, dropped - 1, there, np.zeros(8, dtype=np.int64))
    queue, rule = new_queue(arrays.requests.arrival, rank), effective(rule, arrays.limits)
    return made.written() if _evicting(arrays, rule, queue, state, made) else None


def may_refill(arrays: InstanceArrays) -> bool:
    """Say whether requests may be evicted whenever memory is short, and start in any order."""
    requests, limits = arrays.requests, arrays.limits
    refills = limits.chunked or int((requests.input + requests.output).max()) <= limits.prefill + 1
    return limits.eviction and refills and len(arrays.queue) == 0
