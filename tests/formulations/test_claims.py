"""What solvers' answers may claim: documents that were answered wrongly, and costs where floats lose picoseconds."""

from __future__ import annotations

import json
from itertools import product

import pulp
import pytest
from brute_force import MONOTONE, optimum
from checkout import DATA
from commands import optsched
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model
from outcomes import legal_value
from strategies import instances, memory_only

from optsched import Instance, Limits, Request, Restrictions, Rules, replace
from optsched.library import load_instance
from optsched.model.cost import CostModel
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.model.schedule import Assignment, timed
from optsched.solvers.claims import FloatReading, Tolerance, Values, admits, claim, least_sum, most_slack
from optsched.solvers.cpsat import minimize_cpsat
from optsched.solvers.formulation import Formulation, Outcome, SolverCrashError, Task, Termination, UnsupportedError
from optsched_formulations.batching.class_flow import ClassFlow, ClassFlowMip
from optsched_formulations.batching.core_alone import CoreAlone
from optsched_formulations.batching.free_pauses import FreePauses
from optsched_formulations.batching.infermax_milp import InfermaxMilp
from optsched_formulations.batching.last_arrivals import LastArrivals
from optsched_formulations.batching.pattern_cg import PatternCg
from optsched_formulations.batching.state_search import StateSearch
from optsched_formulations.batching.token_cpsat import TokenCpSat

DEFECTS = DATA / "defects"
BASES = st.sampled_from([10**9, 10**10, 10**12, 10**15])
ALL: tuple[Formulation, ...] = (
    InfermaxMilp(),
    InfermaxMilp("cbc"),
    ClassFlowMip(),
    ClassFlow(),
    TokenCpSat(),
    PatternCg(),
    StateSearch(),
    LastArrivals(),
    CoreAlone(),
    FreePauses(),
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
    """Served at a price beyond all others, a class is offered no pattern that costs more than is possible."""
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
    drawn = draw(instances(online=True, most_requests=2, most_tokens=2) | memory_only(most_requests=3))
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
        outcome = formulation.solve(Task(instance, objective, time_limit_s=1.0))
    except UnsupportedError:
        return None
    assert outcome.bound is None or outcome.bound <= best
    if outcome.schedule is not None:
        value = legal_value(instance, outcome.schedule, objective)
        assert value >= best
        assert outcome.termination == (Termination.OPTIMAL if value == outcome.bound else Termination.LIMIT)
    return outcome


# Solvers take too long for examples to be made smaller.
@settings(
    deadline=None,
    max_examples=6,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(heavy(), st.sampled_from([objective for objective in MONOTONE if objective.percentile is None]))
def test_no_claim_is_false_beside_a_large_base(instance: Instance, objective: Objective) -> None:
    best = optimum(instance, objective)
    for formulation in ALL:
        truthful(formulation, instance, objective, best)
    # The decision version, on both sides of the optimum.
    for formulation, asked in product(ALL, {best, max(best - 1, 0)}):
        try:
            outcome = formulation.solve(Task(instance, objective, Restrictions(at_most=asked), time_limit_s=1.0))
        except UnsupportedError:
            continue
        assert outcome.bound is None or outcome.bound <= best
        assert (outcome.termination == Termination.INFEASIBLE) <= (asked < best)
        if outcome.schedule is not None:
            assert best <= legal_value(instance, outcome.schedule, objective) <= asked


# What bounds become -----------------------------------------------------------------------------------------

PAIR = Instance("pair", Limits(9, 9, 9), Rules(chunked_prefill=False), CostModel(10, 1), (Request(2, 2), Request(3, 1)))
TASK = Task(PAIR, Objective.MAKESPAN, bound=20)
# Both prefills and a decode: 10 + 5, then 10 + 1.
TOGETHER = timed(PAIR, [Assignment([(0, 2), (1, 3)], []), Assignment([(0, 1)], [])])
# One after the other, each in batches of its own: 10 + 2, 10 + 1, 10 + 3.
APART = timed(PAIR, [Assignment([(0, 2)], []), Assignment([(0, 1)], []), Assignment([(1, 3)], [])])


@pytest.mark.parametrize(
    ("bound", "termination", "claimed"),
    [
        (None, Termination.LIMIT, 20),
        (19, Termination.LIMIT, 20),
        (25, Termination.LIMIT, 25),
        (26, Termination.OPTIMAL, 26),
        # Refuted by a schedule that is there.
        (27, Termination.LIMIT, 20),
    ],
)
def test_a_schedule_is_optimal_where_its_exact_value_is_the_bound(
    bound: int | None, termination: Termination, claimed: int
) -> None:
    expected = Outcome(termination, TOGETHER, claimed, Badge.SOLVER_CLAIMED)
    assert claim(TASK, [APART, None, TOGETHER], bound) == expected


def test_a_solver_that_was_asked_for_less_speaks_of_less() -> None:
    """Of schedules of at most 25 there are none; those of 26 and 36 say nothing against it."""
    asked = replace(TASK, restrictions=Restrictions(at_most=25))
    empty = Outcome(Termination.INFEASIBLE, None, 26, Badge.SOLVER_CLAIMED)
    assert claim(asked, [TOGETHER, APART], 10**9) == empty
    assert claim(asked, [TOGETHER], 25) == Outcome(Termination.LIMIT, None, 25, Badge.SOLVER_CLAIMED)
    asked = replace(TASK, restrictions=Restrictions(at_most=30))
    assert claim(asked, [TOGETHER, APART], 26) == Outcome(Termination.OPTIMAL, TOGETHER, 26, Badge.SOLVER_CLAIMED)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=5), st.integers(-5, 300))
