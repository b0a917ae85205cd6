"""Going through one batch from every state of a layer with a price for each batch and no graph, compiled.

A state says of every item how many requests are due for it, their KV in the cache, and how many wait for it, for their
first fill or for a refill: both in fields of bits, waiting ones first. All costs are in time units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled, compiled_helper
from optsched.model.ints import Ints
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.graph_kernel import Numbers
from optsched_formulations.batching.layers.layer_kernel import DONE, FULL, PAUSED, Fields, Layer, Words, enter, waiting

NO_WAY = 1 << 50
"""Cost of a way that does not exist, in units: more than any budget, and 255 of them are less than 64 bits hold."""


_FAR = 1e9
"""The same in batches."""
_BETTER, _PATIENCE, _SLOWEST, _MOMENTUM = 1e-4, 10, 0.01, 0.5
"""Batches that an improvement has at least; rounds without one before steps are cut; the shortest ones; its share."""


Costs = npt.NDArray[np.int64] | npt.NDArray[np.float64]
"""Times, exact, or in batches."""


class ItemFacts(NamedTuple):
    """What requests do, item by item; shape (items,).

    Parameters
    ----------
    size, following
        Blocks, and the item of the next token (−1 after the last).
    evictable
        Whether a request that is due for the item may be evicted.
    extra
        What its fill costs beyond the constant work, in units or in batches.
    order
        The items, the largest first.
    """

    size: Ints
    following: Ints
    evictable: Ints
    extra: Costs
    order: Ints


@compiled
def price_ways(facts: ItemFacts, price: Costs, due: Costs, waits: Costs, left: int) -> None:
    """Compute the least priced cost of a request that is due, or waits, for each item, in integers or in floats.

    Rows are the batches left, up to ``left``; row 0 is given: no way.
    """
    size, following, evictable, extra, _ = facts
    for b in range(1, left + 1):
        for i in range(len(size) - 1, -1, -1):
            run = size[i] * price[b]
            if following[i] >= 0:
                run += due[b - 1, following[i]]
            waits[b, i] = min(waits[b - 1, i], extra[i] + run)
            due[b, i] = min(run, waits[b - 1, i]) if evictable[i] else run


@compiled
def held_in_batches(  # noqa: PLR0917
    facts: ItemFacts, price: Floats, due: Floats, waits: Floats, counts: Ints, used: Floats, left: int
) -> None:
    """Let every request do what costs it least; ``used`` gets what they hold in the batch with b batches left.

    ``counts`` are those due and those that wait for each item, shape (2, items), and are used up.
    """
    size, following, evictable, extra, _ = facts
    for b in range(left, 0, -1):
        used[b] = 0.0
        # Those that run move to an item behind theirs, which is done already.
        for i in range(len(size) - 1, -1, -1):
            if counts[0, i] == 0 and counts[1, i] == 0:
                continue
            run = size[i] * price[b]
            if following[i] >= 0:
                run += due[b - 1, following[i]]
            running = 0
            if counts[1, i] > 0 and extra[i] + run <= waits[b - 1, i]:
                running += counts[1, i]
                counts[1, i] = 0
            if evictable[i] and waits[b - 1, i] < run:
                counts[1, i] += counts[0, i]
            else:
                running += counts[0, i]
            counts[0, i] = 0
            if running:
                used[b] += running * size[i]
                if following[i] >= 0:
                    counts[0, following[i]] += running


@compiled_helper
def _value(fields: Fields, half: int, words: Words, due: Ints, waits: Ints) -> int:
    """Return what the requests of a state pay."""
    total = 0
    for i in range(len(due)):
        total += waiting(fields, words[:half], i) * waits[i] + waiting(fields, words[half:], i) * due[i]
    return int(total)


@compiled
def raise_pattern_bounds(  # noqa: PLR0917
    fields: Fields, layer: Layer, count: int, due: Ints, waits: Ints, spent: int, budget: int
) -> int:
    """Raise the bounds of states by other prices, drop those that reach the budget; return how many stay."""
    words, extra, bound, parent = layer
    half, kept = words.shape[1] // 2, 0
    for state in range(count):
        found = max(bound[state], spent + extra[state] + _value(fields, half, words[state], due, waits))
        if found >= budget:
            continue
        words[kept] = words[state]
        extra[kept], bound[kept], parent[kept] = extra[state], found, parent[state]
        kept += 1
    return kept


@compiled
def through_patterns(  # noqa: PLR0917 - compiled functions take positions
    facts: ItemFacts,
    fields: Fields,
    capacity: int,
    price: int,
    due: Ints,
    waits: Ints,
    spent: int,
    rest: int,
    base: int,
    idle: int,
    here: Layer,
    count: int,
    there: Layer,
    table: Numbers,
    progress: Ints,
    limit: int,
) -> int:
    """Run one batch from up to ``limit`` states; return why it stops.

    Parameters
    ----------
    capacity, price
        Blocks of this batch, and the price of one.
    due, waits
        Least priced costs after this batch, and before it; shape (2, items).
    spent, rest, base
        Cost of the batches before; of this one and those after it, less what their blocks are worth; of one.
    idle
        Cost of the batches after this one where nothing is left to do; if it is not 0, a batch may run nothing.
    here, count, there, table, progress
        As of `layer_kernel.through_a_batch`.
    """
    size, following, evictable, extra_cost, order = facts
    width = here.words.shape[1]
    half, items = width // 2, len(size)
    current, found, budget, finished = progress[0], progress[1], progress[2], progress[3]
    words = np.empty(width, dtype=np.uint64)
    # Groups of requests in the same place: item, whether they are due, how many; what it costs more than the least if
    # one runs and if it does not; most blocks of this group and those behind it.
    item_of, is_due, many, running, skipping = np.empty((5, 2 * items), dtype=np.int64)
    beyond = np.zeros(2 * items + 1, dtype=np.int64)
    # What is decided so far: how many of each group run, the bound, blocks, and cost of refills before each.
    run, bound, used, extra = np.zeros((4, 2 * items + 1), dtype=np.int64)
    until, outcome = current + limit, DONE
    while current < count and outcome == DONE:
        if current >= until:
            outcome = PAUSED
            break
        if here.bound[current] >= budget:
            current += 1
            continue
        inherited, groups = here.bound[current], 0
        for place in range(items):
            i = order[place]
            ahead = size[i] * price
            if following[i] >= 0:
                ahead += due[0, following[i]]
            for kind in range(2):
                there_are = waiting(fields, here.words[current, half:] if kind == 0 else here.words[current, :half], i)
                if there_are == 0:
                    continue
                item_of[groups], is_due[groups], many[groups] = i, 1 - kind, there_are
                least = due[1, i] if kind == 0 else waits[1, i]
                running[groups] = ahead - least + (extra_cost[i] if kind == 1 else 0)
                skipping[groups] = NO_WAY if kind == 0 and not evictable[i] else waits[0, i] - least
                groups += 1
        beyond[groups] = 0
        for g in range(groups - 1, -1, -1):
            beyond[g] = beyond[g + 1] + many[g] * size[item_of[g]]
        # All blocks of this batch are taken to be used; at the end, those that are not are paid for.
        value = _value(fields, half, here.words[current], due[1], waits[1])
        bound[0], used[0], extra[0] = spent + rest + here.extra[current] + value, 0, here.extra[current]
        depth = 0
        run[0] = min(many[0], capacity // size[item_of[0]]) + 1
        while depth >= 0:
            if depth == groups:
                total = max(bound[depth] + (capacity - used[depth]) * price, inherited)
                if (used[depth] > 0 or idle > 0) and total < budget:
                    words[:] = 0
                    for g in range(groups):
                        i, stay = item_of[g], many[g] - run[g]
                        if stay:
                            words[fields.word[i]] += np.uint64(stay) << fields.shift[i]
                        if run[g] and following[i] >= 0:
                            after = following[i]
                            words[half + fields.word[after]] += np.uint64(run[g]) << fields.shift[after]
                    complete = True
                    for w in range(width):
                        complete = complete and words[w] == np.uint64(0)
                    if complete:
                        # Perhaps in fewer batches than the bound is for.
                        if spent + base + extra[depth] + idle < budget:
                            budget, finished = spent + base + extra[depth] + idle, current
                    else:
                        if found >= len(there.extra) or 2 * found >= len(table):
                            outcome = FULL
                            break
                        found = enter(there, table, words, extra[depth], total, current, found)
                depth -= 1
                continue
            run[depth] -= 1
            several, i = run[depth], item_of[depth]
            if several < 0:
                depth -= 1
                continue
            # What has just been evicted is not filled: that would be keeping it.
            if several and depth and not is_due[depth] and item_of[depth - 1] == i and run[depth - 1] < many[depth - 1]:
                continue
            stay = many[depth] - several
            if stay and skipping[depth] >= NO_WAY // 2:
                depth -= 1
                continue
            total = bound[depth] + several * running[depth] + stay * skipping[depth]
            blocks = used[depth] + several * size[i]
            if total + max(0, capacity - blocks - beyond[depth + 1]) * price >= budget:
                continue
            bound[depth + 1], used[depth + 1] = total, blocks
            extra[depth + 1] = extra[depth] + (0 if is_due[depth] else several * extra_cost[i])
            depth += 1
            if depth < groups:
                run[depth] = min(many[depth], (capacity - blocks) // size[item_of[depth]]) + 1
        if outcome == DONE:
            current += 1
    progress[0], progress[1], progress[2], progress[3] = current, found, budget, finished
    return outcome


@compiled
def best_prices(  # noqa: PLR0917
    facts: ItemFacts, rooms: Ints, counts: Ints, left: int, enough: float, rounds: int, price: Floats
) -> None:
    """Improve prices of blocks, in batches, by steps along the momentum of slopes (Polyak 1964, 1969); in place.

    What they are to bound is the cost from a state on, at most ``enough`` of it. ``counts`` are the requests due and
    those that wait for each item, shape (2, items), ``left`` the batches left, ``rooms[b]`` the blocks of the batch
    with which b are left.
    """
    items = len(facts.size)
    due, waits = np.full((left + 1, items), _FAR), np.full((left + 1, items), _FAR)
    used, momentum = np.zeros(left + 1), np.zeros(left + 1)
    at, best, pace, weak = price[: left + 1].copy(), -_FAR, 1.0, 0
    followed = np.empty_like(counts)
    for _ in range(rounds):
        price_ways(facts, at, due, waits, left)
        now = left - (rooms[1:] * at[1:]).sum()
        for i in range(items):
            now += counts[0, i] * due[left, i] + counts[1, i] * waits[left, i]
        if now > best + _BETTER:
            best, weak = now, 0
            price[: left + 1] = at
        else:
            weak += 1
        if best >= enough:
            break
        if weak == _PATIENCE:
            pace, weak = 0.6 * pace, 0
            if pace < _SLOWEST:
                break
            at[:] = price[: left + 1]
            momentum[:] = 0.0
            price_ways(facts, at, due, waits, left)
            now = best
        followed[:] = counts
        held_in_batches(facts, at, due, waits, followed, used, left)
        square = 0.0
        for b in range(1, left + 1):
            slope = used[b] - rooms[b]
            momentum[b] = (slope if at[b] > 0.0 or slope > 0.0 else 0.0) + _MOMENTUM * momentum[b]
            square += momentum[b] * momentum[b]
        if square < _BETTER:
            break
        step = pace * max(0.02, min(enough, best + 0.5) - now) / square
        at[1:] = np.maximum(0.0, at[1:] + step * momentum[1:])
