"""One task as tokens in batches, for CP-SAT to minimise."""

from __future__ import annotations

from optsched.model.domain import replace
from optsched.solvers.claims import claim
from optsched.solvers.cpsat import minimize_cpsat
from optsched.solvers.deadline import Deadline, OutOfTimeError
from optsched.solvers.formulation import Outcome, Task, Termination, nothing_better
from optsched_formulations.batching.token.chunks import ChunkModel
from optsched_formulations.batching.token.whole import WholeModel


def minimize(task: Task) -> Outcome:
    """Minimise a monotone objective.

    Raises
    ------
    UnsupportedError
        If the numbers could overflow, or the model would be too large to build.
    """
    deadline = Deadline.of(task)
    try:
        model = (ChunkModel if task.instance.rules.chunked_prefill else WholeModel)(task, deadline)
        deadline.require()
    except OutOfTimeError:
        return claim(task, [], None)
    rest = replace(task, time_limit_s=deadline.left_s())
    answer = minimize_cpsat(model.cp, model.goal.expression, rest, model.goal.to_value)
    if answer.termination == Termination.INFEASIBLE:
        return nothing_better(task)
    schedule = None if answer.value_of is None else model.schedule(answer.value_of)
    return claim(task, [schedule], None if answer.bound is None else model.goal.to_value(answer.bound))
