"""Certificates of kind ``waiting``: the sum of e2e latencies by prices of the machine time that requests queue for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optsched.check.certificates.shared.guard import require_64_bits, require_size
from optsched.check.certificates.shared.work import most_decodes, turns
from optsched.check.problem import Problem, pieces_of
from optsched.check.reading import UnprovedError, shown
from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched.model.objectives import Objective

_POINTS = 16
"""Stretches of tokens read, between whose ends a decode's worth is taken to be affine."""
_MOST_WINDOWS = 100_000
_MOST_BATCHES = 200_000_000
"""Different prices, times decodes in a batch."""
_RANGES = {"window_ps": (1, 10**15), "kept": (0, 64), "short_ps": (0, 10**13), "blocks": (1, 1000)}
"""The least and the greatest of what certificates state besides prices."""
_NEVER = 2**62


@dataclass(frozen=True)
class _Stated:
    """What a certificate states: ps, a share in 64ths, and prices in 64ths of a request; the last window has none.

    ``blocks`` is into how many parts the decodes of a request are cut, of which each counts as one place.
    """

    window: int
    kept: int
    short: int
    blocks: int
    prices: list[int]

    @property
    def terms(self) -> tuple[int, int, int, int]:
        """All but the prices."""
        return self.window, self.kept, self.short, self.blocks


