r"""Requests share the machine's time: single-machine scheduling with preemption, which is solved by simple rules.

*Shares.* Split the base of every batch among what it does: with weights a, b, c ≥ 0 of sum 1, token k of r uses

.. math:: \mathrm{base} \Bigl(a \frac{I_r + k - 1}{M} + b \frac{\text{tokens run for the first time}}{C}
          + c \frac{\text{runs}}{N}\Bigr)

of the bases of batches, sizes in blocks. The shares of a batch add up to at most its base: it holds at most M, runs at
most C tokens and N requests. With the own times of `own`, for some rate, the work of a batch is at most its duration.
So any schedule is a preemptive schedule of one machine, on which r needs

.. math:: p_r = \sum_k w_{rk} + \mathrm{base} \Bigl(a \frac{V_r}{M} + b \frac{I_r + O_r - 1}{C}
          + c \frac{\lceil I_r/P \rceil + O_r - 1}{N}\Bigr)

from its arrival :math:`T_r` on, and completes no later there than in the schedule. For first tokens alike, with what
token 1 needs. Rounded down, :math:`p_r` is an integer.

*Batches without prefill steps.* With φ below prefill_req, base and the τ of `own` hold for batches with prefill steps,
and a decode is made cheaper than τ so that they hold for others, too. Instead take another piece (β', τ') of f, or a
combination of pieces, for these others: one with q decodes lasts at least β' + τ' q and their attention. Shares of
either kind of batch add up to at most 1. So a decode with the share s needs at least

.. math:: \min(τ + \mathrm{base}\, s,\; τ' + β' s)

and its attention, whichever batch it is in, and a refill what it takes by `own` and base s, as it is a prefill step.
Where batches that only decode are short of decodes, as few requests fit the cache, these are dear, and all decodes
count at τ. Where the least refill of a request is cheaper than its last decode by τ, all its later tokens count as the
cheapest of the three for the second one.

*Makespan.* A machine that is never idle while there is work ends first.

*Sums.* The i-th completion is earliest, for all i at once, if the request with the least work left goes first (Schrage
1968). No request ends before its time `alone`, either, so that the i-th completion is no earlier than the i-th of
these. The sum over i of the later one of the two, less the arrivals, bounds the sum of latencies.

*Maxima.* The largest latency is least if requests go in the order of their arrival: two neighbours in the order of
completion that arrived the other way round can be exchanged.

*Weighted sums.* The completion of r is at least its mean busy time and half of :math:`p_r`, and the weighted sum of
mean busy times is least if the largest :math:`w_r / p_r` among those that have arrived always goes first (Goemans et
al. 2002, section 2, SIAM Journal on Discrete Mathematics 15).

*What is left of a request.* The machine could serve a request at once, but every later token takes a batch of its own,
of f(1) or more. Let :math:`p_r(1)` and :math:`p_r(2)` be the needs until tokens 1 and 2, and
:math:`q = \max(0, p_r(2) - p_r(1) - 1)`, or 0 with O = 1. Then the completion is at least the mean busy time and

.. math:: \frac{1}{2 p_r} \Bigl( p_r(1)^2 + 2 f(1) (O-1)\, p_r(1) + f(1)\, q (O-1)^2
          + f(1) \bigl(p_r - p_r(1) - q (O-1)\bigr) \Bigr).

*Proof.* Let every batch serve its work evenly while it lasts, and count as much of it for a request as adds up to
:math:`p_r`: for token 1 at least :math:`p_r(1)`, and for each later token at least q, as what tokens need never falls
with k, and roundings take less than 1. The mean busy time is that of this work, all of it before the completion. From
work for token k to the end of this token's batch it takes at least f(1)/2 in the mean, as it does to the end of the
work's own batch, and with k = 1 at least half of the work, which is served at a rate of at most 1. Then O - k batches
follow. Work beyond :math:`p_r(1)` and q each counts at f(1)/2, the least that any has left. ∎ The sum of e2e latencies
is bounded by these completions with weights of 1, too, where that is more.

*Conditions.* None on rules or costs: a refill cheaper than the decode in its place is the token's own time (`own`), and
a pause, a chunk, time on the link or an empty moment of the machine only add to what it has. The checker
(`optsched.check.certificates.machine.machine_bound`) tests weights of pieces and of shares (`work.rate_of`, which
refuses rates that leave less than nothing for decodes, `machine.needs_of`, which refuses a share by runs without a
limit on them, and `work.combination_of`, of other batches), and the price of a prefill step (`work.step_of`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import prod
from operator import add, mul
from typing import Any

from optsched.bounds.alone import alone
from optsched.bounds.bound import Bound
from optsched.bounds.own import (
    OwnTimes,
    Rate,
    fewest_steps,
    held_blocks,
    may_refill,
    plain_rate,
    single_pieces,
    with_steps_in_base,
)
from optsched.model.instance import Instance
from optsched.model.objectives import Latency, Objective

_Job = tuple[int, int]
"""Arrival and need."""


_BOUNDED = frozenset(
    {
        *(Objective.MAKESPAN, Objective.MAX_TTFT, Objective.MAX_E2E),
        *(Objective.MEAN_TTFT, Objective.MEAN_E2E, Objective.WEIGHTED_E2E),
    }
)


@dataclass(frozen=True)
class Split:
    """Weights by which the base of a batch is split: of memory, tokens and runs; integers ≥ 0, not all 0."""

    memory: int
    tokens: int
    runs: int


class Needs:
    """What every request needs of the machine until it has generated some tokens.

    Parameters
    ----------
    instance
        The problem.
    outputs
        How many tokens, by request.
    """

    def __init__(self, instance: Instance, outputs: Sequence[int]) -> None:
        self._instance = instance
        self._shapes = [(request.input, output) for request, output in zip(instance.requests, outputs, strict=True)]
        self._used = {
            (prompt, output): (
                held_blocks(instance, prompt, output),
                prompt + output - 1,
                fewest_steps(instance, prompt) + output - 1,
            )
            for prompt, output in set(self._shapes)
        }
        self._own: dict[Rate, dict[tuple[int, int], int]] = {}

    def of(self, rate: Rate, split: Split) -> list[int]:
        """Return the needs of all requests under a rate and a split, in ps."""
        if rate.decode_weights:
            return self._of_kinds(rate, split)
        if rate not in self._own:
            times = OwnTimes(self._instance, rate)
            self._own[rate] = {shape: times.of(*shape) for shape in self._used}
        own, limits = self._own[rate], self._instance.limits
        most = limits.kv_blocks, limits.batch_tokens, limits.batch_requests or 1
        parts = split.memory, split.tokens, split.runs if limits.batch_requests is not None else 0
        below = prod(most) * (split.memory + split.tokens + split.runs)
        # What a unit of every resource has of all products of the others.
        shares = [part * prod(most) // all_of for part, all_of in zip(parts, most, strict=True)]
        known = {
            shape: (own[shape] * below + rate.base * sum(map(mul, shares, used))) // (rate.scale * below)
            for shape, used in self._used.items()
        }
        return [known[shape] for shape in self._shapes]

    def _of_kinds(self, rate: Rate, split: Split) -> list[int]:
        """Return the needs where batches without prefill steps have a combination of pieces of their own."""
        instance, cost, limits = self._instance, self._instance.cost, self._instance.limits
        other = plain_rate(instance, rate.decode_weights)
        parts = split.memory, split.tokens, split.runs if limits.batch_requests is not None else 0
        most = limits.kv_blocks, limits.batch_tokens, limits.batch_requests or 1
        below = prod(most) * (split.memory + split.tokens + split.runs)
        block, token, run = (part * prod(most) // all_of for part, all_of in zip(parts, most, strict=True))
        # Times in ps × unit; what a decode takes with either kind of batch is affine in its blocks.
        unit = rate.scale * other.scale * below
        pairs = []
        for kind, beside in ((rate, other), (other, rate)):
            flat = kind.prompt * below + kind.base * (token + run)
            pairs.append((beside.scale * flat, beside.scale * kind.base * block))
        (flat, slope), (decode_flat, decode_slope) = pairs
        # Up to this many blocks the one with the larger slope is less; of equal slopes the second is less throughout.
        steep, even = sorted(pairs, key=lambda pair: (-pair[1], -pair[0]))
        turn = (even[0] - steep[0]) // (steep[1] - even[1]) if steep[1] > even[1] else 0
        turn = max(turn, 0) * limits.kv_block

        def fill(tokens: int) -> int:
            own = rate.prompt * tokens + rate.scale * cost.prefill_sq * tokens**2
            return own + rate.scale * rate.step_ps * fewest_steps(instance, tokens)

        def need(prompt: int, output: int) -> int:
            steps, many = fewest_steps(instance, prompt), output - 1
            held = block * held_blocks(instance, prompt, 1) + token * prompt + run * steps
            total = other.scale * (fill(prompt) * below + rate.base * held)
            if not many:
                return total // unit
            last = prompt + many
            if may_refill(instance, prompt + 1):
                refill = fill(prompt + 1)
                if refill < rate.prompt + rate.scale * cost.decode_ps(last - 1):
                    blocks = held_blocks(instance, prompt + 1, 1)
                    decode = min(flat + slope * blocks, decode_flat + decode_slope * blocks)
                    decode += unit * cost.decode_ps(prompt)
                    refilled = refill * below + rate.base * (block * blocks + token + run)
                    return (total + many * min(decode, other.scale * refilled)) // unit
            middle = min(max(turn, prompt), last)
            for (constant, rise), first, end in ((steep, prompt + 1, middle), (even, middle + 1, last)):
                if first <= end:
                    total += (end - first + 1) * constant + rise * held_blocks(instance, first, end - first + 1)
            read = many * prompt + many * (many - 1) // 2
            return (total + unit * (many * cost.decode_req + cost.decode_kv * read)) // unit

        known = {shape: need(*shape) for shape in self._used}
        return [known[shape] for shape in self._shapes]

    def shares(self) -> Iterator[tuple[Rate, Split, list[int]]]:
        """Yield a few rates and splits, with what is needed: for each combination of pieces the one with most needs.

        With φ = prefill_req, with φ = 0, or with φ = 0 and another piece for batches without prefill steps.
        """
        for rate, split, needed in self.shares_of_one_kind():
            other = _of_two_kinds(self._instance, plain_rate(self._instance, rate.weights))
            found = [(rate, split, needed)]
            if other is not None:
                found.append((other, split, self.of(other, split)))
            yield max(found, key=lambda share: sum(share[2]))

    def shares_of_one_kind(self) -> Iterator[tuple[Rate, Split, list[int]]]:
        """Yield the same with one combination of pieces for all batches."""
        for weights in _rates(self._instance):
            plain = plain_rate(self._instance, weights)
            stepped = with_steps_in_base(self._instance, plain) if plain.step_ps else None
            for split in _splits(self._instance):
                found = [(rate, split, self.of(rate, split)) for rate in (plain, stepped) if rate is not None]
                yield max(found, key=lambda share: sum(share[2]))


def machine_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound an objective by the best rate and split among a few (see the module).

    Makespan, largest, mean and weighted latencies; None for any other.
    """
    if objective not in _BOUNDED:
        return None
    first_tokens = objective.latency is Latency.TTFT
    needs = Needs(instance, [1 if first_tokens else request.output for request in instance.requests])
    machine = _Machine(instance, objective)
    value, rate, split = _best_of_shares(needs, machine.value)
    if objective in {Objective.MEAN_E2E, Objective.WEIGHTED_E2E}:
        needed = needs.of(rate, split)
        value = max(value, machine.value_with_rests(needed, _rests(instance, rate, split, needed)))
    return Bound(value, share_certificate("machine", rate, split))


