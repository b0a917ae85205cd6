r"""Several machines verbatim, to hold `joint` against: assignment × batches, as a programme and for CP-SAT.

All requests are there from the start; prefills are whole, nothing is evicted or cached, and the batch time has one
affine piece. With :math:`y_{rkmj} ∈ \{0, 1\}` for "batch j of machine m generates token k of request r",

.. math::
    \sum_j y_{rkmj} = x_{rm}, \quad \sum_m x_{rm} = 1, \qquad
    \sum_{i ≤ j} y_{r,k+1,m,i} ≤ \sum_{i < j} y_{rkmi}, \qquad y_{rkmj} ≤ u_{mj} ≤ u_{m,j-1},

.. math::
    \sum_r \Bigl( \sum_{i ≤ j} \bigl(I_r y_{r1mi} + \sum_{k ≥ 2} y_{rkmi}\bigr)
    - (I_r + O_r - 1) \sum_{i < j} y_{r O_r m i} \Bigr) ≤ M,

and the budgets C, P and N of each batch, a batch lasts :math:`\mathrm{base}\, u_{mj}` and what its steps take: those of
token k are known, as the request holds :math:`I_r + k - 2` tokens before.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pulp
from ortools.sat.python import cp_model

from optsched.model.instance import Instance
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.routing.fleet import require_independent

_Key = tuple[int, int, int, int]
"""Request, token from 0, machine, batch."""


def makespan_programme(cluster: Instance) -> pulp.LpProblem:
    """Return the programme of this module for the makespan, in ps."""
    _require(cluster)
    problem = pulp.LpProblem("joint", pulp.LpMinimize)
    makespan = problem.add_variable("makespan", 0)
    problem += makespan
    generates = {
        key: problem.add_variable("y_" + "_".join(map(str, key)), 0, 1, pulp.LpBinary) for key in _keys(cluster)
    }
    used = {
        key: problem.add_variable(f"u_{key[0]}_{key[1]}", 0, 1, pulp.LpBinary)
        for key in product(range(len(cluster.machines)), range(_batches(cluster)))
    }
    for left, right in _rows(cluster, generates, used):
        problem += pulp.lpSum(factor * variable for factor, variable in left) <= right
    for request in range(len(cluster.requests)):
        problem += pulp.lpSum(variable for key, variable in generates.items() if key[:2] == (request, 0)) == 1
    for machine in range(len(cluster.machines)):
        times = [factor * variable for batch in range(_batches(cluster)) for factor, variable in
                 _time(cluster, generates, used, machine, batch)]  # fmt: skip
        problem += pulp.lpSum(times) <= makespan
    return problem


def least_sum_of_latencies(cluster: Instance, time_limit_s: float) -> int | None:
    """Return the least sum of e2e latencies that CP-SAT proves; None if it proves none in time."""
    _require(cluster)
    model = cp_model.CpModel()
    generates = {key: model.new_bool_var("") for key in _keys(cluster)}
    machines, batches = range(len(cluster.machines)), range(_batches(cluster))
    used = {key: model.new_bool_var("") for key in product(machines, batches)}
    for left, right in _rows(cluster, generates, used):
        model.add(sum(factor * variable for factor, variable in left) <= right)
    for number in range(len(cluster.requests)):
        model.add_exactly_one(variable for key, variable in generates.items() if key[:2] == (number, 0))
    largest = max(factor for machine in machines for factor, _ in _time(cluster, generates, used, machine, 0))
    latest = largest * (len(cluster.requests) + 1) * len(batches)
    ends = [model.new_int_var(0, latest, "") for _ in cluster.requests]
    for machine in machines:
        end: Any = 0
        for batch in batches:
            end += sum(factor * variable for factor, variable in _time(cluster, generates, used, machine, batch))
            for index, request in enumerate(cluster.requests):
                model.add(ends[index] >= end).only_enforce_if(generates[index, request.output - 1, machine, batch])
    model.minimize(sum(ends))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = 1
    return round(solver.objective_value) if solver.solve(model) == cp_model.OPTIMAL else None


def _require(cluster: Instance) -> None:
    require_independent(cluster)
    if not cluster.offline:
        raise UnsupportedError("arrivals")
    for machine in cluster.machines:
        if machine.rules.chunked_prefill or machine.rules.eviction or machine.rules.swap or machine.cost.pieces:
            raise UnsupportedError("chunked prefill, eviction, swaps, or a batch time of several pieces")
        if machine.limits.kv_block > 1 or not machine.rules.hybrid:
            raise UnsupportedError("blocks of several tokens, or batches of one kind")


def _batches(cluster: Instance) -> int:
    return sum(request.output for request in cluster.requests)


def _keys(cluster: Instance) -> list[_Key]:
    return [
        (index, token, machine, batch)
        for index, request in enumerate(cluster.requests)
        for token in range(request.output)
        for machine in range(len(cluster.machines))
        for batch in range(_batches(cluster))
    ]


def _rows(cluster: Instance, generates: dict[_Key, Any], used: dict[tuple[int, int], Any]) -> Iterable[tuple[Any, int]]:
    """Yield all rows, as factors and variables that add up to at most a number."""
    batches, requests = range(_batches(cluster)), list(enumerate(cluster.requests))
    for number, machine in enumerate(cluster.machines):
        limits = machine.limits
        for index, request in requests:
            for token in range(1, request.output):
                now, before = (
                    [(1, generates[index, each, number, batch]) for batch in batches] for each in (token, token - 1)
                )
                # As many of each token as of the one before, and later.
                yield now + [(-1, variable) for _, variable in before], 0
                yield before + [(-1, variable) for _, variable in now], 0
                for batch in batches:
                    yield now[: batch + 1] + [(-1, variable) for _, variable in before[:batch]], 0
        for batch in batches:
            if batch:
                yield [(1, used[number, batch]), (-1, used[number, batch - 1])], 0
            run = [(1, generates[i, k, number, batch]) for i, r in requests for k in range(r.output)]
            yield from (([one, (-1, used[number, batch])], 0) for one in run)
            first = [(r.input, generates[i, 0, number, batch]) for i, r in requests]
            yield first, limits.prefill_tokens
            later = [(1, generates[i, k, number, batch]) for i, r in requests for k in range(1, r.output)]
            yield first + later, limits.batch_tokens
            if limits.batch_requests is not None:
                yield run, limits.batch_requests
            held = []
            for index, request in requests:
                for until in range(batch + 1):
                    held.append((request.input, generates[index, 0, number, until]))
                    held += [(1, generates[index, k, number, until]) for k in range(1, request.output)]
                    if until < batch:
                        held.append((-request.peak_tokens, generates[index, request.output - 1, number, until]))
            yield held, limits.kv_tokens


def _time(
    cluster: Instance, generates: dict[_Key, Any], used: dict[tuple[int, int], Any], machine: int, batch: int
) -> list[tuple[int, Any]]:
    """Return what a batch lasts."""
    cost = cluster.machines[machine].cost
    base, token = cost.affine[0]
    found = [(base, used[machine, batch])]
    for index, request in enumerate(cluster.requests):
        first = token * request.input + cost.prefill_ps(request.input, 0)
        found.append((first, generates[index, 0, machine, batch]))
        found += [
            (token + cost.decode_ps(request.input + k - 1), generates[index, k, machine, batch])
            for k in range(1, request.output)
        ]
    return found
