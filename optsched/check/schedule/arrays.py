"""The checker a second time, on arrays: replays a schedule of tables without an object per batch, in compiled code.

It says yes, with what the metrics need, or nothing. Then `optsched.check.schedule.replay`, the readable form, has to
decide, as it does where numbers might not fit 64 bits, where first runs have an order, and where a scheduler pays for
what it considers; tables have no swaps. What corresponds to what:

==================================================  ===========================================================
here                                                `optsched.check.schedule.replay`
==================================================  ===========================================================
`_Requests`                                         `_State`
`_play`                                             `Replay.play`, with all that it calls
`_Noted`                                            `Totals`, `Replay.gaps`, `OverTime`
repeats one by one                                  `_Repeats`, in closed form
==================================================  ===========================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.check.problem import Problem
from optsched.check.schedule.over_time import OverTime, Progression, Totals
from optsched.compiled import compiled
from optsched.model.instance import Request
from optsched.model.table import BatchTable, Tables

Ints = npt.NDArray[np.int64]

MOST_PS = 2**60
"""No batch takes longer, and none starts later: sums of two such numbers fit 64 bits."""
_MOST_BLOCKS = _MOST_TOKENS = 10**7
"""Rows of the arrays of how long how many blocks are occupied, and tokens run."""
_KNOWN_RULES = frozenset({"swap", "migration"})
"""Added rules that only allow what no table says; any other is for the readable form."""
MOST_BATCHES = 10**7
"""Batches of one table, repeats included."""


class _Requests(NamedTuple):
    """What requests are, and where they are: g, m and its blocks, whether they fill, and when their tokens came.

    ``seen`` is the last batch, counted from 1 over all tables, that names a request.
    """

    arrival: Ints
    input: Ints
    output: Ints
    generated: Ints
    cached: Ints
    blocks: Ints
    decoding: Ints
    first_ps: Ints
    last_ps: Ints
    seen: Ints


class _Rules(NamedTuple):
    """The instance's rules and limits."""

    blocks: int
    block: int
    tokens: int
    prefill_tokens: int
    runs: int
    evictions: int
    hybrid: bool
    chunked: bool


class Prices(NamedTuple):
    """The cost model, in ps."""

    base: Ints
    token: Ints
    decode_kv: int
    decode_req: int
    prefill_sq: int
    prefill_kv: int
    prefill_req: int


class _Noted(NamedTuple):
    """Time by blocks occupied in batches, and between them; time by tokens that run; and what one table adds.

    ``gap`` and ``times`` are times between two tokens of a request, and how often each comes in a row; ``held_ps`` and
    ``held`` by how many more requests hold KV from when on. ``residues`` counts requests by tokens in their last block.
    """

    busy: Ints
    idle: Ints
    tokens: Ints
    gap: Ints
    times: Ints
    held_ps: Ints
    held: Ints
    residues: Ints


_CLOCK, _BLOCKS, _RESIDENT, _EVICTED, _NUMBER = range(5)
"""State of the machine: end of the latest batch, blocks occupied, requests that hold KV, evictions, rows played."""
_GAPS, _CHANGES, _BATCHES, _RAN, _TOKENS, _RESIDENTS, _MOST = range(7)
"""Sums of one table: rows of gaps and of changes, batches, runs, tokens, residents of all batches; most blocks."""


class Times(NamedTuple):
    """A request, and when it has its first and its last token."""

    request: Request
    first_token_ps: int
    last_token_ps: int


@dataclass(frozen=True)
class ArrayReplay:
    """A legal schedule that has been replayed, as the metrics see it (`optsched.check.schedule.replay.Replay`)."""

    states: list[Times]
    totals: Totals
    time: OverTime
    gaps: Counter[int]
    end_ps: int
    repeated_gaps: Sequence[Progression] = ()


