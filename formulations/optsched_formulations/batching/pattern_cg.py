r"""Column generation over patterns: a certified bound on the makespan offline, and schedules combined from patterns.

Requests with equal I and O form a class c of :math:`n_c`. A *pattern* is all that a request does: which batches
generate its tokens, and whether its KV stays between two tokens, or is evicted and refilled. The Dantzig-Wolfe master
programme (`master`) says how many requests of each class run by which pattern, so that batches hold what
they can; it has one convexity row for each class, however many requests it has. Patterns are priced by a shortest path
over (tokens generated, resident or not, batch), exactly, in integers (`network`).

*Times.* Take one affine piece (base, token) of the batch time; a batch takes at least that. Let w be the cheapest own
time of generating a token, by a fill or by a decode where both are possible, and the *extra* time of a step what it
takes beyond that. Then a schedule of J batches takes at least

.. math:: \mathrm{base} \cdot J + \sum w + E, \qquad E \text{ the sum of its extra times},

and exactly that with one piece. Cheap refills need no care: then the decode has the extra time.

Theorem
-------
Take prices :math:`π_{ij} ≥ 0` of every row i (memory, packing inequalities, C, P, N, and memory of fills and of
decodes; see `network`) in every batch j ≤ H. Let :math:`D_c(J)` be the least cost, extra times plus prices
of what it takes, of a pattern of class c within the first J batches, and :math:`G_j` the most that all a
batch takes can cost:

.. math:: G_j = \sum_{i \text{ of all steps}} π_{ij} R_i + \begin{cases} F_j + D_j & \text{with hybrid batches} \\
          \max(F_j, D_j) & \text{without} \end{cases}

for the capacities :math:`R_i`, :math:`F_j = \sum π_{ij} R_i` over the rows that count fills only and :math:`D_j` over
those that count decodes only. Then every schedule of J ≤ H batches has

.. math:: E ≥ E(J) = \sum_c n_c D_c(J) - \sum_{j ≤ J} G_j .

Proof
-----
Let every request pay for what it takes in each batch. Batch j takes at most :math:`R_i` of row i, and nothing of the
rows of fills or of those of decodes if it has no such step, so the payments of batch j add up to at most
:math:`G_j`. A request's extra times and payments are those of a path: it generates token k + 1 by a decode and holds
k tokens in the batches between, or loses its KV in one of the batches between and refills. In the second case the
path holds no memory between the two, which is no more than the request held, and prices are ≥ 0. So the request
accounts for at least :math:`D_c(J)`, for it is finished in batch J or before. Adding up over the requests, E and the
payments are together at least :math:`\sum n_c D_c(J)`. ∎

*Bound.* E is a sum of extra times of steps, each (class, token) at most :math:`n_c` times; so E is at least the least
such sum that is not below E(J), and there is no schedule of J batches if there is none: without evictions, for
instance, as soon as E(J) > 0. J is at least the longest O, and what all requests take at least of a row over
its capacity. Several price vectors may be given; each J takes the best. The bound is the minimum over all J of base J +
Σ w + E, where E ≥ 0 is all that is known for J > H. So it needs no schedule that is known. Floating point only finds
prices; rounded down to integers, in shares of a ps, they are as valid as any, and all that counts is integer
arithmetic. `optsched.check.certificates.patterns` does it a second time.

*Search.* First :math:`u_j`, whether batch j is used, is free; then the J whose bound is least is fixed, over and over,
which is stronger: where u may be fractional, E is bounded by a convex function of J. In each round every class offers
the cheapest patterns for different last batches, and the rounded prices of the round are evaluated, so that a bound is
there when time runs out. Where J has converged, packing inequalities that the fractional solution violates are added.

*Schedules.* Diving (`dive`) looks for schedules of fewer batches than the best one has; then an integer
programme combines the patterns of all optima, of dives and of the schedule to start from. It has the same rows, and of
several pieces it knows only the one; schedules are timed exactly. Both are heuristics.
"""

from __future__ import annotations

from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, UnsupportedError, require_seconds
from optsched.solvers.interrupt import until_interrupted
from optsched_formulations.batching.costs import interchangeable
from optsched_formulations.batching.flow.covered import require_flows


class PatternCg:
    """The method of this module, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(
        sequential=True, turns=(Turn(50, 0.4, (Regime.FEW_RESIDENT, Regime.FEW_TOGETHER, Regime.MANY_TOGETHER)),)
    )
    """Patterns bound best where many requests share the cache."""

    def solve(self, task: Task) -> Outcome:
        """Bound the makespan of an offline instance with whole prefills, and look for schedules.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it.

        Raises
        ------
        UnsupportedError
            For any other task, a limit on the number of evictions, an order of first runs of different requests, a
            limit in deterministic time, or if the numbers could overflow or there are too many paths.
        """
        _require_patterns(task)
        from optsched_formulations.batching.pattern.search import PatternSearch  # noqa: PLC0415  # loads compiled code

        search = PatternSearch(task)
        until_interrupted(lambda _: search.run())
        return search.outcome()


def _require_patterns(task: Task) -> None:
    """Raise `UnsupportedError` for a task that patterns do not cover."""
    require_flows(task)
    require_seconds(task)
    if task.restrictions.max_evictions is not None:
        raise UnsupportedError("a limit on the number of evictions")
    if task.restrictions.first_runs(task.instance) and len(interchangeable(task)) > 1:
        raise UnsupportedError("an order of first runs of different requests")
