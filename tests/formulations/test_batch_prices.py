"""Bounds by whole batches and their prices: by hand, and never above the least number of batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import memory_only

from optsched import Instance, Limits, Objective, Request, Rules, replace
from optsched.model.cost import CostModel
from optsched.solvers.deadline import Deadline
from optsched.traces.ladder import ladder
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.pairs.batch_prices import UNIT, BatchPrices, least_batches
from optsched_formulations.batching.pairs.best_prices import batch_prices
from optsched_formulations.batching.pairs.model import PairModel
from optsched_formulations.batching.pairs.prices import Priced
from optsched_formulations.batching.search.request_space import request_space

COUNTING = CostModel(base=1, token=0)
"""With it, the sum of latencies is the number of batches, each counted for every request that waits for it."""
LADDER = {instance.name: instance for instance in ladder("a100-llama2-7b-linear").instances}


def three(cost: CostModel) -> Instance:
    """Return three requests of one token each, two of which fit."""
    return Instance("three", Limits(2, 9, 9), Rules(chunked_prefill=False), cost, (Request(1, 1),) * 3)


def proved(classes: Classes, prices: BatchPrices) -> int:
    """Return how many batches prices prove, from the first or a later one on."""
    wait, _ = least_batches(classes, prices)
    number = np.array([len(members) for members in classes.members])
    later = np.cumsum(prices.batch[::-1])[::-1]
    return max(-(-int(wait[m, classes.first] @ number - later[m]) // UNIT) for m in range(len(later)))


def test_prices_of_one_batch_by_hand() -> None:
    """A place in the first batch costs as much as to wait for the second: 3 · 2 less the two places of the first.

    The two that run in the first wait for one batch, the other one for two: 1 + 1 + 2. Without prices each would wait
    for one.
    """
    classes = Classes(three(COUNTING), Objective.MEAN_E2E)
    prices = BatchPrices(np.array([[UNIT], [0]]), np.array([2 * UNIT, 0]))
    wait, rest = least_batches(classes, prices)
    assert wait.tolist() == [[2 * UNIT], [UNIT], [UNIT]]
    assert rest.shape == wait.shape
    assert proved(classes, prices) == 4
    assert proved(classes, BatchPrices(np.zeros((2, 1), dtype=np.int64), np.zeros(2, dtype=np.int64))) == 3


def test_whole_batches_by_hand() -> None:
    """Base 10, 1 per prefill: two of three end at 10 + 2, the third at 12 + 11: 47. Their least own times are 1, 2, 3.

    Of the base each has half a batch as its share: completions after 1, 1 and 2 whole batches, 40 + 1 + 2 + 3 = 46.
    """
    instance = three(CostModel(base=10, token=0, prefill_req=1))
    space = request_space(instance, Classes(instance, Objective.MEAN_E2E), 9.0)
    assert space.bound == 46 * space.scale
    assert optimum(instance, Objective.MEAN_E2E) == 47


@given(memory_only(most_requests=3), st.data())
def test_any_prices_prove_no_more_than_the_least_number_of_batches(instance: Instance, data: st.DataObject) -> None:
    counted = replace(instance, cost=COUNTING, requests=tuple(replace(r, weight=1) for r in instance.requests))
    classes, horizon = Classes(counted, Objective.MEAN_E2E), data.draw(st.integers(1, 6))
    of_block = st.integers(0, UNIT) | st.integers(0, UNIT // classes.capacity)
    price = np.array(data.draw(st.lists(of_block, min_size=horizon, max_size=horizon)))
    some = BatchPrices(price[:, None] * np.array(classes.size), price * classes.capacity)
    longest = max(request.output for request in instance.requests)
    best = batch_prices(classes, max(horizon, longest), 9.0)  # none where the programme has no interior
    least = optimum(counted, Objective.MEAN_E2E)
    assert proved(classes, some) <= least
    assert best is None or proved(classes, best) <= least


@given(memory_only(most_requests=3))
def test_spaces_with_prices_begin_below_the_optimum(instance: Instance) -> None:
    instance = replace(instance, requests=tuple(replace(request, weight=2) for request in instance.requests))
    classes = Classes(instance, Objective.WEIGHTED_E2E)
    assume(all(fill >= decode for fill, decode in zip(classes.fill_ps, classes.decode_ps, strict=True)))
    prices = batch_prices(classes, 8, 9.0)
    assert request_space(instance, classes, 9.0, prices).value_of(0) <= optimum(instance, Objective.WEIGHTED_E2E)


def test_prices_are_better_than_shares_where_requests_have_to_wait() -> None:
    classes = Classes(LADDER["ladder-n12-I4-O8-k8"], Objective.MEAN_E2E)
    prices = batch_prices(classes, 20, 60.0)
    assert prices is not None
    # The first ones complete after 8 batches or more, and the i-th after i, for these are the volumes: 64 + 42.
    assert proved(classes, prices) > 106


@pytest.mark.parametrize("name", ["n04-LILO+SISO-k8", "n04-SILO+LISO-k2"])
def test_rows_that_wait_are_priced_until_none_is_violated(name: str) -> None:
    classes = Classes(LADDER[f"ladder-{name}"], Objective.MEAN_E2E)
    model = PairModel(classes, 24, Deadline(math.inf))
    full, lazy = Priced(model.program), Priced(model.program, model.pairs)
    most = 1 << 45
    relaxed = full.relaxed(60.0)
    assert relaxed is not None
    full.narrow(relaxed.prices, most)
    bounds, chosen = [], [1]
    while chosen[-1]:
        found = lazy.relaxed(60.0)
        assert found is not None
        lazy.narrow(found.prices, most)
        bounds.append(model.constant + lazy.bound)
        chosen.append(lazy.price_violated(found.values))
    assert bounds[0] < bounds[-1]
    assert sum(chosen) < sum(map(len, model.pairs)) / 2
    assert bounds[-1] == pytest.approx(model.constant + full.bound, rel=1e-3)
    assert len(lazy.rows()) == len(full.rows())
