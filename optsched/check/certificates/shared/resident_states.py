"""The graph and the search of `resident_search` a second time, compiled: for the makespan, numbers in 64 bits.

`optsched.check.certificates.resident_search` says what is searched and why; `contents` and `least` are the readable
form of the graph. It is the same search, so that tests compare both; where numbers might not fit, or more requests are
resident than a row has room for, the readable form decides.

==================================================  ===========================================================
here                                                in the readable form
==================================================  ===========================================================
`explore_graph`                                     `contents.explore`, `contents.Rules`
`least_to_end`                                      `least.least_to_sink`
`search_pairs`                                      ``resident_search._Search``
==================================================  ===========================================================
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.check.certificates.shared.rows import NONE, place_of, table_of
from optsched.compiled import compiled, compiled_helper
from optsched.model.ints import Ints

Rows = npt.NDArray[np.int16]

BEGIN, EVICT, PAUSE, FILL, RUN, END = range(6)
NO_WAY = 2**62
"""Cost of a way to the sink where there is none."""
_HUGE = 2**61
_FIRST_ROOM = 1 << 12
_ROUNDS = 5_000
"""Rounds of correcting labels after which a graph is given up; ways that long are not of interest."""
HEAD, KIND, ITEM, COST, _PRICED = range(5)


class Graph64(NamedTuple):
    """Moves, those of state s from ``begins[s]`` on; the rows head, kind, item, cost and priced cost.

    ``waiting`` has a row for every state: how many of each tracked group have not started. ``sink`` is the sink's
    number, −1 if it is not reached; ``complete`` is 0 if there are more states than asked for.
    """

    begins: Ints
    moves: Ints
    waiting: Rows
    lengths: Ints
    sink: int
    complete: int


class Items64(NamedTuple):
    """What items and groups are, times in the unit of costs.

    Of every item: its group, k, whether it is the last, blocks, the time of its decode (or first fill) and of its fill,
    its price, how many reach it, and the item that it ends, −1 if it is no end; of every group: its requests and
    whether it is tracked. An end is reached by those that have it.
    """

    group: Ints
    k: Ints
    last: Ints
    blocks: Ints
    work: Ints
    fill: Ints
    price: Ints
    reach: Ints
    of: Ints
    requests: Ints
    tracked: Ints


@compiled
def _insert(row: Rows, begin: int, end: int, item: int) -> None:
    """Insert an item into lanes that are ascending, the unused ones (−1) last."""
    place = begin
    while place < end and row[place] != NONE and row[place] <= item:
        place += 1
    for other in range(end - 1, place, -1):
        row[other] = row[other - 1]
    row[place] = item


@compiled
def _remove(row: Rows, place: int, end: int) -> None:
    for other in range(place, end - 1):
        row[other] = row[other + 1]
    row[end - 1] = NONE


@compiled_helper
def _reached(items: Items64, row: Rows, end: int, step: int) -> int:
    """Return how many of a row's lanes have a token, or a later one, of the same group."""
    found = 0
    for lane in range(1, end):
        if row[lane] != NONE:
            found += items.group[row[lane]] == items.group[step] and items.k[row[lane]] >= items.k[step]
    return int(found)


@compiled_helper
def _fill_fits(items: Items64, row: Rows, end: int, item: int) -> bool:
    """Return whether as many requests as have this token, and each before it, are not there yet."""
    for step in range(item + 1 - items.k[item], item + 1):
        reach = items.reach[step]
        if reach < items.requests[items.group[step]] and _reached(items, row, end, step) >= reach:
            return False
    return True


@compiled_helper
def _run_fits(items: Items64, row: Rows, end: int) -> bool:
    """Return whether no more stay than have a token more."""
    for lane in range(1, end):
        step = row[lane]
        if step == NONE:
            continue
        reach = items.reach[step + 1]
        if reach < items.requests[items.group[step]] and _reached(items, row, end, step) > reach:
            return False
    return True


