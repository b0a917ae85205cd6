r"""List scheduling forward in time without a look at what follows: who fits now is admitted, and evicted if need be.

The opposite of `forward`: memory is used at once, and paid for with refills. That pays where a batch's base is dear and
prompts are short. A rule in between admits only as long as all who would then be there could grow for some batches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled
from optsched.planner.plan import Plan
from optsched.planner.problem import MOST_REFILLS, Ints, Problem, Rule
from optsched.planner.steps import blocks_of, effective, fill_ps, insert, linear_ps, most_chunks_of, run_of


class _Made(NamedTuple):
    """What the loop writes: as in `Plan`."""

    chunks: Ints
    spans: Ints
    steps: Ints
    evictions: Ints
    start: Ints
    end: Ints
    first: Ints
    last: Ints


@compiled
def _victim(there: Ints, residents: int, rank: Ints) -> int:
    """Return the place of the resident that comes last."""
    worst = 0
    for k in range(1, residents):
        if rank[there[k]] >= rank[there[worst]]:
            worst = k
    return worst


@compiled
def _evicting(problem: Problem, rule: Rule, rank: Ints, made: _Made) -> tuple[int, int, int, int, int]:
    """Return the numbers of batches, decode steps, chunks, spans and evictions; -1 batches if it takes too many."""
    requests, limits, costs, _ = problem
    arrival, prompts, outputs = requests
    chunks, spans, steps, evictions, start, end, first, last = made
    base, token = costs.base, costs.token
    kv, req = costs.decode_kv, costs.decode_req
    most_blocks, block, hybrid = limits.blocks, limits.block, limits.hybrid
    most_runs = min(limits.runs, limits.tokens)
    rule = effective(rule, limits)
    count = len(arrival)
    coming = np.argsort(arrival, kind="mergesort")
    generated = np.zeros(count, dtype=np.int64)
    held = np.zeros(count, dtype=np.int64)
    decoding = np.zeros(count, dtype=np.bool_)
    opened = np.zeros(count, dtype=np.int64)
    dropped = np.full(count, -1, dtype=np.int64)
    waiting = np.empty(count, dtype=np.int64)
    there = np.empty(count, dtype=np.int64)
    waits = arrived = residents = decoders = done = used = 0
    batch = step = written = closed = evicted = 0
    now = arrival[coming[0]]
    while done < count:
        while arrived < count and arrival[coming[arrived]] <= now:
            insert(waiting, waits, coming[arrived], rank)
            waits += 1
            arrived += 1
        tokens = prefill = runs = 0
        attention = 0
        decodes = hybrid
        for turn in range(2):
            # Without hybrid batches prompts are tried first, and if none can run, decode steps.
            if turn == 1:
                if hybrid or runs > 0:
                    break
                decodes = True
            growth = 0
            if decodes:
                for k in range(residents):
                    if decoding[there[k]]:
                        growth += blocks_of(held[there[k]] + 1, block) - blocks_of(held[there[k]], block)
            while used + growth > most_blocks:
                victim = _victim(there, residents, rank)
                request = there[victim]
                if decoding[request]:
                    growth -= blocks_of(held[request] + 1, block) - blocks_of(held[request], block)
                    spans[closed] = request, opened[request], step - opened[request]
                    closed += 1
                    decoders -= 1
                used -= blocks_of(held[request], block)
                held[request], decoding[request], dropped[request] = 0, False, batch
                evictions[evicted, 0], evictions[evicted, 1] = request, batch
                evicted += 1
                insert(waiting, waits, request, rank)
                waits += 1
                residents -= 1
                for k in range(victim, residents):
                    there[k] = there[k + 1]
                if evicted == len(evictions):
                    return -1, step, written, closed, evicted
            if decodes:
                tokens, runs = decoders, decoders
                used += growth
            if not decodes or hybrid:
                place = failed = k = 0
                while k < residents or (place < waits and failed < rule.tries and residents < most_runs):
                    resident = k < residents
                    request = there[k] if resident else waiting[place]
                    if resident:
                        k += 1
                        if decoding[request]:
                            continue
                    elif dropped[request] == batch:
                        place += 1
                        continue
                    left = prompts[request] + generated[request] - held[request]
                    run = run_of(left, rule, limits, tokens, prefill)
                    more = blocks_of(held[request] + run, block) - blocks_of(held[request], block)
                    if resident:
                        fits = used + more <= most_blocks
                    else:
                        ahead = rule.ahead * (residents + 1) // block if residents > 0 else 0
                        fits = used + max(more, blocks_of(left, block) + ahead) <= most_blocks
                    if run == 0 or runs >= most_runs or not fits:
                        if not resident:
                            place += 1
                            failed += 1
                        continue
                    if not resident:
                        there[residents] = request
                        residents += 1
                        k += 1
                        waits -= 1
                        for other in range(place, waits):
                            waiting[other] = waiting[other + 1]
                    if written == len(chunks):
                        return -1, step, written, closed, evicted
                    chunks[written, 0], chunks[written, 1], chunks[written, 2] = request, batch, run
                    written += 1
                    attention += fill_ps(costs, run, held[request])
                    held[request] += run
                    used += more
                    tokens += run
                    prefill += run
                    runs += 1
            if runs == 0 and residents > 0 and (hybrid or turn == 1):
                # Prompts block each other: the last one gives way.
                request = there[residents - 1]
                residents -= 1
                used -= blocks_of(held[request], block)
                held[request], dropped[request] = 0, batch
                evictions[evicted, 0], evictions[evicted, 1] = request, batch
                evicted += 1
                insert(waiting, waits, request, rank)
                waits += 1
                if evicted == len(evictions):
                    return -1, step, written, closed, evicted
        if runs == 0:
            if residents == 0:
                now = max(now, arrival[coming[arrived]])
            continue
        if decodes:
            for k in range(residents):
                request = there[k]
                if decoding[request]:
                    attention += kv * held[request] + req
                    held[request] += 1
            steps[step] = batch
            step += 1
        start[batch] = now
        now += linear_ps(base, token, tokens) + attention
        end[batch] = now
        kept = 0
        for k in range(residents):
            request = there[k]
            if held[request] == prompts[request] + generated[request]:
                generated[request] += 1
                if generated[request] == 1:
                    first[request] = batch
                if not decoding[request]:
                    decoding[request], opened[request] = True, step
                    decoders += 1
                if generated[request] == outputs[request]:
                    last[request] = batch
                    spans[closed] = request, opened[request], step - opened[request]
                    closed += 1
                    decoders -= 1
                    used -= blocks_of(held[request], block)
                    done += 1
                    continue
            there[kept] = request
            kept += 1
        residents = kept
        batch += 1
    return batch, step, written, closed, evicted


def evicting(problem: Problem, rule: Rule, rank: Ints) -> Plan | None:
    """Return the plan of a rule.

    Parameters
    ----------
    problem
        An instance in which `may_refill` holds.
    rule
        The rule.
    rank
        A number for every request: the least is admitted first and evicted last.

    Returns
    -------
    Plan | None
        None if requests are evicted too often for the plan to be of use.
    """
    count, runs = len(rank), int(problem.requests.output.sum())
    refills = MOST_REFILLS * count
    most_chunks = MOST_REFILLS * most_chunks_of(problem, rule)
    made = _Made(
        np.empty((most_chunks, 3), dtype=np.int64),
        np.empty((count + refills, 3), dtype=np.int64),
        np.empty(runs + most_chunks, dtype=np.int64),
        np.empty((refills, 2), dtype=np.int64),
        *(np.empty(runs + most_chunks, dtype=np.int64) for _ in range(2)),
        *(np.empty(count, dtype=np.int64) for _ in range(2)),
    )
    batches, steps, chunks, spans, evictions = _evicting(problem, rule, rank, made)
    if batches < 0:
        return None
    return Plan(
        made.chunks[:chunks],
        made.spans[:spans],
        made.steps[:steps],
        made.evictions[:evictions],
        made.start[:batches],
        made.end[:batches],
        made.first,
        made.last,
    )


def may_refill(problem: Problem) -> bool:
    """Say whether requests may be evicted whenever memory is short, and start in any order."""
    requests, limits = problem.requests, problem.limits
    refills = limits.chunked or int((requests.input + requests.output).max()) <= limits.prefill + 1
    return limits.eviction and refills and len(problem.queue) == 0
