"""The checker's search request by request: worked by hand, mutated, and against exhaustive search."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pair import BEST, PAIR, STAY
from strategies import memory_only
from test_check_search import ALONE, MEETING, MET, SUM_ALONE, SUM_EVICTED, covered, produced

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace, solve
from optsched.check import UnprovedError, proved_bound
from optsched.check.certificates import request_search, resident_search
from optsched.check.certificates.shared import contents
from optsched.check.certificates.shared.request_states import search_requests
from optsched.check.problem import problem_of
from optsched.compiled import uncompiled
from optsched.model.cost import CostModel
from optsched.model.result import Badge
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.request_search import request_certificate
from optsched_formulations.batching.search.resident_search import priced_certificate
from optsched_formulations.batching.search.weights import weights_of

UNRESTRICTED = Restrictions()
MAKESPAN, SUM, WEIGHTED = Objective.MAKESPAN, Objective.MEAN_E2E, Objective.WEIGHTED_E2E


def stated(bound: object, *shares: object, states: object = 10_000) -> dict[str, Any]:
    return {"kind": "request_search", "bound": bound, "shares": list(shares), "states": states}


def proves(
    proof: dict[str, Any],
    instance: Instance = PAIR,
    objective: Objective = MAKESPAN,
    restrictions: Restrictions = UNRESTRICTED,
) -> bool:
    try:
        return bool(proved_bound(instance, restrictions, objective, proof) == proof["bound"])
    except UnprovedError:
        return False


# Worked by hand; the arithmetic is beside the numbers in `test_check_search`.
WORKED = {
    "eviction": (PAIR, MAKESPAN, BEST),
    "no eviction": (replace(PAIR, rules=STAY), MAKESPAN, 2 * ALONE),
    "sum": (PAIR, SUM, SUM_EVICTED),
    "sum without eviction": (replace(PAIR, rules=STAY), SUM, SUM_ALONE),
    "weights": (replace(PAIR, requests=(Request(2, 2, weight=3), Request(2, 2))), WEIGHTED, 5 * ALONE),
    "largest latency": (PAIR, Objective.MAX_E2E, BEST),
    "arrives much later": (
        replace(PAIR, requests=(Request(2, 2), Request(2, 2, arrival_ps=1000))),
        MAKESPAN,
        1000 + ALONE,
    ),
    # Both latencies are those of requests that are alone.
    "sum, arrives much later": (
        replace(PAIR, requests=(Request(2, 2, arrival_ps=5), Request(2, 2, arrival_ps=1000))),
        SUM,
        2 * ALONE,
    ),
    "pauses": (MEETING, MAKESPAN, MET),
}


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize(("instance", "objective", "best"), WORKED.values(), ids=WORKED)
def test_worked_optimum_and_no_more(
    instance: Instance, objective: Objective, best: int, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiles:
        monkeypatch.setattr(request_search, "_FEW_REQUESTS", 0)
    assert optimum(instance, objective) == best
    nothing = [0] * len(contents.items_of(problem_of(instance, Restrictions()), objective))
    for bound in {0, best // 2, max(best - 1, 0), best}:
        assert proves(stated(bound, *nothing), instance, objective)
    for bound in (best + 1, 10**12):
        assert proved_bound(instance, Restrictions(), objective, stated(bound, *nothing)) == best


# PAIR holds 4 tokens: two requests in their first batches only (2 + 2), else one. With shares of 50 at k = 1 and 100 at
# k = 2, any batch has 100 at most, its base.
def test_shares_may_fill_the_base_and_no_more() -> None:
    assert proves(stated(BEST, 50, 100))
    assert not proves(stated(BEST + 1, 50, 100))
    for shares in ((51, 100), (50, 101)):
        with pytest.raises(UnprovedError, match=r"shares of one batch add up to 10[12], more than its base 100"):
            proved_bound(PAIR, Restrictions(), MAKESPAN, stated(BEST, *shares))


def test_what_few_labels_prove_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    python = uncompiled(search_requests)
    monkeypatch.setattr(request_search, "uncompiled", lambda _: python)
    monkeypatch.setattr(request_search, "search_requests", None)
    assert proves(stated(BEST, 50, 100))


def test_a_search_that_keeps_too_few_states_proves_what_it_has_reached() -> None:
    found = [proved_bound(PAIR, UNRESTRICTED, MAKESPAN, stated(BEST, 0, 0, states=states)) for states in range(1, 60)]
    assert found == sorted(found)
    assert found[0] < found[-1] == BEST


REFUSED = {
    "bound": (stated(-1, 0, 0), "bound is -1, expected an integer ≥ 0"),
    "bound is a truth value": (stated(True, 0, 0), "bound is True"),
    "share": (stated(1, 0, -1), "shares is .*, expected a list of integers ≥ 0"),
    "share is a float": (stated(1, 0, 0.5), "expected a list of integers ≥ 0"),
    "number": (stated(1, 0), "shares has 1 integers, expected 2, one for each item"),
    "states": (stated(1, 0, 0, states=0), "states is 0, expected an integer from 1 to 4000000"),
    "more states": (stated(1, 0, 0, states=4_000_001), "expected an integer from 1 to 4000000"),
    "large share": (stated(1, 0, 2**80), "too large to be verified in 64 bits: shares"),
    "large bound": (stated(2**60, 0, 0), "too large to be verified in 64 bits: largest sum"),
}


@pytest.mark.parametrize(("proof", "reason"), REFUSED.values(), ids=REFUSED)
def test_numbers_are_read_strictly(proof: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(PAIR, Restrictions(), MAKESPAN, proof)


def test_large_decodes_are_refused_too() -> None:
    """Where eviction is forbidden, a refill may be far cheaper than a decode."""
    large = replace(PAIR, rules=STAY, cost=replace(PAIR.cost, decode_req=2**60))
    with pytest.raises(UnprovedError, match="too large to be verified in 64 bits: largest sum"):
        proved_bound(large, UNRESTRICTED, MAKESPAN, stated(0, 0, 0))


APART = replace(PAIR, requests=(Request(2, 2, weight=2), Request(2, 2, arrival_ps=1)))
NOT_COVERED = {
    "objective": (PAIR, Objective.MEAN_TTFT, "the objective is mean_ttft"),
    "largest with arrivals": (APART, Objective.MAX_E2E, "requests that arrive at the same time for max_e2e"),
    "weights with arrivals": (APART, WEIGHTED, "needs equal weights > 0 where requests arrive over time"),
    "chunked": (replace(PAIR, rules=Rules()), MAKESPAN, "needs whole prefills, hybrid batches"),
    "one kind": (replace(PAIR, rules=Rules(hybrid=False, chunked_prefill=False)), MAKESPAN, "needs whole prefills"),
    "budget": (replace(PAIR, limits=Limits(4, 100, 3)), MAKESPAN, "batch_tokens and prefill_tokens of at least 4"),
    "batch size": (replace(PAIR, limits=Limits(4, 100, 100, 1)), MAKESPAN, "needs batches of all 2 requests"),
    "cheap refills": (
        replace(PAIR, cost=replace(PAIR.cost, decode_req=44)),
        MAKESPAN,
        "needs refills that take no less time than decodes",
    ),
    "long": (
        replace(PAIR, limits=Limits(200, 200, 200), requests=(Request(1, 64),)),
        MAKESPAN,
        "covers 64 requests of 63 output tokens at most",
    ),
}


@pytest.mark.parametrize(("instance", "objective", "reason"), NOT_COVERED.values(), ids=NOT_COVERED)
def test_theorem_covers_not(instance: Instance, objective: Objective, reason: str) -> None:
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(instance, Restrictions(), objective, stated(0, 0, 0))


def test_budgets_of_what_the_cache_holds_suffice() -> None:
    """A batch runs no more tokens than it holds: PAIR never holds more than 4."""
    tight = replace(PAIR, limits=Limits(4, 4, 4))
    assert optimum(tight) == BEST
    assert proves(stated(BEST, 0, 0), tight)
    assert not proves(stated(BEST + 1, 0, 0), tight)


def test_restrictions_only_remove_schedules() -> None:
    for restrictions in (Restrictions(order=(1, 0)), Restrictions(max_evictions=1)):
        assert proves(stated(BEST, 0, 0), restrictions=restrictions)
    assert proves(stated(2 * ALONE, 0, 0), restrictions=Restrictions(("eviction",)))


# A batch has room for both first tokens, 4 blocks, or for one second token, 3. Both wait for two batches, in which one
# request ends at most, and one of them for a third one: 2 + 2 + 1. A second token in the second batch costs a batch.
COUNTED = replace(PAIR, cost=CostModel(base=1, token=0))
IN_TURN = {"unit": 1, "prices": [[0, 0], [0, 1]]}


def test_prices_of_batches_count_those_that_requests_wait_for() -> None:
    assert optimum(COUNTED, SUM) == 5
    assert proves(stated(5, 0, 0, states=1) | IN_TURN, COUNTED, SUM)
    assert not proves(stated(6, 0, 0) | IN_TURN, COUNTED, SUM)
    # Without them only that each takes two batches is known before anything is searched.
    assert proves(stated(4, 0, 0, states=1), COUNTED, SUM)
    assert not proves(stated(5, 0, 0, states=1), COUNTED, SUM)
    assert not proves(stated(5, 0, 0, states=1) | {"prices": [[0, 0], [0, 0]]}, COUNTED, SUM)
    # Twice the weight is twice the sum.
    heavy = replace(COUNTED, requests=(Request(2, 2, weight=2), Request(2, 2, weight=2)))
    assert proves(stated(10, 0, 0, states=1) | IN_TURN, heavy, WEIGHTED)


def test_a_far_bound_with_dear_batches_does_not_wrap() -> None:
    """What may be paid is 2 × 10^13 batches of 10^6 here, more than 64 bits hold; found by the soundness trial."""
    dear = replace(PAIR, cost=CostModel(base=10, token=0, prefill_sq=10**12))
    proof = {"unit": 10**6, "prices": [[0, 502_633]]}
    best = optimum(dear, SUM)
    assert proves(stated(best, 0, 0) | proof, dear, SUM)
    assert not proves(stated(20 * best, 0, 0) | proof, dear, SUM)


def test_nothing_that_weighs_nothing_is_paid_for() -> None:
    light = replace(PAIR, requests=(Request(2, 2, weight=0), Request(2, 2, weight=0)))
    assert proves(stated(0, 0, 0) | IN_TURN, light, WEIGHTED)
    assert not proves(stated(1, 0, 0) | IN_TURN, light, WEIGHTED)


PRICES_REFUSED = {
    "unit": ({"unit": 0}, SUM, "unit is 0, expected an integer ≥ 1"),
    "no list": ({"prices": 3}, SUM, "prices is 3, expected a list of lists"),
    "no lists": ({"prices": [3]}, SUM, "expected a list of lists"),
    "number": ({"prices": [[0, 0], [0]]}, SUM, "expected 2 integers ≥ 0, one for each item"),
    "negative": ({"prices": [[0, -1]]}, SUM, "expected 2 integers ≥ 0"),
    "large": ({"prices": [[0, 2**80]]}, SUM, "too large to be verified in 64 bits: paid"),
    "objective": (IN_TURN, MAKESPAN, "prices are for sums of equal weights"),
}


@pytest.mark.parametrize(("prices", "objective", "reason"), PRICES_REFUSED.values(), ids=PRICES_REFUSED)
def test_prices_are_read_strictly(prices: dict[str, Any], objective: Objective, reason: str) -> None:
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(PAIR, UNRESTRICTED, objective, stated(1, 0, 0) | prices)


def test_knapsacks_of_many_batches_are_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for shares and one for each batch, of 4 blocks × 4 tokens."""
    monkeypatch.setattr(request_search, "_MOST_WORK", 47)
    with pytest.raises(UnprovedError, match="are 48, at most 47"):
        proved_bound(PAIR, UNRESTRICTED, SUM, stated(1, 0, 0) | IN_TURN)
    assert proves(stated(1, 0, 0), PAIR, SUM)


