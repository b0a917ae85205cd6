"""Counting what a legal schedule of one machine does that is made of tables, in compiled code.

What a step does to a request is in `optsched.model.state`, what counts in `optsched.model.metrics.tally_of`, to which
this has to correspond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched.model.metrics import Tally
from optsched.model.spread import Spread

if TYPE_CHECKING:
    from optsched.model.instance import Instance
    from optsched.model.table import BatchTable, Tables


class _Requests(NamedTuple):
    """I and O of requests, g, m, whether they decode, and when their first and latest tokens came."""

    input: Ints
    output: Ints
    generated: Ints
    cached: Ints
    decoding: Ints
    first_ps: Ints
    latest_ps: Ints


class _Noted(NamedTuple):
    """Rows that one table adds.

    Parameters
    ----------
    gaps
        Times between two tokens, and how often each comes in a row; shape (2, rows).
    loads
        KV tokens, tokens and duration of every batch, and of idle times; shape (3, rows).
    changes
        When the number of those that hold KV changes, and by how much it falls; shape (2, rows).
    idle
        Which rows of loads are idle times.
    """

    gaps: Ints
    loads: Ints
    changes: Ints
    idle: Ints


_GAPS, _LOADS, _CHANGES = range(3)
"""How many rows are noted of a table."""
_BATCHES, _EVICTIONS, _TOKENS, _RUNS, _RESIDENT, _PEAK = range(3, 9)
_HELD, _HOLDING, _ENDED = range(9, 12)
"""KV tokens occupied, requests that hold some, and when the latest batch has ended."""


def tally_tables(instance: Instance, tables: Tables) -> Tally:
    """Follow a legal schedule of tables and count."""
    limits, cost = instance.limits, instance.cost
    facts = np.array([(request.input, request.output) for request in instance.requests], np.int64)
    requests = _Requests(*np.ascontiguousarray(facts.T), *np.zeros((5, len(facts)), np.int64))
    affine = np.array(cost.affine, np.int64)
    decode = np.array((cost.decode_kv, cost.decode_req, limits.kv_block), np.int64)
    sums = np.zeros(12, np.int64)
    sums[_ENDED] = instance.start_ps
    gaps, busy, idle, tokens = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
    changes = []
    for table in tables:
        noted = _room(table)
        sums[:_BATCHES] = 0
        _follow(table, requests, affine, decode, noted, sums)
        loads, rests = noted.loads[:, : sums[_LOADS]], noted.idle[: sums[_LOADS]] > 0
        _weigh(gaps, *noted.gaps[:, : sums[_GAPS]])
        _weigh(busy, loads[0, ~rests], loads[2, ~rests])
        _weigh(idle, loads[0, rests], loads[2, rests])
        _weigh(tokens, loads[1], loads[2])
        changes.append(noted.changes[:, : sums[_CHANGES]].copy())
    return Tally(
        first=requests.first_ps.tolist(),
        last=requests.latest_ps.tolist(),
        batches=int(sums[_BATCHES]),
        evictions=int(sums[_EVICTIONS]),
        tokens=int(sums[_TOKENS]),
        runs=int(sums[_RUNS]),
        resident=int(sums[_RESIDENT]),
        peak=int(sums[_PEAK]),
        busy=sum(busy.values()),
        kv_time=sum(occupied * lasting for occupied, lasting in busy.items()),
        gaps=Spread.of(gaps),
        waiting=_waiting(instance, changes, int(sums[_ENDED])),
        kv_tokens=Spread.of(busy + idle),
        batch_tokens=Spread.of(tokens),
    )


def _room(table: BatchTable) -> _Noted:
    batches, runs = int(table.repeat.sum()), len(table.request)
    return _Noted(
        np.empty((2, runs + batches), np.int64),
        np.empty((3, 2 * batches), np.int64),
        np.empty((2, batches), np.int64),
        np.empty(2 * batches, np.int64),
    )


def _weigh(found: Counter[int], values: Ints, weights: Ints) -> None:
    """Add the weights of values, of which some come several times."""
    different, places = np.unique(values, return_inverse=True)
    total = np.zeros(len(different), np.int64)
    np.add.at(total, places, weights)
    for value, weight in zip(different.tolist(), total.tolist(), strict=True):
        found[value] += weight


def _waiting(instance: Instance, changes: Sequence[Ints], end_ps: int) -> Spread | None:
    """Return for how long each number of requests waits, up to the end of the last batch."""
    arrivals = np.array([request.arrival_ps for request in instance.requests], np.int64)
    times, more = np.concatenate([np.stack([arrivals, np.ones_like(arrivals)]), *changes], axis=1)
    order = np.argsort(times, kind="stable")
    waiting, lasting = np.cumsum(more[order]), np.diff(times[order], append=end_ps)
    found = Counter[int]()
    _weigh(found, waiting[lasting > 0], lasting[lasting > 0])
    return Spread.of(found)


@compiled_part
def _occupied(block: int, tokens: int) -> int:
    return tokens if block == 1 else -(-tokens // block) * block


@compiled
def _follow(table: BatchTable, requests: _Requests, affine: Ints, decode: Ints, noted: _Noted, sums: Ints) -> None:  # noqa: PLR0917 - compiled functions take positions
    """Follow the batches of a table, repeated ones one by one."""
    inputs, outputs, generated, cached, decoding, first_ps, latest_ps = requests
    block = decode[2]
    for row in range(table.start_ps.size):
        begin, last = table.run_begin[row], table.run_begin[row + 1]
        start, runs = table.start_ps[row], table.run_begin[row + 1] - table.run_begin[row]
        if start > sums[_ENDED]:
            at = sums[_LOADS]
            noted.loads[0, at], noted.loads[1, at] = sums[_HELD], 0
            noted.loads[2, at], noted.idle[at] = start - sums[_ENDED], 1
            sums[_LOADS] += 1
        held_by = sums[_HOLDING]
        for place in range(table.evict_begin[row], table.evict_begin[row + 1]):
            lost = table.evict[place]
            sums[_HELD] -= _occupied(block, cached[lost])
            sums[_HOLDING] -= 1
            sums[_EVICTIONS] += 1
            cached[lost] = decoding[lost] = 0
        for _ in range(table.repeat[row]):
            end = table.end_ps[row]
            if table.repeat[row] > 1:
                read, linear = 0, 0
                for place in range(begin, last):
                    read += cached[table.request[place]]
                for piece in range(len(affine)):
                    linear = max(linear, affine[piece, 0] + affine[piece, 1] * runs)
                end = start + linear + decode[0] * read + decode[1] * runs
            ran, leaving, freed = 0, 0, 0
            for place in range(begin, last):
                request, count = table.request[place], table.tokens[place]
                ran += count
                before = cached[request]
                sums[_HOLDING] += before == 0
                cached[request] = before + count
                sums[_HELD] += _occupied(block, before + count) - _occupied(block, before)
                if not decoding[request]:
                    if cached[request] < inputs[request] + generated[request]:
                        continue
                    decoding[request] = 1
                generated[request] += 1
                if generated[request] == 1:
                    first_ps[request] = end
                else:
                    gap, at = end - latest_ps[request], sums[_GAPS]
                    # Most are like the one before.
                    if at > 0 and noted.gaps[0, at - 1] == gap:
                        noted.gaps[1, at - 1] += 1
                    else:
                        noted.gaps[0, at], noted.gaps[1, at] = gap, 1
                        sums[_GAPS] += 1
                latest_ps[request] = end
                if generated[request] == outputs[request]:
                    leaving, freed = leaving + 1, freed + _occupied(block, cached[request])
            at = sums[_LOADS]
            noted.loads[0, at], noted.loads[1, at] = sums[_HELD], ran
            noted.loads[2, at], noted.idle[at] = end - start, 0
            sums[_LOADS] += 1
            if sums[_HOLDING] != held_by:
                at = sums[_CHANGES]
                noted.changes[0, at], noted.changes[1, at] = start, held_by - sums[_HOLDING]
                sums[_CHANGES] += 1
            sums[_BATCHES] += 1
            sums[_TOKENS] += ran
            sums[_RUNS] += runs
            sums[_RESIDENT] += sums[_HOLDING]
            sums[_PEAK] = max(sums[_PEAK], sums[_HELD])
            sums[_HELD] -= freed
            sums[_HOLDING] -= leaving
            held_by, start = sums[_HOLDING], end
        sums[_ENDED] = start
