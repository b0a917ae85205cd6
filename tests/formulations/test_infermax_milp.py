"""The paper's programme against brute force, its solvers against each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from brute_force import MONOTONE, optimum
from checkout import searching_here
from outcomes import exact, exact_value
from patience import PATIENCE_S, with_time_enough

from optsched import Instance, Limits, Request, Restrictions, Rules, check_schedule, load_suite, replace, solve
from optsched.model.cost import CostModel
from optsched.model.errors import InputError
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Status
from optsched.solvers import milp
from optsched.solvers.formulation import (
    Outcome,
    ProgressEvent,
    SolverCrashError,
    Task,
    Termination,
    UnsupportedError,
)
from optsched_formulations.batching.infermax_milp import InfermaxMilp

COVERED = [objective for objective in MONOTONE if objective.percentile is None]
PAIR = Instance(
    "pair",
    Limits(5, 4, 3),
    Rules(chunked_prefill=False),
    CostModel(base=10, token=3, pieces=((0, 8),), decode_kv=2, decode_req=5, prefill_sq=1, prefill_kv=4),
    (Request(2, 2, slo_ttft_ps=10), Request(3, 2, arrival_ps=7, weight=2, slo_e2e_ps=90)),
)
"""Two requests that do not fit together, with arrivals, pieces and SLOs, the first of which nothing can meet."""


@pytest.mark.slow
@pytest.mark.parametrize("objective", COVERED)
def test_solvers_agree(objective: Objective) -> None:
    best = optimum(PAIR, objective)
    for solver in ("highs", "cbc"):
        assert exact_value(PAIR, InfermaxMilp(solver).solve(Task(PAIR, objective)), objective) == best
        better = Task(PAIR, objective, Restrictions(at_most=best - 1))
        assert InfermaxMilp(solver).solve(better).termination == Termination.INFEASIBLE


@pytest.mark.slow
def test_coefficients_of_a_profile_are_scaled_and_the_value_is_exact() -> None:
    """Two requests of the paper's grid on the A100 profile, to the picosecond, chunks of big prompts included."""
    whole = load_suite("infermax-fig15").instances[3]
    pair = replace(whole, requests=whole.requests[:2])
    chunked = replace(
        pair,
        limits=Limits(kv_tokens=120, batch_tokens=64, prefill_tokens=40),
        rules=Rules(eviction=False),
        requests=(Request(60, 1), Request(50, 2)),
    )
    for instance in (pair, chunked):
        best = solve(instance, method="infermax_milp", workers=1)
        assert best.status == Status.OPTIMAL
        assert best.value == best.bound
        if instance is pair:
            assert best.value == optimum(instance)
        else:
            # 110 prompt tokens at 40 a batch: three batches, the decode in a fourth or in the third.
            assert best.schedule is not None
            assert len(best.schedule.batches) == 3


def test_unknown_and_missing_solvers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"solver: got 'glop', expected one of highs, cbc, gurobi, cplex, scip \(installed: highs, cbc"
    ):
        InfermaxMilp("glop")
    missing = {**milp.SOLVERS, "scip": replace(milp.SOLVERS["scip"], available=lambda: False)}
    monkeypatch.setattr(milp, "SOLVERS", missing)
    with pytest.raises(InputError, match=r"solver: got 'scip', expected a solver that is installed: highs, cbc"):
        InfermaxMilp("scip")


def test_a_solver_that_crashes_costs_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "cbc"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    monkeypatch.setattr("pulp.PULP_CBC_CMD.pulp_cbc_path", str(program))
    # One prompt fits a batch, so that no policy is as good as a bound at once, and CBC is asked.
    hard = replace(PAIR, requests=(Request(2, 3), Request(3, 2), Request(1, 4)))
    result = solve(hard, "mean_e2e", method="infermax_milp", options={"solver": "cbc"}, time_limit=60, workers=1)
    assert result.message == "infermax_milp: CBC ended with code -11"
    assert result.status == Status.FEASIBLE
    assert result.bound is not None


