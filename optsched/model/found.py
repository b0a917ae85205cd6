"""What requests that move find at their targets, of a legal schedule: documents of moves do not say it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator
from enum import IntEnum
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from optsched.model.cluster import CacheMode
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Machine
from optsched.model.schedule import Batch, Move, Schedule


class _Phase(IntEnum):
    """Events of one instant in their order (docs/problem.md, Several machines, Order)."""

    BATCH_ENDS = 0
    MOVE_ENDS = 1
    MOVE_STARTS = 2
    BATCH_STARTS = 3


class _Run(NamedTuple):
    """The latest run of a request: its batch, m before it, and tokens; ``first_ps`` and ``slower_ps`` of repeats."""

    batch: Batch
    before: int
    tokens: int
    first_ps: int
    slower_ps: int

    def held(self, now_ps: int) -> int:
        """Return m when batches that have ended by now count."""
        batch = self.batch
        if batch.end_ps <= now_ps:
            return self.before + self.tokens * batch.repeat
        ended = bisect_right(range(1, batch.repeat), now_ps - batch.start_ps, key=self._span_ps)
        return self.before + self.tokens * ended

    def _span_ps(self, times: int) -> int:
        return times * self.first_ps + times * (times - 1) // 2 * self.slower_ps


def found_by_moves(instance: Instance, schedule: Schedule) -> int:
    """Return how many tokens of requests that move their targets hold already, those of moves that end, in all.

    These are not copied. A machine's cache is the set of its blocks; what they take and what pins them does not matter,
    as the schedule is legal.
    """
    moves = [move for move in schedule.moves if not move.aborted]
    if all(instance.machines[move.target].cache.mode is CacheMode.NONE for move in moves):
        return 0
    follower = _Follower(instance)
    events = sorted(follower.events(schedule), key=lambda event: event[:3])
    for _, _, _, happen in events:
        happen()
    return follower.found


class _Follower:
    """Follows what machines cache, and what requests hold."""

    def __init__(self, instance: Instance) -> None:
        self.found = 0
        self._machines = instance.machines
        self._cached: list[set[Hashable]] = [set() for _ in instance.machines]
        self._open: list[dict[int, _Run]] = [{} for _ in instance.machines]
        self._runs: dict[int, _Run] = {}
        lengths = {node.name: node.tokens for node in instance.prefixes.nodes}
        self._paths = [request.prefix for request in instance.requests]
        self._ends = [list(accumulate(lengths[name] for name in path)) for path in self._paths]

    def events(self, schedule: Schedule) -> Iterator[tuple[int, _Phase, int, Callable[[], None]]]:
        """Yield when what happens, and in which order at one instant."""
        for number, batch in enumerate(schedule.batches):
            yield batch.start_ps, _Phase.BATCH_STARTS, number, partial(self._start, batch)
            yield batch.end_ps, _Phase.BATCH_ENDS, number, partial(self._end, batch.replica)
        for number, move in enumerate(schedule.moves):
            yield move.start_ps, _Phase.MOVE_STARTS, number, partial(self._depart, move)
            if not move.aborted:
                # One that takes no time ends before the next one starts.
                phase = _Phase.MOVE_STARTS if move.start_ps == move.end_ps else _Phase.MOVE_ENDS
                yield move.end_ps, phase, number, partial(self._land, move)

    def _start(self, batch: Batch) -> None:
        at, machine = batch.replica, self._machines[batch.replica]
        self._end(at)
        for index in batch.evict:
            del self._runs[index]
        self._drop(at, batch.drop)
        hits = dict(batch.hits)
        first, slower = self._repeats(batch, machine.cost) if batch.repeat > 1 else (0, 0)
        for index, tokens in batch.run:
            last = self._runs.get(index)
            before = hits.get(index, 0) if last is None else last.held(batch.start_ps)
            self._runs[index] = self._open[at][index] = _Run(batch, before, tokens, first, slower)

    def _repeats(self, batch: Batch, cost: CostModel) -> tuple[int, int]:
        read = sum(self._runs[index].held(batch.start_ps) for index, _ in batch.run)
        runs = len(batch.run)
        steps = cost.batch_ps(runs, runs, read, ())
        return steps + cost.overhead_ps(steps, 0, 0, batch.considered), cost.decode_kv * runs

    def _end(self, at: int) -> None:
        self._publish(at, None)
        self._open[at].clear()

    def _publish(self, at: int, now_ps: int | None) -> None:
        """Cache what a machine's batch has completed by now, or in all."""
        for index, run in self._open[at].items():
            held = run.held(run.batch.end_ps if now_ps is None else now_ps)
            self._cached[at].update(self._blocks(self._machines[at], index, run.before, held))

    def _depart(self, move: Move) -> None:
        at, machine = move.target, self._machines[move.target]
        self._publish(at, move.start_ps)
        self._drop(at, move.drop)
        if not move.aborted:
            cached, found = self._cached[at], 0
            for block in self._blocks(machine, move.request, 0, self._runs[move.request].held(move.start_ps)):
                if block not in cached:
                    break
                found += machine.limits.kv_block
            self.found += found

    def _land(self, move: Move) -> None:
        held = self._runs[move.request].held(move.end_ps)
        self._cached[move.target].update(self._blocks(self._machines[move.target], move.request, 0, held))

    def _drop(self, at: int, drop: tuple[tuple[int, int], ...]) -> None:
        size = self._machines[at].limits.kv_block
        self._cached[at].difference_update(self._name(index, number, size) for index, number in drop)

    def _blocks(self, machine: Machine, index: int, before: int, held: int) -> Iterator[Hashable]:
        """Yield the blocks of a request that are complete with ``held`` tokens and were not before, if cacheable."""
        size, mode, ends = machine.limits.kv_block, machine.cache.mode, self._ends[index]
        path = ends[-1] if ends else 0
        most = {CacheMode.NONE: 0, CacheMode.PREFIX: min(held, path), CacheMode.ALL: held}[mode]
        return (self._name(index, number, size) for number in range(before // size, most // size))

    def _name(self, index: int, number: int, size: int) -> Hashable:
        """Return a name of a block: that of the node which has its last position, or else the request."""
        ends = self._ends[index]
        node = bisect_left(ends, (number + 1) * size)
        return (self._paths[index][node] if node < len(ends) else index), number
