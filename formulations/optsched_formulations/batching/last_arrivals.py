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

from collections.abc import Iterator
from dataclasses import replace

from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, UnsupportedError
from optsched_formulations.batching.parts import Part, PartBounds
from optsched_formulations.batching.refills import least_beyond_ps
from optsched_formulations.batching.state_search import StateSearch
from optsched_formulations.batching.token_cpsat import TokenCpSat

_SHARE = 0.5
"""Share of the time left that a set of requests may take with each method."""


class LastArrivals:
    """The method of this module, as `optsched.solvers.formulation.Formulation`; it finds bounds only."""

    declaration = Declaration(
        sequential=True, turns=(Turn(30, 0.08, (Regime.FEW_ARRIVING,)), Turn(30, 0.15, (Regime.MANY_ARRIVING,)))
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
        return PartBounds(task, (StateSearch, TokenCpSat), _SHARE).best(_parts(task.instance), only_while_solved=True)


def _parts(whole: Instance) -> Iterator[Part]:
    """Yield the last requests, more and more, as long as their refills are dear."""
    moments = sorted({request.arrival_ps for request in whole.requests}, reverse=True)
    for moment in moments[:-1]:
        late = tuple(request for request in whole.requests if request.arrival_ps >= moment)
        part = replace(whole, name=f"{whole.name}, the last {len(late)}", requests=late)
        if least_beyond_ps(part) < 0:
            break
        yield Part(part, moment - whole.start_ps, {"kind": "last_arrivals", "from_ps": moment})
