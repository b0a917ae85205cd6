"""HiGHS set up and run in one way: solvers that stop for Ctrl-C, and linear programmes with their dual prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

from optsched.solvers.claims import Tolerance
from optsched.solvers.interrupt import until_interrupted, wait_interruptibly

Floats = npt.NDArray[np.float64]

HIGHS_TOLERANCE = Tolerance(feasibility=1e-9, cutoff=1e-8)
"""Of its searches for integers, to which its option ``mip_feasibility_tolerance`` is set: of the relaxations' duals it
then asks a tenth of that, and of a better solution as much."""

_PRIMAL = 4
"""HiGHS' number of the primal simplex method."""
_INTERIOR_FROM = 20_000
"""Columns from which the interior-point method, which needs no basis here, beats the simplex method."""


@dataclass(frozen=True)
class LpSolution:
    """An optimal solution, in floating point: its prices become a bound only after exact evaluation.

    Parameters
    ----------
    objective
        Value of the optimum.
    prices
        Dual price of every row, shape (rows,).
    """

    objective: float
    prices: Floats


def quiet_solver(time_limit_s: float, workers: int, seed: int = 0) -> highspy.Highs:
    """Return a silent solver; its time limit applies to the sum of its runs."""
    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", workers),
        ("random_seed", seed % 2**31),
        ("time_limit", max(time_limit_s, 0.0)),
    ):
        solver.setOptionValue(option, value)
    return solver


def programme_of(
    cost: Floats, bounds: tuple[Floats, Floats], matrix: csc_array, sides: tuple[Floats, Floats]
) -> highspy.HighsLp:
    """Return "minimise ``cost x``, ``x`` and ``matrix x`` each between two vectors" as HiGHS' model."""
    programme = highspy.HighsLp()
    programme.num_row_, programme.num_col_ = matrix.shape
    programme.col_cost_ = cost
    programme.col_lower_, programme.col_upper_ = bounds
    programme.row_lower_, programme.row_upper_ = sides
    programme.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    programme.a_matrix_.start_ = matrix.indptr
    programme.a_matrix_.index_ = matrix.indices
    programme.a_matrix_.value_ = matrix.data
    return programme


def run_interruptibly(solver: highspy.Highs, watch: Callable[[Any], None] | None = None) -> bool:
    """Run a solver until it ends or Ctrl-C stops it; its results so far are kept.

    Parameters
    ----------
    solver
        Solver with its model.
    watch
        Called with the data of HiGHS' callback for MIP interrupts; None for no call.

    Returns
    -------
    bool
        Whether Ctrl-C came.
    """
    stop = Event()

    def called(_kind: Any, _message: str, seen: Any, reply: Any, _data: Any) -> None:
        if stop.is_set():
            reply.user_interrupt = True
        if watch is not None:
            watch(seen)

    kinds = highspy.cb.HighsCallbackType
    solver.setCallback(called, None)
    solver.startCallback(kinds.kCallbackMipInterrupt)
    if watch is None:
        solver.startCallback(kinds.kCallbackSimplexInterrupt)
        solver.startCallback(kinds.kCallbackIpmInterrupt)
    # A solver that ends by itself just then is not asked to stop.
    return until_interrupted(lambda _: run_pooled(solver.run, stop.set))


def growing_solver(workers: int, seed: int) -> highspy.Highs:
    """Return a silent solver for a linear programme to which columns are added.

    They leave the last optimum feasible, so the primal simplex method goes on from it.
    """
    solver = quiet_solver(0.0, workers, seed)
    solver.setOptionValue("simplex_strategy", _PRIMAL)
    return solver


def solved_within(solver: highspy.Highs, seconds: float) -> bool:
    """Run a solver for some seconds more; return whether it finds an optimum. Ctrl-C raises."""
    solver.setOptionValue("time_limit", solver.getRunTime() + max(seconds, 0.0))
    if run_interruptibly(solver):
        raise KeyboardInterrupt
    return bool(solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)


def run_pooled(run: Callable[[], object], stop: Callable[[], None]) -> None:
    """Run HiGHS as `wait_interruptibly` does, with a new pool of threads.

    HiGHS keeps one for the process, and refuses another number of threads until it is reset.
    """
    highspy.Highs.resetGlobalScheduler(True)
    wait_interruptibly(run, stop)


def solve_equality_lp(
    cost: Floats, matrix: csc_array, right: Floats, time_limit_s: float, workers: int
) -> LpSolution | None:
    """Minimise ``cost x`` subject to ``matrix x = right``, ``x ≥ 0``.

    Returns
    -------
    LpSolution or None
        None if the time limit came first.
    """
    columns = matrix.shape[1]
    solver = quiet_solver(time_limit_s, workers)
    if columns >= _INTERIOR_FROM:
        solver.setOptionValue("solver", "ipm")
        solver.setOptionValue("run_crossover", "off")
    bounds = np.zeros(columns), np.full(columns, highspy.kHighsInf)
    solver.passModel(programme_of(cost, bounds, matrix, (right, right)))
    if run_interruptibly(solver):
        raise KeyboardInterrupt
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return LpSolution(
        solver.getInfo().objective_function_value, np.asarray(solver.getSolution().row_dual, dtype=np.float64)
    )
