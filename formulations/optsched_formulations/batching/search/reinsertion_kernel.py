"""Taking two requests out of a schedule of some number of batches and putting them back as well as can be, compiled."""

from __future__ import annotations

from typing import NamedTuple

from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats

NEVER = 1 << 61
"""Cost of what cannot be; others add up to less than half of it."""
PICKS = 6
"""Numbers in [0, 1) that a move takes besides one for each batch."""
_MEND, _KEEP = 0.7, 0.5
"""How often a move takes a request of a batch that holds too much, and else one that is refilled."""


class Tokens(NamedTuple):
    """Tokens of all requests, those of request r from ``first[r]`` to ``first[r + 1] - 1``.

    ``size`` has the blocks that each holds in its batch, ``extra`` what a refill for it costs.
    """

    first: Ints
    size: Ints
    extra: Ints


@compiled
def move_pairs(  # noqa: PLR0917 - compiled functions take positions
    tokens: Tokens,
    capacity: int,
    at: Ints,
    weight: Ints,
    dearer: int,
    most: int,
    room: Ints,
    value: Ints,
    draws: Floats,
) -> int:
    """Move two requests to where they cost least among the others, once for every row of draws; return what overflows.

    Parameters
    ----------
    tokens
        Of all requests.
    capacity
        Blocks of the cache.
    at
        The batch of every token, which is changed.
    weight
        What a block that a batch holds too much costs there; it grows by ``dearer`` where a move is to mend one.
    most
        Batches times tokens of both that one move may look at; if there are more, it keeps to a window of batches.
    room
        Room for the blocks that every batch has left.
    value
        Room for four numbers for each of ``most`` states and those of one more batch.
    draws
        Numbers in [0, 1), `PICKS` and one for each batch.
    """
    first, size, _ = tokens
    batches, requests = len(room), len(first) - 1
    room[:] = capacity
    for k in range(len(at)):
        room[at[k]] -= size[k]
    for row in range(len(draws)):
        pick = draws[row]
        one, around = -1, -1
        crowded = 0
        for t in range(batches):
            crowded += room[t] < 0
        if crowded and pick[0] < _MEND:
            nth = int(pick[1] * crowded)
            for t in range(batches):
                if room[t] < 0:
                    if nth == 0:
                        around = t
                        break
                    nth -= 1
            weight[around] += dearer
            one = _running(first, at, around, pick[2])
        elif pick[0] < _KEEP:
            one, around = _refilled(first, at, pick[1])
        if one < 0:
            one = int(pick[1] * requests)
            around = int(pick[2] * batches)
        other = int(pick[3] * (requests - 1))
        if other >= one:
            other += 1
        begin, end = _window(
            first[one + 1] - first[one], first[other + 1] - first[other], batches, around, pick[4], most
        )
        _place(tokens, one, other, begin, end, at, room, weight, value, pick[PICKS:])
    over = 0
    for t in range(batches):
        over += max(0, -room[t])
    return over


@compiled
def refills_of(tokens: Tokens, at: Ints) -> int:
    """Return what refills cost: the tokens that are not in the batch behind the one before."""
    first, _, extra = tokens
    cost = 0
    for r in range(len(first) - 1):
        for k in range(first[r] + 1, first[r + 1]):
            if at[k] != at[k - 1] + 1:
                cost += extra[k]
    return cost


@compiled_part
def _running(first: Ints, at: Ints, batch: int, pick: float) -> int:
    """Return one of the requests that run in a batch."""
    running = 0
    for k in range(len(at)):
        running += at[k] == batch
    nth = int(pick * running)
    for r in range(len(first) - 1):
        for k in range(first[r], first[r + 1]):
            if at[k] == batch:
                if nth == 0:
                    return r
                nth -= 1
    return -1


@compiled_part
def _refilled(first: Ints, at: Ints, pick: float) -> tuple[int, int]:
    """Return a request that is refilled, and the batch; −1 and −1 if none is."""
    refills = 0
    for r in range(len(first) - 1):
        for k in range(first[r] + 1, first[r + 1]):
            refills += at[k] != at[k - 1] + 1
    nth = int(pick * refills)
    for r in range(len(first) - 1):
        for k in range(first[r] + 1, first[r + 1]):
            if at[k] != at[k - 1] + 1:
                if nth == 0:
                    return r, at[k]
                nth -= 1
    return -1, -1