@compiled
def explore_graph(  # noqa: PLR0917 - compiled functions take positions
    items: Items64, capacity: int, base: int, worth: Ints, evicts: bool, pauses: bool, lanes: int, most: int
) -> Graph64:
    """Find all states that the source reaches; a row has ``lanes`` for items, as many for paused ones, and the rest.

    A lane is free in every state: at most lanes − 1 requests are resident. ``worth`` is what others are worth in a
    batch by the blocks that are left, empty if there are no others.
    """
    groups = len(items.requests)
    width = 1 + 2 * lanes + groups
    rows = np.full((_FIRST_ROOM, width), NONE, dtype=np.int16)
    moves = np.zeros((5, 4 * _FIRST_ROOM), dtype=np.int64)
    begins = np.zeros(_FIRST_ROOM + 1, dtype=np.int64)
    source = np.full(width, NONE, dtype=np.int16)
    source[0] = 0
    for group in range(groups):
        source[1 + 2 * lanes + group] = items.requests[group] if items.tracked[group] else 0
    rows[0] = source
    table = table_of(rows, 1)
    count, arcs, state, complete = 1, 0, 0, 1
    row, after = np.empty_like(source), np.empty_like(source)
    while state < count:
        begins[state] = arcs
        row[:] = rows[state]
        size, paused, held = 0, 0, np.int64(0)
        while row[1 + size] != NONE:
            held += items.blocks[row[1 + size]]
            size += 1
        while row[1 + lanes + paused] != NONE:
            held += items.blocks[row[1 + lanes + paused]]
            paused += 1
        ends = 0
        for lane in range(1, 1 + size):
            ends += items.of[row[lane]] >= 0
        # Choices: while composing, to fill each item, or to end as it, and to run; else to begin, and for each lane to
        # evict or pause.
        for choice in range(len(items.k) + 1 if row[0] else 1 + 2 * size):
            after[:] = row
            kind, item, cost, priced = RUN, np.int64(NONE), np.int64(0), np.int64(0)
            if row[0] and choice < len(items.k) and items.of[choice] >= 0:
                kind, item, lane, taken = END, np.int64(choice), 0, 0
                for other in range(1, 1 + size):
                    taken += row[other] == item
                    if row[other] == items.of[item]:
                        lane = other
                if lane == 0 or taken >= items.reach[item]:
                    continue
                _remove(after, lane, 1 + lanes)
                _insert(after, 1, 1 + lanes, int(item))
                priced = -items.price[item]
            elif row[0] and choice < len(items.k):
                kind, item = FILL, np.int64(choice)
                if ends > 0 or held + items.blocks[item] > capacity:
                    continue
                group = items.group[item]
                to_come = row[1 + 2 * lanes + group]
                if items.k[item] == 1 and items.tracked[group]:
                    if to_come == 0:
                        continue
                    after[1 + 2 * lanes + group] -= 1
                else:
                    present = np.int64(to_come)
                    for lane in range(1, 1 + 2 * lanes):
                        present += row[lane] != NONE and items.group[row[lane]] == group
                    if present >= items.requests[group] or (items.k[item] > 1 and not evicts):
                        continue
                if not _fill_fits(items, row, 1 + 2 * lanes, int(item)):
                    continue
                _insert(after, 1, 1 + lanes, int(item))
                cost = items.fill[item]
                priced = cost - items.price[item]
            elif row[0]:
                if size == 0 and len(worth) == 0:
                    continue
                after[: 1 + 2 * lanes] = NONE
                after[0] = 0
                for lane in range(1, 1 + 2 * lanes):
                    if row[lane] != NONE and (lane > lanes or not items.last[row[lane]]):
                        _insert(after, 1, 1 + lanes, row[lane])
                if not _run_fits(items, after, 1 + lanes):
                    continue
                cost = np.int64(base)
                if len(worth) > 0:
                    cost -= worth[capacity - held]
                priced = cost
            elif choice == 0:
                kind, after[0], grown = BEGIN, 1, held
                for lane in range(1, 1 + size):
                    after[lane] += 1
                    grown += items.blocks[after[lane]] - items.blocks[row[lane]]
                    cost += items.work[after[lane]]
                if grown > capacity:
                    continue
                priced = cost
            else:
                lane = 1 + (choice - 1) // 2
                item, kind = np.int64(row[lane]), EVICT if choice % 2 else PAUSE
                if (lane > 1 and row[lane - 1] == item) or not (evicts if kind == EVICT else pauses):
                    continue
                _remove(after, lane, 1 + lanes)
                if kind == EVICT:
                    priced = items.price[item + 1]
                else:
                    _insert(after, 1 + lanes, 1 + 2 * lanes, int(item))
            place = place_of(rows, table, after)
            head = table[place]
            if head == NONE:
                if count == most:
                    complete = 0
                    break
                if count == len(rows):
                    rows = np.concatenate((rows, np.full_like(rows, NONE)))
                    begins = np.concatenate((begins, np.zeros_like(begins)))
                    table = table_of(rows, count)
                    place = place_of(rows, table, after)
                head = np.int64(count)
                rows[count] = after
                table[place] = head
                count += 1
            if arcs == moves.shape[1]:
                moves = np.concatenate((moves, np.zeros_like(moves)), axis=1)
            moves[HEAD, arcs], moves[KIND, arcs], moves[ITEM, arcs] = head, kind, item
            moves[COST, arcs], moves[_PRICED, arcs] = cost, priced
            arcs += 1
        if not complete:
            break
        state += 1
    begins[count] = arcs
    lengths = np.zeros(count, dtype=np.int64)
    for number in range(count):
        for lane in range(1, 1 + lanes):
            item = rows[number, lane]
            lengths[number] += 0 if item == NONE else 1 + (items.of[item] >= 0)
        lengths[number] = 1000 + lengths[number] if rows[number, 0] else -lengths[number]
    source[1:] = NONE
    source[1 + 2 * lanes :] = 0
    sink = table[place_of(rows, table, source)]
    return Graph64(
        begins[: count + 1], moves[:, :arcs].copy(), rows[:count, 1 + 2 * lanes :].copy(), lengths, sink, complete
    )


