"""The order of events of several machines, and the routes of their requests.

Machines only meet in moves. At one instant batches end, moves end, moves start (in the order of the schedule, after the
later stages of those under way), and batches start. A move that takes no time, and a batch that takes none, end before
the next event. So what is copied to a machine has to fit the batch under way there when all moves of the instant have
started.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from itertools import count

from optsched.check.cluster.contents import Contents
from optsched.check.cluster.machine import Machine, Part
from optsched.check.cluster.memory import Memory
from optsched.check.cluster.moves import Moves
from optsched.check.cluster.record import Record, State, Underway
from optsched.check.problem import problems_of
from optsched.model.cluster import CacheMode, Role
from optsched.model.instance import Instance
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule


class _Phase(IntEnum):
    """Events of one instant in their order; those after a batch's start clean up."""

    BATCH_END = 0
    MOVE_END = 1
    NEXT_STAGE = 2
    MOVE_START = 3
    ROOM = 4
    BATCH_START = 5
    ABORT = 6


class ClusterReplay:
    """Follows a schedule on several machines, or on one with a cache, and notes what breaks a rule.

    Parameters
    ----------
    instance, restrictions
        The problem.
    """

    def __init__(self, instance: Instance, restrictions: Restrictions) -> None:
        self.instance = instance
        problems, machines = problems_of(instance, restrictions), instance.machines
        self._queue = problems[0].queue
        self.record = Record(requests=len(instance.requests))
        contents: dict[tuple[int, CacheMode], Contents] = {}
        self.machines: list[Machine] = []
        for index, (machine, problem) in enumerate(zip(machines, problems, strict=True)):
            key = problem.limits.kv_block, machine.cache.mode
            if key not in contents:
                contents[key] = Contents(instance, *key)
            memory = Memory(contents[key], machine.cache.share_in_batch)
            self.machines.append(Machine(index, problem, machine.role, memory, self.record))
        self._moves = Moves(
            instance.links, [machine.rules.migration for machine in machines], self.machines, self.record
        )
        self._events: list[tuple[int, int, int, Callable[[int], None]]] = []
        self._order = count()

    def play(self, schedule: Schedule) -> None:
        """Replay a schedule."""
        self._route(schedule)
        self._expect_moves(schedule)
        self._expect_batches(schedule)
        while self._events:
            now_ps, _, _, happen = heapq.heappop(self._events)
            happen(now_ps)
            while self.record.aborts:
                self._moves.abort(*self.record.aborts.pop())
        self._require_completion()

    def _at(self, time_ps: int, phase: _Phase, happen: Callable[[int], None]) -> None:
        heapq.heappush(self._events, (time_ps, phase, next(self._order), happen))

    def _note(self, text: str) -> None:
        self.record.violations.append(text)

    # Before the first event ------------------------------------------------------------------------------------

    def _route(self, schedule: Schedule) -> None:
        """Put every request where it is routed to."""
        requests, routes, last = self.instance.requests, schedule.routes, len(self.machines) - 1
        if not self.instance.is_distributed:
            if routes:
                self._note(f"routes has {len(routes)} machines, but there is only one, to which nothing is routed")
            routes = (0,) * len(requests)
        elif len(routes) != len(requests):
            self._note(f"routes has {len(routes)} machines, one for each of the {len(requests)} requests is required")
        for index, (request, route) in enumerate(zip(requests, routes, strict=False)):
            if route > last:
                self._note(f"request {index} is routed to machine {route}, but machines are numbered from 0 to {last}")
                continue
            machine = self.machines[route]
            if machine.role is Role.DECODE:
                self._note(f"request {index} is routed to machine {route}, which has role decode")
            self.record.states[index] = State(index, request, route, machine.memory.hold_of(index))

    def _expect_moves(self, schedule: Schedule) -> None:
        before = 0
        for number, move in enumerate(schedule.moves):
            if move.start_ps < before:
                self._note(f"move {number}: starts at {move.start_ps} ps, before the move listed before it")
            before = max(before, move.start_ps)
            self._at(move.start_ps, _Phase.MOVE_START, partial(self._start_move, schedule, number))
            for machine in (move.source, move.target):
                if machine < len(self.machines):
                    self.machines[machine].events += [move.start_ps, move.end_ps, *move.stages_ps]
        for each in self.machines:
            each.events = sorted(set(each.events))

    def _expect_batches(self, schedule: Schedule) -> None:
        before = 0, 0
        for number, batch in enumerate(schedule.batches):
            at = batch.start_ps, batch.replica
            if batch.replica >= len(self.machines):
                self._note(
                    f"batch {number}: runs on machine {batch.replica}, but machines are numbered from 0 to "
                    f"{len(self.machines) - 1}"
                )
                continue
            if at < before:
                self._note(
                    f"batch {number}: starts at {at[0]} ps on machine {at[1]}, which is before the start of the batch "
                    f"listed before it, at {before[0]} ps on machine {before[1]}"
                )
            before = max(before, at)
            part = Part(number, batch, batch.start_ps, batch.repeat)
            self._at(batch.start_ps, _Phase.BATCH_START, partial(self._start_batch, part))

    # Events ----------------------------------------------------------------------------------------------------

    def _start_batch(self, part: Part, _: int) -> None:
        machine = self.machines[part.batch.replica]
        rest = machine.start(part)
        self._at(machine.end_ps, _Phase.BATCH_END, partial(self._end_batch, machine))
        if rest is not None:
            self._at(rest.start_ps, _Phase.BATCH_START, partial(self._start_batch, rest))

    @staticmethod
    def _end_batch(machine: Machine, now_ps: int) -> None:
        if machine.end_ps <= now_ps:
            machine.end()

    def _start_move(self, schedule: Schedule, number: int, now_ps: int) -> None:
        move = self._moves.start(number, schedule.moves[number])
        if move is None:
            return
        if move.aborted:
            self._at(max(now_ps, move.end_ps), _Phase.ABORT, partial(self._require_abort, move))
        self._start_stage(move, now_ps)

    def _start_stage(self, move: Underway, now_ps: int) -> None:
        if not self._is_under_way(move):
            return
        self._moves.start_stage(move, now_ps)
        self._at(now_ps, _Phase.ROOM, lambda _: self._moves.check_room(move))
        if move.stage < len(move.ends):
            end_ps = max(now_ps, move.ends[move.stage])
            self._at(end_ps, _Phase.MOVE_END, partial(self._end_stage, move))

    def _end_stage(self, move: Underway, now_ps: int) -> None:
        if not self._is_under_way(move):
            return
        if move.in_last_stage:
            self._moves.complete(move)
            return
        move.stage += 1
        self._at(now_ps, _Phase.NEXT_STAGE, partial(self._start_stage, move))

    def _require_abort(self, move: Underway, _: int) -> None:
        self._moves.require_abort(move)

    def _is_under_way(self, move: Underway) -> bool:
        return self.record.states[move.request].move is move

    # After the last event --------------------------------------------------------------------------------------

    def _require_completion(self) -> None:
        for index, state in self.record.states.items():
            if not state.finished:
                self._note(
                    f"request {index} is unfinished at the end of the schedule: it has generated {state.generated} "
                    f"tokens and must generate {state.request.output}"
                )
        if self._queue and len(self._queue) != self.record.requests:
            self._note(f"the order has {len(self._queue)} requests, the instance has {self.record.requests}")
        else:
            for machine in self.machines:
                machine.require_queue(self._queue)
