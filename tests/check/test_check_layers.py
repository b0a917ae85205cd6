"""The checker's search by number of batches: worked by hand, in both of its forms, and against exhaustive search."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pair import BEST, COST, PAIR, STAY, WORK
from strategies import memory_only

from optsched import load_instance
from optsched.check import UnprovedError, proved_bound
from optsched.check.certificates.shared import by_batches, contents
from optsched.check.problem import problem_of
from optsched.model.domain import replace
from optsched.model.instance import Instance, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched_formulations.batching.layers.layered_search import LayeredCertificates

MAKESPAN = Objective.MAKESPAN
Document = dict[str, Any]


def stated(bound: object, counts: Sequence[int], *prices: object, pairs: object = 10**6, **others: object) -> Document:
    batches = [{"count": count, "item_prices": list(prices)} for count in counts]
    return {"kind": "layered_search", "bound": bound, "pairs": pairs, "batches": batches, **others}


def staged(later: object) -> Document:
    """Return a proof of the pair's best value with other prices later."""
    proof = stated(BEST, [3], 0, 0)
    proof["batches"][0]["later"] = later
    return proof


def outcome(proof: Document, instance: Instance = PAIR, objective: Objective = MAKESPAN) -> int | str:
    """Return the bound that is proved, or why there is none."""
    try:
        return proved_bound(instance, Restrictions(), objective, proof)
    except UnprovedError as error:
        return str(error)


# The requests hold 2 + 3 tokens each, 10 in all, so that memory of 4 takes three batches at least. Three take an
# eviction, 38 ps; four take none: 4·100 + WORK.
FOUR = 400 + WORK


def test_three_batches_take_an_eviction_and_four_are_too_many() -> None:
    assert optimum(PAIR, MAKESPAN) == BEST < FOUR
    assert outcome(stated(BEST, [3], 0, 0)) == BEST
    assert outcome(stated(BEST + 1, [3], 0, 0)) == BEST
    assert outcome(stated(FOUR, [3], 0, 0)) == BEST
    assert outcome(stated(BEST, [3], 0, 0), objective=Objective.MAX_E2E) == BEST


def test_without_evictions_no_walk_has_three_batches() -> None:
    stay = replace(PAIR, rules=STAY)
    assert optimum(stay, MAKESPAN) == FOUR
    assert outcome(stated(FOUR, [3], 0, 0), stay) == FOUR
    assert outcome(stated(FOUR + 1, [3, 4], 0, 0), stay) == FOUR


def test_every_number_of_batches_that_matters_has_prices() -> None:
    missing = "batches has nothing for {} batches, which may take less than the bound"
    assert outcome(stated(BEST, [], 0, 0)) == missing.format(3)
    assert outcome(stated(BEST, [4, 5], 0, 0)) == missing.format(3)
    stay = replace(PAIR, rules=STAY)
    assert outcome(stated(FOUR + 1, [3], 0, 0), stay) == missing.format(4)
    # Nothing is asked of three batches: they take 300 and all work.
    assert outcome(stated(300 + WORK, [], 0, 0)) == 300 + WORK


def test_prices_decide_how_many_pairs_are_looked_at() -> None:
    """Without any, what the source is estimated at is proved: with prices of 0 the cheapest walk of three batches.

    That fills one request, decodes it, and fills another: 35, 17, 35.
    """
    assert outcome(stated(BEST, [3], 0, 0, pairs=0)) == 300 + 35 + 17 + 35
    # With p for a first fill and q for a refill, a walk costs 300 and, less 2 p for the two that wait: 35 - p for a
    # fill, 55 - q for a refill, 17 for a decode, q for an eviction. Three refills cost 3 (55 - q), so q = 55 if none
    # is to be gained by them; a request to its end and a refill 35 - p + 17, so p = 90 if that is to make 142 with 2 p;
    # and four first fills, three of them evicted, and a decode 4 (35 - p) + 3 q + 17, which makes 142, too.
    assert outcome(stated(BEST, [3], 90, 55, pairs=0)) == BEST
    assert outcome(stated(BEST, [3], 91, 55, pairs=0)) == BEST - 2
    assert outcome(stated(BEST, [3], 89, 55, pairs=0)) == BEST - 1


