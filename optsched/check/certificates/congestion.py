"""Certificates of kind ``congestion``: the sum of e2e latencies by prices of machine time, window by window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from optsched.check.certificates.alone import latencies_alone
from optsched.check.certificates.shared.alive_together import Alive, Times, least_alive
from optsched.check.certificates.shared.guard import require_64_bits, require_size
from optsched.check.certificates.shared.least_paid import Terms, Windows, Worths, least_costs
from optsched.check.certificates.shared.work import most_decodes, turns
from optsched.check.problem import Problem, problem_of, tokens_ps
from optsched.check.reading import UnprovedError, shown
from optsched.compiled import compiled
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions

_Ints = npt.NDArray[np.int64]
_Window = tuple[int, int, int, int, int]
"""θ in 64ths of a request, how many are surely alive, on how many a prompt counts at most, β in ps per token, and ε in
64ths."""

_POINTS = 64
"""Stretches of tokens read, between whose ends a decode's worth is taken to be affine."""
_MOST_ENTRIES = 200_000_000
"""Numbers in one array."""
_MOST_GRAINS = 2**23
"""Different amounts that a request may keep."""


@dataclass(frozen=True)
class _Stated:
    """What a certificate states: ps, and price, slope and kept share of every window."""

    window: int
    grain: int
    short: int
    prices: list[tuple[int, int, int]]


def congestion_bound_of_several(
    machines: Sequence[Instance], objective: Objective, certificate: Mapping[str, Any]
) -> int:
    """Return the bound of equal machines; ``machines`` are their problems with all requests each.

    What `congestion_bound` claims of a machine holds of each, with the requests that it serves and windows that begin
    with the first arrival of all. Requests are taken for alive only if they run, for no other is surely on a machine.
    Then what a request keeps and is paid at least is the same on every machine, whatever else that serves, so that the
    sum over machines has it once for every request, and the price of time for every machine.
    """
    if any(
        (each.limits, each.rules, each.cost) != (machines[0].limits, machines[0].rules, machines[0].cost)
        for each in machines
    ):
        raise UnprovedError("kind congestion is for equal machines")
    problem = problem_of(machines[0], Restrictions())
    require_size("congestion", problem)
    return congestion_bound(problem, objective, certificate, len(machines))


