r"""What the cache holds from batch to batch: the graph that `walk` and `search` have in common.

Prefills run whole, batches are hybrid, the batch time has one affine piece, and C, P and N admit a step of every
request at once, so that only memory binds. An order of first runs or a number of evictions may restrict schedules
further: what holds without them holds with them.

*Objective.* While batches run, the objective grows at a *rate* u: 1 for the makespan, which offline also is the largest
e2e latency, and for sums of e2e latencies, if all requests arrive together, the weight of those that are unfinished.

*Items.* Group the requests by (I, O, weight), groups in ascending order; weights count for sums only. The *item*
(group, k) is a request of the group in the batch that generates its token k; it then holds I + k − 1 tokens. Its step
is a fill for k = 1, and for k ≥ 2 a decode, or after an eviction a refill, which takes an *extra* time. All of them
depend on the item alone.

*No pauses.* If all requests arrive together and, where eviction is allowed, no extra time is negative, then for every
schedule there is one that is no worse, and in which no request keeps KV without running. Take a request's stay: from
its first run or a refill to its next eviction or its end. If it has a pause, run its tokens later, without gaps, so
that the last one stays where it is; if an eviction follows, let it follow at once. In every batch the request then
holds no more than before. The work is the same, and what moves comes later, so no batch ends later than before. Leave
out the batches that have lost all runs. If one of them was the only batch between the eviction and the refill of some
request, let that one keep its KV and decode instead of being refilled: this holds as much, and takes no more time.
There are never more batches or evictions than before, and tokens only move towards the end, so repeating this ends; and
no request ends later than at first. If requests arrive over time, this fails: a batch that has to wait may be worth
less than one that works ahead. Then requests may pause.

*Graph.* A *state* is a multiset of items, in a batch that is being composed or after a batch; a multiset of items whose
requests pause; for each *tracked* group the number of its requests that have not started; and for sums the weight of
the unfinished requests. *Moves*, which all but fills and runs cost nothing:

- begin: from after a batch to composing the next, each item is replaced by its successor (group, k + 1), if all of
  these and the items that pause fit the blocks; it costs u times the decodes of the successors;
- evict: an item less after a batch, if eviction is allowed;
- pause: an item less after a batch, one more that pauses, if requests may pause;
- fill: an item more in the batch, if it fits and its group has a request for it: one that is neither here nor waits,
  and that is unfinished as far as weights tell, or for a first fill in a tracked group one that waits. k = 1 is a first
  fill, one request less waiting, and k ≥ 2 a refill, if eviction is allowed; it costs u times the fill;
- run: from composing a batch that is not empty to after it, less the items with k = O, with those that paused; it costs
  u times the base. The weight of those that end is gone.

A schedule, without pauses where states have none, is a walk from the *source* (no item after the batch, all tracked
requests wait, all weight is unfinished) to the *sink* (no item, no request waits, no weight). It has a move, fills each
request for the first time once, and refills an item just as often as it evicts what would have become this item. What
its moves cost is, but for idle time, the objective.

The graph also has walks that are no schedules, since it does not know which requests were evicted, nor, of untracked
groups, which have started. Evicting an item and refilling it in the next batch is no schedule either, but no better
than keeping it if extra times are not negative.

*Prices.* Every item has a price π. The *priced* cost of a fill is its cost less π, that of an eviction its cost, 0,
plus the π of the successor. In a schedule's walk the prices of evictions and refills cancel, and those of first fills
add up to Π = Σ π(first item of r) over the requests r.

*Requests of one input.* Offline, for the makespan, nothing tells the requests of one input apart before they end. So
they may be one group, of which n_k generate a token k, and every output O below the largest is an *end*, an item of its
own, which as many requests wait for as have it. One more kind of move, before a run, after which nothing is filled:

- end: an item with k = O of the batch becomes the end O, which leaves with the run; it costs nothing, and its priced
  cost is less by the end's price.

A batch runs only if no more than n_(k + 1) of those that stay have k tokens or more, and a fill leaves no more than n_k
of those that have k. A schedule is such a walk, which takes every end as often as requests have it; and all that a walk
with pools takes may be told apart by their outputs when they end, so that it is a schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, NamedTuple

from optsched.check.problem import Problem, feasible, pieces_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective

MOST_STATES = 400_000
"""Graphs with more states are not searched."""
SUMS = frozenset({Objective.MEAN_E2E, Objective.WEIGHTED_E2E})
"""The objectives that add up latencies; a mean is kept as a sum."""


# What the graph needs --------------------------------------------------------------------------------------


def require_memory_only(kind: str, problem: Problem) -> None:
    """Refuse problems that the graph does not cover."""
    requests, limits = problem.requests, problem.limits
    if problem.chunked:
        raise UnprovedError(f"kind {kind} needs whole prefills, but chunked prefill is allowed")
    if not problem.hybrid:
        raise UnprovedError(f"kind {kind} needs hybrid batches, but they are forbidden")
    pieces = len(pieces_of(problem.cost))
    if pieces > 1:
        raise UnprovedError(f"kind {kind} needs a batch time of 1 affine piece, it has {pieces}")
    tokens = sum(request.input + request.output - 1 for request in requests)
    for name, budget in (("batch_tokens", limits.batch_tokens), ("prefill_tokens", limits.prefill_tokens)):
        if budget < tokens:
            raise UnprovedError(
                f"kind {kind} needs budgets of at least the {tokens} tokens of all requests, {name} is {budget}"
            )
    if problem.runs is not None and problem.runs < len(requests):
        raise UnprovedError(
            f"kind {kind} needs batches of all {len(requests)} requests, at most {problem.runs} may run"
        )
    if not feasible(problem):
        raise UnprovedError(f"kind {kind} needs a request to fit the KV cache alone, some request does not")


def offline(problem: Problem) -> bool:
    """Whether all requests arrive together."""
    return len({request.arrival_ps for request in problem.requests}) == 1


# Items and their prices ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A request of a group in the batch that generates its token k.

    ``requests`` is the size of the group, ``weight`` that of each of them, ``work_ps`` the token and attention time of
    the step, which is a fill for k = 1 and else a decode, and ``extra_ps`` what a refill takes beyond it. Successors
    are next to each other. ``reach`` is the number of the group's requests that generate the token, ``of`` for an end
    the number of the item that it ends, and else −1.
    """

    group: int
    requests: int
    weight: int
    k: int
    last: bool
    tokens: int
    blocks: int
    work_ps: int
    extra_ps: int
    reach: int
    of: int = -1

    @property
    def first(self) -> bool:
        """Whether it is a first token."""
        return self.k == 1 and self.of < 0

    @property
    def fresh(self) -> int:
        """How many requests wait for it at the begin."""
        return self.requests if self.first or self.of >= 0 else 0