def most_needs(instance: Instance) -> list[int]:
    """Return what every request needs of the machine, by the rate of one kind and the split with the most in all.

    First prices of other bounds come from these needs; from those of two kinds `congestion` finds worse prices.
    """
    needs = Needs(instance, [request.output for request in instance.requests])
    return max((needed for _, _, needed in needs.shares_of_one_kind()), key=sum)


def best_share(needs: Needs, kind: str, value_of: Callable[[list[int]], int]) -> Bound:
    """Return the largest value of needs over a few rates and splits, with a certificate that names these."""
    value, rate, split = _best_of_shares(needs, value_of)
    return Bound(value, share_certificate(kind, rate, split))


def _best_of_shares(needs: Needs, value_of: Callable[[list[int]], int]) -> tuple[int, Rate, Split]:
    """Return the largest value, with its rate and split; of equal ones the first."""
    found = ((value_of(needed), rate, split) for rate, split, needed in needs.shares())
    return max(found, key=lambda share: share[0])


def _rests(instance: Instance, rate: Rate, split: Split, needed: list[int]) -> list[int]:
    """Return what is left of each request at its mean busy time at least, times twice its need."""
    outputs, batch = [request.output for request in instance.requests], instance.cost.linear_ps(1)
    until = [Needs(instance, [min(output, most) for output in outputs]).of(rate, split) for most in (1, 2)]
    rests = []
    for output, first, second, need in zip(outputs, *until, needed, strict=True):
        later, each = output - 1, max(0, second - first - 1)
        rest = first * (first + 2 * batch * later)
        rests.append(rest + batch * (each * later**2 + need - first - each * later))
    return rests


