"""The loops of `request_search`, compiled: a search over what every request holds after a batch.

A state has a byte for every request: the tokens that it has generated, k, and `RESIDENT` more while it holds KV; one
that is finished has its O. Requests of a group are together, their bytes ascending. `optsched.check.certificates.
request_search` says what is searched, and why.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.check.certificates.shared.rows import NONE, place_of, table_of
from optsched.compiled import compiled, compiled_helper
from optsched.model.ints import Ints

Words = npt.NDArray[np.uint64]

RESIDENT = 64
MOST_TOKENS, MOST_REQUESTS = RESIDENT - 1, 64
LAST, SUM, DATED_SUM = range(3)
"""What is bounded: the last completion; the weighted sum of completions, all there at 0; their sum with arrivals."""
_RUN, _STAY, _EVICT = range(3)
"""What a request does in a batch: a fill or a decode; nothing, it waits or pauses; it loses its KV."""
_MOST_NUMBER = 1 << 62
_FIRST_ROOM = 1 << 12
_BATCHES_A_LABEL = 16
"""Complete batches that a search looks at, at most, for each label that it may keep."""


class Priced(NamedTuple):
    """What requests pay with prices of batches.

    Parameters
    ----------
    unit
        For every batch until they are completed.
    price
        For token k of every group in some batch; in the last one, which stands for all later ones, nothing. Shape
        (batches, groups, tokens + 1).
    paid
        At least from a batch on, by group and byte, shape (batches, groups, 2 × `RESIDENT`).
    most
        By those that hold 0, 1, … blocks or less in some batch, shape (batches, blocks + 1).
    later
        By all that batches from one on hold, at most, shape (batches,).
    """

    unit: int
    price: Ints
    paid: Ints
    most: Ints
    later: Ints


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
    work
        What it needs without shares of bases, likewise.
    share
        Of a batch's base, of the token k of every group.
    moments
        The arrivals, ascending, each once.
    priced
        No batches, if there are no prices.
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
    work: Ints
    share: Ints
    moments: Ints
    priced: Priced


# What is still to come -------------------------------------------------------------------------------------


@compiled_helper
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


@compiled_helper
def _insert(ascending: Ints, count: int, number: int) -> None:
    """Insert a number into the first ones of an array, which are ascending."""
    place = count
    while place > 0 and ascending[place - 1] > number:
        ascending[place] = ascending[place - 1]
        place -= 1
    ascending[place] = number


@compiled_helper
def _last_to_come(searched: Searched, at: Ints, release: Ints, later: Ints) -> int:
    """Return the least time to the last completion: of jobs on one machine, released in order, and of each alone."""
    now, longest, count = np.int64(0), np.int64(0), 0
    for request in range(len(at)):
        group, byte = searched.group[request], at[request]
        longest = max(longest, release[request] + searched.chain[group, byte])
        if release[request] > 0:
            # Both are less than 2^63 / `MOST_REQUESTS` (`require_64_bits`), so that one number keeps both.
            _insert(later, count, release[request] * MOST_REQUESTS + request)
            count += 1
        else:
            now += searched.need[group, byte]
    for place in range(count):
        request = later[place] % MOST_REQUESTS
        now = max(now, release[request]) + searched.need[searched.group[request], at[request]]
    return int(max(now, longest))


@compiled_helper
def _most_paid(priced: Priced, group: Ints, at: Ints) -> tuple[int, np.int64]:
    """Return the batch from which on requests pay most beyond what batches hold pays, and how much that is."""
    best, most = 0, np.int64(0)
    for m in range(len(priced.later)):
        paid = -priced.later[m]
        for request in range(len(at)):
            paid += priced.paid[m, group[request], at[request]]
        if m == 0 or paid > most:
            best, most = m, paid
    return best, most


@compiled_helper
def _sum_to_come(searched: Searched, base: int, at: Ints, room: Ints) -> int:
    """Return the least sum of times to completions, of jobs on one machine that may be preempted.

    The i-th by the shortest remaining time first is no later than the i-th of any schedule, and neither is the i-th of
    those that are alone, nor the end of as many batches as i requests need. ``room[0]`` has their releases.
    """
    release, left, ends, shares, works, tokens = room[0], room[1], room[2], room[3], room[4], room[5]
    jobs, future = 0, False
    for request in range(len(at)):
        if at[request] != searched.output[request]:
            group = searched.group[request]
            work = searched.work[group, at[request]]
            _insert(ends, jobs, release[request] + searched.chain[group, at[request]])
            _insert(shares, jobs, searched.need[group, at[request]] - work)
            _insert(works, jobs, work)
            _insert(tokens, jobs, searched.output[request] - at[request] % RESIDENT)
            left[jobs], release[jobs] = searched.need[group, at[request]], release[request]
            future = future or release[jobs] > 0
            jobs += 1
    shared, worked, waited = np.int64(0), np.int64(0), np.int64(0)
    for done in range(jobs):
        shared, worked = shared + shares[done], worked + works[done]
        waited += worked
        batches = max(tokens[done], -(-shared // base) if base > 0 else 0)
        ends[done] = max(ends[done], base * batches + worked)
    _, paid = _most_paid(searched.priced, searched.group, at)
    waited += base * -(-paid // searched.priced.unit)
    now, total = np.int64(0), np.int64(0)
    if not future:
        for job in range(jobs):
            _insert(left, job, left[job])
        for job in range(jobs):
            now += left[job]
            total += max(now, ends[job])
        return int(max(total, waited))
    for done in range(jobs):
        while True:
            # The shortest that is there runs until it ends, or until the next arrival.
            shortest, until = NONE, np.int64(NONE)
            for job in range(jobs):
                if left[job] < 0:
                    continue
                if release[job] > now:
                    until = release[job] if until < 0 else min(until, release[job])
                elif shortest == NONE or left[job] < left[shortest]:
                    shortest = job
            if shortest == NONE:
                now = until
            elif until < 0 or now + left[shortest] <= until:
                now += left[shortest]
                left[shortest] = NONE
                break
            else:
                left[shortest] -= until - now
                now = until
        total += max(now, ends[done])
    return int(max(total, waited))


@compiled_helper
def _weighted_to_come(searched: Searched, at: Ints) -> int:
    """Return the least weighted sum of completions of jobs that are all there (Smith 1956)."""
    waiting = np.zeros(len(at), dtype=np.bool_)
    for request in range(len(at)):
        waiting[request] = at[request] != searched.output[request] and searched.weight[request] > 0
    now, total = np.int64(0), np.int64(0)
    while True:
        chosen = NONE
        for request in range(len(at)):
            if not waiting[request]:
                continue
            need = searched.need[searched.group[request], at[request]]
            if chosen == NONE or need * searched.weight[chosen] < (
                searched.need[searched.group[chosen], at[chosen]] * searched.weight[request]
            ):
                chosen = request
        if chosen == NONE:
            return int(total)
        waiting[chosen] = False
        now += searched.need[searched.group[chosen], at[chosen]]
        total += searched.weight[chosen] * now


@compiled_helper
def _left(searched: Searched, at: Ints) -> tuple[int, int, int]:
    """Return the work and the shares that are left in all, and the most tokens that a request has left."""
    work, shares, tokens = np.int64(0), np.int64(0), np.int64(0)
    for request in range(len(at)):
        group, byte = searched.group[request], at[request]
        work += searched.work[group, byte]
        shares += searched.need[group, byte] - searched.work[group, byte]
        tokens = max(tokens, searched.output[request] - byte % RESIDENT)
    return int(work), int(shares), int(tokens)


@compiled_helper
def _estimate(  # noqa: PLR0917 - compiled functions take positions
    searched: Searched, aim: int, base: int, at: Ints, clock: int, spent: int, room: Ints
) -> int:
    """Return a lower bound on the value of all schedules through a state; ``room`` is for six arrays."""
    if aim == SUM:
        weight, alone = searched.weight[0], np.int64(0)
        equal = True
        for request in range(len(at)):
            equal = equal and searched.weight[request] == weight
            alone += searched.weight[request] * searched.chain[searched.group[request], at[request]]
        if not equal:
            return spent + max(int(alone), _weighted_to_come(searched, at))
        room[0, :] = 0
        return int(spent + weight * _sum_to_come(searched, base, at, room))
    _releases(searched, at, clock, room[0])
    if aim == LAST:
        work, shares, batches = _left(searched, at)
        if base > 0:
            batches = max(batches, -(-shares // base))
        shared, in_order = base * batches + work, _last_to_come(searched, at, room[0], room[1])
        return clock + (shared if shared > in_order else in_order)
    unfinished = 0
    for request in range(len(at)):
        unfinished += at[request] != searched.output[request]
    return spent + unfinished * clock + _sum_to_come(searched, base, at, room)


@compiled_helper
def _most_to_pay(searched: Searched, base: int, at: Ints, most: int, works: Ints) -> int:
    """Return what requests may pay, beyond what batches hold pays at most, if the sum to come is at most ``most``."""
    waited, worked, jobs = np.int64(0), np.int64(0), 0
    for request in range(len(at)):
        if at[request] != searched.output[request]:
            _insert(works, jobs, searched.work[searched.group[request], at[request]])
            jobs += 1
    for job in range(jobs):
        worked += works[job]
        waited += worked
    # Nothing is paid that is as much as `_MOST_NUMBER`.
    unit, batches = searched.priced.unit, (most - waited) // base
    return int(min(int(batches), _MOST_NUMBER // unit) * unit)


# Batches ---------------------------------------------------------------------------------------------------


@compiled_helper
def _can_start(searched: Searched, at: Ints, request: int, now: int) -> bool:
    """Return whether a request without a token has arrived; of a group they start in the order of their arrivals."""
    group = searched.group[request]
    fresh, place = 0, request - searched.first[group]
    for other in range(searched.first[group], searched.first[group + 1]):
        fresh += at[other] == 0
    return bool(searched.arrival[searched.first[group + 1] - fresh + place] <= now)


@compiled_helper
def _next_action(  # noqa: PLR0917
    searched: Searched, at: Ints, request: int, action: int, now: int, evicts: bool, pauses: bool
) -> int:
    """Return what a request may do, at least ``action``; NONE if there is nothing more."""
    byte = at[request]
    if byte == searched.output[request]:
        return _STAY if action <= _STAY else NONE
    if byte >= RESIDENT:
        if action == _STAY and not pauses:
            action = _EVICT
        return action if action < _EVICT or (action == _EVICT and evicts) else NONE
    if action == _RUN and ((byte > 0 and not evicts) or (byte == 0 and not _can_start(searched, at, request, now))):
        action = _STAY
    return action if action <= _STAY else NONE


@compiled_helper
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


@compiled_helper
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


@compiled_helper
def _pack(at: Ints, words: Words) -> None:
    for word in range(len(words)):
        words[word] = np.uint64(0)
    for request in range(len(at)):
        words[request >> 3] |= np.uint64(at[request]) << np.uint64(8 * (request & 7))


@compiled_helper
def _unpack(words: Words, at: Ints) -> None:
    for request in range(len(at)):
        at[request] = np.int64((words[request >> 3] >> np.uint64(8 * (request & 7))) & np.uint64(255))


@compiled_helper
def _grown(numbers: Ints) -> Ints:
    """Return the numbers in twice the room; numpy's own functions take seconds to compile."""
    grown = np.zeros(2 * len(numbers), dtype=np.int64)
    for place in range(len(numbers)):
        grown[place] = numbers[place]
    return grown


