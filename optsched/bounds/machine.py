r"""Requests share the machine's time: single-machine scheduling with preemption, which is solved by simple rules.

*Shares.* Split the base of every batch among what it does: with weights a, b, c ≥ 0 of sum 1, token k of r uses

.. math:: \mathrm{base} \Bigl(a \frac{I_r + k - 1}{M} + b \frac{\text{tokens run for the first time}}{C}
          + c \frac{\text{runs}}{N}\Bigr)

of the bases of batches, sizes in blocks. The shares of a batch add up to at most its base: it holds at most M, runs at
most C tokens and N requests. With the own times of `own` (for one piece of the batch time, or one convex combination),
the work of a batch is at most its duration. So any schedule is a preemptive schedule of one machine, on which r needs

.. math:: p_r = \sum_k w_{rk} + \mathrm{base} \Bigl(a \frac{V_r}{M} + b \frac{I_r + O_r - 1}{C}
          + c \frac{\lceil I_r/P \rceil + O_r - 1}{N}\Bigr)

from its arrival :math:`T_r` on, and completes no later there than in the schedule. For first tokens alike, with what
token 1 needs. Rounded down, :math:`p_r` is an integer.

*Makespan.* A machine that is never idle while there is work ends first.

*Sums.* The i-th completion is earliest, for all i at once, if whoever has the least work left goes first (Schrage
1968). No request ends before its time `alone`, either, so that the i-th completion is no earlier than the i-th of
these. The sum over i of the later one of the two, less the arrivals, bounds the sum of latencies.

*Maxima.* The largest latency is least if requests go in the order of their arrival: two neighbours in the order of
completion that arrived the other way round can be exchanged.

*Weighted sums.* The completion of r is at least its mean busy time and half of :math:`p_r`, and the weighted sum of
mean busy times is least if the largest :math:`w_r / p_r` among those that have arrived always goes first (Goemans et
al. 2002, section 2, SIAM Journal on Discrete Mathematics 15).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from math import prod
from typing import Any

from optsched.bounds.alone import alone
from optsched.bounds.bound import Bound
from optsched.bounds.own import OwnTimes, Rate, fewest_steps, held_blocks, rate_of
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_FIRST_TOKENS = frozenset({Objective.MEAN_TTFT, Objective.MAX_TTFT})


@dataclass(frozen=True)
class Split:
    """Weights by which the base of a batch is split: of memory, tokens and runs; integers ≥ 0, not all 0."""

    memory: int
    tokens: int
    runs: int


def needs(instance: Instance, rate: Rate, split: Split, *, first_tokens: bool) -> list[int]:
    """Return what every request needs of the machine until its last token, or its first, in ps."""
    own, limits = OwnTimes(instance, rate), instance.limits
    most = limits.kv_tokens // limits.kv_block, limits.batch_tokens, limits.batch_requests or 1
    parts = split.memory, split.tokens, split.runs if limits.batch_requests is not None else 0
    below = prod(most) * (split.memory + split.tokens + split.runs)
    known: dict[tuple[int, int], int] = {}
    for request in instance.requests:
        prompt, output = request.input, 1 if first_tokens else request.output
        if (prompt, output) in known:
            continue
        used = (
            held_blocks(instance, prompt, output),
            prompt + output - 1,
            fewest_steps(instance, prompt) + output - 1,
        )
        shares = sum(part * use * prod(most) // all_of for part, use, all_of in zip(parts, used, most, strict=True))
        work = own.first(prompt) if first_tokens else own.all(prompt, output)
        known[prompt, output] = (work * below + rate.base * shares) // (rate.scale * below)
    return [known[request.input, 1 if first_tokens else request.output] for request in instance.requests]


class _Machine:
    """Arrivals and needs of all requests on one machine; times from the earliest arrival on."""

    def __init__(self, instance: Instance, rate: Rate, split: Split, *, first_tokens: bool) -> None:
        needed = needs(instance, rate, split, first_tokens=first_tokens)
        self.order = sorted(range(len(needed)), key=lambda r: instance.requests[r].arrival_ps)
        start = instance.start_ps
        self.jobs = [(instance.requests[r].arrival_ps - start, needed[r]) for r in self.order]
        """Arrival and need of every request, by arrival."""

    @cached_property
    def first_come(self) -> list[int]:
        """Completions in the order of arrival."""
        clock, ends = 0, []
        for arrival, need in self.jobs:
            clock = max(clock, arrival) + need
            ends.append(clock)
        return ends

    def shortest_first(self) -> list[int]:
        """Return the completions if the least work left goes first, ascending."""
        return [end for _, _, end in self._preemptive(lambda _, left: left) if end is not None]

    def _preemptive(self, rank: Callable[[int, int], Any]) -> Iterator[tuple[int, tuple[int, int], int | None]]:
        """Yield who runs from when to when, and the end if it is done; the smallest rank of job and work left goes."""
        jobs, waiting = self.jobs, list[tuple[Any, int, int]]()
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

    def busy(self, weights: list[int]) -> int:
        """Return the least weighted sum of completions that mean busy times allow, rounded down for every request."""
        # Whoever needs nothing goes at once, and is busy when it arrives.
        needs = [max(need, 1) for _, need in self.jobs]
        ranks = [Fraction(-weights[job], needs[job]) for job in range(len(needs))]
        squares = [0] * len(needs)
        for job, (begin, end), _ in self._preemptive(lambda job, _: ranks[job]):
            squares[job] += end**2 - begin**2
        total = 0
        for job, (arrival, need) in enumerate(self.jobs):
            completion = Fraction(squares[job] + need**2, 2 * need) if need else Fraction(arrival)
            total += int(weights[job] * completion)
        return total


def machine_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound an objective by the best rate and split among a few (see the module's theorem); not ``slo_misses``."""
    if objective == Objective.SLO_MISSES:
        return None
    return best_share(instance, "machine", partial(machine_value, instance, objective))


