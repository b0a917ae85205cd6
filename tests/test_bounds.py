"""Bounds that scale: below every optimum, as the hand says, and recomputed by the checker, which is told no lies."""

from __future__ import annotations

from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace
from optsched.bounds.catalogue import BOUNDS
from optsched.check import UnprovedError, proved_bound
from optsched.model.cost import CostModel

FREE = Restrictions()
WHOLE = Rules(chunked_prefill=False, eviction=False)

# One cached token, so one request at a time; a batch takes 10 and 1 for its token. Each request uses a whole base:
# needs are 11 each. Arrivals 0, 3, 40.
QUEUE = Instance(
    "queue", Limits(1, 8, 8), WHOLE, CostModel(10, 1), tuple(Request(1, 1, arrival_ps=time) for time in (0, 3, 40))
)


def bound(name: str, instance: Instance, objective: Objective) -> int | None:
    """Return a bound that the checker has confirmed to the unit."""
    found = BOUNDS[name](instance, objective)
    if found is None:
        return None
    assert proved_bound(instance, FREE, objective, found.certificate) == found.value
    return found.value


@pytest.mark.parametrize(
    ("objective", "alone", "machine"),
    [
        (Objective.MAKESPAN, 40 + 11, 51),  # 11, 22, 51
        (Objective.MEAN_E2E, 33, 11 + 19 + 11),  # ends 11, 22, 51 less 0, 3, 40
        (Objective.MEAN_TTFT, 33, 41),
        (Objective.MAX_E2E, 11, 19),
        (Objective.MAX_TTFT, 11, 19),
        (Objective.WEIGHTED_E2E, 33, 41),
        (Objective.SLO_MISSES, 0, None),
    ],
)
def test_worked_queue(objective: Objective, alone: int, machine: int | None) -> None:
    """Here the bounds of the machine are optima."""
    assert bound("alone", QUEUE, objective) == alone
    assert bound("machine", QUEUE, objective) == machine
    if machine is not None:
        assert optimum(QUEUE, objective) == machine


def test_worked_request_alone() -> None:
    """Prompt of 5, three tokens; P = 2, so three prefill steps in chunks.

    Pieces 10 + c and 4 + 3c. First token: max(3·10 + 5, 3·4 + 3·5) = 35, quadratic term 25·2 = 50, three steps of 7
    each: 106. A decode: max(11, 7) and 2 a token read, 5 and 6 of them: 21 and 23; refills cost far more. In all 150.
    """
    cost = CostModel(10, 1, ((4, 3),), decode_kv=2, prefill_sq=2, prefill_req=7)
    instance = Instance("one", Limits(20, 8, 2), Rules(), cost, (Request(5, 3, slo_ttft_ps=105, slo_e2e_ps=150),))
    assert bound("alone", instance, Objective.MEAN_TTFT) == 106 == optimum(instance, Objective.MEAN_TTFT)
    assert bound("alone", instance, Objective.MEAN_E2E) == 150 == optimum(instance, Objective.MEAN_E2E)
    assert bound("alone", instance, Objective.MAKESPAN) == 150
    assert bound("alone", instance, Objective.SLO_MISSES) == 1
    relaxed = replace(instance, requests=(Request(5, 3, slo_ttft_ps=106, slo_e2e_ps=150),))
    assert bound("alone", relaxed, Objective.SLO_MISSES) == 0


def test_worked_shortest_first() -> None:
    """A long job is interrupted: 3 tokens held for 1 batch of 3 places is a whole base, 1 token a third of one.

    Base 30, no other cost. Needs 30 and 10, arrivals 0 and 5: the short one ends at 15, the long one at 40; alone each
    takes 30, the ends are 30 and 35. The i-th ends: max(15, 30) + max(40, 35) = 70, less 5.
    """
    requests = (Request(3, 1), Request(1, 1, arrival_ps=5))
    instance = Instance("two", Limits(3, 8, 8), WHOLE, CostModel(30, 0), requests)
    assert bound("machine", instance, Objective.MEAN_E2E) == 65
    assert optimum(instance, Objective.MEAN_E2E) == 30 + 55


QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@pytest.mark.parametrize("name", BOUNDS)
@settings(QUICK, max_examples=150)
@given(instances(online=True), st.sampled_from(list(Objective)))
def test_no_bound_exceeds_an_optimum(name: str, instance: Instance, objective: Objective) -> None:
    found = bound(name, instance, objective)
    best = optimum(instance, objective)
    assert best is not None
    assert found is None or found <= best


