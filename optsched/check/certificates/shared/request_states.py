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
_RUN, _STAY = range(2)
"""What a request does in a batch: a fill or a decode; or nothing, it waits or pauses."""
_MOST_NUMBER = 1 << 62
_FIRST_ROOM = 1 << 12
_BATCHES_A_LABEL = 16
"""Complete batches that a search looks at, at most, for each label that it may keep."""
_CLOSED = -1
"""Value of a label that has been followed, or that another undercuts."""


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
        By group and byte at least from a batch on, shape (groups, 2 × `RESIDENT`, batches).
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
    paid = np.zeros(len(priced.later), dtype=np.int64)
    for m in range(len(paid)):
        paid[m] = -priced.later[m]
    for request in range(len(at)):
        of_request = priced.paid[group[request], at[request]]
        for m in range(len(paid)):
            paid[m] += of_request[m]
    best, most = 0, np.int64(0)
    for m in range(len(paid)):
        if m == 0 or paid[m] > most:
            best, most = m, paid[m]
    return best, most


@compiled_helper
def _works_to_come(searched: Searched, at: Ints, works: Ints) -> np.int64:
    """Return the least sum of completions if batches had no base: of the works of those unfinished, the least first."""
    waited, worked, jobs = np.int64(0), np.int64(0), 0
    # From the last on what requests of a group need mostly rises, so that little has to make way.
    for request in range(len(at) - 1, -1, -1):
        if at[request] != searched.output[request]:
            _insert(works, jobs, searched.work[searched.group[request], at[request]])
            jobs += 1
    for job in range(jobs):
        worked += works[job]
        waited += worked
    return waited


