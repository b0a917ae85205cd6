r"""The linear programme whose dual are worths: shares of machines and of requests, by numbers of batches.

For a duration Z, :math:`y_j` machines have numbers of batches in range j, which begins at :math:`a_j` and ends at
:math:`b_j`, and the share :math:`x_{rj}` of request r is on these. The largest θ is sought with

.. math:: \sum_j x_{rj} ≥ θ, \qquad x_{rj} ≤ y_j, \qquad \sum_j y_j ≤ R, \qquad
          \sum_r c_{rj} x_{rj} ≤ \mathrm{room}_j\, y_j,

the last for every rate, of which the room is what its bases leave of Z, and for memory. θ < 1 says that Z is too short;
the duals of the first rows are worths, those of the last weights. Floating point only finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array

Floats = npt.NDArray[np.float64]


class Offer(NamedTuple):
    """A machine of one range: its room by row, what a request takes by row and kind, and the kinds it can serve."""

    rooms: Floats
    costs: Floats
    served: npt.NDArray[np.bool_]


class Dual(NamedTuple):
    """Worths of kinds, weights of rows by range, machines by range, shares of kinds by range, and θ."""

    worths: Floats
    weights: list[Floats]
    machines: Floats
    shares: list[Floats]
    served: float


def solve(machines: int, counts: Floats, offers: Sequence[Offer]) -> Dual | None:
    """Return the optimum for some numbers of requests of every kind; None if the solver finds none."""
    ranges, kinds = len(offers), len(counts)
    # Columns are y, x by range and kind, and θ; rows are those of offers, x ≤ y, the machines, and what is served.
    kind = np.concatenate([np.flatnonzero(offer.served) for offer in offers])
    of = np.repeat(np.arange(ranges), [int(offer.served.sum()) for offer in offers])
    x = ranges + np.arange(len(kind))
    theta, places = ranges + len(kind), np.cumsum([0, *(len(offer.rooms) for offer in offers)]).tolist()
    first = places[-1]
    most = first + len(kind)
    entries = [
        (first + np.arange(len(kind)), x, np.ones(len(kind))),
        (first + np.arange(len(kind)), of, -np.ones(len(kind))),
        (np.full(ranges, most), np.arange(ranges), np.ones(ranges)),
        (most + 1 + kind, x, -np.ones(len(kind))),
        (most + 1 + np.arange(kinds), np.full(kinds, theta), np.ones(kinds)),
    ]
    for j, offer in enumerate(offers):
        here = np.flatnonzero(of == j)
        rows = np.arange(places[j], places[j + 1])
        taken = (offer.costs * counts)[:, kind[here]]
        entries.append((np.repeat(rows, len(here)), np.tile(x[here], len(rows)), taken.ravel()))
        entries.append((rows, np.full(len(rows), j), -offer.rooms))
    row, column, value = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    matrix: Any = coo_array((value, (row, column)), shape=(most + 1 + kinds, theta + 1)).tocsr()
    sides, cost = np.zeros(most + 1 + kinds), np.zeros(theta + 1)
    sides[most], cost[theta] = machines, -1.0
    found: Any = linprog(cost, A_ub=matrix, b_ub=sides, bounds=[(0.0, None)] * (theta + 1), method="highs-ipm")
    if found.status != 0:
        return None
    duals = np.maximum(-found.ineqlin.marginals, 0.0)
    weights = [duals[begin:end] for begin, end in pairwise(places)]
    shares = [np.zeros(kinds) for _ in offers]
    for at, range_, of_kind in zip(x.tolist(), of.tolist(), kind.tolist(), strict=True):
        shares[range_][of_kind] = found.x[at]
    return Dual(duals[most + 1 :] / counts, weights, found.x[:ranges], shares, float(found.x[theta]))
