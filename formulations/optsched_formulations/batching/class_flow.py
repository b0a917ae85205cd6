"""Integer flows of interchangeable requests, for the makespan offline with whole prefills: CP-SAT and MIP.

The mathematics is with its parts: variables, rows and what the reduced model leaves out in `model`, the
inequality that strengthens memory in `packing`, solvers and what is believed of them in
`engines`.

The number of batches is free, up to what the best schedule known leaves room for: every batch costs at least a base, so
J ≤ (value − least work) / base (`costs.Horizon`). Fixing J, from below, one number after the other, was tried: it
refutes a small J faster, but for many instances the least refill cost at one such J is harder to prove than the
optimum over all.
"""

from __future__ import annotations

from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task
from optsched_formulations.batching.flow.covered import require_flows


class ClassFlow:
    """Flows on CP-SAT, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(
        turns=(
            Turn(60, 0.6, (Regime.FEW_RESIDENT, Regime.FEW_TOGETHER)),
            Turn(60, 0.85, (Regime.MANY_TOGETHER,)),
        )
    )
    """It finds schedules that the state search does not reach and patterns only bound."""

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan of an offline instance with whole prefills.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it.

        Raises
        ------
        UnsupportedError
            For any other task, if the numbers could overflow, or the model would be too large to build.
        """
        require_flows(task)
        from optsched_formulations.batching.flow.minimize import minimize_on_cpsat  # noqa: PLC0415  # loads solvers

        return minimize_on_cpsat(task)


class ClassFlowMip:
    """Flows on HiGHS, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(baseline=True)

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan of an offline instance with whole prefills.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it.

        Raises
        ------
        UnsupportedError
            For any other task, for a limit in deterministic time, or if the model would be too large to build.
        """
        require_flows(task)
        from optsched_formulations.batching.flow.minimize import minimize_on_highs  # noqa: PLC0415  # as above

        return minimize_on_highs(task)
