"""The bound table: for every instance of a suite the optimum or a bound, and how far each policy is from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from optsched.methods.checked import DefectFoundError
from optsched.methods.plan import AUTO
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.documents import Suite
from optsched.model.instance import Instance
from optsched.model.objectives import Objective, gap
from optsched.model.restrictions import Restrictions
from optsched.model.result import Result
from optsched.solvers.formulation import Progress, silent
from optsched.study.store import ResultStore


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


def table_rows(
    task: TableTask, store: ResultStore | None = None, watch: Callable[[Instance], Progress] = lambda _: silent
) -> Iterator[Row]:
    """Yield the rows one by one, keeping every result in ``store`` as soon as it is there.

    ``watch`` returns what is called with the progress of the search on an instance.

    What has a defect is not kept, so that resuming searches again.
    """

    def kept(instance: Instance, method: str, run: Callable[[], Result], time_limit: float | None = None) -> Result:
        if store is None:
            return run()
        found = store.find(instance, method, task.objective, task.restrictions, seed=task.seed, time_limit=time_limit)
        if found is not None:
            return found
        result = run()
        store.save(result)
        return result

    for instance in task.suite.instances:
        search = partial(
            solve,
            instance,
            task.objective,
            method=task.method,
            time_limit=task.time_limit,
            restrictions=task.restrictions,
            workers=task.workers,
            seed=task.seed,
            progress=watch(instance),
        )
        defects: tuple[str, ...] = ()
        try:
            best = kept(instance, task.method, search, task.time_limit)
        except DefectFoundError as found:
            best, defects = found.result, found.defects
        run = partial(simulate, instance, objective=task.objective, restrictions=task.restrictions, seed=task.seed)
        played = tuple(kept(instance, name, partial(run, policy=name)) for name in task.policies)
        yield Row(instance, best, played, defects)


def finish(task: TableTask, rows: Sequence[Row]) -> BoundTable:
    """Make the table of the rows that are there."""
    suite = task.suite
    return BoundTable(
        suite.name, suite.description, task.objective, task.restrictions, tuple(task.policies), tuple(rows)
    )
