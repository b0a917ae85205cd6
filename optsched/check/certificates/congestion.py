"""Certificates of kind ``congestion``: the sum of e2e latencies by prices of machine time, window by window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from optsched.check.certificates.alone import latencies_alone
from optsched.check.certificates.shared.guard import require_64_bits
from optsched.check.certificates.shared.work import turns
from optsched.check.problem import Problem, pieces_of
from optsched.check.reading import UnprovedError, shown
from optsched.model.objectives import Objective

_Ints = npt.NDArray[np.int64]
_Window = tuple[int, int, int]
"""θ in 64ths of a request, requests that are surely alive, and β in ps per token."""

_TOO_LARGE = 2**62
_MOST_ENTRIES = 200_000_000
"""Numbers in one array."""
_BLOCK, _LINES = 64, 64
"""Windows, and affine functions, that are looked at or left out together."""
_AGE = 10**15
"""What requests keep grows with their age up to this many ps only, so that 64 bits suffice."""


@dataclass(frozen=True)
class _Stated:
    """What a certificate states: ps, 64ths, and price and slope of every window."""

    window: int
    short: int
    kept: int
    share: int
    prices: list[tuple[int, int]]


def congestion_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    r"""Return the bound of the prices that the certificate states.

    Claim. Cut time from the first arrival on into windows, the last of which does not end and has price 0. Let every
    window have a price θ, a slope β, at most f(x) / x for all x, and the number a of requests that are alive throughout
    it in any schedule, for even alone they cannot have ended. Let every request keep a share ε of its life, less ε D
    for each of its decodes; all the rest of its life, and θ for all time in batches, goes into a pool. Then

    1. the pool pays u(m) for every decode that reads m tokens, β n for every token of a prompt, and n times the
       attention time of prefills, n = (1 - ε) max(1, a) + θ, if u is what `_worth` computes;
    2. the sum of e2e latencies is at least what all requests are paid and keep, less θ for all time there is.

    Proof of 1. Of a batch of duration d with y decodes and l prefill steps, the pool has y min(d, (1 - ε) d + ε D) from
    those that decode, (1 - ε) d from each of the others that are alive, together max(a, y + l) at least, and θ d: the
    lesser of S d and L d + y ε D with S = y + (1 - ε) (max(a, y + l) - y) + θ and L = (1 - ε) max(a, y + l) + θ. With x
    tokens d is f(x) and attention. As S, L ≥ n, attention of prefills is paid for; decodes are paid their attention S
    and L times; and there remains what S f(x) and L f(x) + y ε D leave beside β n (x - y) for the tokens of prompts,
    shared equally by the decodes. Of l ≥ 1 it is least for l = 1. Without decodes β n x ≤ n f(x). f is convex, and
    bends only where two pieces cross. A refill is paid as a prompt.

    Proof of 2. Of a batch that lies in several windows every window has its part. No request runs before it arrives, no
    k-th decode begins before the first token can be there and k - 1 batches after it; at any time up to the end of the
    k-th decode the request has kept ε (age - k D) or more, up to the end of its prefills ε age. A share g of what it
    keeps is counted with the prompt, evenly over its tokens, the rest evenly with its decodes. So each token takes at
    least the cheapest window. Rounding: u is a minimum of affine functions of m, above its chords; so is a prompt
    token's least cost, as a function of its place, whose sum is at least the mean at the ends times I.
    """
    if objective is not Objective.MEAN_E2E:
        raise UnprovedError(f"kind congestion bounds mean_e2e, the objective is {objective.value}")
    stated = _read(certificate)
    latencies = latencies_alone(problem)
    _require_small_times(problem, stated, latencies)
    times = _times(problem, latencies)
    alive = _surely_alive(times, stated)
    windows = [(price, number, slope) for (price, slope), number in zip(stated.prices, alive, strict=True)]
    kinds = sorted(set(windows))
    _require_small_prices(problem, stated, kinds)
    _require_prompts_paid(problem, stated)
    place = {kind: number for number, kind in enumerate(kinds)}
    kind_of = np.array([place[window] for window in windows])
    decodes = np.stack([_worth(problem, stated, kind) for kind in kinds])
    total = _decodes(problem, stated, times, kind_of, decodes)
    total += _prompts(problem, stated, times, kind_of, kinds)
    total -= stated.window * sum(price for price, _ in stated.prices)
    return max(total // 64, 0)


def _read(certificate: Mapping[str, Any]) -> _Stated:
    limits = {"window_ps": (1, 10**15), "short_ps": (0, 10**13), "kept": (0, 63), "prefill_share": (0, 64)}
    for name, (least, most) in limits.items():
        value = certificate.get(name)
        if type(value) is not int or not least <= value <= most:
            raise UnprovedError(f"{name} is {shown(value)}, expected an integer from {least} to {most}")
    runs = certificate.get("windows")
    if not isinstance(runs, list) or not runs or not all(map(_is_run, runs)):
        raise UnprovedError(f"windows is {shown(runs)}, expected a list of [number ≥ 1, price, slope]")
    if runs[-1][:2] != [1, 0]:
        raise UnprovedError(f"windows ends with {shown(runs[-1])}, expected one window of price 0")
    if sum(run[0] for run in runs) > 1_000_000:
        raise UnprovedError("windows are more than 1,000,000")
    prices = [(price, slope) for count, price, slope in runs for _ in range(count)]
    window, short, kept, share = (certificate[name] for name in limits)
    return _Stated(window, short, kept, share, prices)


def _is_run(run: object) -> bool:
    return (
        isinstance(run, list)
        and len(run) == 3
        and all(type(number) is int and 0 <= number < 2**50 for number in run)
        and run[0] >= 1
    )


@dataclass(frozen=True)
class _Times:
    """When requests arrive, and can have their first and last tokens at the earliest; from the first arrival on."""

    arrival: _Ints
    first: _Ints
    last: _Ints


def _times(problem: Problem, latencies: Sequence[tuple[int, int]]) -> _Times:
    start = min(request.arrival_ps for request in problem.requests)
    arrival = np.array([request.arrival_ps - start for request in problem.requests], np.int64)
    alone = np.array(latencies, np.int64)
    return _Times(arrival, arrival + alone[:, 0], arrival + alone[:, 1])


def _surely_alive(times: _Times, stated: _Stated) -> list[int]:
    """Return for every window how many requests are alive at any time in it, at least; 0 in the last."""
    last = len(stated.prices) - 1
    # At equal times arrivals come first.
    events = sorted([(time, 0, 1) for time in times.arrival.tolist()] + [(time, 1, -1) for time in times.last.tolist()])
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


def _require_small_times(problem: Problem, stated: _Stated, latencies: Sequence[tuple[int, int]]) -> None:
    """Refuse times that might not fit 64 bits: of `_times`, `_decodes`, and the begins of windows."""
    arrivals = [request.arrival_ps for request in problem.requests]
    latest, output = max(arrivals) - min(arrivals), max(request.output for request in problem.requests)
    require_64_bits(
        an_end=latest + max(last for _, last in latencies) + output * _single(problem),
        an_age=latest + output * stated.short,
        a_window=len(stated.prices) * stated.window,
    )


def _require_small_prices(problem: Problem, stated: _Stated, kinds: Sequence[_Window]) -> None:
    """Refuse prices with which arrays might not fit 64 bits, or memory.

    A batch pays at most what 64 (2 n + a) + θ requests are worth, n of them decoding and a alive, ``factor`` is the
    most that one token's time counts, and chords multiply by 64 once more (`_worth`); prompts are summed twice
    (`_prompts`).
    """
    cost, runs, most = problem.cost, len(problem.requests), problem.limits.batch_tokens + 1
    longest = max(request.input + request.output for request in problem.requests) + 64
    if (len(kinds) + len(stated.prices) // _BLOCK) * longest > _MOST_ENTRIES:
        raise UnprovedError(f"windows need arrays of more than {_MOST_ENTRIES} numbers with contexts of {longest}")
    largest = max(base + token * most for base, token in pieces_of(cost))
    single, read = _single(problem), cost.decode_kv * longest + cost.decode_req
    granted = stated.kept * stated.short
    for price, alive, slope in kinds:
        factor = 64 * max(1, alive) + price
        require_64_bits(
            a_batch=(64 * (2 * runs + alive) + price) * (largest + read) + granted * runs + slope * factor * most,
            a_decode=64 * (factor * (single + read) + granted),
            a_prompt=2 * factor * ((slope + 2 * cost.prefill_sq * longest) * longest + cost.prefill_req),
        )


def _worth(problem: Problem, stated: _Stated, kind: _Window) -> _Ints:
    """Return u in a window, in 64ths of ps, for 0, 1, … tokens read."""
    price, alive, slope = kind
    cost, limits, given = problem.cost, problem.limits, 64 - stated.kept
    prompt_token = slope * (given * max(1, alive) + price)
    decodes = np.arange(1, min(len(problem.requests), problem.blocks, limits.batch_tokens) + 1, dtype=np.int64)
    longest = max(request.input + request.output for request in problem.requests)
    points = np.arange(0, longest + 64, 64, dtype=np.int64)
    attention = cost.decode_kv * points + cost.decode_req
    at_points = np.full(points.size, _TOO_LARGE)

    def pay(begin: _Ints, slant: _Ints) -> None:
        for first in range(0, begin.size, _LINES):
            some, rises = begin[first : first + _LINES], slant[first : first + _LINES]
            if (some.min() + rises.min() * attention < at_points).any():
                np.minimum(at_points, (some[:, None] + rises[:, None] * attention).min(axis=0), out=at_points)

    # Batches of decodes alone, and with at least one prefill step, of numbers of tokens at which least is left.
    batches = [(decodes, np.maximum(alive, decodes))]
    batches += [(tokens, np.maximum(alive, decodes + 1)) for tokens in _where_least(problem, decodes + 1)]
    for tokens, there in batches:
        time = _time(problem, tokens)
        steep = 64 * decodes + given * (there - decodes) + price
        flat = given * there + price
        for rise, keep in ((steep, 0), (flat, stated.kept * stated.short)):
            left = rise * time + keep * decodes - prompt_token * (tokens - decodes)
            pay(left // decodes, rise)
    m = np.arange(points[-1], dtype=np.int64)
    after = m % 64
    worth: _Ints = ((64 - after) * at_points[m // 64] + after * at_points[m // 64 + 1]) // 64
    if problem.eviction:
        np.minimum(worth, prompt_token * (m + 1), out=worth)
    return worth


def _time(problem: Problem, tokens: _Ints) -> _Ints:
    """Return f."""
    time: _Ints = np.max([base + token * tokens for base, token in pieces_of(problem.cost)], axis=0)
    return time


def _single(problem: Problem) -> int:
    """Return f(1)."""
    return max(base + token for base, token in pieces_of(problem.cost))


def _require_prompts_paid(problem: Problem, stated: _Stated) -> None:
    """Refuse slopes that batches of prompts alone do not pay: f(x) is to be at least β x."""
    tokens = np.concatenate(_where_least(problem, np.ones(1, np.int64)))
    most = int((_time(problem, tokens) // tokens).min())
    for _, slope in stated.prices:
        if slope > most:
            raise UnprovedError(f"windows has slope {slope}, more than the {most} ps that a token takes at least")


def _where_least(problem: Problem, fewest: _Ints) -> list[_Ints]:
    """Return numbers of tokens, not below ``fewest``, at one of which f(x) less any multiple of x is least."""
    return [np.maximum(fewest, place) for place in turns(problem, problem.limits.batch_tokens)]


def _decodes(problem: Problem, stated: _Stated, times: _Times, kind_of: _Ints, worth: _Ints) -> int:
    """Return what all decodes are paid, and the requests keep with them, in their cheapest windows."""
    requests = problem.requests
    r = np.repeat(np.arange(len(requests)), [request.output - 1 for request in requests])
    k = np.concatenate([np.arange(1, request.output, dtype=np.int64) for request in requests])
    read = np.array([request.input for request in requests], np.int64)[r] + k - 1
    free = times.arrival[r] + k * stated.short
    parts = 64 * np.array([request.output - 1 for request in requests], np.int64)[r]

    def keeps(which: _Ints, window: _Ints) -> _Ints:
        age = np.clip(window * stated.window - free[which], 0, _AGE)
        kept: _Ints = stated.kept * (64 - stated.share) * age // parts[which]
        return kept

    earliest = (times.first[r] + (k - 1) * _single(problem)) // stated.window
    least, least_later = _least_by_block(kind_of, worth)

    def floors(which: _Ints, block: _Ints) -> tuple[_Ints, _Ints]:
        return least[block, read[which]], least_later[block, read[which]]

    return _cheapest(earliest, kind_of, floors, keeps, lambda which, kind: worth[kind, read[which]])


def _prompts(problem: Problem, stated: _Stated, times: _Times, kind_of: _Ints, kinds: list[_Window]) -> int:
    """Return what all prompts are paid, and the requests keep with them, in their cheapest windows."""
    cost = problem.cost
    size = np.array([request.input for request in problem.requests], np.int64)
    share = np.array([64 if request.output == 1 else stated.share for request in problem.requests], np.int64)
    factors = np.array([(64 - stated.kept) * max(1, alive) + price for price, alive, _ in kinds], np.int64)
    tokens = factors * np.array([slope for _, _, slope in kinds], np.int64)

    def keeps(which: _Ints, window: _Ints) -> _Ints:
        age = np.clip(window * stated.window - times.arrival[which], 0, _AGE)
        kept: _Ints = stated.kept * share[which] * age // 64
        return kept

    least, least_later = _least_by_block(kind_of, np.stack([tokens, factors], axis=1))
    # Twice the sum: at the first token's place and at the last's.
    twice = 0
    for place in (np.ones_like(size), size):
        attention = cost.prefill_sq * (2 * place - 1) * size + cost.prefill_req

        def paid(which: _Ints, kind: _Ints, attention: _Ints = attention) -> _Ints:
            spent: _Ints = tokens[kind] * size[which] + factors[kind] * attention[which]
            return spent

        def floors(which: _Ints, block: _Ints, attention: _Ints = attention) -> tuple[_Ints, _Ints]:
            sizes = np.stack([size[which], attention[which]], axis=1)
            return (least[block] * sizes).sum(axis=1), (least_later[block] * sizes).sum(axis=1)

        twice += _cheapest(times.arrival // stated.window, kind_of, floors, keeps, paid)
    return twice // 2


def _least_by_block(kind_of: _Ints, amounts: _Ints) -> tuple[_Ints, _Ints]:
    """Return the least amounts in every block of windows, and in it and all later ones; the last window left out.

    ``amounts`` have a row for each kind, the results one for each block.
    """
    ends = range(_BLOCK, kind_of.size + _BLOCK, _BLOCK)
    kinds = [np.unique(kind_of[:-1][end - _BLOCK : end]) for end in ends]
    # A block without windows is never looked at.
    least = np.stack([amounts[block].min(axis=0) if block.size else amounts[kind_of[-1]] for block in kinds])
    return least, np.minimum.accumulate(least[::-1])[::-1]


def _cheapest(
    earliest: _Ints,
    kind_of: _Ints,
    floors: Callable[[_Ints, _Ints], tuple[_Ints, _Ints]],
    keeps: Callable[[_Ints, _Ints], _Ints],
    paid: Callable[[_Ints, _Ints], _Ints],
) -> int:
    """Return the sum of what each of some tokens keeps and is paid in its cheapest window from its earliest on.

    ``floors`` are at most what it is paid in any window of a block, and there or later, in any but the last window;
    ``keeps`` never falls from window to window.
    """
    last, todo = kind_of.size - 1, np.arange(earliest.size)
    final = np.full(earliest.size, last)
    best = keeps(todo, final) + paid(todo, kind_of[final])
    window = np.minimum(earliest, last)
    while todo.size:
        near = window < last
        todo, window = todo[near], window[near]
        kept = keeps(todo, window)
        here, later = floors(todo, window // _BLOCK)
        here_too = kept + here < best[todo]
        look = todo[here_too]
        best[look] = np.minimum(best[look], kept[here_too] + paid(look, kind_of[window[here_too]]))
        window = np.where(here_too, window + 1, (window // _BLOCK + 1) * _BLOCK)
        goes_on = kept + later < best[todo]
        todo, window = todo[goes_on], window[goes_on]
    return _sum(best)


def _sum(numbers: _Ints) -> int:
    high, low = np.divmod(numbers, 2**31)
    return int(high.sum()) * 2**31 + int(low.sum())
