"""Token-indexed CP-SAT models of batch assignment: every monotone objective, every rule, every restriction.

The models index output tokens, not requests × batches as InferMax's constraint programme does (Kim et al.,
section 5). Their mathematics is with their parts:

- `whole`: whole prefills, over the variables of `variables` and the clocks of `clock`;
- `chunks`: chunked prefill, the state of every request in every batch;
- `objective`: the objectives, for both;
- `costs`: costs, horizons and what is interchangeable.

Both look only for schedules no worse than the best known, or than the restriction ``at_most``: finding none proves
that the incumbent is optimal, or that no schedule is that good.
"""

from __future__ import annotations

from optsched.solvers.declaration import Declaration, Turn
from optsched.solvers.formulation import Outcome, Task, require_monotone


class TokenCpSat:
    """The formulation of this module, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(turns=(Turn(10, 0.02), Turn(80, 1.0)))
    """It proves small instances at once, and gets all the time left in the end."""

    def solve(self, task: Task) -> Outcome:
        """Minimise the task's objective.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it, and the bound that the
        optimum does.

        Raises
        ------
        UnsupportedError
            For times between tokens, if the numbers could overflow, or the model would be too large to build.
        """
        require_monotone(task.objective)
        from optsched_formulations.batching.token.minimize import minimize  # noqa: PLC0415  # loads the solver

        return minimize(task)
