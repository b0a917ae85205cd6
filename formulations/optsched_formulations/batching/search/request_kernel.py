"""Expanding states request by request, compiled: any number of classes, arrivals, weighted e2e latencies.

Each request has a byte, k + 64 × what it does (`WAITS`, `RESTS`, `RUNS`, `PAUSES`), k the tokens that it has generated,
that of the batch being composed included; equal requests stand next to each other, sorted. Bytes fill words from the
lowest on; the last word says whether a batch is being composed (1) and, in its second byte, how many requests have
arrived when it begins. Where latencies are summed and requests arrive over time, the word before it is the clock, 0 at
the end. `request_space` says what the numbers mean and why the costs are bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.pairs.batch_prices import UNIT
from optsched_formulations.batching.search.state_steps import (
    BEGIN,
    EVICT,
    FILL,
    PAUSE,
    RUN,
    Buffer,
    Words,
    arrived,
    step_of,
)

Bytes = npt.NDArray[np.int64]

WAITS, RESTS, RUNS, PAUSES = 0, 64, 128, 192
"""Waits for a fill or is finished; is resident after a batch; runs in the batch being composed; is resident and will
not run in it."""
MOST_TOKENS, MOST_REQUESTS = 63, 255
_ARRIVED = 8
"""Bits below the number of arrivals in the last word."""


class Requests(NamedTuple):
    """The instance, times in the search's units; few arrays, since each one costs time wherever they are handed over.

    Parameters
    ----------
    request
        `OWNER` (class), `OUTPUT` and `WEIGHT` of every request, shape (3, requests).
    first
        The first request of every class, and the end, shape (classes + 1,).
    token
        `SIZE` (blocks), `SHARE` (of a batch's base), `EXTRA` (of a refill beyond the decode), `FILL`, `DECODE`,
        `REFILLABLE` and `ITEM` (number) of every token k, shape (7, classes, tokens + 2).
    byte
        `REST`, the machine time that a request with some byte still needs at least, `CHAIN`, the time that it takes if
        it runs alone, and of both the `WORK`, without bases, shape (3, classes, 256).
    arrival
        `TIME`, ascending, and `COMER`, the class, shape (2, requests); empty if all are there at the start.
    place
        ``place[c, i]`` is the place in that order of the i-th last arrival of class c.
    batches
        What a request of every class and byte costs with the prices of `pairs.batch_prices`, in batches / `UNIT`, for
        every first batch of these; and in the last place of the first axis, at byte 0, what all batches pay. Shape
        (classes + 1, 256, batches), no batches if there are no prices.
    limits
        `CAPACITY` of the cache in blocks, `BASE`, whether weights are `SUMMED`, the `BOUND` that costs are counted
        from, and the weight if all have the `SAME`, else 0.
    """

    request: Ints
    first: Ints
    token: Ints
    byte: Ints
    arrival: Ints
    place: Ints
    batches: Ints
    limits: Ints


OWNER, OUTPUT, WEIGHT = range(3)
SIZE, SHARE, EXTRA, FILL_TIME, DECODE_TIME, REFILLABLE, ITEM = range(7)
REST, CHAIN, WORK = range(3)
TIME, COMER = range(2)
CAPACITY, BASE, SUMMED, BOUND, SAME = range(5)

_NONE, _PAIRS, _TABLE = (np.zeros((0,) * dimensions, dtype=np.int64) for dimensions in (1, 2, 3))
NO_REQUESTS = Requests(_PAIRS, _NONE, _TABLE, _TABLE, _PAIRS, _PAIRS, _TABLE, _NONE)


@compiled
def time_to_come(requests: Requests, at: Bytes, clock: int, order: Ints, left: Ints) -> int:
    """Return the least time left, or weighted sum of completions from ``clock`` on, if machine time could be shared.

    ``order`` and ``left`` are room to work in, a place for every request.
    """
    if requests.limits[SUMMED] == 0:
        return _last(requests, at, clock)
    if requests.limits[SAME] > 0:
        return int(requests.limits[SAME] * _shortest_first(requests, at, clock, order, left))
    return _smallest_ratio_first(requests, at, order)


@compiled
def _last(requests: Requests, at: Bytes, clock: int) -> int:
    """Return the least time until all jobs are done, and no chain goes on."""
    _, first, _, byte, arrival, place, _, _ = requests
    now, longest, future = 0, 0, 0
    for c in range(len(first) - 1):
        fresh = 0
        for r in range(first[c], first[c + 1]):
            release = 0
            if at[r] == 0 and arrival.shape[1] > 0:
                # Equal ones start in the order of their arrivals: of those left these are the last.
                fresh += 1
                release = max(0, arrival[TIME, place[c, fresh]] - clock)
            longest = max(longest, release + byte[CHAIN, c, at[r]])
            if release > 0:
                future += 1
            else:
                now += byte[REST, c, at[r]]
    for upcoming in range(arrival.shape[1] - future, arrival.shape[1]):
        now = max(now, arrival[TIME, upcoming] - clock) + byte[REST, arrival[COMER, upcoming], 0]
    return int(max(now, longest))


@compiled
def _smallest_ratio_first(requests: Requests, at: Bytes, order: Ints) -> int:
    """Return the least weighted sum of completions of jobs that are all there (Smith's rule)."""
    request, byte = requests.request, requests.byte
    count = 0
    for r in range(len(at)):
        if at[r] == request[OUTPUT, r] or request[WEIGHT, r] == 0:
            continue
        # The least time per weight goes first.
        needed, position = byte[REST, request[OWNER, r], at[r]], count
        while position > 0:
            other = order[position - 1]
            before = byte[REST, request[OWNER, other], at[other]]
            if before * request[WEIGHT, r] <= needed * request[WEIGHT, other]:
                break
            order[position] = other
            position -= 1
        order[position] = r
        count += 1
    clock, total = 0, 0
    for position in range(count):
        r = order[position]
        clock += byte[REST, request[OWNER, r], at[r]]
        total += request[WEIGHT, r] * clock
    return int(total)


@compiled
def _insert(ascending: Ints, begin: int, end: int, value: int) -> None:
    """Insert a number into a part of an array that is ascending."""
    position = end
    while position > begin and ascending[position - 1] > value:
        ascending[position] = ascending[position - 1]
        position -= 1
    ascending[position] = value


@compiled
def _shortest_first(requests: Requests, at: Bytes, clock: int, alone: Ints, left: Ints) -> int:
    """Return the least sum of completions, i-th by i-th: by shortest remaining time, of chains, and in whole batches.

    The last count batches: those that the least shares need, or the longest of the shortest chains.
    """
    request, first, _, byte, arrival, place, _, limits = requests
    count, number, future = 0, 0, 0
    base = limits[BASE]
    shares, works, chains = np.empty_like(alone), np.empty_like(alone), np.empty_like(alone)
    for c in range(len(first) - 1):
        fresh = 0
        # What a request needs mostly rises from the last one on.
        for r in range(first[c + 1] - 1, first[c] - 1, -1):
            if at[r] == request[OUTPUT, r]:
                continue
            release = 0
            if at[r] == 0 and arrival.shape[1] > 0:
                # Equal ones start in the order of their arrivals: of those left these are the last.
                fresh += 1
                release = max(0, arrival[TIME, place[c, fresh]] - clock)
            rest, chain, work = byte[REST, c, at[r]], byte[CHAIN, c, at[r]], byte[WORK, c, at[r]]
            _insert(alone, 0, number, release + chain)
            _insert(shares, 0, number, rest - work)
            _insert(chains, 0, number, chain - work)
            _insert(works, 0, number, work)
            number += 1
            if release > 0:
                future += 1
            else:
                _insert(left, 0, count, rest)
                count += 1
    share, worked, all_worked = np.int64(0), np.int64(0), np.int64(0)
    for i in range(number):
        share, worked = share + shares[i], worked + works[i]
        all_worked += worked
        whole = base * -(-share // base) if base > 0 else np.int64(0)
        alone[i] = max(alone[i], max(whole, chains[i]) + worked)
    total, now, done, begun, upcoming = np.int64(0), np.int64(0), 0, 0, arrival.shape[1] - future
    while done < number:
        # ``left[begun:count]`` are the needs of those that are there, ascending.
        until = arrival[TIME, upcoming] - clock if upcoming < arrival.shape[1] else np.int64(-1)
        if begun < count and (until < 0 or now + left[begun] <= until):
            now += left[begun]
            begun += 1
            total += max(now, alone[done])
            done += 1
            continue
        if begun < count:
            left[begun] -= until - now
        now = until
        _insert(left, begun, count, byte[REST, arrival[COMER, upcoming], 0])
        count += 1
        upcoming += 1
    return int(max(total, base * _batches(requests, at) + all_worked))


@compiled
def _batches(requests: Requests, at: Bytes) -> int:
    """Return the least number of batches, each counted for every request that waits for it, that prices prove."""
    owner, batches = requests.request[OWNER], requests.batches
    least = np.int64(0)
    for m in range(batches.shape[2]):
        found = -batches[-1, 0, m]
        for r in range(len(at)):
            found += batches[owner[r], at[r], m]
        least = max(least, found)
    return int(-(-least // UNIT))


@compiled
def _write(  # noqa: PLR0917
    first: Ints, at: Bytes, ordered: Bytes, control: int, words: Words, row: int
) -> None:
    """Write bytes, equal requests in order, and the last word into a row; ``ordered`` is room to work in."""
    last = words.shape[1] - 1
    for w in range(last):
        words[row, w] = np.uint64(0)
    words[row, last] = np.uint64(control)
    for c in range(len(first) - 1):
        for r in range(first[c], first[c + 1]):
            # Mostly in order: all before it stand where they belong, those that are larger move up.
            place = r
            while place > first[c] and ordered[place - 1] > at[r]:
                ordered[place] = ordered[place - 1]
                place -= 1
            ordered[place] = at[r]
    for r in range(len(at)):
        words[row, r >> 3] |= np.uint64(ordered[r]) << np.uint64(8 * (r & 7))


@compiled
def _read(words: Words, row: int, at: Bytes) -> None:
    """Read the bytes of a state."""
    for r in range(len(at)):
        at[r] = np.int64((words[row, r >> 3] >> np.uint64(8 * (r & 7))) & np.uint64(255))


@compiled
def _estimate(  # noqa: PLR0917
    requests: Requests, at: Bytes, clock: int, cost: int, label: int, count: int, buffer: Buffer
) -> None:
    """Write clocks, labels and costs of a state's successors, which have the time that passes for a label."""
    words, found_cost, found_label, _ = buffer
    weighted, bound, before_last = requests.limits[SUMMED] > 0, requests.limits[BOUND], words.shape[1] - 2
    dated = weighted and requests.arrival.shape[1] > 0
    due = _due(requests, at) if weighted else 1
    order, left = np.empty_like(at), np.empty_like(at)
    for row in range(count):
        now = clock + found_label[row]
        _read(words, row, at)
        to_come = time_to_come(requests, at, now, order, left)
        if dated:
            # The completions so far, and all others at least now.
            unfinished = _due(requests, at)
            found_label[row] = label + (due - unfinished) * now
            to_come += unfinished * now
            words[row, before_last] = np.uint64(now if unfinished > 0 else 0)
        else:
            # The makespan grows with the clock, a sum with the weight of all that are not finished.
            found_label[row] = label + due * (now - clock)
        found_cost[row] = max(cost, found_label[row] + to_come - bound)


@compiled
def _due(requests: Requests, at: Bytes) -> int:
    """Return the weight of all requests that are not finished."""
    due = 0
    for r in range(len(at)):
        if at[r] != requests.request[OUTPUT, r]:
            due += requests.request[WEIGHT, r]
    return int(due)


@compiled
def expand_requests(  # noqa: PLR0917 - one loop over what a batch may do
    requests: Requests, words: Words, state: int, cost: int, label: int, buffer: Buffer
) -> int:
    """Write a state's successors into the buffer; return their number."""
    request, first, token, _, arrival, place, _, limits = requests
    found_words, found_cost, found_label, found_step = buffer
    capacity, base, weighted = limits[CAPACITY], limits[BASE], limits[SUMMED] > 0
    online, last = arrival.shape[1] > 0, words.shape[1] - 1
    at, ordered = np.empty(request.shape[1], dtype=np.int64), np.empty(request.shape[1], dtype=np.int64)
    _read(words, state, at)
    control = int(np.int64(words[state, last]))
    clock = int(np.int64(words[state, last - 1])) if online and weighted else label
    # At first in place of the label the time that passes, in place of the cost what it grows by.
    count, held = 0, 0
    if control & 1:
        upper, running, shares = control >> _ARRIVED, 0, 0
        for r in range(len(at)):
            k = at[r] & 63
            if at[r] >= RUNS:
                held += token[SIZE, request[OWNER, r], k]
            if RUNS <= at[r] < PAUSES:
                running += 1
                shares += token[SHARE, request[OWNER, r], k]
        # Fill one more: of equal ones the first.
        for r in range(len(at)):
            c, k = request[OWNER, r], at[r]
            if k >= request[OUTPUT, r] or (r > first[c] and at[r - 1] == k) or held + token[SIZE, c, k + 1] > capacity:
                continue
            if k > 0 and not token[REFILLABLE, c, k + 1]:
                continue
            if k == 0 and online:
                fresh = 0
                for other in range(first[c], first[c + 1]):
                    if at[other] == 0:
                        fresh += 1
                if place[c, fresh] >= upper:
                    continue
            at[r] = RUNS + k + 1
            _write(first, at, ordered, control, found_words, count)
            found_cost[count], found_label[count] = 0, token[FILL_TIME, c, k + 1]
            found_step[count] = step_of(FILL, token[ITEM, c, k + 1])
            at[r] = k
            count += 1
        if running:
            for r in range(len(at)):
                if at[r] >= RUNS:
                    k = at[r] & 63
                    at[r] = k if k == request[OUTPUT, r] else RESTS + k
            _write(first, at, ordered, 0, found_words, count)
            found_cost[count], found_label[count] = base - shares, base
            found_step[count] = step_of(RUN, -1)
            count += 1
    else:
        # After a batch: evict one, let one pause, or begin the next.
        work = 0
        for r in range(len(at)):
            c, k = request[OWNER, r], at[r] & 63
            if at[r] >= PAUSES:
                held += token[SIZE, c, k]
            elif at[r] >= RESTS:
                held += token[SIZE, c, k + 1]
                work += token[DECODE_TIME, c, k + 1]
                former = at[r]
                if r > first[c] and at[r - 1] == former:
                    continue
                if token[REFILLABLE, c, k + 1]:
                    at[r] = WAITS + k
                    _write(first, at, ordered, 0, found_words, count)
                    found_cost[count], found_label[count] = token[EXTRA, c, k + 1], 0
                    found_step[count] = step_of(EVICT, token[ITEM, c, k + 1])
                    count += 1
                if online:
                    at[r] = PAUSES + k
                    _write(first, at, ordered, 0, found_words, count)
                    found_cost[count], found_label[count] = 0, 0
                    found_step[count] = step_of(PAUSE, token[ITEM, c, k])
                    count += 1
                at[r] = former
        if held <= capacity:
            for r in range(len(at)):
                if RESTS <= at[r] < RUNS:
                    at[r] += 1 + RUNS - RESTS
            upper, idle, more = arrived(arrival[TIME], clock), 0, True
            while more:
                _write(first, at, ordered, 1 + (upper << _ARRIVED), found_words, count)
                found_cost[count], found_label[count] = idle, idle + work
                found_step[count] = step_of(BEGIN, -1)
                count += 1
                more = upper < arrival.shape[1]
                if more:
                    # Or the batch waits for the next arrivals.
                    idle = int(arrival[TIME, upper] - clock)
                    upper = arrived(arrival[TIME], arrival[TIME, upper])
    if weighted or online:
        _read(words, state, at)
        _estimate(requests, at, clock, cost, label, count, buffer)
        return count
    for row in range(count):
        found_cost[row] += cost
        found_label[row] = found_cost[row]
    return count
