"""The replay of several machines a second time, on arrays: without an object per batch, in compiled code.

It says yes, with what the metrics need, or nothing. Then `optsched.check.cluster.replay`, the readable form, has to
decide, as it does where numbers might not fit 64 bits, where first runs have an order, where a scheduler pays for what
it considers, where machines have roles, and where the blocks that a batch drops are not listed from the last one of
each segment on. Tables have no swaps and no moves, so each machine is replayed by itself. What corresponds to what:

==========================================  ===================================================================
here                                        there
==========================================  ===================================================================
`_Requests`                                 `optsched.check.cluster.record.State`, `optsched.check.cluster.memory.Hold`
`_match`, `_announce`, `_publish`, `_drop`  `optsched.check.cluster.memory.Memory`
``pins``                                    ``Memory._pinning``, of which only how many there are
`_play`, `_run_all`                         `optsched.check.cluster.machine.Machine`
repeats one by one                          ``Machine._repeat``, in closed form
==========================================  ===================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.check.cluster.contents import Contents
from optsched.check.cluster.metrics import Outcome
from optsched.check.cluster.record import Totals
from optsched.check.problem import Problem, problems_of
from optsched.check.schedule.arrays import MOST_BATCHES, MOST_PS, Prices, merge_weights, prices_of, within_range
from optsched.compiled import compiled, compiled_helper
from optsched.model.cluster import CacheMode, Role
from optsched.model.instance import Instance
from optsched.model.restrictions import Restrictions
from optsched.model.table import MachineTable

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class _Requests(NamedTuple):
    """What requests are, where they have to be, and their states.

    g, m, whether they fill, the most m when they were evicted, their pinned blocks and those that are their own, when
    their tokens came, and the last batch, counted from 1 over all machines, that names them.
    """

    arrival: Ints
    input: Ints
    output: Ints
    route: Ints
    generated: Ints
    cached: Ints
    decoding: Ints
    lost: Ints
    shared: Ints
    private: Ints
    first_ps: Ints
    last_ps: Ints
    seen: Ints


class _Segments(NamedTuple):
    """Segments of requests (`optsched.check.cluster.contents.Segment`): of each from its entry of ``begin`` on."""

    begin: Ints
    segment: Ints
    first: Ints
    end: Ints


class _Memory(NamedTuple):
    """By segment: blocks cached, completed by the batch, cached segments right behind, and requests that pin one.

    ``sums`` has the blocks that are cached and those of single requests; ``touched`` lists segments.
    """

    cached: Ints
    fresh: Ints
    behind: Ints
    pins: Ints
    touched: Ints
    sums: Ints


class _Rules(NamedTuple):
    """The limits of a machine, and what is allowed."""

    machine: int
    blocks: int
    block: int
    tokens: int
    prefill_tokens: int
    runs: int
    eviction: bool
    hybrid: bool
    chunked: bool
    share: bool


class _Noted(NamedTuple):
    """Times between two tokens of a request, and how often each comes in a row; requests that hold KV; and sums."""

    gap: Ints
    times: Ints
    residents: Ints
    sums: Ints


_CACHED, _PRIVATE = range(2)
_NUMBER, _GAPS, _RESIDENTS, _CLOCK, _LOAD, _BATCHES, _EVICTIONS, _HITS, _TOKENS, _PREFILLS, _AGAIN = range(11)


def replay_machines(
    instance: Instance, tables: Sequence[MachineTable], routes: Sequence[int], restrictions: Restrictions
) -> Outcome | None:
    """Replay a schedule of tables; None where the readable form has to decide.

    That all numbers fit 64 bits `optsched.check.schedule.arrays.within_range` proves of each machine.
    """
    problems, machines, number = problems_of(instance, restrictions), instance.machines, len(instance.requests)
    if (
        not all(within_range(problem) for problem in problems)
        or any(machine.role is not Role.BOTH for machine in machines)
        or len(tables) != len(machines)
        or len(routes) != (number if instance.is_distributed else 0)
    ):
        return None
    facts = np.array([(each.arrival_ps, each.input, each.output) for each in instance.requests], np.int64)
    route = np.array(routes, np.int64) if instance.is_distributed else np.zeros(number, np.int64)
    requests = _Requests(
        np.ascontiguousarray(facts[:, 0]),
        np.ascontiguousarray(facts[:, 1]),
        np.ascontiguousarray(facts[:, 2]),
        route,
        *(np.zeros(number, np.int64) for _ in range(9)),
    )
    contents: dict[tuple[int, CacheMode], _Segments] = {}
    gaps, totals, loads, ends = Counter[int](), Totals(), list[int](), list[int]()
    none = np.zeros(0, np.int64)
    noted = _Noted(none, none, np.zeros(number, np.int64), np.zeros(11, np.int64))
    for index, (table, machine, problem) in enumerate(zip(tables, machines, problems, strict=True)):
        if not _well_formed(table):
            return None
        key = problem.limits.kv_block, machine.cache.mode
        if key not in contents:
            contents[key] = _segments(instance, *key)
        gap = np.empty((2, len(table.request) + int(table.repeat.sum())), np.int64)
        noted = noted._replace(gap=gap[0], times=gap[1])
        noted.sums[1:] = 0
        rules = _rules(index, problem, machine.cache.share_in_batch)
        names = len(instance.prefixes.nodes) + number + 1
        memory = _Memory(*(np.zeros(size, np.int64) for size in (names, names, names, names, names, 2)))
        if not _play(table, requests, contents[key], memory, rules, prices_of(problem), noted):
            return None
        sums = noted.sums.tolist()
        merge_weights(gaps, *gap[:, : sums[_GAPS]])
        loads.append(sums[_LOAD])
        ends.append(sums[_CLOCK])
        totals.batches += sums[_BATCHES]
        totals.evictions += sums[_EVICTIONS]
        totals.hit_tokens += sums[_HITS]
        totals.computed_tokens += sums[_TOKENS]
        totals.prefill_tokens += sums[_PREFILLS]
        totals.recomputed_tokens += sums[_AGAIN]
        totals.saved_ps += _saved_ps(table, problem)
    limit = problems[0].evictions
    if (requests.generated < requests.output).any() or (limit is not None and totals.evictions > limit):
        return None
    first, last = requests.first_ps.tolist(), requests.last_ps.tolist()
    return Outcome(instance.requests, first, last, loads, max(ends), totals, gaps, (), instance.links.kv_bytes)


def _rules(machine: int, problem: Problem, share: bool) -> _Rules:
    limits = problem.limits
    return _Rules(
        machine,
        problem.blocks,
        limits.kv_block,
        limits.batch_tokens,
        limits.prefill_tokens,
        limits.batch_tokens if problem.runs is None else min(problem.runs, limits.batch_tokens),
        problem.eviction,
        problem.hybrid,
        problem.chunked,
        share,
    )


def _saved_ps(table: MachineTable, problem: Problem) -> int:
    """Return by how much longer batches would take that run what they find: a first step of h + c tokens on nothing."""
    cost, saved = problem.cost, 0
    for row in np.flatnonzero(np.diff(table.hit_begin)).tolist():
        hits = table.hit_tokens[table.hit_begin[row] : table.hit_begin[row + 1]].tolist()
        tokens = int(table.tokens[table.run_begin[row] : table.run_begin[row + 1]].sum())
        with_hits, without = (
            max(base + each * count for base, each in problem.pieces) for count in (tokens, tokens + sum(hits))
        )
        saved += without - with_hits + sum(cost.prefill_sq * hit**2 - cost.prefill_kv * hit for hit in hits)
    return saved


def _segments(instance: Instance, block: int, mode: CacheMode) -> _Segments:
    contents = Contents(instance, block, mode)
    rows, begin = list[tuple[int, int, int]](), [0]
    for index in range(len(instance.requests)):
        rows += contents.segments(index)
        begin.append(len(rows))
    found = np.array(rows, np.int64).reshape(-1, 3)
    return _Segments(np.array(begin, np.int64), *(np.ascontiguousarray(found[:, column]) for column in range(3)))


def _well_formed(table: MachineTable) -> bool:
    """Whether a table's columns fit each other, and its times and repeats their range."""
    batches = len(table.start_ps)
    pairs = (
        (table.run_begin, table.request),
        (table.evict_begin, table.evict),
        (table.hit_begin, table.hit),
        (table.drop_begin, table.drop),
    )
    return (
        len(table.end_ps) == len(table.repeat) == batches
        and len(table.tokens) == len(table.request)
        and len(table.hit_tokens) == len(table.hit)
        and len(table.drop_number) == len(table.drop)
        and all(
            len(begin) == batches + 1 and begin[0] == 0 and begin[-1] == len(rows) and bool((np.diff(begin) >= 0).all())
            for begin, rows in pairs
        )
        and bool((table.repeat >= 1).all() and (table.repeat <= MOST_BATCHES).all())
        and int(table.repeat.sum()) <= MOST_BATCHES
        and bool((table.start_ps >= 0).all() and (table.start_ps <= MOST_PS).all())
    )


