"""Certificates of kind ``congestion``: the sum of e2e latencies by prices of machine time, window by window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from optsched.check.alone import latencies_alone
from optsched.check.problem import Problem, pieces_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective

_Ints = npt.NDArray[np.int64]
_Window = tuple[int, int, int, int]
"""θ in 64ths of a request, requests that are surely alive, β in ps per token, and G in 64ths of ps."""

_TOO_LARGE = 2**62
_AGE = 10**15
"""What requests keep grows with their age up to this many ps only, so that 64 bits suffice."""


@dataclass(frozen=True)
class _Stated:
    """What a certificate states: ps, 64ths, and price, slope and step of every window."""

    window: int
    short: int
    kept: int
    share: int
    prices: list[tuple[int, int, int]]


def congestion_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    r"""Return the bound of the prices that the certificate states.

    Claim. Cut time from the first arrival on into windows, the last of which does not end and has price 0. Let every
    window have a price θ, a slope β, a step G and the number a of requests that are alive throughout it in any
    schedule, for even alone they cannot have ended. Let every request keep a share ε of its life, less ε D for each
    of its decodes; all the rest of its life, and θ for all time in batches, goes into a pool. Then

    1. the pool pays u(m) for every decode that reads m tokens, β n for every token of a prompt, G for every prefill
       step, and n times the attention time of prefills, n = (1 - ε) max(1, a) + θ, if u is what `_worth` computes;
    2. the sum of e2e latencies is at least what all requests are paid and keep, less θ for all time there is.

    Proof of 1. Of a batch of duration d with q runs, l of them prefills, the pool has
    q min(d, (1 - ε) d + ε D) - l ε D from those that run, who are alive, (1 - ε) d from each further one that is surely
    alive, and θ d: the lesser of S d - l ε D and L d + (q - l) ε D with S = q + (1 - ε) max(a - q, 0) + θ and
    L = (1 - ε) max(a, q) + θ. With x tokens d is f(x) and attention. As S, L ≥ n, attention of prefills is paid for;
    decodes are paid their attention S and L times, and as x - q + l tokens are prompts', there remains to see that
    S f(x) - l ε D ≥ (q - l) s + l G + β n (x - q + l), and
    L f(x) + (q - l) ε D ≥ (q - l) t + l G + β n (x - q + l), if decodes are
    paid no more than s + S A and t + L A. Both are affine in l: l = 0 (then x = q), l = 1 and l = q suffice. f is
    convex, and bends only where two pieces cross. A refill is paid as a prompt, of one step at least.

    Proof of 2. Of a batch that lies in several windows every window has its part. Nobody runs before arriving, no k-th
    decode begins before the first token can be there and k - 1 batches after it; at any time up to the end of the
    k-th decode the request has kept ε (age - k D) or more, up to the end of its prefills ε age. A share g of what it
    keeps is counted with the prompt, evenly over its tokens, the rest evenly with its decodes. So each token takes at
    least the cheapest window. Rounding: u is a minimum of affine functions of m, above its chords; so is a prompt
    token's least cost, as a function of its place, whose sum is at least the mean at the ends times I.
    """
    if objective is not Objective.MEAN_E2E:
        raise UnprovedError(f"kind congestion bounds mean_e2e, the objective is {objective.value}")
    stated = _read(certificate)
    start = min(request.arrival_ps for request in problem.requests)
    arrivals = np.array([request.arrival_ps - start for request in problem.requests], np.int64)
    lives = np.array([last for _, last in latencies_alone(problem)], np.int64)
    alive = _surely_alive(arrivals, lives, stated)
    windows = [(price, number, slope, step) for (price, slope, step), number in zip(stated.prices, alive, strict=True)]
    kinds = sorted(set(windows))
    place = {kind: number for number, kind in enumerate(kinds)}
    kind_of = np.array([place[window] for window in windows])
    _require_small(problem, stated, kinds)
    decodes = np.stack([_worth(problem, stated, kind) for kind in kinds])
    total = _decodes(problem, stated, arrivals, kind_of, decodes)
    total += _prompts(problem, stated, arrivals, kind_of, kinds)
    total -= stated.window * sum(price for price, _, _ in stated.prices)
    return max(total // 64, 0)


def _read(certificate: Mapping[str, Any]) -> _Stated:
    limits = {"window_ps": (1, 10**15), "short_ps": (0, 10**13), "kept": (0, 63), "prefill_share": (0, 64)}
    for name, (least, most) in limits.items():
        value = certificate.get(name)
        if type(value) is not int or not least <= value <= most:
            raise UnprovedError(f"{name} is {shown(value)}, expected an integer from {least} to {most}")
    runs = certificate.get("windows")
    if not isinstance(runs, list) or not runs or not all(map(_is_run, runs)):
        raise UnprovedError(f"windows is {shown(runs)}, expected a list of [number ≥ 1, price, slope, step]")
    if runs[-1][:2] != [1, 0]:
        raise UnprovedError(f"windows ends with {shown(runs[-1])}, expected one window of price 0")
    if sum(run[0] for run in runs) > 1_000_000:
        raise UnprovedError("windows are more than 1,000,000")
    prices = [(price, slope, step) for count, price, slope, step in runs for _ in range(count)]
    window, short, kept, share = (certificate[name] for name in limits)
    return _Stated(window, short, kept, share, prices)


def _is_run(run: object) -> bool:
    return (
        isinstance(run, list)
        and len(run) == 4
        and all(type(number) is int and 0 <= number < 2**50 for number in run)
        and run[0] >= 1
    )


def _surely_alive(arrivals: _Ints, alone: _Ints, stated: _Stated) -> list[int]:
    """Return for every window how many requests are alive at any time in it, at least; 0 in the last."""
    last = len(stated.prices) - 1
    # At equal times arrivals come first.
    events = sorted(
        [(time, 0, 1) for time in arrivals.tolist()] + [(time, 1, -1) for time in (arrivals + alone).tolist()]
    )
    number, event, found = 0, 0, []
    for window in range(last):
        while event < len(events) and events[event][0] <= window * stated.window:
            number += events[event][2]
            event += 1
        least = number
        while event < len(events) and events[event][0] < (window + 1) * stated.window:
            number += events[event][2]
            least = min(least, number)
            event += 1
        found.append(least)
    return [*found, 0]


def _require_small(problem: Problem, stated: _Stated, kinds: Iterable[_Window]) -> None:
    """Refuse numbers that might not fit 64 bits."""
    cost, runs, most = problem.cost, len(problem.requests), problem.limits.batch_tokens
    longest = max(request.input + request.output for request in problem.requests) + 64
    largest = max(base + token * most for base, token in pieces_of(cost))
    single = max(base + token for base, token in pieces_of(cost))
    read = cost.decode_kv * longest + cost.decode_req
    granted = stated.kept * stated.short
    for price, alive, slope, step in kinds:
        factor = 64 * max(1, alive) + price
        numbers = (
            (64 * (runs + alive) + price) * (largest + read) + (granted + step) * runs + slope * factor * most,
            64 * (factor * (single + read) + granted + step),
            2 * factor * ((slope + 2 * cost.prefill_sq * longest) * longest + cost.prefill_req) + 2 * step,
        )
        if max(numbers) > _TOO_LARGE:
            raise UnprovedError("its numbers are too large to be verified in 64 bits")


def _worth(problem: Problem, stated: _Stated, kind: _Window) -> _Ints:
    """Return u in a window, in 64ths of ps, for 0, 1, … tokens read."""
    price, alive, slope, step = kind
    cost, limits = problem.cost, problem.limits
    factor = (64 - stated.kept) * max(1, alive) + price
    prompt_token = slope * factor
    most = min(len(problem.requests), problem.blocks, limits.batch_tokens, problem.runs or limits.batch_tokens)
    q = np.arange(1, most + 1, dtype=np.int64)
    steep = 64 * q + (64 - stated.kept) * np.maximum(alive - q, 0) + price
    flat = (64 - stated.kept) * np.maximum(alive, q) + price
    granted = stated.kept * stated.short

    def batch(tokens: _Ints) -> _Ints:
        time: _Ints = np.max([base + token * tokens for base, token in pieces_of(cost)], axis=0)
        return time

    paid_steep, paid_flat = steep * batch(q) // q, (flat * batch(q) + granted * q) // q
    for x in _where_least(problem, q):
        prompts = step * q + prompt_token * x
        if np.any(steep * batch(x) - granted * q < prompts) or np.any(flat * batch(x) < prompts):
            raise UnprovedError(f"windows has slope {slope} and step {step} at price {price}, more than prompts take")
        rest = step + prompt_token * (x - q + 1)
        for paid, left in (
            (paid_steep, steep * batch(x) - granted - rest),
            (paid_flat, flat * batch(x) + granted * (q - 1) - rest),
        ):
            paid[1:] = np.minimum(paid[1:], left[1:] // (q[1:] - 1))
    longest = max(request.input + request.output for request in problem.requests)
    points = np.arange(0, longest + 64, 64, dtype=np.int64)
    at_points = np.full(points.size, _TOO_LARGE)
    attention = cost.decode_kv * points + cost.decode_req
    for paid, rise in ((paid_steep, steep), (paid_flat, flat)):
        # Lines that begin above where another ends are nowhere least.
        low = paid + rise * attention[0] <= np.min(paid + rise * attention[-1])
        for begin, slant in zip(paid[low], rise[low], strict=True):
            np.minimum(at_points, begin + slant * attention, out=at_points)
    m = np.arange(points[-1], dtype=np.int64)
    after = m % 64
    decode = ((64 - after) * at_points[m // 64] + after * at_points[m // 64 + 1]) // 64
    refill = step + prompt_token * (m + 1) if problem.eviction else decode
    worth: _Ints = np.minimum(decode, refill)
    return worth


def _where_least(problem: Problem, q: _Ints) -> list[_Ints]:
    """Return numbers of tokens, at least q, at one of which f(x) less any multiple of x is least."""
    pieces, most = pieces_of(problem.cost), problem.limits.batch_tokens
    places = {1, most}
    for base, token in pieces:
        for other, steeper in pieces:
            if steeper > token:
                crossing = (base - other) // (steeper - token)
                places |= {min(max(1, crossing), most), min(max(1, crossing + 1), most)}
    return [np.maximum(q, place) for place in sorted(places)]


def _decodes(problem: Problem, stated: _Stated, arrivals: _Ints, kind_of: _Ints, worth: _Ints) -> int:
    """Return what all decodes are paid, and the requests keep with them, in their cheapest windows."""
    requests = problem.requests
    single = max(base + token for base, token in pieces_of(problem.cost))
    r = np.repeat(np.arange(len(requests)), [request.output - 1 for request in requests])
    k = np.concatenate([np.arange(1, request.output, dtype=np.int64) for request in requests])
    read = np.array([request.input for request in requests], np.int64)[r] + k - 1
    firsts = np.array([first for first, _ in latencies_alone(problem)], np.int64)
    earliest = arrivals[r] + firsts[r] + (k - 1) * single
    free = arrivals[r] + k * stated.short
    parts = 64 * np.array([request.output - 1 for request in requests], np.int64)[r]
    last = kind_of.size - 1
    window = np.minimum(earliest // stated.window, last)
    lowest = worth.min(axis=0)[read]
    best = np.full(r.size, _TOO_LARGE)
    todo = np.arange(r.size)
    while todo.size:
        age = np.clip(window * stated.window - free[todo], 0, _AGE)
        keeps = stated.kept * (64 - stated.share) * age // parts[todo]
        best[todo] = np.minimum(best[todo], keeps + worth[kind_of[window], read[todo]])
        later = (keeps + lowest[todo] < best[todo]) & (window < last)
        todo, window = todo[later], window[later] + 1
    return _sum(best)


def _prompts(problem: Problem, stated: _Stated, arrivals: _Ints, kind_of: _Ints, kinds: list[_Window]) -> int:
    """Return what all prompts are paid, and the requests keep with them, in their cheapest windows."""
    cost, last = problem.cost, kind_of.size - 1
    size = np.array([request.input for request in problem.requests], np.int64)
    share = np.array([64 if request.output == 1 else stated.share for request in problem.requests], np.int64)
    factors = np.array([(64 - stated.kept) * max(1, alive) + price for price, alive, _, _ in kinds], np.int64)
    tokens = factors * np.array([slope for _, _, slope, _ in kinds], np.int64)
    steps = np.array([step for _, _, _, step in kinds], np.int64)
    ends = []
    for place in (np.ones_like(size), size):
        attention = cost.prefill_sq * (2 * place - 1) * size + cost.prefill_req
        lowest = tokens.min() * size + factors.min() * attention + steps.min()
        best, todo = np.full(size.size, _TOO_LARGE), np.arange(size.size)
        window = np.minimum(arrivals // stated.window, last)
        while todo.size:
            kind = kind_of[window]
            age = np.clip(window * stated.window - arrivals[todo], 0, _AGE)
            keeps = stated.kept * share[todo] * age // 64
            paid = tokens[kind] * size[todo] + factors[kind] * attention[todo] + steps[kind]
            best[todo] = np.minimum(best[todo], keeps + paid)
            later = (keeps + lowest[todo] < best[todo]) & (window < last)
            todo, window = todo[later], window[later] + 1
        ends.append(best)
    return _sum((ends[0] + ends[1]) // 2)


def _sum(numbers: _Ints) -> int:
    high, low = np.divmod(numbers, 2**31)
    return int(high.sum()) * 2**31 + int(low.sum())