def test_the_next_sum_is_the_next_of_all_sums(parts: list[tuple[int, int]], least: int) -> None:
    sums = {
        sum(count * coefficient for count, (coefficient, _) in zip(counts, parts, strict=True))
        for counts in product(*(range(most + 1) for _, most in parts))
    }
    assert least_sum(parts, least) == min((total for total in sums if total >= least), default=None)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 3)), max_size=4), st.integers(-99, 99), st.integers(1, 5))
def test_the_next_value_is_the_next_of_all_values(parts: list[tuple[int, int]], least: int, step: int) -> None:
    found = Values(7, step, tuple(parts)).next(least)
    values = {
        7 + step * sum(count * coefficient for count, (coefficient, _) in zip(counts, parts, strict=True))
        for counts in product(*(range(most + 1) for _, most in parts))
    }
    later = [value for value in values if value >= least]
    # Beyond all values the steps go on.
    assert found == (min(later) if later else least + (7 - least) % step)


def test_too_many_sums_are_not_listed() -> None:
    """Multiples of 6 in either case: numbers beyond 64 bits, and 2^40 sums."""
    assert least_sum([(6 * 3**60, 1), (12, 1)], 13) == 18
    assert least_sum([(6 * 3**k, 1) for k in range(30)] + [(6 * 5**k, 1) for k in range(1, 12)], 10**6 + 1) == 1000002


def test_the_margin_counts_what_tolerances_can_do() -> None:
    """Ranges 3 and 10, of costs 2 and 0; a row x + y ≤ 8 that leaves 8, x − y ≥ −4 that leaves 7, and an equality."""
    columns = [(0.0, 3.0), (0.0, 10.0)]
    terms = [(1.0, *columns[0]), (1.0, *columns[1])]
    slacks = [
        most_slack(terms, None, 8.0),
        most_slack([terms[0], (-1.0, 0.0, 10.0)], -4.0, None),
        most_slack(terms, 5.0, 5.0),
    ]
    assert slacks == [8.0, 7.0, 0.0]
    # 13 + 15 + 2 · 3 = 34.
    margin = Tolerance(2.0**-10, 2.0**-4).margin([(2.0, 0.0, 3.0)], columns, slacks)
    assert margin == 34 / 1024 + 1 / 16


