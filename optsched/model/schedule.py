"""Schedules: what every batch runs and evicts, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Annotated, NamedTuple

from pydantic import FailFast

from optsched.model.cost import BatchCost
from optsched.model.display import one_line
from optsched.model.domain import Index, Picoseconds, Tokens, domain
from optsched.model.instance import Instance, Request

Indices = Annotated[tuple[Index, ...], FailFast()]
Step = tuple[int, int]
"""``(request index, tokens)``: one run of a batch."""


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
        Index of the replica that runs it.
    repeat
        How many batches it is, each right after the one before. More than 1 only for decode steps of requests none of
        which finishes before the last, and if nobody is evicted or swapped.
    swap_out, swap_in
        Indices of the requests whose KV cache leaves for the host, and of those whose KV cache comes back before it.
    considered
        Queued requests that the scheduler has considered for it (each of them, if it is repeated), each as often as it
        did; 0 where that has no price.
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

    @property
    def assignment(self) -> Assignment:
        """What it does, no matter when."""
        return Assignment(self.run, self.evict, self.swap_out, self.swap_in, self.considered)


@domain
class Schedule:
    """Batches in the order in which they run."""

    batches: Annotated[tuple[Batch, ...], FailFast()]

    @property
    def length(self) -> int:
        """Number of batches, repeated ones included."""
        return sum(batch.repeat for batch in self.batches)

    def assignments(self) -> Iterator[Assignment]:
        """Return what every batch does, repeated ones one by one."""
        for batch in self.batches:
            yield from repeat(batch.assignment, batch.repeat)

    @property
    def evictions(self) -> int:
        """Number of evictions in all batches."""
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


class Progress:
    """State of one request while a schedule is followed (docs/problem.md, One batch).

    Attributes
    ----------
    generated, cached
        g, tokens generated, and m, tokens cached.
    swapped
        Tokens whose KV is on the host; then none are cached.
    decoding
        Whether the KV that it holds, or has on the host, has generated a token; if not, its runs are prefill steps.
    """

    __slots__ = ("cached", "decoding", "generated", "request", "swapped")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.generated = 0
        self.cached = 0
        self.swapped = 0
        self.decoding = False

    @property
    def missing(self) -> int:
        """Tokens that exist and have no KV: S − m. That many runs generate the next token."""
        return self.request.input + self.generated - self.cached - self.swapped

    @property
    def finished(self) -> bool:
        """Whether all output tokens are generated."""
        return self.generated == self.request.output

    def evict(self) -> None:
        """Drop the KV cache."""
        self.cached = 0
        self.decoding = False

    def swap_out(self) -> None:
        """Send the KV cache to the host."""
        self.swapped, self.cached = self.cached, 0

    def swap_in(self) -> None:
        """Take the KV cache back."""
        self.cached, self.swapped = self.swapped, 0

    def run(self, tokens: int) -> bool:
        """Run ``tokens`` tokens; return whether that generated an output token."""
        request = self.request
        self.cached += tokens
        if self.cached < request.input + self.generated:
            return False
        self.generated += 1
        self.decoding = True
        if self.generated == request.output:
            self.cached = 0
        return True

    def decode(self, times: int = 1) -> bool:
        """Run so many decode steps, of which only the last may finish the request; return whether it does."""
        self.generated += times
        if self.generated == self.request.output:
            self.cached = 0
            return True
        self.cached += times
        return False


class Assignment(NamedTuple):
    """What one batch does, before it is known when: the answer of a formulation or a policy (see `Batch`)."""

    run: Sequence[Step]
    evict: Sequence[int]
    swap_out: Sequence[int] = ()
    swap_in: Sequence[int] = ()
    considered: int = 0

    def between(self, start_ps: int, end_ps: int, repeat: int = 1) -> Batch:
        """Return the batch that does it from start to end, so often."""
        return Batch(
            start_ps,
            end_ps,
            tuple(self.run),
            tuple(self.evict),
            repeat=repeat,
            swap_out=tuple(self.swap_out),
            swap_in=tuple(self.swap_in),
            considered=self.considered,
        )


def timed(instance: Instance, assignments: Iterable[Assignment], cost: BatchCost | None = None) -> Schedule:
    """Give start and end times to batches that follow each other as early as arrivals allow.

    The assignments must be legal for ``instance``: the checker, not this function, finds out. Each is asked for when
    the one before has ended; ``cost`` says how long they take, if not what the instance says.
    """
    costs = cost or instance.cost
    states = [Progress(request) for request in instance.requests]
    now = instance.start_ps
    batches = []
    for assignment in assignments:
        moved = _prepare(states, assignment)
        tokens = decodes = read = 0
        prefills = []
        for index, count in assignment.run:
            state = states[index]
            now = max(now, state.request.arrival_ps)
            tokens += count
            if state.decoding:
                decodes += 1
                read += state.cached
            else:
                prefills.append((count, state.cached))
            state.run(count)
        duration = costs.batch_ps(tokens, decodes, read, prefills)
        end = now + duration + instance.cost.besides_ps(duration, *moved, assignment.considered)
        batches.append(assignment.between(now, end))
        now = end
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


def _prepare(states: Sequence[Progress], deeds: Assignment) -> tuple[int, int]:
    """Evict and swap before the runs of a batch; return the KV tokens that leave the GPU and that come back."""
    for index in deeds.evict:
        states[index].evict()
    for index in deeds.swap_out:
        states[index].swap_out()
    for index in deeds.swap_in:
        states[index].swap_in()
    return sum(states[index].swapped for index in deeds.swap_out), sum(states[index].cached for index in deeds.swap_in)


class Followed(NamedTuple):
    """A batch of a followed schedule, with its repeats, and the requests' states before it first runs."""

    batch: Batch
    states: list[Progress]


def follow(instance: Instance, schedule: Schedule) -> Iterator[Followed]:
    """Walk through a legal schedule; every item holds the states after evictions and swaps, before the runs."""
    states = [Progress(request) for request in instance.requests]
    for batch in schedule.batches:
        _prepare(states, batch.assignment)
        yield Followed(batch, states)
        if batch.repeat == 1:
            for index, count in batch.run:
                state = states[index]
                if state.decoding:
                    state.decode()
                else:
                    state.run(count)
        else:
            for index, _ in batch.run:
                states[index].decode(batch.repeat)


def unrolled(instance: Instance, schedule: Schedule) -> Schedule:
    """Return a legal schedule with repeated batches one by one."""
    batches: list[Batch] = []
    for batch, states in follow(instance, schedule):
        if batch.repeat == 1:
            batches.append(batch)
            continue
        read, clock, count = sum(states[index].cached for index, _ in batch.run), batch.start_ps, len(batch.run)
        for number in range(batch.repeat):
            duration = instance.cost.batch_ps(count, count, read + number * count, ())
            end = clock + duration + instance.cost.besides_ps(duration, 0, 0, batch.considered)
            batches.append(Batch(clock, end, batch.run, replica=batch.replica, considered=batch.considered))
            clock = end
    return Schedule(tuple(batches))