MONOTONE = tuple(objective for objective in Objective if objective != Objective.SLO_MISSES)


@pytest.mark.parametrize("name", BOUNDS)
@settings(QUICK, max_examples=100)
@given(instances(online=True), st.data(), st.sampled_from(list(Objective)))
def test_a_further_request_never_lowers_a_bound(
    name: str, instance: Instance, data: st.DataObject, objective: Objective
) -> None:
    assume(len(instance.requests) > 1)
    out = data.draw(st.integers(0, len(instance.requests) - 1))
    fewer = replace(instance, requests=tuple(r for i, r in enumerate(instance.requests) if i != out))
    before, after = bound(name, fewer, objective), bound(name, instance, objective)
    if before is None or after is None:
        assert before == after
        return
    # The makespan is counted from the first arrival.
    earlier = fewer.start_ps - instance.start_ps if objective == Objective.MAKESPAN else 0
    assert before + earlier <= after


@pytest.mark.parametrize("name", BOUNDS)
@settings(QUICK, max_examples=60)
@given(instances(online=True), st.integers(2, 5), st.sampled_from(MONOTONE))
def test_a_slower_clock_scales_bounds(name: str, instance: Instance, factor: int, objective: Objective) -> None:
    """All coefficients and arrivals multiplied: bounds are multiplied as well, up to what rounding down had cut off."""
    cost = instance.cost
    slower = replace(
        instance,
        cost=CostModel(
            base=factor * cost.base,
            token=factor * cost.token,
            pieces=tuple((factor * base, factor * token) for base, token in cost.pieces),
            decode_kv=factor * cost.decode_kv,
            decode_req=factor * cost.decode_req,
            prefill_sq=factor * cost.prefill_sq,
            prefill_kv=factor * cost.prefill_kv,
            prefill_req=factor * cost.prefill_req,
        ),
        requests=tuple(replace(r, arrival_ps=factor * r.arrival_ps) for r in instance.requests),
    )
    before, after = bound(name, instance, objective), bound(name, slower, objective)
    if before is None or after is None:
        assert before == after
        return
    weight = max(1, *(request.weight for request in instance.requests))
    lost = 0 if name != "machine" else factor * weight * len(instance.requests) ** 2
    assert factor * before <= after <= factor * before + lost


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"piece_weights": [1, 0]}, "piece_weights is"),
        ({"piece_weights": [0]}, "piece_weights is"),
        ({"piece_weights": [1.0]}, "piece_weights is"),
        ({"share_weights": [1, 0, 0]}, "share_weights is"),
        ({"share_weights": {"memory": 1, "tokens": 0}}, "share_weights is"),
        ({"share_weights": {"memory": 0, "tokens": 0, "runs": 0}}, "share_weights is"),
        ({"share_weights": {"memory": 1, "tokens": 0, "runs": 1}}, "share_weights is"),
        ({"share_weights": {"memory": -1, "tokens": 2, "runs": 0}}, "share_weights is"),
    ],
)
def test_certificates_of_the_machine_are_read_strictly(change: dict[str, Any], reason: str) -> None:
    found = BOUNDS["machine"](QUEUE, Objective.MEAN_E2E)
    assert found is not None
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(QUEUE, FREE, Objective.MEAN_E2E, found.certificate | change)


@settings(QUICK, max_examples=100)
@given(instances(online=True), st.data(), st.sampled_from(MONOTONE))
def test_whatever_weights_are_stated_no_more_than_the_optimum_is_proved(
    instance: Instance, data: st.DataObject, objective: Objective
) -> None:
    weight, pieces = st.integers(0, 3), len(instance.cost.affine)
    runs = weight if instance.limits.batch_requests is not None else st.just(0)
    rate = data.draw(st.lists(weight, min_size=pieces, max_size=pieces).filter(any))
    shares = {"memory": data.draw(weight), "tokens": data.draw(weight), "runs": data.draw(runs)}
    assume(any(shares.values()))
    certificate = {"kind": "machine", "piece_weights": rate, "share_weights": shares}
    best = optimum(instance, objective)
    assert best is not None
    assert proved_bound(instance, FREE, objective, certificate) <= best
