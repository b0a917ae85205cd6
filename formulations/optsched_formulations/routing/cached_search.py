r"""One machine with a prefix cache, exactly: all legal batches, best first.

A state is, for each request, the tokens it has generated, those it holds and whether it is being filled, and the blocks
in the cache. A label is a state, a time, and what the requests with all their tokens, or the first, have waited. Labels
are taken by the objective if all others take as long from then on as alone with everything shared in the cache (A*):
the first without a request left is optimal. Of two labels of a state one that is later, and whose requests have waited
longer, is not looked at.

*Drops.* Where prefills are whole and a token found costs no more than one that is run, a block is dropped only if its
batch would not fit with it: a schedule that drops more keeps it until memory is short or a request finds it, and
then runs fewer tokens, and what the request holds is the same. In chunks it holds what it finds sooner than what it
runs, so that all drops are tried.

*Evictions.* Likewise a request is evicted only if its batch would not fit with it, where besides batches are hybrid
and no refill of one token takes less than a decode: what keeps its KV decodes in the batch that would have filled it
again.

Conditions
----------
Any cache mode, evictions, chunks, arrivals; objectives that rise with the times of tokens. Few requests and tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, count, permutations, product

from optsched.model.cluster import CacheMode
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, value_at
from optsched.model.result import Badge
from optsched.model.schedule import Batch, Schedule
from optsched.solvers.formulation import Outcome, Termination, UnsupportedError, require_monotone
from optsched.stopwatch import now_s
from optsched_formulations.routing.prefixed import least_steps

_Held = tuple[int, int, bool]
"""Tokens generated, tokens held, and whether the request is being filled."""
_State = tuple[tuple[_Held, ...], frozenset[int]]
_CHECKED = 16
"""Labels between two looks at the clock."""


@dataclass(order=True)
class _Label:
    """A moment of a schedule, and how it came there."""

    value: int
    order: int
    now: int = field(compare=False)
    state: _State = field(compare=False)
    first: tuple[int, ...] = field(compare=False)
    last: tuple[int, ...] = field(compare=False)
    before: _Label | None = field(compare=False, default=None)
    batch: Batch | None = field(compare=False, default=None)


def solve_cached(instance: Instance, objective: Objective, time_limit_s: float) -> Outcome:
    """Return an optimal schedule of one machine, or, when time is up, a bound; or that there is none.

    A request whose prompt does not fit a whole prefill may be served if another one has left its prefix in the cache.

    Raises
    ------
    UnsupportedError
        For several machines, and objectives that may fall if a token comes later.
    """
    if instance.is_distributed:
        raise UnsupportedError("several machines")
    require_monotone(objective)
    return _Search(instance, objective).run(now_s() + time_limit_s)


class _Search:
    """One call."""

    def __init__(self, instance: Instance, objective: Objective) -> None:
        self._instance, self._objective = instance, objective
        self._requests, self._limits, self._rules = instance.requests, instance.limits, instance.rules
        self._block, cost = instance.limits.kv_block, instance.cost
        self._ids, self._place = _numbered(instance)
        self._parent = {
            block: blocks[depth - 1] if depth else None for blocks in self._ids for depth, block in enumerate(blocks)
        }
        self._later = {
            block: frozenset(
                other for blocks in self._ids if block in blocks for other in blocks[blocks.index(block) :]
            )
            for block in self._parent
        }
        self._all_drops = self._rules.chunked_prefill or cost.prefill_kv > min(token for _, token in cost.affine)
        shortest, longest = min(r.input for r in self._requests), max(r.peak_tokens for r in self._requests)
        self._all_evictions = (
            self._all_drops
            or not self._rules.hybrid
            or any(cost.decode_ps(place) > cost.prefill_ps(1, place) for place in (shortest, longest))
        )
        # Of each request by tokens generated: time from the first run of the next token on.
        self._left = least_steps(instance)
        self._shares = instance.cache.share_in_batch and instance.is_cached

    def run(self, deadline: float) -> Outcome:
        number, order = len(self._requests), count()
        start: _State = (((0, 0, True),) * number, frozenset())
        queue = [self._label(next(order), self._instance.start_ps, start, ((-1,) * number, (-1,) * number))]
        seen: dict[_State, list[_Label]] = {}
        taken = 0
        while queue:
            label = heapq.heappop(queue)
            if min(label.last) >= 0:
                return Outcome(Termination.OPTIMAL, _schedule(label), label.value, Badge.SOLVER_CLAIMED)
            known = seen.setdefault(label.state, [])
            if any(self._is_no_later(other, label) for other in known):
                continue
            known.append(label)
            taken += 1
            if taken % _CHECKED == 0 and now_s() > deadline:
                return Outcome(Termination.LIMIT, None, label.value, Badge.SOLVER_CLAIMED)
            for now, state, batch in self._following(label):
                first, last = list(label.first), list(label.last)
                for index, (held, before) in enumerate(zip(state[0], label.state[0], strict=True)):
                    if held[0] > before[0]:
                        if first[index] < 0:
                            first[index] = now - self._requests[index].arrival_ps
                        if held[0] == self._requests[index].output:
                            last[index] = now - self._requests[index].arrival_ps
                heapq.heappush(queue, self._label(next(order), now, state, (tuple(first), tuple(last)), (label, batch)))
        return Outcome(Termination.INFEASIBLE, None, None, Badge.SOLVER_CLAIMED)

    def _label(
        self,
        order: int,
        now: int,
        state: _State,
        known: tuple[tuple[int, ...], tuple[int, ...]],
        came: tuple[_Label, Batch] | None = None,
    ) -> _Label:
        """Make a label of a moment; ``known`` are the latencies of tokens that have come, −1 for others."""
        (first, last), (before, batch) = known, came or (None, None)
        firsts, lasts = [], []
        for request, held, one, other, left in zip(self._requests, state[0], first, last, self._left, strict=True):
            waited = max(0, now - request.arrival_ps)
            rest = self._rest(request.input, held, left)
            firsts.append(one if one >= 0 else waited + rest - left[1])
            lasts.append(other if other >= 0 else waited + rest)
        value = value_at(self._instance.requests, self._objective, firsts, lasts)
        if before is not None:
            value = max(value, before.value)
        return _Label(value, order, now, state, first, last, before, batch)

    def _rest(self, prompt: int, held: _Held, left: Sequence[int]) -> int:
        """Return how long a request takes at least from now on; of a fill under way what is left of it."""
        generated, tokens, filling = held
        if not filling or not tokens:
            return left[generated]
        missing, most = prompt + generated - tokens, self._limits.prefill_tokens
        return self._instance.cost.affine[0][0] * -(-missing // most) + left[generated + 1]

    def _is_no_later(self, one: _Label, other: _Label) -> bool:
        """Whether a label of the same state makes another superfluous."""
        if one.now > other.now:
            return False
        # The same requests have tokens in both; by the objective, as sums may trade one latency for another.
        return self._waited(one) <= self._waited(other)

    def _waited(self, label: _Label) -> int:
        if self._objective is Objective.MAKESPAN:
            return 0
        firsts, lasts = (tuple(max(0, each) for each in part) for part in (label.first, label.last))
        return value_at(self._instance.requests, self._objective, firsts, lasts)

    def _following(self, label: _Label) -> Iterator[tuple[int, _State, Batch]]:
        """Yield what follows on batches that start now, or with the arrival of one of their requests."""
        coming = sorted({r.arrival_ps for r in self._requests if r.arrival_ps > label.now})
        for start in (label.now, *coming):
            yield from self._started(label, start)

    def _started(self, label: _Label, start: int) -> Iterator[tuple[int, _State, Batch]]:
        held, cache = label.state
        here = [
            index
            for index, request in enumerate(self._requests)
            if request.arrival_ps <= start and label.last[index] < 0
        ]
        awaited = {index for index in here if start == self._requests[index].arrival_ps}
        nothing_lost = (), frozenset[int]()
        lazy = not self._all_drops and not (self._rules.eviction and self._all_evictions)
        for chosen in _subsets(here):
            if not chosen or (start > label.now and not awaited.intersection(chosen)):
                continue
            found = list(self._batches(start, (held, held), cache, (*nothing_lost, chosen)))
            yield from found
            if found and lazy:
                continue
            residents = [index for index in here if held[index][1] and index not in chosen]
            for evict in _subsets(residents) if self._rules.eviction else ((),):
                left = list(held)
                for index in evict:
                    left[index] = left[index][0], 0, True
                pinned = frozenset(
                    block for index in here for block in self._ids[index][: left[index][1] // self._block]
                )
                for drop in self._drops(cache - pinned):
                    if evict or drop:
                        yield from self._batches(start, (held, left), cache, (evict, drop, chosen))

    def _drops(self, loose: frozenset[int]) -> Iterator[frozenset[int]]:
        """Yield all sets of blocks without a pin that may be dropped together, small ones first."""
        closed = {frozenset[int]()}
        level = set(closed)
        while level:
            yield from level
            following = set()
            for drop in level:
                for block in loose - drop:
                    if not (self._later[block] & loose) - drop - {block}:
                        following.add(drop | {block})
            level = following - closed
            closed |= level

    def _batches(
        self,
        now: int,
        states: tuple[Sequence[_Held], Sequence[_Held]],
        cache: frozenset[int],
        action: tuple[Sequence[int], frozenset[int], Sequence[int]],
    ) -> Iterator[tuple[int, _State, Batch]]:
        """Yield what follows on batches of the chosen requests; ``states`` are before and after evictions."""
        (evict, drop, chosen), held = action, states[1]
        if self._limits.batch_requests is not None and len(chosen) > self._limits.batch_requests:
            return
        filling = [index for index in chosen if held[index][2]]
        if filling and len(filling) < len(chosen) and not self._rules.hybrid:
            return
        decodes = [index for index in chosen if not held[index][2]]
        orders = permutations(filling) if self._shares else (tuple(filling),)
        for order in orders:
            for until in product(*(self._ends(held[index], index) for index in order)):
                fills = tuple(zip(order, until, strict=True))
                found = self._played(now, held, cache - drop, fills, decodes)
                if found is None or self._is_wasteful(now, states, cache, (evict, drop), (fills, decodes)):
                    continue
                end, state, run, hits = found
                dropped = tuple(self._place[block] for block in sorted(drop))
                yield end, state, Batch(now, end, run, tuple(evict), hits=hits, drop=dropped)

    def _ends(self, held: _Held, index: int) -> range:
        """Return how many tokens a request that is being filled may hold after its step."""
        whole = self._requests[index].input + held[0]
        return range(held[1] + 1 if self._rules.chunked_prefill else whole, whole + 1)

    def _is_wasteful(
        self,
        now: int,
        held: tuple[Sequence[_Held], Sequence[_Held]],
        cache: frozenset[int],
        lost: tuple[Sequence[int], frozenset[int]],
        runs: tuple[Sequence[tuple[int, int]], Sequence[int]],
    ) -> bool:
        """Whether the batch is legal also with one of the dropped blocks, or without one of the evictions.

        ``held`` are what requests hold before and after evictions.
        """
        (before, after), (evict, drop) = held, lost
        if not self._all_drops:
            for top in drop:
                if self._parent[top] not in drop and self._played(now, after, cache - (drop - {top}), *runs):
                    return True
        if not self._all_evictions:
            for index in evict:
                kept = list(after)
                kept[index] = before[index]
                pinned = self._ids[index][: before[index][1] // self._block]
                if self._played(now, kept, cache - drop.difference(pinned), *runs):
                    return True
        return False

    def _played(
        self,
        now: int,
        held: Sequence[_Held],
        cache: frozenset[int],
        fills: Sequence[tuple[int, int]],
        decodes: Sequence[int],
    ) -> tuple[int, _State, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] | None:
        """Return end, state, runs and hits of a batch; None if it breaks a rule."""
        cost, block = self._instance.cost, self._block
        after, done = list(held), list[int]()
        run, hits, prefills = [], [], []
        read = 0
        for index, until in fills:
            generated, tokens, _ = held[index]
            exist = self._requests[index].input + generated
            if not tokens:
                known = cache.union(done) if self._shares else cache
                most = (exist - 1) // block
                blocks = self._ids[index][:most]
                tokens = block * next((depth for depth, each in enumerate(blocks) if each not in known), len(blocks))
                if tokens:
                    hits.append((index, tokens))
            if until <= tokens:
                return None
            run.append((index, until - tokens))
            prefills.append((until - tokens, tokens))
            done += self._ids[index][tokens // block : until // block]
            after[index] = generated, until, True
        if sum(tokens for tokens, _ in prefills) > self._limits.prefill_tokens:
            return None
        for index in decodes:
            generated, tokens, _ = held[index]
            read += tokens
            run.append((index, 1))
            done += self._ids[index][tokens // block : (tokens + 1) // block]
            after[index] = generated, tokens + 1, False
        total = sum(tokens for _, tokens in run)
        used = len(cache) + len(done)
        for blocks, (_, tokens, _) in zip(self._ids, after, strict=True):
            used += -(-tokens // block) - min(tokens // block, len(blocks))
        if total > self._limits.batch_tokens or used > self._limits.kv_blocks:
            return None
        for index, _ in run:
            generated, tokens, filling = after[index]
            if tokens == self._requests[index].input + generated:
                generated, filling = generated + 1, False
                tokens = 0 if generated == self._requests[index].output else tokens
            after[index] = generated, tokens, filling
        end = now + cost.batch_ps(total, len(decodes), read, prefills)
        return end, (tuple(after), cache.union(done)), tuple(run), tuple(hits)


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def _numbered(instance: Instance) -> tuple[list[list[int]], dict[int, tuple[int, int]]]:
    """Return the numbers of the blocks of every request that may be cached, and for each a request and its place."""
    block, mode = instance.limits.kv_block, instance.cache.mode
    lengths = {node.name: node.tokens for node in instance.prefixes.nodes}
    numbers: dict[object, int] = {}
    found, place = [], dict[int, tuple[int, int]]()
    for index, request in enumerate(instance.requests):
        blocks: list[int] = []
        end = 0
        keys: list[object] = []
        for name in request.prefix:
            end += lengths[name]
            keys += [(name, number) for number in range(len(keys), end // block)]
        if mode is CacheMode.ALL:
            keys += [(index, number) for number in range(len(keys), (request.input + request.output) // block)]
        for key in keys if mode is not CacheMode.NONE else ():
            blocks.append(numbers.setdefault(key, len(numbers)))
            place.setdefault(blocks[-1], (index, len(blocks) - 1))
        found.append(blocks)
    return found, place


def _schedule(label: _Label) -> Schedule:
    batches: list[Batch] = []
    at: _Label | None = label
    while at is not None:
        if at.batch is not None:
            batches.append(at.batch)
        at = at.before
    return Schedule(tuple(reversed(batches)))
