r"""The most that a prefix cache can save, for a given order of service: tokens exactly, time between bounds.

Requests are served in a given order, each while it occupies its own blocks. While request j is served at most
:math:`R_j = K - \mathrm{occupied}_j` other blocks are cached, and its path is cached then in any case: nothing bypasses
the cache. It finds the leading run of its path that was cached before. *The order is part of the question: values and
bounds hold for this order of service only.*

Theorem
-------
Let request k find :math:`h_k` blocks, the block at depth d of which was used by :math:`i_d` last, and let finding it be
worth :math:`v_d`. For all integers :math:`λ_j ≥ 0`

.. math:: \sum_k \sum_{d < h_k} v_d ≤ \sum_j λ_j R_j
          + \sum_k \max_h \sum_{d < h} \Bigl(v_d - \sum_{i_d < j < k} λ_j\Bigr),

with h up to what k may find at most, and no further than the first block that no request has used before.

Proof
-----
A block that k finds has been cached since :math:`i_d` used it, so it is one of the others while each request strictly
between is served: no request between uses it. Charge it :math:`λ_j` there. Request j is charged for at most
:math:`R_j` blocks, λ being ≥ 0. The value of what k finds is what remains after the charges, which is at most its
maximum over leading runs, and the charges. ∎

The right side is the dual of a linear programme (`most_saved`), so the best λ is a rounded dual price. *Tight* for
equal values (`belady`: gap 0). For time :math:`v_d` grows with d, and the last blocks of a path, which are worth most,
are found only behind all others: part of a run has the average value in the programme, less in truth. *Loose*, so,
where few runs fit: if the cache holds hardly more than one prompt.

Conditions
----------
What a request may find, its previous uses and the rooms are computed anew from paths
(`optsched.check.certificates.prefix_cache.saved_bound`), which also refuses negative prices and values that fall with
depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from scipy.sparse import csc_array

from optsched.solvers.highs import Floats, programme_of, quiet_solver, run_interruptibly
from optsched_formulations.eviction.belady import belady, unit_prices
from optsched_formulations.eviction.service import Blocks, BlockValue, Run, ServiceOrder

_MOST_DIVES, _ZERO = 12, 1e-6
"""Rounds in which fractions are fixed, and the least share that is none of nothing."""
_LARGEST_COST = 1e3
"""Of a column of the linear programme; HiGHS works best with numbers near 1."""


@dataclass(frozen=True)
class CacheUse:
    """What a cache can save for an order of service.

    Parameters
    ----------
    hits
        How many leading blocks every request finds, in a way to fill the cache that leaves no block behind a dropped
        one.
    saved
        What they are worth.
    bound
        No way to fill the cache saves more.
    prices
        λ, which prove the bound.
    """

    hits: tuple[int, ...]
    saved: int
    bound: int
    prices: tuple[int, ...]

    @property
    def certificate(self) -> dict[str, Any]:
        """What `optsched.check.certificates.prefix_cache` recomputes the bound from."""
        return {"kind": "prefix_cache", "prices": list(self.prices)}


def most_saved(
    order: ServiceOrder, capacity: int, value: BlockValue, *, time_limit_s: float = 60.0, workers: int = 1
) -> CacheUse:
    """Return how to fill a cache of ``capacity`` blocks, and a bound on what any way to fill it saves.

    Raises
    ------
    InputError
        If a request occupies more blocks than the cache has.
    """
    rooms = order.rooms(capacity)
    found = belady(order, rooms)
    wanted, prices = [found], [0] * len(found)
    if not value.square:
        prices = [value.linear * price for price in unit_prices(order, rooms, found)]
    elif (solved := _linear_programme(order, rooms, value, time_limit_s, workers)) is not None:
        better, prices = solved
        wanted += better
    best = max((legal_hits(order, rooms, hits) for hits in wanted), key=lambda hits: sum(map(value.of, hits)))
    return CacheUse(tuple(best), sum(map(value.of, best)), saved_bound(order, rooms, value, prices), tuple(prices))


def saved_bound(order: ServiceOrder, rooms: Blocks, value: BlockValue, prices: Sequence[int]) -> int:
    """Return the bound of the module's theorem; the maximum is at the end of a run, as values never fall with depth."""
    sums = [0]
    for price in prices:
        sums.append(sums[-1] + price)
    total: int = sum(price * room for price, room in zip(prices, rooms.tolist(), strict=True))
    for request, runs in enumerate(order.runs):
        best = net = 0
        for run in runs:
            net += _worth(value, run) - run.count * (sums[request] - sums[run.last + 1])
            best = max(best, net)
        total += best
    return total


