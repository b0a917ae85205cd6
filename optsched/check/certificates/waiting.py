"""Certificates of kind ``waiting``: the sum of e2e latencies by prices of the machine time that requests queue for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optsched.check.certificates.shared.guard import require_64_bits, require_size
from optsched.check.certificates.shared.work import most_decodes, turns
from optsched.check.problem import Problem, tokens_ps
from optsched.check.reading import UnprovedError, shown
from optsched.compiled import compiled, compiled_part
from optsched.model.ints import Ints
from optsched.model.objectives import Objective

_POINTS = 16
"""Stretches of tokens read, between whose ends a decode's worth is taken to be affine."""
_MOST_WINDOWS = 100_000
_MOST_BATCHES = 200_000_000
"""Different prices, times decodes in a batch."""
_FAR, _NEAR = 64, 8
"""Windows of which a least cost is found together first."""
_RANGES = {
    "slope_ps": (0, 10**15),
    "window_ps": (1, 10**15),
    "kept": (0, 64),
    "short_ps": (0, 10**13),
    "blocks": (1, 1000),
    "parts": (1, 64),
}
"""The least and the greatest of what certificates state besides prices."""
_NEVER = 2**62


@dataclass(frozen=True)
class _Stated:
    """What a certificate states: ps, a share in 64ths, and prices in 64ths of a request; the last window has none.

    ``memory`` are prices of a token that a decode holds, in 64ths of ps. ``blocks`` is into how many parts the decodes
    of a request are cut, of which each counts as one place, ``parts`` into how many ε W is.
    """

    slope: int
    window: int
    kept: int
    short: int
    blocks: int
    parts: int
    prices: list[int]
    memory: list[int]

    @property
    def terms(self) -> tuple[int, int, int, int, int]:
        """What `_after` needs."""
        return self.window, self.kept, self.short, self.blocks, self.parts


