"""The checker's proof from prices of patterns: worked by hand, refused where it must be, never above the optimum."""

from __future__ import annotations

from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance, Limits, Request, Restrictions, Rules, replace
from optsched.check import check_result
from optsched.check.certificates import patterns
from optsched.check.certificates.patterns import patterns_bound
from optsched.check.problem import problem_of
from optsched.check.reading import UnprovedError
from optsched.model.cost import CostModel
from optsched.model.documents import dump, parse_results, result_document
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Result, Status

FREE = Restrictions()
WHOLE = Rules(chunked_prefill=False)
STAY = Rules(chunked_prefill=False, eviction=False)
COST = CostModel(base=100, token=10, decode_req=5, prefill_req=7)

# A request holds 2 blocks, then 3, of the 4 that there are. A fill of 2 takes 20 + 7 = 27, a decode 10 + 5 = 15, and a
# refill of 3 takes 30 + 7 = 37, 22 more. Together they hold 10 blocks, so it takes 3 batches. The best schedule starts
# both, evicts one and refills it: 84 + 300 + 22.
PAIR = Instance("pair", Limits(4, 100, 100), WHOLE, COST, (Request(2, 2), Request(2, 2)))
WORK = 2 * (27 + 15)
BEST = WORK + 322

Document = dict[str, Any]


def stated(*prices: Document, **others: object) -> Document:
    return {"kind": "patterns", "piece_weights": [1], "packings": [], "prices": list(prices), **others}


# In thirds of a ps. Filled in batch 1, decoded in 2: 3·33. Filled in 1 or 2, decoded in 3: 2·33 + 3·11. Evicted: 3·11 +
# 66. So both pay 99, of 4·44 that batches can take: 22 / 3 are left. The least extra time that is not below is 22.
MEMORY: Document = {"batches": 3, "scale": 3, "memory": [0, 33, 11]}
# Weights 1 and 2: two requests with a token, or one with two, so at most 2. Both pay 2·22 = 22 + 2·11 = 22 + 2·11 of
# 2·33: 22 are left.
PACKED: Document = {"batches": 3, "scale": 1, "packings": [[0, 22, 11]]}
WEIGHTS = [[1, 2]]


def proved(certificate: Document, instance: Instance = PAIR, restrictions: Restrictions = FREE) -> int:
    return patterns_bound(problem_of(instance, restrictions), Objective.MAKESPAN, certificate)


def refusal(
    certificate: Document,
    instance: Instance = PAIR,
    restrictions: Restrictions = FREE,
    objective: Objective = Objective.MAKESPAN,
) -> str:
    with pytest.raises(UnprovedError) as error:
        patterns_bound(problem_of(instance, restrictions), objective, certificate)
    assert "\n" not in str(error.value)
    return str(error.value)


def with_limits(**changes: Any) -> Instance:
    return replace(PAIR, limits=replace(PAIR.limits, **changes))


def with_cost(**changes: Any) -> Instance:
    return replace(PAIR, cost=replace(COST, **changes))


# Bounds ----------------------------------------------------------------------------------------------------


def test_best_schedule_of_the_pair() -> None:
    assert optimum(PAIR) == BEST


