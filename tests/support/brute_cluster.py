"""Tiny clusters played in the plainest way: every block is the tuple of all tokens up to its end.

Written straight from problem.md, Several machines, and sharing no code with the package. `World` is the state of all
machines at a moment, `judged` replays a schedule in it, `random_schedule` takes random legal decisions at its events,
and `best` tries every one. Batches take at least 1 ps here.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, count, permutations, product
from operator import le
from typing import Any, NamedTuple

from optsched.model.cluster import CacheMode, Role
from optsched.model.domain import replace
from optsched.model.instance import Instance, Machine
from optsched.model.schedule import Batch, Move, Schedule

Token = tuple[str, object, int]
Block = tuple[Token, ...]
"""All tokens of a sequence up to the end of a block."""


class IllegalError(Exception):
    """A rule is broken."""


class TooManyError(Exception):
    """There are too many schedules to try them all."""


def need(condition: object, rule: str) -> None:
    if not condition:
        raise IllegalError(rule)


@dataclass
class Copying:
    """A move under way: tokens pinned at the target, tokens copied when this stage ends, and its end."""

    request: int
    source: int
    target: int
    start: int
    drop: tuple[tuple[int, int], ...]
    pinned: int
    reached: int
    due: int = 0
    last: bool = True
    stages: list[int] = field(default_factory=list)
    sent: int = 0
    position: int = 0

    def clone(self) -> Copying:
        other = object.__new__(Copying)
        other.__dict__ = self.__dict__ | {"stages": self.stages[:]}
        return other


@dataclass
class Open:
    """A batch under way: its end, the tokens of its requests afterwards, and the cacheable blocks that it completes."""

    end: int
    after: dict[int, int]
    done: list[Block]


class Started(NamedTuple):
    """A batch; a schedule has it as a `Batch`, which takes longer to make."""

    start_ps: int
    end_ps: int
    run: tuple[tuple[int, int], ...]
    evict: tuple[int, ...]
    replica: int
    hits: tuple[tuple[int, int], ...]
    drop: tuple[tuple[int, int], ...]

    def stated(self) -> Batch:
        return Batch(**self._asdict())


class World:
    """Everything at a moment.

    Parameters
    ----------
    instance, routes
        The problem, and where its requests go.
    """

    def __init__(self, instance: Instance, routes: Sequence[int]) -> None:
        self.instance, self.machines, self.now = instance, instance.machines, -1
        requests = instance.requests
        lengths = {node.name: node.tokens for node in instance.prefixes.nodes}
        self.paths = tuple(sum(lengths[name] for name in request.prefix) for request in requests)
        tokens: list[Block] = []
        for index, request in enumerate(requests):
            path = [("node", name, place) for name in request.prefix for place in range(lengths[name])]
            own = [("own", index, place) for place in range(len(path), request.input + request.output)]
            tokens.append((*path, *own))
        self.tokens = tuple(tokens)
        self.blocks: dict[tuple[int, CacheMode, int], tuple[Block, ...]] = {}
        number = len(requests)
        need(all(self.machines[route].role is not Role.DECODE for route in routes), "routed to a decode machine")
        self.where, self.g, self.m = list(routes), [0] * number, [0] * number
        self.filling, self.finished = [True] * number, [False] * number
        self.first, self.last, self.gaps = [0] * number, [0] * number, list[int]()
        self.ran_until = [-1] * number
        self.prefilled = [0] * number
        self.had = [0] * number
        self.cache: list[frozenset[Block]] = [frozenset() for _ in self.machines]
        self.open: list[Open | None] = [None] * len(self.machines)
        self.copies: list[Copying] = []
        self.load = [0] * len(self.machines)
        names = (
            "batches evictions recomputed_tokens hit_tokens computed_tokens prefill_tokens saved_ps moves moved_tokens"
        )
        self.counts = dict.fromkeys(names.split(), 0)
        self.batches: list[Started] = []
        self.decoding: list[bool] = []
        self.moves: list[tuple[int, Move]] = []
        self.started_moves = 0
        self.matched: list[int] = []
        self.decide: Callable[[Copying, int], bool] = lambda _, stage: True

    def clone(self) -> World:
        other = object.__new__(World)
        other.__dict__ = {name: value[:] if type(value) is list else value for name, value in vars(self).items()}
        other.counts = self.counts.copy()
        other.copies = [each.clone() for each in self.copies]
        return other

    # Blocks ------------------------------------------------------------------------------------------------

    def cacheable(self, machine: Machine, request: int) -> tuple[Block, ...]:
        """Return the whole blocks of a request that may be cached; they are the same in every world of the problem."""
        size, mode = machine.limits.kv_block, machine.cache.mode
        found = self.blocks.get((size, mode, request))
        if found is None:
            most = self.paths[request] if mode is CacheMode.PREFIX else len(self.tokens[request])
            ends = range(size, min(most, len(self.tokens[request])) + 1, size) if mode is not CacheMode.NONE else ()
            found = self.blocks[size, mode, request] = tuple(self.tokens[request][:end] for end in ends)
        return found

    def block(self, machine: Machine, request: int, number: int) -> Block | None:
        """Return a block of a request, None if it is not one that may be cached."""
        found = self.cacheable(machine, request)
        return found[number] if number < len(found) else None

    def whole(self, machine: Machine, request: int, tokens: int) -> tuple[Block, ...]:
        """Return the whole blocks among the first tokens that may be cached."""
        return self.cacheable(machine, request)[: tokens // machine.limits.kv_block]

    def run_of(self, machine: Machine, request: int, held: Any, most: int) -> int:
        """Return how many leading blocks are held, at most ``most``."""
        found = 0
        while found < most and self.block(machine, request, found) in held:
            found += 1
        return found

    def memory(self, k: int) -> int:
        """Return the blocks that a machine's batch under way, as after its steps, and moves occupy."""
        machine, opened = self.machines[k], self.open[k]
        b = machine.limits.kv_block
        used = len(self.cache[k]) + (len(opened.done) if opened else 0)
        for request, place in enumerate(self.where):
            if place == k:
                tokens = opened.after.get(request, self.m[request]) if opened else self.m[request]
                used += -(-tokens // b) - len(self.whole(machine, request, tokens))
        for each in self.copies:
            if each.target == k:
                used += -(-each.reached // b) - each.pinned // b
        return used

    def need_memory(self, k: int) -> None:
        limits = self.machines[k].limits
        need(self.memory(k) <= limits.kv_tokens // limits.kv_block, "memory")

    def drop(self, k: int, drop: Sequence[tuple[int, int]]) -> None:
        machine = self.machines[k]
        need(all(request < len(self.where) for request, _ in drop), "unknown request")
        blocks = [self.block(machine, request, number) for request, number in drop]
        need(len(set(blocks)) == len(blocks), "dropped twice")
        need(all(block in self.cache[k] for block in blocks), "not cached")
        pinned: list[Block] = []
        for request, place in enumerate(self.where):
            if place == k:
                pinned += self.whole(machine, request, self.m[request])
        for each in self.copies:
            if each.target == k:
                pinned += self.whole(machine, each.request, each.pinned)
        need(not set(blocks) & set(pinned), "pinned")
        kept = self.cache[k] - {block for block in blocks if block is not None}
        need(
            not any(block is not None and other[: len(block)] == block for other in kept for block in blocks), "behind"
        )
        self.cache[k] = kept

    # Batches -----------------------------------------------------------------------------------------------

    def copying(self, request: int) -> Copying | None:
        return next((each for each in self.copies if each.request == request), None)

    def is_leaving(self, request: int) -> bool:
        """Whether the last stage of a move is under way."""
        move = self.copying(request)
        return move is not None and move.last

    def start_batch(
        self, k: int, run: Sequence[tuple[int, int]], evict: Sequence[int] = (), drop: Sequence[tuple[int, int]] = ()
    ) -> None:
        requests = self.instance.requests
        need(self.open[k] is None, "busy")
        need(run, "no run")
        named = [*evict, *(request for request, _ in run)]
        need(len(set(named)) == len(named), "one request twice")
        for request in named:
            need(request < len(requests), "unknown request")
            need(self.where[request] == k and not self.finished[request], "not here")
            need(not self.is_leaving(request), "moving")
        self.make_room(k, evict, drop)
        self.fill_batch(k, run, evict, drop)

    def make_room(self, k: int, evict: Sequence[int], drop: Sequence[tuple[int, int]]) -> None:
        """Do what a batch begins with."""
        machine, rules = self.machines[k], self.machines[k].rules
        for request in evict:
            need(rules.eviction and self.m[request] >= 1, "eviction")
            need(machine.role is not Role.PREFILL or self.g[request] == 0, "kept until it moves")
            self.m[request], self.filling[request] = 0, True
            self.counts["evictions"] += 1
            self.abort(request)
        self.drop(k, drop)

    def fill_batch(
        self, k: int, run: Sequence[tuple[int, int]], evict: Sequence[int], drop: Sequence[tuple[int, int]]
    ) -> None:
        """Start a batch that has made room."""
        machine, requests = self.machines[k], self.instance.requests
        limits, rules, cost = machine.limits, machine.rules, machine.cost
        b = limits.kv_block
        done: list[Block] = []
        after: dict[int, int] = {}
        hits: list[tuple[int, int]] = []
        self.matched = []
        steps, fills, decodes, prefill = 0, 0, 0, 0
        found_steps, found_tokens = 0, 0
        for request, c in run:
            r = requests[request]
            need(r.arrival_ps <= self.now, "arrival")
            need(machine.role is not Role.PREFILL or self.g[request] == 0, "has its token")
            exist = r.input + self.g[request]
            if self.filling[request]:
                if self.m[request] == 0:
                    self.prefilled[request] = 0
                    found = {*self.cache[k], *(done if machine.cache.share_in_batch else ())}
                    m = b * self.run_of(machine, request, found, (exist - 1) // b)
                    self.m[request] = m
                    self.matched.append(request)
                    self.counts["hit_tokens"] += m
                    hits += [(request, m)] if m else []
                    # From nothing the step would run c + m tokens.
                    found_steps += cost.prefill_sq * ((c + m) ** 2 - c * c - 2 * m * c) - cost.prefill_kv * m
                    found_tokens += m
                m = self.m[request]
                self.counts["recomputed_tokens"] += sum(place < self.had[request] for place in range(m, m + c))
                need(1 <= c <= exist - m and (rules.chunked_prefill or c == exist - m), "tokens")
                steps += cost.prefill_sq * (c * c + 2 * m * c) + cost.prefill_kv * m + cost.prefill_req
                prefill += c
                fills += 1
            else:
                m = self.m[request]
                need(c == 1, "decode")
                steps += cost.decode_kv * m + cost.decode_req
                decodes += 1
            after[request] = m + c
            done += self.whole(machine, request, m + c)[len(self.whole(machine, request, m)) :]
        tokens = sum(c for _, c in run)
        need(tokens <= limits.batch_tokens and prefill <= limits.prefill_tokens, "budget")
        need(limits.batch_requests is None or len(run) <= limits.batch_requests, "runs")
        need(rules.hybrid or not (fills and decodes), "hybrid")
        linear = max(base + slope * tokens for base, slope in ((cost.base, cost.token), *cost.pieces))
        bare = max(base + slope * (tokens + found_tokens) for base, slope in ((cost.base, cost.token), *cost.pieces))
        self.counts["saved_ps"] += bare - linear + found_steps
        end = self.now + linear + steps + cost.cpu_batch
        self.open[k] = Open(end, after, done)
        self.need_memory(k)
        for request in after:
            self.ran_until[request] = end
            # A decode step ends what a copy layer by layer saves.
            self.prefilled[request] = self.prefilled[request] + end - self.now if self.filling[request] else 0
        self.load[k] += end - self.now
        self.counts["batches"] += 1
        self.counts["computed_tokens"] += tokens
        self.counts["prefill_tokens"] += prefill
        self.decoding.append(not (fills or evict or drop))
        self.batches.append(Started(self.now, end, tuple(run), tuple(evict), k, tuple(hits), tuple(drop)))

    def end_batch(self, k: int) -> None:
        opened = self.open[k]
        assert opened is not None
        self.open[k] = None
        self.cache[k] |= frozenset(opened.done)
        for request, tokens in opened.after.items():
            self.m[request] = tokens
            self.had[request] = max(self.had[request], tokens)
            r = self.instance.requests[request]
            if tokens < r.input + self.g[request]:
                continue
            if self.g[request] == 0:
                self.first[request] = self.now
            else:
                self.gaps.append(self.now - self.last[request])
            self.g[request] += 1
            self.filling[request] = False
            self.last[request] = self.now
            if self.g[request] == r.output:
                self.finished[request] = True
                self.m[request] = 0
                self.abort(request)

    # Moves -------------------------------------------------------------------------------------------------

    def start_move(self, request: int, source: int, target: int, drop: Sequence[tuple[int, int]] = ()) -> None:
        self.need_way(request, source, target)
        other = self.machines[target]
        self.drop(target, drop)
        b = other.limits.kv_block
        pinned = b * self.run_of(other, request, self.cache[target], self.m[request] // b)
        move = Copying(request, source, target, self.now, tuple(drop), pinned, pinned, position=self.started_moves)
        self.started_moves += 1
        self.copies.append(move)
        self.start_stage(move)

    def need_way(self, request: int, source: int, target: int) -> None:
        """Require what a move needs, whatever is dropped for it."""
        need(request < len(self.where) and max(source, target) < len(self.machines), "unknown")
        need(source != target and self.where[request] == source, "not there")
        need(self.m[request] >= 1 and self.ran_until[request] <= self.now, "nothing to move")
        need(self.copying(request) is None, "moves already")
        one, other, link = self.machines[source], self.machines[target], self.instance.links
        forced = one.role is Role.PREFILL and self.g[request] >= 1 and other.role is not Role.PREFILL
        need(one.rules.migration or forced, "migration")
        taken = any((each.source, each.target) == (source, target) for each in self.copies)
        need(not (link.exclusive and taken), "link")

    def start_stage(self, move: Copying) -> None:
        link = self.instance.links
        move.last = not link.live or len(move.stages) + 1 == link.stages or self.decide(move, len(move.stages))
        need(not (move.last and self.ran_until[move.request] > self.now), "last stage")
        copied = self.m[move.request] - move.reached
        move.sent += copied
        move.reached += copied
        saved = self.prefilled[move.request] if link.layerwise and not move.stages else 0
        move.due = self.now + max(link.base_ps, link.base_ps + link.kv_ps * copied - saved)

    def end_stage(self, move: Copying) -> None:
        move.stages.append(self.now)
        if not move.last:
            return
        self.copies.remove(move)
        self.where[move.request] = move.target
        self.prefilled[move.request] = 0
        machine = self.machines[move.target]
        self.cache[move.target] |= frozenset(self.whole(machine, move.request, self.m[move.request]))
        self.counts["moves"] += 1
        self.counts["moved_tokens"] += move.sent
        self.keep(move, aborted=False)

    def abort(self, request: int) -> None:
        move = self.copying(request)
        if move is not None:
            need(not move.last, "it may not end now")
            self.copies.remove(move)
            self.keep(move, aborted=True)

    def keep(self, move: Copying, *, aborted: bool) -> None:
        stages = tuple(move.stages) if aborted or len(move.stages) > 1 else ()
        document = Move(
            move.request, move.source, move.target, move.start, self.now, move.drop, stages, aborted=aborted
        )
        self.moves.append((move.position, document))

    # Time --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let end what ends now: batches, then stages of moves, of which the next may end at once."""
        for k, opened in enumerate(self.open):
            if opened is not None and opened.end == self.now:
                self.end_batch(k)
        self.settle_moves()

    def settle_moves(self) -> None:
        while ending := [each for each in self.copies if each.due == self.now]:
            for each in ending:
                self.end_stage(each)
            for each in ending:
                if each in self.copies:
                    self.start_stage(each)

    def need_room(self) -> None:
        """What is copied must fit the batches under way."""
        for k, opened in enumerate(self.open):
            if opened is not None:
                self.need_memory(k)

    @property
    def over(self) -> bool:
        return all(self.finished) and not self.copies

    def next_event(self) -> int | None:
        times = [request.arrival_ps for request in self.instance.requests]
        times += [opened.end for opened in self.open if opened is not None] + [each.due for each in self.copies]
        return min((time for time in times if time > self.now), default=None)

    def schedule(self) -> Schedule:
        routes = tuple(self.routes) if self.instance.is_distributed else ()
        moves = tuple(move for _, move in sorted(self.moves, key=lambda x: x[0]))
        return Schedule(tuple(batch.stated() for batch in self.batches), routes, moves)

    def repeated(self) -> Schedule:
        """Return the schedule with each machine's equal decode batches, one right after the other, as one."""
        found: list[Batch] = []
        latest: dict[int, int] = {}
        for batch, decoding in zip(self.schedule().batches, self.decoding, strict=True):
            before = latest.get(batch.replica)
            if decoding and before is not None:
                earlier = found[before]
                if earlier.end_ps == batch.start_ps and set(earlier.run) == set(batch.run):
                    found[before] = replace(earlier, end_ps=batch.end_ps, repeat=earlier.repeat + 1)
                    continue
            found.append(batch)
            if decoding:
                latest[batch.replica] = len(found) - 1
            else:
                latest.pop(batch.replica, None)
        return replace(self.schedule(), batches=tuple(found))

    @property
    def routes(self) -> list[int]:
        """Where requests were routed to: where they ran first, before any move."""
        return self._routes

    def with_routes(self, routes: Sequence[int]) -> World:
        self._routes = list(routes)
        return self

    def metrics(self) -> dict[str, Any]:
        requests = self.instance.requests
        waits = [end - r.arrival_ps for end, r in zip(self.first, requests, strict=True)]
        stays = [end - r.arrival_ps for end, r in zip(self.last, requests, strict=True)]
        objectives = {
            "makespan": max(batch.end_ps for batch in self.batches) - min(r.arrival_ps for r in requests),
            "mean_ttft": sum(waits),
            "max_ttft": max(waits),
            "mean_e2e": sum(stays),
            "max_e2e": max(stays),
            "weighted_e2e": sum(r.weight * stay for r, stay in zip(requests, stays, strict=True)),
            "slo_misses": sum(
                r.slo_e2e_ps is not None and stay > r.slo_e2e_ps for r, stay in zip(requests, stays, strict=True)
            ),
            "max_load": max(self.load),
            "p99_tbt": sorted(self.gaps)[-(-99 * len(self.gaps) // 100) - 1] if self.gaps else 0,
        }
        return {"objectives": objectives, **self.counts, "load_ps": self.load}


def world_of(instance: Instance, routes: Sequence[int]) -> World:
    return World(instance, routes).with_routes(routes)


def judged(instance: Instance, schedule: Schedule) -> dict[str, Any] | str:
    """Return the metrics of a legal schedule, or the first rule that it breaks."""
    try:
        return _replayed(instance, schedule).metrics()
    except IllegalError as error:
        return str(error)


def _replayed(instance: Instance, schedule: Schedule) -> World:
    routes = schedule.routes
    if instance.is_distributed:
        need(len(routes) == len(instance.requests) and max(routes) < len(instance.machines), "routes")
    else:
        need(not routes, "routes")
        routes = (0,) * len(instance.requests)
    world = world_of(instance, routes)
    moves = schedule.moves

    def is_last(move: Copying, stage: int) -> bool:
        stated = moves[move.position]
        return not stated.aborted and stage == max(1, len(stated.stages_ps)) - 1

    world.decide = is_last
    keys = [(batch.start_ps, batch.replica) for batch in schedule.batches]
    need(keys == sorted(keys), "order of batches")
    need(all(batch.replica < len(instance.machines) for batch in schedule.batches), "machines")
    starts = [move.start_ps for move in moves]
    need(starts == sorted(starts), "order of moves")
    for stated in moves:
        need(not stated.stages_ps or stated.aborted or stated.stages_ps[-1] == stated.end_ps, "stages")
    pending = sorted({*starts, *(start for start, _ in keys)})
    while True:
        following = [
            time for time in (world.next_event(), next((t for t in pending if t > world.now), None)) if time is not None
        ]
        if not following:
            break
        world.now = min(following)
        world.settle()
        for move in moves:
            if move.start_ps == world.now:
                world.start_move(move.request, move.source, move.target, move.drop)
                world.settle_moves()
        world.need_room()
        for stated_batch in schedule.batches:
            if stated_batch.start_ps == world.now:
                need(stated_batch.repeat == 1, "repeats are not judged")
                world.start_batch(stated_batch.replica, stated_batch.run, stated_batch.evict, stated_batch.drop)
                found = world.batches[-1]
                hits = [pair for pair in stated_batch.hits if pair[1]]
                need(len(dict(stated_batch.hits)) == len(stated_batch.hits), "hit twice")
                need({request for request, _ in stated_batch.hits} <= set(world.matched), "hit without a fill")
                need(sorted(hits) == sorted(found.hits), "hits")
                need(stated_batch.end_ps == found.end_ps, "end of a batch")
    need(world.over, "unfinished")
    for stated_move, found_move in zip(moves, world.schedule().moves, strict=True):
        need(stated_move.end_ps == found_move.end_ps and stated_move.aborted == found_move.aborted, "end of a move")
        need((stated_move.stages_ps or _single(stated_move)) == (found_move.stages_ps or _single(found_move)), "stages")
    return world


def _single(move: Move) -> tuple[int, ...]:
    return () if move.aborted else (move.end_ps,)


# Decisions -----------------------------------------------------------------------------------------------------


def droppable(world: World, k: int) -> list[tuple[int, int]]:
    """Name each cached block of a machine once."""
    found: dict[Block, tuple[int, int]] = {}
    for request in range(len(world.tokens)):
        for number, block in enumerate(world.cacheable(world.machines[k], request)):
            if block in world.cache[k]:
                found.setdefault(block, (request, number))
    return list(found.values())


def attempts(world: World, action: Callable[..., None], *given: Any, **named: Any) -> World | None:
    """Return a world in which something has been done, None if it is illegal."""
    other = world.clone()
    try:
        action(other, *given, **named)
    except IllegalError:
        return None
    return other


def random_schedule(instance: Instance, rng: random.Random, most: int = 120) -> World | None:
    """Take random decisions, each legal; None if they lead nowhere."""
    targets = [k for k, machine in enumerate(instance.machines) if machine.role is not Role.DECODE]
    world = world_of(instance, [rng.choice(targets) for _ in instance.requests])
    world.decide = lambda _, stage: stage > 0 and rng.random() < 0.5
    eager = rng.random() < 0.5
    for _ in range(most):
        if world.over:
            return world
        following = world.next_event()
        if following is None or (world.now >= 0 and rng.random() < 0.05):
            following = world.now + 1 if following is None else min(following, world.now + rng.randint(1, 5))
        world.now = following
        try:
            world.settle()
        except IllegalError:
            return None  # the last stage may not start
        for _ in range(2 if eager else rng.randint(0, 2)):
            world = _random_move(world, rng) or world
        if attempts(world, World.need_room) is None:
            return None  # the next stage of a move finds no room
        for k in range(len(instance.machines)):
            if world.open[k] is None:
                for _ in range(8):
                    found = _random_batch(world, k, rng)
                    if found is not None:
                        world = found
                        break
    return None


def _some_drop(world: World, k: int, rng: random.Random) -> list[tuple[int, int]]:
    blocks = droppable(world, k)
    if not blocks or rng.random() < 0.5:
        return []
    return [block for block in blocks if rng.random() < rng.choice([0.3, 1.0])]


def _random_move(world: World, rng: random.Random) -> World | None:
    request = rng.randrange(len(world.where))
    source, target = world.where[request], rng.randrange(len(world.machines))
    drop = _some_drop(world, target, rng)

    def act(other: World) -> None:
        other.start_move(request, source, target, drop)
        other.settle_moves()
        other.need_room()

    return attempts(world, act)


def _random_batch(world: World, k: int, rng: random.Random) -> World | None:
    evict = [r for r in range(len(world.where)) if world.where[r] == k and world.m[r] and rng.random() < 0.15]
    run = []
    for request in rng.sample(range(len(world.where)), len(world.where)):
        if world.where[request] != k or request in evict or world.finished[request] or rng.random() < 0.2:
            continue
        missing = world.instance.requests[request].input + world.g[request] - world.m[request]
        run.append((request, rng.randint(1, max(1, missing)) if world.filling[request] and rng.random() < 0.5 else 0))
    drop = _some_drop(world, k, rng)

    def act(other: World) -> None:
        # 0 stands for all tokens that are missing after the match: found by trying.
        other.start_batch(k, [(r, c or _all_of(other, k, r, run, drop, evict)) for r, c in run], evict, drop)

    return attempts(world, act)


def _all_of(world: World, k: int, request: int, run: Any, drop: Any, evict: Any) -> int:
    if not world.filling[request]:
        return 1
    machine, exist = world.machines[k], world.instance.requests[request].input + world.g[request]
    if world.m[request]:
        return exist - world.m[request]
    dropped = {world.block(machine, *pair) for pair in drop}
    b = machine.limits.kv_block
    found = b * world.run_of(machine, request, world.cache[k] - dropped, (exist - 1) // b)
    return exist - found


def decisions(world: World) -> Iterator[World]:
    """Yield the world after every legal choice of moves and batches at this moment, also after none."""
    requests = range(len(world.where))

    def with_moves(now: World, after: int) -> Iterator[World]:
        yield now
        for request, target in product(requests, range(len(now.machines))):
            if request * len(now.machines) + target < after:
                continue
            try:
                now.need_way(request, now.where[request], target)
            except IllegalError:
                continue
            for drop in subsets(droppable(now, target)):
                for last in (True, False) if now.instance.links.live else (True,):
                    found = attempts(now, _begin, request, target, drop, last=last)
                    if found is not None:
                        yield from with_moves(found, request * len(now.machines) + target + 1)

    def with_batches(now: World, k: int) -> Iterator[World]:
        if k == len(now.machines):
            yield now
            return
        yield from with_batches(now, k + 1)
        if now.open[k] is None:
            for found in every_batch(now, k):
                yield from with_batches(found, k + 1)

    for moved in with_moves(world, 0):
        if attempts(moved, World.need_room) is not None:
            yield from with_batches(moved, 0)


def _begin(world: World, request: int, target: int, drop: Sequence[tuple[int, int]], *, last: bool) -> None:
    world.decide = lambda _, stage: last or stage > 0
    world.start_move(request, world.where[request], target, drop)
    world.settle_moves()


def subsets(items: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def every_batch(world: World, k: int) -> Iterator[World]:
    """Yield the world after every legal batch of a machine that starts now."""
    here = [r for r, at in enumerate(world.where) if at == k and not world.finished[r] and not world.is_leaving(r)]
    if not here:
        return
    shares = world.machines[k].cache.mode is not CacheMode.NONE and world.machines[k].cache.share_in_batch
    for evict in subsets([r for r in here if world.m[r]]):
        others = [r for r in here if r not in evict]
        for drop in subsets(droppable(world, k)):
            roomy = attempts(world, World.make_room, k, evict, drop)
            if roomy is None:
                continue
            for chosen in subsets(others):
                if not chosen:
                    continue
                counts = []
                for r in chosen:
                    missing = world.instance.requests[r].input + world.g[r] - world.m[r]
                    counts.append(range(1, missing + 1) if world.filling[r] else (1,))
                for tokens in product(*counts):
                    run = list(zip(chosen, tokens, strict=True))
                    orders = permutations(run) if shares else [tuple(run)]
                    for order in orders:
                        found = attempts(roomy, World.fill_batch, k, order, evict, drop)
                        if found is not None:
                            yield found


MISSES, LOAD = "slo_misses", "max_load"


def _cost(world: World, objective: str) -> tuple[int, ...]:
    """Return what a moment has cost, of which the largest component, or for misses the last, bounds the objective.

    Requests arrive at 0, so a latency grows until the token that ends it has come, and it is the same future from two
    moments that differ in history alone: less of every component makes the other superfluous.
    """
    ends = [last if done else world.now for last, done in zip(world.last, world.finished, strict=True)]
    firsts = [first if g else world.now for first, g in zip(world.first, world.g, strict=True)]
    requests = world.instance.requests
    percent = objective.partition("_")[0].removeprefix("p")
    match objective:
        case "makespan" | "max_e2e":
            return (max(ends),)
        case "max_ttft":
            return (max(firsts),)
        case "mean_e2e":
            return (sum(ends),)
        case "mean_ttft":
            return (sum(firsts),)
        case "weighted_e2e":
            return (sum(request.weight * end for request, end in zip(requests, ends, strict=True)),)
        case "max_load":
            return tuple(world.load)
        case "slo_misses":
            late = [
                request.slo_e2e_ps is not None and end > request.slo_e2e_ps
                for request, end in zip(requests, ends, strict=True)
            ]
            return (world.now, sum(late))
        case _:
            values = sorted(ends if objective.endswith("e2e") else firsts)
            return (values[-(-int(percent) * len(values) // 100) - 1],)


def best(instance: Instance, objective: str, most: int = 5_000) -> World:
    """Return a schedule of least value: every legal one is tried.

    Batches and moves start when something ends, or arrives: starting later than that changes no order of events, and
    improves nothing. If not all requests arrive at 0, the objective is the makespan, a load or a sum of latencies:
    these are what `_cost` says, less what all schedules have in common. Raises `TooManyError` after ``most`` decisions.
    """
    late = any(request.arrival_ps for request in instance.requests)
    assert not late or objective in {"makespan", "mean_e2e", "mean_ttft", "max_load"}
    targets = [k for k, machine in enumerate(instance.machines) if machine.role is not Role.DECODE]
    order, added = count(), count()
    queue: list[tuple[int, int, tuple[int, ...], World]] = []
    seen: dict[object, list[tuple[int, ...]]] = {}

    def add(world: World) -> None:
        if next(added) == most:
            raise TooManyError
        cost, key = _cost(world, objective), _key(world)
        known = seen.setdefault(key, [])
        if not any(all(map(le, other, cost)) for other in known):
            known[:] = [other for other in known if not all(map(le, cost, other))]
            known.append(cost)
            heapq.heappush(queue, (cost[-1] if objective == MISSES else max(cost), next(order), cost, world))

    for routes in product(targets, repeat=len(instance.requests)):
        world = world_of(instance, routes)
        world.now = 0
        for chosen in decisions(world):
            add(chosen)
    while True:
        *_, cost, world = heapq.heappop(queue)
        if world.over:
            return world
        if cost not in seen[_key(world)]:
            continue
        following = world.next_event()
        if following is None:
            continue
        world.now = following
        try:
            world.settle()
        except IllegalError:
            continue
        if world.over:
            add(world)
        else:
            for chosen in decisions(world):
                add(chosen)


def _key(world: World) -> object:
    """Return all that decides the future; when it is only if a request is still to arrive."""
    now = world.now
    return (
        now if any(request.arrival_ps > now for request in world.instance.requests) else None,
        tuple(world.where), tuple(world.g), tuple(world.m), tuple(world.filling), tuple(world.finished),
        tuple(world.prefilled) if world.instance.links.layerwise else (),
        tuple(world.cache), tuple(max(0, end - now) for end in world.ran_until),
        tuple((o.end - now, tuple(sorted(o.after.items())), tuple(o.done)) if o else None for o in world.open),
        tuple(
            (c.request, c.source, c.target, c.pinned, c.reached, c.due - now, c.last, len(c.stages))
            for c in world.copies
        ),
    )  # fmt: skip
