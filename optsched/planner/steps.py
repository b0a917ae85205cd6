"""What all ways of list scheduling count with: what steps hold and take, and how much of a prompt runs at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optsched.compiled import compiled
from optsched.planner.problem import Costs, Ints, Limits, Problem, Rule


class Sums(NamedTuple):
    """Sums over everybody placed, by batch: blocks held, tokens, prefill tokens, runs, ps of attention."""

    blocks: Ints
    tokens: Ints
    prefill: Ints
    runs: Ints
    attention: Ints


def no_sums(batches: int) -> Sums:
    """Return the sums of so many batches, all 0."""
    return Sums(*(np.zeros(batches, dtype=np.int64) for _ in Sums._fields))


@compiled
def blocks_of(tokens: int, block: int) -> int:
    """Return the blocks that so many tokens take."""
    return (tokens + block - 1) // block


@compiled
def linear_ps(base: Ints, token: Ints, tokens: int) -> int:
    """Return the non-attention time in ps of a batch."""
    most = 0
    for piece in range(len(base)):
        most = max(most, base[piece] + token[piece] * tokens)
    return most


@compiled
def fill_ps(costs: Costs, run: int, held: int) -> int:
    """Return the attention time in ps of a prefill step."""
    return costs.prefill_sq * run * (run + 2 * held) + costs.prefill_kv * held + costs.prefill_req


@compiled
def effective(rule: Rule, limits: Limits) -> Rule:
    """Return the rule with a level and a least chunk that an empty batch has room for."""
    level = max(rule.level, 1)
    return Rule(level, max(1, min(rule.least, level, limits.tokens, limits.prefill)), rule.tries, rule.ahead)


@compiled
def run_of(left: int, rule: Rule, limits: Limits, tokens: int, prefill: int) -> int:
    """Return how many of a prompt's tokens that are left run in a batch, 0 for none.

    Whole prompts go beyond the level only if there is no other in the batch.
    """
    hard = min(limits.tokens - tokens, limits.prefill - prefill)
    if not limits.chunked:
        return left if left <= hard and (prefill == 0 or tokens + left <= rule.level) else 0
    room = min(rule.level - tokens, hard)
    if room >= 1 and left <= min(room + rule.least, hard):
        return left
    return room if room >= rule.least else 0


@compiled
def insert(waiting: Ints, waits: int, request: int, rank: Ints) -> None:
    """Put a request behind those of the same rank or less."""
    place = waits
    while place > 0 and rank[waiting[place - 1]] > rank[request]:
        waiting[place] = waiting[place - 1]
        place -= 1
    waiting[place] = request


def most_chunks_of(problem: Problem, rule: Rule) -> int:
    """Return how many prefill steps a plan may have."""
    limits, prompts = problem.limits, problem.requests.input
    smallest = min(limits.tokens, limits.prefill)
    if limits.hybrid:
        smallest = effective(rule, limits).least if limits.chunked else int(prompts.max())
    return int((prompts // smallest + 1).sum())
