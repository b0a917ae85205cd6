"""Optima by hand, bounds and policies on their sides of them, and what `solve` makes of it all."""

from __future__ import annotations

import pytest
from outcomes import exact

from optsched import (
    Instance,
    Limits,
    Request,
    Restrictions,
    Rules,
    load_suite,
    replace,
    solve,
)
from optsched.bounds.volume import volume_bound
from optsched.model.cost import CostModel
from optsched.model.result import Badge, Result, Status
from optsched_formulations.batching.token_cpsat import TokenCpSat

TOKENS = TokenCpSat()


def test_tokens_are_spread_where_time_is_convex() -> None:
    """Two batches can cost 35 or 30: counting batches alone does not decide.

    Time max(10, 5 n). A has I = 1, O = 2, B and C have I = 2, O = 1. Everything first: 1 + 2 + 2 = 5 tokens, then
    1: 25 + 10 = 35. B with A's first token, C with its second: 3 tokens twice, 15 + 15 = 30.
    """
    instance = Instance(
        "convex",
        Limits(100, 100, 100),
        Rules(chunked_prefill=False),
        CostModel(base=10, token=0, pieces=((0, 5),)),
        (Request(1, 2), Request(2, 1), Request(2, 1)),
    )
    assert exact(TOKENS, instance) == 30


def test_a_refill_cheaper_than_a_decode_needs_a_batch_to_wait_in() -> None:
    """Eviction takes a batch in which another request runs; alone, a request cannot use it.

    Decode 100, prefill 1 per request, base 1, I = 1, O = 2. Alone: 1 + 1, then 1 + 100: 103. With a second request of
    I = 1, O = 1 in the batch between: three batches, no decode: (1 + 1) + (1 + 1) + (1 + 1) = 6.
    """
    cost = CostModel(base=1, token=0, decode_req=100, prefill_req=1)
    alone = Instance("alone", Limits(9, 9, 9), Rules(chunked_prefill=False), cost, (Request(1, 2),))
    assert exact(TOKENS, alone) == 103
    assert exact(TOKENS, replace(alone, requests=(Request(1, 2), Request(1, 1)))) == 6


@pytest.mark.slow
@pytest.mark.parametrize("position", range(11))
def test_figure_15(position: int) -> None:
    """InferMax, section 5.1: eviction pays for short prompts only, up to I = 32."""
    instance = load_suite("infermax-fig15").instances[position]
    size = instance.requests[0].input
    best, without = solve(instance), solve(instance, restrictions=Restrictions(("eviction",)))
    assert best.status == without.status == Status.OPTIMAL
    assert best.value is not None
    assert without.value is not None
    assert best.schedule is not None
    assert without.schedule is not None
    assert without.schedule.evictions == 0
    if size <= 32:
        assert best.value < without.value
        assert best.schedule.evictions > 0
    else:
        assert best.value == without.value
    # No two requests overlap without eviction: when one holds I + 3 tokens, at most I - 3 are free; so each takes
    # its four batches alone.
    assert without.schedule.length == 16


def test_auto_falls_back_to_policies_and_bounds() -> None:
    """Where no formulation applies, the best policy's schedule and the certified bound remain."""
    instance = replace(load_suite("infermax-fig15").instances[5], rules=Rules())
    instance = replace(instance, cost=replace(instance.cost, base=2**57 + 1))  # sums beyond 64 bits
    result = solve(instance)
    assert result.status == Status.FEASIBLE
    assert result.badge == Badge.CERTIFIED
    assert result.bound is not None
    assert result.value is not None
    assert 0 < result.bound < result.value
    assert result.gap == (result.value - result.bound) / result.value


def test_volume_bound_by_hand() -> None:
    """Two requests with I = 2, O = 2, M = 5: V = 2 + 3 each, so ceil(10 / 5) = 2 batches at least.

    Own work under base 100, token 1: prefills 2 · (2 · 1 + 3 · 2²) = 28, decodes 2 · (1 + 5 · 2 + 7) = 36; a refill of
    3 tokens (3 + 27 = 30) is no cheaper than a decode (18). Bound 200 + 64.
    """
    cost = CostModel(base=100, token=1, decode_kv=5, decode_req=7, prefill_sq=3)
    instance = Instance("two", Limits(5, 9, 9), Rules(chunked_prefill=False), cost, (Request(2, 2),) * 2)
    found = volume_bound(instance)
    assert found.batches == 2
    assert found.value == 264
    assert found.certificate == {"kind": "volume", "piece_weights": [1], "release_ps": 0}


def test_a_limit_keeps_the_bound() -> None:
    """A search that is stopped at once still reports the certified bound and the policies' schedule."""
    instance = load_suite("infermax-fig15").instances[4]
    result = solve(instance, time_limit=1e-9)
    assert isinstance(result, Result)
    assert result.status == Status.FEASIBLE
    assert result.bound == volume_bound(instance).value
    assert result.schedule is not None


def test_one_worker_is_deterministic() -> None:
    instance = load_suite("infermax-fig15").instances[0]
    one, two = (solve(instance, method="token_cpsat", workers=1, seed=3, deterministic_limit=10) for _ in range(2))
    assert one.schedule == two.schedule
    assert one.metrics == two.metrics
    assert one.bound == two.bound
