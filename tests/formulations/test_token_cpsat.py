"""The token-indexed models: large coefficients, starts and limits, cases by hand; test_agreement.py has the rest."""

from __future__ import annotations

from typing import Any

import pytest
from brute_force import MONOTONE, optimum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import FREE, exact
from strategies import instances

from optsched import Instance, Limits, Request, Restrictions, Rules, replace
from optsched.model.cost import CostModel
from optsched.model.objectives import Objective
from optsched.solvers.formulation import Formulation, Outcome, Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.class_flow import ClassFlow
from optsched_formulations.batching.token_cpsat import TokenCpSat

SLOW = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
OBJECTIVES = st.sampled_from(MONOTONE)
TOKENS = TokenCpSat()
COEFFICIENTS = ("base", "token", "decode_kv", "decode_req", "prefill_sq", "prefill_kv", "prefill_req")


def answer(instance: Instance, objective: Objective, restricted: Restrictions = FREE, **given_start: Any) -> Outcome:
    return TOKENS.solve(Task(restricted.apply(instance), objective, restricted, **given_start))


WHOLE = instances(chunked=False, online=True)
CHUNKED = instances(chunked=True, online=True, most_requests=2, most_tokens=2)


@st.composite
def magnified(draw: st.DrawFn) -> Instance:
    """Draw an instance whose times are as large as in ps and have no common divisor."""
    instance = draw(WHOLE | CHUNKED)
    factor = st.integers(10**8, 10**9)
    cost = instance.cost
    coefficients = {name: draw(factor) * getattr(cost, name) for name in COEFFICIENTS}
    pieces = tuple((draw(factor) * base, draw(factor) * slope) for base, slope in cost.pieces)
    requests = tuple(replace(q, arrival_ps=draw(factor) * q.arrival_ps) for q in instance.requests)
    return replace(instance, cost=CostModel(**coefficients, pieces=pieces), requests=requests)


@pytest.mark.slow
@SLOW
@given(magnified(), OBJECTIVES)
def test_large_coefficients(instance: Instance, objective: Objective) -> None:
    assert exact(TOKENS, instance, objective) == optimum(instance, objective)


def test_presolve_does_not_lose_the_optimum() -> None:
    """With its presolve untamed, CP-SAT 9.15 calls 10665720835 optimal; the schedule that is better is legal."""
    instance = next(
        found for found in ladder("a100-llama2-7b-linear").instances if found.name == "ladder-n04-SILO+LISO-k2-poisson"
    )
    assert exact(TOKENS, instance, Objective.MAX_TTFT) == 8469561326


@pytest.mark.slow
@settings(SLOW, max_examples=40)
@given(st.data(), WHOLE | CHUNKED, OBJECTIVES)
def test_a_start_and_at_most(data: st.DataObject, instance: Instance, objective: Objective) -> None:
    """The optimum is attainable, nothing below it is; a start and a bound only help."""
    outcome = answer(instance, objective)
    best = outcome.bound
    assert best is not None
    bound = data.draw(st.integers(0, best))
    assert exact(TOKENS, instance, objective, incumbent=outcome.schedule, incumbent_value=best, bound=bound) == best
    assert exact(TOKENS, instance, objective, Restrictions(at_most=best)) == best
    if best:
        below = answer(instance, objective, Restrictions(at_most=best - 1))
        assert below.termination == Termination.INFEASIBLE
        assert below.schedule is None
        assert below.bound == best


def waiting(weight: int = 1, slo: int | None = None) -> Instance:
    """A long request arrives at 0, a short one at 1; they do not fit into one batch. A token takes 1 ps."""
    requests = (Request(10, 1, weight=weight, slo_e2e_ps=slo), Request(1, 1, arrival_ps=1, slo_ttft_ps=1))
    return Instance("waiting", Limits(11, 10, 10), Rules(chunked_prefill=False), CostModel(base=0, token=1), requests)


@pytest.mark.parametrize(
    ("objective", "instance", "best"),
    [
        # Long first: ends 10 and 11, latencies 10 and 10. Idle until 1, short first: ends 2 and 12, latencies 1 and 12.
        (Objective.MAKESPAN, waiting(), 11),
        (Objective.MEAN_E2E, waiting(), 13),
        (Objective.MEAN_TTFT, waiting(), 13),
        (Objective.MAX_E2E, waiting(), 10),
        (Objective.MAX_TTFT, waiting(), 10),
        (Objective.WEIGHTED_E2E, waiting(3), 37),
        (Objective.WEIGHTED_E2E, waiting(5), 60),
        # A median of 1 leaves the long request out, which a maximum cannot.
        (Objective.P50_E2E, waiting(), 1),
        (Objective.P50_TTFT, waiting(), 1),
        (Objective.P95_E2E, waiting(), 10),
        (Objective.SLO_MISSES, waiting(slo=12), 0),
        (Objective.SLO_MISSES, waiting(slo=11), 1),
    ],
)
def test_waiting_for_a_short_request(objective: Objective, instance: Instance, best: int) -> None:
    assert exact(TOKENS, instance, objective) == best


