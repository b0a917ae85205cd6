r"""Bounds for several machines that scale: the time that requests need of each machine they may go to.

In every schedule of machine m a request r that it serves needs at least :math:`p_{rm}` of its time, by the rate and the
split of bases of `optsched.bounds.machine`, from its arrival :math:`T_r` on, and the needs of all that it serves fit
one after another.

Theorem
-------
*Makespan.* For integers :math:`μ_m ≥ 0`, not all 0, and any :math:`t_0`, every schedule ends at

.. math:: t_0 + \frac{1}{\sum_m μ_m} \sum_{r:\, T_r ≥ t_0} \min_m μ_m\, p_{rm}

or later, the minimum over machines that can serve r.

*Sums offline.* Let :math:`p_r = \min_m p_{rm}`. With all requests there from the start, the sum of e2e latencies is at
least :math:`\sum_k ⌈k/R⌉\, p_{(k)}`, with :math:`p_{(1)} ≥ p_{(2)} ≥ …`.

*Sums with arrivals.* The i-th completion is no earlier than the i-th of one machine that is R times as fast and always
runs the request with the least work left, for all i; nor than the i-th of what requests take alone on the machine
where that is least.

Proof
-----
*Makespan.* Let all end by Z. Machine m gives the requests that arrive at :math:`t_0` or later their needs after
:math:`t_0`, so these add up to at most :math:`Z - t_0`. Weighted by :math:`μ_m` and summed over m that is at most
:math:`(Z - t_0) \sum_m μ_m`, and each request contributes to one machine at least the minimum.
*Sums offline.* The requests of one machine complete no earlier than one after another; in the order of completion the
k-th from the end delays k completions of its machine, its own included. R requests have each k at most. The least sum
pairs the largest needs with the smallest k (shortest first on R machines: Conway, Maxwell and Miller 1967).
*With arrivals.* R machines together do in any time no more than R times as much as one; that machine may do what they
do, at each moment shared between them, and the least work left first completes as many as possible by each moment
(Schrage 1968). ∎

The best μ is the dual of a linear programme that assigns shares of requests to machines, least largest time; among
equal machines it is 1 for each. *Tight* for many requests on machines whose caches are full. *Loose* where machines
ramp up: each of R machines does, and the bound has it for none; nor does it see that a machine has as many batches as
any of its requests takes, as `optsched.bounds.chains` does.

Conditions
----------
Those of `machine`. `optsched.check.certificates.assignment.assignment_bound` computes needs itself from the weights
stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import highspy
import numpy as np
import pulp
from scipy.sparse import coo_array, csc_array

from optsched.bounds.alone import alone
from optsched.bounds.bound import Bound
from optsched.bounds.machine import Needs, share_certificate
from optsched.bounds.own import OwnTimes, fewest_steps, held_blocks, plain_rate, single_pieces
from optsched.model.instance import Instance
from optsched.model.objectives import Latency, Objective
from optsched.solvers.highs import programme_of, quiet_solver, run_interruptibly
from optsched_formulations.routing.fleet import equal_machines, fits, require_independent
from optsched_formulations.routing.speedy import ends_of_fast_machine, ends_offline

_SCALE = 1_000_000
"""μ are integers of which the largest is about this."""
_LP_SECONDS = 60.0

_Times = list[int | None]
"""By request; None where a machine cannot serve it."""


def cluster_bound(cluster: Instance, objective: Objective) -> Bound | None:
    """Bound the makespan, or the mean e2e latency or TTFT; None for other objectives."""
    require_independent(cluster)
    kinds = equal_machines(cluster)
    if objective not in {Objective.MAKESPAN, Objective.MEAN_E2E, Objective.MEAN_TTFT}:
        return None
    first = objective.latency is Latency.TTFT
    outputs = [1 if first else request.output for request in cluster.requests]
    shares = {kind: _shares(cluster, kind, outputs) for kind in set(kinds)}
    alone_ps = [] if objective is Objective.MAKESPAN else _alone(cluster, first)
    best: Bound | None = None
    for choice in range(max(map(len, shares.values()))):
        # Equal machines have equal lists; others are tried side by side.
        chosen = [shares[kind][min(choice, len(shares[kind]) - 1)] for kind in kinds]
        times = [needs for needs, _ in chosen]
        stated = [certificate for _, certificate in chosen]
        if objective is Objective.MAKESPAN:
            found = _makespan(cluster, times, stated)
        else:
            least = [min(time for time in options if time is not None) for options in zip(*times, strict=True)]
            found = Bound(_latencies(cluster, least, alone_ps), {"kind": "assignment", "shares": stated})
        if best is None or found.value > best.value:
            best = found
    return best


def _shares(cluster: Instance, machine: int, outputs: Sequence[int]) -> list[tuple[_Times, dict[str, Any]]]:
    """Return a few ways to count what requests need of a machine, each with what a certificate says of it."""
    served = [fits(cluster, machine, request) for request in range(len(cluster.requests))]
    instance = cluster.on(machine, range(len(cluster.requests)))
    return [
        (
            [time if fit else None for time, fit in zip(needed, served, strict=True)],
            share_certificate("machine", rate, split),
        )
        for rate, split, needed in Needs(instance, outputs).shares()
    ]


def _makespan(cluster: Instance, times: list[_Times], stated: list[dict[str, Any]]) -> Bound:
    weights = [1] * len(times) if len(set(equal_machines(cluster))) == 1 else _weights(times)
    start = cluster.start_ps
    total, best, release = 0, 0, start
    order = sorted(range(len(cluster.requests)), key=lambda r: -cluster.requests[r].arrival_ps)
    for request in order:
        total += min(
            weight * time
            for weight, time in zip(weights, (options[request] for options in times), strict=True)
            if time is not None
        )
        arrival = cluster.requests[request].arrival_ps
        value = arrival - start - (-total // sum(weights))
        if value > best:
            best, release = value, arrival
    return Bound(best, {"kind": "assignment", "shares": stated, "weights": weights, "release_ps": release})


def _weights(times: list[_Times]) -> list[int]:
    """Return μ of the linear programme, rounded; 1 for each machine if it is not solved."""
    machines, requests = len(times), len(times[0])
    entries = [
        (request, machine, time)
        for machine, options in enumerate(times)
        for request, time in enumerate(options)
        if time is not None
    ]
    scale = max(time for _, _, time in entries) or 1
    row, col, data = (np.array(part, dtype=np.float64) for part in zip(*entries, strict=True))
    # Variables: what is counted of every request, then μ; a request counts at most its time on each machine.
    number = np.arange(len(entries))
    matrix = coo_array(
        (
            np.concatenate((np.ones(len(entries)), -data / scale, np.ones(machines))),
            (
                np.concatenate((number, number, np.full(machines, len(entries)))).astype(np.int64),
                np.concatenate((row, requests + col, requests + np.arange(machines))).astype(np.int64),
            ),
        )
    )
    solver = quiet_solver(_LP_SECONDS, 1)
    size = requests + machines
    sides = np.full(len(entries) + 1, -highspy.kHighsInf), np.zeros(len(entries) + 1)
    sides[0][-1] = sides[1][-1] = 1.0
    cost = np.concatenate((-np.ones(requests), np.zeros(machines)))
    bounds = np.zeros(size), np.full(size, highspy.kHighsInf)
    solver.passModel(programme_of(cost, bounds, csc_array(matrix), sides))
    if run_interruptibly(solver):
        raise KeyboardInterrupt
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return [1] * machines
    found = [max(0, round(_SCALE * weight)) for weight in solver.getSolution().col_value[requests:]]
    return found if any(found) else [1] * machines


def _latencies(cluster: Instance, needs: Sequence[int], alone_ps: Sequence[int]) -> int:
    """Return the larger of the two bounds on sums of latencies."""
    machines, arrivals = len(cluster.machines), cluster.arrivals_ps
    ends_alone = sorted(map(sum, zip(arrivals, alone_ps, strict=True)))
    fast = ends_of_fast_machine(arrivals, needs, machines)
    best = sum(map(max, fast, ends_alone)) - sum(arrivals)
    return best if any(arrivals) else max(best, ends_offline(needs, machines))


def _alone(cluster: Instance, first: bool) -> list[int]:
    """Return the least latency of every request on a machine of its own."""
    found: list[int | None] = [None] * len(cluster.requests)
    for machine in set(equal_machines(cluster)):
        least = alone(cluster.on(machine, range(len(cluster.requests))))
        for request, latency in enumerate(least.ttft if first else least.e2e):
            known = found[request]
            if fits(cluster, machine, request):
                found[request] = latency if known is None else min(known, latency)
    return [latency or 0 for latency in found]


def assignment_programme(cluster: Instance, unit_ps: int = 10**9) -> pulp.LpProblem:
    r"""Return a mixed-integer programme whose optimum is a bound on the makespan; offline, by the first affine piece.

    With :math:`x_{rm}` for "machine m serves r", :math:`J_m` its batches, and times of request and machine as in
    `optsched.bounds.volume`, Z is least subject to :math:`\sum_m x_{rm} = 1`,
    :math:`\mathrm{base}_m J_m + \sum_r w_{rm} x_{rm} ≤ Z`, volume :math:`\sum_r V_{rm} x_{rm} ≤ M_m J_m`, budget
    :math:`\sum_r (I_r + O_r - 1) x_{rm} ≤ C_m J_m`, and chains :math:`(⌈I_r/P_m⌉ + O_r - 1) x_{rm} ≤ J_m`. Times are
    in units of ``unit_ps``, by default ms. Its ``writeLP`` and ``writeMPS`` write it for other solvers.
    """
    problem = pulp.LpProblem("assignment", pulp.LpMinimize)
    # "end" would end a file in the LP format.
    end = problem.add_variable("makespan", 0)
    problem += end
    served: list[list[pulp.LpVariable]] = [[] for _ in cluster.requests]
    for machine in range(len(cluster.machines)):
        instance = cluster.on(machine, range(len(cluster.requests)))
        rate = plain_rate(instance, single_pieces(instance)[0])
        own, limits = OwnTimes(instance, rate), instance.limits
        batches = problem.add_variable(f"batches_{machine}", 0, None, pulp.LpInteger)
        work, volume, tokens = [], [], []
        for index, request in enumerate(cluster.requests):
            serves = problem.add_variable(f"serves_{index}_{machine}", 0, 1, pulp.LpBinary)
            if fits(cluster, machine, index):
                served[index].append(serves)
            shape = request.input, request.output
            work.append(own.of(*shape) / unit_ps * serves)
            volume.append(held_blocks(instance, *shape) * serves)
            tokens.append(request.peak_tokens * serves)
            chain = fewest_steps(instance, request.input) + request.output - 1
            problem += chain * serves <= batches, f"chain_{index}_{machine}"
        problem += rate.base / unit_ps * batches + pulp.lpSum(work) <= end, f"time_{machine}"
        problem += pulp.lpSum(volume) <= limits.kv_blocks * batches, f"volume_{machine}"
        problem += pulp.lpSum(tokens) <= limits.batch_tokens * batches, f"budget_{machine}"
    for index, options in enumerate(served):
        problem += pulp.lpSum(options) == 1, f"served_{index}"
    return problem
