"""The checker's own search over exact states: worked by hand, mutated, and against exhaustive search."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pair import BEST, COST, PAIR, STAY, WORK
from strategies import memory_only

from optsched.check import check_result
from optsched.check.certificates import resident_search
from optsched.check.certificates.shared import contents
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
from optsched_formulations.batching.search.request_space import request_space, shares_of
from optsched_formulations.batching.search.resident_graph import ResidentGraph, build_graph
from optsched_formulations.batching.search.resident_search import plain_certificate, priced_certificate
from optsched_formulations.batching.search.resident_walk import Prices, evaluate, price

UNRESTRICTED = Restrictions()
MAKESPAN, SUM, WEIGHTED = Objective.MAKESPAN, Objective.MEAN_E2E, Objective.WEIGHTED_E2E
Document = dict[str, Any]


def stated(bound: object, *prices: object, **others: object) -> Document:
    return {"kind": "resident_search", "bound": bound, "item_prices": list(prices), **others}


def no_profiles(name: str) -> CostModel:
    raise AssertionError(name)


def claim(
    bound: int,
    proof: Document,
    instance: Instance = PAIR,
    objective: Objective = MAKESPAN,
    restrictions: Restrictions = UNRESTRICTED,
) -> tuple[str, ...]:
    """Return what the checker says of a document that states a bound."""
    result = Result(
        instance, "test", objective, Status.BOUND_ONLY, Badge.CERTIFIED, bound=bound, certificate=proof,
        restrictions=restrictions,
    )  # fmt: skip
    return check_result(parse_results(dump(result_document(result)).encode(), no_profiles)[0]).violations


def proved(
    proof: Document,
    instance: Instance = PAIR,
    objective: Objective = MAKESPAN,
    restrictions: Restrictions = UNRESTRICTED,
) -> int | None:
    """Return the largest bound that the checker accepts, None if it refuses the certificate."""
    (violation,) = claim(10**18, proof, instance, objective, restrictions)
    found = re.fullmatch(r"certificate: it proves a bound of (\d+), less than the stated \d+", violation)
    if found is None:
        return None
    assert claim(int(found[1]), proof, instance, objective, restrictions) == ()
    return int(found[1])


def with_requests(*requests: Request) -> Instance:
    return replace(PAIR, requests=requests)


# Worked by hand --------------------------------------------------------------------------------------------

# Without eviction both requests take 100 + 35 and 100 + 17 alone; together 100 + 70, but then they never fit.
ALONE = 135 + 117
# While one of two works alone first, both are unfinished: 2·252, then 252. With an eviction two batches of 170 and 117
# go by with both unfinished, and then 155: 729.
SUM_ALONE, SUM_EVICTED = 3 * ALONE, 2 * (170 + 117) + 155
ROOMY = replace(PAIR, limits=Limits(6, 100, 100))
# Fills of 3, 2 and 1 take 55, 35 and 19, decodes of 4, 3 and 2 tokens 18, 17 and 16. The first two run at once, until
# 190. At 199 the last is there: the second decodes and the last is filled, while the first pauses, for it holds 3 of
# the 7 tokens and would need 4. Then these two decode.
MEETING = replace(
    PAIR, limits=Limits(7, 100, 100), requests=(Request(3, 2), Request(2, 2), Request(1, 2, arrival_ps=199))
)
MET = 199 + (100 + 17 + 19) + (100 + 18 + 16)

WORKED = {
    "eviction": (PAIR, MAKESPAN, BEST),
    "no eviction": (replace(PAIR, rules=STAY), MAKESPAN, 2 * ALONE),
    "sum": (PAIR, SUM, SUM_EVICTED),
    "sum without eviction": (replace(PAIR, rules=STAY), SUM, SUM_ALONE),
    "weights": (with_requests(Request(2, 2, weight=3), Request(2, 2)), WEIGHTED, 5 * ALONE),
    "no weight": (with_requests(Request(2, 2, weight=0), Request(2, 2)), WEIGHTED, ALONE),
    "no weight at all": (with_requests(Request(2, 2, weight=0)), WEIGHTED, 0),
    "largest latency": (PAIR, Objective.MAX_E2E, BEST),
    "same late arrival": (with_requests(*(Request(2, 2, arrival_ps=7),) * 2), SUM, SUM_EVICTED),
    # One after the other, or both by 130 + 170 + 117 + 155.
    "arrives meanwhile": (with_requests(Request(2, 2), Request(2, 2, arrival_ps=130)), MAKESPAN, 2 * ALONE),
    "arrives much later": (with_requests(Request(2, 2), Request(2, 2, arrival_ps=1000)), MAKESPAN, 1000 + ALONE),
    # Both together in two batches; alone they take three, or the first one waits in vain.
    "waits": (replace(ROOMY, requests=(Request(2, 2), Request(2, 2, arrival_ps=30))), MAKESPAN, 30 + WORK + 200),
    "pauses": (MEETING, MAKESPAN, MET),
    # A decode takes 111: each is refilled while the other is evicted.
    "cheap refills": (
        replace(PAIR, requests=(Request(2, 2), Request(2, 2, arrival_ps=130)), cost=replace(COST, decode_req=99)),
        MAKESPAN,
        2 * (135 + 155),
    ),
}


@pytest.mark.parametrize(("instance", "objective", "best"), WORKED.values(), ids=WORKED)
def test_worked_optimum_and_no_more(instance: Instance, objective: Objective, best: int) -> None:
    assert optimum(instance, objective) == best
    nothing = [0] * len(contents.items_of(problem_of(instance, UNRESTRICTED), objective))
    for bound in {0, best // 2, max(best - 1, 0), best}:
        assert proved(stated(bound, *nothing), instance, objective) == bound
    assert proved(stated(best + 1, *nothing), instance, objective) == best
    assert proved(stated(10**30, *nothing), instance, objective) == best


def test_requests_have_to_pause() -> None:
    problem = problem_of(MEETING, UNRESTRICTED)
    items = contents.items_of(problem, MAKESPAN)
    prices = contents.Prices([0] * len(items), frozenset(), 1)
    graph = contents.explore(contents.Rules(problem, MAKESPAN, items, prices))
    found = resident_search._Search(graph, items, prices, resident_search._arrivals(problem, MAKESPAN, 1)).least(10**9)
    assert found == 504 > MET


def test_an_eviction_that_is_refilled_at_once_may_prove_less() -> None:
    """With arrivals the graph lets a cheap refill stand for a decode; no schedule can do that alone."""
    requests = (Request(2, 2), Request(2, 2, arrival_ps=1000))
    instance = replace(PAIR, requests=requests, cost=replace(COST, decode_req=99))
    assert optimum(instance) == 1000 + 135 + 211
    assert proved(stated(10**9, 0, 0), instance) == 1000 + 135 + 155


def test_a_search_that_looks_at_too_many_proves_what_it_has_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(resident_search, "_FEW_STATES", 0)
    for most in range(60):
        monkeypatch.setattr(resident_search, "MOST_PAIRS_COMPILED", most)
        found.append(proved(stated(BEST, 1, 1, scale=2)) or 0)
    # Both requests are paid 1 / 2.
    assert found[0] == 1
    assert found == sorted(found)
    assert len(set(found)) > 3
    assert found[-1] == BEST


def test_large_graphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # After a batch: none, or one that has a token to come, or two of these; in a batch: none, 1, 2 or 1 and 1.
    monkeypatch.setattr(resident_search, "_FEW_STATES", 0)
    monkeypatch.setattr(resident_search, "MOST_STATES_COMPILED", 7)
    assert proved(stated(BEST, 0, 0)) == BEST
    monkeypatch.setattr(resident_search, "MOST_STATES_COMPILED", 6)
    assert claim(0, stated(0, 0, 0)) == ("certificate: the graph has more than 6 states, which are not searched",)


# Refusals --------------------------------------------------------------------------------------------------

APART = with_requests(Request(2, 2), Request(2, 2, arrival_ps=1))
REFUSED = {
    "chunked": (replace(PAIR, rules=Rules()), MAKESPAN, "needs whole prefills, but chunked prefill is allowed"),
    "objective": (PAIR, Objective.MEAN_TTFT, "bounds makespan and e2e latencies, the objective is mean_ttft"),
    "sum with arrivals": (APART, SUM, "needs requests that arrive at the same time for mean_e2e"),
    "largest with arrivals": (
        APART,
        Objective.MAX_E2E,
        "needs requests that arrive at the same time for max_e2e",
    ),
    "cheap refills": (
        replace(PAIR, cost=replace(COST, decode_req=44)),
        MAKESPAN,
        "needs refills that take no less time than decodes, but generating token 2 of an input of 2 tokens takes 1 ps "
        "less by a refill",
    ),
}


@pytest.mark.parametrize(("instance", "objective", "reason"), REFUSED.values(), ids=REFUSED)
def test_theorem_covers_not(instance: Instance, objective: Objective, reason: str) -> None:
    assert claim(0, stated(0, 0, 0), instance, objective) == (f"certificate: kind resident_search {reason}",)


@pytest.mark.parametrize("bound", [None, -1, 1.0, "1", True])
def test_bound_is_an_integer(bound: object) -> None:
    (violation,) = claim(0, stated(bound, 0, 0))
    assert violation == f"certificate: bound is {bound!r}, expected an integer ≥ 0"


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (stated(BEST, 0), "item_prices has 1 integers, expected 2, one for each item"),
        (stated(BEST, 0, 0.5), "item_prices is [0, 0.5], expected a list of integers"),
        (stated(BEST, 0, 0, tracked=[1]), "tracked is [1], expected different groups from 0 to 0"),
        (stated(BEST, 0, 0, scale=0), "scale is 0, expected an integer ≥ 1"),
        (
            stated(BEST, 0, 10**30),
            "item_prices: a cycle of cache contents costs less than 0, so they prove nothing",
        ),
    ],
)
def test_prices_are_read_strictly(proof: Document, reason: str) -> None:
    assert claim(BEST, proof) == (f"certificate: {reason}",)


COVERED = {
    "order": (Restrictions(order=(1, 0)), BEST),
    "evictions": (Restrictions(max_evictions=1), BEST),
    "no eviction": (Restrictions(("eviction",)), 2 * ALONE),
}


@pytest.mark.parametrize(("restrictions", "best"), COVERED.values(), ids=COVERED)
def test_restrictions_only_remove_schedules(restrictions: Restrictions, best: int) -> None:
    assert optimum(PAIR, restrictions=restrictions) == best
    assert proved(stated(10**9, 0, 0), restrictions=restrictions) == best


def test_a_class_without_schedules_is_certified() -> None:
    none = Result(
        PAIR, "test", MAKESPAN, Status.INFEASIBLE, Badge.CERTIFIED, bound=BEST, certificate=stated(BEST, 0, 0),
        restrictions=Restrictions(at_most=BEST - 1),
    )  # fmt: skip
    assert check_result(parse_results(dump(result_document(none)).encode(), no_profiles)[0]).ok


# What the producer proves ----------------------------------------------------------------------------------


def produced(instance: Instance, objective: Objective, tracked: frozenset[int]) -> tuple[ResidentGraph, Prices]:
    """Return the graph that the producer searches for the makespan, and its prices."""
    classes = Classes(instance, objective)
    graph = build_graph(classes, tracked, 100_000)
    prices = price(graph, 60.0, 1)
    assert prices is not None
    if not instance.offline:
        graph = build_graph(classes, tracked, 100_000, pauses=True)
        prices = evaluate(graph, prices.item, np.zeros(len(graph.nodes), dtype=np.int64))
        assert prices is not None
    return graph, prices


def plain(instance: Instance, objective: Objective, bound: int) -> Document:
    """Return the producer's certificate with the shares that it searches with."""
    classes = Classes(instance, objective)
    space = request_space(instance, classes, 60.0)
    return plain_certificate(classes, shares_of(space, classes), space.scale, bound)


