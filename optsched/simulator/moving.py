"""Machines between which requests move: those that prefill and those that decode, or all of them, to balance load.

From one instant to the next machines do not know of each other. An instant is an arrival, the end of a move, a time at
which a router rebalances or machines are polled, or the end of a batch on a machine that is watched: one from which a
request is to leave, or on which one waits for room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from optsched.model.cluster import CacheMode, Role
from optsched.model.errors import shown
from optsched.model.instance import Instance
from optsched.model.schedule import Move, Schedule
from optsched.model.state import Step
from optsched.simulator.machine_run import Instant, MachineRun
from optsched.simulator.replica import Job, Notified, PolicyFailureError, keeps_records
from optsched.simulator.routed import RoutedCluster, has_moves
from optsched.simulator.sight import RecordedView, View

_FEW_BLOCKS = 16
"""A live move stops the request if no more blocks are left to copy, as Llumnix does."""


@dataclass(eq=False)
class _Wish:
    """A request that is to move as soon as there is room, or, if it still decodes, when its batch has ended.

    Parameters
    ----------
    job
        The request.
    source, target
        Machines.
    is_free
        Whether its policy does not see it any more.
    """

    job: Job
    source: int
    target: int
    is_free: bool


@dataclass(eq=False)
class _Transfer:
    """A move that is under way.

    Parameters
    ----------
    wish
        What was wished.
    number
        Its place among all moves.
    start_ps
        When it starts.
    drop
        Blocks that it drops at its target.
    copied
        Tokens that are at the target when the stage ends.
    stages
        When earlier stages have ended.
    is_last
        Whether this is the last stage.
    """

    wish: _Wish
    number: int
    start_ps: int
    drop: Sequence[Step] = ()
    copied: int = 0
    stages: list[int] = field(default_factory=list)
    is_last: bool = False


class MovingCluster(RoutedCluster):
    """All machines and routers, while requests arrive and move (`optsched.simulator.routed.RoutedCluster`)."""

    _runs: Sequence[MachineRun]

    def __init__(self, instance: Instance, *rest: Any, jumps: bool, **others: Any) -> None:
        age = instance.view
        # What is seen later must have been recorded at every change.
        self._records_all = age.delay_ps > 0 and not age.every_ps
        self._recorded: list[tuple[MachineRun, RecordedView]] = []
        super().__init__(instance, *rest, jumps=jumps and not self._records_all, **others)
        self._refuse(instance)
        machines = instance.machines
        self._receivers = [index for index, machine in enumerate(machines) if machine.role is not Role.PREFILL]
        self._receiving = self._views_of(self._receivers)
        self._every = list(range(len(machines)))
        self._all_views = self._views_of(self._every)
        self._period_ps = self._routers[0].rebalance_ps if any(m.rules.migration for m in machines) else 0
        self._poll_ps = age.every_ps
        self._wishes: list[_Wish] = []
        self._under_way: list[tuple[int, int, _Transfer]] = []
        self._live: list[_Transfer] = []
        self._busy: set[tuple[int, int]] = set()
        self._moves: list[Move | None] = []

    def _refuse(self, instance: Instance) -> None:
        """Raise `PolicyFailureError` for what does not cover moves."""
        if has_moves(instance) and any(
            keeps_records(policy) and not isinstance(policy, Notified) for policy in self._policies
        ):
            reason = "the policy keeps records of requests or a plan, and cannot be notified of requests that move"
            raise PolicyFailureError(0, instance.requests[0].arrival_ps, reason)

    def run(self, order: Sequence[int]) -> Schedule:
        """Let all requests arrive, in this order, and all machines finish."""
        coming = deque(order)
        now: int | None = self._requests[order[0]].arrival_ps
        while now is not None:
            self._clock.now_ps = now
            for run in self._runs:
                run.advance(now)
            if self._poll_ps and now % self._poll_ps == 0:
                self._record_views(Instant(now, now - 1))
            self._abort(now, evicted=False)
            self._end_moves(now)
            if self._notifies:
                self._notify()
            while coming and self._requests[coming[0]].arrival_ps == now:
                self._arrive(coming.popleft())
            if self._period_ps and now % self._period_ps == 0:
                self._rebalance(now)
            self._send_on(now)
            self._start_moves(now)
            if self._records_all:
                self._record_views(Instant(now, now))
            for machine in self._watched():
                self._runs[machine].advance(now + 1)
            self._abort(now, evicted=True)
            if self._records_all:
                self._record_views(Instant(now + 1, now + 1))
            now = self._next_instant(now, coming)
        schedule = self._schedule()
        if self._wishes:
            wish = self._wishes[0]
            raise PolicyFailureError(wish.job.index, self._clock.now_ps, f"machine {wish.target} never has room for it")
        return Schedule(schedule.batches, schedule.routes, tuple(move for move in self._moves if move))

    def _views_of(self, machines: Sequence[int]) -> Sequence[View]:
        age = self._instance.view
        if not age.is_aged:
            return super()._views_of(machines)
        views = [RecordedView(place, self._runs[machine], self._clock, age) for place, machine in enumerate(machines)]
        self._recorded += [(self._runs[machine], view) for machine, view in zip(machines, views, strict=True)]
        return views

    def _record_views(self, at: Instant) -> None:
        """Record what machines are, for routers that see it later."""
        for run, view in self._recorded:
            view.record(run, at)

    def _watched(self) -> list[int]:
        """Return the machines that have to stop at the end of each batch, in order."""
        if self._records_all:
            return self._every
        watched = {machine for machine, run in enumerate(self._runs) if run.prefills}
        for wish in self._wishes:
            watched.add(wish.target if wish.is_free else wish.source)
        watched.update(transfer.wish.source for transfer in self._live)
        return sorted(watched)

    def _next_instant(self, now_ps: int, coming: Sequence[int]) -> int | None:
        """Return when something happens next that concerns several machines; None if nothing does."""
        times = [self._requests[coming[0]].arrival_ps] if coming else []
        times += [end for end, *_ in self._under_way[:1]]
        watched = [self._runs[machine] for machine in self._watched()]
        times += [max(now_ps, run.left[0][0]) for run in watched if run.left]
        times += [run.now_ps for run in watched if run.now_ps > now_ps]
        # While nothing else can happen, no machine is looked at any more.
        if times or any(run.now_ps > now_ps or run.can_go_on for run in self._runs):
            periods = [period for period in (self._period_ps, self._poll_ps) if period]
            times += [now_ps - now_ps % period + period for period in periods]
        return min(times, default=None)

    # Moves ------------------------------------------------------------------------------------------------------

    def _rebalance(self, now_ps: int) -> None:
        """Let the first router choose requests that migrate."""
        with self._router_code:
            pairs = list(self._routers[0].rebalance(self._all_views))
        for source, target in pairs:
            if not (self._machines[source].rules.migration and source in self._receivers and target in self._receivers):
                continue
            job = self._runs[source].shortest()
            wished = {wish.job.index for wish in (*self._wishes, *(each.wish for each in self._live))}
            if job is None or job.index in wished or not self._machines[target].has_room(job.request):
                continue
            self._wish(_Wish(job, source, target, is_free=False))

    def _send_on(self, now_ps: int) -> None:
        """Choose the target of each request that has its first token where only prefills run."""
        for source, run in enumerate(self._runs):
            while run.left and run.left[0][0] <= now_ps:
                _, job = run.left.popleft()
                self._wish(_Wish(job, source, self._target(job), is_free=True))

    def _target(self, job: Job) -> int:
        """Return the machine that a router chooses for a request that must move."""
        places = [place for place, at in enumerate(self._receivers) if self._machines[at].has_room(job.request)]
        router = self._routers[self._sender[job.index]]
        with self._router_code:
            place = router.move(self._requests[job.index], [self._receiving[place] for place in places])
        if place not in places:
            reason = f"the router moves it to {shown(place)}, expected one of {places}, where there is room for it"
            raise PolicyFailureError(job.index, self._clock.now_ps, reason)
        return self._receivers[place]

    def _wish(self, wish: _Wish) -> None:
        self._wishes.append(wish)
        if wish.is_free:
            self._runs[wish.target].expected[wish.job.index] = wish.job

    def _start_moves(self, now_ps: int) -> None:
        """Start the moves for which there is room, of each target in the order in which they were wished."""
        full: set[int] = set()
        left = []
        for wish in self._wishes:
            source, target = self._runs[wish.source], self._runs[wish.target]
            if wish.is_free and wish.target in full:
                left.append(wish)
                continue
            if not wish.is_free:
                if source.is_under_way(wish.job.index, now_ps):
                    left.append(wish)
                    continue
                if source.job(wish.job.index) is None or not wish.job.cached:
                    continue
            pair = wish.source, wish.target
            is_busy = self._instance.links.exclusive and pair in self._busy
            if is_busy or not target.has_room(wish.job, self._needed(wish), Instant(now_ps, now_ps)):
                if wish.is_free:
                    full.add(wish.target)
                    left.append(wish)
                continue
            self._start(wish, now_ps)
        self._wishes = left

    def _needed(self, wish: _Wish) -> int:
        """Return the tokens for which the target needs room: with the next one, or all if it goes on running."""
        return wish.job.request.peak_tokens if self._is_live(wish) else wish.job.cached + 1

    def _is_live(self, wish: _Wish) -> bool:
        links = self._instance.links
        if not links.live or links.stages == 1 or wish.is_free:
            return False
        # A batch that is formed on a cache is not cut short so that it ends before a stage does.
        ends = self._machines[wish.source], self._machines[wish.target]
        return all(machine.cache.mode is CacheMode.NONE for machine in ends)

    def _start(self, wish: _Wish, now_ps: int) -> None:
        """Start a move, and end it if it takes no time."""
        job = wish.job
        is_live = self._is_live(wish)
        self._busy.add((wish.source, wish.target))
        # While it runs it may grow.
        tokens = job.request.peak_tokens if is_live else job.cached
        if not is_live and not wish.is_free:
            self._runs[wish.source].take(job.index, now_ps)
        found, drop = self._runs[wish.target].expect(job, tokens, now_ps)
        transfer = _Transfer(wish, len(self._moves), now_ps, drop, copied=found, is_last=not is_live)
        self._moves.append(None)
        if is_live:
            self._live.append(transfer)
        self._start_stage(transfer, job.cached, now_ps)
        self._end_moves(now_ps)

    def _start_stage(self, transfer: _Transfer, tokens: int, now_ps: int) -> None:
        """Copy what is not copied yet of ``tokens`` tokens."""
        wish = transfer.wish
        prefill = 0 if transfer.stages else self._runs[wish.source].prefill_ps(wish.job)
        end = now_ps + self._instance.links.copy_ps(tokens - transfer.copied, prefill)
        transfer.copied = tokens
        # The next stage may be the last, in which it does not run.
        if not transfer.is_last:
            self._runs[wish.source].fence(wish.job.index, end)
        heappush(self._under_way, (end, transfer.number, transfer))

    def _end_moves(self, now_ps: int) -> None:
        """End the stages whose time has come, and start the next ones."""
        while self._under_way and self._under_way[0][0] <= now_ps:
            _, _, transfer = heappop(self._under_way)
            wish = transfer.wish
            source, target = self._runs[wish.source], self._runs[wish.target]
            if self._moves[transfer.number] is not None:
                continue  # it was aborted
            transfer.stages.append(now_ps)
            if transfer.is_last:
                source.release(wish.job.index, now_ps)
                target.land(wish.job, now_ps)
                self._note(transfer, now_ps, aborted=False)
                continue
            source.unfence(wish.job.index)
            left = wish.job.cached - transfer.copied
            few = left <= _FEW_BLOCKS * self._machines[wish.target].limits.kv_block
            if few or len(transfer.stages) + 1 == self._instance.links.stages:
                source.take(wish.job.index, now_ps)
                transfer.is_last = True
                self._live.remove(transfer)
            self._start_stage(transfer, wish.job.cached, now_ps)

    def _abort(self, now_ps: int, *, evicted: bool) -> None:
        """Abort the moves of requests that have ended now, or that were evicted in a batch that starts now."""
        for transfer in tuple(self._live):
            wish = transfer.wish
            source = self._runs[wish.source]
            job = source.job(wish.job.index)
            has_ended = job is None and source.now_ps <= now_ps
            is_over = job is not None and not job.cached if evicted else has_ended
            if is_over:
                source.unfence(wish.job.index)
                target = self._runs[wish.target]
                del target.expected[wish.job.index]
                target.free(wish.job.index, now_ps)
                self._live.remove(transfer)
                self._note(transfer, now_ps, aborted=True)

    def _note(self, transfer: _Transfer, now_ps: int, *, aborted: bool) -> None:
        """Write down a move that is over."""
        wish = transfer.wish
        self._busy.discard((wish.source, wish.target))
        stages = tuple(transfer.stages) if self._instance.links.live else ()
        self._moves[transfer.number] = Move(
            wish.job.index,
            wish.source,
            wish.target,
            transfer.start_ps,
            now_ps,
            tuple(transfer.drop),
            stages_ps=stages,
            aborted=aborted,
        )
