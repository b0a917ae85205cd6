"""The compiled loops of `clock_beam`: what one batch may do after a state, and which states are worse than others.

Requests stand in order of arrival. A state is the tokens of every request, whether it is *resident*, and the
*waste*: the time since the first arrival less the own time of first fills and decodes so far.

Of what a batch may do the choices are taken that gain the most: the weights of the tokens that it generates, in bases,
less what refills of those that it evicts take beyond their decodes.
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
Floats = npt.NDArray[np.float64]

FINISHED = -1
"""Key of a finished state."""
_MUCH = 1 << 60
_RUN, _PAUSE, _EVICT = range(3)
"""What a resident request does; another is filled (as it runs) or waits (as it pauses)."""
_WINDOW = 3_000
"""States that others are compared with, the latest."""
_MOST_LOOKS = 20_000
"""Choices, whole ones or begun, that are looked at after one state."""
_MOST_WAITS = 3
"""Arrivals that are waited for after one state."""


class Chosen(NamedTuple):
    """The choices of a batch that gain the most.

    Parameters
    ----------
    gain
        Of every choice. Shape (choices,).
    does
        What each request does that has arrived, in the order of the search. Shape (choices, requests).
    """

    gain: Floats
    does: Ints


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
def _put_in_order(  # noqa: PLR0917 - compiled functions take positions
    kind: Ints, at: Ints, resident: Ints, worth: Floats, found: Ints, count: int
) -> None:
    """Sort requests by what a block that they hold is worth, equal ones together."""
    for a in range(1, count):
        r, place = found[a], a
        while place > 0:
            q = found[place - 1]
            if worth[q] > worth[r]:
                break
            if worth[q] == worth[r] and (kind[q], at[q], resident[q]) <= (kind[r], at[r], resident[r]):
                break
            found[place] = q
            place -= 1
        found[place] = r


@compiled
def _choose(  # noqa: PLR0917 - one loop over what a batch may do
    requests: Requests,
    evictions: bool,
    at: Ints,
    resident: Ints,
    gain: Floats,
    lost: Floats,
    found: Ints,
    available: int,
    chosen: Chosen,
) -> tuple[int, bool]:
    """Write the choices that gain the most; return their number, and whether there are others.

    A request that runs gains ``gain``, one that is evicted loses ``lost``. No choice leaves room for more: no resident
    pauses, nothing is evicted, and nothing that would finish waits, where there is room for it.
    """
    request, size, capacity = requests.request, requests.size, requests.limits[CAPACITY]
    number, most = len(at), len(chosen.gain)
    worth, total = np.zeros(number, dtype=np.float64), np.zeros(available + 1, dtype=np.float64)
    does, rest = np.empty(available + 1, dtype=np.int64), np.zeros(available + 1, dtype=np.int64)
    for a in range(available):
        r = found[a]
        worth[r] = (gain[r] + lost[r]) / size[r, at[r] + 1]
        if resident[r] == 1:
            worth[r] = max(worth[r], lost[r] / size[r, at[r]])
    _put_in_order(request[KIND], at, resident, worth, found, available)
    for a in range(available - 1, -1, -1):
        rest[a] = rest[a + 1] + size[found[a], at[found[a]] + 1]
        total[0] -= lost[found[a]]
    # By a counter whose last place changes first, as in `search_holding`.
    count, least, looks, others = 0, np.float64(0.0), 0, False
    place, room = 0, capacity
    does[0] = -1
    while place >= 0 and available > 0:
        looks += 1
        if looks > _MOST_LOOKS:
            others = True
            break
        r = found[place]
        run, keep, here = size[r, at[r] + 1], resident[r] * size[r, at[r]], resident[r] == 1
        choice = does[place]
        if choice == _RUN:
            room += run
        elif choice == _PAUSE:
            room += keep
        choice += 1
        if choice == _RUN and place > 0:
            q = found[place - 1]
            if request[KIND, q] == request[KIND, r] and at[q] == at[r] and resident[q] == resident[r]:
                choice = does[place - 1]
        if choice == _RUN and run > room:
            choice = _PAUSE
        if choice == _PAUSE and keep > room:
            choice = _EVICT
        if choice > _EVICT or (choice == _EVICT and not (here and evictions)):
            place -= 1
            continue
        does[place] = choice
        room -= run if choice == _RUN else keep if choice == _PAUSE else 0
        total[place + 1] = total[place] + (0.0 if choice == _EVICT else lost[r]) + (gain[r] if choice == _RUN else 0.0)
        least_room, runs = np.int64(_MUCH), 0
        for a in range(place + 1):
            q = found[a]
            if does[a] == _RUN:
                runs += 1
            elif does[a] == _EVICT:
                least_room = min(least_room, size[q, at[q]])
            elif resident[q] == 1:
                least_room = min(least_room, size[q, at[q] + 1] - size[q, at[q]])
            elif at[q] + 1 == request[OUTPUT, q]:
                least_room = min(least_room, size[q, at[q] + 1])
        if room - rest[place + 1] >= least_room:
            continue
        if count == most:
            # What the rest can add at most, if it could be held in part.
            reach, left, a = total[place + 1], room, place + 1
            while a < available and left > 0:
                part = min(left, size[found[a], at[found[a]] + 1])
                reach += worth[found[a]] * part
                left -= part
                a += 1
            if reach <= least:
                others = True
                continue
        if place + 1 < available:
            place += 1
            does[place] = -1
            continue
        if runs == 0:
            continue
        slot = count
        if count == most:
            slot, others = int(np.argmin(chosen.gain)), True
            if total[available] <= least:
                continue
        else:
            count += 1
        chosen.gain[slot] = total[available]
        chosen.does[slot, :available] = does[:available]
        if count == most:
            least = chosen.gain.min()
    return count, others


@compiled
def _to_come(output: Ints, after: Ints, weight: Ints, heaviest: int) -> float:
    """Return what batches are needed at least, in parts of one, by weights of which a batch holds ``heaviest``.

    In the last t batches a request generates its last t tokens at most: those before them take t batches less.
    """
    longest = 0
    for q in range(len(after)):
        longest = max(longest, output[q] - after[q])
    most = 0.0
    for last in range(longest + 1):
        before = 0
        for q in range(len(after)):
            if output[q] - last > after[q]:
                before += weight[q, output[q] - last] - weight[q, after[q]]
        most = max(most, last + before / heaviest)
    return most


@compiled
def follow(  # noqa: PLR0917 - compiled functions take positions
    requests: Requests,
    weight: Ints,
    price: Ints,
    evictions: bool,
    here: States,
    first: int,
    there: States,
    chosen: Chosen,
    beyond: int,
) -> tuple[int, int, bool]:
    """Write what follows on states from ``first`` on.

    Parameters
    ----------
    weight
        Of the first k tokens of every request, by which choices and states are compared. A batch holds about as much
        of it as of the last weights of ``requests``. Shape (requests, tokens + 1).
    price
        What a refill takes beyond a decode, after every number of tokens. Shape (requests, tokens + 1).
    there, chosen
        Where it writes. It stops where there might be no room for what follows on the next state.

    Returns
    -------
    state, count, others
        The first state that is left, the number of states written, and whether any was left out.
    """
    request, size, done, _, heaviest, limits = requests
    number, base, capacity, full = request.shape[1], limits[BASE], limits[CAPACITY], heaviest[-1]
    at, after = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.int64)
    resident, left_over = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.int64)
    gain, lost = np.empty(number, dtype=np.float64), np.empty(number, dtype=np.float64)
    found = np.empty(number, dtype=np.int64)
    state, count, others, most = first, 0, False, (1 + _MOST_WAITS) * len(chosen.gain)
    while state < len(here.waste) and count + most <= len(there.waste):
        held, unfinished = 0, 0
        for r in range(number):
            at[r], resident[r] = here.tokens[state, r], here.resident[state, r]
            held += resident[r] * size[r, at[r]]
            unfinished += request[OUTPUT, r] - at[r]
            lost[r] = np.float64(resident[r] * price[r, at[r]])
            if at[r] < request[OUTPUT, r]:
                # Of equal gains more memory is taken.
                gain[r] = base * ((weight[r, at[r] + 1] - weight[r, at[r]]) / full) + size[r, at[r] + 1]
        clock = here.clock[state]
        start, earliest, waits = clock, np.int64(_MUCH), 0
        while True:
            available = in_order(request, at, resident, start, found)
            for a in range(available):
                # When it would have run alone, and would be evicted, if it came to that.
                r = found[a]
                if held + size[r, at[r] + 1] - resident[r] * size[r, at[r]] <= capacity:
                    end = start + base + done[r, at[r] + 1] - done[r, at[r]]
                    earliest = min(earliest, end + price[r, at[r] + 1])
            choices, more = _choose(requests, evictions, at, resident, gain, lost, found, available, chosen)
            others = others or more
            for choice in range(choices):
                does, left = chosen.does[choice], unfinished
                wasted = here.waste[state] + start - clock + base
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
                ended, owed = wasted, 0
                for q in range(number):
                    ended += done[q, after[q]]
                    owed += 0 if left_over[q] else price[q, after[q]]
                if least_makespan(requests, after, ended) >= beyond:
                    continue
                for q in range(number):
                    there.tokens[count, q], there.resident[count, q] = after[q], left_over[q]
                there.waste[count], there.clock[count], there.parent[count] = wasted, ended, state
                there.key[count] = FINISHED
                if left > 0:
                    there.key[count] = wasted + owed + int(base * _to_come(request[OUTPUT], after, weight, full))
                count += 1
            upcoming = 0
            while upcoming < number and request[ARRIVAL, upcoming] <= start:
                upcoming += 1
            if upcoming == number:
                break
            if waits == _MOST_WAITS:
                others = True
                break
            # Or wait for the next arrival, unless there is time for a batch before it.
            start = request[ARRIVAL, upcoming]
            waits += 1
            if earliest <= start:
                break
        state += 1
    return state, count, others


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