def within_range(problem: Problem) -> bool:
    """Whether all numbers fit 64 bits, and the rules are among those that are checked here."""
    limits, cost = problem.limits, problem.cost
    longest = max(request.input + request.output for request in problem.requests)
    latest = max(request.arrival_ps for request in problem.requests)
    runs = min(len(problem.requests), limits.batch_tokens)
    # All c² + 2 m c = c (c + 2 m): c + 2 m is at most thrice I + O, and all c at most C and the run that exceeds it.
    attention = cost.prefill_sq * 3 * longest * (limits.batch_tokens + longest)
    step = (cost.prefill_kv + cost.decode_kv) * longest + cost.prefill_req + cost.decode_req
    batch_ps = max(base + token * limits.batch_tokens for base, token in problem.pieces)
    batch_ps += attention + runs * step
    return (
        not problem.queue
        and _KNOWN_RULES.issuperset(problem.added)
        and not cost.cpu_request
        and max(batch_ps, latest) <= MOST_PS
        and problem.blocks <= _MOST_BLOCKS
        and limits.kv_block <= _MOST_BLOCKS
        and limits.batch_tokens <= _MOST_TOKENS
    )


def replay_tables(problem: Problem, tables: Tables) -> ArrayReplay | None:
    """Replay a schedule of tables; None where the readable form has to decide.

    All numbers fit 64 bits. `within_range` proves it of the cost of a batch, before any is computed: a batch is refused
    as soon as its tokens exceed C, and so has at most C runs, each of tokens that exist. Starts are at most
    `MOST_PS`. Sums of times by blocks or tokens are at most the end of the schedule; sums of counts belong to one
    table, of at most `MOST_BATCHES` batches of at most 10^7 requests. Products of blocks and times are Python's.
    """
    if not within_range(problem):
        return None
    requests, rules, prices = _arrays(problem)
    begin = int(requests.arrival.min())
    machine = np.array([begin, 0, 0, 0, 0], np.int64)
    busy, idle = np.zeros((2, problem.blocks + 1), np.int64)
    tokens = np.zeros(problem.limits.batch_tokens + 1, np.int64)
    residues = np.zeros(problem.limits.kv_block, np.int64)
    gaps, changes, totals = Counter[int](), Counter[int](), Totals()
    for table in tables:
        batches, rows = len(table.start_ps), len(table.request)
        if not _well_formed(table) or int(table.repeat.sum()) > MOST_BATCHES:
            return None
        most_gaps = rows + int(table.repeat.sum())
        gap, held = np.empty((2, most_gaps), np.int64), np.empty((2, 2 * batches), np.int64)
        noted = _Noted(busy, idle, tokens, gap[0], gap[1], held[0], held[1], residues)
        sums = np.zeros(7, np.int64)
        if not _play(table, requests, rules, prices, machine, noted, sums):
            return None
        merge_weights(gaps, *gap[:, : sums[_GAPS]])
        merge_weights(changes, held[0, : sums[_CHANGES]], -held[1, : sums[_CHANGES]])
        totals.batches += int(sums[_BATCHES])
        totals.runs += int(sums[_RAN])
        totals.tokens += int(sums[_TOKENS])
        totals.resident += int(sums[_RESIDENTS])
        totals.most_blocks = max(totals.most_blocks, int(sums[_MOST]))
    if (requests.generated < requests.output).any():
        return None
    totals.evictions = int(machine[_EVICTED])
    totals.busy_ps = int(busy.sum())
    totals.block_time = sum(blocks * time for blocks, time in _weights(busy).items())
    time = OverTime(problem)
    time.add(_weights(tokens), _weights(busy + idle), changes)
    states = [*map(Times, problem.requests, requests.first_ps.tolist(), requests.last_ps.tolist())]
    return ArrayReplay(states, totals, time, gaps, int(machine[_CLOCK]))


def _arrays(problem: Problem) -> tuple[_Requests, _Rules, Prices]:
    limits, number = problem.limits, len(problem.requests)
    facts = np.array([(each.arrival_ps, each.input, each.output) for each in problem.requests], np.int64)
    requests = _Requests(*np.ascontiguousarray(facts.T), *np.zeros((7, number), np.int64))
    rules = _Rules(
        problem.blocks,
        limits.kv_block,
        limits.batch_tokens,
        limits.prefill_tokens,
        limits.batch_tokens if problem.runs is None else min(problem.runs, limits.batch_tokens),
        0 if not problem.eviction else MOST_PS if problem.evictions is None else min(problem.evictions, MOST_PS),
        problem.hybrid,
        problem.chunked,
    )
    return requests, rules, prices_of(problem)


