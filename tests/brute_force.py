"""Exhaustive search, written straight from problem.md and sharing no code with the package it tests.

A label is a moment between two batches: the time, the cost so far, and the state of every request. All legal
batches are tried from it. Of two labels with the same states, one that is no later and no costlier makes the
other superfluous: whatever the other does, it can do too, waiting where it must.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from optsched.model.instance import Instance, Request
from optsched.model.objectives import Objective


class State(NamedTuple):
    """g, m, decoding, and whether an SLO was missed already."""

    generated: int
    cached: int
    decoding: bool
    missed: bool


States = tuple[State, ...]
Action = int | str
"""Tokens to run, "keep" or "evict"."""


def _actions(instance: Instance, request: Request, state: State, now: int) -> list[Action]:
    if state.generated == request.output or request.arrival_ps > now:
        return ["keep"]
    missing = request.input + state.generated - state.cached
    if state.decoding:
        runs = [1]
    elif instance.rules.chunked_prefill:
        runs = list(range(1, missing + 1))
    else:
        runs = [missing]
    found: list[Action] = ["keep", *runs]
    if state.cached >= 1 and instance.rules.eviction:
        found.append("evict")
    return found


def _blocks(instance: Instance, tokens: int) -> int:
    block = instance.limits.kv_block
    return (tokens + block - 1) // block * block


def _batches(instance: Instance, states: States, now: int) -> Iterator[tuple[int, States, list[int]]]:
    """Yield duration, states afterwards and who generated a token, for every legal batch that starts now."""
    limits, cost = instance.limits, instance.cost
    choices = [_actions(instance, q, s, now) for q, s in zip(instance.requests, states, strict=True)]
    for chosen in product(*choices):
        tokens = prefill_tokens = decodes = prefills = runs = own = held = 0
        after: list[State] = []
        generated: list[int] = []
        for index, (action, state) in enumerate(zip(chosen, states, strict=True)):
            request = instance.requests[index]
            if action == "evict":
                after.append(State(state.generated, 0, False, state.missed))
            elif action == "keep":
                after.append(state)
                held += _blocks(instance, state.cached)
            else:
                assert isinstance(action, int)
                runs += 1
                tokens += action
                if state.decoding:
                    decodes += 1
                    own += cost.decode_kv * state.cached + cost.decode_req
                else:
                    prefills += 1
                    prefill_tokens += action
                    own += cost.prefill_sq * (action * action + 2 * state.cached * action)
                    own += cost.prefill_kv * state.cached + cost.prefill_req
                cached = state.cached + action
                held += _blocks(instance, cached)
                if cached == request.input + state.generated:
                    generated.append(index)
                    done = state.generated + 1 == request.output
                    after.append(State(state.generated + 1, 0 if done else cached, not done, state.missed))
                else:
                    after.append(State(state.generated, cached, state.decoding, state.missed))
        legal = (
            runs >= 1
            and tokens <= limits.batch_tokens
            and prefill_tokens <= limits.prefill_tokens
            and (limits.batch_requests is None or runs <= limits.batch_requests)
            and held <= limits.kv_tokens // limits.kv_block * limits.kv_block
            and (instance.rules.hybrid or not (decodes and prefills))
        )
        if legal:
            pieces = [(cost.base, cost.token), *cost.pieces]
            yield max(base + slope * tokens for base, slope in pieces) + own, tuple(after), generated


def _account(
    instance: Instance, objective: Objective, cost: int, states: States, generated: list[int], end: int
) -> tuple[int, States]:
    """Add to the cost what the tokens generated in a batch that ends at ``end`` bring."""
    after = list(states)
    for index in generated:
        request, state = instance.requests[index], after[index]
        wait = end - request.arrival_ps
        first, last = state.generated == 1, state.generated == request.output
        match objective:
            case Objective.MEAN_TTFT if first:
                cost += wait
            case Objective.MAX_TTFT if first:
                cost = max(cost, wait)
            case Objective.MEAN_E2E if last:
                cost += wait
            case Objective.MAX_E2E if last:
                cost = max(cost, wait)
            case Objective.WEIGHTED_E2E if last:
                cost += request.weight * wait
            case Objective.SLO_MISSES if not state.missed:
                late = (first and request.slo_ttft_ps is not None and wait > request.slo_ttft_ps) or (
                    last and request.slo_e2e_ps is not None and wait > request.slo_e2e_ps
                )
                if late:
                    cost += 1
                    after[index] = state._replace(missed=True)
    return cost, tuple(after)


def optimum(instance: Instance, objective: Objective = Objective.MAKESPAN) -> int:
    """Return the optimal objective value of a tiny feasible instance."""
    start = min(request.arrival_ps for request in instance.requests)
    arrivals = sorted({request.arrival_ps for request in instance.requests})
    initial: States = tuple(State(0, 0, False, False) for _ in instance.requests)
    queue: list[tuple[int, int, States]] = [(start, 0, initial)]
    seen: defaultdict[States, list[tuple[int, int]]] = defaultdict(list)
    best: int | None = None

    def superfluous(time: int, cost: int, states: States) -> bool:
        return (best is not None and cost >= best) or any(t <= time and c <= cost for t, c in seen[states])

    while queue:
        now, cost, states = heapq.heappop(queue)
        if (now, cost) not in seen[states] and superfluous(now, cost, states):
            continue
        if all(s.generated == q.output for s, q in zip(states, instance.requests, strict=True)):
            if objective == Objective.MAKESPAN:
                return now - start
            best = cost if best is None else min(best, cost)
            continue
        later = [(arrival, states, cost) for arrival in arrivals if arrival > now][:1]
        for end, after, total in later:
            if not superfluous(end, total, after):
                seen[after].append((end, total))
                heapq.heappush(queue, (end, total, after))
        for duration, reached, generated in _batches(instance, states, now):
            end = now + duration
            total, after = _account(instance, objective, cost, reached, generated, end)
            if not superfluous(end, total, after):
                seen[after].append((end, total))
                heapq.heappush(queue, (end, total, after))
    assert best is not None, "a feasible instance has a schedule"
    return best