def group_of(problem: Problem, objective: Objective, request: int) -> tuple[int, int, int]:
    """Return (I, O, weight) of a request; the weight is 0 if it does not count."""
    found = problem.requests[request]
    weights = {Objective.MEAN_E2E: 1, Objective.WEIGHTED_E2E: found.weight}
    return found.input, found.output, weights.get(objective, 0)


def items_of(problem: Problem, objective: Objective) -> list[Item]:
    """Return the items of all groups, group by group, k ascending."""
    groups = Counter(group_of(problem, objective, request) for request in range(len(problem.requests)))
    return [
        _item(problem, Item(group, requests, weight, k, k == output, prompt + k - 1, 0, 0, 0, requests))
        for group, ((prompt, output, weight), requests) in enumerate(sorted(groups.items()))
        for k in range(1, output + 1)
    ]


def items_by_input(problem: Problem, requests: Iterable[int]) -> list[Item]:
    """Return the items of some requests, those of one input a group: group by group, k ascending; then ends, likewise.

    It is for the makespan of requests that arrive together.
    """
    groups: dict[int, Counter[int]] = {}
    for request in requests:
        found = problem.requests[request]
        groups.setdefault(found.input, Counter())[found.output] += 1
    items, ends = list[Item](), list[Item]()
    for group, (prompt, outputs) in enumerate(sorted(groups.items())):
        for k in range(1, max(outputs) + 1):
            reach = sum(number for output, number in outputs.items() if output >= k)
            last = k == max(outputs)
            item = Item(group, outputs.total(), 0, k, last, prompt + k - 1, 0, 0, 0, reach)
            items.append(_item(problem, item))
            if k in outputs and not last:
                blocks = items[-1].blocks
                ends.append(
                    replace(item, requests=outputs[k], last=True, blocks=blocks, reach=outputs[k], of=len(items) - 1)
                )
    return items + ends


def _item(problem: Problem, item: Item) -> Item:
    """Return an item with the blocks that it holds and what its steps take."""
    cost, tokens = problem.cost, item.tokens
    fill = cost.token * tokens + cost.prefill_sq * tokens**2 + cost.prefill_req
    work = cost.token + cost.decode_kv * (tokens - 1) + cost.decode_req if item.k > 1 else fill
    return replace(item, blocks=problem.blocks_of(tokens), work_ps=work, extra_ps=fill - work)


@dataclass(frozen=True)
class Prices:
    """What a certificate states: a price of every item and the tracked groups; costs count in ps / ``scale``."""

    items: list[int]
    tracked: frozenset[int]
    scale: int


