"""The compiled search of `free_pauses` where requests that pause hold their prompt, or are evicted at a price.

States are those of `free_pauses_kernel` with one more word, a bit for each request that is resident.
"""

from __future__ import annotations

import numpy as np

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.search.free_pauses_kernel import (
    ARRIVAL,
    BASE,
    CAPACITY,
    COUNT,
    ENDED,
    FINISHED,
    FRONT,
    FULL,
    KIND,
    LIMIT,
    MOST_CHOICES,
    OUTPUT,
    PRUNED,
    STOPPED,
    WAITING,
    WIDE,
    WORK,
    Numbers,
    Requests,
    Store,
    least_makespan,
    pop,
    push,
    read,
)
from optsched_formulations.batching.search.state_kernel import NONE, place_of
from optsched_formulations.batching.search.state_steps import Words

MOST_REQUESTS = 64
_WINDOW = 2000
"""States of the front that others are compared with, the latest."""
_MUCH = 1 << 60
_RUN, _PAUSE, _EVICT = range(3)
"""What a resident request does; another is filled (as it runs) or waits (as it pauses)."""


@compiled
def _covers(  # noqa: PLR0917
    price: Ints, words: Words, waste: Ints, state: int, other: Words, row: int, most: int
) -> bool:
    """Return whether a state has as many tokens as another, and no more waste if it evicts what only it holds."""
    high = np.uint64(0x8080808080808080)
    w, bits = 0, words.shape[1] - 1
    while w < bits and (((words[state, w] | high) - other[row, w]) & high) == high:
        w += 1
    if w < bits:
        return False
    alone, paid, r = words[state, bits] & ~other[row, bits], waste[state], 0
    while alone != np.uint64(0) and paid <= most:
        if alone & np.uint64(1):
            paid += price[r]
        alone >>= np.uint64(1)
        r += 1
    return bool(paid <= most)


@compiled
def _covered(  # noqa: PLR0917
    price: Ints, words: Words, waste: Ints, front: Numbers, count: int, other: Words, row: int, most: int
) -> bool:
    """Return whether one of the latest states of the front covers a row."""
    place, last = count - 1, max(-1, count - 1 - _WINDOW)
    while place > last and not _covers(price, words, waste, front[place], other, row, most):
        place -= 1
    return place > last


@compiled
def _write(request: Ints, at: Ints, resident: Ints, row: Words) -> None:
    """Write bytes and bits, those of equal requests in falling order."""
    for r in range(len(at)):
        for other in range(r + 1, len(at)):
            ahead = 2 * at[other] + resident[other] > 2 * at[r] + resident[r]
            if ahead and request[KIND, r] == request[KIND, other]:
                at[r], at[other] = at[other], at[r]
                resident[r], resident[other] = resident[other], resident[r]
    bits = row.shape[1] - 1
    for w in range(bits + 1):
        row[0, w] = np.uint64(0)
    for r in range(len(at)):
        row[0, r >> 3] |= np.uint64(at[r]) << np.uint64(8 * (r & 7))
        row[0, bits] |= np.uint64(resident[r]) << np.uint64(r)