def congestion_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any], machines: int = 1) -> int:
    r"""Return the bound of the prices that the certificate states, for one machine or (above) some equal ones.

    Claim. Cut time from the first arrival on into windows, the last of which does not end and has price 0. Let every
    window have a price θ, a share ε, a slope β, at most (f(x) + prefill_req) / x for all x, and the number a of
    requests that are alive throughout it in any schedule. A prompt counts on max(1, a) to be alive, and in the window
    in which its request arrives on N, those that are alive from then to its end if they are more. Let every request
    keep ε of its life, less δ in each of its decodes if that is not more than it keeps there, or else nothing of that
    batch; all the rest of its life, and θ for all time in batches, goes into a pool. Then

    1. the pool pays u(m) for every decode that reads m tokens, β n for every token of a prompt, and n times the squared
       time of prefills, n = (1 - ε) N + θ with the N that its prompt counts on, if u is what `_worths` computes;
    2. with κ(t) the integral of ε up to t, a request that keeps Z in all has all its runs in windows i, by their parts
       of the batches, with κ(begin of i) at most κ(T) + k δ + Z, k = 0 for the prompt and its number for a decode;
    3. the sum of e2e latencies is at least the sum over requests of the least Z and what its runs are paid at least in
       the windows that Z opens to them, less θ for all time there is.

    Proof of 1. Take a batch of duration d with y decodes and l prefill steps, and a window that it lies in, as if all
    of it did. The pool has y min(d, (1 - ε) d + δ) from those that decode, (1 - ε) d from each of the others that are
    alive, together M = max(a, y) at least, and θ d: the lesser of S d and L d + y δ with S = y + (1 - ε) (M - y) + θ
    and L = (1 - ε) M + θ. With prefill steps M is max(N, y + l) with the most N of its prompts, as all of them have
    arrived. With x tokens d is f(x), with a prefill step prefill_req, and attention. As S, L ≥ n, squared times of
    prefills are paid for; decodes are paid their attention S and L times; and there remains what S f(x) and
    L f(x) + y δ, with prefill_req beside f(x), leave beside β n (x - y) for the tokens of prompts, shared equally by
    the decodes. Of l ≥ 1 it is least for l = 1. Up to N = y + 1 it falls in N, as more is paid for prompts, and from
    there on it rises by (1 - ε) (f(x) + prefill_req - β (x - y)) ≥ 0 or more: so it is least for N = y + 1, or what is
    next to that from max(1, a) to the most that a prompt counts on. Without decodes β n x ≤ n (f(x) + prefill_req). A
    refill is paid as a prompt that counts on max(1, a). Of a batch that lies in several windows each has its part of
    all this, and what a decode keeps of it is at least the same mean of ε d - δ.
    Proof of 2. What is kept up to the end e of a batch is at least κ(e) - κ(T) less δ for each decode so far, at most
    Z, and every window of the batch begins before e.
    Proof of 3. No run begins before the arrival, no k-th decode before the first token can be there and k - 1 batches
    after it. So each run is paid at least what the cheapest window pays that Z opens to it, and does not end earlier. Z
    counts in grains, rounded down, and so does what opens a window. Rounding: u is a minimum of affine functions of m,
    above its chords; a prompt token's least cost is so as a function of its place, and its sum at least the mean at
    the ends times I.
    """
    if objective is not Objective.MEAN_E2E:
        raise UnprovedError(f"kind congestion bounds mean_e2e, the objective is {objective.value}")
    stated = _read(certificate)
    latencies = latencies_alone(problem)
    _require_small_times(problem, stated, latencies)
    times = _times(problem, latencies)
    alive = Alive([0] * (len(stated.prices) - 1), [0] * len(times.arrival))
    if machines == 1:
        alive = least_alive(problem, times, stated.window, len(stated.prices) - 1)
    windows, prompts = _windows(stated, times, alive)
    kinds = sorted(set(windows))
    _require_small_prices(problem, stated, kinds)
    _require_prompts_paid(problem, stated)
    place = {kind: number for number, kind in enumerate(kinds)}
    kind_of = np.array([place[window] for window in windows])
    requests = _requests(problem, times, prompts)
    total = sum(_least_costs(problem, stated, requests, _worths(problem, stated, kinds), kind_of))
    total -= machines * stated.window * sum(price for price, _, _ in stated.prices)
    return max(total // 64, 0)


def _read(certificate: Mapping[str, Any]) -> _Stated:
    limits = {"window_ps": (1, 10**15), "grain_ps": (1, 10**15), "short_ps": (0, 10**13)}
    for name, (least, most) in limits.items():
        value = certificate.get(name)
        if type(value) is not int or not least <= value <= most:
            raise UnprovedError(f"{name} is {shown(value)}, expected an integer from {least} to {most}")
    runs = certificate.get("windows")
    if not isinstance(runs, list) or not runs or not all(map(_is_run, runs)):
        raise UnprovedError(f"windows is {shown(runs)}, expected a list of [number ≥ 1, price, slope, kept ≤ 64]")
    if runs[-1][:2] != [1, 0]:
        raise UnprovedError(f"windows ends with {shown(runs[-1])}, expected one window of price 0")
    if sum(run[0] for run in runs) > 1_000_000:
        raise UnprovedError("windows are more than 1,000,000")
    prices = [(price, slope, kept) for count, price, slope, kept in runs for _ in range(count)]
    window, grain, short = (certificate[name] for name in limits)
    if window * sum(kept for _, _, kept in prices) // (64 * grain) >= _MOST_GRAINS:
        raise UnprovedError(f"grain_ps is {grain}, of which a request may keep {_MOST_GRAINS} or more")
    return _Stated(window, grain, short, prices)


def _is_run(run: object) -> bool:
    return (
        isinstance(run, list)
        and len(run) == 4
        and all(type(number) is int and 0 <= number < 2**50 for number in run)
        and run[0] >= 1
        and run[3] <= 64
    )


def _times(problem: Problem, latencies: Sequence[tuple[int, int]]) -> Times:
    start = min(request.arrival_ps for request in problem.requests)
    arrival = np.array([request.arrival_ps - start for request in problem.requests], np.int64)
    alone = np.array(latencies, np.int64)
    return Times(arrival, arrival + alone[:, 0], arrival + alone[:, 1])


def _windows(stated: _Stated, times: Times, alive: Alive) -> tuple[list[_Window], list[tuple[int, int]]]:
    """Return all windows, and what each request's prompt is worth in the window in which it arrives.

    That is a factor n of its squared time, and β n for each token.
    """
    at_all_times = [*alive.by_window, 0]
    last = len(at_all_times) - 1
    begins = [min(arrival // stated.window, last) for arrival in times.arrival.tolist()]
    counts = [max(1, at_all_times[begin], since) for begin, since in zip(begins, alive.since, strict=True)]
    most = [max(1, number) for number in at_all_times]
    for begin, count in zip(begins, counts, strict=True):
        most[begin] = max(most[begin], count)
    columns = zip(stated.prices, at_all_times, most, strict=True)
    windows = [(price, number, counted, slope, kept) for (price, slope, kept), number, counted in columns]
    arriving = ((stated.prices[begin], count) for begin, count in zip(begins, counts, strict=True))
    factors = [((64 - kept) * count + price, slope) for (price, slope, kept), count in arriving]
    return windows, [(factor, slope * factor) for factor, slope in factors]


def _require_small_times(problem: Problem, stated: _Stated, latencies: Sequence[tuple[int, int]]) -> None:
    """Refuse times that might not fit 64 bits: of `_times`, and what requests keep, in 64ths."""
    arrivals = [request.arrival_ps for request in problem.requests]
    latest, output = max(arrivals) - min(arrivals), max(request.output for request in problem.requests)
    require_64_bits(
        an_end=latest + max(last for _, last in latencies) + output * tokens_ps(problem.cost, 1),
        an_age=64 * (latest + output * stated.short + len(stated.prices) * stated.window),
    )


def _require_small_prices(problem: Problem, stated: _Stated, kinds: Sequence[_Window]) -> None:
    """Refuse prices with which arrays might not fit 64 bits, or memory.

    A batch pays at most what 64 (2 n + N) + θ requests are worth, n of them decoding and N counted on; a decode is
    worth at most what one alone is paid, and chords multiply that by the tokens between two points (`_worths`).
    """
    cost, runs, most = problem.cost, len(problem.requests), problem.limits.batch_tokens + 1
    if len(kinds) * (_POINTS + 1) > _MOST_ENTRIES:
        raise UnprovedError(f"windows need arrays of more than {_MOST_ENTRIES} numbers")
    step, output = _step(problem), max(request.output for request in problem.requests)
    longest = step * _POINTS
    largest = tokens_ps(cost, most) + cost.prefill_req
    single, read = tokens_ps(cost, 1), cost.decode_kv * longest + cost.decode_req
    for price, _, counted, slope, _ in kinds:
        factor = 64 * counted + price
        prompt = ((slope + 2 * cost.prefill_sq * longest) * longest) * factor
        require_64_bits(
            a_batch=(64 * (2 * runs + counted) + price) * (largest + read)
            + 64 * stated.short * runs
            + slope * factor * most,
            a_decode=step * factor * (single + read),
            a_request=output * factor * (single + read) + 4 * prompt,
        )


def _step(problem: Problem) -> int:
    """Return the tokens between two points at which a decode's worth is computed."""
    return -(-max(request.input + request.output - 1 for request in problem.requests) // _POINTS)


def _worths(problem: Problem, stated: _Stated, kinds: Sequence[_Window]) -> Worths:
    """Return what runs are worth, decodes at multiples of `_step` tokens read.

    In a range of y in which f is affine and requests that are alive, and those that a prompt counts on, are so, a batch
    pays (p + q y) (b + t y) - (g + h y) (x - y) for its decodes besides p + q y times the attention of each, x - y
    being r + v y with v ≤ 0. So each gets c / y, a constant and (q (t + A) - h v) y, least at the root of the quotient
    of c and that, or at an end; with integers beside the root.
    """
    price, alive, counted, slope, kept = (np.array(column, np.int64)[:, None] for column in zip(*kinds, strict=True))
    cost, limits, given = problem.cost, problem.limits, 64 - kept
    factor = given * np.maximum(1, alive) + price
    prompt_token = slope * factor
    step = _step(problem)
    attention = cost.decode_kv * step * np.arange(_POINTS + 1, dtype=np.int64) + cost.decode_req
    most = min(len(problem.requests), most_decodes(problem))
    least = np.full((len(kinds), attention.size), 2**62)

    places = turns(problem, limits.batch_tokens)
    ranges = list(pairwise(places)) or [(1, 1)]
    batches = []
    for beside in (0, 1):
        for low, high in ranges:
            start, end = tokens_ps(cost, low), tokens_ps(cost, high)
            rise = (end - start) // max(high - low, 1)
            batches.append((low - beside, high - beside, start - rise * (low - beside), rise, beside, 0))
    batches += [(1, tokens - 1, tokens_ps(cost, tokens), 0, tokens, -1) for tokens in places]
    for low, high, base, rise, prompts, fewer in batches:
        prefill = prompts > 0
        base_ps = base + cost.prefill_req * prefill
        few = np.clip(alive - prefill, 0, most)
        some = np.clip(counted - 1, 0, most) if prefill else few
        none, all_there = np.zeros_like(few), np.full_like(few, most)
        for there, fewest, greatest in (("more", none, few), ("as many", few + 1, some), ("all", some + 1, all_there)):
            first, last = np.maximum(fewest, max(low, 1)), np.minimum(greatest, high)
            rows = np.ravel(first <= last)
            if not rows.any():
                continue
            g, h = prompt_token, np.zeros_like(kept)
            if there == "as many":
                g, h = slope * (given + price), slope * given
            elif there == "all":
                g = slope * (given * counted + price)
            for long in (False, True):
                if there != "more":
                    p, q = given * prefill + price, given if long else np.full_like(given, 64)
                else:
                    p, q = given * alive + price, np.zeros_like(kept) if long else kept
                columns = np.stack([column[rows, 0] for column in (first, last, p, q, g, h)])
                terms = np.array([base_ps, rise, prompts, fewer, 64 * stated.short * long], np.int64)
                _lower(least, np.flatnonzero(rows), columns, terms, attention)
    return Worths(factor.ravel(), prompt_token.ravel(), np.ascontiguousarray(least.T))


@compiled
def _lower(least: _Ints, rows: _Ints, columns: _Ints, terms: _Ints, attention: _Ints) -> None:
    """Lower worths to the least that is left for a decode in batches of some numbers y of decodes.

    Parameters
    ----------
    least, rows
        Worths by kind and point, and of which kinds they are lowered.
    columns
        Of these: the fewest and the most decodes, p and q, g and h; shape (6, rows).
    terms
        b and t, r and v, and what each decode is granted.
    attention
        Of decodes, by point.
    """
    b, t, r, v, granted = terms
    for row in range(rows.size):
        first, last, p, q, g, h = columns[:, row]
        shared = float(max(p * b - g * r, 0))
        for point in range(attention.size):
            rises = q * (t + attention[point]) - h * v
            root = sqrt(shared / rises) if rises > 0 else shared
            # Rounding moves the root by less than one.
            near = np.int64(min(root, 2.0**40))
            for aside in range(-1, 3):
                y = min(max(near + aside, first), last)
                factor = p + q * y
                pays = (factor * (b + t * y) - (g + h * y) * (r + v * y)) // y + granted + factor * attention[point]
                least[rows[row], point] = min(least[rows[row], point], pays)


def _require_prompts_paid(problem: Problem, stated: _Stated) -> None:
    """Refuse slopes that batches of prompts alone do not pay: f(x) and a step's own time are to be at least β x."""
    cost, places = problem.cost, turns(problem, problem.limits.batch_tokens)
    most = min((tokens_ps(cost, tokens) + cost.prefill_req) // tokens for tokens in places)
    for _, slope, _ in stated.prices:
        if slope > most:
            raise UnprovedError(f"windows has slope {slope}, more than the {most} ps that a token takes at least")


def _requests(problem: Problem, times: Times, prompts: Sequence[tuple[int, int]]) -> _Ints:
    """Return the rows that `least_costs` takes, with what prompts are worth (`_windows`)."""
    inputs = np.array([request.input for request in problem.requests], np.int64)
    decodes = np.array([request.output - 1 for request in problem.requests], np.int64)
    return np.column_stack([times.arrival, times.first, inputs, decodes, np.array(prompts, np.int64)])


def _least_costs(problem: Problem, stated: _Stated, requests: _Ints, worths: Worths, kind_of: _Ints) -> list[int]:
    """Return what every request keeps and is paid at least, in 64ths of ps; ``kind_of`` are kinds of all windows."""
    kept = stated.window * np.array([kept for _, _, kept in stated.prices], np.int64)
    windows = Windows(stated.window, np.append(0, np.cumsum(kept)), kind_of)
    terms = Terms(
        step=_step(problem),
        square=problem.cost.prefill_sq,
        single=tokens_ps(problem.cost, 1),
        short=64 * stated.short,
        grain=64 * stated.grain,
        refills=int(problem.eviction),
    )
    return [int(cost) for cost in least_costs(requests, windows, worths, terms)]