WORKED = {
    "memory": (PAIR, stated(MEMORY), BEST),
    "packing": (PAIR, stated(PACKED, packings=WEIGHTS), BEST),
    "both": (PAIR, stated(MEMORY, PACKED, packings=WEIGHTS), BEST),
    "no prices": (PAIR, stated(), WORK + 300),
    "free": (PAIR, stated({"batches": 3, "scale": 1}), WORK + 300),
    # Two times 3 of 4 blocks: no batch holds two, as all weights 1 say.
    "packing counts batches": (replace(PAIR, requests=(Request(3, 1),) * 2), stated(packings=[[1]]), 2 * 37 + 200),
    # 3 batches are impossible then, 4 are not.
    "no eviction": (replace(PAIR, rules=STAY), stated(MEMORY), WORK + 400),
    "no refill within P": (with_limits(prefill_tokens=2), stated(MEMORY), WORK + 400),
    # Decodes take 22 more than before: both ways take the same.
    "refills cost nothing": (with_cost(decode_req=27), stated(MEMORY), 2 * (27 + 37) + 300),
    # Decodes take 43, refills 37: a decode has the extra time now. Filled in 1 and refilled in 3 pays 33, nothing less:
    # 2·33 of 176 prove nothing beyond 3 batches.
    "decodes cost more": (with_cost(decode_req=33), stated(MEMORY), 2 * (27 + 37) + 300),
    # In blocks of 2 a request holds 1, then 2, of 2 blocks. With half the prices, a life pays 2·66 or 66 + 2·33.
    "blocks": (with_limits(kv_tokens=5, kv_block=2), stated({"batches": 3, "scale": 3, "memory": [0, 66, 33]}), BEST),
    # A run a batch: 4 batches.
    "runs": (with_limits(batch_requests=1), stated(), WORK + 400),
    # Each prompt has a batch of its own.
    "prefill tokens": (with_limits(kv_tokens=99, prefill_tokens=2), stated(), WORK + 200),
    # A flat piece of 130: 2 fills of 7 and 2 decodes of 5 are left. Half of it and half of 100 and 10 a token make 115
    # and 5 a token, of which 6 are run.
    "pieces": (with_cost(pieces=((130, 0),)), stated(piece_weights=[0, 1]), 24 + 390),
    "combination": (with_cost(pieces=((130, 0),)), stated(piece_weights=[1, 1]), 24 + 30 + 345),
}  # fmt: skip


@pytest.mark.parametrize(("instance", "certificate", "bound"), WORKED.values(), ids=WORKED)
def test_worked_bound(instance: Instance, certificate: Document, bound: int) -> None:
    assert proved(certificate, instance) == bound <= optimum(instance)


def test_bound_is_not_lifted_over_too_many_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MOST_SUMS", 0)
    assert proved(stated(MEMORY)) == WORK + 300 + 8
    assert proved(stated(PACKED, packings=WEIGHTS)) == BEST


def test_kinds_of_batches() -> None:
    """P lets in one prompt a batch. Without hybrid batches, two of them and one of decodes; with them, two in all."""
    one_kind = replace(PAIR, rules=Rules(hybrid=False, chunked_prefill=False), limits=Limits(9, 9, 2))
    assert optimum(one_kind) == WORK + 300
    # A life pays 2·9 for the prompt and 3·2 for the decode, and a batch 18: 2·24 of 2·18, so two are impossible.
    certificate = stated({"batches": 2, "scale": 1, "prefill_tokens": [9, 9], "decode_memory": [2, 2]})
    assert proved(certificate, one_kind) == WORK + 300
    # A hybrid batch can take 36.
    assert proved(certificate, replace(one_kind, rules=WHOLE)) == WORK + 200


def test_a_document_with_a_certificate_is_checked() -> None:
    def violations(bound: int) -> tuple[str, ...]:
        result = Result(
            PAIR,
            "test",
            Objective.MAKESPAN,
            Status.BOUND_ONLY,
            Badge.CERTIFIED,
            bound=bound,
            certificate=stated(MEMORY),
        )
        document = dump(result_document(result)).encode()
        return check_result(parse_results(document, lambda name: COST)[0]).violations

    assert violations(BEST) == ()
    assert violations(BEST + 1) == (f"certificate: it proves a bound of {BEST}, less than the stated {BEST + 1}",)


# Refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instance", "reason"),
    [
        (replace(PAIR, requests=(Request(2, 2), Request(2, 2, arrival_ps=1))), "requests that arrive at the same time"),
        (replace(PAIR, rules=Rules()), "whole prefills, but chunked prefill is allowed"),
        (with_limits(kv_tokens=2), "requests that can be served alone"),
    ],
)
def test_theorem_covers_not(instance: Instance, reason: str) -> None:
    assert reason in refusal(stated(MEMORY), instance)


def test_theorem_covers_no_other_objective() -> None:
    assert refusal(stated(MEMORY), objective=Objective.MAX_E2E) == (
        "kind patterns bounds the makespan, the objective is max_e2e"
    )


@pytest.mark.parametrize(
    "restrictions",
    [Restrictions(order=(1, 0)), Restrictions(("reordering",)), Restrictions(max_evictions=1), Restrictions(at_most=9)],
)
def test_restrictions_leave_what_holds_without_them(restrictions: Restrictions) -> None:
    assert proved(stated(MEMORY), restrictions=restrictions) == BEST


