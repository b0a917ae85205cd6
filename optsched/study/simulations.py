"""Many policies on many instances, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from optsched.methods.simulate import simulate
from optsched.model.domain import replace
from optsched.model.feasibility import require_feasible
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result
from optsched.simulator.routed import DecisionRecord
from optsched.study.drive import in_order, run
from optsched.study.runner import Here, Processes
from optsched.study.setups import Setups
from optsched.study.worker import Allowance

_PARALLEL_TOKENS = 3_000_000
"""With fewer one process has finished before others are there."""


def simulate_each(
    instances: Sequence[Instance],
    policies: Sequence[str],
    objective: Objective,
    *,
    restrictions: Restrictions,
    predictor: str | None = None,
    routers: Sequence[str | None] = (None,),
    evictors: Sequence[str | None] = (None,),
    seed: int = 0,
    workers: int = 1,
    schedules: bool = True,
    records: list[DecisionRecord] | None = None,
) -> Iterator[Result]:
    """Let every policy schedule every instance, and yield the results in order: all of the first instance first.

    Parameters
    ----------
    routers, evictors
        Of several machines, and of caches: each router with each policy, and each of these with each evictor.
    workers
        How many processes share the work, if it is worth starting them. The results are the same.
    schedules
        Whether results keep their schedules, which take memory.
    records
        Where the decisions of routers are put, for each result; then all are made here, one after another.
    """
    setups = Setups.named(policies, routers=routers, evictors=evictors, predictor=predictor, seed=seed)
    for instance in instances:
        require_feasible(instance, restrictions)
    trials = [trial for instance in instances for trial in setups.trials((instance, objective, restrictions))]
    if records is not None:
        for trial in trials:
            records.append(DecisionRecord([]))
            yield simulate(
                trial.instance,
                trial.method,
                objective,
                restrictions=restrictions,
                predictor=trial.predictor,
                router=trial.router,
                evictor=trial.evictor,
                seed=trial.seed,
                record=records[-1],
            )
        return
    tokens = len(setups.labels) * sum(request.output for instance in instances for request in instance.requests)
    alone = min(workers, len(trials)) == 1 or tokens < _PARALLEL_TOKENS
    allowance = Allowance(schedules=schedules)
    with closing(Here() if alone else Processes(min(workers, len(trials)), allowance)) as runner:
        for done in in_order(trials, run(trials, runner)):
            result = done.required()
            yield result if schedules else replace(result, schedule=None)