# Memory -----------------------------------------------------------------------------------------------------------


@compiled_helper
def _match(segments: _Segments, memory: _Memory, request: int, most: int) -> int:
    """Return the longest leading run of blocks that a request finds, at most ``most``."""
    blocks = 0
    for at in range(segments.begin[request], segments.begin[request + 1]):
        segment = segments.segment[at]
        blocks = segments.first[at] + max(memory.cached[segment], memory.fresh[segment])
        if blocks < segments.end[at] or blocks >= most:
            break
    return min(blocks, most)


@compiled_helper
def _pin(segments: _Segments, memory: _Memory, request: int, before: int, blocks: int) -> None:
    """Note that a request which pins ``before`` blocks pins ``blocks``, or one that pins those lets go (0)."""
    low, high, change = (before, blocks, 1) if blocks else (0, before, -1)
    for at in range(segments.begin[request], segments.begin[request + 1]):
        if segments.first[at] >= high:
            break
        if segments.first[at] >= low:
            memory.pins[segments.segment[at]] += change


@compiled_helper
def _announce(segments: _Segments, memory: _Memory, request: int, whole: int, touched: int) -> int:
    """Let later runs of a batch match the whole blocks of a request; return how many segments are listed."""
    for at in range(segments.begin[request], segments.begin[request + 1]):
        upto = min(whole, segments.end[at]) - segments.first[at]
        if upto <= 0:
            break
        segment = segments.segment[at]
        if memory.fresh[segment] == 0:
            memory.touched[touched] = segment
            touched += 1
        memory.fresh[segment] = max(memory.fresh[segment], upto)
    return touched


