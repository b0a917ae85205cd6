"""The loops of `request_search`, compiled: a search over what every request holds after a batch.

A state has a byte for every request: the tokens that it has generated, k, and `RESIDENT` more while it holds KV; one
that is finished has its O. Requests of a group stand together, their bytes ascending. `optsched.check.certificates.
request_search` says what is searched, and why.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled
from optsched.model.ints import Ints

Words = npt.NDArray[np.uint64]

RESIDENT = 64
MOST_TOKENS, MOST_REQUESTS = RESIDENT - 1, 64
LAST, SUM, DATED_SUM = range(3)
"""What is bounded: the last completion; the weighted sum of completions, all there at 0; their sum with arrivals."""
PROVED, REFUTED, EXHAUSTED = range(3)
"""How a search ends: no schedule is below the bound; one is; it has looked at as many states as it may."""
_NONE = -1
_RUN, _STAY, _EVICT = range(3)
"""What a request does in a batch: a fill or a decode; nothing, it waits or pauses; it loses its KV."""
_FIRST_ROOM = 1 << 12


class Searched(NamedTuple):
    """The problem in arrays, times in ps.

    Parameters
    ----------
    group, output, weight, arrival
        Of every request, group by group, within a group by arrival; arrivals count from the earliest.
    first
        The first request of every group, and the number of all.
    blocks, fill, decode
        Of the token k of every group, shape (groups, tokens + 1): blocks that are held with it, times of its steps.
    need
        Machine time that a request with some byte needs at least, shape (groups, 2 × `RESIDENT`).
    chain
        The time that it takes alone, likewise.
    """

    group: Ints
    output: Ints
    weight: Ints
    arrival: Ints
    first: Ints
    blocks: Ints
    fill: Ints
    decode: Ints
    need: Ints
    chain: Ints


# What is still to come -------------------------------------------------------------------------------------


@compiled
def _releases(searched: Searched, at: Ints, clock: int, release: Ints) -> None:
    """Write how long after the clock every request arrives; the last of a group to arrive are those not started."""
    arrival, first = searched.arrival, searched.first
    for group in range(len(first) - 1):
        fresh = 0
        for request in range(first[group], first[group + 1]):
            release[request] = 0
            fresh += at[request] == 0
        for place in range(fresh):
            release[first[group] + place] = max(0, arrival[first[group + 1] - fresh + place] - clock)


@compiled
def _last_to_come(searched: Searched, at: Ints, release: Ints) -> int:
    """Return the least time to the last completion: of jobs on one machine, released in order, and of each alone."""
    now, longest = 0, 0
    for request in np.argsort(release):
        group, byte = searched.group[request], at[request]
        now = max(now, release[request]) + searched.need[group, byte]
        longest = max(longest, release[request] + searched.chain[group, byte])
    return int(max(now, longest))


@compiled
def _sum_to_come(searched: Searched, at: Ints, release: Ints, left: Ints, alone: Ints) -> int:
    """Return the least sum of times to completions, of jobs on one machine that may be preempted.

    The i-th by the shortest remaining time first is no later than the i-th of any schedule, and neither is the i-th of
    those that are alone.
    """
    jobs = 0
    for request in range(len(at)):
        if at[request] != searched.output[request]:
            left[jobs] = searched.need[searched.group[request], at[request]]
            alone[jobs] = release[request] + searched.chain[searched.group[request], at[request]]
            release[jobs] = release[request]
            jobs += 1
    ends = np.sort(alone[:jobs])
    now, total = np.int64(0), np.int64(0)
    for done in range(jobs):
        while True:
            # The shortest that is there runs until it ends, or until the next arrival.
            shortest, until = _NONE, np.int64(_NONE)
            for job in range(jobs):
                if left[job] < 0:
                    continue
                if release[job] > now:
                    until = release[job] if until < 0 else min(until, release[job])
                elif shortest == _NONE or left[job] < left[shortest]:
                    shortest = job
            if shortest == _NONE:
                now = until
            elif until < 0 or now + left[shortest] <= until:
                now += left[shortest]
                left[shortest] = _NONE
                break
            else:
                left[shortest] -= until - now
                now = until
        total += max(now, ends[done])
    return int(total)


@compiled
def _weighted_to_come(searched: Searched, at: Ints) -> int:
    """Return the least weighted sum of completions of jobs that are all there (Smith 1956), or of each alone."""
    waiting = np.zeros(len(at), dtype=np.bool_)
    alone = np.int64(0)
    for request in range(len(at)):
        if at[request] != searched.output[request] and searched.weight[request] > 0:
            waiting[request] = True
            alone += searched.weight[request] * searched.chain[searched.group[request], at[request]]
    now, total = np.int64(0), np.int64(0)
    while True:
        chosen = _NONE
        for request in range(len(at)):
            if not waiting[request]:
                continue
            need = searched.need[searched.group[request], at[request]]
            if chosen == _NONE or need * searched.weight[chosen] < (
                searched.need[searched.group[chosen], at[chosen]] * searched.weight[request]
            ):
                chosen = request
        if chosen == _NONE:
            return int(max(total, alone))
        waiting[chosen] = False
        now += searched.need[searched.group[chosen], at[chosen]]
        total += searched.weight[chosen] * now


@compiled
def _estimate(  # noqa: PLR0917 - compiled functions take positions
    searched: Searched, aim: int, at: Ints, clock: int, spent: int, room: Ints
) -> int:
    """Return a lower bound on the value of all schedules through a state; ``room`` is for three arrays."""
    if aim == SUM:
        weight = searched.weight[0]
        for request in range(len(at)):
            if searched.weight[request] != weight:
                return spent + _weighted_to_come(searched, at)
        room[0, :] = 0
        return int(spent + weight * _sum_to_come(searched, at, room[0], room[1], room[2]))
    _releases(searched, at, clock, room[0])
    if aim == LAST:
        return clock + _last_to_come(searched, at, room[0])
    unfinished = 0
    for request in range(len(at)):
        unfinished += at[request] != searched.output[request]
    return spent + unfinished * clock + _sum_to_come(searched, at, room[0], room[1], room[2])


# Batches ---------------------------------------------------------------------------------------------------


@compiled
def _can_start(searched: Searched, at: Ints, request: int, now: int) -> bool:
    """Return whether a request without a token has arrived; of a group they start in the order of their arrivals."""
    group = searched.group[request]
    fresh, place = 0, request - searched.first[group]
    for other in range(searched.first[group], searched.first[group + 1]):
        fresh += at[other] == 0
    return bool(searched.arrival[searched.first[group + 1] - fresh + place] <= now)


@compiled
def _next_action(  # noqa: PLR0917
    searched: Searched, at: Ints, request: int, action: int, now: int, evicts: bool, pauses: bool
) -> int:
    """Return what a request may do, at least ``action``; _NONE if there is nothing more."""
    byte = at[request]
    if byte == searched.output[request]:
        return _STAY if action <= _STAY else _NONE
    if byte >= RESIDENT:
        if action == _STAY and not pauses:
            action = _EVICT
        return action if action < _EVICT or (action == _EVICT and evicts) else _NONE
    if action == _RUN and ((byte > 0 and not evicts) or (byte == 0 and not _can_start(searched, at, request, now))):
        action = _STAY
    return action if action <= _STAY else _NONE


@compiled
def _waited_for(searched: Searched, at: Ints, actions: Ints, now: int) -> bool:
    """Return whether a request that runs for the first time has arrived just now."""
    first = searched.first
    for group in range(len(first) - 1):
        fresh, begin = 0, 0
        for request in range(first[group], first[group + 1]):
            fresh += at[request] == 0
            begin += at[request] == 0 and actions[request] == _RUN
        if begin > 0 and searched.arrival[first[group + 1] - fresh + begin - 1] == now:
            return True
    return False


@compiled
def _after(searched: Searched, at: Ints, actions: Ints, after: Ints) -> None:
    """Write the bytes after a batch, those of a group ascending."""
    for request in range(len(at)):
        byte = at[request]
        if actions[request] == _RUN:
            byte = RESIDENT + 1 + byte % RESIDENT
            if byte == RESIDENT + searched.output[request]:
                byte -= RESIDENT
        elif actions[request] == _EVICT:
            byte -= RESIDENT
        place = request
        while place > searched.first[searched.group[request]] and after[place - 1] > byte:
            after[place] = after[place - 1]
            place -= 1
        after[place] = byte


# The store -------------------------------------------------------------------------------------------------


@compiled
def _place(words: Words, table: Ints, wanted: Words) -> int:
    """Return where the words are in the hash table, or would be."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for word in wanted:
        mixed = (mixed ^ word) * np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
    mask = np.uint64(len(table) - 1)
    place = mixed & mask
    while True:
        known = table[np.int64(place)]
        if known == _NONE:
            return int(np.int64(place))
        same = True
        for number in range(len(wanted)):
            same = same and words[known, number] == wanted[number]
        if same:
            return int(np.int64(place))
        place = (place + np.uint64(1)) & mask


