"""The checker's proof from prices of resident sets: worked by hand, mutated, and against exhaustive search."""

from __future__ import annotations

import itertools
import re
from itertools import product
from math import ceil
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from pair import BEST, COST, PAIR, STAY, WORK

from optsched.check import check_result
from optsched.check.certificates import resident_walk
from optsched.check.certificates.shared import contents, least
from optsched.check.problem import problem_of
from optsched.model.cost import CostModel
from optsched.model.documents import dump, parse_results, result_document
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.traces.ladder import ladder
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.resident_graph import build_graph
from optsched_formulations.batching.search.resident_walk import certificate, price

UNRESTRICTED = Restrictions()

Document = dict[str, Any]


def priced(*prices: object, **others: object) -> Document:
    return {"kind": "resident_walk", "item_prices": list(prices), **others}


TIGHT = priced(169, 138)


def no_profiles(name: str) -> CostModel:
    raise AssertionError(name)


def claim(
    stated: int,
    certificate: Document,
    instance: Instance = PAIR,
    restrictions: Restrictions = UNRESTRICTED,
    objective: Objective = Objective.MAKESPAN,
) -> tuple[str, ...]:
    """Return what the checker says of a document that states a bound."""
    result = Result(
        instance, "test", objective, Status.BOUND_ONLY, Badge.CERTIFIED, bound=stated, certificate=certificate,
        restrictions=restrictions,
    )  # fmt: skip
    return check_result(parse_results(dump(result_document(result)).encode(), no_profiles)[0]).violations


def proved(certificate: Document, instance: Instance = PAIR, restrictions: Restrictions = UNRESTRICTED) -> int | None:
    """Return the largest bound that the checker accepts, None if it refuses the certificate."""
    (violation,) = claim(10**18, certificate, instance, restrictions)
    found = re.fullmatch(r"certificate: it proves a bound of (\d+), less than the stated \d+", violation)
    if found is None:
        return None
    bound = int(found[1])
    assert claim(bound, certificate, instance, restrictions) == ()
    assert claim(bound + 1, certificate, instance, restrictions) != ()
    return bound


def with_limits(**changes: Any) -> Instance:
    return replace(PAIR, limits=replace(PAIR.limits, **changes))


def with_cost(**changes: Any) -> Instance:
    return replace(PAIR, cost=replace(COST, **changes))


def with_requests(*requests: Request) -> Instance:
    return replace(PAIR, requests=requests)


# Bounds ----------------------------------------------------------------------------------------------------


def test_best_schedule_of_the_pair() -> None:
    assert optimum(PAIR) == BEST


WORKED = {
    # Both requests cost 2·169 = 338. Starting both and evicting one costs 200 - 338 + 138, the refill 138 - 138.
    "tight": (PAIR, TIGHT, BEST),
    "nothing tracked": (PAIR, priced(169, 138, tracked=[]), BEST),
    # A walk that starts two requests and ends them takes 338, one that evicts both 100 + 2·138.
    "tracked": (PAIR, priced(0, 138, tracked=[0]), BEST),
    "price of a tracked first fill": (PAIR, priced(10**20, 138, tracked=[0]), BEST),
    # 2·150 for the requests and 19 to leave the empty cache and come back; 338 is the next sum.
    "lifted to a refill": (PAIR, priced(150, 119), BEST),
    # 10 of 4 blocks take three batches.
    "lifted to the fewest batches": (PAIR, priced(1, 100), WORK + 300),
    # Both requests cost 2·168.5.
    "scale": (PAIR, priced(337, 276, scale=2), BEST),
    # Without eviction each request needs two batches of its own.
    "no eviction": (replace(PAIR, rules=STAY), priced(200, 0), WORK + 400),
    "price of a forbidden refill": (replace(PAIR, rules=STAY), priced(200, -(10**20)), WORK + 400),
    # 2·101, and 99 to come back.
    "lifted to a multiple": (replace(PAIR, rules=STAY), priced(101, 0), WORK + 400),
    "on a multiple": (replace(PAIR, rules=STAY), priced(100, 0), WORK + 300),
    # A decode takes 38 more than before, as long as a refill.
    "refills cost nothing": (with_cost(decode_req=43), priced(150, 100), WORK + 2 * 38 + 300),
    # In blocks of 2 the items hold 1 and 2 of the 2 blocks.
    "blocks": (with_limits(kv_tokens=5, kv_block=2), TIGHT, BEST),
    "free batches": (with_cost(base=0), priced(0, 38), WORK),
    "free batches are not lifted": (with_cost(base=0), priced(-1, 38), WORK - 2),
    "rounded up": (with_cost(base=0), priced(-4, 114, scale=3), WORK - 2),
    # Items of (2, 1), (2, 2) and (3, 1), of which the first one shares a batch.
    "groups in order": (
        replace(with_requests(Request(3, 1), Request(2, 2), Request(2, 1)), rules=STAY),
        priced(0, 200, 0, 100),
        35 + 52 + 55 + 300,
    ),
}