def test_what_is_too_large_is_refused() -> None:
    many = replace(PAIR, requests=(Request(2, 2),) * 200, cost=CostModel(base=0, token=1))
    with pytest.raises(UnsupportedError, match="requests × batches, it builds up to 50000"):
        InfermaxMilp().solve(Task(many, Objective.MAKESPAN))


def test_percentiles_are_refused() -> None:
    for objective in set(MONOTONE) - set(COVERED):
        with pytest.raises(UnsupportedError, match="it minimises no percentile"):
            InfermaxMilp().solve(Task(PAIR, objective))


def test_a_deterministic_limit_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        InfermaxMilp().solve(Task(PAIR, Objective.MAKESPAN, deterministic_limit=1.0))


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_a_time_limit_keeps_schedule_and_bound(solver: str) -> None:
    """InferMax's own grid is out of reach: what is there after some seconds is legal and in order."""
    instance = load_suite("infermax-fig15").instances[4]
    seen: list[ProgressEvent] = []

    def limited(limit: float) -> Outcome | None:
        seen.clear()
        task = Task(instance, Objective.MAKESPAN, time_limit_s=limit, progress=seen.append)
        try:
            return InfermaxMilp(solver).solve(task)
        except SolverCrashError:  # CBC may, where its time ends before it has a solution
            return None

    outcome = with_time_enough(limited, lambda found: bool(found and found.schedule and found.bound), 2.0)
    assert outcome is not None
    assert outcome.termination == Termination.LIMIT
    assert outcome.schedule is not None
    assert check_schedule(instance, outcome.schedule)[0] == []
    assert outcome.bound is not None
    value = evaluate(instance, outcome.schedule)["objectives"]["makespan"]
    assert 0 < outcome.bound <= optimum_of_grid(instance) <= value
    if solver == "highs":
        assert seen
        assert seen[-1].incumbent is not None


def said_by(program: str) -> str:
    """Return what a Python program prints, in a process of its own; it must end well, without an error message."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        env=searching_here(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def optimum_of_grid(instance: Instance) -> int:
    """Return the makespan that another formulation proves."""
    result = solve(instance, method="token_cpsat")
    assert result.status == Status.OPTIMAL
    assert result.value is not None
    return result.value


def test_no_time_at_all_keeps_the_bound() -> None:
    outcome = InfermaxMilp().solve(Task(PAIR, Objective.MAKESPAN, time_limit_s=0.0, bound=17))
    assert outcome == Outcome(Termination.LIMIT, None, 17, Badge.SOLVER_CLAIMED)


@pytest.mark.slow
def test_nothing_is_printed_and_ortools_loads_after_pulp() -> None:
    """In a process of its own: what a library prints does not pass Python's standard output."""
    program = (
        "from test_infermax_milp import *\n"
        "for solver in ('highs', 'cbc'):\n"
        "    InfermaxMilp(solver).solve(Task(PAIR, Objective.MEAN_E2E))\n"
        "from ortools.sat.python import cp_model\n"
        "cp_model.CpSolver().solve(cp_model.CpModel())\n"
    )
    assert said_by(program) == ""


def test_highs_finds_the_optimum_that_its_version_1_14_missed() -> None:
    """The presolve of HiGHS 1.14 called 14 optimal here (HiGHS issue 3043); one after another takes 13 by hand.

    Token 1, decode 2 a step, M = 4, no hybrid batches, no eviction. B (I = 2, O = 2, at 0): 2, then 1 + 2, until 5. A
    (I = 2, O = 3, at 1): 2, 3 and 3, until 13. The machine never waits, and all work is counted.
    """
    rules = Rules(hybrid=False, chunked_prefill=False, eviction=False)
    cost = CostModel(base=0, token=1, decode_req=2)
    requests = (Request(2, 3, arrival_ps=1), Request(2, 2))
    instance = Instance("presolve", Limits(4, 2, 2), rules, cost, requests)
    assert exact(InfermaxMilp(), instance) == 13
