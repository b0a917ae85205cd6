r"""Prices of what batches hold, and what they prove of the number of batches that requests wait for, offline.

The t-th batch from now holds at most :math:`W^i` of some weights :math:`π^i_{ck}` ≥ 0 of its items (class c, token k),
for each inequality i of some (`packing`). With prices :math:`λ^i_t ≥ 0` an item of this batch pays
:math:`p_{tck} = \sum_i λ^i_t π^i_{ck}`, and all that it holds at most :math:`C_t = \sum_i λ^i_t W^i`.

*Theorem.* Let :math:`V_r` be the least that a request costs from what it is now to its completion: 1 for every batch
until then, and the prices of its items. No schedule completes all requests with less than
:math:`\sum_r V_r - \sum_t C_t` batches, each counted once for every request that is unfinished when it begins.

*Proof.* What a request does costs :math:`V_r` at least. All that they pay is no more than :math:`\sum_t C_t`, which is
counted also for batches that the schedule does not have. ∎

Prices that are good for the first batch from now on being the m-th of a schedule are those of the linear relaxation
of `flows`, from the m-th batch on; behind its horizon there are none. Every m gives a bound, whatever the state.
Prices are rounded to integers, and all else is computed in integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optsched.model.ints import Ints
from optsched.stopwatch import now_s
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.packing import HeldClass, packing
from optsched_formulations.batching.pairs.flows import Flows
from optsched_formulations.batching.pairs.prices import Priced
from optsched_formulations.batching.pattern.cuts import violated_packings

UNIT = 1 << 32
"""What a batch costs."""
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


@dataclass(frozen=True)
class BatchPrices:
    """What items pay, in batches / `UNIT`.

    Parameters
    ----------
    item
        Of every batch and item, shape (batches, items).
    batch
        What a batch holds pays at most this, shape (batches,).
    """

    item: Ints
    batch: Ints


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


def least_batches(classes: Classes, prices: BatchPrices) -> tuple[Ints, Ints]:
    """Return what requests cost at least that wait for an item, and that rest before it, from every batch on.

    Both of shape (batches + 1, items); behind the last batch, where there are no prices, in the last row.
    """
    horizon, items = prices.item.shape
    wait, rest = np.zeros((horizon + 1, items + 1), dtype=np.int64), np.zeros((horizon + 1, items + 1), dtype=np.int64)
    left = [classes.kinds[owner][1] + 1 - token for owner, token in zip(classes.owner, classes.token, strict=True)]
    wait[horizon, :items] = rest[horizon, :items] = UNIT * np.array(left)
    following = np.array(classes.following)  # −1 is the last place, of what is finished
    evictable = np.array([token > 1 and classes.evictable[item - 1] for item, token in enumerate(classes.token)])
    for m in range(horizon - 1, -1, -1):
        run = UNIT + prices.item[m] + rest[m + 1, following]
        wait[m, :items] = np.minimum(run, UNIT + wait[m + 1, :items])
        rest[m, :items] = np.where(evictable, np.minimum(run, UNIT + wait[m + 1, :items]), run)
    return wait[:, :items], rest[:, :items]