@pytest.mark.parametrize(("instance", "certificate", "bound"), WORKED.values(), ids=WORKED)
def test_worked_bound_and_no_more(instance: Instance, certificate: Document, bound: int) -> None:
    assert proved(certificate, instance) == bound <= optimum(instance)


@st.composite
def lifts(draw: st.DrawFn) -> tuple[Instance, dict[int, int], int]:
    """Draw an instance, what walks take at least that refill each of its items, and a bound."""
    requests = draw(st.lists(st.sampled_from([Request(2, 2), Request(2, 3), Request(1, 2)]), min_size=1, max_size=4))
    cost = replace(COST, base=draw(st.integers(1, 60)), prefill_sq=draw(st.integers(1, 2)))
    instance = replace(with_requests(*requests), cost=cost, limits=Limits(draw(st.integers(4, 8)), 100, 100))
    refills = [n for n, item in enumerate(walk_items(instance)) if item.k > 1]
    values = st.integers(0, 400)
    return instance, {n: draw(values) for n in refills if draw(st.booleans())}, draw(values)


def walk_items(instance: Instance) -> list[contents.Item]:
    return contents.items_of(problem_of(instance, UNRESTRICTED), Objective.MAKESPAN)


@settings(max_examples=200, deadline=None)
@given(lifts())
def test_lift_finds_the_least_value(case: tuple[Instance, dict[int, int], int]) -> None:
    instance, refilling, time = case
    items = walk_items(instance)
    held = sum(
        request.output * request.input + request.output * (request.output - 1) // 2 for request in instance.requests
    )
    fewest = max(ceil(held / instance.limits.kv_tokens), *(request.output for request in instance.requests))

    def attained(value: int) -> bool:
        usable = [items[n] for n, least in refilling.items() if least <= value]
        counts = product(*(range(item.requests + 1) for item in usable))
        sums = {sum(n * item.extra_ps for n, item in zip(count, usable, strict=True)) for count in counts}
        base = instance.cost.base
        return any((value - total) % base == 0 and (value - total) // base >= fewest for total in sums)

    expected = next(value for value in itertools.count(time) if attained(value))
    assert resident_walk._lifted(problem_of(instance, UNRESTRICTED), items, refilling, time) == expected


def test_bound_is_not_lifted_over_too_many_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident_walk, "MOST_SUMS", 0)
    assert proved(priced(150, 119)) == WORK + 319
    # Walks that refill cost 138 - 119 = 19, others 200 - 302 + 119 = 17 or more. So 302 + 17 is proved, and since
    # without a refill 400 is next, 302 + 19.
    assert proved(priced(151, 119)) == WORK + 321
    # 301 + 39 / 2 with a refill, 301 + 35 / 2 without
    assert proved(priced(301, 237, scale=2)) == WORK + 321


