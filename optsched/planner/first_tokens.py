r"""First tokens first: prompts alone, the shortest first, every request evicted once it has its first token.

For TTFT nothing counts but prompts. Decode steps would only slow them down, and the KV of who has its first token would
only fill the cache; so it is dropped, and all that is left is done when everybody has a first token, by `forward`.

Of those that wait whoever needs the least goes first, or who has waited long, and others join its batch while the base
that this saves all who wait outweighs that those already in it wait for their work. As arrivals are known, a long
prompt runs up to the next arrival of one so short that going first pays, and goes on after it (shortest remaining time
first, Schrage 1968).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled
from optsched.planner.forward import forward
from optsched.planner.plan import Plan
from optsched.planner.problem import LEAST_CHUNK, Ints, Problem, Requests, Rule
from optsched.planner.steps import blocks_of, fill_ps, insert, linear_ps


class _Made(NamedTuple):
    """What the loop writes: chunks, evictions, times of batches, batches of first tokens."""

    chunks: Ints
    evictions: Ints
    start: Ints
    end: Ints
    first: Ints


@compiled
def _left_ps(prompt: int, held: int, problem: Problem) -> int:
    """Return how long a prompt of which so many tokens are held takes to fill, alone."""
    costs = problem.costs
    return linear_ps(costs.base, costs.token, prompt - held) + fill_ps(costs, prompt - held, held)


@compiled
def _first_tokens(problem: Problem, rule: Rule, made: _Made) -> tuple[int, int, int]:
    """Fill everybody; return the numbers of batches, chunks and evictions."""
    requests, limits, costs, _ = problem
    arrival, prompts, outputs = requests
    chunks, evictions, start, end, first = made
    base, token = costs.base, costs.token
    most_blocks, block, most_runs = limits.blocks, limits.block, limits.runs
    room = min(limits.tokens, limits.prefill)
    largest = blocks_of(prompts.max(), block)
    count = len(arrival)
    coming = np.argsort(arrival, kind="mergesort")
    held = np.zeros(count, dtype=np.int64)
    rank = np.zeros(count, dtype=np.int64)
    waiting = np.empty(count, dtype=np.int64)
    through = np.empty(count, dtype=np.int64)
    waits = arrived = batch = written = evicted = throughs = partial = done = 0
    now = begin = arrival[coming[0]]
    late = rule.tries
    while done < count:
        if waits == 0:
            now = max(now, arrival[coming[arrived]])
        while arrived < count and arrival[coming[arrived]] <= now:
            request = coming[arrived]
            rank[request] = _left_ps(prompts[request], 0, problem) + (arrival[request] - begin) // 16 * late
            insert(waiting, waits, request, rank)
            waits += 1
            arrived += 1
        head = waiting[0]
        prompt, kept = prompts[head], held[head]
        run = min(prompt - kept, room)
        work = fill_ps(costs, run, kept)
        tokens, members = run, 1
        ends = run == prompt - kept
        others = partial - blocks_of(kept, block)
        blocks = others + blocks_of(kept + run, block)
        while ends and members < waits and members < most_runs:
            request = waiting[members]
            kept = held[request]
            more = prompts[request] - kept
            grown = blocks_of(prompts[request], block) - blocks_of(kept, block)
            if tokens + more > room or blocks + grown > most_blocks:
                break
            joined = linear_ps(base, token, tokens + more)
            alone = linear_ps(base, token, tokens)
            own = fill_ps(costs, more, kept)
            saved = alone + linear_ps(base, token, more) - joined
            if members * (joined - alone + own) * 16 > saved * (waits - members) * rule.level:
                break
            tokens += more
            work += own
            blocks += grown
            members += 1
        until = now + linear_ps(base, token, tokens) + work
        if members == 1 and limits.chunked:
            lost = (linear_ps(base, token, 1) + costs.prefill_req) * rule.least // 16
            shorter = arrived
            while shorter < count and arrival[coming[shorter]] < until:
                at = arrival[coming[shorter]]
                sooner = until - at - (at - arrival[head]) // 16 * late
                if sooner > _left_ps(prompts[coming[shorter]], 0, problem) + lost * waits:
                    break
                shorter += 1
            if shorter < count and arrival[coming[shorter]] < until:
                at = arrival[coming[shorter]]
                kept = held[head]
                low, high = 1, run
                while low < high:
                    middle = (low + high) // 2
                    took = linear_ps(base, token, middle) + fill_ps(costs, middle, kept)
                    if now + took >= at:
                        high = middle
                    else:
                        low = middle + 1
                if low < run and others + blocks_of(kept + low, block) + largest <= most_blocks:
                    run, tokens, ends = low, low, False
                    work = fill_ps(costs, run, kept)
                    until = now + linear_ps(base, token, tokens) + work
        for k in range(throughs):
            evictions[evicted, 0], evictions[evicted, 1] = through[k], batch
            evicted += 1
        throughs = 0
        for k in range(members):
            request = waiting[k]
            step = prompts[request] - held[request] if ends else run
            chunks[written, 0], chunks[written, 1], chunks[written, 2] = request, batch, step
            written += 1
            partial -= blocks_of(held[request], block)
            held[request] += step
            if ends:
                first[request] = batch
                done += 1
                if outputs[request] > 1:
                    through[throughs] = request
                    throughs += 1
            else:
                partial += blocks_of(held[request], block)
                rank[request] = (
                    _left_ps(prompts[request], held[request], problem) + (arrival[request] - begin) // 16 * late
                )
        if ends:
            waits -= members
            for k in range(waits):
                waiting[k] = waiting[k + members]
        start[batch], end[batch] = now, until
        now = until
        batch += 1
    return batch, written, evicted


def first_tokens(problem: Problem, rule: Rule, rank: Ints) -> Plan:
    """Return the plan of a rule.

    Parameters
    ----------
    problem
        An instance in which `may_drop` holds.
    rule
        ``level``: who waits counts so many sixteenths when somebody joins a batch; ``least``: who waits counts so many
        sixteenths of an empty batch when a prompt is split; ``tries``: for how many sixteenths of the time since others
        arrived a request stands behind them. What follows the first tokens has a fixed rule.
    rank
        The order in which the rest is done.
    """
    requests, limits = problem.requests, problem.limits
    count, room = len(rank), min(limits.tokens, limits.prefill)
    most = 2 * count + int((requests.input // room + 1).sum())
    made = _Made(
        np.empty((most, 3), dtype=np.int64),
        np.empty((count, 2), dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(count, dtype=np.int64),
    )
    batches, written, evicted = _first_tokens(problem, rule, made)
    chunks, evictions = [made.chunks[:written]], [made.evictions[:evicted]]
    start, end, first = [made.start[:batches]], [made.end[:batches]], made.first
    longer = np.flatnonzero(requests.output > 1)
    spans: list[Ints] = []
    steps: list[Ints] = []
    last = first.copy()
    # Who had its first token in the last batch is still there: one goes on, while the others are evicted.
    there = longer[first[longer] == batches - 1]
    if len(there):
        goes = int(there[np.argmin(requests.output[there])])
        others = there[there != goes]
        evictions.append(np.column_stack((others, np.full(len(others), batches))))
        later = int(requests.output[goes]) - 1
        held = int(requests.input[goes]) + np.arange(later)
        costs = problem.costs
        took = int((costs.base + costs.token).max()) + costs.decode_kv * held + costs.decode_req
        ends = int(end[0][-1]) + np.cumsum(took)
        start.append(ends - took)
        end.append(ends)
        spans.append(np.array([[goes, 0, later]]))
        steps.append(batches + np.arange(later))
        batches += later
        last[goes] = batches - 1
        longer = longer[longer != goes]
    if len(longer):
        rest = _rest(problem, longer, int(end[-1][-1]))
        plan = forward(rest, Rule(room, 8 * LEAST_CHUNK, 8, 0), rank[longer])
        steps_before = sum(map(len, steps))
        chunks.append(np.column_stack((longer[plan.chunks[:, 0]], plan.chunks[:, 1] + batches, plan.chunks[:, 2])))
        spans.append(np.column_stack((longer[plan.spans[:, 0]], plan.spans[:, 1] + steps_before, plan.spans[:, 2])))
        steps.append(plan.steps + batches)
        start.append(plan.start_ps)
        end.append(plan.end_ps)
        last[longer] = plan.last + batches
    return Plan(
        np.concatenate(chunks),
        np.concatenate(spans) if spans else np.empty((0, 3), dtype=np.int64),
        np.concatenate(steps) if steps else np.empty(0, dtype=np.int64),
        np.concatenate(evictions),
        np.concatenate(start),
        np.concatenate(end),
        first,
        last,
    )


def may_drop(problem: Problem) -> bool:
    """Say whether every request may be evicted after its first token, in any order, and be filled again."""
    requests, limits = problem.requests, problem.limits
    longer = requests.input[requests.output > 1]
    refills = limits.chunked or len(longer) == 0 or int(longer.max()) < limits.prefill
    return limits.eviction and refills and len(problem.queue) == 0


def _rest(problem: Problem, members: Ints, now: int) -> Problem:
    """Return what is left of requests that have their first token and no KV."""
    requests = problem.requests
    again = Requests(np.full(len(members), now), requests.input[members] + 1, requests.output[members] - 1)
    return problem._replace(requests=again)
