"""Counting what a legal schedule of tables does, in compiled code, as `optsched.model.cluster_metrics` does batches.

What a step does to a request is in `optsched.model.state`, to which this has to correspond; nothing moves here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.model.instance import Instance
    from optsched.model.ints import Ints
    from optsched.model.table import MachineTable


class _Requests(NamedTuple):
    """I and O of requests, g, m, whether they decode, the most m when evicted, when first and latest tokens came."""

    input: Ints
    output: Ints
    generated: Ints
    cached: Ints
    decoding: Ints
    lost: Ints
    first_ps: Ints
    latest_ps: Ints


class TableTally(NamedTuple):
    """When requests have their first and last tokens, times between two; tokens run, prefilled, and run again."""

    first: list[int]
    last: list[int]
    gaps: Counter[int]
    tokens: int
    prefill_tokens: int
    recomputed_tokens: int


def tally_tables(instance: Instance, tables: Sequence[MachineTable]) -> TableTally:
    """Follow a legal schedule of tables and count."""
    facts = np.array([(each.input, each.output) for each in instance.requests], np.int64)
    requests = _Requests(*np.ascontiguousarray(facts.T), *np.zeros((6, len(facts)), np.int64))
    gaps, sums = Counter[int](), np.zeros(4, np.int64)
    for table, machine in zip(tables, instance.machines, strict=True):
        gap = np.empty((2, len(table.request) + int(table.repeat.sum())), np.int64)
        sums[_GAPS] = 0
        cost = machine.cost
        affine = np.array(cost.affine, np.int64)
        _follow(table, requests, affine, np.array((cost.decode_kv, cost.decode_req), np.int64), gap, sums)
        values, places = np.unique(gap[0, : sums[_GAPS]], return_inverse=True)
        weights = np.zeros(len(values), np.int64)
        np.add.at(weights, places, gap[1, : sums[_GAPS]])
        gaps.update(dict(zip(values.tolist(), weights.tolist(), strict=True)))
    first, last = requests.first_ps.tolist(), requests.latest_ps.tolist()
    return TableTally(first, last, gaps, int(sums[_TOKENS]), int(sums[_PREFILLS]), int(sums[_AGAIN]))


def hits_of(table: MachineTable) -> Iterator[tuple[int, list[int]]]:
    """Yield the tokens that each batch with hits runs, and its hits."""
    ran = np.append(0, np.cumsum(table.tokens, dtype=np.int64))
    hits, begin = table.hit_tokens.tolist(), table.hit_begin.tolist()
    for row in np.flatnonzero(np.diff(table.hit_begin)).tolist():
        tokens = int(ran[table.run_begin[row + 1]] - ran[table.run_begin[row]])
        yield tokens, hits[begin[row] : begin[row + 1]]


_GAPS, _TOKENS, _PREFILLS, _AGAIN = range(4)


@compiled
def _follow(table: MachineTable, requests: _Requests, affine: Ints, decode: Ints, gaps: Ints, sums: Ints) -> None:  # noqa: PLR0917 - compiled functions take positions
    """Follow the batches of a machine; note times between two tokens, and how often each comes in a row."""
    for row in range(table.start_ps.size):
        for place in range(table.evict_begin[row], table.evict_begin[row + 1]):
            lost = table.evict[place]
            requests.lost[lost] = max(requests.lost[lost], requests.cached[lost])
            requests.cached[lost] = requests.decoding[lost] = 0
        for place in range(table.hit_begin[row], table.hit_begin[row + 1]):
            requests.cached[table.hit[place]] = table.hit_tokens[place]
        begin, last, times = table.run_begin[row], table.run_begin[row + 1], table.repeat[row]
        runs, read, first_ps = last - begin, 0, table.end_ps[row] - table.start_ps[row]
        if times > 1:
            for place in range(begin, last):
                read += requests.cached[table.request[place]]
            first_ps = 0
            for piece in range(len(affine)):
                first_ps = max(first_ps, affine[piece, 0] + affine[piece, 1] * runs)
            first_ps += decode[0] * read + decode[1] * runs
        for place in range(begin, last):
            request, count = table.request[place], table.tokens[place]
            sums[_TOKENS] += count * times
            if not requests.decoding[request]:
                sums[_PREFILLS] += count
                before = requests.cached[request]
                sums[_AGAIN] += max(min(before + count, requests.lost[request]) - before, 0)
            requests.cached[request] += count * times
            if not requests.decoding[request]:
                if requests.cached[request] < requests.input[request] + requests.generated[request]:
                    continue
                requests.decoding[request] = 1
            requests.generated[request] += times
            if requests.generated[request] == 1:
                requests.first_ps[request] = table.end_ps[row]
            else:
                gap = table.start_ps[row] + first_ps - requests.latest_ps[request]
                noted = sums[_GAPS] - 1
                # Most are like the one before.
                if noted >= 0 and gaps[0, noted] == gap:
                    gaps[1, noted] += 1
                else:
                    gaps[0, noted + 1], gaps[1, noted + 1] = gap, 1
                    sums[_GAPS] += 1
            requests.latest_ps[request] = table.end_ps[row]
        for repeat in range(1, times):
            noted = sums[_GAPS]
            gaps[0, noted], gaps[1, noted] = first_ps + repeat * decode[0] * runs, runs
            sums[_GAPS] += 1
