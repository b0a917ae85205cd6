r"""The restricted master programme of patterns: as a linear programme that grows, and as an integer programme.

With :math:`x_p` requests that run by pattern p, of extra time :math:`e_p`, taking :math:`a_{pij}` of row i in batch
j, and :math:`u_j` whether batch j is used, as shares of what batches can take:

.. math:: \min \mathrm{base} \sum_j u_j + \sum_p e_p x_p, \qquad
          \sum_p \frac{a_{pij}}{R_i} x_p ≤ u_j, \qquad \sum_{p ∈ c} x_p = n_c, \qquad u_{j-1} ≥ u_j,

:math:`u_j = 1` for j up to the fewest batches. Without hybrid batching a batch is of one kind: :math:`f_j + d_j ≤ u_j`
take the place of :math:`u_j` in the rows that count fills or decodes only.

In the linear programme a class that the patterns at hand cannot serve is served at a price beyond all others. In the
integer programme x is whole, u, f and d are 0 or 1, and every used batch has a run, since there are no empty batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array, vstack

from optsched.solvers.highs import growing_solver, programme_of, quiet_solver, run_interruptibly, solved_within
from optsched_formulations.batching.pattern.network import DECODES, FILLS, Floats, Network, Pattern


@dataclass(frozen=True)
class _Columns:
    """Columns of patterns: cost, and coefficients with their rows, column by column from ``start``."""

    cost: Floats
    start: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    value: Floats


class Shape:
    """Where the rows and the columns that are not patterns are, for schedules of ``fewest`` to ``most`` batches.

    Attributes
    ----------
    unit
        Unit of the objective, in ps.
    """

    def __init__(self, network: Network, fewest: int, most: int) -> None:
        self.network, self.fewest, self.most = network, fewest, most
        self.unit = network.unit
        self._capacity = np.array([row.capacity for row in network.rows], dtype=np.float64)
        self.taking = len(network.rows) * most
        self.classes = len(network.kinds)

    def columns(self, patterns: Sequence[Pattern]) -> _Columns:
        """Return the columns of some patterns."""
        cost, start, rows, values = [], [0], [], []
        for pattern in patterns:
            row, batch, amount = self.network.taken(pattern)
            cost.append(self.network.extra(pattern) / self.unit)
            rows += [row * self.most + batch, np.array([self.taking + pattern.owner])]
            values += [amount / self._capacity[row], np.ones(1)]
            start.append(start[-1] + len(row) + 1)
        return _Columns(
            np.array(cost), np.array(start, np.int32), np.concatenate(rows).astype(np.int32), np.concatenate(values)
        )

    def frame(self) -> tuple[Floats, Floats, csc_array, Floats, Floats]:
        """Return cost, lower bounds, matrix and both sides of u, and of f and d without hybrid batching."""
        network, most = self.network, self.most
        kinds = 1 if network.hybrid else 3
        rows, columns, values = [], [], []
        # u, f and d of batch j are the columns j, most + j and 2 most + j.
        place = {FILLS: 1, DECODES: 2} if not network.hybrid else {}
        batches = np.arange(most)
        for i, row in enumerate(network.rows):
            rows.append(i * most + batches)
            columns.append(place.get(row.steps, 0) * most + batches)
            values.append(np.full(most, -1.0))
        falling = self.taking + self.classes + np.arange(most - 1)
        rows += [falling, falling]
        columns += [batches[:-1], batches[1:]]
        values += [np.full(most - 1, -1.0), np.full(most - 1, 1.0)]
        height = self.taking + self.classes + most - 1
        if not network.hybrid:
            for factor, kind in ((-1.0, 0), (1.0, 1), (1.0, 2)):
                rows.append(height + batches)
                columns.append(kind * most + batches)
                values.append(np.full(most, factor))
            height += most
        cost = np.zeros(kinds * most)
        cost[:most] = network.base / self.unit
        lower = np.zeros(kinds * most)
        lower[: self.fewest] = 1.0
        least, greatest = np.full(height, -highspy.kHighsInf), np.zeros(height)
        counts = [float(kind.count) for kind in network.kinds]
        least[self.taking : self.taking + self.classes] = counts
        greatest[self.taking : self.taking + self.classes] = counts
        matrix = csc_array(
            (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(height, kinds * most)
        )
        return cost, lower, matrix, least, greatest


@dataclass(frozen=True)
class Duals:
    """An optimum of the linear programme, in floating point.

    Parameters
    ----------
    objective
        Its value in ps, times of batches included.
    shares
        Price of the whole capacity of every row in every batch, in ps, shape (rows, batches).
    served
        Price of serving a request of every class, in ps.
    times
        How many requests run by every pattern, in the order in which patterns were added.
    """

    objective: float
    shares: Floats
    served: Floats
    times: Floats


class LinearMaster:
    """The linear programme over a growing set of patterns."""

    def __init__(self, shape: Shape, workers: int, seed: int) -> None:
        self._shape = shape
        self._solver = growing_solver(workers, seed)
        cost, lower, matrix, least, greatest = shape.frame()
        # Serving no request has to be worse than any schedule.
        extras = sum(extra * count for extra, count in shape.network.extras)
        dear = 2.0 * (shape.most * shape.network.base + extras) / shape.unit + 1.0
        unserved = csc_array(
            (np.ones(shape.classes), (shape.taking + np.arange(shape.classes), np.arange(shape.classes))),
            shape=(matrix.shape[0], shape.classes),
        )
        cost = np.concatenate([cost, np.full(shape.classes, dear)])
        upper = np.concatenate([np.ones(len(lower)), np.full(shape.classes, highspy.kHighsInf)])
        lower = np.concatenate([lower, np.zeros(shape.classes)])
        both = csc_array(
            (
                np.concatenate([matrix.data, unserved.data]),
                np.concatenate([matrix.indices, unserved.indices]),
                np.concatenate([matrix.indptr, matrix.indptr[-1] + unserved.indptr[1:]]),
            ),
            shape=(matrix.shape[0], len(cost)),
        )
        self._others = len(cost)
        self._solver.passModel(programme_of(cost, (lower, upper), both, (least, greatest)))

    def add(self, patterns: Sequence[Pattern]) -> None:
        """Add patterns."""
        new = self._shape.columns(patterns)
        count = len(new.cost)
        self._solver.addCols(
            count,
            new.cost,
            np.zeros(count),
            np.full(count, highspy.kHighsInf),
            len(new.value),
            new.start[:-1],
            new.row,
            new.value,
        )

    def fix(self, pattern: int, least: int, most: int | None = None) -> None:
        """Say how many requests run by a pattern, counted in the order in which patterns were added."""
        self._solver.changeColBounds(self._others + pattern, float(least), highspy.kHighsInf if most is None else most)

    def solve(self, seconds: float) -> Duals | None:
        """Return the optimum; None if the time does not suffice."""
        solver, shape = self._solver, self._shape
        if not solved_within(solver, seconds):
            return None
        prices = np.asarray(solver.getSolution().row_dual, dtype=np.float64) * shape.unit
        shares = np.maximum(-prices[: shape.taking], 0.0).reshape(len(shape.network.rows), shape.most)
        served = prices[shape.taking : shape.taking + shape.classes]
        times = np.asarray(solver.getSolution().col_value[self._others :], dtype=np.float64)
        return Duals(solver.getInfo().objective_function_value * shape.unit, shares, served, times)


def best_combination(
    shape: Shape, patterns: Sequence[Pattern], start: Sequence[Pattern], *, seconds: float, workers: int, seed: int
) -> list[Pattern]:
    """Return the patterns of all requests in the best schedule of some patterns that is found in time.

    Parameters
    ----------
    shape
        How many batches there may be.
    patterns
        The patterns to choose from.
    start
        The patterns of all requests in a schedule to start from, each among ``patterns``; empty for none.
    seconds, workers, seed
        For the solver.

    Returns
    -------
    list of Pattern
        Empty if nothing is found; not better than ``start`` if nothing better is.
    """
    network, most = shape.network, shape.most
    frame_cost, frame_lower, frame, least, greatest = shape.frame()
    new = shape.columns(patterns)
    counted = np.array([network.kinds[pattern.owner].count for pattern in patterns], dtype=np.float64)
    # Every used batch runs a request.
    runs = np.array([(batch, p) for p, pattern in enumerate(patterns) for batch in pattern.batches]).T
    matrix = csc_array(
        (
            np.concatenate([frame.data, new.value]),
            np.concatenate([frame.indices, new.row]),
            np.concatenate([frame.indptr, frame.indptr[-1] + new.start[1:]]),
        ),
        shape=(frame.shape[0], frame.shape[1] + len(patterns)),
    )
    running = csc_array(
        (
            np.concatenate([np.ones(runs.shape[1]), np.full(most, -1.0)]),
            (np.concatenate([runs[0], np.arange(most)]), np.concatenate([frame.shape[1] + runs[1], np.arange(most)])),
        ),
        shape=(most, matrix.shape[1]),
    )
    programme = programme_of(
        np.concatenate([frame_cost, new.cost]),
        (np.concatenate([frame_lower, np.zeros(len(patterns))]), np.concatenate([np.ones(len(frame_lower)), counted])),
        csc_array(vstack([matrix, running])),
        (np.concatenate([least, np.zeros(most)]), np.concatenate([greatest, np.full(most, highspy.kHighsInf)])),
    )
    programme.integrality_ = [highspy.HighsVarType.kInteger] * matrix.shape[1]
    solver = quiet_solver(seconds, workers, seed)
    solver.passModel(programme)
    if start:
        number = {pattern: frame.shape[1] + p for p, pattern in enumerate(patterns)}
        uses = Counter(number[pattern] for pattern in start)
        batches = 1 + max(pattern.batches[-1] for pattern in start)
        values = np.zeros(matrix.shape[1])
        values[:batches] = 1.0
        for column, times in uses.items():
            values[column] = times
        if not network.hybrid:
            filling = {j for pattern in start for j, fill in zip(pattern.batches, pattern.filled, strict=True) if fill}
            for j in range(batches):
                values[(1 if j in filling else 2) * most + j] = 1.0
        solver.setSolution(len(values), np.arange(len(values)), values)
    run_interruptibly(solver)
    if solver.getInfo().primal_solution_status != highspy.kSolutionStatusFeasible:
        return []
    values = solver.getSolution().col_value[frame.shape[1] :]
    return [pattern for pattern, times in zip(patterns, values, strict=True) for _ in range(round(times))]