def share_certificate(kind: str, rate: Rate, split: Split) -> dict[str, Any]:
    """Return a certificate that names a rate and a split."""
    weights: dict[str, Any] = {"piece_weights": list(rate.weights), "share_weights": asdict(split)}
    if rate.decode_weights:
        weights["decode_weights"] = list(rate.decode_weights)
    return {"kind": kind, **weights, "prefill_step_ps": rate.step_ps}


class _Machine:
    """Requests on one machine by arrival, for an objective; times from the earliest arrival on."""

    def __init__(self, instance: Instance, objective: Objective) -> None:
        requests, arrivals = instance.requests, instance.arrivals_ps
        self._instance, self._objective = instance, objective
        self._order = sorted(range(len(requests)), key=arrivals.__getitem__)
        self._arrivals = [arrivals[r] for r in self._order]
        self._weights = [requests[r].weight for r in self._order]

    @cached_property
    def _ends_alone(self) -> list[int]:
        """When requests end alone, ascending; of first tokens for TTFT."""
        least = alone(self._instance)
        latencies = least.ttft if self._objective.latency is Latency.TTFT else least.e2e
        return sorted(arrival + latencies[r] for r, arrival in zip(self._order, self._arrivals, strict=True))

    def value(self, needed: list[int]) -> int:
        """Return the bound of what every request needs."""
        jobs = [(arrival, needed[r]) for r, arrival in zip(self._order, self._arrivals, strict=True)]
        match self._objective:
            case Objective.MAKESPAN:
                return _first_come(jobs)[-1]
            case Objective.MAX_TTFT | Objective.MAX_E2E:
                return max(end - arrival for end, (arrival, _) in zip(_first_come(jobs), jobs, strict=True))
            case Objective.WEIGHTED_E2E:
                return self.value_with_rests(needed, [0] * len(needed))
            case Objective.MEAN_TTFT | Objective.MEAN_E2E:
                return sum(map(max, self._ends_alone, _shortest_first(jobs))) - sum(self._arrivals)
        raise AssertionError(f"{self._objective.value} is not bounded here")

    def value_with_rests(self, needed: list[int], rests: list[int]) -> int:
        """Return the bound on sums of e2e latencies by mean busy times and what is left then, times twice the needs."""
        weights = self._weights if self._objective is Objective.WEIGHTED_E2E else [1] * len(needed)
        jobs = [(arrival, needed[r]) for r, arrival in zip(self._order, self._arrivals, strict=True)]
        waited: int = sum(map(mul, weights, self._arrivals))
        return _weighted_ends(jobs, weights, [rests[r] for r in self._order]) - waited


