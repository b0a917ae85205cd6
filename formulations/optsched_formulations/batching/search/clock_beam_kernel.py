"""The compiled loops of `clock_beam`: what one batch may do after a state, and which states are worse than others.

Requests stand in order of arrival. A state is the tokens of every request, whether it is *resident*, and the
*waste*: the time since the first arrival less the own time of first fills and decodes so far.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints
from optsched_formulations.batching.search.free_pauses_kernel import (
    ARRIVAL,
    BASE,
    CAPACITY,
    KIND,
    OUTPUT,
    Requests,
    least_makespan,
)
from optsched_formulations.batching.search.held_pauses_kernel import in_order

Bytes = npt.NDArray[np.uint8]

FINISHED = -1
"""Key of a finished state."""
_MUCH = 1 << 60
_RUN, _PAUSE, _EVICT = range(3)
"""What a resident request does; another is filled (as it runs) or waits (as it pauses)."""
_WINDOW = 3_000
"""States that others are compared with, the latest."""


class States(NamedTuple):
    """States by number.

    Parameters
    ----------
    tokens, resident
        Of every request, shapes (states, requests).
    waste, clock, parent
        Its waste, the end of its batch, and the state before. Shapes (states,).
    key
        By what states of about the same clock are compared, the less the better; `FINISHED` if nothing is left.
    """

    tokens: Bytes
    resident: Bytes
    waste: Ints
    clock: Ints
    parent: Ints
    key: Ints


@compiled
def follow(  # noqa: PLR0917 - one loop over what a batch may do
    requests: Requests, price: Ints, evictions: bool, here: States, first: int, there: States, most: int, beyond: int
) -> tuple[int, int]:
    """Write what follows on states from ``first`` on; return the first that is left, and how many were written.

    After each up to ``most`` choices are looked at. It stops where there might be no room for those of the next.
    """
    request, size, done, weight, heaviest, limits = requests
    number, base, capacity, v = request.shape[1], limits[BASE], limits[CAPACITY], len(heaviest) - 1
    at, after = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.int64)
    resident, left_over = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.int64)
    found, does = np.empty(number, dtype=np.int64), np.empty(number + 1, dtype=np.int64)
    rest = np.zeros(number + 1, dtype=np.int64)
    state, count = first, 0
    while state < len(here.waste) and count + most <= len(there.waste):
        held, unfinished, looked = 0, 0, 0
        for r in range(number):
            at[r], resident[r] = here.tokens[state, r], here.resident[state, r]
            held += resident[r] * size[r, at[r]]
            unfinished += request[OUTPUT, r] - at[r]
        clock = here.clock[state]
        start, earliest = clock, np.int64(_MUCH)
        while True:
            available = in_order(request, at, resident, start, found)
            for a in range(available):
                # When it would have run alone, and would be evicted, if it came to that.
                r = found[a]
                if held + size[r, at[r] + 1] - resident[r] * size[r, at[r]] <= capacity:
                    end = start + base + done[r, at[r] + 1] - done[r, at[r]]
                    earliest = min(earliest, end + price[r, at[r] + 1])
            rest[available] = 0
            for a in range(available - 1, -1, -1):
                rest[a] = rest[a + 1] + size[found[a], at[found[a]] + 1]
            # All choices of what they do, by a counter whose last place changes first, as in `search_holding`.
            place, room = 0, capacity
            does[0] = -1
            while place >= 0 and available > 0 and looked < most:
                r = found[place]
                run, keep, here_it_is = size[r, at[r] + 1], resident[r] * size[r, at[r]], resident[r] == 1
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
                        choice = does[place - 1]
                if choice == _RUN and run > room:
                    choice = _PAUSE
                if choice == _PAUSE and keep > room:
                    choice = _EVICT
                if choice > _EVICT or (choice == _EVICT and not (here_it_is and evictions)):
                    place -= 1
                    continue
                does[place] = choice
                room -= run if choice == _RUN else keep if choice == _PAUSE else 0
                # Room that must not be left at the end.
                least_room = np.int64(_MUCH)
                for a in range(place + 1):
                    q = found[a]
                    if does[a] == _PAUSE and resident[q] == 1:
                        least_room = min(least_room, size[q, at[q] + 1] - size[q, at[q]])
                    elif does[a] == _PAUSE and at[q] + 1 == request[OUTPUT, q]:
                        least_room = min(least_room, size[q, at[q] + 1])
                    elif does[a] == _EVICT:
                        least_room = min(least_room, size[q, at[q]])
                if room - rest[place + 1] >= least_room:
                    continue
                if place + 1 < available:
                    place += 1
                    does[place] = -1
                    continue
                looked += 1
                left, wasted = unfinished, here.waste[state] + start - clock + base
                for q in range(number):
                    after[q], left_over[q] = at[q], resident[q]
                for a in range(available):
                    q = found[a]
                    if does[a] == _RUN:
                        wasted += 0 if resident[q] else price[q, at[q]]
                        after[q] += 1
                        left -= 1
                        left_over[q] = 1 if after[q] < request[OUTPUT, q] else 0
                    elif does[a] == _EVICT:
                        left_over[q] = 0
                if left == unfinished:
                    continue
                ended, owed, to_come = wasted, 0, 0
                for q in range(number):
                    ended += done[q, after[q]]
                    to_come += weight[v, q, request[OUTPUT, q]] - weight[v, q, after[q]]
                    owed += 0 if left_over[q] else price[q, after[q]]
                if least_makespan(requests, after, ended) >= beyond:
                    continue
                for q in range(number):
                    there.tokens[count, q], there.resident[count, q] = after[q], left_over[q]
                there.waste[count], there.clock[count], there.parent[count] = wasted, ended, state
                there.key[count] = FINISHED if left == 0 else wasted + owed + base * to_come // heaviest[v]
                count += 1
            upcoming = 0
            while upcoming < number and request[ARRIVAL, upcoming] <= start:
                upcoming += 1
            if upcoming == number:
                break
            # Or wait for the next arrival, unless there is time for a batch before it.
            start = request[ARRIVAL, upcoming]
            if earliest <= start:
                break
        state += 1
    return state, count


@compiled
def sort_equal(kind: Ints, tokens: Bytes, resident: Bytes) -> None:
    """Put requests of a kind in falling order in every state, so that states that differ in names are equal."""
    for state in range(len(tokens)):
        for r in range(1, len(kind)):
            mine, mine_resident, place = tokens[state, r], resident[state, r], r
            other = place - 1
            while other >= 0:
                if kind[other] == kind[r]:
                    theirs = tokens[state, other]
                    if theirs > mine or (theirs == mine and resident[state, other] >= mine_resident):
                        break
                    tokens[state, place], resident[state, place] = theirs, resident[state, other]
                    place = other
                other -= 1
            tokens[state, place], resident[state, place] = mine, mine_resident


@compiled
def not_worse(price: Ints, tokens: Bytes, resident: Bytes, paid: Ints) -> npt.NDArray[np.bool_]:
    """Return which states, in order of ``paid``, none before is as good as.

    ``paid`` is a state's waste and what its refills to come take. A state is as good as another if it has as many
    tokens of every request and has paid no more, also if it pays to evict what holds more there than in the other.
    """
    count, number = tokens.shape
    keep = np.ones(count, dtype=np.bool_)
    kept = np.empty(count, dtype=np.int64)
    high = 0
    for state in range(count):
        place, last, better = high - 1, max(-1, high - 1 - _WINDOW), False
        while place > last and not better:
            other = kept[place]
            total, r = paid[other], 0
            better = True
            while better and r < number:
                mine, theirs = tokens[state, r], tokens[other, r]
                if theirs < mine:
                    better = False
                elif resident[other, r] and (theirs > mine or not resident[state, r]):
                    total += price[r, theirs]
                    better = total <= paid[state]
                r += 1
            place -= 1
        if better:
            keep[state] = False
        else:
            kept[high] = state
            high += 1
    return keep