def test_prices_need_equal_weights_and_one_arrival() -> None:
    differ = replace(PAIR, requests=(Request(2, 2, weight=2), Request(2, 2)))
    proofs = (
        (APART, SUM, stated(1, 0, 0) | IN_TURN),
        (differ, WEIGHTED, stated(1, 0, 0, 0, 0) | {"prices": [[0] * 4]}),
    )
    for instance, objective, proof in proofs:
        with pytest.raises(UnprovedError, match="sums of equal weights"):
            proved_bound(instance, UNRESTRICTED, objective, proof)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Instance, Objective]:
    """Draw a tiny instance that the theorem covers, with an objective."""
    instance = draw(memory_only(online=draw(st.booleans())))
    classes = Classes(instance)
    assume(min(classes.extra_ps(item) for item in range(len(classes.size))) >= 0)
    objectives = [MAKESPAN, SUM]
    if instance.offline:
        objectives += [Objective.MAX_E2E, WEIGHTED]
    return instance, draw(st.sampled_from(objectives))


@pytest.mark.slow
@settings(max_examples=90, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(cases(), st.data())
def test_the_optimum_is_proved_and_no_more(case: tuple[Instance, Objective], data: st.DataObject) -> None:
    instance, objective = case
    best = optimum(instance, objective)
    classes = Classes(instance, objective)
    proof = request_certificate(classes, best, 100_000, *weights_of(classes, 60.0))
    assert proves(proof, instance, objective)
    assert not proves(proof | {"bound": best + 1}, instance, objective)
    # Whether few labels are looked at by Python or by compiled code.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_search, "_FEW_REQUESTS", 0)
        assert proves(proof, instance, objective)
    # Any shares prove the truth, or are refused.
    share = st.integers(0, instance.cost.base + instance.cost.cpu_batch)
    other = proof | {"shares": [data.draw(share) for _ in proof["shares"]]}
    assert not proves(other | {"bound": best + 1}, instance, objective)
    # And so do any prices of batches.
    if instance.offline and objective == SUM:
        unit = data.draw(st.integers(1, 4))
        batch = st.lists(st.integers(0, 2 * unit), min_size=len(proof["shares"]), max_size=len(proof["shares"]))
        priced = proof | {"unit": unit, "prices": data.draw(st.lists(batch, min_size=1, max_size=6))}
        assert proves(priced, instance, objective)
        assert not proves(priced | {"bound": best + 1}, instance, objective)


# The compiled form of `resident_search` --------------------------------------------------------------------


def outcome(instance: Instance, objective: Objective, proof: dict[str, Any]) -> int | str:
    try:
        return proved_bound(instance, Restrictions(), objective, proof)
    except UnprovedError as error:
        return str(error)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(covered(sums=False), st.data())
def test_both_forms_of_resident_search_agree(case: tuple[Instance, Objective], data: st.DataObject) -> None:
    instance, objective = case
    groups = contents.items_of(problem_of(instance, Restrictions()), objective)[-1].group + 1
    graph, prices = produced(instance, objective, frozenset(data.draw(st.sets(st.integers(0, groups - 1)))))
    step = prices.scale // 2 + 1
    proof = priced_certificate(graph, prices, data.draw(st.integers(0, 2 * prices.bound_ps + 3)))
    if data.draw(st.booleans()):
        proof["item_prices"] = [price + step * data.draw(st.integers(-3, 3)) for price in proof["item_prices"]]
    problem = problem_of(instance, Restrictions())
    items = contents.items_of(problem, objective)
    read = contents.prices_of(proof, items)
    with suppress(UnprovedError):
        assert resident_search._compiled(problem, items, read, proof["bound"]) is not None
    found = outcome(instance, objective, proof)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resident_search, "_FEW_STATES", 0)
        assert outcome(instance, objective, proof) == found
        patch.setattr(resident_search, "_compiled", lambda *_: None)
        assert outcome(instance, objective, proof) == found


# What `solve` makes of claims ------------------------------------------------------------------------------


def test_what_a_solver_claims_is_certified_in_the_time_left() -> None:
    """CP-SAT leaves no proof; the checker's own search is one."""
    for objective, best in ((MAKESPAN, BEST), (SUM, SUM_EVICTED)):
        found = solve(PAIR, objective, method="token_cpsat", workers=1)
        assert found.value == found.bound == best
        assert found.badge is Badge.CERTIFIED
        assert found.certificate is not None
        assert proved_bound(PAIR, Restrictions(), objective, found.certificate) == best
        assert found.found_by["bound"] == "token_cpsat"


def test_what_no_certificate_covers_stays_claimed() -> None:
    """Two pieces of the batch time: the larger of 100 + 10 x and 90 + 12 x."""
    cost = CostModel(100, 10, pieces=((90, 12),), decode_kv=1)
    found = solve(replace(PAIR, cost=cost), SUM, method="token_cpsat", workers=1)
    assert found.value == found.bound == optimum(replace(PAIR, cost=cost), SUM)
    assert found.badge is Badge.SOLVER_CLAIMED
