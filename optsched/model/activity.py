"""What each request does over time in a schedule: when it waits, fills, decodes, keeps its KV, and when it loses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from optsched.model.errors import InputError, require_type
from optsched.model.instance import Instance, Request
from optsched.model.schedule import Batch, Schedule
from optsched.model.state import Place, RequestState, decode_work


class Activity(StrEnum):
    """What a request does for a while.

    ``wait``: it has arrived and has no KV. ``keep``: it has KV on a machine and does not run. ``host``: its KV waits on
    the host. ``prefill``: a fill before any eviction. ``refill``: a fill after one, which recomputes. ``decode``: a
    decode step.
    """

    WAIT = "wait"
    KEEP = "keep"
    HOST = "host"
    PREFILL = "prefill"
    REFILL = "refill"
    DECODE = "decode"


class Change(StrEnum):
    """What happens to a request's KV at one moment; ``hit``: the cache had the start of its sequence."""

    EVICT = "evict"
    SWAP_OUT = "swap out"
    SWAP_IN = "swap in"
    HIT = "hit"


STEPS = (Activity.PREFILL, Activity.REFILL, Activity.DECODE)
"""The activities in which tokens run."""


@dataclass(frozen=True, slots=True)
class Span:
    """One activity of a request, from a time on until another.

    Parameters
    ----------
    request
        Its index.
    machine
        Where it runs or has KV; while it waits, the last one where it did, or the one that it is routed to.
    activity
        What it does.
    start_ps, end_ps
        When.
    tokens
        Tokens that it runs in each batch; 0 if it does not run.
    batches
        In how many batches, one after another, it does so; 0 if it does not run.
    generated
        Output tokens that it generates.
    """

    request: int
    machine: int
    activity: Activity
    start_ps: int
    end_ps: int
    tokens: int = 0
    batches: int = 0
    generated: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """One change of a request's KV, at the start of a batch.

    Parameters
    ----------
    request, machine
        Indices of both.
    change
        What happens.
    time_ps
        When.
    tokens
        KV tokens that are lost, moved or found.
    """

    request: int
    machine: int
    change: Change
    time_ps: int
    tokens: int


@dataclass(frozen=True)
class Activities:
    """All that the requests of a schedule do.

    Parameters
    ----------
    spans
        In the order in which they end. Those of one request follow each other without a gap from its arrival to its
        last token.
    marks
        In the order of time.
    """

    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]


def activities(instance: Instance, schedule: Schedule, *, each: bool = False) -> Activities:
    """Return what the requests do in a legal schedule, also of several machines.

    Parameters
    ----------
    instance, schedule
        The problem and the schedule.
    each
        Whether each repeat of a batch has spans of its own.

    Raises
    ------
    InputError
        If the schedule names a request or a machine that the instance does not have.
    """
    require_type("instance", instance, Instance, "an Instance")
    require_type("schedule", schedule, Schedule, "a Schedule")
    walk = _Walk(instance, schedule)
    for position, batch in enumerate(schedule.batches):
        try:
            walk.play(batch, each=each)
        except InputError as error:
            raise error.within(f"schedule.batches[{position}]") from None
    return Activities(tuple(walk.spans), tuple(walk.marks))


class _Follower(RequestState):
    """A request, and where and since when it does nothing."""

    __slots__ = ("evicted", "idle_since", "machine")

    def __init__(self, request: Request, machine: int) -> None:
        super().__init__(request)
        self.machine = machine
        self.idle_since = request.arrival_ps
        self.evicted = False

    @property
    def idle_activity(self) -> Activity:
        """What it does while it does not run."""
        if self.swapped:
            return Activity.HOST
        return Activity.KEEP if self.cached else Activity.WAIT


class _Walk:
    """Plays the batches of a schedule in the order in which they start.

    A request is on one machine at a time, and its batches do not overlap, so this is the order of what it does.
    """

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self.spans: list[Span] = []
        self.marks: list[Mark] = []
        self._machines = instance.machines
        routes = schedule.routes or (0,) * len(instance.requests)
        if len(routes) != len(instance.requests):
            raise InputError("schedule.routes", list(routes), f"{len(instance.requests)}, one for each request")
        self._states = [_Follower(each, machine) for each, machine in zip(instance.requests, routes, strict=True)]

    def play(self, batch: Batch, *, each: bool) -> None:
        """Note what one batch and its repeats do."""
        if batch.replica >= len(self._machines):
            raise InputError("replica", batch.replica, f"an integer from 0 to {len(self._machines) - 1}")
        changes = {Place.NOWHERE: Change.EVICT, Place.HOST: Change.SWAP_OUT, Place.MACHINE: Change.SWAP_IN}
        for index, place in batch.actions:
            state = self._state(index)
            self._rest(index, batch)
            held = state.cached or state.swapped
            self.marks.append(Mark(index, batch.replica, changes[place], batch.start_ps, held))
            if place is Place.MACHINE:
                state.swap_in()
            elif place is Place.HOST:
                state.swap_out()
            else:
                state.evict()
                state.evicted = True
        hits = dict(batch.hits)
        cached = [self._state(index).cached for index, _ in batch.run]
        ends = list(self._ends(batch, cached)) if each else [batch.end_ps]
        for index, tokens in batch.run:
            self._run(index, tokens, batch, ends, hits.get(index, 0))

    def _state(self, index: int) -> _Follower:
        if index >= len(self._states):
            raise InputError("run", index, f"indices from 0 to {len(self._states) - 1}")
        return self._states[index]

    def _rest(self, index: int, batch: Batch) -> None:
        """Note what a request did until now, if it did not run in the batch right before this one."""
        state = self._states[index]
        if batch.start_ps > state.idle_since:
            span = Span(index, state.machine, state.idle_activity, state.idle_since, batch.start_ps)
            self.spans.append(span)
            state.idle_since = batch.start_ps

    def _run(self, index: int, tokens: int, batch: Batch, ends: Sequence[int], found: int) -> None:
        state = self._states[index]
        self._rest(index, batch)
        state.machine = batch.replica
        fill = Activity.REFILL if state.evicted else Activity.PREFILL
        activity = Activity.DECODE if state.decoding else fill
        if found and not state.cached:
            self.marks.append(Mark(index, batch.replica, Change.HIT, batch.start_ps, found))
            state.cached = found
        before = state.generated
        if batch.repeat > 1:
            state.decode(batch.repeat)
        else:
            state.run(tokens)
        start, repeats = batch.start_ps, batch.repeat // len(ends)
        generated = (state.generated - before) // len(ends)
        for end in ends:
            self.spans.append(Span(index, batch.replica, activity, start, end, tokens, repeats, generated))
            start = end
        state.idle_since = batch.end_ps

    def _ends(self, batch: Batch, cached: Sequence[int]) -> Iterator[int]:
        """Yield when each repeat of a batch ends."""
        first, slower = decode_work(cached).pace_ps(self._machines[batch.replica].cost, batch.considered)
        clock = batch.start_ps
        for number in range(batch.repeat - 1):
            clock += first + number * slower
            yield clock
        yield batch.end_ps
