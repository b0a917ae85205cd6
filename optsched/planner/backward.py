r"""List scheduling backward in time, for the makespan of requests that are all there: who ends last is placed first.

Looked at backward, a request takes the most memory when it comes, I + O − 1 tokens, and ever less from then on. So
whoever fits when it comes fits for good, and taking the next one as soon as it fits fills the cache from the last batch
on until nobody is left. Forward in time these are staggered starts, each just in time for the requests to take turns in
being large; only the first O batches or so have memory to spare, which no schedule without evictions can avoid
altogether: who starts together grows together. (An eviction buys O/M of a batch's base at the price of a refill.)

Prompts run in chunks before the first decode step, filling batches up to a level of tokens as in `forward`. A prompt
for which the batch before has no room is filled earlier and keeps its KV until its decode steps begin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled
from optsched.planner.plan import Plan
from optsched.planner.problem import Ints, Problem, Rule
from optsched.planner.steps import Sums, blocks_of, effective, fill_ps, most_chunks_of, no_sums, run_of


class _Lists(NamedTuple):
    """What the loop writes: chunks and spans as in `Plan`, batches from the last one."""

    chunks: Ints
    spans: Ints


@compiled
def _backward(problem: Problem, rule: Rule, order: Ints, sums: Sums, lists: _Lists) -> tuple[int, int]:
    """Place everybody, the last batch first; return the numbers of batches and of chunks."""
    requests, limits, costs, _ = problem
    chunks, spans = lists
    prompts, outputs = requests.input, requests.output
    blocks, tokens, prefill, runs, attention = sums
    most_blocks, block, most_tokens, most_runs = limits.blocks, limits.block, limits.tokens, limits.runs
    kv, req = costs.decode_kv, costs.decode_req
    rule = effective(rule, limits)
    count = len(order)
    waiting = order.copy()
    waits, at, total, written = count, 0, 0, 0
    while waits > 0:
        place = failed = kept = 0
        while place < waits:
            request = waiting[place]
            prompt, output = prompts[request], outputs[request]
            fits = failed < rule.tries and blocks[at] + blocks_of(prompt + output - 1, block) <= most_blocks
            fill = at + output - 1
            if fits:
                for batch in range(at, fill):
                    if tokens[batch] >= most_tokens or runs[batch] >= most_runs:
                        fits = False
                        break
            if fits and output == 1:
                # Else a request without decode steps would come before it fits, to wait for room.
                fits = runs[at] < most_runs and run_of(prompt, rule, limits, tokens[at], prefill[at]) > 0
            if not fits:
                failed += failed < rule.tries
                waiting[kept] = request
                kept += 1
                place += 1
                continue
            for batch in range(at, fill):
                held = prompt + output - 1 - (batch - at)
                blocks[batch] += blocks_of(held, block)
                tokens[batch] += 1
                runs[batch] += 1
                attention[batch] += kv * (held - 1) + req
            spans[request, 0], spans[request, 1], spans[request, 2] = request, at, output - 1
            left, batch = prompt, fill
            while left > 0:
                run = run_of(left, rule, limits, tokens[batch], prefill[batch]) if runs[batch] < most_runs else 0
                blocks[batch] += blocks_of(left, block)
                if run > 0:
                    held = left - run
                    tokens[batch] += run
                    prefill[batch] += run
                    runs[batch] += 1
                    attention[batch] += fill_ps(costs, run, held)
                    chunks[written, 0], chunks[written, 1], chunks[written, 2] = request, batch, run
                    written += 1
                    left = held
                batch += 1
            total = max(total, batch)
            place += 1
        waits = kept
        at += 1
    return total, written


def backward(problem: Problem, rule: Rule, rank: Ints) -> Plan:
    """Return the plan of a rule.

    Parameters
    ----------
    problem
        An instance that allows hybrid batches, whose requests all arrive at once and may start in any order.
    rule
        The rule.
    rank
        A number for every request: the least ends last.
    """
    order = np.argsort(rank, kind="stable")
    requests, costs = problem.requests, problem.costs
    outputs = requests.output
    most_chunks = most_chunks_of(problem, rule)
    most_batches = int(outputs.sum()) + most_chunks + 2
    sums = no_sums(most_batches)
    chunks = np.empty((most_chunks, 3), dtype=np.int64)
    spans = np.empty((len(order), 3), dtype=np.int64)
    total, written = _backward(problem, rule, order, sums, _Lists(chunks, spans))
    chunks = chunks[:written][::-1].copy()
    chunks[:, 1] = total - 1 - chunks[:, 1]
    spans[:, 1] = total - spans[:, 1] - spans[:, 2]
    tokens, attention = sums.tokens[:total][::-1], sums.attention[:total][::-1]
    durations = (costs.base[:, None] + costs.token[:, None] * tokens).max(axis=0) + attention
    end = problem.start_ps + np.cumsum(durations)
    first = np.zeros(len(order), dtype=np.int64)
    np.maximum.at(first, chunks[:, 0], chunks[:, 1])
    last = np.where(outputs == 1, first, spans[:, 1] + spans[:, 2] - 1)
    nobody = np.empty((0, 2), dtype=np.int64)
    return Plan(chunks, spans, np.arange(total), nobody, end - durations, end, first, last)