# A request of (1, 1) besides: its fill takes 10 + 2 + 7 = 19, and its block is free in the last two of three batches.
THREE = replace(PAIR, requests=(*PAIR.requests, Request(1, 1)))
SMALL = 19


def test_a_core_with_a_filler_by_hand() -> None:
    """The pair alone takes three batches, of which two have a block left: each is p cheaper, and the filler pays p."""
    assert optimum(THREE, MAKESPAN) == BEST + SMALL
    for price, less in ((0, 0), (5, 5), (-5, 5)):
        for bound in (BEST + SMALL, BEST + SMALL + 1):
            assert outcome(stated(bound, [3], price, 0, 0, core=[1]), THREE) == BEST + SMALL - less


def test_batches_of_none_of_the_core_are_batches() -> None:
    """The pair's tokens are worth 50 each, two with 4 blocks and one with 3; the small request runs in one of three."""
    proof = stated(BEST, [3], 0, 50, 50, core=[0])
    assert outcome(proof, THREE) == 300 + SMALL - (100 + 100 + 50) + WORK + 4 * 50


# One of (2, 1) and one of (2, 2): both fit the first batch, one ends there, and the other decodes in a second one.
EARLY = replace(PAIR, requests=(Request(2, 1), Request(2, 2)))
TWO = 200 + 35 + 35 + 17


def test_requests_of_one_input_are_told_apart_when_they_end() -> None:
    """With 52, 55 and −17 for the first token, the second one and the end, walks cost what their batches do.

    A first fill takes 35 − 52 = −17, to go on 17, and to end, too, so that each request that leaves costs 0; a refill
    55 − 55, and what is evicted before it 55. So two batches cost 200, and those that wait 2·52 − 17 = 87.
    """
    assert optimum(EARLY, MAKESPAN) == TWO
    by_input = {"alike": "input"}
    assert outcome(stated(TWO, [2], 52, 55, -17, pairs=0, **by_input), EARLY) == TWO
    assert outcome(stated(TWO + 1, [2], 52, 55, -17, pairs=0, **by_input), EARLY) == TWO
    # If the end's price is a ps less, a walk without an end costs one less in all; if it is one more, so does a walk in
    # which both requests end with their first token: that with one end costs as much.
    assert outcome(stated(TWO + 1, [2], 52, 55, -18, pairs=0, **by_input), EARLY) == TWO - 1
    assert outcome(stated(TWO + 1, [2], 52, 55, -16, pairs=0, **by_input), EARLY) == TWO - 1
    assert outcome(stated(TWO + 1, [2], 0, 0, 0, **by_input), EARLY) == TWO
    missing = "item_prices has 2 integers, expected 3, one for each item"
    assert outcome(stated(TWO + 1, [2], 0, 0, **by_input), EARLY) == missing


def test_by_input_as_many_end_as_have_the_output() -> None:
    """Two of (2, 1) and one of (2, 3), which takes three batches and has room beside it in the first one only.

    The other one takes a batch of its own, and as prices are 0 only ends that are counted say so.
    """
    three = replace(PAIR, requests=(Request(2, 1), Request(2, 1), Request(2, 3)), rules=STAY)
    best = 400 + 3 * 35 + 17 + (10 + 3 + 5)
    assert optimum(three, MAKESPAN) == best
    assert outcome(stated(best + 1, [3, 4], 0, 0, 0, 0, alike="input"), three) == best


# A request of (4, 1) fills the memory of the pair: its batch takes 100, its fill 40 + 2·16 + 7 = 79.
WIDE = replace(PAIR, requests=(*PAIR.requests, Request(4, 1)))
ALONE = 179


def test_requests_that_leave_no_room_run_apart() -> None:
    assert optimum(WIDE, MAKESPAN) == BEST + ALONE
    for bound in (BEST + ALONE, BEST + ALONE + 1):
        assert outcome(stated(bound, [3], 0, 0, apart=[1]), WIDE) == BEST + ALONE
        assert outcome(stated(bound, [3], 0, 0, apart=[1], alike="input"), WIDE) == BEST + ALONE
    both = replace(PAIR, requests=(Request(4, 1), Request(4, 1)))
    assert optimum(both, MAKESPAN) == 2 * ALONE
    assert outcome(stated(10**6, [], apart=[0]), both) == 2 * ALONE
    assert outcome(stated(7, [], apart=[0]), both) == 7
    assert outcome(stated(ALONE - 1, [], apart=[1]), WIDE) == ALONE - 1
    assert (
        outcome(stated(BEST, [3], 0, 0, apart=[0]), WIDE) == "apart has group 0, which leaves room for another request"
    )
    # A small request fits beside what is as large as the pair's in its first batch.
    assert outcome(stated(BEST, [3], apart=[1]), THREE) == "apart has group 1, which leaves room for another request"


