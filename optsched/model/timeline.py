"""What happens over time: how many requests wait and hold KV, what the KV cache holds and what a batch runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from optsched.model.errors import require_type
from optsched.model.instance import Instance
from optsched.model.schedule import Followed, Schedule, follow
from optsched.model.spread import Ramp
from optsched.model.state import decode_work


class Moment(NamedTuple):
    """What holds from a time on, until the next moment.

    Parameters
    ----------
    time_ps
        When it begins.
    waiting
        Queue length: requests that have arrived, are unfinished and hold no KV. A request is among them from its
        arrival until the batch starts that first runs it; and, evicted or swapped out, from the start of the batch that
        takes its KV until the start of the one that begins to refill it or swaps it in.
    resident
        Requests that hold KV, on the replica and not on its host.
    running
        Requests that the batch runs; 0 between batches.
    kv_tokens
        KV tokens occupied, in whole blocks: in a batch as after its steps, so that a request that finishes in it still
        counts; between batches what is kept.
    tokens
        Tokens that the batch runs; 0 between batches.
    """

    time_ps: int
    waiting: int
    resident: int
    running: int
    kv_tokens: int
    tokens: int


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
    """What the repeats of a batch of decode steps are together, except for the last.

    Parameters
    ----------
    load
        All of them as one, of as many KV tokens as are occupied before the first.
    times
        How many they are.
    first_ps, slower_ps
        What the first takes, and how much longer each takes than the one before.
    kv_tokens
        KV tokens occupied, weighted by time.
    """

    load: Load
    times: int
    first_ps: int
    slower_ps: int
    kv_tokens: list[Ramp]


def loads_of(instance: Instance, followed: Followed) -> list[Load]:
    """Return what a batch and all its repeats are for the machine, one by one."""
    batch, (resident, begin), running = followed.batch, followed.begin, len(followed.batch.run)
    if batch.repeat == 1:
        return [last_load(followed, batch.start_ps)]
    clock = batch.start_ps
    loads = []
    for more, duration in _before_the_last(instance, followed):
        end, occupied = clock + duration, begin + more
        loads.append(Load(clock, end, running, running, resident, occupied, resident, occupied))
        clock = end
    return [*loads, last_load(followed, clock)]


def last_load(followed: Followed, start_ps: int) -> Load:
    """Return what the last repeat of a batch is for the machine, given when it starts."""
    batch, work = followed.batch, followed.work
    return Load(start_ps, batch.end_ps, len(batch.run), work.tokens, *followed.held, *followed.kept)


def rise_of(instance: Instance, followed: Followed) -> Rise:
    """Sum up a repeated batch but for the last time, which is `last_load`.

    A closed form of what `loads_of` says, for decode steps in blocks of their own.
    """
    batch, cached, (resident, held) = followed.batch, followed.cached, followed.begin
    cost, block, decodes = instance.cost, instance.limits.kv_block, len(batch.run)
    first = followed.work.duration_ps(cost, cost, batch.considered)
    slower, times = cost.decode_kv * decodes, batch.repeat - 1

    def lasting(start: int, stop: int) -> int:
        """How long the repeats take from one on, up to another."""
        return first * (stop - start) + slower * ((stop * (stop - 1) - start * (start - 1)) // 2)

    # In which of the first b repeats each request takes a block; all do so again b repeats later.
    taking = sorted(-tokens % block for tokens in cached)
    ramps = []
    for taken, start in enumerate([0, *taking]):
        stop = min(taking[taken] if taken < decodes else block, times)
        if start >= stop:
            continue
        rounds = (times - stop) // block + 1
        occupied = held + block * taken
        growth = slower * (stop - start) * block
        ramps.append(Ramp(occupied, block * decodes, lasting(start, stop), growth, rounds))
        begun = start + rounds * block
        if begun < times:
            ramps.append(Ramp(occupied + rounds * block * decodes, 0, lasting(begun, times), 0, 1))
    end = batch.start_ps + lasting(0, times)
    load = Load(batch.start_ps, end, decodes, decodes, resident, held, resident, held)
    return Rise(load, times, first, slower, ramps)


def _before_the_last(instance: Instance, followed: Followed) -> Iterator[tuple[int, int]]:
    """Yield of all repeats but the last how many more tokens are occupied in it, and how long it takes."""
    batch, cached = followed.batch, followed.cached
    cost, block = instance.cost, instance.limits.kv_block
    places = Counter(tokens % block for tokens in cached)
    held = 0
    for number in range(batch.repeat - 1):
        # A request that has filled its last block takes another one.
        held += block * places[-number % block]
        yield held, decode_work(cached, number).duration_ps(cost, cost, batch.considered)


def timeline(instance: Instance, schedule: Schedule) -> list[Moment]:
    """Return what happens over time while a legal schedule is carried out.

    Returns
    -------
    list
        A moment for each change, in the order of time: the first one at the earliest arrival, the last one at the end
        of the last batch, with nothing left. What begins and ends at the same time is left out.
    """
    require_type("instance", instance, Instance, "an Instance")
    require_type("schedule", schedule, Schedule, "a Schedule")
    loads = (load for followed in follow(instance, schedule) for load in loads_of(instance, followed))
    return list(moments(instance, loads))


def moments(instance: Instance, loads: Iterable[Load]) -> Iterator[Moment]:
    """Yield the moments of `timeline`, given all batches in turn."""
    every = _every_moment(instance, loads)
    latest, shown = next(every), None
    for moment in every:
        if moment.time_ps > latest.time_ps and latest[1:] != shown:
            yield latest
            shown = latest[1:]
        latest = moment
    yield latest


def _every_moment(instance: Instance, loads: Iterable[Load]) -> Iterator[Moment]:
    """Yield a moment for each arrival, start, and end that no start follows at once, also several at the same time."""
    arrivals = sorted(request.arrival_ps for request in instance.requests)
    arrived = waiting = 0
    before = Load(arrivals[0], arrivals[0], 0, 0, 0, 0, 0, 0)
    for load in loads:
        state = before.kept, 0, before.kept_kv_tokens, 0
        if load.start_ps > before.end_ps:
            yield Moment(before.end_ps, waiting, *state)
        while arrived < len(arrivals) and arrivals[arrived] <= load.start_ps:
            arrived, waiting = arrived + 1, waiting + 1
            yield Moment(arrivals[arrived - 1], waiting, *state)
        # No request finishes when a batch starts: one that gets KV has waited, and one that loses it waits.
        waiting += before.kept - load.resident
        state = load.resident, load.running, load.kv_tokens, load.tokens
        yield Moment(load.start_ps, waiting, *state)
        while arrived < len(arrivals) and arrivals[arrived] < load.end_ps:
            arrived, waiting = arrived + 1, waiting + 1
            yield Moment(arrivals[arrived - 1], waiting, *state)
        before = load
    yield Moment(before.end_ps, waiting, before.kept, 0, before.kept_kv_tokens, 0)
