"""The headline of the package from Python: policies and exact methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optsched.library import load_instances
from optsched.methods.arguments import read_problem
from optsched.methods.plan import AUTO
from optsched.methods.policies import policy_of, standard_policies
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Results
from optsched.study.drive import Done, in_order, run
from optsched.study.frame import Row, frame, rows_of
from optsched.study.runner import Here, Processes
from optsched.study.setups import Setups
from optsched.study.store import Store
from optsched.study.trial import solving

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """What trials have given.

    Parameters
    ----------
    done
        The trials and their outcomes, instance by instance.
    """

    done: tuple[Done, ...]

    @property
    def results(self) -> Results:
        """The results, of every trial that gave one."""
        return Results(done.result for done in self.done if done.result is not None)

    @property
    def rows(self) -> list[Row]:
        """A row for each trial (`optsched.study.frame.COLUMNS`)."""
        return rows_of((done.trial, done.record("")) for done in self.done)

    def frame(self) -> pd.DataFrame:
        """Return the rows as a data frame of pandas (``pip install 'optsched[frame]'``)."""
        return frame(self.rows)

    def __repr__(self) -> str:
        return repr(self.results)

    def _repr_html_(self) -> str:
        return self.results._repr_html_()


def compare(
    instances: Instance | str | Path | Sequence[Instance],
    policies: Sequence[str] | None = None,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    methods: Sequence[str] = (AUTO,),
    predictor: str | None = None,
    routers: Sequence[str | None] = (None,),
    evictors: Sequence[str | None] = (None,),
    restrictions: Restrictions | None = None,
    seeds: Sequence[int] = (0,),
    time_limit: float = 60.0,
    workers: int | None = None,
    store: str | Path | None = None,
    processes: int = 1,
) -> Comparison:
    """Solve instances and let policies schedule them.

    Parameters
    ----------
    instances
        Instances, or the name or file of a suite or of an instance.
    policies
        Names of policies, or ``FILE.py:NAME``; None for the standard ones, as ``optsched table``.
    objective, restrictions
        What is compared, over which class of schedules.
    methods
        Formulations; none for policies alone.
    predictor, seeds
        For policies; formulations run with each seed, too.
    routers, evictors
        Each policy runs with each of them, on instances of several machines, and with caches; None for the default.
    time_limit, workers
        Of each search.
    store
        A file that keeps all results and gives those that it has already; None to keep none.
    processes
        How many trials run at once; 1 runs them here.

    Raises
    ------
    InputError
        For an unknown name, or a trial that cannot be run.
    """
    if isinstance(instances, str | Path):
        instances = load_instances(instances)
    several = (instances,) if isinstance(instances, Instance) else instances
    names = standard_policies() if policies is None else policies
    if isinstance(names, str):
        raise InputError("policies", names, "a sequence of names")
    if not several or not (names or methods):
        raise InputError("instances", Said("nothing to compare"), "an instance, and a policy or a method")
    for name in names:
        policy_of(name, predictor)
    problems = [read_problem(instance, objective, restrictions) for instance in several]
    trials = [
        trial
        for problem in problems
        for seed in seeds
        for trial in (
            *(solving(*problem, method=name, time_limit=time_limit, workers=workers, seed=seed) for name in methods),
            *Setups.named(names, routers=routers, evictors=evictors, predictor=predictor, seed=seed).trials(problem),
        )
    ]
    found: list[Done] = []
    with (
        nullcontext() if store is None else Store(Path(store)) as kept,
        closing(Here() if processes == 1 else Processes(processes)) as runner,
    ):
        for done in in_order(trials, run(trials, runner, kept)):
            done.required()
            found.append(done)
    return Comparison(tuple(found))