def prices_of(problem: Problem) -> Prices:
    """Return the cost model of a problem."""
    cost, pieces = problem.cost, np.array(problem.pieces, np.int64)
    return Prices(
        np.ascontiguousarray(pieces[:, 0]),
        np.ascontiguousarray(pieces[:, 1]),
        cost.decode_kv,
        cost.decode_req,
        cost.prefill_sq,
        cost.prefill_kv,
        cost.prefill_req,
    )


def _well_formed(table: BatchTable) -> bool:
    """Whether a table's columns fit each other, and its times and repeats their range."""
    batches = len(table.start_ps)
    pairs = (table.run_begin, table.request), (table.evict_begin, table.evict)
    return (
        batches > 0
        and len(table.end_ps) == len(table.repeat) == batches
        and len(table.tokens) == len(table.request)
        and all(
            len(begin) == batches + 1 and begin[0] == 0 and begin[-1] == len(rows) and (np.diff(begin) >= 0).all()
            for begin, rows in pairs
        )
        and bool((table.repeat >= 1).all())
        and int(table.repeat.max()) <= MOST_BATCHES
        and bool((table.start_ps >= 0).all() and (table.start_ps <= MOST_PS).all())
    )


def _weights(times: Ints) -> Counter[int]:
    """Return the weights of the values that have one, by value."""
    (values,) = np.nonzero(times)
    return Counter(dict(zip(values.tolist(), times[values].tolist(), strict=True)))