@pytest.mark.parametrize("rounds", [1, 2, 100])
def test_looking_for_cycles_early_or_late_changes_nothing(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    monkeypatch.setattr(least, "_ROUNDS", rounds)
    assert proved(TIGHT) == BEST
    assert proved(priced(170, 138)) is None


def test_large_graphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # After a batch: none, or one that has a token to come, or two of these; in a batch: none, 1, 2 or 1 and 1.
    monkeypatch.setattr(contents, "MOST_STATES", 7)
    assert proved(TIGHT) == BEST
    monkeypatch.setattr(contents, "MOST_STATES", 6)
    assert claim(0, TIGHT) == ("certificate: the graph has more than 6 states, which are not searched",)


# Refusals --------------------------------------------------------------------------------------------------

REFUSED_PROBLEMS = {
    "arrivals": (
        with_requests(Request(2, 2), Request(2, 2, arrival_ps=1)),
        UNRESTRICTED,
        "kind resident_walk needs requests that arrive at the same time",
    ),
    "chunked": (
        replace(PAIR, rules=Rules()),
        UNRESTRICTED,
        "kind resident_walk needs whole prefills, but chunked prefill is allowed",
    ),
    "no hybrid by rules": (
        replace(PAIR, rules=Rules(hybrid=False, chunked_prefill=False)),
        UNRESTRICTED,
        "kind resident_walk needs hybrid batches, but they are forbidden",
    ),
    "no hybrid by restrictions": (
        PAIR,
        Restrictions(("hybrid",)),
        "kind resident_walk needs hybrid batches, but they are forbidden",
    ),
    "pieces": (
        with_cost(pieces=((0, 1),)),
        UNRESTRICTED,
        "kind resident_walk needs a batch time of 1 affine piece, it has 2",
    ),
    "tokens": (
        with_limits(batch_tokens=5, prefill_tokens=5),
        UNRESTRICTED,
        "kind resident_walk needs budgets of at least the 6 tokens of all requests, batch_tokens is 5",
    ),
    "prefill tokens": (
        with_limits(prefill_tokens=5),
        UNRESTRICTED,
        "kind resident_walk needs budgets of at least the 6 tokens of all requests, prefill_tokens is 5",
    ),
    "runs by limits": (
        with_limits(batch_requests=1),
        UNRESTRICTED,
        "kind resident_walk needs batches of all 2 requests, at most 1 may run",
    ),
    "runs by restrictions": (
        with_limits(batch_requests=2),
        Restrictions(max_batch=1),
        "kind resident_walk needs batches of all 2 requests, at most 1 may run",
    ),
    "memory": (
        with_limits(kv_tokens=2),
        UNRESTRICTED,
        "kind resident_walk needs a request to fit the KV cache alone, some request does not",
    ),
    "cheap refills": (
        with_cost(decode_req=44),  # 10 + 2 + 44 = 55 + 1
        UNRESTRICTED,
        "kind resident_walk needs refills that take no less time than decodes, but generating token 2 of an input of "
        "2 tokens takes 1 ps less by a refill",
    ),
}


@pytest.mark.parametrize(("instance", "restrictions", "reason"), REFUSED_PROBLEMS.values(), ids=REFUSED_PROBLEMS)
def test_theorem_covers_not(instance: Instance, restrictions: Restrictions, reason: str) -> None:
    assert claim(0, TIGHT, instance, restrictions) == (f"certificate: {reason}",)


def test_theorem_covers_no_other_objective() -> None:
    assert claim(0, TIGHT, objective=Objective.MAX_E2E) == (
        "certificate: kind resident_walk bounds the makespan, the objective is max_e2e",
    )


COVERED = {
    "same late arrival": (with_requests(*(Request(2, 2, arrival_ps=7),) * 2), UNRESTRICTED, BEST),
    "whole prefills by restriction": (replace(PAIR, rules=Rules()), Restrictions(("chunked",)), BEST),
    "tokens just suffice": (with_limits(batch_tokens=6, prefill_tokens=6), UNRESTRICTED, BEST),
    "runs just suffice": (with_limits(batch_requests=2), Restrictions(max_batch=2), BEST),
    "order": (PAIR, Restrictions(order=(1, 0)), BEST),
    "first come, first served": (PAIR, Restrictions(("reordering",)), BEST),
    "evictions": (PAIR, Restrictions(max_evictions=1), BEST),
    "at most": (PAIR, Restrictions(at_most=10**19), BEST),
    # Only multiples of 100 are left.
    "no eviction by restriction": (PAIR, Restrictions(("eviction",)), WORK + 400),
    "no evictions by restriction": (PAIR, Restrictions(max_evictions=0), WORK + 400),
    "refills do not matter": (with_cost(decode_req=44), Restrictions(("eviction",)), WORK + 2 * 39 + 400),
}


@pytest.mark.parametrize(("instance", "restrictions", "bound"), COVERED.values(), ids=COVERED)
def test_theorem_covers(instance: Instance, restrictions: Restrictions, bound: int) -> None:
    best = optimum(instance, restrictions=restrictions)
    assert best is not None
    assert proved(TIGHT, instance, restrictions) == bound <= best


# Mutations -------------------------------------------------------------------------------------------------

NOTHING = "certificate: item_prices: a cycle of cache contents costs less than 0, so they prove nothing"


@pytest.mark.parametrize(
    "prices", [(170, 138), (169, 139), (169, 137), (10**300, 138), (169, 10**300), (169, -(10**300))]
)
def test_prices_that_a_cycle_beats_prove_nothing(prices: tuple[int, int]) -> None:
    assert claim(0, priced(*prices)) == (NOTHING,)


@pytest.mark.parametrize(
    ("prices", "bound"),
    [((168, 138), BEST), ((151, 138), BEST), ((150, 138), WORK + 300), ((-(10**300), 138), WORK + 300)],
)
def test_lower_prices_prove_less(prices: tuple[int, int], bound: int) -> None:
    assert proved(priced(*prices)) == bound


LISTS = {
    "short": ([169], "has 1 integers, expected 2, one for each item"),
    "long": ([169, 138, 0], "has 3 integers, expected 2, one for each item"),
    "float": ([169.0, 138], "is [169.0, 138], expected a list of integers"),
    "string": (["169", 138], "is ['169', 138], expected a list of integers"),
    "boolean": ([True, 138], "is [True, 138], expected a list of integers"),
    "null": ([169, None], "is [169, None], expected a list of integers"),
    "no list": (169, "is 169, expected a list of integers"),
    "object": ({"0": 169}, "is {'0': 169}, expected a list of integers"),
}


@pytest.mark.parametrize(("stated", "reason"), LISTS.values(), ids=LISTS)
def test_price_lists_are_read_strictly(stated: object, reason: str) -> None:
    assert claim(0, TIGHT | {"item_prices": stated}) == (f"certificate: item_prices {reason}",)


def test_missing_prices() -> None:
    assert claim(0, {"kind": "resident_walk"}) == ("certificate: item_prices is None, expected a list of integers",)


@pytest.mark.parametrize("stated", [[1], [-1], [0, 0], [10**30]])
def test_tracked_groups_exist_once(stated: list[int]) -> None:
    (violation,) = claim(0, priced(169, 138, tracked=stated))
    assert violation.startswith("certificate: tracked is ")
    assert violation.endswith(", expected different groups from 0 to 0")


@pytest.mark.parametrize("stated", [0, -1, 1.0, "1", True, None])
def test_scale_is_positive(stated: object) -> None:
    (violation,) = claim(0, priced(169, 138, scale=stated))
    assert violation == f"certificate: scale is {stated!r}, expected an integer ≥ 1"


@pytest.mark.parametrize("stated", [None, 0, [False], ["0"], [0.0]])
def test_tracked_groups_are_integers(stated: object) -> None:
    (violation,) = claim(0, priced(169, 138, tracked=stated))
    assert violation == f"certificate: tracked is {stated!r}, expected a list of integers"


CHANGED = {
    "memory": with_limits(kv_tokens=5),
    "less input": with_requests(Request(1, 2), Request(1, 2)),
    "less output": with_requests(Request(2, 1), Request(2, 1)),
    "more output": with_requests(Request(2, 3), Request(2, 3)),
    "one longer": with_requests(Request(2, 2), Request(3, 2)),
    "base": with_cost(base=99),
    "square": with_cost(prefill_sq=1),
    "fill": with_cost(prefill_req=6),
    "decode": with_cost(decode_req=6),
}


@pytest.mark.parametrize("instance", CHANGED.values(), ids=CHANGED)
def test_certificate_of_another_instance_is_refused(instance: Instance) -> None:
    assert proved(TIGHT, instance) is None


STILL_VALID = {
    "one more": (with_requests(*(Request(2, 2),) * 3), WORK + WORK // 2 + 400 + 3 * 38),
    "one less": (with_requests(Request(2, 2)), WORK // 2 + 200),
    "slower batches": (with_cost(base=101), WORK + 3 * 101 + 38),
    # 25 + 7 + 9·3 − (10 + 2 + 5) is 39
    "slower fills": (with_cost(prefill_req=8), WORK + 2 + 339),
}


@pytest.mark.parametrize(("instance", "bound"), STILL_VALID.values(), ids=STILL_VALID)
def test_certificate_of_another_instance_still_bounds(instance: Instance, bound: int) -> None:
    assert proved(TIGHT, instance) == bound <= optimum(instance)


# What the producer proves ----------------------------------------------------------------------------------


def produced(instance: Instance, tracked: frozenset[int] = frozenset()) -> tuple[Document, int]:
    """Return the producer's certificate and its own bound."""
    graph = build_graph(Classes(instance), tracked, 10_000)
    prices = price(graph, 60.0, 1)
    assert prices is not None
    return certificate(graph, prices), prices.bound_ps


LADDER = {instance.name: instance for instance in ladder("a100-llama2-7b-linear").instances}


@pytest.mark.parametrize("tracked", [frozenset(), frozenset({0}), frozenset({1, 2})], ids=str)
def test_ladder_optimum_is_certified(tracked: frozenset[int]) -> None:
    instance = LADDER["ladder-n04-LISO+SISO-k2"]
    stated, bound = produced(instance, tracked)
    best = optimum(instance)
    assert best - 1000 < bound <= best  # rounded prices leave some ps
    assert proved(stated, instance) == best
    for number in range(len(stated["item_prices"])):
        prices = list(stated["item_prices"])
        prices[number] += 10**9
        again = proved(stated | {"item_prices": prices}, instance)
        assert again is None or again <= best


@st.composite
def covered(draw: st.DrawFn) -> Instance:
    """Draw a tiny instance that the theorem covers."""
    shape = st.builds(Request, input=st.integers(1, 4), output=st.integers(1, 3))
    shapes = draw(st.lists(shape, min_size=1, max_size=2))
    requests = tuple(draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=3)))
    small = st.integers(0, 9)
    decode_kv, decode_req = draw(st.integers(0, 3)), draw(small)
    cost = CostModel(
        base=draw(st.integers(0, 60)),
        token=draw(small),
        decode_kv=decode_kv,
        decode_req=decode_req,
        prefill_sq=draw(st.integers(1, 3)),
        prefill_req=decode_req + draw(small),
    )
    block = draw(st.integers(1, 2))
    peak = max(-(-(r.input + r.output - 1) // block) * block for r in requests)
    limits = Limits(draw(st.integers(peak, peak + 6)), 100, 100, None, block)
    return Instance("random", limits, Rules(chunked_prefill=False, eviction=draw(st.booleans())), cost, requests)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(covered(), st.data())
def test_no_certificate_proves_more_than_the_optimum(instance: Instance, data: st.DataObject) -> None:
    best = optimum(instance)
    groups = len({(request.input, request.output) for request in instance.requests})
    tracked = frozenset(data.draw(st.sets(st.integers(0, groups - 1))))
    stated, bound = produced(instance, tracked)
    found = proved(stated, instance)
    assert found is not None
    assert bound <= found <= best
    count = len(stated["item_prices"])
    changes = data.draw(st.lists(st.integers(-4, 4), min_size=count, max_size=count))
    step = stated["scale"] // 2 + 1
    prices = [old + change * step for old, change in zip(stated["item_prices"], changes, strict=True)]
    again = proved(stated | {"item_prices": prices}, instance)
    assert again is None or again <= best
