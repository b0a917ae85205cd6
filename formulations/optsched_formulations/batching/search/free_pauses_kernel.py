"""The compiled search of `free_pauses`, which says why what is left out here is not needed.

Requests stand in order of arrival, each with a byte: the tokens that it has generated. A state is those bytes, with a
*waste*, the time since the first arrival less the own time of the tokens so far. States are looked at in order of
waste, those of equal waste with the most work done first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.search.state_kernel import NONE, place_of
from optsched_formulations.batching.search.state_steps import Words

Numbers = npt.NDArray[np.int32]

MOST_TOKENS = 127
"""The highest bit of a byte stays free, for comparisons of eight at once."""
ARRIVAL, KIND, PROMPT, OUTPUT = range(4)
CAPACITY, BASE, WORK = range(3)
COUNT, WAITING, FRONT, LIMIT, FINISHED, PRUNED = range(6)
"""Places in ``progress``: states; those in the heap; those of the front; the makespan from which on nothing matters;
the finished state, or −1; the least bound of what was left out for its bound."""
ENDED, STOPPED, FULL, WIDE = range(4)
"""Why a search returns: nothing is left to look at, the limit of expansions, the store is full, or there is more to
choose from after one state than can be looked at; then it cannot go on."""
MOST_CHOICES = 500_000
"""Choices that are looked at after one state, a second or so, and from which on a search returns."""


class Requests(NamedTuple):
    """The requests in order of arrival, times from the first arrival on.

    Parameters
    ----------
    request
        `ARRIVAL`, `KIND` (equal for equal inputs and outputs), `PROMPT` (input) and `OUTPUT`, shape (4, requests).
    size
        Blocks in the batch of token k, shape (requests, tokens + 2).
    done
        Own time of the first k tokens, shape (requests, tokens + 1).
    weight
        Weight of the first k tokens, for several weights of which a batch holds at most ``most``, shape (weights,
        requests, tokens + 1).
    most
        Shape (weights,).
    limits
        `CAPACITY` in blocks, `BASE` of a batch, `WORK`: own time of all tokens.
    """

    request: Ints
    size: Ints
    done: Ints
    weight: Ints
    most: Ints
    limits: Ints


class Store(NamedTuple):
    """States by number with their waste and the state before; a heap of them; the front; the hash table."""

    words: Words
    waste: Ints
    work: Ints
    parent: Numbers
    heap: Numbers
    front: Numbers
    table: Numbers


@compiled
def _covers(words: Words, state: int, other: Words, row: int) -> bool:
    """Return whether every byte of a state is at least that of another."""
    high = np.uint64(0x8080808080808080)
    w, size = 0, words.shape[1]
    while w < size and (((words[state, w] | high) - other[row, w]) & high) == high:
        w += 1
    return bool(w == size)


@compiled
def _covered(words: Words, front: Numbers, count: int, other: Words, row: int) -> bool:
    """Return whether a state of the front covers a row; the latest are the likeliest."""
    place = count - 1
    while place >= 0 and not _covers(words, front[place], other, row):
        place -= 1
    return place >= 0


@compiled
def _before(waste: Ints, work: Ints, one: int, other: int) -> bool:
    """Return whether a state is looked at before another."""
    return bool(waste[one] < waste[other] or (waste[one] == waste[other] and work[one] > work[other]))


@compiled
def push(heap: Numbers, waste: Ints, work: Ints, waiting: int, state: int) -> None:
    """Put a state into the heap."""
    place = waiting
    while place > 0:
        above = (place - 1) // 2
        if not _before(waste, work, state, heap[above]):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = state


@compiled
def pop(heap: Numbers, waste: Ints, work: Ints, waiting: int) -> int:
    """Take the first state out of the heap; ``waiting`` counts it."""
    first, last, count, place = heap[0], heap[waiting - 1], waiting - 1, 0
    while 2 * place + 1 < count:
        below = 2 * place + 1
        if below + 1 < count and _before(waste, work, heap[below + 1], heap[below]):
            below += 1
        if not _before(waste, work, heap[below], last):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = last
    return int(first)


@compiled
def enter_all(store: Store, count: int) -> None:
    """Fill an empty hash table with the first states, of equal ones the last."""
    for state in range(count):
        store.table[place_of(store.words, store.table, store.words, state, NONE)] = state


@compiled
def read(words: Words, state: int, at: Ints) -> None:
    """Read the bytes of a state."""
    for r in range(len(at)):
        at[r] = np.int64((words[state, r >> 3] >> np.uint64(8 * (r & 7))) & np.uint64(255))


@compiled
def _write(request: Ints, at: Ints, row: Words) -> None:
    """Write bytes, those of equal requests in falling order."""
    for r in range(len(at)):
        for other in range(r + 1, len(at)):
            if request[KIND, r] == request[KIND, other] and at[other] > at[r]:
                at[r], at[other] = at[other], at[r]
    for w in range(row.shape[1]):
        row[0, w] = np.uint64(0)
    for r in range(len(at)):
        row[0, r >> 3] |= np.uint64(at[r]) << np.uint64(8 * (r & 7))


@compiled
def least_makespan(requests: Requests, at: Ints, clock: int) -> int:
    """Return what the makespan is at least after a batch that ends at ``clock``, as far as requests are at ``at``.

    Of every moment, now or an arrival: batches that begin from then on, and the own time of all tokens in them.
    """
    request, _, done, weight, most, limits = requests
    number, base = len(at), limits[BASE]
    least = 0
    for j in range(-1, number):
        moment = clock
        if j >= 0:
            moment = request[ARRIVAL, j]
            if moment <= clock or (j > 0 and moment == request[ARRIVAL, j - 1]):
                continue
        # Batches that begin before it, at least a base apart.
        between = number * MOST_TOKENS
        if base > 0:
            between = min(between, -((clock - moment) // base))
        batches, own = 0, 0
        for r in range(number):
            output = request[OUTPUT, r]
            # Tokens that may be generated in batches before the moment.
            came = max(clock, request[ARRIVAL, r])
            early = 0
            if came < moment:
                early = output if base == 0 else -((came - moment) // base)
            first = min(output, at[r] + early)
            own += done[r, output] - done[r, first]
            if request[ARRIVAL, r] <= moment:
                batches = max(batches, output - first)
        for v in range(len(most)):
            old, new = 0, 0
            for r in range(number):
                total = weight[v, r, request[OUTPUT, r]] - weight[v, r, at[r]]
                if j >= 0 and request[ARRIVAL, r] >= moment:
                    new += total
                else:
                    old += total
            if j >= 0:
                old = max(0, old - between * most[v])
            batches = max(batches, -(-(old + new) // most[v]))
        least = max(least, moment + base * batches + own)
    return int(least)


@compiled
def _available(request: Ints, size: Ints, at: Ints, start: int, found: Ints) -> int:
    """Write the unfinished requests that have arrived, largest first, equal inputs and bytes together, longest first.

    Return their number.
    """
    count = 0
    for r in range(len(at)):
        if request[ARRIVAL, r] > start:
            break
        if at[r] == request[OUTPUT, r]:
            continue
        place = count
        while place > 0:
            other = found[place - 1]
            ours, theirs = size[r, at[r] + 1], size[other, at[other] + 1]
            if theirs > ours:
                break
            if theirs == ours:
                if request[PROMPT, other] > request[PROMPT, r]:
                    break
                if request[PROMPT, other] == request[PROMPT, r]:
                    if at[other] > at[r]:
                        break
                    if at[other] == at[r] and request[OUTPUT, other] >= request[OUTPUT, r]:
                        break
            found[place] = other
            place -= 1
        found[place] = r
        count += 1
    return count


@compiled
def search(requests: Requests, store: Store, progress: Ints, limit: int) -> int:
    """Look at up to ``limit`` states; return why it stops."""
    request, size, done, _, _, limits = requests
    words, waste, work, parent, heap, front, table = store
    count, waiting, high, bound = progress[COUNT], progress[WAITING], progress[FRONT], progress[LIMIT]
    number, base, total = request.shape[1], limits[BASE], limits[WORK]
    at, after = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.int64)
    found, chosen = np.empty(number, dtype=np.int64), np.empty(number + 1, dtype=np.int64)
    rest = np.zeros(number + 1, dtype=np.int64)
    row = np.zeros((1, words.shape[1]), dtype=np.uint64)
    expanded, outcome, looked = 0, ENDED, 0
    while waiting > 0:
        if expanded >= limit or looked > MOST_CHOICES:
            outcome = STOPPED
            break
        state = pop(heap, waste, work, waiting)
        waiting -= 1
        # The table says that it is there at less waste, if an entry is old; then the front covers it.
        if _covered(words, front, high, words, state):
            continue
        kept = 0
        for place in range(high):
            if not _covers(words, state, words, front[place]):
                front[kept] = front[place]
                kept += 1
        front[kept] = state
        high = kept + 1
        expanded += 1
        looked_before = looked
        read(words, state, at)
        clock = waste[state] + work[state]
        start, earliest = clock, np.int64(-1)
        while True:
            available = _available(request, size, at, start, found)
            for a in range(available):
                own = done[found[a], at[found[a]] + 1] - done[found[a], at[found[a]]]
                if earliest < 0 or start + base + own < earliest:
                    earliest = start + base + own
            rest[available] = 0
            for a in range(available - 1, -1, -1):
                rest[a] = rest[a + 1] + size[found[a], at[found[a]] + 1]
            # All sets of these that fit, and to which nothing can be added, by going on from the first place that is
            # not decided: what fits is in, and then in turn the last that is in goes out.
            place, room = 0, limits[CAPACITY]
            more = available > 0
            while more:
                looked += 1
                if looked - looked_before > MOST_CHOICES:
                    outcome = WIDE
                    break
                smallest_out = np.int64(1) << 60
                for a in range(place):
                    if chosen[a] == 0:
                        smallest_out = min(smallest_out, size[found[a], at[found[a]] + 1])
                # Everything that is left together leaves room for one that is out.
                hopeless = room - rest[place] >= smallest_out
                while place < available and not hopeless:
                    r = found[place]
                    needed = size[r, at[r] + 1]
                    chosen[place] = 1 if needed <= room else 0
                    if chosen[place] and place > 0 and chosen[place - 1] == 0:
                        other = found[place - 1]
                        # Of equal inputs and bytes those with the most left go first.
                        if request[PROMPT, other] == request[PROMPT, r] and at[other] == at[r]:
                            chosen[place] = 0
                    if chosen[place]:
                        room -= needed
                    else:
                        smallest_out = min(smallest_out, needed)
                    place += 1
                if not hopeless and room < smallest_out:
                    wasted = waste[state] + start - clock + base
                    ended, left = work[state], 0
                    for r in range(number):
                        after[r] = at[r]
                        left += request[OUTPUT, r] - at[r]
                    for a in range(available):
                        if chosen[a] == 1:
                            r = found[a]
                            ended += done[r, at[r] + 1] - done[r, at[r]]
                            after[r] += 1
                            left -= 1
                    _write(request, after, row)
                    least = least_makespan(requests, after, wasted + ended)
                    if least >= bound:
                        progress[PRUNED] = min(progress[PRUNED], least)
                    elif not _covered(words, front, high, row, 0):
                        slot = place_of(words, table, row, 0, NONE)
                        known = table[slot]
                        if known == NONE or wasted < waste[known]:
                            if count == len(waste):
                                outcome = FULL
                                break
                            # A state that is reached with less waste gets a new number: the heap keeps its order.
                            table[slot] = count
                            for w in range(words.shape[1]):
                                words[count, w] = row[0, w]
                            waste[count], work[count], parent[count] = wasted, ended, state
                            if left == 0:
                                bound = wasted + ended
                                progress[FINISHED] = count
                            else:
                                push(heap, waste, work, waiting, count)
                                waiting += 1
                            count += 1
                # The last that is in goes out.
                place -= 1
                while place >= 0 and chosen[place] == 0:
                    place -= 1
                more = place >= 0
                if more:
                    chosen[place] = 0
                    room += size[found[place], at[found[place]] + 1]
                    place += 1
            if outcome != ENDED:
                break
            upcoming = 0
            while upcoming < number and request[ARRIVAL, upcoming] <= start:
                upcoming += 1
            if upcoming == number:
                break
            # Or wait for the next arrival, unless there is time for a batch before it.
            start = request[ARRIVAL, upcoming]
            if 0 <= earliest <= start:
                break
            least = waste[state] + start - clock + base + total
            if least >= bound:
                progress[PRUNED] = min(progress[PRUNED], least)
                break
        if outcome == WIDE:
            break
        if outcome == FULL:
            # Once there is room it is looked at again; what it covered in the front comes back with it.
            high -= 1
            push(heap, waste, work, waiting, state)
            waiting += 1
            break
    progress[COUNT], progress[WAITING], progress[FRONT], progress[LIMIT] = count, waiting, high, bound
    return outcome
