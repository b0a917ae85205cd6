"""Taking two requests out of a schedule of some number of batches and putting them back as well as can be, compiled."""

from __future__ import annotations

from typing import NamedTuple

from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats

NEVER = 1 << 61
"""Cost of what cannot be; others add up to less than half of it."""
PICKS = 5
"""Numbers in [0, 1) that a move takes besides one for each batch."""
_MEND, _KEEP = 0.7, 0.5
"""How often a move takes a request of a batch that holds too much, and else one that is refilled."""


class Tokens(NamedTuple):
    """Tokens of all requests, those of request r from ``first[r]`` to ``first[r + 1] - 1``; a batch costs ``base``.

    ``size`` has the blocks that each holds in its batch, ``work`` the time that it takes there beside the base,
    ``extra`` how much longer a refill takes, and ``arrival`` those of requests.
    """

    first: Ints
    size: Ints
    work: Ints
    extra: Ints
    arrival: Ints
    base: int


class Scratch(NamedTuple):
    """What moves write: room left in every batch, values of states, clocks of batches, and where tokens were.

    The values are four for each of the most states that one move may look at, the clocks three of every batch.
    """

    room: Ints
    value: Ints
    clock: Ints
    before: Ints


@compiled
def move_pairs(  # noqa: PLR0917 - compiled functions take positions
    tokens: Tokens, capacity: int, at: Ints, weight: Ints, dearer: int, scratch: Scratch, draws: Floats
) -> int:
    """Move two requests to where they cost least among the others, once for every row of draws; return what overflows.

    Where requests arrive at different times what waiting costs is estimated, and moves that cost more are taken back.

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
    scratch
        Of as many batches. Where batches times tokens of both are more than it has values for, a move keeps to a window
        of batches.
    draws
        Numbers in [0, 1), `PICKS` and one for each batch.
    """
    first, size, arrival, (room, value, clock, before) = tokens.first, tokens.size, tokens.arrival, scratch
    batches, requests, online = len(room), len(first) - 1, arrival.max() > 0
    room[:] = capacity
    for k in range(len(at)):
        room[at[k]] -= size[k]
    cost = _paid(tokens, at, weight, room, clock) if online else 0
    for row in range(len(draws)):
        pick = draws[row]
        one, around = -1, _crowded(room, pick[1])
        if around >= 0 and pick[0] < _MEND:
            weight[around] += dearer
            cost -= dearer * room[around]
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
            first[one + 1] - first[one], first[other + 1] - first[other], batches, around, pick[4], len(value) // 4
        )
        if online:
            before[:] = at
            _clocks(tokens, at, one, other, begin, end, clock)
        _place(tokens, one, other, begin, end, at, weight, scratch, pick[PICKS:])
        if not online:
            continue
        now = _paid(tokens, at, weight, room, clock)
        if now <= cost:
            cost = now
            continue
        for r in (one, other):
            for k in range(first[r], first[r + 1]):
                room[at[k]] += size[k]
                at[k] = before[k]
                room[at[k]] -= size[k]
    over = 0
    for t in range(batches):
        over += max(0, -room[t])
    return over


@compiled
def ending(tokens: Tokens, at: Ints, clock: Ints) -> int:
    """Return when the last batch ends; the clocks of batches are written to ``clock[2]``."""
    return _clocks(tokens, at, -1, -1, 0, 0, clock)


@compiled
def _paid(tokens: Tokens, at: Ints, weight: Ints, room: Ints, clock: Ints) -> int:
    """Return when the last batch ends, and what is too much costs."""
    cost = _clocks(tokens, at, -1, -1, 0, 0, clock)
    for t in range(len(room)):
        cost += weight[t] * max(0, -room[t])
    return cost


@compiled
def _clocks(  # noqa: PLR0917 - compiled functions take positions
    tokens: Tokens, at: Ints, one: int, other: int, begin: int, end: int, clock: Ints
) -> int:
    """Write when batches begin without what two requests do in some of them, and return when the last one ends."""
    first, _, work, extra, arrival, base = tokens
    lasts, released, starts = clock
    lasts[:], released[:] = base, 0
    for r in range(len(first) - 1):
        moves = r == one or r == other  # noqa: PLR1714 - sets take their time
        for k in range(first[r], first[r + 1]):
            t = at[k]
            if moves and begin <= t < end:
                continue
            lasts[t] += work[k]
            if k == first[r]:
                released[t] = max(released[t], arrival[r])
            elif at[k - 1] != t - 1:
                lasts[t] += extra[k]
    now = 0
    for t in range(len(starts)):
        starts[t] = max(now, released[t])
        now = starts[t] + lasts[t]
    return now