def legal_hits(order: ServiceOrder, rooms: Blocks, wanted: Sequence[int]) -> list[int]:
    """Return hits that the rooms allow and that leave no cached block behind a dropped one, near those wanted.

    In the order of service each request keeps what it wants and what else fits beside what all want, unless a block in
    front has been recomputed since the previous use. What is wanted has to fit.
    """
    left = rooms.copy()
    for request, (runs, most) in enumerate(zip(order.runs, wanted, strict=True)):
        for run in runs:
            left[run.last + 1 : request] -= min(max(most - run.depth, 0), run.count)
    recomputed = np.full(max((int(path.max(initial=-1)) for path in order.paths), default=-1) + 1, -1, dtype=np.int64)
    found = []
    for request, (path, runs, most) in enumerate(zip(order.paths, order.runs, wanted, strict=True)):
        hits = 0
        for run in runs:
            between = slice(run.last + 1, request)
            reserved = min(max(most - run.depth, 0), run.count)
            if hits < run.depth or (run.depth and recomputed[path[run.depth - 1]] > run.last):
                left[between] += reserved
                continue
            kept = run.count if run.last + 1 == request else min(run.count, reserved + int(left[between].min()))
            left[between] -= kept - reserved
            hits += kept
        recomputed[path[hits:]] = request
        found.append(hits)
    return found


def _worth(value: BlockValue, run: Run) -> int:
    return value.of(run.end) - value.of(run.depth)


def _linear_programme(
    order: ServiceOrder, rooms: Blocks, value: BlockValue, time_limit_s: float, workers: int
) -> tuple[list[list[int]], list[int]] | None:
    """Return several hits, and prices, of the linear programme, rounded; None if the time limit came first.

    Its columns say which share of every run is kept, and how much room is left at every request; rows are those of a
    flow from request to request, the difference of two rows of rooms each, and later runs of a request are kept to no
    larger share than earlier ones.
    """
    requests = len(order.runs)
    owners = [(request, run) for request, runs in enumerate(order.runs) for run in runs]
    if not owners:
        return None
    last = np.array([run.last + 1 for _, run in owners], dtype=np.int64)
    user = np.array([request for request, _ in owners], dtype=np.int64)
    count = np.array([run.count for _, run in owners], dtype=np.float64)
    worth = np.array([float(_worth(value, run)) for _, run in owners])
    scale = max(worth.max() / _LARGEST_COST, 1e-9)
    column = np.arange(len(owners))
    second = np.flatnonzero(user[1:] == user[:-1]) + 1
    order_rows = requests + 1 + np.arange(len(second))
    room = np.arange(requests)
    entries = [
        (last, column, count),
        (user, column, -count),
        (order_rows, second, np.ones(len(second))),
        (order_rows, second - 1, -np.ones(len(second))),
        (room, len(owners) + room, np.ones(requests)),
        (room + 1, len(owners) + room, -np.ones(requests)),
    ]
    row, col, data = (np.concatenate(part) for part in zip(*entries, strict=True))
    shape = (requests + 1 + len(second), len(owners) + requests)
    matrix = csc_array((data, (row, col)), shape=shape)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    supply = np.diff(np.concatenate(([0], rooms, [0]))).astype(np.float64)
    infinite = np.full(len(second), highspy.kHighsInf)
    solver = quiet_solver(time_limit_s, workers)
    solver.passModel(
        programme_of(
            np.concatenate((-worth / scale, np.zeros(requests))),
            (np.zeros(shape[1]), np.concatenate((np.ones(len(owners)), rooms.astype(np.float64)))),
            matrix,
            (np.concatenate((supply, -infinite)), np.concatenate((supply, 0 * second.astype(np.float64)))),
        )
    )
    shares, prices = _optimum(solver, len(owners), requests)
    if shares is None:
        return None
    candidates = []
    for found in _dive(solver, shares):
        # A share of 1 may come back as a little less.
        kept = np.floor(count * found + 1e-6).astype(np.int64).tolist()
        hits = [0] * requests
        for (request, run), part in zip(owners, kept, strict=True):
            if hits[request] == run.depth:
                hits[request] += part
        candidates.append(hits)
    return candidates, [max(0, round(price)) for price in (scale * prices).tolist()]


def _optimum(solver: highspy.Highs, columns: int, requests: int) -> tuple[Floats | None, Floats]:
    """Return the shares of the best solution, None if there is none yet, and the prices of rooms."""
    if run_interruptibly(solver):
        raise KeyboardInterrupt
    solution = solver.getSolution()
    potential = np.asarray(solution.row_dual[: requests + 1])
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None, potential
    return np.asarray(solution.col_value[:columns]), np.diff(potential)


def _dive(solver: highspy.Highs, shares: Floats) -> Iterator[Floats]:
    """Yield shares, with fewer and fewer fractions: each time half of those are fixed to the nearer of 0 and 1.

    Where that many whole runs do not fit, they are released, and the others stay at 0.
    """
    yield shares
    for _ in range(_MOST_DIVES):
        fractions = np.flatnonzero((shares > _ZERO) & (shares < 1 - _ZERO))
        nearest = fractions[np.argsort(-np.abs(shares[fractions] - 0.5))][: -(-len(fractions) // 2)]
        whole = nearest[shares[nearest] > 0.5].tolist()
        for column in nearest.tolist():
            solver.changeColBounds(column, *((1.0, 1.0) if column in whole else (0.0, 0.0)))
        better, _ = _optimum(solver, len(shares), 0)
        if better is None:
            for column in whole:
                solver.changeColBounds(column, 0.0, 1.0)
            better, _ = _optimum(solver, len(shares), 0)
        if better is None or not len(fractions):
            return
        shares = better
        yield shares
