r"""Sums of e2e latencies offline by an integer programme of flows and pairs, prices of its rows, and CP-SAT.

The programme is that of `pairs.model`: whole requests flow through the batches, and for each step and each request a
variable says whether the request waits for the step. Its linear relaxation is strong where the cache holds many
requests: of twelve, 0 to 1 % below the optimum, where bounds that share out the machine's time are 20 to 40 %.

1. *Prices* of rows, by HiGHS, prove a bound and narrow the domains of variables, in integers (`pairs.prices`).
   Inequalities on what a batch holds (`pattern.cuts`) that the relaxation violates are added, round by round. Most rows
   of pairs do not bind: a row is priced once a solution has violated it.
2. *CP-SAT* solves what is left, where prices leave little: it computes in integers, so that its optimum is exact. If
   they leave much, a better schedule than what is known is asked of the planner first.

The horizon has a few batches more than the best schedule known. If the best solution has a request that is late, the
bound holds, but there is no schedule to it: then the horizon is doubled, up to a batch for each token, beyond which no
schedule goes.
"""

from __future__ import annotations

from optsched.model.objectives import Objective
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, UnsupportedError, require_seconds
from optsched_formulations.batching.memory_only import require_memory_only


class PairFlow:
    """The method of this module, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(sequential=True, turns=(Turn(38, 0.75, (Regime.FEW_RESIDENT,)),))
    """It comes before the state search, which makes use of all the time that it gets."""

    def solve(self, task: Task) -> Outcome:
        """Minimise a sum of e2e latencies of an offline instance in which only memory binds.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it.

        Raises
        ------
        UnsupportedError
            For any other task, a limit in deterministic time, or if the programme would be too large.
        """
        require_memory_only(task)
        if task.objective not in {Objective.MEAN_E2E, Objective.WEIGHTED_E2E}:
            raise UnsupportedError(f"objective {task.objective.value}, it minimises sums of e2e latencies")
        if not task.instance.offline:
            raise UnsupportedError("requests that arrive at different times, it is offline")
        require_seconds(task)
        if task.instance.cost.affine[0][0] == 0:
            raise UnsupportedError("batches without a base, it counts batches")
        from optsched_formulations.batching.pairs.solution import minimize  # noqa: PLC0415  # loads compiled code

        return minimize(task)
