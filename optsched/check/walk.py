r"""Certificates of kind ``resident_walk``: a makespan bound from prices that no cycle of cache contents beats.

The instance is offline, prefills run whole, batches are hybrid, the batch time has one affine piece, C, P and N admit
a step of every request at once, and if eviction is allowed, no refill takes less time than the decode in its place. An
order of first runs or a number of evictions may restrict schedules further: what holds without them holds with them.

*Work.* A request that generates its token k ≥ 2 by a refill instead of a decode takes an *extra* time that depends on
(I, O, k) alone. A schedule without idle time has the makespan::

    constant + base J + Σ extras,

where J is its number of batches and constant the token and attention time of all first fills and decodes. It refills
each (request, k) at most once.

*No pauses.* For every schedule there is one that is no longer, and in which nobody keeps KV without running. Take
a request's stay: from its first run or a refill to its next eviction or its end. If it has a pause, run its tokens
later, without gaps, so that the last one stays where it is; if an eviction follows, let it follow at once. In every
batch the request then holds no more than before, and the work is the same. Leave out the batches that have lost all
runs. If one of them was the only batch between the eviction and the refill of some request, let that one keep its KV
and decode instead of being refilled: this holds as much, and takes no more time. There are never more batches or
evictions than before, and tokens only move towards the end, so repeating this ends.

*Graph.* Group the requests by (I, O), groups in ascending order. The *item* (group, k) is a request of the group in
the batch that generates its token k; it then holds I + k − 1 tokens. A *state* is a multiset of items, in a batch that
is being composed or after a batch, and for each *tracked* group the number of its requests that have not started.
*Moves*:

- begin: from after a batch to composing the next, each item is replaced by its successor (group, k + 1), if all of
  these fit the blocks; it takes no time;
- evict: an item less after a batch, if eviction is allowed; no time;
- fill: an item more in the batch, if it fits and its group has a request for it. k = 1 is a first fill, one request
  less waiting, and takes no time; k ≥ 2 is a refill, if eviction is allowed, and takes the extra time;
- run: from composing a batch that is not empty to after it, less the items with k = O; it takes the time base.

A schedule without pauses is a walk from the *source* (nobody after the batch, all tracked requests wait) to the *sink*
(nobody, nobody waits). It has a move, fills each request for the first time once, and refills an item just as often
as it evicts what would have become this item. Its makespan is constant + the time of its moves.

*Bound.* The certificate has ``item_prices``, an integer π for every item, group by group, k ascending; and
``tracked``, the numbers of the tracked groups (from 0; none if it is missing); and the integer ``scale`` ≥ 1 (1 if it
is missing): costs are in ps / scale. Let a fill cost its time less π, and an eviction the π of the successor. In a
schedule's walk the prices of evictions and refills cancel, and those of first fills add up to Π = Σ π(first item of r)
over the requests r. If no cycle that the source reaches has a negative cost, then the walks from the source to the
sink that have a move have a least cost D, and::

    scale (base J + Σ extras) ≥ Π + D.

If nothing is tracked, source and sink are the same state, and D ≥ 0 is what leaving it and coming back costs.

*Lift.* The left side takes few values near the right side. J is at least the blocks that all items hold in their
batches over the blocks that there are, and at least each O. A walk that refills item i costs at least::

    D(i) = min D(source → tail) + cost + D(head → sink)    over all refills tail → head of i,

so it takes the time (Π + D(i)) / scale or more. The least t ≥ (Π + D) / scale with t = base J + Σ extras is therefore
a lower bound, where all J that are large enough count, and all sums of extras of items with Π + D(i) ≤ scale t, each
at most as often as its group has requests. Items are admitted by increasing D(i), and the sums of either half of them
are listed; where these become too many, the bound is not lifted further.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from optsched.check.problem import Problem, feasible, pieces_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective

MOST_STATES = 300_000
"""Graphs with more states are not searched."""
MOST_SUMS = 50_000
"""Where either half of the refilled items has more sums of extras, the bound is not lifted further."""
_ROUNDS = 16
"""Rounds of correcting labels between two looks for a cycle."""


def walk_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the makespan bound of a ``resident_walk`` certificate; the module says why it holds."""
    _require_memory_only(problem, objective)
    groups = Counter((request.input, request.output) for request in problem.requests)
    items = _items(problem, groups)
    _require_dear_refills(problem, items)
    prices = _integers("item_prices", certificate.get("item_prices"))
    if len(prices) != len(items):
        raise UnprovedError(f"item_prices has {len(prices)} integers, expected {len(items)}, one for each item")
    tracked = _integers("tracked", certificate.get("tracked", []))
    if len(set(tracked)) != len(tracked) or not set(tracked) <= set(range(len(groups))):
        raise UnprovedError(f"tracked is {shown(tracked)}, expected different groups from 0 to {len(groups) - 1}")
    scale = certificate.get("scale", 1)
    if type(scale) is not int or scale < 1:
        raise UnprovedError(f"scale is {shown(scale)}, expected an integer ≥ 1")

    graph = _explore(_Rules(problem, items, prices, set(tracked), scale))
    paid = sum(item.requests * price for item, price in zip(items, prices, strict=True) if item.k == 1)
    times = {refill: -(-(paid + cost) // scale) for refill, cost in _least_through(graph).items()}
    refilling = {refill: time for refill, time in times.items() if refill is not None}
    work = sum(item.requests * item.work_ps for item in items)
    return work + _lifted(problem, items, refilling, min(times.values()))


# What the theorem needs ------------------------------------------------------------------------------------


def _require_memory_only(problem: Problem, objective: Objective) -> None:
    """Refuse problems that the theorem does not cover, except for cheap refills."""
    requests, limits = problem.requests, problem.limits
    if objective is not Objective.MAKESPAN:
        raise UnprovedError(f"kind resident_walk bounds the makespan, the objective is {objective.value}")
    if len({request.arrival_ps for request in requests}) > 1:
        raise UnprovedError("kind resident_walk needs requests that arrive at the same time")
    if problem.chunked:
        raise UnprovedError("kind resident_walk needs whole prefills, but chunked prefill is allowed")
    if not problem.hybrid:
        raise UnprovedError("kind resident_walk needs hybrid batches, but they are forbidden")
    pieces = len(pieces_of(problem.cost))
    if pieces > 1:
        raise UnprovedError(f"kind resident_walk needs a batch time of 1 affine piece, it has {pieces}")
    tokens = sum(request.input + request.output - 1 for request in requests)
    for name, budget in (("batch_tokens", limits.batch_tokens), ("prefill_tokens", limits.prefill_tokens)):
        if budget < tokens:
            raise UnprovedError(
                f"kind resident_walk needs budgets of at least the {tokens} tokens of all requests, {name} is {budget}"
            )
    if problem.runs is not None and problem.runs < len(requests):
        raise UnprovedError(
            f"kind resident_walk needs batches of all {len(requests)} requests, at most {problem.runs} may run"
        )
    if not feasible(problem):
        raise UnprovedError("kind resident_walk needs a request to fit the KV cache alone, some request does not")


def _require_dear_refills(problem: Problem, items: Sequence[_Item]) -> None:
    """Refuse problems in which a refill takes less time than a decode."""
    for item in items:
        if problem.eviction and item.extra_ps < 0:
            raise UnprovedError(
                f"kind resident_walk needs refills that take no less time than decodes, but generating token {item.k} "
                f"of an input of {item.tokens - item.k + 1} tokens takes {-item.extra_ps} ps less by a refill"
            )


def _integers(name: str, stated: object) -> list[int]:
    if isinstance(stated, list) and all(type(number) is int for number in stated):
        return stated
    raise UnprovedError(f"{name} is {shown(stated)}, expected a list of integers")


# The graph -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Item:
    """A request of a group in the batch that generates its token k.

    ``requests`` is the size of the group, ``work_ps`` the token and attention time of the step, which is a fill for
    k = 1 and else a decode, and ``extra_ps`` what a refill takes beyond it. Successors stand next to each other.
    """

    group: int
    requests: int
    k: int
    last: bool
    tokens: int
    blocks: int
    work_ps: int
    extra_ps: int


def _items(problem: Problem, groups: Mapping[tuple[int, int], int]) -> list[_Item]:
    cost = problem.cost
    found = []
    for group, ((prompt, output), requests) in enumerate(sorted(groups.items())):
        for k in range(1, output + 1):
            tokens = prompt + k - 1
            fill = cost.token * tokens + cost.prefill_sq * tokens**2 + cost.prefill_req
            decode = cost.token + cost.decode_kv * (tokens - 1) + cost.decode_req if k > 1 else fill
            blocks = problem.blocks_of(tokens)
            found.append(_Item(group, requests, k, k == output, tokens, blocks, decode, fill - decode))
    return found


class _State(NamedTuple):
    """Items by number, ascending, in a batch or after one; for each group who waits, 0 if it is not tracked."""

    composing: bool
    items: tuple[int, ...]
    waiting: tuple[int, ...]


class _Move(NamedTuple):
    """A move to the state ``head``; ``refill`` is the number of the item that it refills, if it does."""

    head: int
    cost: int
    refill: int | None


@dataclass(frozen=True)
class _Graph:
    """The moves from every state, and an order of the states in which all moves but runs lead forwards."""

    moves: list[list[_Move]]
    order: list[int]
    source: int
    sink: int


_Step = tuple[_State, int, int | None]
"""A move before states have numbers."""


class _Rules:
    """Which moves lead from a state, and what they cost."""

    def __init__(
        self, problem: Problem, items: Sequence[_Item], prices: Sequence[int], tracked: Set[int], scale: int
    ) -> None:
        self._problem, self._items, self._prices, self._tracked = problem, items, prices, tracked
        self._scale = scale
        self._small_first = sorted(range(len(items)), key=lambda number: items[number].blocks)
        everybody = tuple(item.requests if item.group in tracked else 0 for item in items if item.k == 1)
        self.source = _State(False, (), everybody)
        self.sink = _State(False, (), (0,) * len(everybody))

    def steps(self, state: _State) -> Iterator[_Step]:
        """Yield all moves from a state."""
        return self._in_batch(state) if state.composing else self._after_batch(state)

    def _after_batch(self, state: _State) -> Iterator[_Step]:
        grown = tuple(number + 1 for number in state.items)
        if sum(self._items[number].blocks for number in grown) <= self._problem.blocks:
            yield state._replace(composing=True, items=grown), 0, None
        if self._problem.eviction:
            for place, number in enumerate(state.items):
                if number not in state.items[:place]:
                    rest = state.items[:place] + state.items[place + 1 :]
                    yield state._replace(items=rest), self._prices[number + 1], None

    def _in_batch(self, state: _State) -> Iterator[_Step]:
        groups = [self._items[number].group for number in state.items]
        free = self._problem.blocks - sum(self._items[number].blocks for number in state.items)
        for number in self._small_first:
            item = self._items[number]
            if item.blocks > free:
                break
            present, waiting = groups.count(item.group), state.waiting[item.group]
            filled = tuple(sorted((*state.items, number)))
            price = self._prices[number]
            if item.k > 1:
                if self._problem.eviction and present < item.requests - waiting:
                    yield state._replace(items=filled), self._scale * item.extra_ps - price, number
            elif item.group not in self._tracked:
                if present < item.requests:
                    yield state._replace(items=filled), -price, None
            elif waiting > 0:
                rest = tuple(count - (group == item.group) for group, count in enumerate(state.waiting))
                yield state._replace(items=filled, waiting=rest), -price, None
        if state.items:
            left = tuple(number for number in state.items if not self._items[number].last)
            yield state._replace(composing=False, items=left), self._scale * self._problem.cost.base, None


def _explore(rules: _Rules) -> _Graph:
    """Find all states that the source reaches."""
    numbers = {rules.source: 0}
    states = [rules.source]
    moves: list[list[_Move]] = []
    for state in states:  # which grows meanwhile
        leaving = []
        for after, cost, refill in rules.steps(state):
            head = numbers.setdefault(after, len(states))
            if head == len(states):
                states.append(after)
            leaving.append(_Move(head, cost, refill))
        moves.append(leaving)
        if len(states) > MOST_STATES:
            raise UnprovedError(f"the graph has more than {MOST_STATES} states, which are not searched")

    def phase(number: int) -> tuple[bool, int]:
        composing, members, _ = states[number]
        return composing, len(members) if composing else -len(members)

    return _Graph(moves, sorted(range(len(states)), key=phase), 0, numbers[rules.sink])


# Least costs -----------------------------------------------------------------------------------------------


def _least_costs(moves: Sequence[Sequence[_Move]], order: Sequence[int], start: int) -> list[int | None]:
    """Return the least cost of a way from ``start`` to every state, None where there is none.

    Labels are corrected in rounds. Only runs lead backwards in ``order``, so round n finds all ways with less than n
    runs, and least ways visit no state twice. A cycle of moves that labels came from is negative, and if there is a
    negative cycle, one shows at last (Cherkassky and Goldberg 1999, Negative-cycle detection algorithms).
    """
    labels: list[int | None] = [None] * len(moves)
    labels[start] = 0
    previous: list[int | None] = [None] * len(moves)
    changed = [False] * len(moves)
    changed[start] = True
    for number in range(1, len(moves) + 1):
        for state in order:
            label = labels[state]
            if label is None or not changed[state]:
                continue
            changed[state] = False
            for head, cost, _ in moves[state]:
                old, new = labels[head], label + cost
                if old is None or new < old:
                    labels[head] = new
                    previous[head] = state
                    changed[head] = True
        if not any(changed):
            return labels
        if number % _ROUNDS == 0 and _circular(previous):
            break
    raise UnprovedError("item_prices: a cycle of cache contents costs less than 0, so they prove nothing")


def _circular(previous: Sequence[int | None]) -> bool:
    """Whether going back from some state leads round in a cycle."""
    visit = [0] * len(previous)
    for start in range(1, len(previous) + 1):
        state: int | None = start - 1
        while state is not None and not visit[state]:
            visit[state] = start
            state = previous[state]
        if state is not None and visit[state] == start:
            return True
    return False


def _backwards(moves: Sequence[Sequence[_Move]]) -> list[list[_Move]]:
    """Return all moves the other way."""
    turned: list[list[_Move]] = [[] for _ in moves]
    for tail, leaving in enumerate(moves):
        for head, cost, refill in leaving:
            turned[head].append(_Move(tail, cost, refill))
    return turned


def _least_through(graph: _Graph) -> dict[int | None, int]:
    """Return the least cost of walks from source to sink with a refill of each item, and None: with another move."""
    away = _least_costs(graph.moves, graph.order, graph.source)
    home = _least_costs(_backwards(graph.moves), graph.order[::-1], graph.sink)
    least: dict[int | None, int] = {}
    for start, moves in zip(away, graph.moves, strict=True):
        for head, cost, refill in moves:
            end = home[head]
            if start is not None and end is not None:
                through = start + cost + end
                least[refill] = min(through, least.get(refill, through))
    return least


# The lift --------------------------------------------------------------------------------------------------


def _lifted(problem: Problem, items: Sequence[_Item], refilling: Mapping[int, int], time: int) -> int:
    """Return the least value of base J + Σ extras that is at least ``time``, or a lower bound on it.

    ``refilling`` says for each item that can be refilled how large the value is at least if it is.
    """
    base = problem.cost.base
    if base == 0:
        return time
    blocks = sum(item.requests * item.blocks for item in items)
    fewest = max(-(-blocks // problem.blocks), *(item.k for item in items))
    aim = base * max(fewest, -(-time // base))
    runs = range(base * fewest, aim + 1, base)
    sums, others = [0], [0]
    for value, number in sorted((value, number) for number, value in refilling.items() if value < aim):
        if time < value:
            found = _least(time, runs, sums, others)
            if found < value:
                return found
            time = value
        item = items[number]
        added = [item.extra_ps * times for times in range(item.requests + 1)]
        longer = {total for one in sums for extra in added if (total := one + extra) <= aim - runs[0]}
        if len(longer) > MOST_SUMS:
            return time
        sums, others = others, sorted(longer)
    return _least(time, runs, sums, others)


def _least(time: int, *summands: Sequence[int]) -> int:
    """Return the least sum of one number from each of three ascending lists that is at least ``time``."""
    first, second, third = sorted(summands, key=len)
    return min(
        one + two + third[place]
        for one in first
        for two in second
        if (place := bisect_left(third, time - one - two)) < len(third)
    )
