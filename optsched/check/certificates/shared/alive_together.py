"""How many requests are alive at any time: the machine cannot have served all that arrived early enough to have ended.

Claim. Of the last requests that have arrived by a time t let S be some that have ended. For r in S all batches that run
r, O of them or more, lie between its arrival T and t; so do all that run a request of S that arrives later; and of a
request q of S that arrived earlier those that give it its last tokens, all but the first and one for each batch that
begins from its least TTFT on and before T: as no batch takes less than f(1), these are ⌈(T - its least TTFT) / f(1)⌉ at
most. Where a refill may give a token, its batches may begin before T but for the last: so one token more is left out.
By a piece b + c x ≤ f(x) of the batch time these batches last at least b times their number and what the tokens take: c
each, with the attention of decodes and the quadratic time of prompts, and with a prompt's steps, or instead w ≥ c for a
token of a prompt, as much as any batch with some has time for (`_rates`); if no refill takes less than a decode. That
is at most t - T. Leave E of the requests that could have ended alone out of S: of r's earlier ones E - e, if e later
ones are left out. Then what earlier ones leave is at least all of it less the E - e largest parts, and the most tokens
that one of them leaves are the (E - e + 1)-th most. So S with just E left out is possible only if the least time that
later requests of S take, request by request from the last to the first, keeps to all these limits for some choice. The
least such E, and all that could not have ended alone, are alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.check.certificates.shared.work import MOST_COMPARED, Rate, own_ps, plain_rate, turns
from optsched.check.problem import Problem, pieces_of, tokens_ps
from optsched.compiled import compiled, compiled_part

_Ints = npt.NDArray[np.int64]

_LAST, _MOST = 64, 32
"""How many of the last requests are looked at, and the largest E that is tried, which is taken if none is possible."""
_TOO_MUCH = 2**62


@dataclass(frozen=True)
class Times:
    """When requests arrive, and can have their first and last tokens at the earliest; from the first arrival on."""

    arrival: _Ints
    first: _Ints
    last: _Ints


class Alive(NamedTuple):
    """How many requests are alive, at least.

    Parameters
    ----------
    by_window
        At any time of each window.
    since
        By request, at any time from its arrival to the end of the window in which it arrives; 0 after the last one.
    """

    by_window: list[int]
    since: list[int]


class _Table(NamedTuple):
    """Requests by arrival: their times, their tokens, and what these take by a piece of the batch time, ps."""

    arrival: _Ints
    first: _Ints
    last: _Ints
    prompt: _Ints
    output: _Ints
    work: _Ints


class _Left(NamedTuple):
    """What earlier requests leave without some of the largest parts, by number of these, shape (requests, E's).

    Tokens are those of the largest part, work is of all.
    """

    tokens: _Ints
    work: _Ints


def least_alive(problem: Problem, times: Times, window: int, windows: int) -> Alive:
    """Return how many requests are alive in some equal windows from 0 on, at least.

    Parameters
    ----------
    problem
        With one machine.
    times
        Of its requests.
    window, windows
        Length and number of windows.
    """
    order = np.argsort(times.arrival, kind="stable")
    begins, ends = np.sort(times.arrival), np.sort(times.last)
    borders = {window * number for number in range(1, windows + 1)}
    borders |= {time for time in begins.tolist() if 0 < time <= window * windows}
    looks = np.array(sorted(borders), np.int64) - 1
    there = np.searchsorted(begins, looks, side="right")
    alive = there - np.searchsorted(ends, looks, side="right")
    prompt = np.array([request.input for request in problem.requests], np.int64)
    output = np.array([request.output for request in problem.requests], np.int64)
    cost, single = problem.cost, tokens_ps(problem.cost, 1)
    besides, first = np.zeros_like(looks), 1 + int(problem.eviction)
    for base, token in pieces_of(cost):
        work = _most_work(problem, base, token, int(ends[-1])) if single else None
        if work is None:
            continue
        columns = (times.arrival, times.first, times.last, prompt, output, np.array(work, np.int64))
        constants = np.array([base, token + cost.decode_req, cost.decode_kv, single, first], np.int64)
        besides = np.maximum(besides, _besides(looks, there, _Table(*(each[order] for each in columns)), constants))
    numbers = dict(zip(looks.tolist(), (alive + besides).tolist(), strict=True))
    found, since = [len(problem.requests)] * windows, [0] * len(order)
    # From the last to the first; at a time what is seen then counts for requests that arrive then.
    no_request = len(order)
    moments = [(look, no_request) for look in numbers]
    moments += zip(times.arrival.tolist(), range(no_request), strict=True)
    for moment, request in sorted(moments, reverse=True):
        place = moment // window
        if request == no_request:
            found[place] = min(found[place], numbers[moment])
        elif place < windows:
            since[request] = found[place]
    return Alive(found, since)


def _most_work(problem: Problem, base: int, token: int, latest: int) -> list[int] | None:
    """Return what requests take by a piece of the batch time, in one of two ways, that by which they take more.

    None if a refill may take less than a decode, or numbers might not fit 64 bits.
    """
    most = max(request.output for request in problem.requests)
    if most > MOST_COMPARED:
        return None
    rates = (rate for rate in _rates(problem, base, token) if not _refills_may_pay(problem, rate))
    works = ([own_ps(problem, request.input, request.output, rate) for request in problem.requests] for rate in rates)
    return max((work for work in works if sum(work) + base * most + latest <= _TOO_MUCH), key=sum, default=None)


def _rates(problem: Problem, base: int, token: int) -> list[Rate]:
    """Return what a piece of the batch time says, with a price of steps or a higher one of prompts' tokens.

    A batch with n tokens of prompts and y decodes is to last b + c y + w n: so w is at most
    (f(y + n) - c y + prefill_req - b) / n. For each n the numerator is least where f turns, or for y = 0; that least is
    convex in n, and affine between turns, so that the quotient is least at one of them or for the most tokens.
    """
    plain = plain_rate(problem, base, token)
    most = min(problem.limits.prefill_tokens, problem.limits.batch_tokens)
    places = {*turns(problem, problem.limits.batch_tokens), most}
    time = {x: tokens_ps(problem.cost, x) for x in places}
    left = {n: min(time[x] - token * (x - n) for x in time if x >= n) - base for n in places if n <= most}
    highest = min((ps + problem.cost.prefill_req) // n for n, ps in left.items())
    return [plain, plain._replace(prompt=highest, step=0)]


def _refills_may_pay(problem: Problem, rate: Rate) -> bool:
    """Return whether a refill may take less than a decode, of any number of tokens that a request may hold.

    The difference is convex in the tokens: so it is least at an end, or beside where its slope is 0.
    """
    cost = problem.cost
    fewest = min(request.input for request in problem.requests) + 1
    most = max(request.input + request.output for request in problem.requests) - 1
    flat = (cost.decode_kv - rate.prompt) // (2 * cost.prefill_sq) if cost.prefill_sq else fewest
    return problem.eviction and any(
        rate.prompt * held + cost.prefill_sq * held**2 + rate.step
        < rate.decode + cost.decode_req + cost.decode_kv * (held - 1)
        for held in (fewest, most, min(max(flat, fewest), most), min(max(flat + 1, fewest), most))
    )


@compiled
def _besides(looks: _Ints, there: _Ints, table: _Table, constants: _Ints) -> _Ints:
    """Return the least E at every look."""
    found = np.zeros_like(looks)
    left = _Left(np.empty((_LAST, _MOST + 1), np.int64), np.empty((_LAST, _MOST + 1), np.int64))
    parts, taken = np.empty((2, _LAST), np.int64), np.empty(_MOST + 1, np.int64)
    for look in range(looks.size):
        begin = max(0, there[look] - _LAST)
        for request in range(begin, there[look]):
            if table.last[request] <= looks[look]:
                _note_left(looks[look], begin, request, table, constants, parts, left)
        while found[look] < _MOST and not _is_possible(
            found[look], looks[look], begin, there[look], table, constants[0], left, taken
        ):
            found[look] += 1
    return found


@compiled_part
def _note_left(  # noqa: PLR0917 - compiled functions take positions
    look: int, begin: int, request: int, table: _Table, constants: _Ints, parts: _Ints, left: _Left
) -> None:
    """Note what requests before one that have ended by a look leave to be done after its arrival."""
    _, decode, read, single, first = constants
    arrival, count = table.arrival[request], 0
    for earlier in range(begin, request):
        gap = max(arrival - table.first[earlier], 0)
        tokens = table.output[earlier] - first - (gap + single - 1) // single
        if tokens <= 0 or table.last[earlier] > look or table.last[earlier] <= arrival:
            continue
        # The last decode reads I + O - 2 tokens, each before it one less.
        longest = table.prompt[earlier] + table.output[earlier] - 2
        parts[0, count] = tokens
        parts[1, count] = tokens * decode + read * (tokens * longest - tokens * (tokens - 1) // 2)
        count += 1
    row, work = request - begin, np.int64(0)
    for place in range(count):
        work += parts[1, place]
    for out in range(_MOST + 1):
        left.work[row, out] = work
        left.tokens[row, out] = _take_most(parts[0], count)
        work -= _take_most(parts[1], count)


@compiled_part
def _take_most(numbers: _Ints, count: int) -> int:
    """Return the largest of the first numbers, and let 0 be in its place; 0 if there are none."""
    largest = 0
    for place in range(1, count):
        if numbers[place] > numbers[largest]:
            largest = place
    if count == 0:
        return 0
    number = numbers[largest]
    numbers[largest] = 0
    return int(number)


@compiled_part
def _is_possible(  # noqa: PLR0917 - compiled functions take positions
    out: int, look: int, begin: int, there: int, table: _Table, base: int, left: _Left, taken: _Ints
) -> bool:
    """Say whether all that could have ended alone by a look may have ended but for just that many."""
    taken[:] = _TOO_MUCH
    taken[0] = 0
    for request in range(there - 1, begin - 1, -1):
        if table.last[request] > look:
            continue
        row, time = request - begin, look - table.arrival[request]
        for later in range(out, -1, -1):
            most = max(table.output[request], left.tokens[row, out - later])
            with_it = taken[later] + table.work[request]
            if taken[later] == _TOO_MUCH or with_it + base * most + left.work[row, out - later] > time:
                with_it = np.int64(_TOO_MUCH)
            taken[later] = min(with_it, taken[later - 1]) if later else with_it
    return bool(taken[out] < _TOO_MUCH)
