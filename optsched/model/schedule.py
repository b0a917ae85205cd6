"""Schedules: what every batch runs and evicts, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import FailFast

from optsched.model.cost import BatchCost
from optsched.model.display import one_line
from optsched.model.domain import Index, Picoseconds, Tokens, domain
from optsched.model.instance import Instance
from optsched.model.state import Action, MachineState, Place, Step, initial
from optsched.model.table import BatchTable, MachineTable, Tables

Indices = Annotated[tuple[Index, ...], FailFast()]
Pairs = Annotated[tuple[tuple[Index, Index], ...], FailFast()]


@domain
class Batch:
    """One batch, or several in a row that run the same decode steps.

    Parameters
    ----------
    start_ps, end_ps
        When the first starts and the last ends.
    run
        ``(request index, tokens)`` of every run.
    evict
        Indices of the requests that lose their KV cache in it.
    replica
        Index of the machine that runs it.
    repeat
        Number of batches, each right after the one before. More than 1 only if all runs are decode steps, no request
        finishes before the last batch, and none is evicted or swapped.
    swap_out, swap_in
        Indices of the requests whose KV cache leaves for the host, and of those whose KV cache comes back before it.
    considered
        Number of times that the scheduler considers a queued request for it (for each repeat); 0 where that has no
        price.
    hits
        ``(request index, tokens found in the cache)`` of each run that is the first step of a fill; 0 may be left out.
    drop
        ``(request index, number)`` of cached blocks that are dropped: the block with that number, from 0, of that
        request's sequence.
    """

    start_ps: Picoseconds
    end_ps: Picoseconds
    run: Annotated[tuple[tuple[Index, Tokens], ...], FailFast()]
    evict: Indices = ()
    replica: Index = 0
    repeat: Tokens = 1
    swap_out: Indices = ()
    swap_in: Indices = ()
    considered: Index = 0
    hits: Pairs = ()
    drop: Pairs = ()

    @property
    def actions(self) -> Sequence[Action]:
        """What happens to KV before its runs (`Assignment.actions`)."""
        return _actions(self.evict, self.swap_out, self.swap_in)

    @property
    def assignment(self) -> Assignment:
        """What it does, no matter when."""
        return Assignment(self.run, self.evict, self.swap_out, self.swap_in, self.considered, self.hits, self.drop)


@domain
class Move:
    """One move of a request from a machine to another (docs/problem.md, Several machines).

    Parameters
    ----------
    request
        Its index.
    source, target
        Indices of the machines.
    start_ps, end_ps
        When it starts, and when it ends or is aborted.
    drop
        ``(request index, number)`` of the cached blocks that are dropped at the target when it starts, as in `Batch`.
    stages_ps
        The end of each stage of a live move.
    aborted
        Whether the request ended, or was evicted, before.
    """

    request: Index
    source: Index
    target: Index
    start_ps: Picoseconds
    end_ps: Picoseconds
    drop: Pairs = ()
    stages_ps: Annotated[tuple[Picoseconds, ...], FailFast()] = ()
    aborted: bool = False


class _Unread:
    """A schedule whose batches may still be tables: they become objects when they are first asked for."""

    __slots__ = ("_machine_tables", "_tables")
    _tables: Tables
    _machine_tables: Sequence[MachineTable]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Python asks here only for what is not set: the batches of a schedule of tables until now.
            if name != "batches":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if self.machine_tables is not None:
                batches = merged(self.machine_tables)
            else:
                batches = tuple(batch for table in self._tables for batch in batches_of(table))
            object.__setattr__(self, "batches", batches)
            return batches


@domain
class Schedule(_Unread):
    """Batches in the order in which they start, on ties that of their machines.

    Parameters
    ----------
    batches
        What the machines run.
    routes
        The machine that each request is routed to at its arrival; empty if there is one machine.
    moves
        In the order in which they start.
    """

    batches: Annotated[tuple[Batch, ...], FailFast()]
    routes: Indices = ()
    moves: Annotated[tuple[Move, ...], FailFast()] = ()

    @staticmethod
    def of_tables(tables: Tables) -> Schedule:
        """Return the schedule of one machine that tables hold; its batches become objects when they are asked for."""
        schedule = Schedule(())
        object.__delattr__(schedule, "batches")
        object.__setattr__(schedule, "_tables", tables)
        return schedule

    @staticmethod
    def of_machines(tables: Sequence[MachineTable], routes: Sequence[int]) -> Schedule:
        """Return the schedule of a cluster whose machines' batches tables hold, as `of_tables` does of one machine."""
        schedule = Schedule((), tuple(routes))
        object.__delattr__(schedule, "batches")
        object.__setattr__(schedule, "_machine_tables", tables)
        return schedule

    @property
    def tables(self) -> Tables | None:
        """What the schedule was made of, if that is tables; they say the same as its batches."""
        return getattr(self, "_tables", None)

    @property
    def machine_tables(self) -> Sequence[MachineTable] | None:
        """The same of the schedule of a cluster: a table for each machine."""
        return getattr(self, "_machine_tables", None)

    @property
    def length(self) -> int:
        """Number of batches, repeated ones included."""
        if self.machine_tables is not None:
            return sum(int(table.repeat.sum()) for table in self.machine_tables)
        return sum(batch.repeat for batch in self.batches)

    def assignments(self) -> Iterator[Assignment]:
        """Return what every batch does, repeated ones one by one."""
        for batch in self.batches:
            yield from repeat(batch.assignment, batch.repeat)

    @property
    def evictions(self) -> int:
        """Number of evictions in all batches."""
        if self.machine_tables is not None:
            return sum(len(table.evict) for table in self.machine_tables)
        return sum(len(batch.evict) for batch in self.batches)

    @property
    def swaps(self) -> int:
        """How often KV leaves for the host, in all batches."""
        return sum(len(batch.swap_out) for batch in self.batches)

    def __repr__(self) -> str:
        facts = {"batches": str(self.length), "evictions": str(self.evictions)}
        if self.batches:
            facts |= {"from": f"{self.batches[0].start_ps} ps", "to": f"{self.batches[-1].end_ps} ps"}
        return one_line("Schedule", "", facts)


