r"""Placement of prefixes verbatim: as a programme for other solvers, and for CP-SAT with a placement as a hint.

With :math:`x_{qm}` for "machine m serves request q" and :math:`y_{vm}` for "machine m computes node v":

.. math::
    \min Z \quad \text{s.t.} \quad \sum_m x_{qm} = 1, \quad x_{qm} ≤ y_{v(q) m}, \quad
    y_{vm} ≤ y_{\mathrm{parent}(v) m}, \quad \sum_q u_q x_{qm} + \sum_v c_v y_{vm} ≤ Z \;\forall m .

Alone they are weak: the relaxation spreads every request over all machines, and the machines can be exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulp
from ortools.sat.python import cp_model

from optsched_formulations.routing.prefix_tree import PrefixTree


def placement_programme(tree: PrefixTree, machines: int) -> pulp.LpProblem:
    """Return the mixed-integer programme of this module; its ``writeLP`` and ``writeMPS`` write it."""
    problem = pulp.LpProblem("prefix_placement", pulp.LpMinimize)
    load = problem.add_variable("load", 0)
    problem += load
    loads = []
    total: dict[int, list[pulp.LpVariable]] = {index: [] for index in range(len(tree.requests))}
    for machine in range(machines):
        held = [
            problem.add_variable(f"holds_{node}_{machine}", 0, 1, pulp.LpBinary) for node in range(len(tree.parents))
        ]
        for node, parent in enumerate(tree.parents):
            if parent is not None:
                problem += held[node] <= held[parent], f"front_{node}_{machine}"
        terms = [time * holds for time, holds in zip(tree.node_ps, held, strict=True)]
        for index, request in enumerate(tree.requests):
            serves = problem.add_variable(f"serves_{index}_{machine}", 0, 1, pulp.LpBinary)
            total[index].append(serves)
            terms.append(request.own_ps * serves)
            if request.node is not None:
                problem += serves <= held[request.node], f"prefix_{index}_{machine}"
        loads.append(pulp.lpSum(terms) <= load)
    for machine, row in enumerate(loads):
        problem += row, f"load_{machine}"
    for index, serving in total.items():
        problem += pulp.lpSum(serving) == 1, f"served_{index}"
    return problem


def polish(tree: PrefixTree, machines: int, hint: Sequence[int], bound: int, limits: tuple[float, int]) -> list[int]:
    """Return the best placement that CP-SAT finds from a placement on.

    Loads are at least ``bound``; ``limits`` are seconds and workers.
    """
    value = max(tree.loads_ps(hint, machines))
    model = cp_model.CpModel()
    load = model.new_int_var(bound, value, "load")
    serves = [[model.new_bool_var("") for _ in range(machines)] for _ in tree.requests]
    held = [[model.new_bool_var("") for _ in range(machines)] for _ in tree.parents]
    for node, parent in enumerate(tree.parents):
        if parent is not None:
            for machine in range(machines):
                model.add_implication(held[node][machine], held[parent][machine])
    for request, row, at in zip(tree.requests, serves, hint, strict=True):
        model.add_exactly_one(row)
        for machine, variable in enumerate(row):
            model.add_hint(variable, machine == at)
            if request.node is not None:
                model.add_implication(variable, held[request.node][machine])
    own = [request.own_ps for request in tree.requests]
    for machine in range(machines):
        model.add(
            cp_model.LinearExpr.weighted_sum([row[machine] for row in (*serves, *held)], [*own, *tree.node_ps]) <= load
        )
    paths = {(node, at) for request, at in zip(tree.requests, hint, strict=True) for node in tree.path(request.node)}
    for node, row in enumerate(held):
        for machine, variable in enumerate(row):
            model.add_hint(variable, (node, machine) in paths)
    model.minimize(load)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = limits
    if solver.solve(model) not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return list(hint)
    return [next(machine for machine, variable in enumerate(row) if solver.boolean_value(variable)) for row in serves]
