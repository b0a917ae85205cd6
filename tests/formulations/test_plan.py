"""Which formulations ``auto`` tries, in which order and for how long; the lists are those measured on the ladder."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, check_schedule, load_suite, solve
from optsched.catalogue import FORMULATION_GROUP, entries, lookup
from optsched.methods import checked
from optsched.methods.plan import auto_shares, plan_solve
from optsched.model.cost import CostModel
from optsched.model.result import Status
from optsched.policies import STANDARD, STARTING
from optsched.solvers.declaration import Declaration, Regime, Turn, declaration_of, regime_of

FEW = [
    ("small_search", 1.0),
    ("token_cpsat", 0.02),
    ("planner", 0.03),
    ("pair_flow", 0.75),
    ("state_search", 0.9),
    ("layer_search", 0.8),
    ("pattern_cg", 0.4),
    ("class_flow", 0.6),
    ("token_cpsat", 1.0),
]
FEW_ARRIVING = [
    ("small_search", 1.0),
    ("token_cpsat", 0.02),
    ("planner", 0.03),
    ("free_pauses", 0.08),
    ("last_arrivals", 0.08),
    ("clock_beam", 0.3),
    ("reinsertion", 0.1),
    ("state_search", 0.9),
    ("core_alone", 0.7),
    ("token_cpsat", 1.0),
]
TOGETHER = [
    ("small_search", 1.0),
    ("token_cpsat", 0.02),
    ("planner", 0.03),
    ("reinsertion", 0.2),
    ("state_search", 0.3),
    ("layer_search", 0.85),
    ("reinsertion", 0.6),
    ("clock_beam", 0.6),
    ("pattern_cg", 0.4),
    ("class_flow", 0.6),
    ("token_cpsat", 1.0),
]
MANY = [
    ("small_search", 1.0),
    ("token_cpsat", 0.02),
    ("planner", 0.03),
    ("reinsertion", 0.2),
    ("unbroken", 0.25),
    ("state_search", 0.5),
    ("layer_search", 1.0),
    ("reinsertion", 0.6),
    ("clock_beam", 0.6),
    ("pattern_cg", 0.4),
    ("class_flow", 0.85),
    ("token_cpsat", 1.0),
]
MANY_ARRIVING = [
    ("small_search", 1.0),
    ("token_cpsat", 0.02),
    ("planner", 0.03),
    ("free_pauses", 0.35),
    ("last_arrivals", 0.15),
    ("clock_beam", 0.4),
    ("reinsertion", 0.1),
    ("state_search", 0.5),
    ("core_alone", 0.5),
    ("token_cpsat", 1.0),
]
LARGE = [("planner", 0.85)]


def problem(memory: int, *requests: Request) -> Instance:
    return Instance(
        "plan", Limits(memory, 4096, 4096), Rules(chunked_prefill=False), CostModel(base=10, token=0), requests
    )


# A request (1, 1) holds 1 token while it generates 1, so that κ = M, however many there are.
@pytest.mark.parametrize(
    ("instance", "objective", "expected"),
    [
        (problem(4, *[Request(1, 1)] * 9), Objective.MAKESPAN, TOGETHER),
        (problem(4, *[Request(1, 1)] * 8), Objective.MAKESPAN, FEW),
        (problem(4, *[Request(1, 1)] * 9, Request(1, 1, arrival_ps=9)), Objective.MAKESPAN, FEW_ARRIVING),
        (problem(5, Request(1, 1)), Objective.MAKESPAN, MANY),
        (problem(5, Request(1, 1), Request(1, 1, arrival_ps=9)), Objective.MAKESPAN, MANY_ARRIVING),
        (problem(5, Request(1, 1)), Objective.MEAN_E2E, FEW),
        (problem(5, Request(1, 1)), Objective.MAX_TTFT, FEW),
        (problem(5, *[Request(1, 1)] * 2000), Objective.MAKESPAN, MANY),
        (problem(5, *[Request(1, 1)] * 2001), Objective.MAKESPAN, LARGE),
        (problem(5, *[Request(1, 1)] * 2001), Objective.MEAN_E2E, LARGE),
    ],
    ids=[
        "together",
        "few",
        "arrivals",
        "many",
        "many that arrive",
        "mean",
        "ttft",
        "2000 tokens",
        "2001 tokens",
        "2001 tokens, mean",
    ],
)
def test_order_and_shares(instance: Instance, objective: Objective, expected: list[tuple[str, float]]) -> None:
    plan = plan_solve("auto", {}, instance, objective)
    assert ([(step.name, step.share) for step in plan.steps], plan.failures) == (expected, ())
    assert plan.before_policies == (expected == LARGE)


@pytest.mark.parametrize(
    ("kind", "regime"),
    [
        ("k2", Regime.FEW_RESIDENT),
        ("k8", Regime.MANY_TOGETHER),
        ("k2-poisson", Regime.FEW_ARRIVING),
        ("k8-poisson", Regime.MANY_ARRIVING),
    ],
)
def test_every_method_of_a_plan_covers_the_makespan(kind: str, regime: Regime) -> None:
    # A method that never answers where it has a turn would be asked for nothing. Pairs are for sums of latencies.
    (instance,) = (each for each in load_suite("ladder").instances if each.name == f"ladder-n04-LILO+SISO-{kind}")
    assert regime_of(instance, Objective.MAKESPAN) == regime
    names = {step.name for step in plan_solve("auto", {}, instance, Objective.MAKESPAN).steps} - {"pair_flow"}
    for name in names:
        solve(instance, Objective.MAKESPAN, method=name, time_limit=1)


@pytest.mark.parametrize("name", entries(FORMULATION_GROUP))
def test_a_method_alone_has_all_the_time(name: str) -> None:
    plan = plan_solve(name, {}, problem(5, Request(1, 1)), Objective.MAKESPAN)
    assert [(step.name, step.share) for step in plan.steps] == [(name, 1.0)]
    assert plan.before_policies == (name == "planner")


def test_a_plug_in_without_a_declaration_comes_before_the_last_turn_and_not_to_large_instances() -> None:
    class Plain:
        pass

    declared = {
        "plain": declaration_of(Plain),
        "measured": Declaration(baseline=True),
        "ends": Declaration(turns=(Turn(10, 0.1), Turn(80, 1.0, tuple(Regime)))),
        "other": declaration_of(Plain()),
    }
    tried = (("ends", 0.1), ("plain", 0.5), ("other", 0.5), ("ends", 1.0))
    assert auto_shares(declared, Regime.FEW_RESIDENT) == auto_shares(declared, Regime.MANY_ARRIVING) == tried
    assert auto_shares(declared, Regime.LARGE) == (("ends", 1.0),)


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="the share of a turn"):
        Turn(1, share)


def test_a_wrong_declaration_costs_only_its_formulation(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = problem(5, Request(1, 1))
    assert regime_of(instance, Objective.MAKESPAN) == Regime.MANY_TOGETHER
    monkeypatch.setattr(lookup(FORMULATION_GROUP, "class_flow", ""), "declaration", {"baseline": True})
    plan = plan_solve("auto", {}, instance, Objective.MAKESPAN)
    assert [(step.name, step.share) for step in plan.steps] == [step for step in MANY if step[0] != "class_flow"]
    assert len(plan.failures) == 1
    said = "class_flow: TypeError: the attribute declaration is a dict, expected a Declaration ("
    assert plan.failures[0].startswith(said)


def test_restrictions_are_applied_once_and_each_schedule_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[Any] = []
    replayed: list[Any] = []

    def counted(seen: list[Any], real: Any, *asked: Any) -> Any:
        seen.append(asked)
        return real(*asked)

    apply = Restrictions.apply
    monkeypatch.setattr(Restrictions, "apply", lambda *asked: counted(applied, apply, *asked))
    monkeypatch.setattr(checked, "check_schedule", partial(counted, replayed, check_schedule))
    # No policy's value meets a bound, so that formulations are asked.
    result = solve(problem(8, *[Request(3, 4), Request(4, 3)] * 2), restrictions=Restrictions(("hybrid",)), workers=1)
    assert len(applied) == 1
    asked = {step.name for step in plan_solve("auto", {}, result.instance, result.objective).steps}
    # A policy's schedule each, and at most one for each formulation.
    assert len(STARTING) <= len(replayed) <= len(STARTING) + len(asked)
    assert set(STARTING) == set(STANDARD) - {"planner"}
    assert result.status == Status.OPTIMAL