@compiled_helper
def _paid_to_come(searched: Searched, base: int, at: Ints, works: Ints) -> int:
    """Return the least sum of times to completions by works, and the batches that prices show to be waited for."""
    _, paid = _most_paid(searched.priced, searched.group, at)
    return int(_works_to_come(searched, at, works) + base * -(-paid // searched.priced.unit))


@compiled_helper
def _sum_to_come(searched: Searched, base: int, at: Ints, room: Ints) -> int:
    """Return the least sum of times to completions, of jobs on one machine that may be preempted.

    The i-th by the shortest remaining time first is no later than the i-th of any schedule, and neither is the i-th of
    those that are alone, nor the end of as many batches as i requests need. ``room[0]`` has the releases of all.
    """
    release, left, ends, shares, works, tokens = room[0], room[1], room[2], room[3], room[4], room[5]
    released, jobs, future = room[6], 0, False
    for request in range(len(at) - 1, -1, -1):
        if at[request] != searched.output[request]:
            group = searched.group[request]
            work = searched.work[group, at[request]]
            _insert(ends, jobs, release[request] + searched.chain[group, at[request]])
            _insert(shares, jobs, searched.need[group, at[request]] - work)
            _insert(works, jobs, work)
            _insert(tokens, jobs, searched.output[request] - at[request] % RESIDENT)
            left[jobs], released[jobs] = searched.need[group, at[request]], release[request]
            future = future or release[request] > 0
            jobs += 1
    shared, worked = np.int64(0), np.int64(0)
    for done in range(jobs):
        shared, worked = shared + shares[done], worked + works[done]
        batches = max(tokens[done], -(-shared // base) if base > 0 else 0)
        ends[done] = max(ends[done], base * batches + worked)
    now, total = np.int64(0), np.int64(0)
    if not future:
        for job in range(jobs):
            _insert(left, job, left[job])
        for job in range(jobs):
            now += left[job]
            total += max(now, ends[job])
        return int(total)
    for done in range(jobs):
        while True:
            # The shortest that is there runs until it ends, or until the next arrival.
            shortest, until = NONE, np.int64(NONE)
            for job in range(jobs):
                if left[job] < 0:
                    continue
                if released[job] > now:
                    until = released[job] if until < 0 else min(until, released[job])
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
    return int(total)


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
    searched: Searched, aim: int, base: int, at: Ints, clock: int, spent: int, bound: int, room: Ints
) -> int:
    """Return a lower bound on the value of all schedules through a state; ``room`` is for seven arrays.

    It need not be the best one if it is ``bound`` or more.
    """
    if aim == SUM:
        weight, alone = searched.weight[0], np.int64(0)
        equal = True
        for request in range(len(at)):
            equal = equal and searched.weight[request] == weight
            alone += searched.weight[request] * searched.chain[searched.group[request], at[request]]
        if not equal:
            return spent + max(int(alone), _weighted_to_come(searched, at))
        paid = 0
        if len(searched.priced.later) > 0:
            paid = _paid_to_come(searched, base, at, room[0])
            if spent + weight * paid >= bound:
                return int(spent + weight * paid)
        room[0, :] = 0
        return int(spent + weight * max(paid, _sum_to_come(searched, base, at, room)))
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
    waited = _works_to_come(searched, at, works)
    # Nothing is paid that is as much as `_MOST_NUMBER`.
    unit, batches = searched.priced.unit, (most - int(waited)) // base
    return int(min(int(batches), _MOST_NUMBER // unit) * unit)


# Batches ---------------------------------------------------------------------------------------------------


@compiled_helper
def _unfinished(searched: Searched, at: Ints, order: Ints) -> tuple[np.int64, int]:
    """Return the weight of all that are not finished, and their number; write them, those that hold KV first."""
    due, count = np.int64(0), 0
    for holding in (True, False):
        for request in range(len(at)):
            if at[request] != searched.output[request] and (at[request] >= RESIDENT) == holding:
                due += searched.weight[request]
                order[count] = request
                count += 1
    return due, count


@compiled_helper
def _can_start(searched: Searched, at: Ints, request: int, now: int) -> bool:
    """Return whether a request without a token has arrived; of a group they start in the order of their arrivals."""
    if len(searched.moments) == 1:
        return True
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
    if byte >= RESIDENT:
        return action if action == _RUN or (action == _STAY and pauses) else NONE
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
def _put(searched: Searched, after: Ints, request: int, byte: int) -> None:
    """Insert a request's byte into those of its group up to it, which are ascending."""
    place = request
    while place > searched.first[searched.group[request]] and after[place - 1] > byte:
        after[place] = after[place - 1]
        place -= 1
    after[place] = byte


@compiled_helper
def _after_batch(searched: Searched, at: Ints, actions: Ints, after: Ints) -> None:
    """Write the bytes after a batch, those of a group ascending."""
    for request in range(len(at)):
        byte = at[request]
        if actions[request] == _RUN:
            byte = RESIDENT + 1 + byte % RESIDENT
            if byte == RESIDENT + searched.output[request]:
                byte -= RESIDENT
        _put(searched, after, request, byte)


@compiled_helper
def _after_eviction(searched: Searched, at: Ints, evicted: int, after: Ints) -> None:
    """Write the bytes after a request has lost its KV, those of a group ascending."""
    for request in range(len(at)):
        _put(searched, after, request, at[request] - RESIDENT if request == evicted else at[request])


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


class Labels(NamedTuple):
    """What has been reached, with room for more.

    Parameters
    ----------
    words
        The bytes of every label's state, shape (labels, words).
    clocks, sums, values
        Its clock, what is spent, and its estimate, `_CLOSED` once it has been followed.
    twin
        The next label of the same state.
    table
        The first label of every state.
    """

    words: Words
    clocks: Ints
    sums: Ints
    values: Ints
    twin: Ints
    table: Ints


@compiled_helper
def _more_room(labels: Labels, count: int) -> Labels:
    """Return the labels in twice the room."""
    words = np.zeros((2 * count, labels.words.shape[1]), dtype=np.uint64)
    twin, table = np.zeros(2 * count, dtype=np.int64), np.full(4 * count, NONE, dtype=np.int64)
    for label in range(count):
        for word in range(words.shape[1]):
            words[label, word] = labels.words[label, word]
        place = place_of(words, table, words[label])
        twin[label], table[place] = table[place], label
    return Labels(words, _grown(labels.clocks), _grown(labels.sums), _grown(labels.values), twin, table)


@compiled_helper
def _is_known(labels: Labels, place: int, clock: int, spent: int) -> bool:
    """Return whether there is a label of the same state that is as good."""
    other = labels.table[place]
    while other != NONE:
        if labels.clocks[other] <= clock and labels.sums[other] <= spent:
            return True
        other = labels.twin[other]
    return False


@compiled_helper
def _undercut(labels: Labels, place: int, clock: int, spent: int) -> int:
    """Close the labels of the same state that another is as good as; return one of them, NONE if there are none."""
    other, found = labels.table[place], NONE
    while other != NONE:
        if clock <= labels.clocks[other] and spent <= labels.sums[other]:
            labels.values[other] = _CLOSED
            found = other
        other = labels.twin[other]
    return int(found)


@compiled_helper
def _offer(  # noqa: PLR0917 - compiled functions take positions
    searched: Searched,
    aim: int,
    base: int,
    labels: Labels,
    count: int,
    queue: list[tuple[np.int64, np.int64]],
    after: Ints,
    clock: int,
    spent: int,
    bound: int,
    most: int,
    wanted: Words,
    room: Ints,
) -> tuple[Labels, int]:
    """Keep what has been reached, if it is new, or better than what is known, and less than ``bound``.

    Return the labels and their number, which is more than ``most`` if there was no room.
    """
    _pack(after, wanted)
    place = place_of(labels.words, labels.table, wanted)
    if _is_known(labels, place, clock, spent):
        return labels, count
    value = np.int64(_estimate(searched, aim, base, after, clock, spent, bound, room))
    if value >= bound:
        return labels, count
    label = _undercut(labels, place, clock, spent)
    if label == NONE:
        if count == most:
            return labels, count + 1
        if count == len(labels.clocks):
            labels = _more_room(labels, count)
            place = place_of(labels.words, labels.table, wanted)
        label, count = count, count + 1
        _pack(after, labels.words[label])
        labels.twin[label], labels.table[place] = labels.table[place], label
    labels.clocks[label], labels.sums[label], labels.values[label] = clock, spent, value
    heappush(queue, (value, np.int64(label)))
    return labels, count


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
    words, numbers = np.zeros((_FIRST_ROOM, size), dtype=np.uint64), np.zeros(_FIRST_ROOM, dtype=np.int64)
    labels = Labels(words, numbers, numbers.copy(), numbers.copy(), numbers.copy(), table_of(words, 1))
    at, after = np.zeros(requests, dtype=np.int64), np.zeros(requests, dtype=np.int64)
    order = np.zeros(requests, dtype=np.int64)
    # Of the batch that is composed, what every request does; and up to each that is not finished, in order, what all
    # hold, take, how many run, and their shares of the base.
    actions, held = np.zeros(requests, dtype=np.int64), np.zeros(requests + 1, dtype=np.int64)
    work, runs = np.zeros(requests + 1, dtype=np.int64), np.zeros(requests + 1, dtype=np.int64)
    # What requests pay beyond the least, and for what they hold.
    beyond, pays = np.zeros(requests + 1, dtype=np.int64), np.zeros(requests + 1, dtype=np.int64)
    priced = searched.priced
    has_prices = aim == SUM and len(priced.later) > 0 and base > 0 and searched.weight[0] > 0
    used = np.zeros(requests + 1, dtype=np.int64)
    room, wanted = np.zeros((7, requests), dtype=np.int64), np.zeros(size, dtype=np.uint64)
    count, looked = 1, 0
    value = np.int64(_estimate(searched, aim, base, at, 0, 0, bound, room))
    if value >= bound:
        return bound
    labels.twin[0], labels.values[0] = NONE, value
    queue = [(value, np.int64(0))]
    while len(queue) > 0:
        least, label = heappop(queue)
        if labels.values[label] != least:
            continue
        labels.values[label] = _CLOSED
        clock, spent = int(labels.clocks[label]), int(labels.sums[label])
        _unpack(labels.words[label], at)
        due, unfinished = _unfinished(searched, at, order)
        if unfinished == 0:
            return int(least)
        actions[:] = _STAY
        for request in range(requests if evicts else 0):
            holds_kv, begin = at[request] >= RESIDENT, searched.first[searched.group[request]]
            if not holds_kv or (request > begin and at[request] == at[request - 1]):  # of equal ones the first
                continue
            _after_eviction(searched, at, request, after)
            labels, count = _offer(
                searched, aim, base, labels, count, queue, after, clock, spent, bound, most, wanted, room
            )
            if count > most:
                return int(least)
        first, paid, to_pay = 0, np.int64(0), 0
        if has_prices:
            first, paid = _most_paid(priced, searched.group, at)
            to_pay = _most_to_pay(searched, base, at, (bound - 1 - spent) // searched.weight[0], room[0])
        then = min(first + 1, len(priced.later) - 1)
        for moment in range(NONE, len(moments)):
            # A batch begins at once, or at a later arrival.
            now = clock
            if moment != NONE:
                if moments[moment] <= now:
                    continue
                now = int(moments[moment])
            # What the batch and all that follow may last beyond what is surely needed.
            spare = np.int64(base)
            work_left, shares_left, _ = _left(searched, at)
            if aim == LAST:
                spare = np.int64(bound - 1 - now - work_left)
            elif aim == SUM and due > 0:
                spare = np.int64(bound - 1 - spent - _weighted_to_come(searched, at)) // due
            place, actions[order[0]] = 0, NONE
            while place >= 0:
                request = order[place]
                lowest = actions[request] + 1
                if (
                    lowest == 0
                    and place > 0
                    and at[request] == at[order[place - 1]]
                    and (searched.group[request] == searched.group[order[place - 1]])
                ):
                    # Equal requests: those that run come first, then those that stay.
                    lowest = actions[order[place - 1]]
                action = _next_action(searched, at, request, lowest, now, evicts, pauses)
                if action == NONE:
                    place -= 1
                    continue
                actions[request] = action
                group, token = searched.group[request], at[request] % RESIDENT
                holds, takes, gives = np.int64(0), np.int64(0), np.int64(0)
                ran, becomes = np.int64(0), at[request]
                if action == _RUN:
                    becomes = token + 1 if token + 1 == searched.output[request] else RESIDENT + token + 1
                    holds, gives = searched.blocks[group, token + 1], searched.share[group, token + 1]
                    if at[request] >= RESIDENT:
                        takes = searched.decode[group, token + 1]
                    else:
                        takes = searched.fill[group, token + 1]
                    ran = np.int64(1)
                elif at[request] >= RESIDENT:
                    holds = searched.blocks[group, token]
                if held[place] + holds > capacity:
                    continue
                used[place + 1] = used[place] + gives
                most_used = used[place + 1] + shared[capacity - held[place] - holds]
                if aim == SUM and base - most_used > spare:
                    continue
                if aim == LAST and (
                    spare < 0 or (base > 0 and base * (spare // base) < base + shares_left - most_used)
                ):
                    continue
                more, price = np.int64(0), np.int64(0)
                if has_prices:
                    if action == _RUN:
                        price = priced.price[first, group, token + 1]
                    least_paid = priced.paid[group, at[request], first]
                    more = priced.unit + price + priced.paid[group, becomes, then] - least_paid
                beyond[place + 1], pays[place + 1] = beyond[place] + more, pays[place] + price
                if has_prices:
                    unpaid = priced.most[first, capacity] - priced.most[first, capacity - held[place] - holds]
                    if paid + beyond[place + 1] + unpaid - pays[place + 1] > to_pay:
                        continue
                held[place + 1], work[place + 1] = held[place] + holds, work[place] + takes
                runs[place + 1] = runs[place] + ran
                if place + 1 < unfinished:
                    place += 1
                    actions[order[place]] = NONE
                    continue
                if runs[unfinished] == 0 or (moment != NONE and not _waited_for(searched, at, actions, now)):
                    continue
                if looked == _BATCHES_A_LABEL * most:
                    return int(least)
                looked += 1
                _after_batch(searched, at, actions, after)
                ends, then_spent = np.int64(0), np.int64(spent)
                if aim == SUM:
                    then_spent += due * (base + work[unfinished])
                else:
                    ends = now + base + work[unfinished]
                if aim == DATED_SUM:
                    for other in range(requests):
                        if actions[other] == _RUN and at[other] % RESIDENT + 1 == searched.output[other]:
                            then_spent += ends
                labels, count = _offer(
                    searched,
                    aim,
                    base,
                    labels,
                    count,
                    queue,
                    after,
                    int(ends),
                    int(then_spent),
                    bound,
                    most,
                    wanted,
                    room,
                )
                if count > most:
                    return int(least)
    return bound
