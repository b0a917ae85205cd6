"""InferMax's Algorithm 1 in machine code: what `optsched.policies.grouped` does, for groups in order of arrival.

Requests are named by their rank, the place in the order of arrival. Those that wait are the evicted ones and, as
none is admitted before an earlier one, a stretch of ranks.

For speed it says again what other modules say, to which it has to correspond:

=======================================  =====================================================================
here                                     there
=======================================  =====================================================================
`_Jobs` (by rank), ``sizes[_OCCUPIED]``  `optsched.model.state.RequestState`, `optsched.model.memory.HeldBlocks`
`_evict`                                 `optsched.model.state.MachineState.act`
`_run`, `optsched.arrays.linear_ps`      `MachineState.carry_out`, `optsched.model.state.Work.duration_ps`
`_decode`                                `MachineState.repeat`; `optsched.simulator.engine.PolicyRun._span`
`_let_go`                                `MachineState.finish`
`_advance`, `CompiledRun`                `optsched.simulator.engine.PolicyRun`
`_occupied`, `_held`                     `optsched.model.memory.PrivateBlocks`: ``size``, ``reserving``
`_decide`, `_climb`, `_fewest_left`      `optsched.policies.forming.GroupedBatch`, `GroupedPolicy.valid_for`
notes to `Log` and `Watch`               `optsched.model.metrics.tally_of`
=======================================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optsched.arrays import InstanceArrays, RequestArrays, linear_ps, machine_arrays, prefill_ps
from optsched.compiled import compiled, compiled_part
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.simulator.record import (
    CHANGES,
    ENTRIES,
    EVICTIONS,
    FINISHED,
    KV_HIGH,
    NOTED_CHANGES,
    REPEAT,
    SHIFT,
    Log,
    Record,
    join_entries,
    new_log,
    note_batch,
    note_change,
    note_entry,
    note_step,
    with_room,
)
from optsched.simulator.watch import Watch, new_watch, note_queue, note_start, note_tokens, ready, weigh

WAITING, FILLING, DECODING, RUNNING = range(4)
WHOLE_PROMPT, WORST_CASE, AT_ADMISSION, NOTHING = range(4)
MOST = 2**61
"""Times, and sums of KV tokens over time, stay below."""
_MOST_OUTPUT, _MOST_BLOCK = 10**6, 10**6
"""Output tokens of a request, and tokens of a block."""


class Rule(NamedTuple):
    """The policy.

    Parameters
    ----------
    members, evicts
        By group.
    hybrid, chunked
        As far as the instance allows them.
    reserves
        The whole prompt, I + O - 1, the whole prompt of a request without KV, or nothing.
    tokens, budget
        The policy's own C and P.
    residents
        The most requests that hold KV.
    """

    members: Ints
    evicts: Ints
    hybrid: bool
    chunked: bool
    reserves: int
    tokens: int
    budget: int
    residents: int


class _Jobs(NamedTuple):
    """All requests, by rank; those that run, and those that were evicted and wait, in order of rank.

    ``sizes`` says how many run, how many were evicted, have been admitted for the first time, have arrived, how many KV
    tokens are occupied, and held in the policy's view, and how many requests are known. ``reserved`` is I + O - 1 if
    that is reserved, else 0; ``latest`` is when each has had its latest token, in ps.
    """

    generated: Ints
    cached: Ints
    decoding: Ints
    held: Ints
    latest: Ints
    reserved: Ints
    running: Ints
    returned: Ints
    sizes: Ints


_RUNNING, _RETURNED, _FRESH, _ARRIVED, _OCCUPIED, _HELD, _KNOWN = range(7)


class _Batch(NamedTuple):
    """A decision: runs as rank and tokens, ranks to evict, and all that run by priority, lowest last.

    ``sizes`` says how many run, how many of these decode, after how many others, and how many are evicted; ``filled``
    counts requests by the tokens in their last blocks.
    """

    rank: Ints
    tokens: Ints
    evicted: Ints
    gone: Ints
    ladder: Ints
    sizes: Ints
    filled: Ints


_RUNS, _DECODES, _PLACE, _EVICTED = range(4)


class _Run(NamedTuple):
    """A run, perhaps paused: the requests, the latest decision, what was noted, and the clock.

    ``ends`` says when each request has its first and its last token, shape (2, requests). ``clock`` is the time in ps;
    batches in a row without a token, and how many are too many; how many requests decode in a decision that a pause has
    cut short, 0 for none; and whether the policy fails, or numbers get too large.
    """

    jobs: _Jobs
    batch: _Batch
    log: Log
    watch: Watch
    ends: Ints
    clock: Ints


_NOW, _FRUITLESS, _PATIENCE, _STILL, _OVER = range(5)


def _begin(problem: InstanceArrays, start: int) -> _Run:
    """Return a run of requests of which none is known, and which begins at ``start``."""
    number = problem.requests.arrival.size
    states, scratch = np.zeros((8, number), np.int64), np.zeros((5, number), np.int64)
    sizes, clock = np.zeros(7, np.int64), np.zeros(5, np.int64)
    jobs = _Jobs(states[0], states[1], states[2], states[3], states[4], states[5], states[6], states[7], sizes)
    filled = np.zeros(problem.limits.block, np.int64)
    batch = _Batch(scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], np.zeros(4, np.int64), filled)
    clock[_NOW] = start
    return _Run(jobs, batch, new_log(), new_watch(number, start), np.zeros((2, number), np.int64), clock)


@compiled
def _advance(problem: InstanceArrays, rule: Rule, run: _Run, until: int) -> _Run:
    """Carry out all batches that start before a time."""
    jobs, batch, log, watch, ends, clock = run
    sizes = jobs.sizes
    known, now, fruitless = sizes[_KNOWN], clock[_NOW], clock[_FRUITLESS]
    while log.totals[FINISHED] < known and fruitless <= clock[_PATIENCE] and not clock[_OVER]:
        if sizes[_RUNNING] == 0 and sizes[_RETURNED] == 0 and sizes[_FRESH] == sizes[_ARRIVED]:
            now = max(now, problem.requests.arrival[sizes[_ARRIVED]])
        if now >= until:
            break
        while sizes[_ARRIVED] < known and problem.requests.arrival[sizes[_ARRIVED]] <= now:
            note_queue(watch, _waiting(sizes), problem.requests.arrival[sizes[_ARRIVED]])
            sizes[_ARRIVED] += 1
            clock[_STILL] = 0
        if not _decide(problem, rule, jobs, batch):
            clock[_OVER] = 1
            break
        if batch.sizes[_RUNS] == 0:
            if sizes[_ARRIVED] == known:
                break
            now = problem.requests.arrival[sizes[_ARRIVED]]
            continue
        runs, evicted = batch.sizes[_RUNS], batch.sizes[_EVICTED]
        steady = runs == batch.sizes[_DECODES] and evicted == 0
        most = _fewest_left(problem, jobs, batch) if steady else 1
        log, watch = with_room(log, runs, 2 * runs + evicted), ready(watch, runs, most)
        note_start(watch, now, _waiting(sizes), sizes[_OCCUPIED])
        still, clock[_STILL] = clock[_STILL], 0
        if steady:
            now, fruitless = _decode(problem, rule, jobs, batch, log, watch, now, most, until), 0
            if now >= until and log.entries[log.totals[ENTRIES] - 1, REPEAT] < most:
                clock[_STILL] = runs
        else:
            _evict(problem, jobs, batch, log)
            generated, now = _run(problem, rule, jobs, batch, log, watch, ends, now)
            fruitless = 0 if generated else fruitless + 1
        _let_go(problem, jobs, log, ends, now)
        row = log.totals[ENTRIES] - 1
        log.entries[row, CHANGES] = log.totals[NOTED_CHANGES]
        if steady and still == runs:
            # The same requests go on where a pause has cut them short: had memory ended that, others would run now.
            join_entries(log)
        if max(now, log.totals[KV_HIGH]) > MOST:
            clock[_OVER] = 1
    clock[_NOW], clock[_FRUITLESS] = now, fruitless
    return _Run(jobs, batch, log, watch, ends, clock)


@compiled_part
def _waiting(sizes: Ints) -> int:
    """Return how many wait."""
    return int(sizes[_RETURNED] + sizes[_ARRIVED] - sizes[_FRESH])


@compiled_part
def _fewest_left(problem: InstanceArrays, jobs: _Jobs, batch: _Batch) -> int:
    """Return how many tokens are left to generate for the first request of a batch to end."""
    fewest = MOST
    for i in range(batch.sizes[_RUNS]):
        rank = batch.rank[i]
        fewest = min(fewest, problem.requests.output[rank] - jobs.generated[rank])
    return fewest


@compiled_part
def _occupied(block: int, tokens: int) -> int:
    # Divisions take a third of the time.
    return tokens if block == 1 else -(-tokens // block) * block


@compiled_part
def _held(block: int, reserved: int, prompt: int, decoding: int, cached: int) -> int:
    """Return what a job takes of memory in the policy's view: what it holds, or what is reserved for it.

    ``reserved`` is I + O - 1, or 0; ``prompt`` is I and what has been generated, or 0.
    """
    return _occupied(block, max(cached, reserved, 0 if decoding else prompt))


@compiled_part
def _decide(problem: InstanceArrays, rule: Rule, jobs: _Jobs, batch: _Batch) -> bool:
    """Form the next batch (Algorithm 1, GETNEXTBATCH); say whether the instance allows what it needs."""
    running, sizes = jobs.running, jobs.sizes
    generated, cached, decoding, held, reserved = jobs.generated, jobs.cached, jobs.decoding, jobs.held, jobs.reserved
    inputs, block = problem.requests.input, problem.limits.block
    gone, runners, steps = batch.gone, batch.rank, batch.tokens
    free = problem.limits.blocks * problem.limits.block - sizes[_HELD]
    for i in range(batch.sizes[_EVICTED]):
        gone[batch.evicted[i]] = 0
    most_tokens = min(problem.limits.tokens, rule.tokens)
    runs = decodes = place = evicted = tokens = prefill_tokens = admitted = 0
    earliest, kind, left = problem.requests.arrival.size, -1, -1
    for group in range(rule.members.size):
        members = rule.members[group]
        size = _waiting(sizes) if members == WAITING else sizes[_RUNNING]
        for i in range(size):
            if members != WAITING:
                rank = running[i]
                if gone[rank] or (members != RUNNING and decoding[rank] != (members == DECODING)):
                    continue
            else:
                rank = jobs.returned[i] if i < sizes[_RETURNED] else sizes[_FRESH] + i - sizes[_RETURNED]
            decode = decoding[rank]
            if not rule.hybrid and kind >= 0 and kind != decode:
                if members == WAITING:
                    break
                continue
            prompt = inputs[rank] + generated[rank]
            need_tokens = prompt - cached[rank]
            budget = most_tokens - tokens
            if not decode:
                budget = min(budget, problem.limits.prefill - prefill_tokens, rule.budget - tokens)
                if rule.chunked:
                    need_tokens = min(need_tokens, budget)
            if need_tokens < 1 or need_tokens > budget or runs == problem.limits.runs:
                break
            joins = cached[rank] == 0
            if joins and (earliest < rank or sizes[_RUNNING] + admitted - evicted >= rule.residents):
                break
            whole = rule.reserves == WHOLE_PROMPT or (rule.reserves == AT_ADMISSION and joins)
            need = _held(block, reserved[rank], prompt if whole else 0, decode, cached[rank] + need_tokens) - held[rank]
            if need > free and rule.evicts[group]:
                if left < 0:
                    left = _climb(rule, jobs, batch)
                while left > 0 and need > free and not gone[rank]:
                    if not problem.limits.eviction:
                        return False
                    left -= 1
                    victim = batch.ladder[left]
                    gone[victim], batch.evicted[evicted] = 1, victim
                    evicted, earliest = evicted + 1, min(earliest, victim)
                    free += held[victim]
                if gone[rank]:
                    continue
            if need > free:
                break
            free -= need
            tokens += need_tokens
            admitted += joins
            kind = decode
            if decode:
                place = runs if decodes == 0 else place
                decodes += 1
            else:
                prefill_tokens += need_tokens
            runners[runs], steps[runs] = rank, need_tokens
            runs += 1
    found = batch.sizes
    found[_RUNS], found[_DECODES], found[_PLACE], found[_EVICTED] = runs, decodes, place, evicted
    return True


@compiled_part
def _climb(rule: Rule, jobs: _Jobs, batch: _Batch) -> int:
    """Order all that run by priority; return how many they are."""
    size = 0
    for group in range(rule.members.size):
        members = rule.members[group]
        for i in range(jobs.sizes[_RUNNING]):
            rank = jobs.running[i]
            if members == RUNNING or (members != WAITING and jobs.decoding[rank] == (members == DECODING)):
                batch.ladder[size] = rank
                size += 1
    return size


@compiled_part
def _evict(problem: InstanceArrays, jobs: _Jobs, batch: _Batch, log: Log) -> None:
    """Take the KV of those that are to lose it."""
    for i in range(batch.sizes[_EVICTED]):
        rank = batch.evicted[i]
        jobs.sizes[_OCCUPIED] -= _occupied(problem.limits.block, jobs.cached[rank])
        jobs.sizes[_HELD] -= jobs.held[rank]
        jobs.cached[rank] = jobs.decoding[rank] = jobs.held[rank] = 0
        _remove(jobs.running, jobs.sizes, _RUNNING, rank)
        _insert(jobs.returned, jobs.sizes, _RETURNED, rank)
        note_change(log, rank, 0)
        log.totals[EVICTIONS] += 1


@compiled_part
def _insert(ranks: Ints, sizes: Ints, which: int, rank: int) -> None:
    place = sizes[which]
    while place > 0 and ranks[place - 1] > rank:
        ranks[place] = ranks[place - 1]
        place -= 1
    ranks[place] = rank
    sizes[which] += 1


@compiled_part
def _remove(ranks: Ints, sizes: Ints, which: int, rank: int) -> None:
    place = sizes[which] - 1
    kept = rank
    while ranks[place] != rank:
        ranks[place], kept = kept, ranks[place]
        place -= 1
    ranks[place] = kept
    sizes[which] -= 1


@compiled_part
def _run(  # noqa: PLR0917 - compiled functions take positions
    problem: InstanceArrays, rule: Rule, jobs: _Jobs, batch: _Batch, log: Log, watch: Watch, ends: Ints, now: int
) -> tuple[bool, int]:
    """Run one batch; say whether it generates a token, and when it ends."""
    tokens = decodes = read = attention = gap = alike = 0
    generated = False
    runs, place, gaps = batch.sizes[_RUNS], batch.sizes[_PLACE], watch.gaps
    for i in range(runs):
        rank, step = batch.rank[i], batch.tokens[i]
        cached = jobs.cached[rank]
        tokens += step
        if jobs.decoding[rank]:
            decodes += 1
            read += cached
        else:
            attention += prefill_ps(problem.costs, step, cached)
            note_step(log, rank, step)
            if cached == 0:
                if rank == jobs.sizes[_FRESH]:
                    jobs.sizes[_FRESH] += 1
                else:
                    _remove(jobs.returned, jobs.sizes, _RETURNED, rank)
                _insert(jobs.running, jobs.sizes, _RUNNING, rank)
        jobs.sizes[_OCCUPIED] += _occupied(problem.limits.block, cached + step) - _occupied(
            problem.limits.block, cached
        )
        jobs.cached[rank] = cached + step
    attention += problem.costs.decode_kv * read + problem.costs.decode_req * decodes
    end = now + linear_ps(problem.costs, tokens) + attention
    for i in range(runs):
        rank = batch.rank[i]
        if jobs.cached[rank] == problem.requests.input[rank] + jobs.generated[rank]:
            jobs.generated[rank] += 1
            generated = True
            if jobs.generated[rank] == 1:
                ends[0, rank] = end
            else:
                # Most gaps are like the one before: those are weighed together.
                if end - jobs.latest[rank] != gap:
                    weigh(gaps, gap, alike)
                    gap, alike = end - jobs.latest[rank], 0
                alike += 1
            jobs.latest[rank] = end
            if not jobs.decoding[rank]:
                jobs.decoding[rank] = 1
                note_change(log, rank, 1)
        prompt = problem.requests.input[rank] + jobs.generated[rank] if rule.reserves == WHOLE_PROMPT else 0
        held = _held(problem.limits.block, jobs.reserved[rank], prompt, jobs.decoding[rank], jobs.cached[rank])
        jobs.sizes[_HELD] += held - jobs.held[rank]
        jobs.held[rank] = held
    note_batch(log.totals, end - now, tokens, runs, jobs.sizes[_RUNNING], jobs.sizes[_OCCUPIED])
    note_entry(log, now, end, 1, decodes, place)
    weigh(gaps, gap, alike)
    weigh(watch.kv_tokens, jobs.sizes[_OCCUPIED], end - now)
    note_tokens(watch, now, end, tokens)
    return generated, end


@compiled_part
def _decode(  # noqa: PLR0917 - compiled functions take positions
    problem: InstanceArrays,
    rule: Rule,
    jobs: _Jobs,
    batch: _Batch,
    log: Log,
    watch: Watch,
    start: int,
    most: int,
    pause: int,
) -> int:
    """Run decode steps ``most`` times, or until a request arrives, memory does not suffice or there is a pause.

    Return when they end.
    """
    runs, sizes, gaps, kv_tokens = batch.sizes[_RUNS], jobs.sizes, watch.gaps, watch.kv_tokens
    read, now, times = 0, start, 0
    first, gap, alike = start, 0, 0
    filled = batch.filled
    filled[:] = 0
    for i in range(runs):
        rank = batch.rank[i]
        read += jobs.cached[rank]
        filled[jobs.cached[rank] % problem.limits.block if problem.limits.block > 1 else 0] += 1
    free = problem.limits.blocks * problem.limits.block - sizes[_HELD]
    until = min(pause, problem.requests.arrival[sizes[_ARRIVED]]) if sizes[_ARRIVED] < sizes[_KNOWN] else pause
    base = linear_ps(problem.costs, runs) + problem.costs.decode_req * runs
    while times < most:
        # A request that has filled its last block takes another one.
        growth = problem.limits.block * filled[-times % problem.limits.block]
        if times > 0 and (
            now >= until or (rule.reserves != WORST_CASE and growth > free) or log.totals[KV_HIGH] > MOST
        ):
            break
        free -= growth
        sizes[_OCCUPIED] += growth
        duration = base + problem.costs.decode_kv * read
        note_batch(log.totals, duration, runs, runs, sizes[_RUNNING], sizes[_OCCUPIED])
        weigh(kv_tokens, sizes[_OCCUPIED], duration)
        now += duration
        if times == 0:
            first = now
        else:
            weigh(gaps, duration, runs)
        read += runs
        times += 1
    for i in range(runs):
        rank = batch.rank[i]
        if first - jobs.latest[rank] != gap:
            weigh(gaps, gap, alike)
            gap, alike = first - jobs.latest[rank], 0
        alike += 1
        jobs.latest[rank] = now
        jobs.cached[rank] += times
        jobs.generated[rank] += times
        held = _occupied(problem.limits.block, max(jobs.cached[rank], jobs.reserved[rank]))
        sizes[_HELD] += held - jobs.held[rank]
        jobs.held[rank] = held
    weigh(gaps, gap, alike)
    note_entry(log, start, now, times, runs, 0)
    note_tokens(watch, start, now, runs)
    return now


@compiled_part
def _let_go(problem: InstanceArrays, jobs: _Jobs, log: Log, ends: Ints, now: int) -> None:
    """Remove the requests that have all their tokens."""
    running, sizes, generated, cached, decoding = jobs.running, jobs.sizes, jobs.generated, jobs.cached, jobs.decoding
    outputs, kept = problem.requests.output, 0
    for i in range(sizes[_RUNNING]):
        rank = running[i]
        if generated[rank] == outputs[rank]:
            ends[1, rank] = now
            sizes[_OCCUPIED] -= _occupied(problem.limits.block, cached[rank])
            sizes[_HELD] -= jobs.held[rank]
            cached[rank] = decoding[rank] = jobs.held[rank] = 0
            note_change(log, rank, 2)
            log.totals[FINISHED] += 1
        else:
            running[kept] = rank
            kept += 1
    sizes[_RUNNING] = kept


def as_array(numbers: Sequence[int]) -> Ints:
    """Return what a `Rule` holds by group."""
    return np.array(numbers, np.int64)


class CompiledRun:
    """A run in machine code, which can be paused at any time; the record is the same (`begin_run`).

    Parameters
    ----------
    instance, rule
        What is served, and by which policy; of the instance's requests those count that are submitted.
    """

    def __init__(self, instance: Instance, rule: Rule) -> None:
        number = len(instance.requests)
        self._requests, self._rule, self._order = instance.requests, rule, list[int]()
        self._problem = machine_arrays(instance, RequestArrays(*np.zeros((3, number), np.int64)))
        self._run: _Run | None = None

    def submit(self, indices: Sequence[int]) -> None:
        """Let requests arrive at their arrival times; they are in order of arrival, and after those submitted before.

        The machine must not have come to the first of their arrivals.
        """
        requests, problem, known = [self._requests[index] for index in indices], self._problem, len(self._order)
        self._order.extend(indices)
        news = slice(known, len(self._order))
        problem.requests.arrival[news] = [request.arrival_ps for request in requests]
        problem.requests.input[news] = [request.input for request in requests]
        problem.requests.output[news] = [request.output for request in requests]
        if self._run is None:
            self._run = _begin(problem, problem.requests.arrival[0])
            self._run.clock[_PATIENCE] = sum(request.input + request.output for request in self._requests)
        run = self._run
        if self._rule.reserves == WORST_CASE:
            run.jobs.reserved[news] = problem.requests.input[news] + problem.requests.output[news] - 1
        run.jobs.sizes[_KNOWN] = len(self._order)

    def advance(self, until_ps: int | None = None) -> None:
        """Carry out all batches that start before a time; or all batches, None."""
        if self._run is not None:
            until = MOST * 2 if until_ps is None else min(until_ps, MOST * 2)
            self._run = _advance(self._problem, self._rule, self._run, until)

    def record(self) -> Record | None:
        """Return what was done, once every request has ended; None if one has not, as where the policy fails."""
        run, known = self._run, len(self._order)
        if run is None or run.log.totals[FINISHED] < known:
            return None
        note_queue(run.watch, 0, run.clock[_NOW])
        return Record(self._order, run.log, run.watch, run.ends[:, :known])


def begin_run(instance: Instance, rule: Rule) -> CompiledRun | None:
    """Return the run of a policy; None where numbers may get too large, or what it considers has a price.

    Also None for outputs so long, or blocks so large, that tables with a row for each batch, or token of a block, are
    no good: the engine knows closed forms.
    """
    instance.require_plain()
    cost, limits, requests = instance.cost, instance.limits, instance.requests
    if cost.cpu_request or limits.kv_block > _MOST_BLOCK:
        return None
    longest, last = longest_batch_ps(instance), max(request.arrival_ps for request in requests)
    if max(longest, limits.kv_capacity * longest >> SHIFT, last) > MOST:
        return None
    if max(request.output for request in requests) > _MOST_OUTPUT:
        return None
    return CompiledRun(instance, rule)


def longest_batch_ps(instance: Instance) -> int:
    """Return more than any batch takes, or any part of that."""
    cost, limits, requests = instance.cost, instance.limits, instance.requests
    longest = max(request.input + request.output for request in requests)
    prefill = cost.prefill_sq * 2 * longest**2 + cost.prefill_kv * longest + cost.prefill_req
    decode = cost.decode_kv * longest + cost.decode_req
    return cost.linear_ps(limits.batch_tokens) + min(len(requests), limits.batch_tokens) * (prefill + decode)