@compiled
def in_order(request: Ints, at: Ints, resident: Ints, start: int, found: Ints) -> int:
    """Write the unfinished requests that have arrived, resident ones first, equal ones together.

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
            if resident[other] != resident[r]:
                if resident[other] == 1:
                    break
            elif request[KIND, other] < request[KIND, r] or (
                request[KIND, other] == request[KIND, r] and at[other] >= at[r]
            ):
                break
            found[place] = other
            place -= 1
        found[place] = r
        count += 1
    return count


@compiled
def search_holding(  # noqa: PLR0917 - one loop over what a batch may do
    requests: Requests, price: Ints, hold: Ints, evictions: bool, store: Store, progress: Ints, limit: int
) -> int:
    """Look at up to ``limit`` states; return why it stops.

    To evict request r takes ``price[r]``; if it pauses after token k it holds ``hold[r, k]`` blocks.
    """
    request, size, done, _, _, limits = requests
    words, waste, work, parent, heap, front, table = store
    count, waiting, high, bound = progress[COUNT], progress[WAITING], progress[FRONT], progress[LIMIT]
    number, base, total, capacity = request.shape[1], limits[BASE], limits[WORK], limits[CAPACITY]
    at, after = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.int64)
    resident, left_over = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.int64)
    found, does = np.empty(number, dtype=np.int64), np.empty(number + 1, dtype=np.int64)
    rest = np.zeros(number + 1, dtype=np.int64)
    row = np.zeros((1, words.shape[1]), dtype=np.uint64)
    expanded, outcome, looked = 0, ENDED, 0
    while waiting > 0:
        if expanded >= limit or looked > MOST_CHOICES:
            outcome = STOPPED
            break
        state = pop(heap, waste, work, waiting)
        waiting -= 1
        if _covered(price, words, waste, front, high, words, state, waste[state]):
            continue
        front[high] = state
        high += 1
        expanded += 1
        looked_before = looked
        read(words, state, at)
        held, unfinished, all_evicted, peaks = 0, 0, 0, 0
        for r in range(number):
            resident[r] = np.int64((words[state, words.shape[1] - 1] >> np.uint64(r)) & np.uint64(1))
            held += resident[r] * hold[r, at[r]]
            all_evicted += resident[r] * price[r] if evictions else 0
            unfinished += request[OUTPUT, r] - at[r]
            peaks += size[r, request[OUTPUT, r]] if at[r] < request[OUTPUT, r] else 0
        clock = waste[state] + work[state]
        start, earliest = clock, np.int64(_MUCH)
        while True:
            available = in_order(request, at, resident, start, found)
            before = earliest
            for a in range(available):
                # Could it run alone, while the residents pause, and take no memory afterwards that it does not have?
                r = found[a]
                room = capacity - held + resident[r] * hold[r, at[r]]
                lasts = peaks <= capacity or resident[r] == 1 or at[r] + 1 == request[OUTPUT, r]
                if lasts and size[r, at[r] + 1] <= room:
                    earliest = min(earliest, start + base + done[r, at[r] + 1] - done[r, at[r]])
            rest[available] = 0
            for a in range(available - 1, -1, -1):
                rest[a] = rest[a + 1] + size[found[a], at[found[a]] + 1]
            # All choices of what they do, by a counter whose last place changes first: ``does`` of the places before
            # ``place`` is decided, that at ``place`` is the last choice that was looked at, or −1.
            place, room = 0, capacity
            does[0] = -1
            while place >= 0 and available > 0:
                looked += 1
                if looked - looked_before > MOST_CHOICES:
                    outcome = WIDE
                    break
                r = found[place]
                run, keep, here = size[r, at[r] + 1], resident[r] * hold[r, at[r]], resident[r] == 1
                choice = does[place]
                if choice == _RUN:
                    room += run
                elif choice == _PAUSE:
                    room += keep
                choice += 1
                if choice == _RUN and place > 0:
                    other = found[place - 1]
                    if (
                        request[KIND, other] == request[KIND, r]
                        and at[other] == at[r]
                        and resident[other] == resident[r]
                    ):
                        # Of equal ones the first run, and the last are evicted.
                        choice = does[place - 1]
                if choice == _RUN and run > room:
                    choice = _PAUSE
                if choice == _PAUSE and keep > room:
                    choice = _EVICT
                if choice > _EVICT or (choice == _EVICT and not (here and evictions)) or (choice and peaks <= capacity):
                    place -= 1
                    continue
                does[place] = choice
                room -= run if choice == _RUN else keep if choice == _PAUSE else 0
                # Room that must not be left at the end.
                least_room = np.int64(_MUCH)
                for a in range(place + 1):
                    q = found[a]
                    if does[a] == _PAUSE and resident[q] == 1:
                        least_room = min(least_room, size[q, at[q] + 1] - hold[q, at[q]])
                    elif does[a] == _PAUSE and at[q] + 1 == request[OUTPUT, q]:
                        least_room = min(least_room, size[q, at[q] + 1])
                    elif does[a] == _EVICT and start == clock:
                        least_room = min(least_room, hold[q, at[q]])
                if room - rest[place + 1] >= least_room:
                    continue
                if place + 1 < available:
                    place += 1
                    does[place] = -1
                    continue
                left, paid, ended, peaks_left = unfinished, 0, work[state], peaks
                for q in range(number):
                    after[q], left_over[q] = at[q], resident[q]
                for a in range(available):
                    q = found[a]
                    if does[a] == _RUN:
                        ended += done[q, at[q] + 1] - done[q, at[q]]
                        after[q] += 1
                        left -= 1
                        left_over[q] = 1
                        if after[q] == request[OUTPUT, q]:
                            left_over[q] = 0
                            peaks_left -= size[q, after[q]]
                    elif does[a] == _EVICT:
                        paid += price[q]
                        left_over[q] = 0
                if left == unfinished or before + paid <= start:
                    continue
                if peaks_left <= capacity:
                    # From here on everything fits, also if all are resident: it does not matter which are.
                    left_over[:] = 0
                wasted = waste[state] + max(start - clock, paid) + base
                _write(request, after, left_over, row)
                least = least_makespan(requests, after, wasted + ended)
                if least >= bound:
                    progress[PRUNED] = min(progress[PRUNED], least)
                    continue
                if _covered(price, words, waste, front, high, row, 0, wasted):
                    continue
                slot = place_of(words, table, row, 0, NONE)
                known = table[slot]
                if known != NONE and wasted >= waste[known]:
                    continue
                if count == len(waste):
                    outcome = FULL
                    break
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
            if outcome != ENDED:
                break
            upcoming = 0
            while upcoming < number and request[ARRIVAL, upcoming] <= start:
                upcoming += 1
            if upcoming == number:
                break
            # Or wait for the next arrival, unless there is time for a batch before it, whatever is evicted.
            start = request[ARRIVAL, upcoming]
            if earliest + all_evicted <= start:
                break
            least = waste[state] + start - clock + base + total
            if least >= bound:
                progress[PRUNED] = min(progress[PRUNED], least)
                break
        if outcome == WIDE:
            break
        if outcome == FULL:
            # Once there is room it is looked at again.
            high -= 1
            push(heap, waste, work, waiting, state)
            waiting += 1
            break
    progress[COUNT], progress[WAITING], progress[FRONT], progress[LIMIT] = count, waiting, high, bound
    return outcome