@st.composite
def covered(draw: st.DrawFn, sums: bool = True) -> tuple[Instance, Objective]:
    """Draw a tiny instance that the theorem covers, with an objective."""
    instance = draw(memory_only())
    online = draw(st.booleans())
    arrivals = st.sampled_from([0, 0, 9, 40, 90]) if online else st.just(5)
    requests = [replace(r, weight=draw(st.integers(0, 2)), arrival_ps=draw(arrivals)) for r in instance.requests]
    instance = replace(instance, requests=tuple(requests))
    classes = Classes(instance)
    assume(min(classes.extra_ps(item) for item in range(len(classes.size))) >= 0)
    steady = [MAKESPAN] if online else [MAKESPAN, Objective.MAX_E2E]
    return instance, draw(st.sampled_from(steady if online or not sums else [*steady, SUM, WEIGHTED]))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(covered(), st.data())
def test_the_optimum_is_confirmed_and_no_more(case: tuple[Instance, Objective], data: st.DataObject) -> None:
    instance, objective = case
    best = optimum(instance, objective)
    groups = contents.items_of(problem_of(instance, UNRESTRICTED), objective)[-1].group + 1
    tracked = data.draw(st.sets(st.integers(0, groups - 1)))
    if objective in {MAKESPAN, Objective.MAX_E2E} and data.draw(st.booleans()):
        proof = priced_certificate(*produced(instance, objective, frozenset(tracked)), best)
    else:
        proof = plain(instance, objective, best) | {"tracked": sorted(tracked)}
    assert proved(proof, instance, objective) == best
    assert proved(proof | {"bound": best + 1}, instance, objective) == best

    count = len(proof["item_prices"])
    changes = data.draw(st.lists(st.integers(-4, 4), min_size=count, max_size=count))
    step = proof["scale"] // 2 + 1
    other = [price + step * change for price, change in zip(proof["item_prices"], changes, strict=True)]
    again = proved(proof | {"bound": best + 1, "item_prices": other}, instance, objective)
    assert again is None or again == best


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(covered(sums=False), st.data())
def test_producer_and_checker_agree_on_the_graph(case: tuple[Instance, Objective], data: st.DataObject) -> None:
    instance, objective = case
    problem = problem_of(instance, UNRESTRICTED)
    items = contents.items_of(problem, objective)
    tracked = frozenset(data.draw(st.sets(st.integers(0, items[-1].group))))
    graph, prices = produced(instance, objective, tracked)
    proof = priced_certificate(graph, prices, 10**12)
    read = contents.prices_of(proof, items)
    found = contents.explore(contents.Rules(problem, objective, items, read, pauses=not instance.offline))
    assert len(found.states) == len(graph.nodes)
    assert sum(map(len, found.moves)) == len(graph.tail)
    with pytest.MonkeyPatch.context() as patch:
        # What the prices alone prove; of large numbers the readable form tells.
        patch.setattr(resident_search, "MOST_PAIRS", 0)
        patch.setattr(resident_search, "MOST_PAIRS_COMPILED", 0)
        assert resident_search.resident_search_bound(problem, objective, proof) == prices.bound_ps


