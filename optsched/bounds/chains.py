r"""The makespan of R equal machines by chains: a request's batches are on one machine, one after another.

With several machines volume alone would let each have few batches. But a machine has at least as many as any of its
requests takes, so that only machines with many batches serve the requests with many output tokens.

Theorem
-------
Take the n requests that arrive at :math:`t_0` or later, R equal machines, one rate of `own` with base β, and a share
:math:`0 ≤ α ≤ 1`. Request r takes at least :math:`c_r = ⌈I_r/P⌉ + O_r - 1` batches (1 prefill step if prefills are
whole), and let

.. math:: p_r = \sum_k w_{rk} + α\, β\, V_r / M, \qquad β' = (1 - α)\, β .

Let :math:`c_1 ≥ c_2 ≥ …` and :math:`W_i = p_1 + … + p_i`. For a duration Z let :math:`g_1 = c_1`, and
:math:`g_{k+1} = c_i` for the least i with :math:`W_i > k Z - β' (g_1 + … + g_k)`. If there always is one up to k = R,
so that :math:`W_n > R Z - β' (g_1 + … + g_R)`, no schedule ends by :math:`t_0 + Z`.

Proof
-----
Suppose that one does, and count for each machine the batches J from the first run of such a request on. By `own` and
`volume` a machine with requests S takes :math:`Z ≥ β J + \sum_S \sum_k w_{rk}` and :math:`J ≥ \sum_S V_r / M`, hence
:math:`\sum_S p_r ≤ Z - β' J`. Let :math:`J_1 ≥ J_2 ≥ …`. Then :math:`J_k ≥ g_k` for all k: the machine of request 1
has :math:`c_1` batches. And if the first k have at least :math:`g_1, …, g_k`, the needs of all that they serve are at
most :math:`k Z - β' (g_1 + … + g_k)`; were :math:`J_{k+1} < g_{k+1} = c_i`, then requests 1, …, i, which take
:math:`c_i` batches or more each, were all served by the first k machines, though :math:`W_i` is more than that. So all
machines together serve less than :math:`W_n`. ∎

Z is found by bisection. *Tight* where few requests are much longer than the others: then the best assignment groups
requests by their output, and so does the bound. *Loose* where the memory of a machine fills only for a while; and one
rate is used for all machines, although those with short outputs have larger batches.

Conditions
----------
Equal machines without roles, caches and moves; none on rules or costs, as for `volume`. The checker
(`optsched.check.certificates.chains.chains_bound`) tests that the machines are equal, that :math:`t_0` is an arrival,
the weights of pieces and the price of a prefill step (`work.rate_of`) and α, and repeats the last step of the
bisection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from operator import add
from typing import NamedTuple

from optsched.bounds.bound import Bound
from optsched.bounds.own import OwnTimes, Rate, fewest_steps, held_blocks, plain_rate, single_pieces, with_steps_in_base
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_SHARES = 8
"""α is a multiple of one over this."""


def makespan_bound(instance: Instance, objective: Objective) -> Bound | None:
    """Bound the makespan of equal machines; None for other objectives, if the machines differ, and if it is only 0."""
    if objective is not Objective.MAKESPAN or not has_equal_machines(instance):
        return None
    return chains_bound(instance.on(0), len(instance.machines))


def has_equal_machines(instance: Instance) -> bool:
    """Whether all machines have the same limits, rules and costs."""
    return len({(machine.limits, machine.rules, machine.cost) for machine in instance.machines}) == 1


def chains_bound(machine: Instance, machines: int) -> Bound | None:
    """Bound the makespan of ``machines`` machines, each of them with all requests the instance ``machine``.

    None if nothing has to take time: a certificate proves at least 1.
    """
    start, best = machine.start_ps, Bound(0, {})
    for rate in rates(machine):
        jobs = _jobs(machine, rate)
        for release in _releases(machine):
            since = [job for job in jobs if job.arrival >= release]
            for share in range(_SHARES + 1):
                demand = _Demand(machine, rate, share, since)
                value = release - start + demand.least_duration(machines, best.value - (release - start))
                if value > best.value:
                    stated = {"piece_weights": list(rate.weights), "prefill_step_ps": rate.step_ps}
                    best = Bound(
                        value,
                        {
                            "kind": "chains",
                            "bound": value,
                            "release_ps": release,
                            **stated,
                            "memory_share": [share, _SHARES],
                        },
                    )
    return best if best.value else None


def _releases(machine: Instance) -> list[int]:
    """Return the first arrival, and some after which a share of the requests arrives."""
    arrivals = sorted(request.arrival_ps for request in machine.requests)
    return sorted({arrivals[len(arrivals) * eighth // 8] for eighth in range(8)})


def rates(machine: Instance) -> Iterator[Rate]:
    """Yield rates of single pieces and of halves of two, with prefill steps by themselves and in the base."""
    singles = single_pieces(machine)
    for weights in (*singles, *(tuple(map(add, one, other)) for one, other in pairwise(singles))):
        plain = plain_rate(machine, weights)
        yield plain
        stepped = with_steps_in_base(machine, plain) if plain.step_ps else None
        if stepped is not None:
            yield stepped


class _Job(NamedTuple):
    """A request's least number of batches, own time, blocks held summed over batches, and arrival."""

    batches: int
    own: int
    held: int
    arrival: int


def _jobs(machine: Instance, rate: Rate) -> list[_Job]:
    """Return the requests, those that take most batches first."""
    own = OwnTimes(machine, rate)
    jobs = (
        _Job(
            fewest_steps(machine, request.input) + request.output - 1,
            own.of(request.input, request.output),
            held_blocks(machine, request.input, request.output),
            request.arrival_ps,
        )
        for request in machine.requests
    )
    return sorted(jobs, reverse=True)


class _Demand:
    """What requests need in all, and the batches that each takes, those with most first; times × ``scale``."""

    def __init__(self, machine: Instance, rate: Rate, share: int, jobs: list[_Job]) -> None:
        blocks = machine.limits.kv_blocks
        self._scale = rate.scale * _SHARES * blocks
        self._base = rate.base * (_SHARES - share) * blocks
        self._batches = [job.batches for job in jobs]
        self._needs = list(accumulate(job.own * _SHARES * blocks + share * rate.base * job.held for job in jobs))

    def least_duration(self, machines: int, known: int) -> int:
        """Return the least duration that is not refuted; 0 if that is no more than ``known``."""
        if known >= 0 and not self._refuted(known, machines):
            return 0
        low, high = max(known, -1), max(1, known)
        while self._refuted(high, machines):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._refuted(middle, machines):
                low = middle
            else:
                high = middle
        return high

    def _refuted(self, duration: int, machines: int) -> bool:
        batches = position = 0
        for machine in range(machines + 1):
            # That of the machines so far; none before the first, whose batches are those of the longest request.
            room = machine * duration * self._scale - self._base * batches
            position = max(position, bisect_right(self._needs, room))
            if position == len(self._needs):
                return False
            batches += self._batches[position]
        return True