def test_float_bounds_are_lowered_and_raised_to_the_next_value() -> None:
    """Objective values in units of 100 ps, margin 25 ps; values are 1000 and multiples of 70 more."""
    reading = FloatReading(1000, 100, 0.25, Values(1000, 70))
    assert reading.lowered(3.0) == 1275
    assert reading.proved(3.0) == 1280
    assert reading.proved(float("inf")) is None
    assert reading.shown(2.79) == 1280
    # At most 1300: 1280 and half a step, or what is asked and the margin, whichever is more.
    assert reading.limit(1300) == 3.25
    assert reading.limit(1285) == 3.15
    assert FloatReading(0, 1, 0.0, Values(0, 1)).proved(2.0**60 + 2.0**8) == 2**60 + 2**8


def test_rows_are_evaluated_exactly() -> None:
    large = 10**18
    rows = [([(large, 0), (1, 1)], None, large + 1)]
    assert admits(rows, [1, 1])
    assert not admits(rows, [1, 2])
    assert not admits([([(1, 0)], 2, None)], [1])


def test_cp_sat_is_asked_what_it_can_add_and_read_exactly() -> None:
    task = Task(PAIR, Objective.MAKESPAN)
    model = cp_model.CpModel()
    x, y = (model.new_int_var(0, 2**61, "") for _ in range(2))
    model.add(x + y >= 2**60 + 1)
    with pytest.raises(UnsupportedError, match=r"numbers of up to \d+, which CP-SAT cannot add"):
        minimize_cpsat(model, x, task, int)
    model = cp_model.CpModel()
    x = model.new_int_var(2**60 + 1, 2**61, "")
    assert minimize_cpsat(model, x, task, int).bound == 2**60 + 1
    for objective in (x + 1, 0.5 * x):
        with pytest.raises(RuntimeError, match="integer objectives without a constant"):
            minimize_cpsat(model, objective, task, int)


@pytest.mark.parametrize("power", range(54, 63))
def test_no_number_wraps(power: int) -> None:
    """Up to the largest coefficients: an answer is true, or refused."""
    cost = CostModel(base=2**power + 1, token=1, prefill_sq=2 ** (power - 6) + 1, decode_kv=2 ** (power - 3) - 1)
    dear = replace(PAIR, cost=cost, limits=Limits(3, 99, 99))
    best = optimum(dear)
    for formulation in ALL:
        if truthful(formulation, dear, Objective.MAKESPAN, best) is not None:
            assert power < 62


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_large_factors_of_what_nothing_better_does(solver: str) -> None:
    """Found by benchmarks/soundness.py: reading a cached token takes 10⁹ in a prefill, the last end is 323."""
    # Both prompts in a batch, 80 + 2 · 1, then both decodes, 80: each ends at 162. HiGHS called 483 optimal.
    instance = Instance(
        "odd",
        Limits(7, 64, 64),
        Rules(eviction=False),
        CostModel(base=80, token=0, pieces=((32, 12),), prefill_sq=1, prefill_kv=1_000_000_001),
        (Request(1, 2), Request(1, 2)),
    )
    assert optimum(instance, Objective.MEAN_E2E) == 324
    try:
        outcome = InfermaxMilp(solver).solve(Task(instance, Objective.MEAN_E2E, time_limit_s=60))
    except SolverCrashError:
        return  # CBC ends with a signal now and then
    assert outcome.bound is not None
    assert outcome.bound <= 324


def test_highs_that_is_stopped_before_it_has_values_has_no_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by benchmarks/soundness.py: PuLP reads values of rows that are not there."""

    def read(_solver: object, _lp: object) -> tuple[int, int]:
        raise IndexError("list index out of range")

    monkeypatch.setattr(pulp.HiGHS, "findSolutionValues", read)
    instance = Instance("two", Limits(8, 8, 8), Rules(), CostModel(base=10, token=1), (Request(1, 2), Request(2, 1)))
    outcome = InfermaxMilp("highs").solve(Task(instance, Objective.MAKESPAN, time_limit_s=10))
    assert outcome.bound is None or outcome.bound <= optimum(instance, Objective.MAKESPAN)