def batches_of(table: BatchTable, machine: int = 0) -> Iterator[Batch]:
    """Yield what a table holds of a machine as objects."""
    steps = list(zip(table.request.tolist(), table.tokens.tolist(), strict=True))
    evict, runs, evictions = table.evict.tolist(), table.run_begin.tolist(), table.evict_begin.tolist()
    rows = zip(table.start_ps.tolist(), table.end_ps.tolist(), table.repeat.tolist(), strict=True)
    for row, (start, end, times) in enumerate(rows):
        run = tuple(steps[runs[row] : runs[row + 1]])
        lost = tuple(evict[evictions[row] : evictions[row + 1]])
        yield Batch(start, end, run, lost, machine, times)


def merged(tables: Sequence[MachineTable]) -> tuple[Batch, ...]:
    """Return what tables hold of machines, in the order of a schedule."""
    found = [batch for machine, table in enumerate(tables) for batch in _machine_batches(table, machine)]
    return tuple(sorted(found, key=lambda batch: batch.start_ps))


def _machine_batches(table: MachineTable, machine: int) -> Iterator[Batch]:
    steps, hits, drops = (
        list(zip(named.tolist(), numbers.tolist(), strict=True))
        for named, numbers in (
            (table.request, table.tokens),
            (table.hit, table.hit_tokens),
            (table.drop, table.drop_number),
        )
    )
    evict = table.evict.tolist()
    runs, evictions, found, dropped = (
        begin.tolist() for begin in (table.run_begin, table.evict_begin, table.hit_begin, table.drop_begin)
    )
    rows = zip(table.start_ps.tolist(), table.end_ps.tolist(), table.repeat.tolist(), strict=True)
    for row, (start, end, times) in enumerate(rows):
        yield Batch(
            start,
            end,
            tuple(steps[runs[row] : runs[row + 1]]),
            tuple(evict[evictions[row] : evictions[row + 1]]),
            replica=machine,
            repeat=times,
            hits=tuple(hits[found[row] : found[row + 1]]),
            drop=tuple(drops[dropped[row] : dropped[row + 1]]),
        )


