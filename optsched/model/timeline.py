"""What happens over time: how many requests wait and hold KV, what the KV cache holds and what a batch runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from optsched.model.errors import require_type
from optsched.model.following import Load, follow
from optsched.model.instance import Instance
from optsched.model.schedule import Schedule


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
    instance.require_plain()
    loads = (load for followed in follow(instance, schedule) for load in followed.loads())
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
