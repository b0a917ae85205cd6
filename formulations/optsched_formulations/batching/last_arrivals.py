r"""The last arrivals alone: bounds on the makespan of requests that arrive over time.

*Theorem.* For a moment t let S be the requests with :math:`T_r ≥ t`, :math:`t_0` the earliest arrival among them and
:math:`z(S)` their optimal makespan, counted from :math:`t_0`. If nothing is evicted, or if prefills run whole and all
refills of S are *dear* (`refills`), and nothing waits on the host, then

.. math:: \mathrm{makespan} ≥ t_0 - \min_r T_r + z(S).

*Proof sketch.* Take the runs of all other requests out of a schedule, and batches that then run nothing; let the
others begin when they began. No batch takes longer than before and none holds more. What may be missing is the pause
of an eviction, a batch in which only others ran: then keep that batch, decode there what would have been refilled after
it, and move evictions of that time into it. It holds no more than the batch of the refills did, and since these are
dear and f is convex both batches take no longer than before. So there is a schedule of S that ends no later.
`optsched.check.certificates.last_arrivals` has the whole proof, and tests its conditions by `require_separable`. ∎

Where a refill is cheaper than the decode in its place the inequality is false: another request may run in the pause.

At light load the last few requests decide the makespan, the others are long done. So sets S are solved to optimality
one after another, the smallest first, each beginning one arrival earlier: by `state_search` where only memory binds,
else by `token_cpsat`. Each search looks only for what would leave the best schedule's value out of reach; as
soon as there is no such schedule of S, the best one is optimal.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError, silent
from optsched.solvers.interrupt import until_interrupted
from optsched.stopwatch import now_s
from optsched_formulations.batching.refills import least_beyond_ps
from optsched_formulations.batching.state_search import StateSearch
from optsched_formulations.batching.token_cpsat import TokenCpSat

_SHARE = 0.5
"""Share of the time left that a set of requests may take with each method."""


class LastArrivals:
    """The method of this module, as `optsched.solvers.formulation.Formulation`; it finds bounds only."""

    declaration = Declaration(
        sequential=True, turns=(Turn(30, 0.08, (Regime.FEW_RESIDENT,)), Turn(30, 0.15, (Regime.MANY_RESIDENT,)))
    )
    """The last requests to arrive may decide alone."""

    def solve(self, task: Task) -> Outcome:
        """Bound the makespan of an instance with arrivals.

        Raises
        ------
        UnsupportedError
            For another objective, if all requests arrive together, with an order of first runs, or if requests may be
            evicted and prefills chunked.
        """
        if task.objective != Objective.MAKESPAN:
            raise UnsupportedError(f"objective {task.objective.value}, it bounds the makespan")
        if task.instance.offline:
            raise UnsupportedError("requests that arrive together, they are its last arrivals")
        if task.restrictions.first_runs(task.instance):
            raise UnsupportedError("an order of first runs")
        if task.instance.rules.eviction and task.instance.rules.chunked_prefill:
            raise UnsupportedError("evictions with chunked prefill (forbid chunked, or eviction)")
        return _Bounds(task).best()


class _Bounds:
    """The best bound so far, from larger and larger sets of requests."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._started = now_s()
        self._bound = task.bound
        self._badge = Badge.HEURISTIC
        self._certificate: dict[str, Any] | None = None
        # A bound that settles the task.
        value, at_most = task.incumbent_value, task.restrictions.at_most
        enough = [] if value is None else [value]
        self._enough = min(enough if at_most is None else [*enough, at_most + 1], default=None)

    def best(self) -> Outcome:
        task = self._task
        moments = sorted({request.arrival_ps for request in task.instance.requests}, reverse=True)
        until_interrupted(lambda came: all(self._solve_from(moment, came) for moment in moments[:-1]))
        bound = None if self._badge == Badge.HEURISTIC else self._bound
        outcome = Outcome(Termination.LIMIT, None, bound, self._badge, self._certificate)
        at_most, value = task.restrictions.at_most, task.incumbent_value
        if value is not None and bound == value:
            return replace(outcome, termination=Termination.OPTIMAL, schedule=task.incumbent)
        if at_most is not None and bound is not None and bound > at_most:
            return replace(outcome, termination=Termination.INFEASIBLE)
        return outcome

    def _solve_from(self, moment: int, interrupted: threading.Event) -> bool:
        """Solve the requests from a moment on; return whether larger sets may still give more."""
        task, whole = self._task, self._task.instance
        late = tuple(request for request in whole.requests if request.arrival_ps >= moment)
        part = replace(whole, name=f"{whole.name}, the last {len(late)}", requests=late)
        if least_beyond_ps(part) < 0:
            return False
        before = moment - whole.start_ps
        for method in (StateSearch(), TokenCpSat()):
            left = task.time_limit_s - (now_s() - self._started)
            if left <= 0 or interrupted.is_set():
                return False
            outcome = self._ask(method, part, before, _SHARE * left)
            if outcome is None:
                continue
            if outcome.bound is not None:
                self._offer(before + outcome.bound, outcome, moment)
            if outcome.termination != Termination.LIMIT:
                return self._enough is None or self._bound < self._enough
        return False

    def _ask(self, method: StateSearch | TokenCpSat, part: Instance, before: int, seconds: float) -> Outcome | None:
        """Look for schedules of a part that leave a better schedule of the whole possible; None if it cannot."""
        task = self._task
        at_most = None if self._enough is None else self._enough - 1 - before
        if at_most is not None and at_most < 0:
            return None
        try:
            return method.solve(
                replace(
                    task,
                    instance=part,
                    restrictions=replace(task.restrictions, at_most=at_most),
                    incumbent=None,
                    incumbent_value=None,
                    bound=0,
                    time_limit_s=seconds,
                    progress=silent,
                )
            )
        except UnsupportedError:
            return None

    def _offer(self, bound: int, outcome: Outcome, moment: int) -> None:
        """Take a bound if it is better."""
        if bound <= self._bound:
            return
        self._bound, self._badge = bound, outcome.badge
        self._certificate = None
        if outcome.badge == Badge.CERTIFIED and outcome.certificate is not None:
            self._certificate = {"kind": "last_arrivals", "from_ps": moment, "certificate": outcome.certificate}
        elapsed = now_s() - self._started
        self._task.progress(ProgressEvent(elapsed, self._task.incumbent_value, bound))