def waiting_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    r"""Return the bound of the prices that the certificate states.

    Claim. Cut time from the first arrival on into windows of equal length W, each with a price θ of machine time, and a
    last one without an end, whose price is 0. Let f(x) be the batch time of x tokens without attention, φ prefill_req,
    and β the least of (f(x) + φ)/x. Of a batch let θ of its duration d go into a pool for every window, by the parts of
    d; from a request that decodes in it min(d, (1 - ε) d + δ), and from one that refills in it (1 - ε) d. Then

    1. the pool pays θ for all time that prompts need, β for a token and prefill_sq for squares, and for each decode
       that reads m tokens u(m), or (1 - ε + θ) β for each of m + 1 tokens of a refill in its place;
    2. a request has run its prompt between its arrival T and the end F of the batch with its first token, at a rate of
       at most 1, so that it is paid at least the least integral of θ over a part of [T, F] as long as it needs;
    3. of the time after F it keeps Z, where its k-th decode goes into windows that begin at F + (Z + k δ)/ε or before,
       and end after F and k - 1 batches of one token;
    4. so the sum of e2e latencies is at least the sum over requests of the least F - T, Z and what its runs are paid,
       less θ for all the time that there is.

    Proof of 1. Take a batch in one window with y decodes and x tokens in all. If y = 0, d is at least β x and the
    squares. If not, the pool has at least the lesser of (y + θ) d and ((1 - ε) y + θ) d + y δ; d is at least f(x), with
    prompts or refills φ more, and attention. Both factors are at least θ, which pays for squares; they pay attention of
    decodes; what is left of f(x) and φ beside θ β (x - y) is shared by y decodes. u is the least share over all y and x
    for the attention of one. A request that refills adds (1 - ε) d, and d is at least β for each of its tokens.
    Proof of 2. Squares telescope over chunks, and no batch is shorter than β and squares for its chunk.
    Proof of 3. Up to the end e of its batch it keeps ε (e - F) - k δ or more, at most Z, and every window of the batch
    begins before e. Before the batch of decode k others of it have run k - 1 times, each at least f(1) long.
    Proof of 4. Until F a request pays nothing into the pool, afterwards what it does not keep; add up.

    Rounding, down: `_after` says how F, Z and k are rounded. u is a minimum of affine functions of m that rise, above
    its chords. The least over F in a window is at a place where another window is used up, as the sum is affine between
    two of these (`_least_cost`).
    """
    if objective is not Objective.MEAN_E2E:
        raise UnprovedError(f"kind waiting bounds mean_e2e, the objective is {objective.value}")
    require_size("waiting", problem)
    stated = _read(certificate)
    cost, start = problem.cost, min(request.arrival_ps for request in problem.requests)
    places = turns(problem, problem.limits.batch_tokens)
    slope = min((_time(problem, x) + cost.prefill_req) // x for x in places)
    _require_small(problem, stated, slope)
    prices = np.array([*stated.prices, 0], np.int64)
    rows = np.array(
        [
            (
                request.arrival_ps - start,
                slope * request.input + cost.prefill_sq * request.input**2,
                request.input,
                request.output - 1,
            )
            for request in problem.requests
        ],
        np.int64,
    )
    decodes = _decode_worths(problem, stated, slope, prices)
    refills = (64 - stated.kept + prices) * slope
    later_decodes, later_refills = (np.minimum.accumulate(each[::-1])[::-1].copy() for each in (decodes, refills))
    costs = _least_costs(
        rows,
        prices,
        (decodes, refills, later_decodes, later_refills),
        (*stated.terms, _time(problem, 1), _step(problem), int(problem.eviction)),
        min(int(rows[:, 1].max()) // stated.window, len(stated.prices)) + 4,
    )
    total: int = sum(costs.tolist()) - stated.window * sum(stated.prices)
    return max(total // 64, 0)


def _read(certificate: Mapping[str, Any]) -> _Stated:
    for name, (least, most) in _RANGES.items():
        value = certificate.get(name)
        if type(value) is not int or not least <= value <= most:
            raise UnprovedError(f"{name} is {shown(value)}, expected an integer from {least} to {most}")
    prices = certificate.get("prices")
    if not isinstance(prices, list) or len(prices) > _MOST_WINDOWS or not all(map(_is_price, prices)):
        raise UnprovedError(f"prices is {shown(prices)}, expected at most {_MOST_WINDOWS} integers from 0 to 2^50")
    window, kept, short, blocks = (certificate[name] for name in _RANGES)
    return _Stated(window, kept, short, blocks, prices)


def _is_price(price: object) -> bool:
    return type(price) is int and 0 <= price <= 2**50


def _time(problem: Problem, tokens: int) -> int:
    """Return f."""
    return max(base + token * tokens for base, token in pieces_of(problem.cost))


def _step(problem: Problem) -> int:
    """Return the tokens between two points at which a decode's worth is computed."""
    return -(-max(request.input + request.output - 1 for request in problem.requests) // _POINTS)


def _most(problem: Problem) -> int:
    """Return how many decodes of different requests a batch may hold."""
    return min(len(problem.requests), most_decodes(problem))


def _require_small(problem: Problem, stated: _Stated, slope: int) -> None:
    """Refuse numbers that might not fit 64 bits, and prices of too many batches."""
    if not _time(problem, 1):
        raise UnprovedError("kind waiting is for batches that take time")
    dearest, step = max([0, *stated.prices]), _step(problem)
    if len(set(stated.prices)) * _most(problem) > _MOST_BATCHES:
        raise UnprovedError(f"prices, different ones times decodes in a batch, are more than {_MOST_BATCHES}")
    cost, requests = problem.cost, problem.requests
    read = cost.decode_kv * step * _POINTS + cost.decode_req
    tokens = problem.limits.batch_tokens + 1
    batch = max(base + token * tokens for base, token in pieces_of(cost)) + cost.prefill_req + read
    prompt, output = max(request.input for request in requests), max(request.output for request in requests)
    arrivals = [request.arrival_ps for request in requests]
    need = slope * prompt + cost.prefill_sq * prompt**2
    single = (64 + dearest) * (_time(problem, 1) + read) + 64 * stated.short
    span = stated.window * (len(stated.prices) + 2) + max(arrivals) - min(arrivals) + need
    require_64_bits(
        a_batch=(64 * _most(problem) + dearest) * batch + 64 * stated.short + dearest * slope * tokens,
        a_decode=step * single,
        a_refill=(64 + dearest) * slope * (step * _POINTS + 1),
        a_request=2 * (64 * span + dearest * need + output * (single + 64 * _time(problem, 1))),
    )


def _decode_worths(problem: Problem, stated: _Stated, slope: int, prices: Ints) -> Ints:
    """Return what decodes are worth, by window and point, in 64ths of ps; refills aside."""
    attention = problem.cost.decode_kv * _step(problem) * np.arange(_POINTS + 1, dtype=np.int64)
    found = {}
    places = turns(problem, problem.limits.batch_tokens)
    batches = np.array([(x, _time(problem, x) + problem.cost.prefill_req) for x in places], np.int64)
    most = min(_most(problem), problem.limits.batch_tokens)
    alone = np.array([_time(problem, y) for y in range(most + 2)], np.int64)
    beside = np.where(np.arange(most + 2) <= problem.limits.batch_tokens, alone + problem.cost.prefill_req, _NEVER)
    for price in set(prices.tolist()):
        row = np.full(_POINTS + 1, _NEVER)
        for share, granted in ((64, 0), (64 - stated.kept, 64 * stated.short)):
            _share(
                row,
                (price, share, granted, slope),
                (alone, beside, batches),
                attention + problem.cost.decode_req,
            )
        found[price] = row
    return np.stack([found[price] for price in prices.tolist()])


@compiled
def _share(row: Ints, terms: tuple[int, int, int, int], times: tuple[Ints, Ints, Ints], attention: Ints) -> None:
    """Lower ``row`` to what batches with any number y of decodes pay for each.

    As no token of a prompt is paid more than the batch takes for it, y and more decodes are each paid at least their
    share of what y alone take.
    """
    price, share, granted, slope = terms
    alone, beside, batches = times
    for y in range(1, alone.size - 1):
        rate = share * y + price
        if (share * alone[y] + granted + rate * attention >= row).all():
            return
        pays = rate * alone[y]
        if beside[y + 1] < 2**62:
            pays = min(pays, rate * beside[y + 1] - price * slope)
        for place in range(batches.shape[0]):
            if batches[place, 0] > y:
                pays = min(pays, rate * batches[place, 1] - price * slope * (batches[place, 0] - y))
        row[:] = np.minimum(row, pays // y + granted + rate * attention)


@compiled_part
def _paid(decodes: Ints, refill: int, read: int, step: int, eviction: int) -> int:
    """Return what a decode is paid in a window, or a refill in its place."""
    point, beyond = read // step, read % step
    paid: int = (decodes[point] * (step - beyond) + decodes[point + 1] * beyond) // step
    return min(paid, refill * (read + 1)) if eviction else paid


@compiled_part
def _after(  # noqa: PLR0917 - compiled functions take positions
    window: int,
    start: int,
    prompt: int,
    count: int,
    worths: tuple[Ints, Ints, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int],
    most: int,
    least: Ints,
) -> int:
    """Return the least of Z and what decodes are paid, with F in a window from ``start`` on; ``most`` if no less.

    Z is v ε W for an integer v ≥ 0, and a little more that is not counted, less than ε W. So the windows that begin at
    F + (Z + k δ)/ε or before are at most v + ⌈k δ/(ε W)⌉ after the one that follows F. A part of the decodes from k to
    K is taken to read what k reads, to begin as early as k may, and to end as late as K may.
    """
    decodes, refills, later_decodes, later_refills = worths
    length, kept, short, blocks, single, step, eviction = terms
    last = decodes.shape[0] - 1
    parts = min(blocks, count)
    cheapest = 0
    for part in range(parts):
        before, until = count * part // parts, count * (part + 1) // parts
        first = min((start + before * single) // length, last)
        least[part, 0], least[part, 1] = first, 2**62
        cheapest += (until - before) * _paid(
            later_decodes[first], later_refills[first], prompt + before, step, eviction
        )
    best, value = most, 0
    while value * kept * length + cheapest < best:
        paid, all_open = value * kept * length, True
        for part in range(parts):
            before, until = count * part // parts, count * (part + 1) // parts
            reach = last
            if kept > 0:
                reach = min(last, window + 1 + value + (64 * until * short + kept * length - 1) // (kept * length))
            all_open = all_open and reach == last
            for at in range(least[part, 0], reach + 1):
                here = _paid(decodes[at], refills[at], prompt + before, step, eviction)
                least[part, 1] = min(least[part, 1], here)
            least[part, 0] = max(least[part, 0], reach + 1)
            paid = best if least[part, 1] == 2**62 or paid >= best else paid + (until - before) * least[part, 1]
        best = min(best, paid)
        if all_open:
            break
        value += 1
    return best


@compiled
def _least_costs(
    rows: Ints,
    prices: Ints,
    worths: tuple[Ints, Ints, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int],
    room: int,
) -> Ints:
    """Return the least of F - T, Z and what runs are paid, for every request, in 64ths of ps."""
    costs = np.empty(len(rows), np.int64)
    used, least = np.empty((room, 2), np.int64), np.empty((terms[3], 2), np.int64)
    for r in range(len(rows)):
        costs[r] = _least_cost(rows[r], prices, worths, terms, used, least)
    return costs


@compiled_part
def _least_cost(  # noqa: PLR0917 - compiled functions take positions
    row: Ints,
    prices: Ints,
    worths: tuple[Ints, Ints, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int],
    used: Ints,
    least: Ints,
) -> int:
    """Return the least cost of a request.

    ``used`` holds the cheapest time up to the end of a window, as long as the prompt needs: prices, the highest last,
    and how much of each. As F moves through a window, its time takes the place of dearer time.
    """
    arrival, need, prompt, count = row[0], row[1], row[2], row[3]
    length, last = terms[0], prices.size - 1
    best, window = 2**62, min(arrival // length, last)
    size = have = paid = 0
    while window <= last:
        start = max(window * length, arrival)
        if 64 * (start - arrival) >= best:
            break
        free = need if window == last else (window + 1) * length - start
        taken = min(free, need - have)
        have += taken
        paid += taken * prices[window]
        end, free = start + taken, free - taken
        if have == need:
            cost = 64 * (end - arrival) + paid
            while free > 0 and size > 0 and used[size - 1, 0] > prices[window]:
                moved = min(free, used[size - 1, 1])
                paid -= moved * (used[size - 1, 0] - prices[window])
                end, free, taken = end + moved, free - moved, taken + moved
                used[size - 1, 1] -= moved
                if used[size - 1, 1] == 0:
                    size -= 1
                cost = min(cost, 64 * (end - arrival) + paid)
            if cost < best:
                if count > 0:
                    cost += _after(window, start, prompt, count, worths, terms, best - cost, least)
                best = min(best, cost)
        if taken > 0:
            at = size
            while at > 0 and used[at - 1, 0] > prices[window]:
                used[at, 0], used[at, 1] = used[at - 1, 0], used[at - 1, 1]
                at -= 1
            used[at, 0], used[at, 1] = prices[window], taken
            size += 1
        window += 1
    return best
