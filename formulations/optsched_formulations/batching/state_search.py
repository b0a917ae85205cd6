"""Best-first search over what every request may do, guided by exact lower bounds on what is still to come.

Two kinds of states: *request by request* (`request_space`), for any instance in which only memory binds, and *nodes and
pools* (`node_space`), for the makespan offline where the graph of resident sets is small, with a far better bound from
a linear programme. Each is tried where the other is weak: the first search is short if a graph follows.

A beam first keeps the best states after every batch and ends in a good schedule. The search then visits states in the
order of their bound on the objective: once a finished one is known and every state of a smaller bound has been looked
at, it is optimal; stopped early, the smallest bound among the open states holds for every schedule.

With arrivals a batch may wait before it begins. First fills of a class go to the one that arrived first: its requests
differ in nothing else.

Evicting a request and refilling it for the very next batch is not allowed by the problem; the search has it, at the
cost of a refill in place of the decode that keeping would have cost. Read as keeping, it is legal and no dearer.
"""

from __future__ import annotations

from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import (
    Outcome,
    Task,
)
from optsched_formulations.batching.memory_only import require_memory_only


class StateSearch:
    """The method of this module, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(
        sequential=True,
        turns=(
            Turn(40, 0.9, (Regime.FEW_RESIDENT, Regime.FEW_ARRIVING)),
            Turn(40, 0.3, (Regime.FEW_TOGETHER,)),
            Turn(40, 0.5, (Regime.MANY_ARRIVING, Regime.MANY_TOGETHER)),
        ),
    )
    """It proves most where few requests share the cache, and no other method proves as much for latencies."""

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan or a sum of e2e latencies of an instance in which only memory binds.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it. A deterministic limit
        counts millions of expanded states.

        Raises
        ------
        UnsupportedError
            For any other instance, or if numbers are too large.
        """
        require_memory_only(task)
        from optsched_formulations.batching.search.spaces import SpaceSearch  # noqa: PLC0415  # loads compiled code

        return SpaceSearch(task).solve()
