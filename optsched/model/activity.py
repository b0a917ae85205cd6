"""What each request does over time in a schedule: when it waits, fills, decodes, keeps its KV, and when it loses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from optsched.model.errors import InputError, require_type
from optsched.model.instance import Instance, Request
from optsched.model.schedule import Batch, Move, Schedule
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
    """What happens to a request's KV at one moment.

    ``hit``: the cache had the start of its sequence. ``move out``, ``move in``: a move starts at its source, and ends
    at its target; a move that is aborted is neither.
    """

    EVICT = "evict"
    SWAP_OUT = "swap out"
    SWAP_IN = "swap in"
    HIT = "hit"
    MOVE_OUT = "move out"
    MOVE_IN = "move in"


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
        Where it runs or has KV; while it moves, the source; while it waits, the last one where it did, or the one that
        it is routed to.
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
    """One change of a request's KV, at the start of a batch, or where a move starts or ends.

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

    @property
    def places(self) -> set[tuple[int, int]]:
        """``(machine, request)`` of all requests that do anything on a machine, or whose KV changes there."""
        return {(span.machine, span.request) for span in self.spans} | {
            (mark.machine, mark.request) for mark in self.marks
        }


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
    for _, order, place, ends in sorted(_events(schedule)):
        try:
            if order == _BATCH:
                walk.play(schedule.batches[place], each=each)
            elif ends:
                walk.move_in(schedule.moves[place])
            else:
                walk.move_out(schedule.moves[place])
        except InputError as error:
            raise error.within(f"schedule.{'batches' if order == _BATCH else 'moves'}[{place}]") from None
    return Activities(tuple(walk.spans), tuple(walk.marks))


_MOVE_END, _MOVE_START, _BATCH = range(3)
"""The order of events at one instant."""


def _events(schedule: Schedule) -> Iterator[tuple[int, int, int, bool]]:
    """Yield the time of each event, its order, its place in the schedule, and whether it is the end of a move."""
    for place, batch in enumerate(schedule.batches):
        yield batch.start_ps, _BATCH, place, False
    for place, move in enumerate(schedule.moves):
        if not move.aborted:
            yield move.start_ps, _MOVE_START, place, False
            # One that takes no time ends right after its start.
            yield move.end_ps, _MOVE_END if move.end_ps > move.start_ps else _MOVE_START, place, True


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
        self._require_machine("replica", batch.replica)
        changes = {Place.NOWHERE: Change.EVICT, Place.HOST: Change.SWAP_OUT, Place.MACHINE: Change.SWAP_IN}
        for index, place in batch.actions:
            state = self._state(index)
            self._rest(index, batch.start_ps)
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

    def move_out(self, move: Move) -> None:
        """Note that a move starts."""
        state = self._state(move.request)
        self._require_machine("source", move.source)
        self.marks.append(Mark(move.request, move.source, Change.MOVE_OUT, move.start_ps, state.cached))

    def move_in(self, move: Move) -> None:
        """Note that a move ends: until then the request was at the source."""
        state = self._state(move.request)
        self._require_machine("target", move.target)
        self._rest(move.request, move.end_ps)
        state.machine = move.target
        self.marks.append(Mark(move.request, move.target, Change.MOVE_IN, move.end_ps, state.cached))

    def _require_machine(self, field: str, machine: int) -> None:
        if machine >= len(self._machines):
            raise InputError(field, machine, f"an integer from 0 to {len(self._machines) - 1}")

    def _state(self, index: int) -> _Follower:
        if index >= len(self._states):
            raise InputError("run", index, f"indices from 0 to {len(self._states) - 1}")
        return self._states[index]

    def _rest(self, index: int, time_ps: int) -> None:
        """Note what a request did until now, if it did not run until then."""
        state = self._states[index]
        if time_ps > state.idle_since:
            self.spans.append(Span(index, state.machine, state.idle_activity, state.idle_since, time_ps))
            state.idle_since = time_ps

    def _run(self, index: int, tokens: int, batch: Batch, ends: Sequence[int], found: int) -> None:
        state = self._states[index]
        self._rest(index, batch.start_ps)
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
