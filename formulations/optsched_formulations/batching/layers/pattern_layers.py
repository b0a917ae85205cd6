r"""Layers without a graph, bounded by a price of blocks for each batch.

Batch b of J has a price :math:`π_b ≥ 0` for each block. Going from the last batch to the first, let
:math:`W_t(i)` be the least priced cost, with t batches left, of a request that waits for item i, and :math:`D_t(i)` of
one that is due for it, its KV in the cache:

.. math::
    D_t(i) = \min(s_i π + D_{t-1}(i'),\; W_{t-1}(i)), \quad W_t(i) = \min(W_{t-1}(i),\; e_i + s_i π + D_{t-1}(i')),

where :math:`π` is the price of the batch with t left, s and e are size and extra cost of the fill of an item, i' is the
item after i, D is 0 behind the last one, and with no batch left there is no other way. What may not be evicted has to
run.

*Theorem.* A schedule that after some batches has :math:`d_i` requests due for item i and :math:`w_i` that wait for it,
and ends after exactly t more batches, costs from there on, without the constant work, at least

.. math:: \mathrm{base} \cdot t + \sum_i (d_i D_t(i) + w_i W_t(i)) - M \sum_b π_b.

*Proof.* What a request that is due does in a batch is to run, or to be evicted and wait; one that waits is filled and
runs, or waits (no request pauses: `resident_graph`). So its fills, at :math:`e`, and the blocks that it holds in each
batch, at the batch's price, cost at least D or W. In each batch all hold M blocks at most, so the prices of what they
hold add up to at most :math:`M \sum_b π_b`. The rest is the base of t batches. ∎

It needs no graph of resident sets, whose number grows beyond all bounds where the cache holds many requests. Where it
holds few, this bound is weak, and `walks` has the better one: it knows which requests fit together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import mul

import numpy as np

from optsched.model.ints import Ints
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.graph_kernel import Numbers
from optsched_formulations.batching.layers.layer_kernel import Layer
from optsched_formulations.batching.layers.pattern_kernel import (
    NO_WAY,
    ItemFacts,
    best_prices,
    price_ways,
    raise_pattern_bounds,
    through_patterns,
)
from optsched_formulations.batching.layers.search import Pools
from optsched_formulations.batching.memory_only import Classes

_ROUNDS = 20
"""Rounds that take as long as one of the bundle method on a graph."""
_ITEM_S = 8e-5
"""Seconds that prices take to converge, for each item and batch."""
_LARGE, _FEW_LEFT = 500, 1
"""States of a layer from which on prices are found again, unless that few batches are left."""
_TRIES, _TRY_ROUNDS, _MOST_WEAK = 40, 80, 4
"""Prices that are tried for a layer, the rounds of each, and how many in a row may be weak."""
_WEAK, _STRONG = 0.05, 0.2
"""Shares of a layer that prices have to drop not to be weak, and to be those of the next batch."""
_SAMPLE = 4
_MOST_BYTES = 1 << 30
"""Of a search, in all layers."""


class PatternRelaxation:
    """Prices of blocks, as `optsched_formulations.batching.layers.search.Relaxation`.

    Parameters
    ----------
    classes
        The items.
    scale
        Units in a ps.
    budget
        Cost from which on a schedule is of no use, in units.
    seed
        Of the choice of states to find prices for.
    rooms
        Blocks of every batch, by how many are left, where others leave less than the capacity; then batches may run
        nothing.

    Raises
    ------
    UnsupportedError
        If costs are as large as those of ways that do not exist.
    """

    widths = 200, 10_000

    def __init__(self, classes: Classes, scale: int, budget: int, seed: int, rooms: Ints | None = None) -> None:
        self.classes, self.base, self.capacity = classes, classes.base_ps * scale, classes.capacity
        self._rooms, self.idles = rooms, rooms is not None
        self.pools = Pools(classes, first=0)
        self.random = np.random.default_rng(seed)
        self.batch_s = _ITEM_S * len(classes.size)
        size = np.array(classes.size, dtype=np.int64)
        evictable = [k > 1 and classes.evictable[item - 1] for item, k in enumerate(classes.token)]
        # What cannot be evicted is never filled again, whatever that would cost.
        extra = [classes.extra_ps(item) * scale if again else 0 for item, again in enumerate(evictable)]
        requests = [len(classes.members[owner]) for owner in classes.owner]
        if max(budget, sum(map(mul, extra, requests))) >= NO_WAY // 8:
            raise UnsupportedError("times beyond 64 bits")
        self._blocks = int(size @ requests)
        self.facts = ItemFacts(
            size,
            np.array(classes.following, dtype=np.int64),
            np.array(evictable, dtype=np.int64),
            np.array(extra, dtype=np.int64),
            np.argsort(-size, kind="stable"),
        )
        self._in_batches = self.facts._replace(extra=self.facts.extra / self.base)
        self.fresh: Ints = np.zeros((2, len(size)), dtype=np.int64)
        for first, members in zip(classes.first, classes.members, strict=True):
            self.fresh[1, first] = len(members)

    def first_prices(self, batches: int) -> Floats:
        """Return prices of a fifth of what shares all batches by what requests hold in them."""
        return np.full(batches + 1, 0.2 * batches / self._blocks)

    def improved(self, price: Floats, batches: int, enough: float, rounds: int, over: Callable[[], bool]) -> Floats:
        """Return the best prices found; a bound of ``enough``, in batches, suffices."""
        return price if over() else self.prices_of(price, self.fresh, batches, enough, _ROUNDS * rounds)

    def prices_of(self, price: Floats, counts: Ints, left: int, enough: float, rounds: int) -> Floats:
        """Return better prices for those due and those that wait, with some batches left."""
        found = price[: left + 1].copy()
        best_prices(self._in_batches, self.rooms(left), counts, left, enough, rounds, found)
        return found

    def priced(self, price: Floats, batches: int) -> PatternPriced:
        """Round prices and compute what they prove, exactly."""
        # Those that could add up beyond 64 bits are cut down: any prices prove something.
        most = NO_WAY // 8 // (max(self.capacity, int(self.facts.size.max())) * (batches + 1))
        whole = np.rint(np.clip(price[: batches + 1] * self.base, 0, most)).astype(np.int64)
        due = np.full((batches + 1, len(self.facts.size)), NO_WAY, dtype=np.int64)
        waits = due.copy()
        price_ways(self.facts, whole, due, waits, batches)
        whole[0] = 0
        return PatternPriced(self, batches, whole, due, waits, np.cumsum(self.rooms(batches) * whole))

    def rooms(self, batches: int) -> Ints:
        """Return the blocks of every batch, by how many are left."""
        return (
            np.full(batches + 1, self.capacity, dtype=np.int64) if self._rooms is None else self._rooms[: batches + 1]
        )


@dataclass(frozen=True)
class PatternPriced:
    """What prices of blocks prove of one number of batches.

    Parameters
    ----------
    relaxation, batches
        What they are prices of.
    price
        Of a block in the batch with t left, in units; shape (batches + 1,).
    due, waits
        :math:`D_t(i)` and :math:`W_t(i)`; shape (batches + 1, items).
    worth
        What all blocks of t batches cost.
    """

    relaxation: PatternRelaxation
    batches: int
    price: Ints
    due: Ints
    waits: Ints
    worth: Ints

    @property
    def bound(self) -> int:
        """No schedule costs less, without the constant work, in units."""
        relaxation, last = self.relaxation, self.batches
        return last * relaxation.base + int(relaxation.fresh[1] @ self.waits[last]) - int(self.worth[last])

    def space(self) -> PatternSpace:
        """Return the states that these prices bound."""
        return PatternSpace(self)


class PatternSpace:
    """States of one number of batches: how many requests wait for each item, and how many are due for it."""

    raises_beams = True

    def __init__(self, priced: PatternPriced) -> None:
        self._relaxation, self._batches, self._priced = priced.relaxation, priced.batches, priced
        self.pools = pools = priced.relaxation.pools
        self.source = np.concatenate([pools.source, np.zeros_like(pools.source)])
        self.most_states = _MOST_BYTES // (2 * 8 * len(self.source))

    def through(  # noqa: PLR0917
        self, done: int, here: Layer, count: int, there: Layer, hashed: Numbers, progress: Ints, limit: int
    ) -> int:
        """Run the batch after the first ``done``."""
        relaxation, priced, left = self._relaxation, self._priced, self._batches - done
        return through_patterns(
            relaxation.facts,
            self.pools.fields,
            int(relaxation.rooms(left)[left]),
            int(priced.price[left]),
            priced.due[left - 1 : left + 1],
            priced.waits[left - 1 : left + 1],
            done * relaxation.base,
            left * relaxation.base - int(priced.worth[left]),
            relaxation.base,
            (left - 1) * relaxation.base if relaxation.idles else 0,
            here,
            count,
            there,
            hashed,
            progress,
            limit,
        )

    def raised(self, done: int, layer: Layer, count: int, budget: int, over: Callable[[], bool]) -> int:
        """Find prices for states of a large layer and raise all bounds by them; the best stay."""
        relaxation, left, weak = self._relaxation, self._batches - done, 0
        spent = self._batches * relaxation.base
        for attempt in range(_TRIES if left > _FEW_LEFT else 0):
            if count <= _LARGE or weak == _MOST_WEAK or over():
                break
            sample = relaxation.random.integers(count, size=_SAMPLE)
            state = int(sample[np.argmin(layer.bound[sample])])
            enough = (budget - done * relaxation.base - int(layer.extra[state])) / relaxation.base + 0.01
            words, half = layer.words[state], self.pools.words
            counts = np.stack([self.pools.waiting(words[half:]), self.pools.waiting(words[:half])])
            price = self._priced.price / relaxation.base
            tried = relaxation.priced(relaxation.prices_of(price, counts, left, enough, _TRY_ROUNDS), left)
            before, worth = count, int(tried.worth[left])
            count = raise_pattern_bounds(
                self.pools.fields, layer, count, tried.due[left], tried.waits[left], spent - worth, budget
            )
            dropped = before - count
            weak = weak + 1 if dropped < _WEAK * before else 0
            if attempt == 0 or dropped > _STRONG * before:
                self._priced = tried
        return count

    def compile_rest(self, layer: Layer) -> None:
        """Run the loop that only large layers need, on no states."""
        raise_pattern_bounds(self.pools.fields, layer, 0, self._priced.due[0], self._priced.waits[0], 0, 0)
