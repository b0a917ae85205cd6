"""The planner as a formulation: good schedules at any size, and no bound."""

from __future__ import annotations

from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, require_monotone


class Planner:
    """List scheduling and large-neighbourhood search, as `optsched.solvers.formulation.Formulation`.

    Its schedules have no swaps. It claims no bound, so that it also covers instances that allow swaps.
    """

    declaration = Declaration(
        covers=("swap",),
        before_policies=True,
        sequential=True,
        turns=(Turn(20, 0.03), Turn(20, 0.85, (Regime.LARGE,))),
    )
    """First for a schedule to beat, and alone on large instances, where it leaves time to check the schedules."""

    def solve(self, task: Task) -> Outcome:
        """Look for better schedules until time is up, or one is as good as ``at_most`` or the bound.

        A deterministic limit counts millions of runs in the plans that are tried.

        Raises
        ------
        UnsupportedError
            For times between tokens, or if numbers are too large.
        """
        require_monotone(task.objective)
        from optsched.planner.run import plan  # noqa: PLC0415  # loads compiled code

        return plan(task)