def waiting_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    r"""Return the bound of the prices that the certificate states.

    Claim. Cut time from the first arrival on into windows of equal length W, each with a price θ of machine time and a
    price μ of memory, and a last one without an end, whose prices are 0. Let f(x) be the batch time of x tokens without
    attention, φ prefill_req, β at most the least of (f(x) + φ)/x, and H the most tokens that a request holds. Of a
    batch let θ of its duration d go into a pool for every window, by the parts of d; from a request that decodes in it
    min(d, (1 - ε) d + δ), and from one that refills in it (1 - ε) d. Then

    1. the pool pays θ for all time that prompts need, β for a token and prefill_sq for squares, and for each decode
       that reads m tokens u(m), of which μ (m + 1) is for what it holds, or (1 - ε + θ) β for each of m + 1 tokens of a
       refill in its place;
    2. a request has run its prompt between its arrival T and the end F of the batch with its first token, at a rate of
       at most 1, so that it is paid at least the least integral of θ over a part of [T, F] as long as it needs;
    3. of the time after F it keeps Z, where its k-th decode goes into windows that begin at F + (Z + k δ)/ε or before,
       and end after F and k - 1 batches of one token;
    4. so the sum of e2e latencies is at least the sum over requests of the least F - T, Z and what its runs are paid,
       less θ for all the time that there is.

    Proof of 1. Take a batch in one window with y decodes and x tokens in all. If y = 0, d is at least β x and the
    squares. If not, the pool has at least the lesser of (y + θ) d and ((1 - ε) y + θ) d + y δ; d is at least f(x), with
    prompts or refills φ more, and attention. Both factors are at least θ, which pays for squares; they pay attention of
    decodes; what is left of f(x) and φ beside θ β (x - y) and μ min(M, y H) is shared by y decodes. After the batch
    these hold m + 1 tokens each, at most H, and at most M together: so they are paid no more for that than was left
    out. u is the least share over all y and x for one with its attention, and μ (m + 1). A request that refills adds
    (1 - ε) d, and d is at least β for each of its tokens.
    Proof of 2. Squares telescope over chunks, and no batch is shorter than β and squares for its chunk.
    Proof of 3. Up to the end e of its batch it keeps ε (e - F) - k δ or more, at most Z, and every window of the batch
    begins before e. Before the batch of decode k others of it have run k - 1 times, each at least f(1) long.
    Proof of 4. Until F a request pays nothing into the pool, afterwards what it does not keep; add up.

    Rounding, down: `_after` says how F, Z and k are rounded. u is a minimum of affine functions of m, so it is concave
    and above its chords. The least over F in a window is at a place where another window is used up, as the sum is
    affine between two of these (`_least_cost`).
    """
    if objective is not Objective.MEAN_E2E:
        raise UnprovedError(f"kind waiting bounds mean_e2e, the objective is {objective.value}")
    require_size("waiting", problem)
    stated = _read(certificate)
    cost, start = problem.cost, min(request.arrival_ps for request in problem.requests)
    places = turns(problem, problem.limits.batch_tokens)
    slope = stated.slope
    most = min((tokens_ps(cost, x) + cost.prefill_req) // x for x in places)
    if slope > most:
        raise UnprovedError(f"slope_ps is {slope}, more than the {most} ps that a token takes at least")
    _require_small(problem, stated)
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
    decodes = _decode_worths(problem, stated)
    _require_small_worths(problem, stated, int(decodes.max()))
    refills = (64 - stated.kept + prices) * slope
    # Windows are along the last axis, so that those which follow each other are beside each other.
    later_decodes, later_refills = (
        np.minimum.accumulate(each[..., ::-1], axis=-1)[..., ::-1].copy() for each in (decodes, refills)
    )
    costs = _least_costs(
        rows,
        prices,
        (decodes, refills, later_decodes, later_refills),
        (*stated.terms, tokens_ps(problem.cost, 1), _step(problem), int(problem.eviction)),
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
    memory = certificate.get("memory")
    if not isinstance(memory, list) or len(memory) != len(prices) or not all(map(_is_price, memory)):
        raise UnprovedError(f"memory is {shown(memory)}, expected as many integers from 0 to 2^50 as prices")
    slope, window, kept, short, blocks, parts = (certificate[name] for name in _RANGES)
    return _Stated(slope, window, kept, short, blocks, parts, prices, memory)


def _is_price(price: object) -> bool:
    return type(price) is int and 0 <= price <= 2**50


def _step(problem: Problem) -> int:
    """Return the tokens between two points at which a decode's worth is computed."""
    return -(-_longest(problem) // _POINTS)


def _most(problem: Problem) -> int:
    """Return how many decodes of different requests a batch may hold."""
    return min(len(problem.requests), most_decodes(problem))


def _longest(problem: Problem) -> int:
    """Return the most tokens that a request holds."""
    return max(request.input + request.output - 1 for request in problem.requests)


def _require_small(problem: Problem, stated: _Stated) -> None:
    """Refuse times and batches whose numbers might not fit 64 bits, and prices of too many batches."""
    if not tokens_ps(problem.cost, 1):
        raise UnprovedError("kind waiting is for batches that take time")
    dearest, step = max([0, *stated.prices]), _step(problem)
    kinds = len(set(zip(stated.prices, stated.memory, strict=True)))
    if kinds * _most(problem) > _MOST_BATCHES:
        raise UnprovedError(f"prices, different ones times decodes in a batch, are more than {_MOST_BATCHES}")
    cost, tokens = problem.cost, problem.limits.batch_tokens + 1
    read = cost.decode_kv * step * _POINTS + cost.decode_req
    batch = tokens_ps(cost, tokens) + cost.prefill_req + read
    rent = max([0, *stated.memory]) * (problem.limits.kv_tokens + step * _POINTS + 1)
    output = max(request.output for request in problem.requests)
    require_64_bits(
        a_batch=(64 * _most(problem) + dearest) * batch
        + 64 * stated.short * _most(problem)
        + dearest * stated.slope * tokens
        + 2 * rent,
        a_place=64 * stated.parts * (_span(problem, stated) + output * (stated.short + tokens_ps(cost, 1))),
        a_refill=2 * (64 + dearest) * stated.slope * (step * _POINTS + 1),
    )


def _require_small_worths(problem: Problem, stated: _Stated, worth: int) -> None:
    """Refuse what requests are paid if it might not fit 64 bits, by the most that a decode is paid."""
    dearest, output = max([0, *stated.prices]), max(request.output for request in problem.requests)
    paid = dearest * _need(problem, stated) + output * (worth + 64 * stated.short)
    require_64_bits(a_decode=2 * _step(problem) * worth, a_request=64 * _span(problem, stated) + paid)


def _need(problem: Problem, stated: _Stated) -> int:
    """Return the most time that a prompt needs."""
    prompt = max(request.input for request in problem.requests)
    return stated.slope * prompt + problem.cost.prefill_sq * prompt**2


def _span(problem: Problem, stated: _Stated) -> int:
    """Return a time that is after all windows with prices and all prompts."""
    arrivals = [request.arrival_ps for request in problem.requests]
    windows = stated.window * (len(stated.prices) + 2)
    return windows + max(arrivals) - min(arrivals) + 2 * _need(problem, stated)


def _decode_worths(problem: Problem, stated: _Stated) -> Ints:
    """Return what decodes are worth, by point and window, in 64ths of ps; refills aside."""
    step, longest = _step(problem), _longest(problem)
    read = step * np.arange(_POINTS + 1, dtype=np.int64)
    attention = problem.cost.decode_kv * read + problem.cost.decode_req
    found = {}
    places = turns(problem, problem.limits.batch_tokens)
    batches = np.array([(x, tokens_ps(problem.cost, x) + problem.cost.prefill_req) for x in places], np.int64)
    most = min(_most(problem), problem.limits.batch_tokens)
    alone = np.array([tokens_ps(problem.cost, y) for y in range(most + 2)], np.int64)
    beside = np.where(np.arange(most + 2) <= problem.limits.batch_tokens, alone + problem.cost.prefill_req, _NEVER)
    holds = np.minimum(problem.limits.kv_tokens, longest * np.arange(most + 2, dtype=np.int64))
    kinds = list(zip([*stated.prices, 0], [*stated.memory, 0], strict=True))
    for price, rent in set(kinds):
        row = np.full(_POINTS + 1, _NEVER)
        for share, granted in ((64, 0), (64 - stated.kept, 64 * stated.short)):
            _share(
                row,
                (price, share, granted, stated.slope),
                (alone, beside, batches),
                (attention, rent * (read + 1), rent * holds),
            )
        found[price, rent] = row
    return np.stack([found[kind] for kind in kinds], axis=-1)


@compiled
def _share(
    row: Ints, terms: tuple[int, int, int, int], times: tuple[Ints, Ints, Ints], own: tuple[Ints, Ints, Ints]
) -> None:
    """Lower ``row`` to what batches with any number y of decodes pay for each.

    As no token of a prompt is paid more than the batch takes for it, and the memory's part of each falls with y, y and
    more decodes are each paid at least their share of what y alone take. ``own`` are the attention of one, what it is
    paid for what it holds, and what y of them are paid for that at most.
    """
    price, share, granted, slope = terms
    alone, beside, batches = times
    attention, rent, rents = own
    for y in range(1, alone.size - 1):
        rate = share * y + price
        part = -(-rents[y] // y)
        if (share * alone[y] - part + granted + rate * attention + rent >= row).all():
            return
        pays = rate * alone[y]
        if beside[y + 1] < 2**62:
            pays = min(pays, rate * beside[y + 1] - price * slope)
        for place in range(batches.shape[0]):
            if batches[place, 0] > y:
                pays = min(pays, rate * batches[place, 1] - price * slope * (batches[place, 0] - y))
        row[:] = np.minimum(row, (pays - rents[y]) // y + granted + rate * attention + rent)


@compiled_part
def _paid(paid: int, refill: int, read: int, step: int, eviction: int) -> int:
    """Return the lesser of ``paid`` / ``step``, of a decode, and what a refill in its place is paid for each token."""
    return min(paid // step, refill * (read + 1)) if eviction else paid // step


@compiled_part
def _between(decodes: Ints, window: int, read: int, step: int) -> int:
    """Return ``step`` times what a decode is paid in a window, by the points before and after what it reads."""
    point, beyond = read // step, read % step
    paid: int = decodes[point, window] * (step - beyond) + decodes[point + 1, window] * beyond
    return paid


@compiled_part
def _after(  # noqa: PLR0917 - compiled functions take positions
    start: int,
    end: int,
    prompt: int,
    count: int,
    worths: tuple[Ints, Ints, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int, int],
    most: int,
    least: Ints,
) -> int:
    """Return the least of Z and what decodes are paid, with F from ``start`` to ``end``; ``most`` if no less.

    Z is v parts of ε W, of p in all, for an integer v ≥ 0, and a little more that is not counted, less than a part.
    So the windows that begin at F + (Z + k δ)/ε or before begin before F + (v + 1) W/p + k δ/ε. Decodes of a part, from
    k to K, all begin as early as k may, and end as late as K may. What one that reads m is paid least in these windows
    is concave in m, too: so they are paid at least the mean of the least for the first and the least for the last each.

    ``least`` has for each part the next window to open, the least of the first, of the last and of a token refilled in
    those that are open, and what the part is paid, 2^62 before any is open; then the decodes before it and to its end.
    """
    decodes, refills, later_decodes, later_refills = worths
    length, kept, short, blocks, finer, single, step, eviction = terms
    last = decodes.shape[1] - 1
    parts = min(blocks, count)
    cheapest = 0
    for part in range(parts):
        before, until = count * part // parts, count * (part + 1) // parts
        first = min((start + before * single) // length, last)
        least[part, 0], least[part, 5], least[part, 6] = first, before, until
        least[part, 1] = least[part, 2] = least[part, 3] = least[part, 4] = 2**62
        ends = 0
        for read in (prompt + before, prompt + until - 1):
            ends += _paid(_between(later_decodes, first, read, step), later_refills[first], read, step, eviction)
        cheapest += (until - before) * (ends // 2)
    best, value = most, 0
    while value * kept * length // finer + cheapest < best:
        paid, all_open = value * kept * length // finer, True
        for part in range(parts):
            reach = last
            if kept > 0:
                # Times 64 ε and the parts; before the place itself.
                place = finer * (kept * end + 64 * least[part, 6] * short) + (value + 1) * kept * length
                reach = min(last, (place - 1) // (finer * kept * length))
            all_open = all_open and reach == last
            if least[part, 0] <= reach:
                before, until = least[part, 5], least[part, 6]
                early, late = prompt + before, prompt + until - 1
                for at in range(least[part, 0], reach + 1):
                    least[part, 1] = min(least[part, 1], _between(decodes, at, early, step))
                    least[part, 2] = min(least[part, 2], _between(decodes, at, late, step))
                    least[part, 3] = min(least[part, 3], refills[at])
                least[part, 0] = reach + 1
                ends = _paid(least[part, 1], least[part, 3], early, step, eviction)
                ends += _paid(least[part, 2], least[part, 3], late, step, eviction)
                least[part, 4] = (until - before) * (ends // 2)
            paid = best if least[part, 4] == 2**62 or paid >= best else paid + least[part, 4]
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
    terms: tuple[int, int, int, int, int, int, int, int],
    room: int,
) -> Ints:
    """Return the least of F - T, Z and what runs are paid, for every request, in 64ths of ps."""
    costs = np.empty(len(rows), np.int64)
    used, least = np.empty((room, 2), np.int64), np.empty((terms[3], 7), np.int64)
    far, near = np.full(len(prices), 2**62), np.full(len(prices), 2**62)
    for window in range(len(prices)):
        far[window // _FAR] = min(far[window // _FAR], prices[window])
        near[window // _NEAR] = min(near[window // _NEAR], prices[window])
    for r in range(len(rows)):
        costs[r] = _least_cost(rows[r], prices, (far, near), worths, terms, used, least)
    return costs


@compiled_part
def _least_cost(  # noqa: PLR0917 - compiled functions take positions
    row: Ints,
    prices: Ints,
    floors: tuple[Ints, Ints],
    worths: tuple[Ints, Ints, Ints, Ints],
    terms: tuple[int, int, int, int, int, int, int, int],
    used: Ints,
    least: Ints,
) -> int:
    """Return the least cost of a request.

    ``used`` holds the cheapest time up to the end of a window, as long as the prompt needs: prices, the highest last,
    and how much of each. As F moves through a window, its time takes the place of dearer time, of which there is no
    more than the need: from ``end`` and the need on P falls no more, and F may as well be that place, and Z larger. Of
    64 and of 8 windows a least cost is known first, with P at least the need at their least price or one before.
    """
    arrival, need, prompt, count = row[0], row[1], row[2], row[3]
    length, last = terms[0], prices.size - 1
    best, window = 2**62, min(arrival // length, last)
    size = have = paid = 0
    lowest = prices[window]
    far_until = near_until = far_after = near_after = 0
    while window <= last:
        start = max(window * length, arrival)
        if 64 * (start - arrival) >= best:
            break
        lowest = min(lowest, prices[window])
        free = need if window == last else (window + 1) * length - start
        taken = min(free, need - have)
        have += taken
        paid += taken * prices[window]
        end, free = start + taken, free - taken
        if have == need:
            until = end + need if window == last else min(end + need, (window + 1) * length)
            cost = 64 * (end - arrival) + paid
            while free > 0 and size > 0 and used[size - 1, 0] > prices[window]:
                moved = min(free, used[size - 1, 1])
                paid -= moved * (used[size - 1, 0] - prices[window])
                end, free, taken = end + moved, free - moved, taken + moved
                used[size - 1, 1] -= moved
                if used[size - 1, 1] == 0:
                    size -= 1
                cost = min(cost, 64 * (end - arrival) + paid)
            if count > 0 and cost < best:
                before = 64 * (start - arrival)
                if window >= far_until:
                    far_until = min((window // _FAR + 1) * _FAR, last + 1)
                    below = before + need * min(lowest, floors[0][window // _FAR])
                    far_after = _after(start, far_until * length, prompt, count, worths, terms, best - below, least)
                if cost + far_after < best and window >= near_until:
                    near_until = min((window // _NEAR + 1) * _NEAR, last + 1)
                    below = before + need * min(lowest, floors[1][window // _NEAR])
                    near_after = _after(start, near_until * length, prompt, count, worths, terms, best - below, least)
                known = max(far_after, near_after if window < near_until else 0)
                if cost + known < best:
                    best = min(best, cost + _after(start, until, prompt, count, worths, terms, best - cost, least))
            else:
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
