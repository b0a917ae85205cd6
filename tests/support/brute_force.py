"""Exhaustive search, written straight from docs/problem.md and sharing no code with the package it tests.

A label is a moment between two batches: the time, the cost and the evictions so far, and the state of every request.
All legal batches are tried from it, started at once or at a later arrival. Of two labels with the same states, one that
is no later, no costlier and has evicted no more makes the other superfluous: whatever the other does, it can do too,
waiting where it must. The cost is a number, or for a percentile the latencies so far in ascending order, of which each
must be no larger than that at its place in the other.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from operator import add, le
from typing import NamedTuple, overload

from optsched.model.instance import Instance, Request
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions


class State(NamedTuple):
    """g, m, decoding, whether an SLO was missed already, and whether it has run, which counts only in a given order.

    And tokens on the host.
    """

    generated: int
    cached: int
    decoding: bool
    missed: bool
    started: bool = False
    swapped: int = 0


States = tuple[State, ...]
Action = int | str
"""Tokens to run, less than 0 if the KV comes back first; "keep", "evict", "out" or "back"."""
Cost = tuple[int, ...]
"""One number, or the latencies of a percentile so far, ascending."""


class Class(NamedTuple):
    """What is permitted, and the order in which first runs must stand, none in a later batch than the next."""

    hybrid: bool
    chunked: bool
    eviction: bool
    swap: bool
    runs: float
    evictions: float
    order: tuple[int, ...]


def _class(instance: Instance, restrictions: Restrictions) -> Class:
    inf = float("inf")
    own, given, evictions = instance.limits.batch_requests, restrictions.max_batch, restrictions.max_evictions
    order = restrictions.order
    if "reordering" in restrictions.forbid:
        order = tuple(sorted(range(len(instance.requests)), key=lambda r: (instance.requests[r].arrival_ps, r)))
    return Class(
        hybrid=instance.rules.hybrid and "hybrid" not in restrictions.forbid,
        chunked=instance.rules.chunked_prefill and "chunked" not in restrictions.forbid,
        eviction=instance.rules.eviction and "eviction" not in restrictions.forbid,
        swap=instance.rules.swap and "swap" not in restrictions.forbid,
        runs=min(inf if own is None else own, inf if given is None else given),
        evictions=inf if evictions is None else evictions,
        order=order,
    )


def _actions(allowed: Class, request: Request, state: State, now: int) -> list[Action]:
    if state.generated == request.output or request.arrival_ps > now:
        return ["keep"]
    missing = request.input + state.generated - state.cached - state.swapped
    if state.decoding:
        runs = [1]
    elif allowed.chunked:
        runs = list(range(1, missing + 1))
    else:
        runs = [missing]
    if state.swapped:
        return ["keep", "back", *(-count for count in runs)]
    found: list[Action] = ["keep", *runs]
    if state.cached >= 1 and allowed.swap:
        found.append("out")
    if state.cached >= 1 and allowed.eviction:
        found.append("evict")
    return found


def _blocks(instance: Instance, tokens: int) -> int:
    block = instance.limits.kv_block
    return (tokens + block - 1) // block * block


class Part(NamedTuple):
    """What one request does in a batch: its state afterwards, and what that adds to what the batch takes."""

    state: State
    held: int
    tokens: int = 0
    prefill_tokens: int = 0
    runs: int = 0
    prefills: int = 0
    own: int = 0
    link: int = 0
    generates: int = 0
    evictions: int = 0


def _part(instance: Instance, ordered: bool, request: Request, before: State, action: Action) -> Part:
    """Return what an action does."""
    cost, state, link = instance.cost, before, 0
    if before.swapped and action != "keep":
        link = cost.swap_in_kv * state.swapped
        state = state._replace(cached=state.swapped, swapped=0)
        action = -action if isinstance(action, int) else "keep"
    if action == "out":
        gone = state._replace(cached=0, swapped=state.cached)
        return Part(gone, 0, link=cost.swap_out_kv * state.cached)
    if action == "evict":
        return Part(State(state.generated, 0, False, state.missed, state.started), 0, evictions=1)
    if action == "keep":
        return Part(state, _blocks(instance, state.cached), link=link)
    assert isinstance(action, int)
    cached = state.cached + action
    if state.decoding:
        own = cost.decode_kv * state.cached + cost.decode_req
    else:
        own = cost.prefill_sq * (action * action + 2 * state.cached * action)
        own += cost.prefill_kv * state.cached + cost.prefill_req
    after = State(state.generated, cached, state.decoding, state.missed, ordered)
    generates = cached == request.input + state.generated
    if generates:
        done = state.generated + 1 == request.output
        after = State(state.generated + 1, 0 if done else cached, not done, state.missed, ordered)
    prefills = 0 if state.decoding else 1
    held = _blocks(instance, cached)
    return Part(after, held, action, prefills * action, 1, prefills, own, link, int(generates))


class Reached(NamedTuple):
    """What a batch leads to: its duration, the states afterwards, which generated a token, and its evictions."""

    duration: int
    states: States
    generated: list[int]
    evictions: int


def _batches(instance: Instance, allowed: Class, choices: list[list[Part]]) -> Iterator[Reached]:
    """Yield what every legal batch leads to, of which each request does one of its ``choices``.

    Requests join one after the other while all that they take together fits: none takes less than nothing.
    """
    limits, cost = instance.limits, instance.cost
    pages = limits.kv_tokens // limits.kv_block * limits.kv_block
    most = pages, limits.batch_tokens, limits.prefill_tokens, allowed.runs
    batches: list[tuple[tuple[int, ...], tuple[Part, ...]]] = [((0, 0, 0, 0), ())]
    for parts in choices:
        taken = [((part.held, part.tokens, part.prefill_tokens, part.runs), part) for part in parts]
        joined = [(tuple(map(add, taking, more)), (*batch, part)) for taking, batch in batches for more, part in taken]
        batches = [each for each in joined if all(map(le, each[0], most))]
    for _, batch in batches:
        states, _, tokens, _, runs, prefills, own, link, generates, evictions = zip(*batch, strict=True)
        legal = (
            sum(runs) >= 1
            and (allowed.hybrid or sum(prefills) in {0, sum(runs)})
            and all(states[one].started or not states[other].started for one, other in pairwise(allowed.order))
        )
        if legal:
            pieces = [(cost.base, cost.token), *cost.pieces]
            duration = max(base + slope * sum(tokens) for base, slope in pieces) + sum(own) + cost.cpu_batch
            exposed = max(0, sum(link) - duration * cost.swap_overlap // 100)
            generated = [index for index, one in enumerate(generates) if one]
            yield Reached(duration + exposed, states, generated, sum(evictions))


def _account(
    instance: Instance, objective: Objective, cost: Cost, states: States, generated: list[int], end: int
) -> tuple[Cost, States]:
    """Add to the cost what the tokens generated in a batch that ends at ``end`` bring."""
    after = list(states)
    for index in generated:
        request, state = instance.requests[index], after[index]
        wait = end - request.arrival_ps
        first, last = state.generated == 1, state.generated == request.output
        if _percent(objective):
            if last if objective.endswith("e2e") else first:
                cost = tuple(sorted((*cost, wait)))
            continue
        (total,) = cost
        match objective:
            case Objective.MEAN_TTFT if first:
                total += wait
            case Objective.MAX_TTFT if first:
                total = max(total, wait)
            case Objective.MEAN_E2E if last:
                total += wait
            case Objective.MAX_E2E if last:
                total = max(total, wait)
            case Objective.WEIGHTED_E2E if last:
                total += request.weight * wait
            case Objective.SLO_MISSES if not state.missed:
                late = (first and request.slo_ttft_ps is not None and wait > request.slo_ttft_ps) or (
                    last and request.slo_e2e_ps is not None and wait > request.slo_e2e_ps
                )
                if late:
                    total += 1
                    after[index] = state._replace(missed=True)
        cost = (total,)
    return cost, tuple(after)


@cache
def _percent(objective: Objective) -> int:
    """Return q of a percentile, 0 if the objective is none."""
    named = re.match(r"p(\d+)_", objective.value)
    return int(named[1]) if named else 0


MONOTONE = tuple(objective for objective in Objective if objective.is_monotone)
"""What is minimised here."""


@overload
def optimum(instance: Instance, objective: Objective = ...) -> int: ...


@overload
def optimum(instance: Instance, objective: Objective = ..., *, restrictions: Restrictions) -> int | None: ...


def optimum(
    instance: Instance, objective: Objective = Objective.MAKESPAN, *, restrictions: Restrictions | None = None
) -> int | None:
    """Return the optimal value of a monotone objective of a tiny instance in a class; None if the class is empty.

    Without restrictions the instance must be feasible.
    """
    assert objective.is_monotone, "batches start as early as they can"
    if restrictions is None:
        best = _least(instance, objective, _class(instance, Restrictions()))
        assert best is not None, "a feasible instance has a schedule"
        return best
    best = _least(instance, objective, _class(instance, restrictions))
    beyond = best is not None and restrictions.at_most is not None and best > restrictions.at_most
    return None if beyond else best


def _least(instance: Instance, objective: Objective, allowed: Class) -> int | None:
    start = min(request.arrival_ps for request in instance.requests)
    arrivals = sorted({request.arrival_ps for request in instance.requests})
    initial: States = tuple(State(0, 0, False, False) for _ in instance.requests)
    percent, count = _percent(objective), len(instance.requests)
    queue: list[tuple[int, Cost, int, States]] = [(start, () if percent else (0,), 0, initial)]
    seen: defaultdict[States, list[tuple[int, Cost, int]]] = defaultdict(list)
    batches: dict[tuple[States, int], list[Reached]] = {}
    best: int | None = None

    @cache
    def does(index: int, state: State, action: Action) -> Part:
        return _part(instance, bool(allowed.order), instance.requests[index], state, action)

    def parts(index: int, state: State, now: int) -> list[Part]:
        """Return all that a request can do in a batch that starts now."""
        return [does(index, state, action) for action in _actions(allowed, instance.requests[index], state, now)]

    equal: defaultdict[Request, list[int]] = defaultdict(list)
    for index, request in enumerate(instance.requests):
        equal[request].append(index)
    groups = [] if allowed.order else [group for group in equal.values() if len(group) > 1]

    def named(states: States) -> States:
        """Return them with the names of equal requests in an order: they may change places from now on."""
        renamed = list(states)
        for group in groups:
            for index, state in zip(group, sorted(states[index] for index in group), strict=True):
                renamed[index] = state
        return tuple(renamed)

    def value(cost: Cost) -> int:
        """Return the objective value if latencies to come are 0."""
        if not percent:
            return cost[0]
        # The least rank that is no less than percent * count / 100.
        rank = next(rank for rank in range(1, count + 1) if 100 * rank >= percent * count)
        return ((0,) * (count - len(cost)) + cost)[rank - 1]

    def superfluous(time: int, cost: Cost, evicted: int, states: States) -> bool:
        if evicted > allowed.evictions or (best is not None and value(cost) >= best):
            return True
        return any(t <= time and e <= evicted and all(map(le, c, cost)) for t, c, e in seen[states])

    while queue:
        now, cost, evicted, states = heapq.heappop(queue)
        if (now, cost, evicted) not in seen[states] and superfluous(now, cost, evicted, states):
            continue
        if all(s.generated == q.output for s, q in zip(states, instance.requests, strict=True)):
            if objective == Objective.MAKESPAN:
                return now - start
            best = value(cost) if best is None else min(best, value(cost))
            continue
        for begin in (now, *(arrival for arrival in arrivals if arrival > now)):
            here = states, sum(arrival <= begin for arrival in arrivals)
            if here not in batches:
                choices = [parts(index, state, begin) for index, state in enumerate(states)]
                batches[here] = list(_batches(instance, allowed, choices))
            for batch in batches[here]:
                end = begin + batch.duration
                total, reached = _account(instance, objective, cost, batch.states, batch.generated, end)
                after = named(reached)
                limited = allowed.evictions < float("inf")  # else their number makes no difference
                evictions = evicted + batch.evictions if limited else 0
                if not superfluous(end, total, evictions, after):
                    seen[after].append((end, total, evictions))
                    heapq.heappush(queue, (end, total, evictions, after))
    return best