def _first_come(jobs: list[_Job]) -> list[int]:
    """Return the completions in the order of arrival."""
    clock, ends = 0, []
    for arrival, need in jobs:
        clock = max(clock, arrival) + need
        ends.append(clock)
    return ends


def _shortest_first(jobs: list[_Job]) -> list[int]:
    """Return the completions if the least work left goes first, ascending."""
    return [end for _, _, end in _preemptive(jobs, lambda _, left: left) if end is not None]


def _weighted_ends(jobs: list[_Job], weights: list[int], rests: list[int]) -> int:
    """Return the least weighted sum of completions that mean busy times allow, rounded down for every request.

    ``rests`` are left of each, times twice its need, if that is more than half of its need.
    """
    # A job that needs nothing ends at once: its busy time is its arrival.
    ranks = [Fraction(-weight, max(need, 1)) for weight, (_, need) in zip(weights, jobs, strict=True)]
    squares = [0] * len(jobs)
    for job, (begin, end), _ in _preemptive(jobs, lambda job, _: ranks[job]):
        squares[job] += end**2 - begin**2
    total = 0
    for weight, square, rest, (arrival, need) in zip(weights, squares, rests, jobs, strict=True):
        completion = Fraction(square + max(rest, need**2), 2 * need) if need else Fraction(arrival)
        total += int(weight * completion)
    return total


