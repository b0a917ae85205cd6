"""Flows and pairs: a schedule to come close to, where none is given."""

from __future__ import annotations

import pytest

from optsched import Objective, load_instance, solve
from optsched.solvers.formulation import Task, Termination
from optsched_formulations.batching.pair_flow import PairFlow
from optsched_formulations.batching.pairs import solution


def test_where_no_schedule_is_close_the_planner_looks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """CP-SAT is asked only where prices leave little below the best schedule; the state search agrees."""
    instance = load_instance("ladder-n06-SILO+LISO-k8")
    monkeypatch.setattr(solution, "_SMALL", 0)
    found = PairFlow().solve(Task(instance, Objective.MEAN_E2E, time_limit_s=30.0))
    assert found.termination == Termination.OPTIMAL
    assert found.bound == solve(instance, "mean_e2e", method="state_search", time_limit=30.0).value
