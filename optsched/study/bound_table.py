"""The bound table: for every instance of a suite the optimum or a bound, and how far each policy is from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from optsched.methods.plan import AUTO
from optsched.model.documents import Suite
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, gap
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result
from optsched.solvers.formulation import Progress, silent
from optsched.study.drive import run
from optsched.study.runner import Here
from optsched.study.setups import Setups
from optsched.study.store import Store
from optsched.study.trial import Trial, solving


@dataclass(frozen=True)
class Row:
    """One instance: the best schedule and bound, and every policy's result.

    Parameters
    ----------
    instance, best, policies
        The problem, and what was found.
    defects
        Contradictions that were found on the way (`DefectFoundError`); `best` does not rest on them.
    """

    instance: Instance
    best: Result
    policies: tuple[Result, ...]
    defects: tuple[str, ...] = ()

    def policy_gap(self, position: int) -> float | None:
        """Return the gap of a policy to the bound; None where it failed or there is no bound."""
        return gap(self.policies[position].value, self.best.bound)


@dataclass(frozen=True)
class BoundTable:
    """Rows of one suite under one objective."""

    suite: str
    description: str
    objective: Objective
    restrictions: Restrictions
    policies: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class TableTask:
    """What to put into a bound table.

    Parameters
    ----------
    suite, objective, restrictions
        The problems.
    policies
        Names of the policies to compare.
    routers, evictors
        Of several machines, and of caches: each router with each policy, and each of these with each evictor.
    method, time_limit, workers, seed
        As `optsched.methods.solve.solve` takes them; the limit holds per instance.
    """

    suite: Suite
    policies: Sequence[str]
    objective: Objective = Objective.MAKESPAN
    restrictions: Restrictions = field(default_factory=Restrictions)
    method: str = AUTO
    time_limit: float = 60.0
    workers: int | None = None
    seed: int = 0
    routers: Sequence[str | None] = (None,)
    evictors: Sequence[str | None] = (None,)

    @property
    def setups(self) -> Setups:
        """What is compared."""
        return Setups.named(self.policies, routers=self.routers, evictors=self.evictors, seed=self.seed)


def table_rows(
    task: TableTask,
    store: Store | None = None,
    watch: Callable[[Instance], Progress] = lambda _: silent,
    *,
    resume: bool = False,
) -> Iterator[Row]:
    """Yield the rows one by one, keeping every result in ``store`` as soon as it is there.

    ``watch`` returns what is called with the progress of the search on an instance. With ``resume`` what the store
    holds is not computed again; what had a defect is no result there.
    """
    for instance in task.suite.instances:
        runs = run(_trials(task, instance), Here(watch), store, again=not resume)
        found = [(done.outcome.defects, done.required()) for done in runs]
        yield Row(instance, found[0][1], tuple(result for _, result in found[1:]), found[0][0])


def _trials(task: TableTask, instance: Instance) -> list[Trial]:
    problem = (instance, task.objective, task.restrictions)
    search = solving(*problem, method=task.method, time_limit=task.time_limit, workers=task.workers, seed=task.seed)
    return [search, *task.setups.trials(problem)]


def finish(task: TableTask, rows: Sequence[Row]) -> BoundTable:
    """Make the table of the rows that are there."""
    suite = task.suite
    return BoundTable(
        suite.name, suite.description, task.objective, task.restrictions, tuple(task.setups.labels), tuple(rows)
    )