@compiled_helper
def _publish(segments: _Segments, memory: _Memory, requests: _Requests, block: int, request: int) -> None:
    """Put the whole blocks of a request into the cache, in which those that are there already are not doubled."""
    begin, last = segments.begin[request], segments.begin[request + 1]
    if begin == last:
        return
    whole, shared = min(requests.cached[request] // block, segments.end[last - 1]), requests.shared[request]
    if whole <= shared:
        return
    for at in range(begin, last):
        if segments.first[at] >= whole:
            break
        if segments.end[at] <= shared:
            continue
        segment = segments.segment[at]
        upto, have = min(whole, segments.end[at]) - segments.first[at], memory.cached[segment]
        if upto > have:
            memory.cached[segment] = upto
            memory.sums[_CACHED] += upto - have
            if have == 0 and at > begin:
                memory.behind[segments.segment[at - 1]] += 1
    _pin(segments, memory, request, shared, whole)
    requests.private[request] -= whole - shared
    memory.sums[_PRIVATE] -= whole - shared
    requests.shared[request] = whole


@compiled_helper
def _release(segments: _Segments, memory: _Memory, requests: _Requests, noted: _Noted, request: int) -> None:
    """Free what a request holds, and its pins; what is cached stays."""
    _pin(segments, memory, request, requests.shared[request], 0)
    memory.sums[_PRIVATE] -= requests.private[request]
    requests.cached[request] = requests.shared[request] = requests.private[request] = 0
    requests.decoding[request] = 0
    place = 0
    while noted.residents[place] != request:
        place += 1
    noted.sums[_RESIDENTS] -= 1
    noted.residents[place] = noted.residents[noted.sums[_RESIDENTS]]


@compiled_helper
def _drop(  # noqa: PLR0917 - compiled functions take positions
    table: MachineTable, row: int, segments: _Segments, memory: _Memory, requests: _Requests, noted: _Noted
) -> bool:
    """Drop the blocks of a batch, each the last one of its segment; say whether all are cached and may go."""
    number = requests.arrival.size
    touched, last, at, pinned = 0, -1, -1, 0
    for place in range(table.drop_begin[row], table.drop_begin[row + 1]):
        request, block = table.drop[place], table.drop_number[place]
        if request < 0 or request >= number or block < 0:
            return False
        if request != last or block < segments.first[at] or block >= segments.end[at]:
            last, at = request, segments.begin[request]
            while at < segments.begin[request + 1] and segments.end[at] <= block:
                at += 1
            if at == segments.begin[request + 1]:
                return False
            pinned = _most_pinned(segments, memory, requests, noted, segments.segment[at])
            if touched == memory.touched.size:
                return False
            memory.touched[touched] = segments.segment[at]
            touched += 1
        segment = segments.segment[at]
        if block != segments.first[at] + memory.cached[segment] - 1 or block < pinned:
            return False
        memory.cached[segment] -= 1
        memory.sums[_CACHED] -= 1
        if memory.cached[segment] == 0 and at > segments.begin[request]:
            memory.behind[segments.segment[at - 1]] -= 1
    kept = 0
    for place in range(touched):
        kept += memory.behind[memory.touched[place]]
    return bool(kept == 0)


@compiled_helper
def _most_pinned(segments: _Segments, memory: _Memory, requests: _Requests, noted: _Noted, segment: int) -> int:
    """Return the most blocks that a request pins which has a segment."""
    most = 0
    if memory.pins[segment] > 0:
        for place in range(noted.sums[_RESIDENTS]):
            request = noted.residents[place]
            for at in range(segments.begin[request], segments.begin[request + 1]):
                if segments.segment[at] == segment:
                    most = max(most, requests.shared[request])
    return int(most)


# Batches ----------------------------------------------------------------------------------------------------------


@compiled_helper
def _grow(memory: _Memory, requests: _Requests, block: int, request: int, count: int) -> None:
    """Let a request hold more tokens; the blocks that are new are its own until they are published."""
    requests.cached[request] += count
    private = (requests.cached[request] + block - 1) // block - requests.shared[request]
    memory.sums[_PRIVATE] += private - requests.private[request]
    requests.private[request] = private


@compiled
def _play(  # noqa: PLR0917 - compiled functions take positions
    table: MachineTable,
    requests: _Requests,
    segments: _Segments,
    memory: _Memory,
    rules: _Rules,
    prices: Prices,
    noted: _Noted,
) -> bool:
    """Replay the table of a machine; say whether all in it is legal. If not, nothing else is meant to be read."""
    sums, number = noted.sums, requests.arrival.size
    for row in range(table.start_ps.size):
        if table.start_ps[row] < sums[_CLOCK]:
            return False
        sums[_CLOCK] = table.start_ps[row]
        sums[_NUMBER] += 1
        for place in range(table.evict_begin[row], table.evict_begin[row + 1]):
            request = table.evict[place]
            if not rules.eviction or not _is_here(requests, rules, sums, number, request):
                return False
            if requests.cached[request] < 1:
                return False
            sums[_EVICTIONS] += 1
            requests.lost[request] = max(requests.lost[request], requests.cached[request])
            _release(segments, memory, requests, noted, request)
        if not _drop(table, row, segments, memory, requests, noted):
            return False
        if not _run_all(table, row, requests, segments, memory, rules, prices, noted):
            return False
        if sums[_CLOCK] != table.end_ps[row]:
            return False
    return True


@compiled_helper
def _is_here(requests: _Requests, rules: _Rules, sums: Ints, number: int, request: int) -> bool:
    """Whether a request that this batch names for the first time is on this machine, and has not ended."""
    if request < 0 or request >= number or requests.seen[request] == sums[_NUMBER]:
        return False
    requests.seen[request] = sums[_NUMBER]
    return bool(requests.route[request] == rules.machine and requests.generated[request] < requests.output[request])


@compiled_helper
def _run_all(  # noqa: PLR0917 - compiled functions take positions
    table: MachineTable,
    row: int,
    requests: _Requests,
    segments: _Segments,
    memory: _Memory,
    rules: _Rules,
    prices: Prices,
    noted: _Noted,
) -> bool:
    """Carry out the runs of a batch and of its repeats; say whether they are legal."""
    sums, number, block, times = noted.sums, requests.arrival.size, rules.block, table.repeat[row]
    begin, last, hit = table.run_begin[row], table.run_begin[row + 1], table.hit_begin[row]
    runs = last - begin
    if runs < 1 or runs > rules.runs:
        return False
    tokens = decodes = prefill_tokens = read = fills_ps = touched = 0
    for place in range(begin, last):
        request, count = table.request[place], int(np.int64(table.tokens[place]))
        if not _is_here(requests, rules, sums, number, request) or count < 1:
            return False
        left, exists = requests.output[request] - requests.generated[request], requests.input[request]
        exists += requests.generated[request]
        if left < times or requests.arrival[request] > table.start_ps[row]:
            return False
        before = requests.cached[request]
        if requests.decoding[request]:
            if count != 1:
                return False
            decodes += 1
            read += before
        else:
            if before == 0:
                blocks = _match(segments, memory, request, (exists - 1) // block)
                stated = 0
                if hit < table.hit_begin[row + 1] and table.hit[hit] == request:
                    stated = table.hit_tokens[hit]
                    hit += 1
                before = blocks * block
                if stated != before:
                    return False
                requests.cached[request], requests.shared[request] = before, blocks
                requests.private[request] = 0
                if blocks > 0:
                    _pin(segments, memory, request, 0, blocks)
                sums[_HITS] += before
                noted.residents[sums[_RESIDENTS]] = request
                sums[_RESIDENTS] += 1
            if count > exists - before or (count < exists - before and not rules.chunked):
                return False
            prefill_tokens += count
            sums[_AGAIN] += max(min(before + count, requests.lost[request]) - before, 0)
            fills_ps += prices.prefill_sq * (count * count + 2 * before * count)
            fills_ps += prices.prefill_kv * before + prices.prefill_req
        tokens += count
        if tokens > rules.tokens:
            return False
        _grow(memory, requests, block, request, count)
        if rules.share and requests.cached[request] // block > before // block:
            touched = _announce(segments, memory, request, requests.cached[request] // block, touched)
    for place in range(touched):
        memory.fresh[memory.touched[place]] = 0
    prefills = runs - decodes
    if hit != table.hit_begin[row + 1] or prefill_tokens > rules.prefill_tokens:
        return False
    if prefills > 0 and decodes > 0 and not rules.hybrid:
        return False
    if times > 1 and (
        prefills > 0
        or table.evict_begin[row + 1] > table.evict_begin[row]
        or table.drop_begin[row + 1] > table.drop_begin[row]
    ):
        return False
    steps_ps = 0
    for piece in range(prices.base.size):
        steps_ps = max(steps_ps, prices.base[piece] + prices.token[piece] * tokens)
    steps_ps += fills_ps + prices.decode_req * decodes
    for repeat in range(times):
        if repeat > 0:
            for place in range(begin, last):
                _grow(memory, requests, block, table.request[place], 1)
        if memory.sums[_CACHED] + memory.sums[_PRIVATE] > rules.blocks or sums[_CLOCK] > MOST_PS:
            return False
        duration = steps_ps + prices.decode_kv * (read + repeat * decodes)
        sums[_CLOCK] += duration
        sums[_LOAD] += duration
        if repeat > 0:
            noted.gap[sums[_GAPS]], noted.times[sums[_GAPS]] = duration, runs
            sums[_GAPS] += 1
        _end(table, begin, last, requests, segments, memory, rules, noted, repeat == 0)
    sums[_BATCHES] += times
    sums[_TOKENS] += times * tokens
    sums[_PREFILLS] += prefill_tokens
    return True


@compiled_helper
def _end(  # noqa: PLR0917 - compiled functions take positions
    table: MachineTable,
    begin: int,
    last: int,
    requests: _Requests,
    segments: _Segments,
    memory: _Memory,
    rules: _Rules,
    noted: _Noted,
    gaps: bool,
) -> None:
    """End a batch: give tokens, publish, then let go of what has finished. ``gaps`` says whether to note these."""
    sums, block, now = noted.sums, rules.block, noted.sums[_CLOCK]
    finished = False
    for place in range(begin, last):
        request = table.request[place]
        if requests.cached[request] // block > requests.shared[request]:
            _publish(segments, memory, requests, block, request)
        if requests.cached[request] < requests.input[request] + requests.generated[request]:
            continue
        requests.generated[request] += 1
        requests.decoding[request] = 1
        if requests.generated[request] == 1:
            requests.first_ps[request] = now
        elif gaps:
            gap, row = now - requests.last_ps[request], sums[_GAPS] - 1
            # Most are like the one before.
            if row >= 0 and noted.gap[row] == gap:
                noted.times[row] += 1
            else:
                noted.gap[row + 1], noted.times[row + 1] = gap, 1
                sums[_GAPS] += 1
        requests.last_ps[request] = now
        finished = finished or requests.generated[request] == requests.output[request]
    if finished:
        for place in range(begin, last):
            if requests.generated[table.request[place]] == requests.output[table.request[place]]:
                _release(segments, memory, requests, noted, table.request[place])
