"""Beams on the clock: schedules of short makespan, where only memory binds (`memory_only`).

A state is what requests have generated and which of them are resident, after a batch; everything in it is as in the
problem, so that what it finishes in is a schedule of the problem. States are compared with those whose batches end at
about the same time, within a base: the machine may have waited in some of them for the next arrival, so that those
after equally many batches are far apart. Since a batch takes more than a base, what follows on a state comes in a
later group. Of every group the best are kept,

- by their waste (`free_pauses`), the refills that they owe, and a base for as many batches as what is left needs by
  weights of which a batch holds at most so much (`packing`), if the last t batches generate no more than the last t
  tokens of each request;
- in every other beam none that another is as good as, by the rule of `free_pauses` for residents at a price. Here
  prices grow with the tokens and pauses hold all that they have, so that the rule is a guess, as a beam is; it helps
  where large requests share the cache and small ones come. In the others only the best of equal states.

A batch runs what fits: no resident pauses, and nothing is evicted, where there is room for more. First fills and
refills may wait for later batches. After each state those few batches are looked at that gain the most by the same
weights, less the refills that they cause: a search of depth first, which leaves out what a knapsack that may hold
requests in part says to gain less.

*Many beams.* What no weights say, which requests meet well, a beam finds by luck, and a narrow one that has it is worth
more than a wide one. So beams differ: the weights of all tokens are multiplied by factors that are drawn, around one or
around those of the best schedule so far, as often. Most beams are narrow, and as much time goes into wider ones: the
n-th is as wide as the n-th number of the sequence of Luby, Sinclair and Zuckerman says ("Optimal speedup of Las Vegas
algorithms", Information Processing Letters 47, 1993). The first of every width has the weights as they are. They
follow each other until time is up, or one leaves out nothing, or a bound is met.
"""

from __future__ import annotations

from optsched.model.objectives import Objective
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, UnsupportedError, require_seconds
from optsched_formulations.batching.memory_only import require_memory_only


class ClockBeam:
    """The method of this module, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(
        sequential=True,
        turns=(
            Turn(31, 0.3, (Regime.FEW_ARRIVING,)),
            Turn(31, 0.4, (Regime.MANY_ARRIVING,)),
            Turn(47, 0.6, (Regime.FEW_TOGETHER, Regime.MANY_TOGETHER)),
        ),
    )
    """What it finds often meets the bound of `free_pauses` or `last_arrivals`, and then ends the search."""

    def solve(self, task: Task) -> Outcome:
        """Look for schedules of an instance in which only memory binds; it bounds nothing.

        Raises
        ------
        UnsupportedError
            For any other instance or objective, a limit in deterministic time, or if numbers are too large.
        """
        if task.objective != Objective.MAKESPAN:
            raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan")
        require_seconds(task)
        if task.instance.cost.affine[0][0] == 0:
            raise UnsupportedError("batches without a base, which is how far apart its groups are")
        require_memory_only(task)
        from optsched_formulations.batching.search.beams import Beams  # noqa: PLC0415  # loads compiled code

        return Beams(task).solve()