@compiled
def _pack(at: Ints, words: Words) -> None:
    for word in range(len(words)):
        words[word] = np.uint64(0)
    for request in range(len(at)):
        words[request >> 3] |= np.uint64(at[request]) << np.uint64(8 * (request & 7))


@compiled
def _unpack(words: Words, at: Ints) -> None:
    for request in range(len(at)):
        at[request] = np.int64((words[request >> 3] >> np.uint64(8 * (request & 7))) & np.uint64(255))


@compiled
def search_requests(  # noqa: PLR0917 - one loop over states and batches
    searched: Searched, aim: int, base: int, capacity: int, evicts: bool, pauses: bool, bound: int, most: int
) -> tuple[int, int]:
    """Search for a schedule of less than ``bound``; return how the search ends, and how many labels it has kept.

    It keeps at most ``most``. Values are last completions, or sums of completions, from the earliest arrival on.
    """
    requests, size = len(searched.group), (len(searched.group) + 7) // 8
    moments = np.unique(searched.arrival)
    words = np.zeros((_FIRST_ROOM, size), dtype=np.uint64)
    # Of every label: its clock, what is spent, the next label of its bytes, and whether no other is as good.
    clocks, sums = np.zeros(_FIRST_ROOM, dtype=np.int64), np.zeros(_FIRST_ROOM, dtype=np.int64)
    twin, alive = np.zeros(_FIRST_ROOM, dtype=np.int64), np.zeros(_FIRST_ROOM, dtype=np.int64)
    table = np.full(2 * _FIRST_ROOM, _NONE, dtype=np.int64)
    at, after = np.zeros(requests, dtype=np.int64), np.zeros(requests, dtype=np.int64)
    # Of the batch that is composed, up to every request: what it does, what all hold, take, and how many run.
    actions, held = np.zeros(requests, dtype=np.int64), np.zeros(requests + 1, dtype=np.int64)
    work, runs = np.zeros(requests + 1, dtype=np.int64), np.zeros(requests + 1, dtype=np.int64)
    room, wanted = np.zeros((3, requests), dtype=np.int64), np.zeros(size, dtype=np.uint64)
    table[_place(words, table, wanted)] = 0
    twin[0], alive[0] = _NONE, 1
    count = 1
    queue = [(np.int64(_estimate(searched, aim, at, 0, 0, room)), np.int64(0))]
    if queue[0][0] >= bound:
        return PROVED, 0
    while len(queue) > 0:
        _, label = heappop(queue)
        if not alive[label]:
            continue
        _unpack(words[label], at)
        due, finished = np.int64(0), True
        for request in range(requests):
            if at[request] != searched.output[request]:
                due += searched.weight[request]
                finished = False
        if finished:
            return REFUTED, count
        for moment in range(_NONE, len(moments)):
            # A batch begins at once, or at a later arrival.
            now = clocks[label]
            if moment != _NONE:
                if moments[moment] <= now:
                    continue
                now = moments[moment]
            request, actions[0] = 0, _NONE
            while request >= 0:
                least = actions[request] + 1
                if least == 0 and request > 0 and at[request] == at[request - 1] and (
                    searched.group[request] == searched.group[request - 1]
                ):
                    # Equal requests: those that run come first, then those that stay.
                    least = actions[request - 1]
                action = _next_action(searched, at, request, least, now, evicts, pauses)
                if action == _NONE:
                    request -= 1
                    continue
                actions[request] = action
                group, token = searched.group[request], at[request] % RESIDENT
                holds, takes, ran = np.int64(0), np.int64(0), np.int64(0)
                if action == _RUN:
                    holds = searched.blocks[group, token + 1]
                    if at[request] >= RESIDENT:
                        takes = searched.decode[group, token + 1]
                    else:
                        takes = searched.fill[group, token + 1]
                    ran = np.int64(1)
                elif action == _STAY and at[request] >= RESIDENT:
                    holds = searched.blocks[group, token]
                if held[request] + holds > capacity:
                    continue
                held[request + 1], work[request + 1] = held[request] + holds, work[request] + takes
                runs[request + 1] = runs[request] + ran
                if request + 1 < requests:
                    request += 1
                    actions[request] = _NONE
                    continue
                if runs[requests] == 0 or (moment != _NONE and not _waited_for(searched, at, actions, now)):
                    continue
                _after(searched, at, actions, after)
                clock, spent = np.int64(0), sums[label]
                if aim == SUM:
                    spent += due * (base + work[requests])
                else:
                    clock = now + base + work[requests]
                if aim == DATED_SUM:
                    for other in range(requests):
                        if actions[other] == _RUN and at[other] % RESIDENT + 1 == searched.output[other]:
                            spent += clock
                value = np.int64(_estimate(searched, aim, after, clock, spent, room))
                if value >= bound:
                    continue
                _pack(after, wanted)
                place = _place(words, table, wanted)
                other, dominated = table[place], False
                while other != _NONE and not dominated:
                    dominated = clocks[other] <= clock and sums[other] <= spent
                    other = twin[other]
                if dominated:
                    continue
                other = table[place]
                while other != _NONE:
                    if clock <= clocks[other] and spent <= sums[other]:
                        alive[other] = 0
                    other = twin[other]
                if count == most:
                    return EXHAUSTED, count
                if count == len(clocks):
                    # All labels again, in twice the room.
                    words = np.concatenate((words, np.zeros_like(words)))
                    clocks = np.concatenate((clocks, np.zeros_like(clocks)))
                    sums = np.concatenate((sums, np.zeros_like(sums)))
                    twin = np.concatenate((twin, np.zeros_like(twin)))
                    alive = np.concatenate((alive, np.zeros_like(alive)))
                    table = np.full(2 * len(clocks), _NONE, dtype=np.int64)
                    for known in range(count):
                        place = _place(words, table, words[known])
                        twin[known], table[place] = table[place], known
                    place = _place(words, table, wanted)
                words[count], clocks[count], sums[count], alive[count] = wanted, clock, spent, 1
                twin[count], table[place] = table[place], count
                heappush(queue, (value, np.int64(count)))
                count += 1
    return PROVED, count
