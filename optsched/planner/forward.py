r"""List scheduling forward in time: who has arrived is admitted in a given order, if all that follows from it fits.

A request that is admitted keeps its KV and runs in every batch that decodes until it ends, so that its whole life is
known the moment it starts: which batches run chunks of its prompt, and what every later batch holds of it. These are
kept for all batches to come; a request is admitted only if its life fits beside those of all who were admitted before.
Nobody is ever evicted, nothing is reserved beyond what will be used, and a batch's time is read off the sums.

With hybrid batches the chunks of a prompt fill batches up to a *level* of tokens; a chunk that would be smaller than
the *least* one waits, and what would be left over joins the last one, for every prefill step costs time of its own.
Without hybrid batches whole prompts are *gathered* for batches of their own; decode steps pause meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled
from optsched.planner.plan import Plan
from optsched.planner.problem import Ints, Limits, Problem, Rule
from optsched.planner.steps import (
    Sums,
    blocks_of,
    effective,
    fill_ps,
    insert,
    linear_ps,
    most_chunks_of,
    no_sums,
    run_of,
)


class _Made(NamedTuple):
    """What the loop writes: chunks, spans, the batch of every decode step, times of batches, batches of tokens."""

    chunks: Ints
    spans: Ints
    steps: Ints
    start: Ints
    end: Ints
    first: Ints
    last: Ints


_STUCK = -1
"""Instead of a number of batches: nobody fits although nothing runs."""


@compiled
def _decodes_fit(prompt: int, output: int, step: int, limits: Limits, sums: Sums) -> bool:
    """Say whether the decode steps of a request fit, from a step on."""
    most, block, most_tokens, most_runs = limits.blocks, limits.block, limits.tokens, limits.runs
    blocks, tokens, runs = sums.blocks, sums.tokens, sums.runs
    for k in range(1, output):
        at = step + k - 1
        held = prompt + k if block == 1 else blocks_of(prompt + k, block)
        if blocks[at] + held > most or tokens[at] >= most_tokens or runs[at] >= most_runs:
            return False
    return True


@compiled
def _add_decodes(prompt: int, output: int, step: int, problem: Problem, sums: Sums) -> None:
    """Count the decode steps of a request in, from a step on."""
    block, kv, req = problem.limits.block, problem.costs.decode_kv, problem.costs.decode_req
    blocks, tokens, runs, attention = sums.blocks, sums.tokens, sums.runs, sums.attention
    for k in range(1, output):
        at = step + k - 1
        blocks[at] += prompt + k if block == 1 else blocks_of(prompt + k, block)
        tokens[at] += 1
        runs[at] += 1
        attention[at] += kv * (prompt + k - 1) + req


@compiled
def _forward(problem: Problem, rule: Rule, rank: Ints, sums: Sums, made: _Made) -> tuple[int, int, int]:
    """Admit everybody; return the numbers of batches, of decode steps and of chunks, the first `_STUCK` if it fails."""
    requests, limits, costs, queue = problem
    arrival, prompts, outputs = requests.arrival, requests.input, requests.output
    blocks, tokens, prefill, runs, attention = sums
    chunks, spans, steps, start, end, first, last = (
        made.chunks,
        made.spans,
        made.steps,
        made.start,
        made.end,
        made.first,
        made.last,
    )
    most_blocks, block, most_runs, hybrid = limits.blocks, limits.block, limits.runs, limits.hybrid
    base, token = costs.base, costs.token
    room = min(limits.tokens, limits.prefill)
    rule = effective(rule, limits)
    level, least, tries, _ = rule
    in_order = len(queue) > 0
    if in_order:
        rank = queue
    coming = np.argsort(arrival, kind="mergesort")
    count, capacity = len(arrival), len(blocks)
    waiting = np.empty(count, dtype=np.int64)
    where = np.empty(capacity, dtype=np.int64)
    size = np.empty(capacity, dtype=np.int64)
    waits = arrived = admitted = batch = step = horizon = written = 0
    now = arrival[coming[0]]
    while admitted < count or step < horizon:
        while arrived < count and arrival[coming[arrived]] <= now:
            insert(waiting, waits, coming[arrived], rank)
            waits += 1
            arrived += 1
        place = failed = 0
        gathered = work = 0
        gathering = not hybrid and waits > 0
        if gathering and tokens[step] > 0:
            known = 0
            for other in range(waits):
                known += prompts[waiting[other]]
                if known >= least:
                    break
            gathering = known >= least
        members = extra = 0
        while place < waits and failed < tries and (hybrid or gathering):
            request = waiting[place]
            if in_order and rank[request] != admitted:
                break
            prompt, output = prompts[request], outputs[request]
            pieces = 0
            if hybrid:
                at, left, fits = step, prompt, True
                while left > 0:
                    run = run_of(left, rule, limits, tokens[at], prefill[at]) if runs[at] < most_runs else 0
                    left -= run
                    held = prompt - left
                    if held == 0 or blocks[at] + blocks_of(held, block) > most_blocks:
                        fits = False
                        break
                    if run > 0:
                        where[pieces], size[pieces] = at, run
                        pieces += 1
                    at += 1
                after = at
            else:
                held = extra + blocks_of(prompt, block)
                fits = blocks[step] + held <= most_blocks and members < most_runs
                if prompt > room:
                    fits = fits and members == 0
                else:
                    fits = fits and gathered + prompt <= room and (members == 0 or gathered + prompt <= level)
                after = step
            if not (fits and _decodes_fit(prompt, output, after, limits, sums)):
                if in_order:
                    break
                place += 1
                failed += 1
                continue
            held = 0
            if hybrid:
                filled = 0
                for at in range(step, after):
                    if where[filled] == at:
                        run = size[filled]
                        tokens[at] += run
                        prefill[at] += run
                        runs[at] += 1
                        attention[at] += fill_ps(costs, run, held)
                        chunks[written, 0], chunks[written, 1], chunks[written, 2] = request, at, run
                        written += 1
                        held += run
                        filled += 1
                    blocks[at] += blocks_of(held, block)
                first[request] = after - 1
            else:
                left = prompt
                while left > room:
                    start[batch] = now
                    now += linear_ps(base, token, room) + fill_ps(costs, room, held)
                    end[batch] = now
                    chunks[written, 0], chunks[written, 1], chunks[written, 2] = request, batch, room
                    written += 1
                    held += room
                    left -= room
                    batch += 1
                gathered += left
                work += fill_ps(costs, left, held)
                chunks[written, 0], chunks[written, 1], chunks[written, 2] = request, batch, left
                written += 1
                members += 1
                if output == 1:
                    extra += blocks_of(prompt, block)
                first[request] = batch
            _add_decodes(prompt, output, after, problem, sums)
            spans[request, 0], spans[request, 1], spans[request, 2] = request, after, output - 1
            horizon = max(horizon, after + output - 1)
            admitted += 1
            waits -= 1
            for other in range(place, waits):
                waiting[other] = waiting[other + 1]
            if not hybrid and prompt > room:
                break
        if members > 0:
            start[batch] = now
            now += linear_ps(base, token, gathered) + work
            end[batch] = now
            batch += 1
            continue
        if tokens[step] == 0:
            if arrived == count:
                return _STUCK, step, written
            now = max(now, arrival[coming[arrived]])
            continue
        start[batch] = now
        now += linear_ps(base, token, tokens[step]) + attention[step]
        end[batch] = now
        steps[step] = batch
        step += 1
        batch += 1
    for request in range(count):
        if outputs[request] == 1:
            last[request] = first[request]
        else:
            last[request] = steps[spans[request, 1] + outputs[request] - 2]
    return batch, step, written


def forward(problem: Problem, rule: Rule, rank: Ints) -> Plan:
    """Return the plan of a rule.

    Parameters
    ----------
    problem
        The instance.
    rule
        The rule.
    rank
        A number for every request: of those that wait, the least is tried first. Where first runs must stand in an
        order, that order counts instead.
    """
    requests, count = problem.requests, len(rank)
    most_chunks = most_chunks_of(problem, rule)
    most_batches = int(requests.output.sum()) + most_chunks + 2
    sums = no_sums(most_batches)
    chunks = np.empty((most_chunks, 3), dtype=np.int64)
    spans = np.empty((count, 3), dtype=np.int64)
    steps, start, end = (np.empty(most_batches, dtype=np.int64) for _ in range(3))
    first, last = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    made = _Made(chunks, spans, steps, start, end, first, last)
    made_batches, made_steps, made_chunks = _forward(problem, rule, rank, sums, made)
    assert made_batches != _STUCK, "whoever is next fits when nothing runs"
    return Plan(
        chunks[:made_chunks],
        spans,
        steps[:made_steps],
        np.empty((0, 2), dtype=np.int64),
        start[:made_batches],
        end[:made_batches],
        first,
        last,
    )