def best_share(instance: Instance, kind: str, value_of: Callable[[Rate, Split], int]) -> Bound:
    """Return the largest value over a few rates and splits, with a certificate that names them."""
    best: Bound | None = None
    for weights in _rates(len(instance.cost.affine)):
        for split in _splits(instance):
            value = value_of(rate_of(instance, weights), split)
            if best is None or value > best.value:
                shares = {"memory": split.memory, "tokens": split.tokens, "runs": split.runs}
                best = Bound(value, {"kind": kind, "piece_weights": list(weights), "share_weights": shares})
    assert best is not None, "there is a piece and a split"
    return best


def machine_value(instance: Instance, objective: Objective, rate: Rate, split: Split) -> int:
    """Return the bound of one rate and one split."""
    machine = _Machine(instance, rate, split, first_tokens=objective in _FIRST_TOKENS)
    if objective == Objective.MAKESPAN:
        return machine.first_come[-1]
    arrivals = [arrival for arrival, _ in machine.jobs]
    if objective == Objective.WEIGHTED_E2E:
        weights = [instance.requests[index].weight for index in machine.order]
        waited = sum(weight * arrival for weight, arrival in zip(weights, arrivals, strict=True))
        return machine.busy(weights) - waited
    if objective in {Objective.MAX_TTFT, Objective.MAX_E2E}:
        return max(end - arrival for end, arrival in zip(machine.first_come, arrivals, strict=True))
    least = alone(instance)
    latencies = least.ttft if objective == Objective.MEAN_TTFT else least.e2e
    ends = sorted(arrival + latencies[index] for index, arrival in zip(machine.order, arrivals, strict=True))
    return sum(map(max, ends, machine.shortest_first())) - sum(arrivals)


def _rates(pieces: int) -> list[tuple[int, ...]]:
    """Return each piece alone, and halves of two that follow each other."""
    singles = [tuple(int(i == piece) for i in range(pieces)) for piece in range(pieces)]
    halves = [tuple(int(i in {piece, piece + 1}) for i in range(pieces)) for piece in range(pieces - 1)]
    return singles + halves


def _splits(instance: Instance) -> list[Split]:
    """Return splits by one resource alone, and by halves of memory and tokens."""
    found = [Split(1, 0, 0), Split(0, 1, 0), Split(1, 1, 0)]
    return [*found, Split(0, 0, 1)] if instance.limits.batch_requests is not None else found
