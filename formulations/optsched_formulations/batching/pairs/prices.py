r"""What prices of an integer programme's rows prove, in integers: a bound, and narrower domains.

Take :math:`\min c x`, :math:`a_i ≤ A_i x ≤ b_i`, :math:`l ≤ x ≤ u`, all whole. For any prices y with
:math:`y_i ≤ 0` where there is no :math:`a_i` and :math:`y_i ≥ 0` where there is no :math:`b_i`, and the reduced costs
:math:`d = c - A^T y`, every solution costs at least

.. math:: L = \sum_{y_i > 0} y_i a_i + \sum_{y_i < 0} y_i b_i + \sum_j \min(d_j l_j, d_j u_j)

(Neumaier and Shcherbina 2004), and at least :math:`L + |d_j| δ` if :math:`x_j` is δ away from the side at which the
minimum is. So in solutions of at most U, :math:`δ ≤ (U - L) / |d_j|`. Prices are HiGHS', rounded to shares of a unit;
counted in these all is integer arithmetic, so that floating point decides how good the bound is, not whether it holds.

Where most rows do not bind, few of them are priced, those that solutions have violated; the price of another is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack

from optsched.model.ints import Ints
from optsched.solvers.highs import programme_of, quiet_solver, run_interruptibly
from optsched_formulations.batching.flow.model import FlowRow, Program

Floats = npt.NDArray[np.float64]

_NONE = 1 << 50
"""In place of a side that a row does not have."""
_LARGEST, _FINEST = 2.0**60, 1 << 12
"""Sums stay below; prices are whole in shares of a unit, at most this many."""
_VIOLATED, _AT_ONCE = 1e-3, 3
"""How far a solution is from a row that is worth pricing; rows of a group that are priced at once."""


@dataclass(frozen=True)
class Relaxed:
    """An optimal solution of the linear relaxation, in floats, and the prices of rows."""

    values: Floats
    prices: Floats


class Priced:
    """An integer programme whose domains become narrower.

    Parameters
    ----------
    program
        Variables, rows and objective.
    groups
        Rows without an upper side that are priced only when a solution violates them, those that say much the same
        together.

    Attributes
    ----------
    lower, upper
        Domains that contain every solution that is good enough.
    bound
        No such solution costs less.
    """

    def __init__(self, program: Program, groups: Sequence[range] = ()) -> None:
        self._program = program
        self.lower: Ints = np.array(program.lower, dtype=np.int64)
        self.upper: Ints = np.array(program.upper, dtype=np.int64)
        self.cost: Ints = np.zeros(len(program.lower), dtype=np.int64)
        for factor, x in program.objective:
            self.cost[x] += factor
        self._matrix = csr_array((0, len(program.lower)), dtype=np.int64)
        self._sides: tuple[Ints, Ints] = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.bound = int(np.minimum(self.cost * self.lower, self.cost * self.upper).sum())
        self._take_rows()
        # Rows that are not priced yet, and their groups.
        self._waiting: Ints = np.array([row for rows in groups for row in rows], dtype=np.int64)
        self._group: Ints = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])

    def _take_rows(self) -> None:
        """Read the rows that have been added."""
        known = self._matrix.shape[0]
        rows = self._program.rows[known:]
        entries = [(row, x, factor) for row, flow in enumerate(rows) for factor, x in flow.terms]
        row, column, value = np.array(entries, dtype=np.int64).reshape(-1, 3).T
        fresh = csr_array((value, (row, column)), shape=(len(rows), len(self.lower)))
        below = [-_NONE if flow.lower is None else flow.lower for flow in rows]
        above = [_NONE if flow.upper is None else flow.upper for flow in rows]
        self._matrix = csr_array(vstack([self._matrix, fresh]))
        self._sides = (
            np.concatenate([self._sides[0], np.array(below, dtype=np.int64)]),
            np.concatenate([self._sides[1], np.array(above, dtype=np.int64)]),
        )

    def relaxed(self, seconds: float, *, basic: bool = False) -> Relaxed | None:
        """Solve the linear relaxation, to a basic solution or near it; None if time runs out, or there is none."""
        self._take_rows()
        below, above = self._sides
        kept = np.setdiff1d(self._binding(), self._waiting)
        unit = float(np.abs(self.cost).max(initial=1))
        solver = quiet_solver(seconds, 1)
        solver.setOptionValue("solver", "ipm")
        solver.setOptionValue("run_crossover", "on" if basic else "off")
        infinite = highspy.kHighsInf
        sides = (
            np.where(below[kept] == -_NONE, -infinite, below[kept]),
            np.where(above[kept] == _NONE, infinite, above[kept]),
        )
        matrix = self._matrix[kept].astype(np.float64).tocsc()
        bounds = self.lower.astype(np.float64), self.upper.astype(np.float64)
        solver.passModel(programme_of(self.cost / unit, bounds, matrix, sides))
        if run_interruptibly(solver):
            raise KeyboardInterrupt
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution, prices = solver.getSolution(), np.zeros(len(below))
        prices[kept] = np.asarray(solution.row_dual) * unit
        return Relaxed(np.asarray(solution.col_value), prices)

    def price_violated(self, values: Floats) -> int:
        """Let the rows be priced that a solution violates most, a few of every group; return their number."""
        short = self._sides[0][self._waiting] - self._matrix[self._waiting] @ values
        worst = np.lexsort((-short, self._group))
        violated = worst[short[worst] > _VIOLATED]
        place = np.arange(len(violated)) - np.searchsorted(self._group[violated], self._group[violated])
        chosen = violated[place < _AT_ONCE]
        self._waiting, self._group = np.delete(self._waiting, chosen), np.delete(self._group, chosen)
        return len(chosen)

    def narrow(self, prices: Floats, most: int) -> None:
        """Take what prices prove of all solutions that cost at most ``most``."""
        below, above = self._sides
        price = np.where(((below == -_NONE) & (prices > 0)) | ((above == _NONE) & (prices < 0)), 0.0, prices)
        paid = np.where(price > 0, below, np.where(price < 0, above, 0))
        # As fine as 64 bits allow.
        reach = abs(self._matrix).T.astype(np.float64) @ np.abs(price) + np.abs(self.cost)
        ends = np.maximum(np.abs(self.lower), np.abs(self.upper))
        largest = float((np.abs(price) * np.abs(paid)).sum() + (reach * ends).sum() + reach.max(initial=0) + 1)
        fine = min(_FINEST, int(_LARGEST / largest))
        if fine < 1:
            return
        whole = np.rint(price * fine).astype(np.int64)
        reduced = self.cost * fine - self._matrix.T @ whole
        least = int((whole * paid).sum()) + int(np.minimum(reduced * self.lower, reduced * self.upper).sum())
        self.bound = max(self.bound, -(-least // fine))
        room = most * fine - least
        if room < 0:
            return
        away = room // np.maximum(np.abs(reduced), 1)
        lower, upper = self.lower.copy(), self.upper.copy()
        rising, falling = reduced > 0, reduced < 0
        self.lower[falling] = np.maximum(lower, upper - away)[falling]
        self.upper[rising] = np.minimum(upper, lower + away)[rising]

    def _binding(self) -> Ints:
        """Return the rows that domains do not imply."""
        raising, falling = self._matrix.maximum(0), self._matrix.minimum(0)
        least: Ints = np.asarray(raising @ self.lower + falling @ self.upper)
        most: Ints = np.asarray(raising @ self.upper + falling @ self.lower)
        below, above = self._sides
        found: Ints = np.flatnonzero((least < below) | (most > above))
        return found

    def rows(self) -> list[FlowRow]:
        """Return the rows that domains do not imply."""
        self._take_rows()
        return [self._program.rows[row] for row in self._binding()]
