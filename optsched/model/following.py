"""Following a legal schedule batch by batch: what each batch does, what memory then holds, and how long it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from optsched.model.instance import Instance
from optsched.model.memory import HeldBlocks
from optsched.model.schedule import Batch, Schedule
from optsched.model.spread import Ramp
from optsched.model.state import MachineState, RequestState, Work, decode_work, initial

Held = tuple[int, int]
"""How many requests hold KV on a machine, and how many tokens they occupy, in whole blocks."""


class Load(NamedTuple):
    """What one batch, of repeated ones each, is for its replica; between batches only what is kept is there.

    Parameters
    ----------
    start_ps, end_ps
        When it runs.
    running, tokens
        How many requests it runs, and how many tokens.
    resident, kv_tokens
        How many requests hold KV in it, and how many tokens they occupy after its steps, in whole blocks.
    kept, kept_kv_tokens
        The same without those that finish in it.
    """

    start_ps: int
    end_ps: int
    running: int
    tokens: int
    resident: int
    kv_tokens: int
    kept: int
    kept_kv_tokens: int


class Rise(NamedTuple):
    """The repeats of a batch of decode steps taken together, except for the last.

    Parameters
    ----------
    load
        All of them as one, of as many KV tokens as are occupied before the first.
    times
        How many they are.
    kv_tokens
        KV tokens occupied, weighted by time.
    """

    load: Load
    times: int
    kv_tokens: list[Ramp]


class Followed(NamedTuple):
    """A batch of a followed schedule, with its repeats.

    Parameters
    ----------
    batch, work
        The batch, and what it does; of a repeated one what the first does, but what finishes in the last.
    cached
        KV tokens of each run before a repeated batch; of another batch nothing.
    block
        Tokens of a block.
    begin, held, kept
        What is held before the batch, after the runs of the last repeat, and when the requests that finish are gone.
    first_ps, slower_ps
        Duration of the first repeat, and how much longer each takes than the one before.
    states
        The requests when it has ended.
    """

    batch: Batch
    work: Work
    cached: Sequence[int]
    block: int
    begin: Held
    held: Held
    kept: Held
    first_ps: int
    slower_ps: int
    states: Sequence[RequestState]

    def start_ps(self, number: int) -> int:
        """Return when a repeat starts, counted from 0."""
        return self.batch.start_ps + number * self.first_ps + self.slower_ps * (number * (number - 1) // 2)

    def last_load(self) -> Load:
        """Return what the last repeat is for the machine."""
        batch = self.batch
        start = self.start_ps(batch.repeat - 1)
        return Load(start, batch.end_ps, len(batch.run), self.work.tokens, *self.held, *self.kept)

    def loads(self) -> list[Load]:
        """Return what the batch and all its repeats are for the machine, one by one."""
        batch, (resident, occupied), running = self.batch, self.begin, len(self.batch.run)
        if batch.repeat == 1:
            return [self.last_load()]
        places = Counter(tokens % self.block for tokens in self.cached)
        loads = []
        for number in range(batch.repeat - 1):
            # A request that has filled its last block takes another one.
            occupied += self.block * places[-number % self.block]
            begin, end = self.start_ps(number), self.start_ps(number + 1)
            loads.append(Load(begin, end, running, running, resident, occupied, resident, occupied))
        return [*loads, self.last_load()]

    def rise(self) -> Rise:
        """Sum up all repeats but the last, which is `last_load`.

        A closed form of what `loads` says, for decode steps in blocks of their own.
        """
        begun, (resident, held), decodes = self.batch.start_ps, self.begin, len(self.batch.run)
        block, times = self.block, self.batch.repeat - 1
        # In which of the first b repeats each request takes a block; all do so again b repeats later.
        taking = sorted(-tokens % block for tokens in self.cached)
        ramps = []
        for taken, start in enumerate([0, *taking]):
            stop = min(taking[taken] if taken < decodes else block, times)
            if start >= stop:
                continue
            rounds = (times - stop) // block + 1
            occupied, lasting = held + block * taken, self.start_ps(stop) - self.start_ps(start)
            growth = self.slower_ps * (stop - start) * block
            ramps.append(Ramp(occupied, block * decodes, lasting, growth, rounds))
            rest = start + rounds * block
            if rest < times:
                lasting = self.start_ps(times) - self.start_ps(rest)
                ramps.append(Ramp(occupied + rounds * block * decodes, 0, lasting, 0, 1))
        load = Load(begun, self.start_ps(times), decodes, decodes, resident, held, resident, held)
        return Rise(load, times, ramps)


def follow(instance: Instance, schedule: Schedule) -> Iterator[Followed]:
    """Walk through a legal schedule of one machine without a cache."""
    memory, states = HeldBlocks(instance.limits), initial(instance)
    machine, kept = MachineState(states, memory), (0, 0)
    for batch in schedule.batches:
        begin, cached = kept, list[int]()
        if batch.repeat == 1:
            work = machine.carry_out(batch.actions, batch.run)
        else:
            cached = [states[index].cached for index, _ in batch.run]
            work = decode_work(cached)
            work.generated = [index for index, _ in batch.run]
            work.finished = machine.repeat(batch.run, batch.repeat)
        held = kept = len(memory.held), memory.occupied
        if work.finished:
            machine.finish(work.finished)
            kept = len(memory.held), memory.occupied
        pace = work.pace_ps(instance.cost, batch.considered) if batch.repeat > 1 else (batch.end_ps - batch.start_ps, 0)
        yield Followed(batch, work, cached, memory.block, begin, held, kept, *pace, states)


def unrolled(instance: Instance, schedule: Schedule) -> Schedule:
    """Return a legal schedule with repeated batches one by one."""
    batches: list[Batch] = []
    for followed in follow(instance, schedule):
        batch = followed.batch
        if batch.repeat == 1:
            batches.append(batch)
            continue
        for number in range(batch.repeat):
            begin, end = followed.start_ps(number), followed.start_ps(number + 1)
            batches.append(Batch(begin, end, batch.run, replica=batch.replica, considered=batch.considered))
    return Schedule(tuple(batches))
