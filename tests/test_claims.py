"""What solvers' answers may claim: documents that were answered wrongly, and costs where floats lose picoseconds."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import pytest
from brute_force import optimum
from commands import optsched
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import legal_value
from strategies import instances

from optsched import Instance, Limits, Request, Restrictions, Rules, replace
from optsched.library import load_instance
from optsched.model.cost import CostModel
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.model.schedule import Assignment, timed
from optsched.solvers.claims import FloatReading, Tolerance, Values, admits, claim, least_sum, most_slack
from optsched.solvers.formulation import Formulation, Outcome, Task, Termination, UnsupportedError
from optsched_formulations.batching.class_flow import ClassFlow, ClassFlowMip
from optsched_formulations.batching.infermax_milp import InfermaxMilp
from optsched_formulations.batching.pattern_cg import PatternCg
from optsched_formulations.batching.state_search import StateSearch
from optsched_formulations.batching.token_cpsat import TokenCpSat

DEFECTS = Path(__file__).parent / "data" / "defects"
BASES = st.sampled_from([10**9, 10**10, 10**12, 10**15])
ALL: tuple[Formulation, ...] = (
    InfermaxMilp(),
    InfermaxMilp("cbc"),
    ClassFlowMip(),
    ClassFlow(),
    TokenCpSat(),
    PatternCg(),
    StateSearch(),
)


# Documents --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "method", "objective"),
    [
        *(
            (f"false_infermax_milp_{number}", "infermax_milp", objective)
            for number, objective in product((11, 23, 42), (Objective.MAKESPAN, Objective.MAX_E2E))
        ),
        ("false_class_flow_mip_25", "class_flow_mip", Objective.MAKESPAN),
    ],
)
def test_no_document_is_called_optimal_that_is_not(
    name: str, method: str, objective: Objective, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of them have optima 3 ps and less below what the solvers' tolerance distinguishes."""
    file = DEFECTS / f"{name}.json"
    best = optimum(load_instance(file), objective)
    options = ["--method", method, "--objective", objective.value, "--workers", "1", "--json"]
    found = json.loads(optsched(capsys, "solve", str(file), *options).out)
    assert found["bound"] <= best <= found["value"]
    assert found["status"] == ("optimal" if found["bound"] == found["value"] else "feasible")


def test_patterns_that_no_request_can_live_by_are_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    """Served at a price beyond all others, a class is offered no life that costs more than is possible."""
    file = DEFECTS / "pattern_crash.json"
    asked = 10714285714276
    options = ["--method", "pattern_cg", "--at-most", str(asked), "--workers", "1", "--json"]
    found = json.loads(optsched(capsys, "solve", str(file), *options).out)
    best = optimum(load_instance(file))
    assert found["bound"] <= best
    assert (found["status"] == "infeasible") <= (best > asked)


# Large numbers ----------------------------------------------------------------------------------------------


@st.composite
def heavy(draw: st.DrawFn) -> Instance:
    """Draw an instance with a base beside which a picosecond is little, and with costs of any size."""
    drawn = draw(instances(online=True, most_requests=2, most_tokens=2) | instances(chunked=False))
    base = draw(BASES)
    odd = st.integers(0, 9) | st.sampled_from([base // 7, base // 3 + 1])
    cost = replace(
        drawn.cost,
        base=base + draw(st.sampled_from([-11, -1, 0, 7])),
        pieces=tuple((base - draw(odd), draw(odd)) for _ in drawn.cost.pieces),
        token=draw(odd),
        decode_kv=draw(odd),
        decode_req=draw(odd),
        prefill_sq=draw(odd),
        prefill_kv=draw(odd),
        prefill_req=draw(odd),
    )
    stretched = draw(st.sampled_from([1, base // 20]))
    requests = tuple(
        replace(
            request,
            arrival_ps=request.arrival_ps * stretched,
            slo_ttft_ps=None if request.slo_ttft_ps is None else request.slo_ttft_ps * stretched,
            slo_e2e_ps=None if request.slo_e2e_ps is None else request.slo_e2e_ps * stretched,
        )
        for request in drawn.requests
    )
    return replace(drawn, cost=cost, requests=requests)


def truthful(formulation: Formulation, instance: Instance, objective: Objective, best: int) -> Outcome | None:
    """Return an outcome, None if the task is not covered; no claim of it may be false."""
    try:
        outcome = formulation.solve(Task(instance, objective, time_limit_s=10.0))
    except UnsupportedError:
        return None
    assert outcome.bound is None or outcome.bound <= best
    if outcome.schedule is not None:
        value = legal_value(instance, outcome.schedule, objective)
        assert value >= best
        assert outcome.termination == (Termination.OPTIMAL if value == outcome.bound else Termination.LIMIT)
    return outcome


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(heavy(), st.sampled_from([objective for objective in Objective if objective.percentile is None]))
def test_no_claim_is_false_beside_a_large_base(instance: Instance, objective: Objective) -> None:
    best = optimum(instance, objective)
    for formulation in ALL:
        truthful(formulation, instance, objective, best)
    # The decision version, on both sides of the optimum.
    for formulation, asked in product(ALL, {best, max(best - 1, 0)}):
        try:
            outcome = formulation.solve(Task(instance, objective, Restrictions(at_most=asked), time_limit_s=10.0))
        except UnsupportedError:
            continue
        assert outcome.bound is None or outcome.bound <= best
        assert (outcome.termination == Termination.INFEASIBLE) <= (asked < best)
        if outcome.schedule is not None:
            assert best <= legal_value(instance, outcome.schedule, objective) <= asked
