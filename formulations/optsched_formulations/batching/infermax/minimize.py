"""One task as InferMax' programme, for a solver to minimise or to be written down."""

from __future__ import annotations

from math import inf

from optsched.solvers.claims import claim
from optsched.solvers.deadline import Deadline, OutOfTimeError
from optsched.solvers.formulation import ModelFormat, Outcome, Task, nothing_better
from optsched.solvers.milp import SOLVERS, Programme, programme_text
from optsched_formulations.batching.infermax.model import Model


def minimize(task: Task, name: str) -> Outcome:
    """Minimise with the solver of that name.

    Raises
    ------
    UnsupportedError
        For percentiles and times between tokens, or if the model would be too large to build.
    """
    deadline = Deadline.of(task)
    solver = SOLVERS[name]
    try:
        model = Model(task, solver.tolerance, deadline)
        deadline.require()
    except OutOfTimeError:
        return claim(task, [], None)
    answer = solver.solve(Programme(model.problem, task, deadline.left_s(), model.reading))
    if answer.infeasible:
        return nothing_better(task)
    return model.outcome(answer)


def written(task: Task, name: str, style: ModelFormat) -> str:
    """Return the model for the solver of that name as the text of an LP or MPS file.

    Raises
    ------
    UnsupportedError
        As `minimize` does.
    """
    return programme_text(Model(task, SOLVERS[name].tolerance, Deadline(inf)).problem, style)
