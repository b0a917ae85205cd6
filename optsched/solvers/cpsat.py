"""CP-SAT behind the package's status scheme.

It adds 64-bit integers, and what it is given must fit: a model of larger numbers is refused. Objective values are read
as integers; of what it reports as floats nothing is claimed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import floor, inf, nextafter
from threading import Lock

from ortools.sat.python import cp_model

from optsched.solvers.formulation import ProgressEvent, Task, Termination, UnsupportedError
from optsched.solvers.interrupt import wait_interruptibly
from optsched.stopwatch import now_s

Values = Callable[[cp_model.LinearExprT], int]
"""Reads a variable's or an expression's value in the best solution."""


@dataclass(frozen=True)
class CpSatAnswer:
    """How CP-SAT ended.

    Parameters
    ----------
    termination
        Why it stopped.
    bound
        Proved lower bound on the model's integer objective; None if infeasible.
    value_of
        Reads the best solution; None if there is none.
    """

    termination: Termination
    bound: int | None
    value_of: Values | None


class _Watcher(cp_model.CpSolverSolutionCallback):
    """Passes incumbents and bounds on, translated to the objective's unit."""

    def __init__(self, task: Task, objective: cp_model.LinearExprT, to_value: Callable[[int], int]) -> None:
        super().__init__()
        self._task = task
        self._objective = objective
        self._to_value = to_value
        self._started = now_s()
        self._incumbent = task.incumbent_value
        self._bound: int | None = task.bound or None
        self._lock = Lock()

    def _report(self) -> None:
        elapsed = now_s() - self._started
        self._task.progress(ProgressEvent(elapsed, self._incumbent, self._bound))

    def on_solution_callback(self) -> None:
        with self._lock:
            found = self._to_value(self.value(self._objective))
            if self._incumbent is None or found < self._incumbent:
                self._incumbent = found
                self._report()

    def on_bound(self, bound: float) -> None:
        with self._lock:
            # The next float below, for a large integer may have been rounded up; the last bound is read exactly.
            proved = self._to_value(floor(bound if abs(bound) < 2**53 else nextafter(bound, -inf)))
            if self._bound is None or proved > self._bound:
                self._bound = proved
                self._report()


def minimize_cpsat(
    model: cp_model.CpModel,
    objective: cp_model.LinearExprT,
    task: Task,
    to_value: Callable[[int], int],
    *,
    linear: bool = False,
) -> CpSatAnswer:
    """Minimise an integer expression with CP-SAT.

    Parameters
    ----------
    model
        Variables and constraints; the objective is set here.
    objective
        With integer coefficients and no constant.
    task
        Limits, workers, seed and progress.
    to_value
        Translates the model's objective to the task's unit, for progress.
    linear
        Whether the linear relaxation is strong: then all rows of Booleans are in it.

    Raises
    ------
    UnsupportedError
        If the model's numbers could overflow.
    RuntimeError
        If CP-SAT calls the model invalid for another reason: a defect of the formulation, never of the input.
    """
    model.minimize(objective)
    if model.proto.has_floating_point_objective() or model.proto.objective.offset:
        raise RuntimeError("CP-SAT reads bounds exactly only of integer objectives without a constant")
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(task.time_limit_s, 0.0)
    solver.parameters.num_workers = task.workers
    solver.parameters.random_seed = task.seed
    if linear:
        solver.parameters.linearization_level = 2
    # With coefficients of some 10**9, as times in ps have, the presolve of CP-SAT 9.15 "proves" wrong optima by either
    # of these steps (tests/formulations/test_token_cpsat.py, large coefficients).
    solver.parameters.presolve_inclusion_work_limit = 0
    solver.parameters.cp_model_probing_level = 0
    if task.deterministic_limit is not None:
        solver.parameters.max_deterministic_time = task.deterministic_limit
    # Left to CP-SAT, Ctrl-C would end the search without a word to Python, and so to the caller.
    solver.parameters.catch_sigint_signal = False
    watcher = _Watcher(task, objective, to_value)
    solver.best_bound_callback = watcher.on_bound
    started = now_s()
    status = _solved(solver, model, watcher)
    if status == cp_model.INFEASIBLE:
        # A presolve that errs calls feasible models infeasible; a proof without it has to confirm.
        solver.parameters.cp_model_presolve = False
        solver.parameters.max_time_in_seconds = max(task.time_limit_s - (now_s() - started), 0.0)
        status = _solved(solver, model, watcher)
    if status == cp_model.MODEL_INVALID:
        reason = model.validate()
        if "overflow" in reason or "kint64max" in reason:
            numbers = [int(number) for number in re.findall(r"-?\d+", reason)]
            raise UnsupportedError(f"numbers of up to {max(map(abs, numbers))}, which CP-SAT cannot add")
        raise RuntimeError(f"CP-SAT rejects the model: {reason}")
    if status == cp_model.INFEASIBLE:
        return CpSatAnswer(Termination.INFEASIBLE, None, None)
    if status == cp_model.OPTIMAL:
        return CpSatAnswer(Termination.OPTIMAL, solver.value(objective), solver.value)
    return CpSatAnswer(
        Termination.LIMIT,
        _proved(solver, model),
        solver.value if status == cp_model.FEASIBLE else None,
    )


def _proved(solver: cp_model.CpSolver, model: cp_model.CpModel) -> int:
    """Return the bound on the objective that a stopped search has proved.

    A response says 0 also where nothing has been proved yet. That is false if the objective can be negative; then only
    what the variables' domains say of it is left.
    """
    stated = int(solver.response_proto.inner_objective_lower_bound)
    if stated:
        return stated
    objective, variables = model.proto.objective, model.proto.variables
    least = 0
    for variable, coefficient in zip(objective.vars, objective.coeffs, strict=True):
        domain = variables[variable].domain
        least += min(coefficient * domain[0], coefficient * domain[-1])
    return min(0, least)


def _solved(solver: cp_model.CpSolver, model: cp_model.CpModel, watcher: _Watcher) -> cp_model.CpSolverStatus:
    """Run CP-SAT and return its status; Ctrl-C stops it, and it keeps what it has."""
    found = [cp_model.UNKNOWN]

    def run() -> None:
        found[0] = solver.solve(model, watcher)

    wait_interruptibly(run, solver.stop_search)
    return found[0]