def test_prices_after_some_batches_drop_what_others_leave() -> None:
    """After the first batch no walk of three is left that costs less than the best one; before, nothing is known."""
    later = [{"after": 1, "item_prices": [90, 55]}]
    for count in range(1, 8):
        proof = {**stated(BEST + 1, [3], 0, 0, pairs=count), "scale": 1}
        proof["batches"][0]["later"] = later
        found = outcome(proof)
        assert isinstance(found, int)
        assert 300 + 35 + 17 + 35 <= found <= BEST
    assert found == BEST
    # Of many that begin after the same batch the last ones are asked.
    assert outcome({**stated(BEST, [3], 0, 0), "batches": [proof["batches"][0] | {"later": later * 100}]}) == BEST


REFUSED = {
    "objective": (stated(BEST, [3], 0, 0), PAIR, Objective.MEAN_E2E, "bounds makespan and max_e2e, the objective is"),
    "arrivals": (
        stated(BEST, [3], 0, 0),
        replace(PAIR, requests=(Request(2, 2), Request(2, 2, arrival_ps=1))),
        MAKESPAN,
        "needs requests that arrive at the same time",
    ),
    "chunked": (stated(BEST, [3], 0, 0), replace(PAIR, rules=Rules()), MAKESPAN, "needs whole prefills"),
    "cheap refills": (
        stated(BEST, [3], 0, 0),
        replace(PAIR, cost=replace(COST, decode_req=44)),
        MAKESPAN,
        "needs refills that take no less time than decodes",
    ),
    "bound": (stated(-1, [3], 0, 0), PAIR, MAKESPAN, "bound is -1, expected an integer ≥ 0"),
    "pairs": (stated(BEST, [3], 0, 0, pairs=1.5), PAIR, MAKESPAN, "pairs is 1.5, expected an integer ≥ 0"),
    "prices": (stated(BEST, [3], 0), PAIR, MAKESPAN, "item_prices has 1 integers, expected 2"),
    "scale": (stated(BEST, [3], 0, 0, scale=0), PAIR, MAKESPAN, "scale is 0, expected an integer ≥ 1"),
    "no list": ({**stated(BEST, [3], 0, 0), "batches": 3}, PAIR, MAKESPAN, "batches is 3, expected a list of objects"),
    "count": (stated(BEST, [0], 0, 0), PAIR, MAKESPAN, "batches.0.count is 0, expected an integer ≥ 1"),
    "core": (stated(BEST, [3], 0, 0, core=[1]), PAIR, MAKESPAN, "core is [1], expected different groups from 0 to 0"),
    "no core": (stated(BEST, [3], 0, 0, core=[]), PAIR, MAKESPAN, "core is [], expected different groups"),
    "twice": (stated(BEST, [3], 0, 0, 0, core=[1, 1]), THREE, MAKESPAN, "core is [1, 1], expected different groups"),
    "alike": (stated(BEST, [3], 0, 0, alike="size"), PAIR, MAKESPAN, "alike is 'size', expected output or input"),
    "apart": (
        stated(BEST, [3], 0, 0, apart=[2]),
        PAIR,
        MAKESPAN,
        "apart is [2], expected different groups from 0 to 0",
    ),
    "no later": (staged(7), PAIR, MAKESPAN, "later is 7, expected a list of objects"),
    "from the begin": (
        staged([{"after": 0, "item_prices": [0, 0]}]),
        PAIR,
        MAKESPAN,
        "later has prices after 0 batches, expected 1 or more, in order",
    ),
    "out of order": (
        staged([{"after": after, "item_prices": [0, 0]} for after in (2, 1)]),
        PAIR,
        MAKESPAN,
        "later has prices after 1 batches, expected 1 or more, in order",
    ),
    "prices later": (staged([{"after": 1, "item_prices": [0]}]), PAIR, MAKESPAN, "item_prices has 1 integers"),
    "too dear": (stated(BEST, [3], 2**60, 0, 0, core=[1]), THREE, MAKESPAN, "outside the core add up to 2^58 or more"),
    "too many": (stated(BEST, range(1, 102), 0, 0), PAIR, MAKESPAN, "batches has 101 objects, expected at most 100"),
}