def _preemptive(jobs: list[_Job], rank: Callable[[int, int], Any]) -> Iterator[tuple[int, tuple[int, int], int | None]]:
    """Yield stretches of one job: its index, begin and end, and its completion if it is done; the least rank runs."""
    waiting: list[tuple[Any, int, int]] = []
    clock, coming = 0, 0
    while waiting or coming < len(jobs):
        if not waiting:
            clock = max(clock, jobs[coming][0])
        while coming < len(jobs) and jobs[coming][0] <= clock:
            need = jobs[coming][1]
            heapq.heappush(waiting, (rank(coming, need), coming, need))
            coming += 1
        _, job, left = heapq.heappop(waiting)
        until = jobs[coming][0] if coming < len(jobs) else clock + left
        if clock + left <= until:
            yield job, (clock, clock + left), clock + left
            clock += left
        else:
            left -= until - clock
            yield job, (clock, until), None
            heapq.heappush(waiting, (rank(job, left), job, left))
            clock = until


def _rates(instance: Instance) -> list[tuple[int, ...]]:
    """Return the weights of each piece alone, and halves of two that follow each other."""
    singles = single_pieces(instance)
    return singles + [tuple(map(add, one, other)) for one, other in pairwise(singles)]


def _of_two_kinds(instance: Instance, plain: Rate) -> Rate | None:
    """Return the rate of a piece alone with φ = 0, and the next flatter piece for batches without prefill steps."""
    if not plain.step_ps or plain.scale > 1:
        return None
    flatter = [weights for weights in single_pieces(instance) if plain_rate(instance, weights).prompt < plain.prompt]
    if not flatter:
        return None
    other = max(flatter, key=lambda weights: plain_rate(instance, weights).prompt)
    return Rate(plain.weights, plain.base + plain.step_ps, plain.prompt, plain.prompt, 0, other)


def _splits(instance: Instance) -> list[Split]:
    """Return splits by one resource alone, and by halves of memory and tokens."""
    found = [Split(1, 0, 0), Split(0, 1, 0), Split(1, 1, 0)]
    return [*found, Split(0, 0, 1)] if instance.limits.batch_requests is not None else found
