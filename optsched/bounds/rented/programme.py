r"""The linear programme whose dual are prices of time and rents: shares of batches, by windows.

In window k there are :math:`b_{jk}` batches of type j, which has room for :math:`x_j` tokens, :math:`p_j` of them by
prefill steps, and lasts :math:`f_j` without attention; and of activity a (`tenants.Activity`) of group g the number
:math:`y_{ak}` runs, from the group's first window on. The least z is sought, by which the last window is longer than 0,
with

.. math:: \sum_k y_{ak} = N_a, \qquad \sum_{a ∈ g} y_{ak} ≤ n_g \sum_j b_{jk}, \qquad
          \sum_a r_a y_{ak} ≤ \sum_j R_j b_{jk}, \qquad
          \sum_j f_j b_{jk} + \sum_a A_a y_{ak} ≤ |\mathrm{window}\ k|\ \text{or}\ z,

where r and R are what a run takes and a batch has of memory, tokens, tokens of prefills and runs. The duals of the
second are rents, those of the third prices, and of the last the price of time. Floating point only finds them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array

from optsched.bounds.own import BatchTurn, batch_turns
from optsched.bounds.rented.tenants import Tenants
from optsched.model.instance import Instance
from optsched.stopwatch import STOPWATCH

Floats = npt.NDArray[np.float64]


class Dual(NamedTuple):
    """Prices by window, of a ps (no unit), of a token held, run, and run by a prefill, and of a run, in ps.

    ``rents`` has those of each group from its first window on, in ps.
    """

    time: Floats
    memory: Floats
    tokens: Floats
    prefill_tokens: Floats
    runs: Floats
    rents: list[Floats]


class _Rows:
    """Entries of a sparse matrix, in blocks of rows."""

    def __init__(self) -> None:
        self.count = 0
        self._entries: list[tuple[Any, ...]] = []

    def block(self, rows: int) -> int:
        """Begin some rows more; return the first one's number."""
        self.count += rows
        return self.count - rows

    def add(self, row: Any, column: Any, value: Any) -> None:
        """Add entries, of which any may be one for all."""
        self._entries.append(tuple(map(np.ravel, np.broadcast_arrays(row, column, value))))

    def matrix(self, columns: int) -> Any:
        """Return the matrix."""
        row, column, value = (np.concatenate(parts) for parts in zip(*self._entries, strict=True))
        return coo_array((value.astype(np.float64), (row, column)), shape=(self.count, columns)).tocsr()


def columns_of(held: Tenants) -> int:
    """Return how many numbers of runs the programme of some groups has."""
    windows = len(held.starts)
    return sum(windows - held.first[activity.group] for activity in held.activities(0))


def solve(held: Tenants, step_ps: int, unit_ps: float) -> Dual | None:
    """Return prices for φ of a prefill step, times counted in a unit; None if the solver finds none in time."""
    limits = held.instance.limits
    activities, windows = list(held.activities(step_ps)), len(held.starts)
    first = np.array(held.first)
    sizes = np.array([len(members) for members in held.members], dtype=np.float64)
    group, number, tokens, is_prefill, memory, attention = (np.array(of) for of in zip(*activities, strict=True))

    each = windows - first[group]
    act = np.repeat(np.arange(len(activities)), each)
    window = np.concatenate([np.arange(first[one], windows) for one in group])
    types = _types(held.instance, step_ps)
    # Columns are y, then b by window and type, then z.
    y, b = np.arange(len(act)), len(act) + np.arange(windows * len(types))
    of_batch, of_type = np.divmod(np.arange(windows * len(types)), len(types))
    columns = len(act) + len(b) + 1
    tokens_of, prompts_of, lasting = np.array(types, dtype=np.float64).T[:, of_type]

    rows = _Rows()
    rented = np.concatenate([[0], np.cumsum(windows - first)])
    rents = rows.block(int(rented[-1]))
    rows.add(rented[group[act]] + window - first[group[act]], y, 1 / sizes[group[act]])
    rent_window = np.concatenate([np.arange(begin, windows) for begin in first])
    batches = b.reshape(windows, len(types))
    rows.add(np.arange(rented[-1])[:, None], batches[rent_window], -1.0)
    runs = limits.batch_requests
    shared = []
    for of_run, of_each, unit in (
        (memory, np.full(len(b), limits.kv_blocks * limits.kv_block), limits.kv_blocks * limits.kv_block),
        (tokens, tokens_of, limits.batch_tokens),
        (tokens * is_prefill, prompts_of, limits.prefill_tokens),
        *([] if runs is None else [(np.ones(len(activities)), np.full(len(b), runs), runs)]),
    ):
        shared.append((rows.block(windows), unit))
        rows.add(shared[-1][0] + window, y, of_run[act] / unit)
        rows.add(shared[-1][0] + of_batch, b, -of_each / unit)
    time = rows.block(windows)
    rows.add(time + of_batch, b, lasting / unit_ps)
    rows.add(time + window, y, attention[act] / unit_ps)
    rows.add(time + windows - 1, columns - 1, -1.0)
    sides = np.zeros(rows.count)
    sides[time : time + windows - 1] = np.diff(held.starts) / unit_ps

    served: Any = coo_array((np.ones(len(act)), (act, y)), shape=(len(activities), columns)).tocsr()
    aim = np.zeros(columns)
    aim[-1] = 1.0
    found: Any = linprog(
        aim,
        rows.matrix(columns),
        sides,
        served,
        number.astype(np.float64),
        method="highs-ipm",
        options={"time_limit": max(STOPWATCH.left_s(), 0.0)},
    )
    if found.status != 0:
        return None
    dual = np.maximum(-found.ineqlin.marginals, 0.0)
    prices = [dual[row : row + windows] / unit * unit_ps for row, unit in shared]
    return Dual(
        time=dual[time : time + windows],
        memory=prices[0],
        tokens=prices[1],
        prefill_tokens=prices[2],
        runs=np.zeros(windows) if runs is None else prices[3],
        rents=[
            dual[rents + begin : rents + end] / size * unit_ps
            for begin, end, size in zip(rented, rented[1:], sizes, strict=False)
        ],
    )


def _types(instance: Instance, step_ps: int) -> list[BatchTurn]:
    """Return batches of which all others are mixtures; without prefill steps only where these would take longer."""
    decodes, prefills = batch_turns(instance, step_ps)
    return [*prefills, *(decodes if step_ps < instance.cost.prefill_req else [])]