@compiled
def least_to_end(graph: Graph64, home: Ints) -> bool:
    """Write the least priced cost from every state to the sink, `NO_WAY` where there is none.

    Return False if labels go on falling, or beyond 2^61: a cycle is negative, or numbers are too large.
    """
    home[:] = NO_WAY
    home[graph.sink] = 0
    # All moves but runs lead forwards in this order; so backwards through it labels settle soon.
    order = np.argsort(graph.lengths)[::-1]
    for _ in range(_ROUNDS):
        changed = False
        for state in order:
            least = home[state]
            for move in range(graph.begins[state], graph.begins[state + 1]):
                beyond = home[graph.moves[HEAD, move]]
                if beyond < NO_WAY:
                    least = min(least, beyond + graph.moves[_PRICED, move])
            if least < home[state]:
                if least < -_HUGE or least > _HUGE:
                    return False
                home[state] = least
                changed = True
        if not changed:
            return True
    return False


@compiled
def search_pairs(  # noqa: PLR0917
    graph: Graph64,
    home: Ints,
    items: Items64,
    field: Ints,
    times: Ints,
    places: Ints,
    start: Ints,
    estimate: int,
    beyond: int,
    most: int,
) -> tuple[int, bool]:
    """Search pairs by increasing estimate; return the least of the sink, and True; or what is proved, and False.

    ``field`` has for every item the word, shift and mask of its pool, word −1 if it has none; word 0 is the state, word
    1 how many have arrived. ``start`` are the words of the source. ``times`` are arrivals, from 0, and ``places[g, w]``
    the place there of the w-th last of group g; both are empty if all arrive together. Pairs estimated at ``beyond`` or
    more are left out, and if none is left, ``beyond`` is proved. At most ``most`` are looked at, and twice
    as many kept.
    """
    width = len(start)
    pairs = np.zeros((_FIRST_ROOM, width), dtype=np.int64)
    totals, clocks = np.zeros(_FIRST_ROOM, dtype=np.int64), np.zeros(_FIRST_ROOM, dtype=np.int64)
    if estimate >= beyond:
        return beyond, False
    pairs[0], totals[0] = start, estimate
    table = table_of(pairs, 1)
    count, looked = 1, 0
    queue = [(np.int64(estimate), np.int64(0))]
    wanted = np.empty_like(start)
    while len(queue) > 0:
        total, pair = heappop(queue)
        if total > totals[pair]:
            continue
        state, seen, clock = pairs[pair, 0], pairs[pair, 1], clocks[pair]
        if state == graph.sink:
            empty = True
            for word in range(1, width):
                empty = empty and pairs[pair, word] == 0
            if empty:
                return int(total), True
        looked += 1
        if looked > most or count > 2 * most:
            return int(total), False
        for move in range(graph.begins[state], graph.begins[state + 1]):
            head, kind, item = graph.moves[HEAD, move], graph.moves[KIND, move], graph.moves[ITEM, move]
            if home[head] == NO_WAY:
                continue
            found = total + graph.moves[_PRICED, move] + home[head] - home[state]
            if found >= beyond:
                continue
            present = 0
            while present < len(times) and times[present] <= clock:
                present += 1
            while True:
                wanted[:] = pairs[pair]
                wanted[0] = head
                idle = np.int64(0)
                possible = True
                if kind == BEGIN:
                    if present > 0:
                        idle = max(np.int64(0), times[present - 1] - clock)
                    wanted[1] = present
                elif kind == RUN:
                    wanted[1] = 0
                elif kind == EVICT:
                    word = field[item + 1, 0]
                    if word >= 0:
                        wanted[word] += np.int64(1) << field[item + 1, 1]
                elif kind == FILL:
                    word = field[item, 0]
                    group = items.group[item]
                    waiting = np.int64(graph.waiting[state, group])
                    if word >= 0:
                        waiting = (wanted[word] >> field[item, 1]) & field[item, 2]
                        wanted[word] -= np.int64(1) << field[item, 1]
                    possible = bool(waiting > 0)
                    if possible and items.k[item] == 1 and len(times) > 0:
                        possible = bool(places[group, waiting] < seen)
                if possible and found + idle < beyond:
                    place = place_of(pairs, table, wanted)
                    known = table[place]
                    if known == NONE:
                        if count == len(totals):
                            pairs = np.concatenate((pairs, np.zeros_like(pairs)))
                            totals = np.concatenate((totals, np.zeros_like(totals)))
                            clocks = np.concatenate((clocks, np.zeros_like(clocks)))
                            table = table_of(pairs, count)
                            place = place_of(pairs, table, wanted)
                        known = np.int64(count)
                        pairs[count] = wanted
                        table[place] = known
                        totals[known] = found + idle + 1
                        count += 1
                    if found + idle < totals[known]:
                        totals[known] = found + idle
                        clocks[known] = clock + graph.moves[COST, move] + idle
                        heappush(queue, (found + idle, known))
                if kind != BEGIN or present >= len(times):
                    break
                # Or the batch waits for the next arrivals.
                upto = times[present]
                while present < len(times) and times[present] <= upto:
                    present += 1
    return int(beyond), False