def prices_of(certificate: Mapping[str, Any], items: Sequence[Item]) -> Prices:
    """Read ``item_prices``; ``tracked``, no group if it is missing; and ``scale``, 1 if it is missing."""
    prices = _integers("item_prices", certificate.get("item_prices"))
    if len(prices) != len(items):
        raise UnprovedError(f"item_prices has {len(prices)} integers, expected {len(items)}, one for each item")
    groups = items[-1].group + 1
    tracked = _integers("tracked", certificate.get("tracked", []))
    if len(set(tracked)) != len(tracked) or not set(tracked) <= set(range(groups)):
        raise UnprovedError(f"tracked is {shown(tracked)}, expected different groups from 0 to {groups - 1}")
    scale = certificate.get("scale", 1)
    if type(scale) is not int or scale < 1:
        raise UnprovedError(f"scale is {shown(scale)}, expected an integer ≥ 1")
    return Prices(prices, frozenset(tracked), scale)


def _integers(name: str, stated: object) -> list[int]:
    if isinstance(stated, list) and all(type(number) is int for number in stated):
        return stated
    raise UnprovedError(f"{name} is {shown(stated)}, expected a list of integers")


# The graph -------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """Items in a batch or after one, by number, ascending; those that pause; how many wait of each group; weight left.

    ``waiting`` is 0 for groups that are not tracked.
    """

    composing: bool
    items: tuple[int, ...]
    paused: tuple[int, ...]
    waiting: tuple[int, ...]
    weight: int


class Kind(Enum):
    """The kinds of moves."""

    BEGIN = auto()
    EVICT = auto()
    PAUSE = auto()
    FILL = auto()
    RUN = auto()
    END = auto()


class Move(NamedTuple):
    """A move to the state number ``head``; ``item`` is what it fills, evicts, lets pause or ends as, or −1."""

    head: int
    kind: Kind
    item: int
    cost: int
    priced: int


@dataclass(frozen=True)
class Graph:
    """The moves from every state, and an order of the states in which all moves but runs lead forwards."""

    states: list[State]
    moves: list[list[Move]]
    order: list[int]
    source: int
    sink: int


_Step = tuple[State, Kind, int, int, int]
"""A move before states have numbers."""


class Rules:
    """Which moves lead from a state, and what they cost.

    ``worth`` is what others are worth in a batch by the blocks that are left, empty if there are no others.
    """

    def __init__(
        self,
        problem: Problem,
        objective: Objective,
        items: Sequence[Item],
        prices: Prices,
        *,
        pauses: bool = False,
        worth: Sequence[int] = (),
    ) -> None:
        self._problem, self._items, self._prices, self._pauses = problem, items, prices, pauses
        self._worth = worth
        [(self._base_ps, _)] = pieces_of(problem.cost)
        self._steady = 0 if objective in SUMS else 1
        tokens = [number for number, item in enumerate(items) if item.of < 0]
        self._small_first = sorted(tokens, key=lambda number: items[number].blocks)
        self._ends = [number for number, item in enumerate(items) if item.of >= 0]
        # Of every item what not all requests of its group reach, up to it.
        self._scarce = [
            [step for step in items[number + 1 - item.k : number + 1] if step.reach < step.requests]
            for number, item in enumerate(items)
        ]
        firsts = [item for item in items if item.first]
        all_wait = tuple(item.requests if item.group in prices.tracked else 0 for item in firsts)
        weight = sum(item.requests * item.weight for item in firsts)
        self._weights = [item.weight for item in firsts]
        self.source = State(False, (), (), all_wait, weight)
        self.sink = State(False, (), (), (0,) * len(all_wait), 0)

    def is_end(self, number: int) -> bool:
        """Return whether an item is an end."""
        return self._items[number].of >= 0

    def steps(self, state: State) -> Iterator[_Step]:
        """Yield all moves from a state."""
        cost = self._prices.scale * (self._steady + state.weight)  # of a ps
        return self._in_batch(state, cost) if state.composing else self._after_batch(state, cost)

    def _after_batch(self, state: State, cost: int) -> Iterator[_Step]:
        grown = tuple(number + 1 for number in state.items)
        if sum(self._items[number].blocks for number in grown + state.paused) <= self._problem.blocks:
            decodes = cost * sum(self._items[number].work_ps for number in grown)
            yield state._replace(composing=True, items=grown), Kind.BEGIN, -1, decodes, decodes
        for place, number in enumerate(state.items):
            if number in state.items[:place]:
                continue
            rest = state._replace(items=state.items[:place] + state.items[place + 1 :])
            if self._problem.eviction:
                yield rest, Kind.EVICT, number, 0, self._prices.items[number + 1]
            if self._pauses:
                yield rest._replace(paused=tuple(sorted((*state.paused, number)))), Kind.PAUSE, number, 0, 0

    def _in_batch(self, state: State, cost: int) -> Iterator[_Step]:
        if not any(map(self.is_end, state.items)):
            yield from self._fills(state, cost)
        yield from self._endings(state)
        yield from self._runs(state, cost)

    def _fills(self, state: State, cost: int) -> Iterator[_Step]:
        here = state.items + state.paused
        groups = [self._items[number].group for number in here]
        free = self._problem.blocks - sum(self._items[number].blocks for number in here)
        elsewhere = state.weight - sum(self._items[number].weight for number in here)
        elsewhere -= sum(waiting * weight for waiting, weight in zip(state.waiting, self._weights, strict=True))
        for number in self._small_first:
            item = self._items[number]
            if item.blocks > free:
                break
            waiting = state.waiting
            if item.k == 1 and item.group in self._prices.tracked:
                possible = waiting[item.group] > 0
                waiting = tuple(count - (group == item.group) for group, count in enumerate(waiting))
            else:
                others = item.requests - waiting[item.group] - groups.count(item.group)
                possible = others > 0 and item.weight <= elsewhere and (item.k == 1 or self._problem.eviction)
            if possible and all(self._reached(here, step) < step.reach for step in self._scarce[number]):
                filled = state._replace(items=tuple(sorted((*state.items, number))), waiting=waiting)
                work = cost * (item.work_ps + item.extra_ps)
                yield filled, Kind.FILL, number, work, work - self._prices.items[number]

    def _reached(self, here: Sequence[int], step: Item) -> int:
        """Return how many of those that are here have a token, or a later one, of the same group."""
        there = [self._items[number] for number in here]
        return sum(item.group == step.group and item.k >= step.k for item in there)

    def _endings(self, state: State) -> Iterator[_Step]:
        for end in self._ends:
            item = self._items[end]
            if item.of in state.items and state.items.count(end) < item.requests:
                place = state.items.index(item.of)
                ended = state._replace(items=tuple(sorted((*state.items[:place], *state.items[place + 1 :], end))))
                yield ended, Kind.END, end, 0, -self._prices.items[end]

    def _runs(self, state: State, cost: int) -> Iterator[_Step]:
        if not state.items and not self._worth:
            return
        ended = [number for number in state.items if self._items[number].last]
        stay = [number for number in state.items if not self._items[number].last]
        for number in stay:
            after = self._items[number + 1]
            if after.reach < after.requests and self._reached(stay, self._items[number]) > after.reach:
                return
        weight = state.weight - sum(self._items[number].weight for number in ended)
        here = state.items + state.paused
        free = self._problem.blocks - sum(self._items[number].blocks for number in here)
        base = cost * self._base_ps - (self._worth[free] if self._worth else 0)
        left = tuple(sorted((*state.paused, *stay)))
        yield State(False, left, (), state.waiting, weight), Kind.RUN, -1, base, base


def explore(rules: Rules, most: int | None = None) -> Graph:
    """Find all states that the source reaches, ``most`` at most, or `MOST_STATES`."""
    most = MOST_STATES if most is None else most
    numbers = {rules.source: 0}
    states = [rules.source]
    moves: list[list[Move]] = []
    for state in states:  # which grows meanwhile
        leaving = []
        for after, kind, item, cost, priced in rules.steps(state):
            head = numbers.setdefault(after, len(states))
            if head == len(states):
                states.append(after)
            leaving.append(Move(head, kind, item, cost, priced))
        moves.append(leaving)
        if len(states) > most:
            raise UnprovedError(f"the graph has more than {most} states, which are not searched")

    def phase(number: int) -> tuple[bool, int]:
        state = states[number]
        ends = sum(rules.is_end(item) for item in state.items)
        return state.composing, len(state.items) + ends if state.composing else -len(state.items)

    return Graph(states, moves, sorted(range(len(states)), key=phase), 0, numbers[rules.sink])


def repriced(graph: Graph, prices: Sequence[int]) -> Graph:
    """Return the graph with other prices of its items."""

    def priced(move: Move) -> int:
        evicted, filled = move.kind is Kind.EVICT, move.kind in {Kind.FILL, Kind.END}
        return move.cost + (prices[move.item + 1] if evicted else -prices[move.item] if filled else 0)

    return replace(graph, moves=[[move._replace(priced=priced(move)) for move in leaving] for leaving in graph.moves])


def layered(graph: Graph, batches: int) -> Graph:
    """Return the graph copied for each number of runs from 0 to ``batches``, with the sink of the last copy.

    State s after j runs is number j times all states plus s; the last copy has no moves.
    """
    states = len(graph.states)
    moves = [
        [move._replace(head=move.head + states * (done + (move.kind is Kind.RUN))) for move in leaving]
        for done in range(batches)
        for leaving in graph.moves
    ]
    moves.extend([] for _ in graph.moves)
    order = [number + states * done for done in range(batches + 1) for number in graph.order]
    return Graph(graph.states * (batches + 1), moves, order, graph.source, graph.sink + states * batches)