class Assignment(NamedTuple):
    """What one batch does, before it is known when: the answer of a formulation or a policy (see `Batch`).

    What happens to KV before the runs are its `actions`. The lists say the same in the form of documents, one for each
    place that KV goes to. What is found in a cache, and dropped from it, follows from the order of the runs; policies
    leave it to the engine.
    """

    run: Sequence[Step]
    evict: Sequence[int]
    swap_out: Sequence[int] = ()
    swap_in: Sequence[int] = ()
    considered: int = 0
    hits: Sequence[Step] = ()
    drop: Sequence[Step] = ()

    @staticmethod
    def of(run: Sequence[Step], actions: Sequence[Action], considered: int = 0) -> Assignment:
        """Return the assignment with these actions."""
        if not actions:
            return Assignment(run, (), considered=considered)
        evict: list[int] = []
        swap_out: list[int] = []
        swap_in: list[int] = []
        lists = {Place.NOWHERE: evict, Place.HOST: swap_out, Place.MACHINE: swap_in}
        for request, place in actions:
            lists[place].append(request)
        return Assignment(run, evict, swap_out, swap_in, considered)

    @property
    def actions(self) -> Sequence[Action]:
        """What happens before the runs, in this order: KV is lost, goes to the host, comes back."""
        return _actions(self.evict, self.swap_out, self.swap_in)

    def between(self, start_ps: int, end_ps: int, repeat: int = 1, replica: int = 0) -> Batch:
        """Return the batch of a machine that does it from start to end, ``repeat`` times."""
        return Batch(
            start_ps,
            end_ps,
            tuple(self.run),
            tuple(self.evict),
            replica=replica,
            repeat=repeat,
            swap_out=tuple(self.swap_out),
            swap_in=tuple(self.swap_in),
            considered=self.considered,
            hits=tuple(self.hits),
            drop=tuple(self.drop),
        )


def _actions(evict: Sequence[int], swap_out: Sequence[int], swap_in: Sequence[int]) -> Sequence[Action]:
    if not (evict or swap_out or swap_in):
        return ()
    lists = (evict, Place.NOWHERE), (swap_out, Place.HOST), (swap_in, Place.MACHINE)
    return [Action(request, place) for requests, place in lists for request in requests]


def timed(instance: Instance, assignments: Iterable[Assignment], cost: BatchCost | None = None) -> Schedule:
    """Give start and end times to batches that follow each other as early as arrivals allow.

    The assignments must be legal for ``instance``: the checker, not this function, finds out. Each is asked for when
    the one before has ended; ``cost`` says how long they take, if not what the instance says.
    """
    instance.require_plain()
    requests, steps = instance.requests, cost or instance.cost
    machine = MachineState(initial(instance))
    now = instance.start_ps
    batches = []
    for assignment in assignments:
        work = machine.carry_out(assignment.actions, assignment.run)
        start = max([now, *(requests[index].arrival_ps for index, _ in assignment.run)])
        now = start + work.duration_ps(steps, instance.cost, assignment.considered)
        batches.append(assignment.between(start, now))
    return Schedule(tuple(batches))


def one_after_another(instance: Instance, order: Sequence[int] = ()) -> Schedule:
    """Serve requests in an order, or by arrival, each without pauses and alone, as every feasible instance allows.

    Raises
    ------
    InputError
        If it ends beyond 64 bits.
    """
    requests, cost, most = instance.requests, instance.cost, instance.limits.prefill_tokens
    now = instance.start_ps
    batches = []
    for index in order or sorted(range(len(requests)), key=lambda index: requests[index].arrival_ps):
        request = requests[index]
        now = max(now, request.arrival_ps)
        for cached in range(0, request.input, most):
            run = min(most, request.input - cached)
            end = now + cost.batch_ps(run, 0, 0, ((run, cached),))
            batches.append(Batch(now, end, ((index, run),)))
            now = end
        if request.output > 1:
            end = now + cost.repeated_ps(1, request.input, request.output - 1)
            batches.append(Batch(now, end, ((index, 1),), repeat=request.output - 1))
            now = end
    return Schedule(tuple(batches))