@pytest.mark.parametrize(("proof", "instance", "objective", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(proof: Document, instance: Instance, objective: Objective, reason: str) -> None:
    found = outcome(proof, instance, objective)
    assert isinstance(found, str)
    assert reason in found


def test_large_graphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph has seven states, copied for 0 to 3 batches."""
    monkeypatch.setattr(by_batches, "MOST_COPIES", 28)
    assert outcome(stated(BEST, [3], 0, 0)) == BEST
    monkeypatch.setattr(by_batches, "MOST_COPIES", 27)
    assert outcome(stated(BEST, [3], 0, 0)) == "the graph has more than 6 states, which are not searched"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(memory_only(), st.data())
def test_no_prices_prove_more_than_the_optimum(instance: Instance, data: st.DataObject) -> None:
    """And both forms prove the same: with prices of any sign and scale, later others, of some groups, or by input."""
    assume(instance.cost.base > 0)
    if data.draw(st.booleans()):
        least = min(request.input for request in instance.requests)
        instance = replace(instance, requests=tuple(replace(each, input=least) for each in instance.requests))
    best, problem = optimum(instance, MAKESPAN), problem_of(instance, Restrictions())
    items = contents.items_of(problem, MAKESPAN)
    bound, scale = best + data.draw(st.integers(-3, 9)), data.draw(st.sampled_from([1, 3]))
    assume(0 <= bound <= 40 * instance.cost.base)
    price = st.integers(-20, 60) if data.draw(st.booleans()) else st.just(0)
    groups = range(items[-1].group + 1)
    core = data.draw(st.lists(st.sampled_from(groups), min_size=1, unique=True))
    later = st.lists(st.integers(1, 5), max_size=2).map(sorted)
    alike, priced = data.draw(st.sampled_from(["input", "output"])), items
    if alike == "input":
        kinds = {(item.tokens - item.k + 1, item.k) for item in items if item.last and item.group in core}
        inside = [number for number, each in enumerate(instance.requests) if (each.input, each.output) in kinds]
        priced = contents.items_by_input(problem, inside) + [item for item in items if item.group not in core]

    def prices() -> Document:
        return {"item_prices": [data.draw(price) for _ in priced]}

    batches = [
        {"count": count, "later": [{"after": after} | prices() for after in data.draw(later)]} | prices()
        for count in range(1, bound // instance.cost.base + 2)
    ]
    pairs = data.draw(st.sampled_from([0, 1, 10, 10**6, 10**6]))
    proof = {"kind": "layered_search", "bound": bound, "scale": scale, "pairs": pairs, "batches": batches, "core": core}
    found = outcome({**proof, "alike": alike}, instance)
    if isinstance(found, str):
        assert "refills" in found
        return
    assert found <= best
    if pairs == 10**6 and len(core) == len(groups):
        assert found == min(bound, best)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_batches, "_compiled", lambda *_, **__: None)
        readable = outcome({**proof, "alike": alike}, instance)
    # They may take pairs in another order, so that few prove another bound.
    assert isinstance(readable, int)
    assert readable == found if pairs in {0, 10**6} else readable <= best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "best"), [("ladder-n08-I32-O8-k2", 185_303_750_462), ("ladder-n08-I4-O8-k8", 47_321_153_636)]
)
def test_certificates_of_optima(name: str, best: int) -> None:
    """Prices that are found for each number of batches let the checker prove the ledger's optima, and no more."""
    instance = load_instance(name)
    proof, more = (_of_all(instance, bound) for bound in (best, best + 1))
    assert more is None
    assert proof is not None
    assert outcome(proof, instance) == outcome({**proof, "bound": best + 1}, instance) == best


def _of_all(instance: Instance, bound: int) -> Document | None:
    return LayeredCertificates(instance, bound, 100_000_000).of_all(inf, seed=0)
