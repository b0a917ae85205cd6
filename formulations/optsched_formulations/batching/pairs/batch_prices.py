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
from optsched_formulations.batching.memory_only import Classes

UNIT = 1 << 32
"""What a batch costs."""


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