@compiled_part
def _window(  # noqa: PLR0917 - compiled functions take positions
    one: int, other: int, batches: int, around: int, pick: float, most: int
) -> tuple[int, int]:
    """Return the first batch, and the one behind the last, around a batch, for two requests of as many tokens as given."""
    length = batches
    while length > 1 and (length + 1) * (min(length, one) + 1) * (min(length, other) + 1) > most:
        length = max(1, length * 9 // 10)
    begin = min(max(0, around - int(pick * length)), batches - length)
    return begin, begin + length


@compiled
def _place(  # noqa: PLR0917 - compiled functions take positions
    tokens: Tokens,
    one: int,
    other: int,
    begin: int,
    end: int,
    at: Ints,
    room: Ints,
    weight: Ints,
    value: Ints,
    draws: Floats,
) -> None:
    """Place what two requests generate in some batches where it costs least, among equals by lot.

    A state has how many of these tokens each has generated, and whether it ran in the batch before: its value is what
    the batches from some one on cost at least.
    """
    first, size, extra = tokens
    last_one, last_other = first[one + 1], first[other + 1]
    p = first[one]
    while p < last_one and at[p] < begin:
        p += 1
    q = first[other]
    while q < last_other and at[q] < begin:
        q += 1
    m, n = 0, 0
    while p + m < last_one and at[p + m] < end:
        room[at[p + m]] += size[p + m]
        m += 1
    while q + n < last_other and at[q + n] < end:
        room[at[q + n]] += size[q + n]
        n += 1
    across, down = 4, 4 * (n + 1)
    layer = down * (m + 1)
    value[: (end - begin + 1) * layer] = NEVER
    # Of tokens right behind the window: a refill unless their request runs to its end.
    next_one = extra[p + m] if p + m < last_one and at[p + m] == end else 0
    next_other = extra[q + n] if q + n < last_other and at[q + n] == end else 0
    final = (end - begin) * layer + m * down + n * across
    value[final], value[final + 1] = next_one + next_other, next_other
    value[final + 2], value[final + 3] = next_one, 0
    for t in range(end - 1, begin - 1, -1):
        left, past, free, dear = end - t, t - begin, max(0, room[t]), weight[t]
        here, there = past * layer, (past + 1) * layer
        for a in range(max(0, m - left), min(m, past) + 1):
            size_a, extra_a = (size[p + a], extra[p + a]) if a < m else (0, 0)
            for b in range(max(0, n - left), min(n, past) + 1):
                state = there + a * down + b * across
                none = value[state]
                first_runs, second_runs, both_run = NEVER, NEVER, NEVER
                size_b, extra_b = (size[q + b], extra[q + b]) if b < n else (0, 0)
                if a < m:
                    first_runs = value[state + down + 1] + dear * max(0, size_a - free)
                if b < n:
                    second_runs = value[state + across + 2] + dear * max(0, size_b - free)
                    if a < m:
                        both_run = value[state + down + across + 3] + dear * max(0, size_a + size_b - free)
                state += here - there
                value[state] = min(none, first_runs + extra_a, second_runs + extra_b, both_run + extra_a + extra_b)
                value[state + 1] = min(none, first_runs, second_runs + extra_b, both_run + extra_b)
                value[state + 2] = min(none, first_runs + extra_a, second_runs, both_run + extra_a)
                value[state + 3] = min(none, first_runs, second_runs, both_run)
    ran_one = p > first[one] and at[p - 1] == begin - 1
    ran_other = q > first[other] and at[q - 1] == begin - 1
    a, b, ran = 0, 0, int(ran_one) + 2 * int(ran_other)
    for t in range(begin, end):
        free, dear = max(0, room[t]), weight[t]
        state, there = (t - begin) * layer + a * down + b * across, (t + 1 - begin) * layer
        least, ways = value[state + ran], 0
        for run in range(4):
            ways += _cost(tokens, p, q, a, b, m, n, ran, run, free, dear, value, there, down) == least
        nth = int(draws[t] * ways)
        for run in range(4):
            if _cost(tokens, p, q, a, b, m, n, ran, run, free, dear, value, there, down) == least:
                if nth == 0:
                    ran = run
                    break
                nth -= 1
        if ran & 1:
            at[p + a] = t
            room[t] -= size[p + a]
            a += 1
        if ran & 2:
            at[q + b] = t
            room[t] -= size[q + b]
            b += 1


@compiled_part
def _cost(  # noqa: PLR0917 - compiled functions take positions
    tokens: Tokens,
    p: int,
    q: int,
    a: int,
    b: int,
    m: int,
    n: int,
    ran: int,
    run: int,
    free: int,
    dear: int,
    value: Ints,
    there: int,
    down: int,
) -> int:
    """Return what the batches from one on cost if some of two requests run in it: 1 the one, 2 the other, 3 both."""
    _, size, extra = tokens
    one, other = run & 1, run >> 1
    if a + one > m or b + other > n:
        return NEVER
    cost, held = int(value[there + (a + one) * down + (b + other) * 4 + run]), 0
    if one:
        held += size[p + a]
        if not ran & 1:
            cost += extra[p + a]
    if other:
        held += size[q + b]
        if not ran & 2:
            cost += extra[q + b]
    return cost + dear * max(0, held - free)
