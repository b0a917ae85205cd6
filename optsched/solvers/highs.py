"""HiGHS behind the package's status scheme: linear programmes, their optimum and their dual prices."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

Floats = npt.NDArray[np.float64]

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


def solve_equality_lp(
    cost: Floats, matrix: csc_array, right: Floats, time_limit_s: float, workers: int
) -> LpSolution | None:
    """Minimise ``cost x`` subject to ``matrix x = right``, ``x ≥ 0``.

    Returns
    -------
    LpSolution or None
        None if the time limit came first.
    """
    rows, columns = matrix.shape
    programme = highspy.HighsLp()
    programme.num_row_, programme.num_col_ = rows, columns
    programme.col_cost_ = cost
    programme.col_lower_ = np.zeros(columns)
    programme.col_upper_ = np.full(columns, highspy.kHighsInf)
    programme.row_lower_ = programme.row_upper_ = right
    programme.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    programme.a_matrix_.start_ = matrix.indptr
    programme.a_matrix_.index_ = matrix.indices
    programme.a_matrix_.value_ = matrix.data
    # HiGHS keeps one pool of threads for the process and refuses another number of them until it is reset.
    highspy.Highs.resetGlobalScheduler(True)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", workers)
    solver.setOptionValue("time_limit", max(time_limit_s, 0.0))
    if columns >= _INTERIOR_FROM:
        solver.setOptionValue("solver", "ipm")
        solver.setOptionValue("run_crossover", "off")
    solver.passModel(programme)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return LpSolution(
        solver.getInfo().objective_function_value, np.asarray(solver.getSolution().row_dual, dtype=np.float64)
    )