@compiled_part
def _crowded(room: Ints, pick: float) -> int:
    """Return one of the batches that hold too much; −1 if none does."""
    crowded = 0
    for t in range(len(room)):
        crowded += room[t] < 0
    nth = int(pick * crowded)
    for t in range(len(room)):
        if room[t] < 0:
            if nth == 0:
                return t
            nth -= 1
    return -1


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
    """Return the first batch, and the one behind the last, around a batch, for two requests by their tokens."""
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
    weight: Ints,
    scratch: Scratch,
    draws: Floats,
) -> None:
    """Place what two requests generate in some batches where it costs least, among equals by lot.

    A state has how many of these tokens each has generated, and whether it ran in the batch before: its value is what
    the batches from some one on cost at least. Waiting for an arrival costs what the clocks of batches say, and what
    the other request has done before.
    """
    first, size, work, extra, arrival, _ = tokens
    room, value, clock, _ = scratch
    starts = clock[2]
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
    # When each may begin, 0 if it has begun before.
    from_one = arrival[one] if p == first[one] else 0
    from_other = arrival[other] if q == first[other] else 0
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
        done_one = 0
        for a in range(min(m, past) + 1):
            done_one += work[p + a - 1] if a else 0
            if a < m - left:
                continue
            size_a, extra_a = (size[p + a], extra[p + a]) if a < m else (0, 0)
            done_other = 0
            for b in range(min(n, past) + 1):
                done_other += work[q + b - 1] if b else 0
                if b < n - left:
                    continue
                state = there + a * down + b * across
                none = value[state]
                first_runs, second_runs, both_run = NEVER, NEVER, NEVER
                size_b, extra_b = (size[q + b], extra[q + b]) if b < n else (0, 0)
                wait_one = max(0, from_one - starts[t] - done_other) if from_one and a == 0 else 0
                wait_other = max(0, from_other - starts[t] - done_one) if from_other and b == 0 else 0
                if a < m:
                    first_runs = value[state + down + 1] + dear * max(0, size_a - free) + wait_one
                if b < n:
                    second_runs = value[state + across + 2] + dear * max(0, size_b - free) + wait_other
                    if a < m:
                        both_run = value[state + down + across + 3] + dear * max(0, size_a + size_b - free)
                        both_run += max(wait_one, wait_other)
                state += here - there
                value[state] = min(none, first_runs + extra_a, second_runs + extra_b, both_run + extra_a + extra_b)
                value[state + 1] = min(none, first_runs, second_runs + extra_b, both_run + extra_b)
                value[state + 2] = min(none, first_runs + extra_a, second_runs, both_run + extra_a)
                value[state + 3] = min(none, first_runs, second_runs, both_run)
    ran_one = p > first[one] and at[p - 1] == begin - 1
    ran_other = q > first[other] and at[q - 1] == begin - 1
    a, b, ran = 0, 0, int(ran_one) + 2 * int(ran_other)
    done_one, done_other = 0, 0
    for t in range(begin, end):
        there = (t + 1 - begin) * layer + a * down + b * across
        least, ways = value[there - layer + ran], 0
        wait_one = max(0, from_one - starts[t] - done_other) if from_one and a == 0 else 0
        wait_other = max(0, from_other - starts[t] - done_one) if from_other and b == 0 else 0
        free, dear = max(0, room[t]), weight[t]
        # What each way to go on costs; the last of the least ones that the lot does not pass over is taken.
        nth, chosen = draws[t], 0
        for run in range(4):
            if (run & 1 and a == m) or (run & 2 and b == n):
                continue
            held, cost = 0, value[there + (run & 1) * down + (run >> 1) * across + run]
            if run & 1:
                held += size[p + a]
                cost += 0 if ran & 1 else extra[p + a]
            if run & 2:
                held += size[q + b]
                cost += 0 if ran & 2 else extra[q + b]
            if run == 3:
                cost += max(wait_one, wait_other)
            elif run:
                cost += wait_one if run == 1 else wait_other
            if cost + dear * max(0, held - free) == least:
                ways += 1
                # The k-th of them stands with chance 1 / k.
                if nth * ways < 1.0:
                    chosen = run
                    nth *= ways
                else:
                    nth = (nth * ways - 1.0) / (ways - 1.0)
        ran = chosen
        if ran & 1:
            at[p + a] = t
            room[t] -= size[p + a]
            done_one += work[p + a]
            a += 1
        if ran & 2:
            at[q + b] = t
            room[t] -= size[q + b]
            done_other += work[q + b]
            b += 1
