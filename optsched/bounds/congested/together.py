"""How few requests can be alive: those that have ended by a time shared the machine until then (`congestion`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optsched.bounds.alone import alone
from optsched.bounds.congested.terms import LARGEST, alive_at
from optsched.bounds.own import MOST_COMPARED, OwnTimes, Rate, plain_rate, single_pieces, with_steps_in_prompts
from optsched.compiled import compiled, compiled_part
from optsched.model.instance import Instance
from optsched.model.ints import Ints

_BACK = 64
"""Requests that are looked at: the last to arrive."""
_MOST = 32
"""The most of them that are found to be alive although each could have ended alone."""
_NEVER = -1
"""Time that is left where so few cannot be left out."""


class _Requests(NamedTuple):
    """Requests in order of arrival, shape (requests,); times from the first arrival on, ps.

    Parameters
    ----------
    arrival, first, last
        When each arrives, and can have its first and its last token at the earliest.
    input, output
        Tokens.
    """

    arrival: Ints
    first: Ints
    last: Ints
    input: Ints
    output: Ints


class _Needs(NamedTuple):
    """What requests take of the machine besides a share of bases, by one piece of the batch time.

    Parameters
    ----------
    own
        All tokens of each request, ps, shape (requests,).
    terms
        ps of a base, of a decode that reads nothing, of each token that it reads, and of a batch of one token; and the
        tokens of a request, 1 with evictions, of which only a part of a refill may come after an arrival.
    """

    own: Ints
    terms: Ints


class _Room(NamedTuple):
    """Room for what is computed for a time: numbers by how many requests are left out.

    Parameters
    ----------
    later
        What later requests may take at most.
    work, tokens
        What earlier requests leave to be done after an arrival, each, the most first.
    """

    later: Ints
    work: Ints
    tokens: Ints


@dataclass(frozen=True)
class Alive:
    """How many requests are surely alive, by windows.

    Parameters
    ----------
    by_window
        At any time of each window, 0 in the last, which does not end.
    since
        From each request's arrival to the end of the window in which it arrives, itself at least.
    most
        In each window the largest number that a prompt counts on.
    """

    by_window: Ints
    since: Ints
    most: Ints

    @property
    def always(self) -> Ints:
        """What every prompt counts on in each window: itself at least."""
        return np.maximum(1, self.by_window)

    @classmethod
    def of(cls, by_window: Ints, since: Ints, begins: Ints) -> Alive:
        """Return numbers of windows, and of requests, which arrive in some of these."""
        most = np.maximum(1, by_window)
        since = np.maximum(since, most[begins])
        np.maximum.at(most, begins, since)
        return cls(by_window, since, most)


class SurelyAlive:
    """How many requests are surely alive on one machine.

    Parameters
    ----------
    instance
        The problem.
    """

    def __init__(self, instance: Instance) -> None:
        self._requests = _requests(instance)
        needs = (_most_needs(instance, weights, self._requests) for weights in single_pieces(instance))
        self._needs = [each for each in needs if each is not None]
        self._arrival = np.array(instance.arrivals_ps, np.int64)
        self._known: dict[tuple[int, int], Alive] = {}

    def by_windows(self, window_ps: int, last: int) -> Alive:
        """Return the least numbers by windows.

        Parameters
        ----------
        window_ps, last
            Length of windows from the first arrival on, and the number of those that end.
        """
        if (window_ps, last) not in self._known:
            self._known[window_ps, last] = self._counted(window_ps, last)
        return self._known[window_ps, last]

    def _counted(self, window_ps: int, last: int) -> Alive:
        requests, most = self._requests, self._arrival.size
        # From one arrival to the next it never rises: it is least just before that, or before the end of a window.
        ends = np.concatenate((window_ps * np.arange(1, last + 1), requests.arrival))
        times = np.unique(ends[(ends > 0) & (ends <= window_ps * last)]) - 1
        number = alive_at(times, requests.arrival, requests.last)
        arrived = np.searchsorted(requests.arrival, times, side="right")
        more = np.zeros_like(times)
        for needs in self._needs:
            more = np.maximum(more, _more_alive(times, arrived, requests, needs))
        # From each time to the end of its window; numbers of later windows are larger than those of earlier ones.
        windows = times // window_ps
        since = np.minimum.accumulate((number + more + (most + 1) * windows)[::-1])[::-1] - (most + 1) * windows
        by_window = np.append(since[np.searchsorted(windows, np.arange(last))], 0)
        begins = np.minimum(self._arrival // window_ps, last)
        return Alive.of(by_window, np.append(since, 0)[np.searchsorted(times, self._arrival)], begins)


def _requests(instance: Instance) -> _Requests:
    least, arrival = alone(instance), np.array(instance.arrivals_ps, np.int64)
    order = np.argsort(arrival, kind="stable")
    sizes = ([getattr(request, name) for request in instance.requests] for name in ("input", "output"))
    columns = (arrival, arrival + np.array(least.ttft), arrival + np.array(least.e2e), *map(np.array, sizes))
    return _Requests(*(column[order] for column in columns))


def _most_needs(instance: Instance, weights: tuple[int, ...], requests: _Requests) -> _Needs | None:
    """Return what requests take by a piece of the batch time, with prefill steps by themselves or in prompts' tokens.

    That by which they take more; None if neither is of use.
    """
    plain = plain_rate(instance, weights)
    rates = plain, with_steps_in_prompts(instance, plain)
    found = [needs for rate in rates if (needs := _needs(instance, rate, requests)) is not None]
    return max(found, key=lambda needs: int(needs.own.sum()), default=None)


def _needs(instance: Instance, rate: Rate, requests: _Requests) -> _Needs | None:
    """Return what requests take by a rate; None if a refill may take less than a decode, or numbers are too large."""
    cost = instance.cost
    times = OwnTimes(instance, rate)
    shortest = int(requests.input.min())
    longest = int((requests.input + requests.output).max())
    if not cost.linear_ps(1) or requests.output.max() > MOST_COMPARED:
        return None
    if not times.decodes_are_cheapest(shortest, longest - shortest):
        return None
    own = [times.of(*shape) for shape in zip(requests.input.tolist(), requests.output.tolist(), strict=True)]
    if sum(own) + rate.base * int(requests.output.max()) + int(requests.last.max()) > LARGEST:
        return None
    decode, part = rate.decode + cost.decode_req, int(instance.rules.eviction)
    terms = (rate.base, decode, cost.decode_kv, cost.linear_ps(1), part)
    return _Needs(np.array(own, np.int64), np.array(terms, np.int64))


@compiled
def _more_alive(times: Ints, arrived: Ints, requests: _Requests, needs: _Needs) -> Ints:
    """Return how many requests are alive, at least, that could have ended alone, at each time."""
    room = _Room(np.empty(_MOST + 1, np.int64), np.empty(_MOST + 1, np.int64), np.empty(_MOST + 1, np.int64))
    found = np.empty_like(times)
    for look in range(times.size):
        found[look] = _fewest_left_out(times[look], arrived[look], requests, needs, room)
    return found


@compiled_part
def _fewest_left_out(time: int, arrived: int, requests: _Requests, needs: _Needs, room: _Room) -> int:
    """Return how many of the requests that could have ended alone by a time must be left out, so that the rest can."""
    later, begin = room.later, max(0, arrived - _BACK)
    later[0], later[1:] = LARGEST, _NEVER
    for request in range(begin, arrived):
        if requests.last[request] > time:
            continue
        kept, work = _leave(time, begin, request, requests, needs, room)
        own, before = needs.own[request], np.int64(_NEVER)
        left = time - requests.arrival[request] - own
        for out in range(_MOST + 1):
            # With this one, and with one less before it where this one is left out.
            most = requests.output[request]
            if out < kept:
                most = max(most, room.tokens[out])
            with_it = min(later[out] - own, left - needs.terms[0] * most - work)
            before, later[out] = later[out], max(with_it, before, _NEVER)
            if out < kept:
                work -= room.work[out]
    out = 0
    while out < _MOST and later[out] < 0:
        out += 1
    return out


@compiled_part
def _leave(  # noqa: PLR0917 - compiled functions take positions
    time: int, begin: int, request: int, requests: _Requests, needs: _Needs, room: _Room
) -> tuple[int, int]:
    """Write what earlier requests leave to be done after the arrival of one; return how many are kept, and all work."""
    arrival, kept, work = requests.arrival[request], 0, 0
    _, token, read, single, part = needs.terms
    for earlier in range(begin, request):
        if not arrival < requests.last[earlier] <= time:
            continue
        output = requests.output[earlier]
        # Not its first token, nor one for each batch that fits in between or begins there.
        tokens = output - 1 - part - max(0, arrival - requests.first[earlier] + single - 1) // single
        if tokens > 0:
            cached = tokens * requests.input[earlier] + tokens * (2 * output - tokens - 3) // 2
            done = token * tokens + read * cached
            work += done
            _insert(room.work, kept, done)
            _insert(room.tokens, kept, tokens)
            kept = min(kept + 1, room.work.size)
    return kept, work


@compiled_part
def _insert(numbers: Ints, count: int, number: int) -> None:
    """Insert a number into some, the most first; the least drops out where there is no room."""
    place = min(count, numbers.size - 1)
    if count < numbers.size or numbers[place] < number:
        while place > 0 and numbers[place - 1] < number:
            numbers[place] = numbers[place - 1]
            place -= 1
        numbers[place] = number