def merge_weights(found: Counter[int], values: Ints, weights: Ints) -> None:
    """Add to the weights of values, of which some come several times."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    if len(firsts):
        for value, weight in zip(
            ordered[firsts].tolist(), np.add.reduceat(weights[order], firsts).tolist(), strict=True
        ):
            found[value] += weight


@compiled
def _play(  # noqa: PLR0917 - compiled functions take positions
    table: BatchTable, requests: _Requests, rules: _Rules, prices: Prices, machine: Ints, noted: _Noted, sums: Ints
) -> bool:
    """Replay a table; say whether all in it is legal. If not, nothing else is meant to be read."""
    number = requests.arrival.size
    block = rules.block
    for row in range(table.start_ps.size):
        start, times = table.start_ps[row], table.repeat[row]
        if start < machine[_CLOCK]:
            return False
        noted.idle[machine[_BLOCKS]] += start - machine[_CLOCK]
        noted.tokens[0] += start - machine[_CLOCK]
        machine[_CLOCK] = start
        machine[_NUMBER] += 1
        resident = machine[_RESIDENT]
        for place in range(table.evict_begin[row], table.evict_begin[row + 1]):
            index = table.evict[place]
            if index < 0 or index >= number or requests.seen[index] == machine[_NUMBER] or requests.cached[index] < 1:
                return False
            requests.seen[index] = machine[_NUMBER]
            machine[_EVICTED] += 1
            machine[_BLOCKS] -= requests.blocks[index]
            machine[_RESIDENT] -= 1
            requests.cached[index] = requests.blocks[index] = requests.decoding[index] = 0
        evicted = table.evict_begin[row + 1] > table.evict_begin[row]
        if machine[_EVICTED] > rules.evictions:
            return False
        begin, end = table.run_begin[row], table.run_begin[row + 1]
        runs = end - begin
        if runs < 1 or runs > rules.runs:
            return False
        # What the steps take, and what they are.
        tokens = decodes = prefill_tokens = read = fills_ps = 0
        noted.residues[:] = 0
        for place in range(begin, end):
            index, count = table.request[place], int(np.int64(table.tokens[place]))
            if index < 0 or index >= number or requests.seen[index] == machine[_NUMBER] or count < 1:
                return False
            requests.seen[index] = machine[_NUMBER]
            cached = requests.cached[index]
            left = requests.output[index] - requests.generated[index]
            missing = requests.input[index] + requests.generated[index] - cached
            tokens += count
            if left < times or requests.arrival[index] > start or count > missing or tokens > rules.tokens:
                return False
            if requests.decoding[index]:
                decodes += 1
                read += cached
            else:
                if count < missing and not rules.chunked:
                    return False
                prefill_tokens += count
                fills_ps += prices.prefill_sq * (count * count + 2 * cached * count)
                fills_ps += prices.prefill_kv * cached + prices.prefill_req
            blocks = cached + count
            if block > 1:
                noted.residues[cached % block] += 1
                blocks = (cached + count + block - 1) // block
            machine[_BLOCKS] += blocks - requests.blocks[index]
            machine[_RESIDENT] += cached == 0
            requests.blocks[index] = blocks
            requests.cached[index] = cached + count
        prefills = runs - decodes
        if prefill_tokens > rules.prefill_tokens or (prefills > 0 and decodes > 0 and not rules.hybrid):
            return False
        if times > 1 and (prefills > 0 or evicted):
            return False
        if machine[_RESIDENT] != resident:
            noted.held_ps[sums[_CHANGES]], noted.held[sums[_CHANGES]] = start, machine[_RESIDENT] - resident
            sums[_CHANGES] += 1
        steps_ps = 0
        for piece in range(prices.base.size):
            steps_ps = max(steps_ps, prices.base[piece] + prices.token[piece] * tokens)
        steps_ps += fills_ps + prices.decode_req * decodes
        # All its batches; only decode steps are repeated, and each reads one token more of every request.
        for repeat in range(times):
            if repeat > 0:
                machine[_BLOCKS] += runs if block == 1 else noted.residues[-repeat % block]
            duration = steps_ps + prices.decode_kv * (read + repeat * decodes)
            if machine[_BLOCKS] > rules.blocks or machine[_CLOCK] > MOST_PS:
                return False
            noted.busy[machine[_BLOCKS]] += duration
            machine[_CLOCK] += duration
            if repeat == 0:
                first_end = machine[_CLOCK]
            else:
                noted.gap[sums[_GAPS]], noted.times[sums[_GAPS]] = duration, runs
                sums[_GAPS] += 1
        if machine[_CLOCK] != table.end_ps[row]:
            return False
        noted.tokens[tokens] += machine[_CLOCK] - start
        sums[_BATCHES] += times
        sums[_RAN] += times * runs
        sums[_TOKENS] += times * tokens
        sums[_RESIDENTS] += times * machine[_RESIDENT]
        sums[_MOST] = max(sums[_MOST], machine[_BLOCKS])
        # What requests get. Most gaps are as long as the one before.
        resident = machine[_RESIDENT]
        gap, alike = np.int64(-1), 0
        for place in range(begin, end):
            index = table.request[place]
            if times > 1:
                requests.cached[index] += times - 1
                requests.blocks[index] = (requests.cached[index] + block - 1) // block
            elif requests.cached[index] < requests.input[index] + requests.generated[index]:
                continue
            if requests.generated[index] == 0:
                requests.first_ps[index] = first_end
            else:
                if first_end - requests.last_ps[index] != gap:
                    if alike > 0:
                        noted.gap[sums[_GAPS]], noted.times[sums[_GAPS]] = gap, alike
                        sums[_GAPS] += 1
                    gap, alike = first_end - requests.last_ps[index], 0
                alike += 1
            requests.last_ps[index] = machine[_CLOCK]
            requests.generated[index] += times
            requests.decoding[index] = 1
            if requests.generated[index] == requests.output[index]:
                machine[_BLOCKS] -= requests.blocks[index]
                machine[_RESIDENT] -= 1
                requests.cached[index] = requests.blocks[index] = 0
        if alike > 0:
            noted.gap[sums[_GAPS]], noted.times[sums[_GAPS]] = gap, alike
            sums[_GAPS] += 1
        if machine[_RESIDENT] != resident:
            noted.held_ps[sums[_CHANGES]] = machine[_CLOCK]
            noted.held[sums[_CHANGES]] = machine[_RESIDENT] - resident
            sums[_CHANGES] += 1
    return True