def test_restrictions_that_are_rules_count() -> None:
    assert proved(stated(MEMORY), restrictions=Restrictions(("eviction",))) == WORK + 400
    assert proved(stated(), restrictions=Restrictions(max_batch=1)) == WORK + 400
    assert proved(stated(MEMORY), replace(PAIR, rules=Rules()), Restrictions(("chunked",))) == BEST


BAD = {
    "weights": (stated(piece_weights=[0]), "piece_weights is [0]"),
    "more weights": (stated(piece_weights=[1, 1]), "piece_weights is [1, 1], expected 1 integers ≥ 0"),
    "no prices": ({"kind": "patterns", "piece_weights": [1]}, "prices is None, expected a list of objects"),
    "prices": (stated(prices=[7]), "prices is [7], expected a list of objects"),
    "packings": (stated(packings=7), "packings is 7, expected a list of lists"),
    "packing": (stated(packings=[[1]]), "packings[0] is [1], expected 2 integers ≥ 0"),
    "negative packing": (stated(packings=[[1, -1]]), "packings[0] is [1, -1], expected 2 integers ≥ 0"),
    "no batches": (stated({"scale": 1}), "batches is None, expected an integer from 1 to 4"),
    "too many batches": (stated(MEMORY | {"batches": 10**18}), "batches is 1000000000000000000, expected"),
    "other batches": (stated(MEMORY | {"batches": 2}), "memory is [0, 33, 11], expected 2 integers ≥ 0"),
    "scale": (stated(MEMORY | {"scale": 0}), "scale is 0, expected an integer ≥ 1"),
    "float scale": (stated(MEMORY | {"scale": 3.0}), "scale is 3.0, expected an integer ≥ 1"),
    "true": (stated(MEMORY | {"scale": True}), "scale is True, expected an integer ≥ 1"),
    "negative": (stated(MEMORY | {"memory": [0, 33, -1]}), "memory is [0, 33, -1], expected 3 integers ≥ 0"),
    "float": (stated(MEMORY | {"memory": [0, 33, 11.0]}), "memory is [0, 33, 11.0], expected 3 integers ≥ 0"),
    "text": (stated(MEMORY | {"runs": "abc"}), "runs is 'abc', expected 3 integers ≥ 0"),
    "more packings": (stated(PACKED), "packings of prices is [[0, 22, 11]], expected at most 0 lists"),
    "packed": (stated(PACKED | {"packings": [[1]]}, packings=WEIGHTS), "packings[0] of prices is [1], expected 3"),
}


@pytest.mark.parametrize(("certificate", "reason"), BAD.values(), ids=BAD)
def test_malformed_certificates_are_refused(certificate: Document, reason: str) -> None:
    assert refusal(certificate).startswith(reason)


def test_large_certificates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MOST_STEPS", 5)
    assert refusal(stated(MEMORY)) == "prices concern 6 items in batches, more than 5"
    assert refusal(stated(packings=WEIGHTS)) == "packings concern more than 5 ways of filling the blocks"


def test_huge_prices_prove_nothing_more() -> None:
    huge = {"batches": 3, "scale": 1, "memory": [0, 10**400, 10**400]}
    assert proved(stated(huge)) == WORK + 300
    assert proved(stated(MEMORY, huge)) == BEST


# Soundness -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(deadline=None, max_examples=167, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(instances(chunked=False), st.data())
def test_no_prices_prove_more_than_the_optimum(instance: Instance, data: st.DataObject) -> None:
    items = sum(output for _, output in {(request.input, request.output) for request in instance.requests})
    natural = st.integers(0, 30)
    packings = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=items, max_size=items), max_size=2))
    entries = []
    for _ in range(data.draw(st.integers(0, 3))):
        batches = data.draw(st.integers(1, sum(request.output for request in instance.requests)))
        row = st.lists(natural, min_size=batches, max_size=batches)
        names = data.draw(st.sets(st.sampled_from(patterns._NAMED)))
        entry: Document = {"batches": batches, "scale": data.draw(st.integers(1, 3))}
        entry |= {name: data.draw(row) for name in sorted(names)}
        entry["packings"] = [data.draw(row) for _ in packings]
        entries.append(entry)
    pieces = len(instance.cost.affine)
    weights = data.draw(st.lists(st.integers(0, 2), min_size=pieces, max_size=pieces).filter(any))
    certificate = stated(*entries, packings=packings, piece_weights=weights)
    assert proved(certificate, instance) <= optimum(instance)