LADDER = {instance.name.removeprefix("ladder-"): instance for instance in ladder("a100-llama2-7b-linear").instances}
# Optimum of the makespan, of which the ledger has a schedule, and how many classes to track.
OPTIMA = {
    "n04-I4-O8-k2": (79387080260, 1),
    "n04-I32-O8-k2": (95565095162, 1),
    "n04-SILO+SISO-k2": (98351330427, 1),
    "n04-LILO+SISO-k2": (93207805869, 1),
    "n04-LISO+SISO-k2": (34588426635, 1),
    "n04-SILO+LISO-k2": (81472894529, 1),
    "n04-LILO+SILO-k2": (125900247314, 1),
    "n04-LILO+LISO-k2": (116899897496, 4),
    "n04-LILO+SISO-k2-poisson": (126987593937, 4),
    "n04-SILO+LISO-k2-poisson": (87221871275, 1),
    "n06-I4-O8-k2": (114475417524, 1),
    "n06-I32-O8-k2": (140434422812, 1),
    "n06-SILO+SISO-k2": (88254215943, 1),
    "n06-LISO+SISO-k2": (37617654370, 5),
    "n06-SILO+LISO-k2": (57929153848, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMA)
def test_ladder_optimum_is_certified(name: str) -> None:
    instance, (best, tracked) = LADDER[name], OPTIMA[name]
    proof = priced_certificate(*produced(instance, MAKESPAN, frozenset(range(tracked))), best)
    assert proved(proof, instance) == best
    assert proved(proof | {"bound": best + 1}, instance) == best


# Optima of the sum of e2e latencies
SUMS = {
    "n04-I4-O8-k2": 223584363589,
    "n04-LILO+SISO-k2": 167487036364,
    "n06-I4-O8-k2": 441976448912,
    "n06-SILO+SISO-k2": 238554800626,
    "n06-LISO+SISO-k2": 127128494307,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_ladder_sum_is_certified(name: str) -> None:
    instance, best = LADDER[name], SUMS[name]
    assert proved(plain(instance, SUM, best), instance, SUM) == best
    assert proved(plain(instance, SUM, best + 1), instance, SUM) == best
