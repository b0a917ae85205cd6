r"""Two requests at a time are taken out of a schedule and put back as well as can be: schedules of short makespan.

It covers what `memory_only` says, for the makespan. A schedule of J batches is no more than a batch for each token, and
takes

.. math:: \mathrm{constant} + \mathrm{base} \cdot J + \sum_{(r, k) \in R} e_{rk} + \mathrm{waits},

where R are the tokens whose request did not run in the batch before, and :math:`e_{rk}` is what a refill takes beyond
a decode. In each batch the requests that run hold no more than the cache, and the machine waits for those that begin.

*A move* takes two requests out and puts their tokens where they cost least, while all others stay. With what these
leave of each batch that is a shortest path through the batches, whose states have the tokens that either has generated,
and whether it ran last: the best of all places for both, not of a few. Where it has too many states it keeps to a
window of batches. Equal places are chosen by lot, so that moves that gain nothing lead on. What waiting for an arrival
costs depends on all that is done before, of which the path knows the others and what the second request has done, but
for refills: where requests arrive at different times a move that turns out to cost more is taken back.

*Too much in a batch* is allowed at a price per block (strategic oscillation; Glover, "Heuristics for integer
programming using surrogate constraints", Decision Sciences 8, 1977). Again and again the price falls so far that moves
overfill batches to save refills, differently in each, and then rises, most in those that stay too full, until a
schedule is legal. So requests find each other that no single move would bring together.

*Batches*: J changes as well, by few around the best. Where a batch is to go, the requests that ran in it begin anew,
wherever they are too much; one more is empty at first.

*Runs.* A run begins with the schedule that is given, and ends where nothing better was found for long; then another one
takes other ways. Where a few have ended with the same best value nothing better is expected.

It bounds nothing. Exact searches begin with what it finds: with less to beat, more numbers of batches are refuted, and
fewer states are left.
"""

from __future__ import annotations

from optsched.model.objectives import Objective
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, UnsupportedError, require_seconds
from optsched_formulations.batching.memory_only import require_memory_only


class Reinsertion:
    """The method of this module, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(
        sequential=True,
        turns=(
            Turn(22, 0.2, (Regime.FEW_TOGETHER, Regime.MANY_TOGETHER)),
            Turn(32, 0.1, (Regime.FEW_ARRIVING, Regime.MANY_ARRIVING)),
            Turn(46, 0.6, (Regime.FEW_TOGETHER, Regime.MANY_TOGETHER)),
        ),
    )
    """What it finds in seconds is mostly the best there is, or not far from it. With arrivals beams are better."""

    def solve(self, task: Task) -> Outcome:
        """Look for schedules of an instance in which only memory binds; it bounds nothing.

        Raises
        ------
        UnsupportedError
            For any other instance or objective, a limit in deterministic time, or if numbers are too large.
        """
        require_memory_only(task)
        if task.objective not in {Objective.MAKESPAN, Objective.MAX_E2E}:
            raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan")
        if len(task.instance.requests) == 1:
            raise UnsupportedError("a single request, it moves two at a time")
        require_seconds(task)
        if task.instance.cost.affine[0][0] == 0:
            raise UnsupportedError("batches without a base, it prices what is too much in bases")
        from optsched_formulations.batching.search.reinsertions import Reinsertions  # noqa: PLC0415  # loads compiled code

        return Reinsertions(task).best()
