"""Expanding states request by request, compiled: any number of classes, arrivals, weighted e2e latencies.

Each request has a byte, k + 64 × what it does (`WAITS`, `RESTS`, `RUNS`, `PAUSES`), k the tokens that it has generated,
that of the batch being composed included; equal requests stand next to each other, sorted. Bytes fill words from the
lowest on; the last word says whether a batch is being composed (1) and, in its second byte, how many requests have
arrived when it begins. `request_space` says what the numbers mean and why the costs are bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.solvers.compiled import compiled
from optsched_formulations.batching.search.state_steps import (
    BEGIN,
    EVICT,
    FILL,
    PAUSE,
    RUN,
    Buffer,
    Ints,
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
    """The instance, times in the search's units.

    ``owner`` (class), ``output`` and ``weight`` have shape (requests,); ``first`` (the first request of every class,
    and the end) shape (classes + 1,). Of token k, shape (classes, tokens + 2): ``size`` (blocks), ``share`` (of a
    batch's base), ``extra`` (of a refill beyond the decode), ``fill``, ``decode``, ``refillable`` and ``item``, its
    number. ``rest``, machine time that a request with some byte still needs at least, has shape (classes, 256).
    ``time`` are the arrivals, ascending, empty if all are there at the start; ``place[c, i]`` is the place in that
    order of the i-th last arrival of class c. ``limits``: blocks of the cache, base, whether weights are summed, and
    the bound that costs are counted from.
    """

    owner: Ints
    output: Ints
    weight: Ints
    first: Ints
    size: Ints
    share: Ints
    extra: Ints
    fill: Ints
    decode: Ints
    refillable: Ints
    item: Ints
    rest: Ints
    time: Ints
    place: Ints
    limits: Ints


_NONE, _NO_TABLE = np.zeros(0, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
NO_REQUESTS = Requests(
    owner=_NONE,
    output=_NONE,
    weight=_NONE,
    first=_NONE,
    size=_NO_TABLE,
    share=_NO_TABLE,
    extra=_NO_TABLE,
    fill=_NO_TABLE,
    decode=_NO_TABLE,
    refillable=_NO_TABLE,
    item=_NO_TABLE,
    rest=_NO_TABLE,
    time=_NONE,
    place=_NO_TABLE,
    limits=_NONE,
)


@compiled
def _latencies_to_come(  # noqa: PLR0917
    rest: Ints, owner: Ints, weight: Ints, output: Ints, at: Bytes, order: Ints
) -> int:
    """Return the least weighted sum of completions if machine time could be shared freely (Smith's rule)."""
    count = 0
    for r in range(len(at)):
        if at[r] == output[r] or weight[r] == 0:
            continue
        # Who needs less time per weight goes first.
        needed, position = rest[owner[r], at[r]], count
        while position > 0:
            other = order[position - 1]
            if rest[owner[other], at[other]] * weight[r] <= needed * weight[other]:
                break
            order[position] = other
            position -= 1
        order[position] = r
        count += 1
    clock, total = 0, 0
    for position in range(count):
        r = order[position]
        clock += rest[owner[r], at[r]]
        total += weight[r] * clock
    return int(total)


@compiled
def _write(  # noqa: PLR0917
    first: Ints, owner: Ints, at: Bytes, control: int, words: Words, row: int
) -> None:
    """Write bytes, equal requests in order, and the last word into a row."""
    last = words.shape[1] - 1
    for w in range(last):
        words[row, w] = np.uint64(0)
    words[row, last] = np.uint64(control)
    for r in range(len(at)):
        # The place of its byte among its class's: members are few, and mostly in order.
        place = first[owner[r]]
        for other in range(first[owner[r]], first[owner[r] + 1]):
            if at[other] < at[r] or (at[other] == at[r] and other < r):
                place += 1
        words[row, place >> 3] |= np.uint64(at[r]) << np.uint64(8 * (place & 7))


@compiled
def expand_requests(  # noqa: PLR0917 - one loop over what a batch may do
    requests: Requests, words: Words, state: int, cost: int, label: int, buffer: Buffer
) -> int:
    """Write a state's successors into the buffer; return their number."""
    owner, output, weight, first, size, share, extra, fill, decode, refillable, items, rest, time, place, limits = (
        requests
    )
    found_words, found_cost, found_label, found_step = buffer
    capacity, base, weighted, bound, online = limits[0], limits[1], limits[2] > 0, limits[3], len(time) > 0
    count, number = 0, len(owner)
    at, order = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.int64)
    due = 0
    for r in range(number):
        at[r] = np.int64((words[state, r >> 3] >> np.uint64(8 * (r & 7))) & np.uint64(255))
        if at[r] != output[r]:
            due += weight[r]
    control = int(np.int64(words[state, words.shape[1] - 1]))
    if control & 1:
        upper = control >> _ARRIVED
        held, running, shares = 0, 0, 0
        for r in range(number):
            k = at[r] & 63
            if at[r] >= RUNS:
                held += size[owner[r], k]
            if RUNS <= at[r] < PAUSES:
                running += 1
                shares += share[owner[r], k]
        # Fill one more: of equal ones the first.
        for r in range(number):
            c, k = owner[r], at[r]
            if k >= output[r] or (r > first[c] and at[r - 1] == k) or held + size[c, k + 1] > capacity:
                continue
            if k > 0 and not refillable[c, k + 1]:
                continue
            if k == 0 and online:
                fresh = 0
                for other in range(first[c], first[c + 1]):
                    if at[other] == 0:
                        fresh += 1
                if place[c, fresh] >= upper:
                    continue
            at[r] = RUNS + k + 1
            _write(first, owner, at, control, found_words, count)
            found_cost[count] = found_label[count] = cost
            if online:
                found_label[count] = label + fill[c, k + 1]
            elif weighted:
                found_label[count] = label + due * fill[c, k + 1]
                left = _latencies_to_come(rest, owner, weight, output, at, order)
                found_cost[count] = max(cost, found_label[count] + left - bound)
            found_step[count] = step_of(FILL, items[c, k + 1])
            at[r] = k
            count += 1
        if running:
            for r in range(number):
                if at[r] >= RUNS:
                    k = at[r] & 63
                    at[r] = k if k == output[r] else RESTS + k
            _write(first, owner, at, 0, found_words, count)
            found_cost[count] = found_label[count] = cost + base - shares
            if online:
                found_label[count] = label + base
            elif weighted:
                found_label[count] = label + due * base
                left = _latencies_to_come(rest, owner, weight, output, at, order)
                found_cost[count] = max(cost, found_label[count] + left - bound)
            found_step[count] = step_of(RUN, -1)
            count += 1
        return count
    # After a batch: evict one, let one pause, or begin the next.
    held, work = 0, 0
    for r in range(number):
        c, k = owner[r], at[r] & 63
        if at[r] >= PAUSES:
            held += size[c, k]
        elif at[r] >= RESTS:
            held += size[c, k + 1]
            work += decode[c, k + 1]
            former = at[r]
            if r > first[c] and at[r - 1] == former:
                continue
            if refillable[c, k + 1]:
                at[r] = WAITS + k
                _write(first, owner, at, 0, found_words, count)
                found_cost[count] = found_label[count] = cost + extra[c, k + 1]
                if online:
                    found_label[count] = label
                elif weighted:
                    found_label[count] = label
                    left = _latencies_to_come(rest, owner, weight, output, at, order)
                    found_cost[count] = max(cost, label + left - bound)
                found_step[count] = step_of(EVICT, items[c, k + 1])
                count += 1
            if online:
                at[r] = PAUSES + k
                _write(first, owner, at, 0, found_words, count)
                found_cost[count], found_label[count] = cost, label
                found_step[count] = step_of(PAUSE, items[c, k])
                count += 1
            at[r] = former
    if held > capacity:
        return count
    for r in range(number):
        if RESTS <= at[r] < RUNS:
            at[r] += 1 + RUNS - RESTS
    upper, idle = (arrived(time, label), 0) if online else (0, 0)
    while True:
        _write(first, owner, at, 1 + (upper << _ARRIVED), found_words, count)
        found_cost[count] = found_label[count] = cost + idle
        if online:
            found_label[count] = label + idle + work
        elif weighted:
            found_label[count] = label + due * work
            left = _latencies_to_come(rest, owner, weight, output, at, order)
            found_cost[count] = max(cost, found_label[count] + left - bound)
        found_step[count] = step_of(BEGIN, -1)
        count += 1
        if not online or upper >= len(time):
            return count
        # Or the batch waits for the next arrivals.
        idle = int(time[upper] - label)
        upper = arrived(time, time[upper])
