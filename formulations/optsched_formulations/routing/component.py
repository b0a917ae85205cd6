r"""The component bound of `prefix_placement`: few documents on several machines are computed often.

Theorem
-------
Let :math:`T_d` and :math:`Y_d` be the recursion's numbers of the documents at a load Z, :math:`m_d` the number of
requests behind document d, and :math:`c_d` what its node takes; let every machine that holds a document also spend
:math:`c_0` on a root in front of them. A request that has no document is one, with :math:`m_d = 1`.
If some placement has no load beyond Z, the documents can be grouped, each group D with a number r of machines, R in
all, so that

.. math:: \sum_{d ∈ D} T_d + \Bigl(r - 1 - \sum_{d ∈ D} (Y_d - 1)\Bigr)^+ \min_{d ∈ D,\, m_d > Y_d} c_d ≤ r (Z - c_0),

where the minimum of nothing is infinite, and 0 times it is 0.

Proof
-----
Take the graph with an edge between a document and each machine that computes it, and its components that have a
document. One with the documents D and r machines is connected, so it has at least \|D\| + r − 1 edges. Document d has
:math:`n_d ≥ Y_d` of them and costs its machines at least :math:`T_d + (n_d - Y_d) c_d`: the recursion bounds what is
behind its node, which is the same for more copies. Each of its machines serves a request behind it: :math:`n_d ≤ m_d`,
so :math:`n_d > Y_d` only where :math:`m_d > Y_d`. Together these are at least the left side, as
:math:`\sum (n_d - Y_d) ≥ r - 1 - \sum (Y_d - 1)`. The machines of the component
have only its documents, and at most :math:`Z - c_0` left for them each. ∎

:math:`T_d` and :math:`Y_d` fall as Z rises, so numbers taken at a larger load are valid for a smaller one too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from optsched.compiled import compiled
from optsched.model.ints import Ints

MOST_ENUMERATED = 14
"""Documents up to which all groups are listed; the work is three times as much for each more."""


@dataclass(frozen=True)
class DocumentNeed:
    """What a document needs of the machines.

    Parameters
    ----------
    spent_ps
        T, what all machines spend on it at least.
    copies
        Y, on how many machines it is at least.
    node_ps
        c, what another copy takes.
    requests
        m, the number of requests behind it; it is on no more machines.
    """

    spent_ps: int
    copies: int
    node_ps: int
    requests: int


def component_bound(
    needs: list[DocumentNeed], root_ps: int, machines: int, loads: tuple[int, int], limits: tuple[float, int]
) -> int:
    """Return the least load that the theorem does not refute, or a smaller one.

    Up to `MOST_ENUMERATED` documents it is found by dynamic programming; with more CP-SAT searches for it.

    Parameters
    ----------
    needs, root_ps
        What documents need at the load below the largest that is of interest, and c₀.
    machines
        R.
    loads
        The least and the largest load that are of interest.
    limits
        Of CP-SAT: seconds, and workers.
    """
    low, high = loads
    if len(needs) > MOST_ENUMERATED:
        return max(low, min(high, _searched(needs, root_ps, machines, high, limits)))
    groups = _Groups.of(needs)
    while low < high:
        middle = (low + high) // 2
        if groups.fewest_machines(middle - root_ps, machines) <= machines:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True)
class _Groups:
    """All groups of documents: the bits of an index say which ones are in the group.

    Parameters
    ----------
    spent_ps, spare
        The sums of T, and of Y − 1.
    cheapest_ps
        What the cheapest further copy takes, −1 if there is none.
    """

    spent_ps: Ints
    spare: Ints
    cheapest_ps: Ints

    @classmethod
    def of(cls, needs: list[DocumentNeed]) -> _Groups:
        spent, spare = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        none = np.iinfo(np.int64).max
        cheapest = np.full(1, none, dtype=np.int64)
        for need in needs:
            copy_ps = need.node_ps if need.requests > need.copies else none
            spent = np.concatenate((spent, spent + need.spent_ps))
            spare = np.concatenate((spare, spare + need.copies - 1))
            cheapest = np.concatenate((cheapest, np.minimum(cheapest, copy_ps)))
        return cls(spent, spare, np.where(cheapest == none, -1, cheapest))

    def fewest_machines(self, room: int, machines: int) -> int:
        """Return on how few machines with that much room all documents may fit, ``machines`` + 1 for more."""
        alone = np.full(len(self.spare), machines + 1, dtype=np.int64)
        for count in range(machines, 0, -1):
            more = np.maximum(count - 1 - self.spare, 0)
            possible = (more == 0) | (self.cheapest_ps >= 0)
            alone[possible & (self.spent_ps + more * self.cheapest_ps <= count * room)] = count
        return int(_partition(alone)[-1])


@compiled
def _partition(alone: Ints) -> Ints:
    """Return for every set of documents the least sum over groups that make it up."""
    best = alone.copy()
    best[0] = 0
    for whole in range(1, len(best)):
        lowest = whole & -whole
        rest = whole ^ lowest
        part = rest
        while part:
            # The group with the lowest document leaves ``part`` to the others.
            best[whole] = min(best[whole], alone[whole ^ part] + best[part])
            part = (part - 1) & rest
    return best


def _searched(needs: list[DocumentNeed], root_ps: int, machines: int, high: int, limits: tuple[float, int]) -> int:
    """Return CP-SAT's bound on the load.

    Copies cost no more than what all machines have left. Groups are numbered by the first of their documents, in
    decreasing order of what is spent on them.
    """
    model = cp_model.CpModel()
    load = model.new_int_var(0, max(high - root_ps, 0), "load")
    slack = machines * (high - root_ps) - sum(need.spent_ps for need in needs)
    ordered = sorted(needs, key=lambda need: -need.spent_ps)
    held: list[list[cp_model.IntVar]] = [[] for _ in needs]
    counts = []
    for group in range(min(machines, len(needs))):
        sizes = [model.new_bool_var("") for _ in range(machines + 1)]
        model.add_exactly_one(sizes)
        counts.append(cp_model.LinearExpr.weighted_sum(sizes, range(machines + 1)))
        spent, edges = [], []
        for members, need in zip(held[group:], ordered[group:], strict=True):
            most = min(machines, need.requests) - need.copies
            if need.node_ps:
                most = min(most, slack // need.node_ps)
            inside = model.new_bool_var("")
            members.append(inside)
            model.add_implication(sizes[0], inside.negated())
            spent.append(need.spent_ps * inside)
            edges.append((need.copies - 1) * inside)
            if most > 0:
                more = model.new_int_var(0, most, "")
                model.add(more <= most * inside)
                spent.append(need.node_ps * more)
                edges.append(more)
        model.add(sum(edges) >= counts[group] - 1)
        for size in range(1, machines + 1):
            model.add(sum(spent) <= size * load).only_enforce_if(sizes[size])
    model.add(sum(counts) <= machines)
    for members in held:
        model.add_exactly_one(members)
    model.minimize(load)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = max(limits[0], 0.0), limits[1]
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return high
    return int(solver.response_proto.inner_objective_lower_bound) + root_ps