def test_weights_of_zero_cost_nothing() -> None:
    requests = tuple(replace(request, weight=0) for request in waiting().requests)
    assert exact(TOKENS, replace(waiting(), requests=requests), Objective.WEIGHTED_E2E) == 0


def test_evictions_are_counted() -> None:
    """With one eviction three batches without a decode, 3 × (1 + 1); with none 1 + 2 and a decode, 1 + 100."""
    cost = CostModel(base=1, token=0, decode_req=100, prefill_req=1)
    limits, requests = Limits(9, 9, 9), (Request(1, 2), Request(1, 1))
    for chunked in (False, True):
        instance = Instance("pause", limits, Rules(chunked_prefill=chunked), cost, requests)
        assert exact(TOKENS, instance, Objective.MAKESPAN, Restrictions(max_evictions=1)) == 6
        assert exact(TOKENS, instance, Objective.MAKESPAN, Restrictions(max_evictions=0)) == 104


def test_order_of_first_runs() -> None:
    """Of prompts of 1 and 4 tokens, one batch each: the short one first ends at 1 and 5, the long one at 4 and 5."""
    instance = Instance(
        "order",
        Limits(9, 4, 4),
        Rules(chunked_prefill=False),
        CostModel(base=0, token=1),
        (Request(1, 1), Request(4, 1)),
    )
    assert exact(TOKENS, instance, Objective.MEAN_TTFT) == 6
    assert exact(TOKENS, instance, Objective.MEAN_TTFT, Restrictions(order=(1, 0))) == 9
    assert exact(TOKENS, instance, Objective.MEAN_TTFT, Restrictions(("reordering",))) == 6
    # With chunks the long prompt may run a token next to the short one and still has its first run no later.
    chunked = replace(instance, rules=Rules())
    assert exact(TOKENS, chunked, Objective.MEAN_TTFT, Restrictions(order=(1, 0))) == 7


def test_a_prompt_in_chunks() -> None:
    """P = 3, prompts of 4 and 1 tokens, base 1, token 1.

    Fewest batches: 3 and 2 tokens, 4 + 3 = 7. For the mean: the short prompt, perhaps with a token of the long one,
    then the rest of it: 2 and 8, or 3 and 7.
    """
    instance = Instance("chunks", Limits(9, 3, 3), Rules(), CostModel(base=1, token=1), (Request(4, 1), Request(1, 1)))
    assert exact(TOKENS, instance, Objective.MAKESPAN) == 7
    assert exact(TOKENS, instance, Objective.MEAN_TTFT) == 10


@pytest.mark.parametrize("chunked", [False, True])
def test_what_is_too_large_is_refused(chunked: bool) -> None:
    rules = Rules(chunked_prefill=chunked)
    for cost, request in (
        (CostModel(base=2**61, token=1), Request(1, 2)),
        (CostModel(base=0, token=1, pieces=((1, 0),)), Request(1, 2000)),
    ):
        instance = Instance("large", Limits(9999, 9999, 9999), rules, cost, (request, replace(request, arrival_ps=1)))
        with pytest.raises(UnsupportedError, match=r"it adds numbers up to|it builds up to|beyond 64 bits"):
            answer(instance, Objective.MEAN_TTFT)


@pytest.mark.parametrize("limit", [0.0, 0.002, 0.005, 0.01])
@pytest.mark.parametrize("formulation", [TokenCpSat(), ClassFlow()], ids=["token_cpsat", "class_flow"])
def test_a_search_that_has_proved_nothing_has_no_bound(formulation: Formulation, limit: float) -> None:
    """CP-SAT's response says 0 then; beside what decodes take, 4,000, cheap refills make objectives negative."""
    # Found by benchmarks/soundness.py: 4 of 6 tokens are decodes of 1,000, or refills of some 10 ps a token.
    instance = Instance(
        "odd",
        Limits(8, 6, 6, 1, 2),
        Rules(hybrid=False, chunked_prefill=False),
        CostModel(base=40, token=1, pieces=((10, 0), (10, 2)), decode_req=1000, prefill_kv=1),
        (Request(1, 4), Request(4, 2)),
    )
    reached = optimum(instance, Objective.MAKESPAN)
    assert reached < 4_000
    outcome = formulation.solve(Task(instance, Objective.MAKESPAN, time_limit_s=limit))
    assert outcome.bound is None or outcome.bound <= reached