@compiled
def search_requests(  # noqa: PLR0917 - one loop over states and batches
    searched: Searched, aim: int, base: int, shared: Ints, evicts: bool, pauses: bool, bound: int, most: int
) -> int:
    """Search for a schedule of less than ``bound``, smallest estimates first; return what no schedule is below.

    That is ``bound``, or the estimate of a label that is finished, or where ``most`` labels are kept or
    `_BATCHES_A_LABEL` times as many batches have been looked at. Values are last completions, or sums of completions,
    from the earliest arrival on.
    ``shared`` says of how much of a batch's base the requests have shares at most that hold this number of blocks.

    A batch that cannot give away enough of its base is left out before it is complete. For the last completion: what
    is left after it needs a number of batches. For sums without arrivals: had the batch lasted only as long as its
    steps need, to go on then as jobs on one machine would be one way to run them, so that the sum was at least
    `_weighted_to_come`; and all that are unfinished wait for what is lost. With prices of batches: what requests pay
    by what they do in it beyond what they pay at least, and what its room could have paid, adds to what all pay.
    """
    capacity = len(shared) - 1
    requests, size = len(searched.group), (len(searched.group) + 7) // 8
    moments = searched.moments
    words = np.zeros((_FIRST_ROOM, size), dtype=np.uint64)
    # Of every label: its clock, what is spent, the next label of its bytes, and whether no other is as good.
    clocks, sums = np.zeros(_FIRST_ROOM, dtype=np.int64), np.zeros(_FIRST_ROOM, dtype=np.int64)
    twin, alive = np.zeros(_FIRST_ROOM, dtype=np.int64), np.zeros(_FIRST_ROOM, dtype=np.int64)
    at, after = np.zeros(requests, dtype=np.int64), np.zeros(requests, dtype=np.int64)
    # Of the batch that is composed, up to every request: what it does, what all hold, take, how many run, the shares
    # that they have of the base, and what refills of those that are evicted take beyond decodes.
    actions, held = np.zeros(requests, dtype=np.int64), np.zeros(requests + 1, dtype=np.int64)
    work, runs = np.zeros(requests + 1, dtype=np.int64), np.zeros(requests + 1, dtype=np.int64)
    # What requests pay beyond the least, and for what they hold.
    beyond, pays = np.zeros(requests + 1, dtype=np.int64), np.zeros(requests + 1, dtype=np.int64)
    priced = searched.priced
    has_prices = aim == SUM and len(priced.later) > 0 and base > 0 and searched.weight[0] > 0
    used, lost = np.zeros(requests + 1, dtype=np.int64), np.zeros(requests + 1, dtype=np.int64)
    room, wanted = np.zeros((6, requests), dtype=np.int64), np.zeros(size, dtype=np.uint64)
    table = table_of(words, 1)
    twin[0], alive[0] = NONE, 1
    count, looked = 1, 0
    queue = [(np.int64(_estimate(searched, aim, base, at, 0, 0, room)), np.int64(0))]
    if queue[0][0] >= bound:
        return bound
    while len(queue) > 0:
        least, label = heappop(queue)
        if not alive[label]:
            continue
        _unpack(words[label], at)
        due, finished = np.int64(0), True
        for request in range(requests):
            if at[request] != searched.output[request]:
                due += searched.weight[request]
                finished = False
        if finished:
            return int(least)
        first, paid, to_pay = 0, np.int64(0), 0
        if has_prices:
            first, paid = _most_paid(priced, searched.group, at)
            to_pay = _most_to_pay(searched, base, at, (bound - 1 - sums[label]) // searched.weight[0], room[0])
        then = min(first + 1, len(priced.later) - 1)
        for moment in range(NONE, len(moments)):
            # A batch begins at once, or at a later arrival.
            now = clocks[label]
            if moment != NONE:
                if moments[moment] <= now:
                    continue
                now = moments[moment]
            # What the batch and all that follow may last beyond what is surely needed.
            spare = np.int64(base)
            work_left, shares_left, _ = _left(searched, at)
            if aim == LAST:
                spare = bound - 1 - now - work_left
            elif aim == SUM and due > 0:
                spare = (bound - 1 - sums[label] - _weighted_to_come(searched, at)) // due
            request, actions[0] = 0, NONE
            while request >= 0:
                lowest = actions[request] + 1
                if (
                    lowest == 0
                    and request > 0
                    and at[request] == at[request - 1]
                    and (searched.group[request] == searched.group[request - 1])
                ):
                    # Equal requests: those that run come first, then those that stay.
                    lowest = actions[request - 1]
                action = _next_action(searched, at, request, lowest, now, evicts, pauses)
                if action == NONE:
                    request -= 1
                    continue
                actions[request] = action
                group, token = searched.group[request], at[request] % RESIDENT
                holds, takes, gives = np.int64(0), np.int64(0), np.int64(0)
                loses, ran, becomes = np.int64(0), np.int64(0), at[request]
                if action == _RUN:
                    becomes = token + 1 if token + 1 == searched.output[request] else RESIDENT + token + 1
                    holds, gives = searched.blocks[group, token + 1], searched.share[group, token + 1]
                    if at[request] >= RESIDENT:
                        takes = searched.decode[group, token + 1]
                    else:
                        takes = searched.fill[group, token + 1]
                    ran = np.int64(1)
                elif action == _STAY and at[request] >= RESIDENT:
                    holds = searched.blocks[group, token]
                elif action == _EVICT:
                    loses, becomes = searched.fill[group, token + 1] - searched.decode[group, token + 1], token
                if held[request] + holds > capacity:
                    continue
                used[request + 1] = used[request] + gives
                lost[request + 1] = lost[request] + loses
                most_used = used[request + 1] + shared[capacity - held[request] - holds]
                if aim == SUM and base - most_used > spare:
                    continue
                if aim == LAST and (
                    spare < lost[request + 1]
                    or (base > 0 and base * ((spare - lost[request + 1]) // base) < base + shares_left - most_used)
                ):
                    continue
                more, price = np.int64(0), np.int64(0)
                if has_prices and at[request] != searched.output[request]:
                    if action == _RUN:
                        price = priced.price[first, group, token + 1]
                    least_paid = priced.paid[first, group, at[request]]
                    more = priced.unit + price + priced.paid[then, group, becomes] - least_paid
                beyond[request + 1], pays[request + 1] = beyond[request] + more, pays[request] + price
                if has_prices:
                    unpaid = priced.most[first, capacity] - priced.most[first, capacity - held[request] - holds]
                    if paid + beyond[request + 1] + unpaid - pays[request + 1] > to_pay:
                        continue
                held[request + 1], work[request + 1] = held[request] + holds, work[request] + takes
                runs[request + 1] = runs[request] + ran
                if request + 1 < requests:
                    request += 1
                    actions[request] = NONE
                    continue
                if runs[requests] == 0 or (moment != NONE and not _waited_for(searched, at, actions, now)):
                    continue
                if looked == _BATCHES_A_LABEL * most:
                    return int(least)
                looked += 1
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
                value = np.int64(_estimate(searched, aim, base, after, int(clock), int(spent), room))
                if value >= bound:
                    continue
                _pack(after, wanted)
                place = place_of(words, table, wanted)
                other, dominated = table[place], False
                while other != NONE and not dominated:
                    dominated = clocks[other] <= clock and sums[other] <= spent
                    other = twin[other]
                if dominated:
                    continue
                other = table[place]
                while other != NONE:
                    if clock <= clocks[other] and spent <= sums[other]:
                        alive[other] = 0
                    other = twin[other]
                if count == most:
                    return int(least)
                if count == len(clocks):
                    # All labels again, in twice the room.
                    clocks, sums, twin, alive = _grown(clocks), _grown(sums), _grown(twin), _grown(alive)
                    words, fewer = np.zeros((2 * count, size), dtype=np.uint64), words
                    for known in range(count):
                        for word in range(size):
                            words[known, word] = fewer[known, word]
                    table = np.full(2 * len(clocks), NONE, dtype=np.int64)
                    for known in range(count):
                        place = place_of(words, table, words[known])
                        twin[known], table[place] = table[place], known
                    place = place_of(words, table, wanted)
                _pack(after, words[count])
                clocks[count], sums[count], alive[count] = clock, spent, 1
                twin[count], table[place] = table[place], count
                heappush(queue, (value, np.int64(count)))
                count += 1
    return bound
