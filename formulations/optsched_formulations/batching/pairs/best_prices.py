"""The best prices of `batch_prices` that are found in some time."""

from __future__ import annotations

import numpy as np

from optsched.stopwatch import now_s
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.packing import HeldClass, packing
from optsched_formulations.batching.pairs.batch_prices import UNIT, BatchPrices
from optsched_formulations.batching.pairs.flows import Flows
from optsched_formulations.batching.pairs.prices import Priced
from optsched_formulations.batching.pattern.cuts import violated_packings

_MOST_PAID = 1 << 42
"""What a batch pays at most of an inequality."""
_MOST_SUM = 1 << 61
_MOST_ROUNDS, _CUTS = 12, 12
"""Rounds of prices, and inequalities that each adds at most."""
_CUTS_SHARE, _PACKING_SHARE = 0.3, 0.1
"""Shares of the time left for inequalities."""
_PROGRESS = 0.002
"""Share of the bound that a round has to add for another one."""
_MORE_BATCHES, _MOST_PLACES = 3, 20_000
"""Batches beyond those of a good schedule that have prices; items × batches at most."""


def batch_prices(classes: Classes, batches: int, seconds: float) -> BatchPrices | None:
    """Return the best prices that are found in some time, for a sum of latencies of requests that are there at first.

    None if there are none, weights differ, batches cost nothing, or there are too many.

    Parameters
    ----------
    classes
        The instance and its items.
    batches
        The number of batches of a good schedule.
    seconds
        Time limit.
    """
    if len({weight for *_, weight in classes.kinds}) > 1 or classes.base_ps == 0:
        return None
    horizon = max(batches, *(output for _, output, _ in classes.kinds)) + _MORE_BATCHES
    return _best_prices(classes, horizon, seconds) if horizon * len(classes.owner) <= _MOST_PLACES else None


def _best_prices(classes: Classes, horizon: int, seconds: float) -> BatchPrices | None:
    """Return the best prices of a number of batches that are found in some time; None if there are none."""
    deadline = now_s() + seconds
    flows = Flows(classes, horizon)
    for item, following in enumerate(classes.following):
        for batch in range(1, horizon + 1):
            # A request that has k tokens behind the horizon completes O - k batches later.
            saved = 1 if following >= 0 else horizon + 1 - batch
            flows.program.objective += [(-saved, run) for run in flows.runs(item, batch)]
    held = [
        HeldClass(len(members), [classes.size[first + k] for k in range(kind[1])])
        for first, members, kind in zip(classes.first, classes.members, classes.kinds, strict=True)
    ]
    places = list(zip(classes.owner, classes.token, strict=True))
    weights, most, begins = [classes.size], [classes.capacity], [len(flows.program.rows)]
    flows.add_capacity(classes.size, classes.capacity)
    found = [packing(held, classes.capacity, _PACKING_SHARE * seconds)]
    priced, best, before = Priced(flows.program), None, -np.inf
    for _ in range(_MOST_ROUNDS):
        for each in found:
            if each is not None:
                weights.append([each.weights.get(place, 0) for place in places])
                most.append(each.most)
                begins.append(len(flows.program.rows))
                flows.add_packing(each)
        relaxed = priced.relaxed(deadline - now_s())
        if relaxed is None:
            break
        paid = np.array([relaxed.prices[begin : begin + horizon] for begin in begins])
        # Of a row without a lower side the price is 0 or less. Those of all rows together stay far below 64 bits.
        shares = np.rint(np.clip(-paid * UNIT, 0, _MOST_PAID / np.array(most)[:, None])).astype(np.int64)
        best = BatchPrices(shares.T @ np.array(weights), shares.T @ np.array(most))
        value = float(relaxed.values @ priced.cost)
        if value - before < _PROGRESS * abs(value):
            break
        before = value
        amounts = {place: np.array(of) for place, of in flows.held(relaxed.values.__getitem__).items()}
        until = now_s() + _CUTS_SHARE * (deadline - now_s())
        found = list(violated_packings(held, classes.capacity, amounts, _CUTS, until))
        if not found:
            break
    if best is None:
        return None
    # An item pays no more than its batch, and a request has no more than all batches to wait for.
    number, longest = sum(map(len, classes.members)), max(output for _, output, _ in classes.kinds)
    largest = number * ((horizon + longest) * UNIT + longest * int(best.batch.max())) + horizon * int(best.batch.max())
    return best if largest < _MOST_SUM else None
