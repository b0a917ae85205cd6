"""The search of `by_batches`, compiled: numbers in 64 bits.

==================================================  ===========================================================
here                                                in the readable form
==================================================  ===========================================================
`_least_by_runs`                                    ``least.least_to_sink`` on `contents.layered`
`_run_batch`                                        ``by_batches._Search._batch`` of all pairs
==================================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optsched.check.certificates.shared.packed import MOST_LANES, Packed
from optsched.check.certificates.shared.resident_states import (
    BEGIN,
    COST,
    END,
    EVICT,
    FILL,
    HEAD,
    ITEM,
    KIND,
    NO_WAY,
    RUN,
    Graph64,
)
from optsched.check.certificates.shared.rows import NONE, place_of, table_of
from optsched.compiled import compiled, compiled_helper
from optsched.model.ints import Ints

_HUGE = 2**61
_FIRST_ROOM = 1 << 12
_DEEPEST = 3 * MOST_LANES + 2
"""Moves of a walk in a batch: no more evictions than requests that were resident, nor fills or ends than run in it."""
_MOST_STAGES = 8
"""Of those that begin after the same run, the last ones that are asked: each takes a number for every state."""
_MOST_KEPT = 20_000_000
"""Pairs after a run, of which each takes some 64 bytes."""


class _Layer(NamedTuple):
    """Pairs after the same number of runs: state and pool, least cost and bound; how many there are."""

    words: Ints
    cost: Ints
    bound: Ints
    size: int


class _Now(NamedTuple):
    """What holds in a batch: prices of moves and of items, and least priced costs to the sink before and after it."""

    priced: Ints
    price: Ints
    home: Ints
    after: Ints


class _Then(NamedTuple):
    """Prices that hold from after a batch on, and least priced costs to the sink then, a row for each stage."""

    prices: Ints
    homes: Ints


def least_of_walks(
    graph: Graph64, arrays: Packed, stages: Sequence[tuple[int, Ints]], beyond: int, *, batches: int, most: int
) -> tuple[int, int] | None:
    """Return what `by_batches.least_of_walks` says; None if a way costs 2^61 or more, or as much less than 0.

    Stages are how many runs they begin after, and prices.
    """
    field, start = arrays.field, arrays.start
    towards = _towards(graph)
    home = np.zeros((batches + 1, len(graph.lengths)), dtype=np.int64)
    (_, price), looked = stages[0], 0
    priced = _priced(graph, price)
    if not _least_by_runs(graph, towards, priced, home, 0):
        return None
    estimate = int(home[0, 0]) + _pool_price(field, start, price)
    size = int(home[0, 0] != NO_WAY and estimate < beyond)
    layer = _Layer(start[np.newaxis].copy(), np.zeros(1, np.int64), np.full(1, estimate, np.int64), size)
    for done in range(batches):
        now = _Now(priced, price, home[done], home[done + 1].copy())
        later = [prices for after, prices in stages if after == done + 1][-_MOST_STAGES:]
        prices, homes = np.zeros((len(later), len(price)), np.int64), np.zeros((len(later), len(home[0])), np.int64)
        for row, price in enumerate(later):
            priced = _priced(graph, price)
            if not _least_by_runs(graph, towards, priced, home, done + 1):
                return None
            prices[row], homes[row] = price, home[done + 1]
        following, left, looked = _run_batch(graph, field, now, _Then(prices, homes), layer, beyond, looked, most)
        if left < layer.size:
            proved = min(layer.bound[left : layer.size].min(), following.bound[: following.size].min(initial=beyond))
            return int(proved), looked
        layer = following
    ends = (layer.words[: layer.size, 0] == graph.sink) & ~layer.words[: layer.size, 1:].any(axis=1)
    return int(layer.cost[: layer.size][ends].min(initial=beyond)), looked


def _towards(graph: Graph64) -> Ints:
    """Return for every move its head, after a run as a state of the next row."""
    found: Ints = graph.moves[HEAD] + len(graph.lengths) * (graph.moves[KIND] == RUN)
    return found


def _priced(graph: Graph64, prices: Ints) -> Ints:
    """Return what moves cost at prices of items."""
    kind, item = graph.moves[KIND], graph.moves[ITEM]
    priced: Ints = graph.moves[COST].copy()
    filled, evicted = (kind == FILL) | (kind == END), kind == EVICT
    priced[filled] -= prices[item[filled]]
    priced[evicted] += prices[item[evicted] + 1]
    return priced


@compiled
def _least_by_runs(graph: Graph64, towards: Ints, priced: Ints, home: Ints, done: int) -> bool:
    """Write the least priced cost to the sink from every state after ``done`` runs and more, the last row's number.

    Return False if numbers are too large.
    """
    batches, states = len(home) - 1, len(graph.lengths)
    home[batches] = NO_WAY
    home[batches, graph.sink] = 0
    flat = home.reshape(-1)
    order = np.argsort(graph.lengths)[::-1]
    for runs in range(batches - 1, done - 1, -1):
        row = flat[runs * states :]
        row[:states] = NO_WAY
        for state in order:
            least = np.int64(NO_WAY)
            for move in range(graph.begins[state], graph.begins[state + 1]):
                beyond = row[towards[move]]
                if beyond < NO_WAY:
                    least = min(least, beyond + priced[move])
            if least < -_HUGE or _HUGE < least < NO_WAY:
                return False
            row[state] = least
    return True


@compiled_helper
def _waiting(field: Ints, words: Ints, item: int) -> int:
    """Return how many wait for an item."""
    return int((words[field[item, 0]] >> field[item, 1]) & field[item, 2])


@compiled_helper
def _pool_price(field: Ints, words: Ints, price: Ints) -> int:
    """Return the prices of all that waits."""
    paid = np.int64(0)
    for item in range(len(price)):
        paid += price[item] * _waiting(field, words, item)
    return int(paid)


@compiled
def _run_batch(  # noqa: PLR0917 - compiled functions take positions
    graph: Graph64, field: Ints, now: _Now, then: _Then, layer: _Layer, beyond: int, looked: int, most: int
) -> tuple[_Layer, int, int]:
    """Take all batches from the pairs of a layer; return the next one, how many pairs are done, and were looked at."""
    priced, price, home, ahead = now
    words, costs, bounds, count = layer
    width = words.shape[1]
    later, cost_of = np.zeros((_FIRST_ROOM, width), dtype=np.int64), np.zeros(_FIRST_ROOM, dtype=np.int64)
    bound_of = np.zeros(_FIRST_ROOM, dtype=np.int64)
    table, found = table_of(later, 0), 0
    deepest = _DEEPEST
    state, move, last = np.zeros(deepest, np.int64), np.zeros(deepest, np.int64), np.zeros(deepest, np.int64)
    cost, total = np.zeros(deepest, np.int64), np.zeros(deepest, np.int64)
    here, evicted = np.zeros(width, dtype=np.int64), np.zeros(len(field), dtype=np.int64)
    for pair in range(count):
        if looked >= most or found > _MOST_KEPT:
            return _Layer(later, cost_of, bound_of, found), pair, looked
        here[:] = words[pair]
        depth = 0
        state[0], last[0], cost[0] = here[0], NONE, costs[pair]
        total[0] = cost[0] + _pool_price(field, here, price) + home[here[0]]
        move[0] = graph.begins[here[0]]
        looked += 1
        while depth >= 0:
            at = state[depth]
            if move[depth] == graph.begins[at + 1]:
                # Back to before the move that led here.
                depth -= 1
                if depth >= 0:
                    taken = move[depth] - 1
                    kind, item = graph.moves[KIND, taken], graph.moves[ITEM, taken]
                    if kind == EVICT:
                        here[field[item + 1, 0]] -= np.int64(1) << field[item + 1, 1]
                        evicted[item + 1] -= 1
                    elif kind != BEGIN:
                        here[field[item, 0]] += np.int64(1) << field[item, 1]
                continue
            taken = move[depth]
            move[depth] += 1
            head, kind, item = graph.moves[HEAD, taken], graph.moves[KIND, taken], graph.moves[ITEM, taken]
            least = ahead[head] if kind == RUN else home[head]
            if least == NO_WAY:
                continue
            estimate = total[depth] + priced[taken] + least - home[at]
            if estimate >= beyond:
                continue
            spent = cost[depth] + graph.moves[COST, taken]
            if kind == RUN:
                bound = max(estimate, bounds[pair])
                # The last prices leave fewest pairs.
                for row in range(len(then.prices) - 1, -1, -1):
                    least = then.homes[row, head]
                    if least == NO_WAY:
                        bound = np.int64(beyond)
                    if bound < beyond:
                        bound = max(bound, spent + _pool_price(field, here, then.prices[row]) + least)
                if bound >= beyond:
                    continue
                here[0] = head
                place = place_of(later, table, here)
                known = table[place]
                if known == NONE:
                    if found == len(later):
                        later = np.concatenate((later, np.zeros_like(later)))
                        cost_of = np.concatenate((cost_of, np.zeros_like(cost_of)))
                        bound_of = np.concatenate((bound_of, np.zeros_like(bound_of)))
                        table = table_of(later, found)
                        place = place_of(later, table, here)
                    known = np.int64(found)
                    later[known], table[place], cost_of[known], bound_of[known] = here, known, spent, bound
                    found += 1
                elif spent < cost_of[known]:
                    cost_of[known], bound_of[known] = spent, bound
                elif spent == cost_of[known]:
                    bound_of[known] = max(bound_of[known], bound)
                continue
            if kind != BEGIN:
                if item < last[depth]:
                    continue
                if kind != EVICT and (evicted[item] > 0 or _waiting(field, here, item) == 0):
                    continue
                if kind == EVICT:
                    here[field[item + 1, 0]] += np.int64(1) << field[item + 1, 1]
                    evicted[item + 1] += 1
                else:
                    here[field[item, 0]] -= np.int64(1) << field[item, 1]
            depth += 1
            looked += 1
            state[depth], move[depth] = head, graph.begins[head]
            last[depth], cost[depth], total[depth] = NONE if kind == BEGIN else item, spent, estimate
    return _Layer(later, cost_of, bound_of, found), count, looked
