"""Classes of schedules: what they contain, what keeps to them, what is said where they are empty."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from brute_force import MONOTONE, optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import instances, restrictions

from optsched.bounds.volume import volume_bound
from optsched.check import check_result, check_schedule
from optsched.cli import main
from optsched.methods import plan as planning
from optsched.methods.policies import policy_names
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.cost import CostModel
from optsched.model.documents import (
    ClaimedResult,
    Suite,
    dump,
    instance_document,
    instance_sha256,
    parse_results,
    result_document,
    suite_document,
)
from optsched.model.domain import replace
from optsched.model.errors import DefectError, InfeasibleInstanceError, InputError
from optsched.model.feasibility import infeasibility, require_feasible
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.restrictions import FORBIDDABLE, Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.model.schedule import Assignment, Batch, Schedule, timed
from optsched.report.summary import class_texts
from optsched.simulator.replica import Replica
from optsched.solvers.declaration import Declaration
from optsched.solvers.formulation import Outcome, Task, Termination
from optsched.study import execute
from optsched.study.record import Ended
from optsched.study.store import Store
from optsched.study.trial import simulating

SLOW = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
TEN = CostModel(base=10, token=0)
"""Every batch takes 10 ps."""


def problem(
    *requests: Request,
    kv: int = 100,
    budget: int = 100,
    prefill: int | None = None,
    runs: int | None = None,
    block: int = 1,
    rules: Rules = Rules(),  # noqa: B008 - frozen
) -> Instance:
    return Instance(
        "test", Limits(kv, budget, budget if prefill is None else prefill, runs, block), rules, TEN, requests
    )


# One request at a time. A has three tokens to generate, B has one.
ONE_BY_ONE = problem(Request(1, 3), Request(1, 1), runs=1)
A_FIRST = timed(ONE_BY_ONE, [Assignment([(index, 1)], []) for index in (0, 1, 0, 0)])
B_FIRST = timed(ONE_BY_ONE, [Assignment([(index, 1)], []) for index in (1, 0, 0, 0)])

# Both hold 3 of 6 tokens after two batches, so that the third token of one evicts the other or comes two batches later.
TIGHT = problem(Request(2, 3), Request(2, 3), kv=6)
EVICTING = timed(
    TIGHT,
    [
        Assignment([(0, 2), (1, 2)], []),
        Assignment([(0, 1), (1, 1)], []),
        Assignment([(0, 1)], [1]),
        Assignment([(1, 4)], []),
    ],
)


# Brute force -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instance", "objective", "given", "best"),
    [
        # The second arrives when the first is done and gone: the batches end at 10 and 35.
        (problem(Request(1, 1), Request(1, 1, arrival_ps=25)), Objective.MAKESPAN, Restrictions(), 35),
        # B ends at 10, A at 40; or A's first token first: B at 20, A at 40.
        (ONE_BY_ONE, Objective.MEAN_E2E, Restrictions(), 50),
        (ONE_BY_ONE, Objective.MEAN_E2E, Restrictions(("reordering",)), 60),
        (ONE_BY_ONE, Objective.MEAN_E2E, Restrictions(order=(0, 1)), 60),
        (ONE_BY_ONE, Objective.MEAN_E2E, Restrictions(order=(1, 0)), 50),
        (ONE_BY_ONE, Objective.MEAN_E2E, Restrictions(("reordering",), at_most=60), 60),
        (ONE_BY_ONE, Objective.MEAN_E2E, Restrictions(("reordering",), at_most=59), None),
        # With eviction four batches, as above; without, while A holds 4 B keeps 2, and needs two more batches.
        (TIGHT, Objective.MAKESPAN, Restrictions(), 40),
        (TIGHT, Objective.MAKESPAN, Restrictions(max_evictions=1), 40),
        (TIGHT, Objective.MAKESPAN, Restrictions(max_evictions=0), 50),
        (TIGHT, Objective.MAKESPAN, Restrictions(("eviction",)), 50),
        # Six tokens, each in a batch of its own.
        (TIGHT, Objective.MAKESPAN, Restrictions(max_batch=1), 60),
        (TIGHT, Objective.MAKESPAN, Restrictions(max_batch=2), 40),
        # A decode of one beside the prefill of the other: batches 1 | 1, 2 | 2 instead of 1, 2 | 1, 2.
        (problem(Request(2, 2), Request(2, 2), budget=3), Objective.MAKESPAN, Restrictions(("chunked",)), 30),
        (
            problem(Request(2, 2), Request(2, 2), budget=3),
            Objective.MAKESPAN,
            Restrictions(("chunked", "hybrid")),
            30,
        ),
        (problem(Request(2, 1), prefill=1), Objective.MAKESPAN, Restrictions(), 20),
        (problem(Request(2, 1), prefill=1), Objective.MAKESPAN, Restrictions(("chunked",)), None),
    ],
)
def test_optimum_by_hand(instance: Instance, objective: Objective, given: Restrictions, best: int | None) -> None:
    assert optimum(instance, objective, restrictions=given) == best


def least(instance: Instance, objective: Objective, given: Restrictions) -> float:
    best = optimum(instance, objective, restrictions=given)
    return float("inf") if best is None else best


def without(given: Restrictions) -> list[Restrictions]:
    """Return the classes with one restriction less."""
    fewer = [replace(given, forbid=tuple(kept for kept in given.forbid if kept != name)) for name in given.forbid]
    changes: tuple[dict[str, Any], ...] = ({"max_evictions": None}, {"max_batch": None}, {"order": ()})
    return [*fewer, *(replace(given, **change) for change in changes)]


@pytest.mark.slow
@SLOW
@given(instances(online=True), st.data(), st.sampled_from(MONOTONE))
def test_no_restriction_lowers_the_optimum(instance: Instance, data: st.DataObject, objective: Objective) -> None:
    given = data.draw(restrictions(instance))
    best = optimum(instance, objective, restrictions=given)
    assert (best is None) == (infeasibility(instance, given) is not None)
    assert (best is None) <= ("chunked" in given.forbid)
    for wider in without(given):
        assert least(instance, objective, wider) <= (float("inf") if best is None else best)
    if best is not None:
        assert optimum(instance, objective, restrictions=replace(given, at_most=best)) == best
        if best > 0:
            assert optimum(instance, objective, restrictions=replace(given, at_most=best - 1)) is None


@pytest.mark.slow
def test_no_evictions_at_all_switch_the_rule_off() -> None:
    """A refill costs 1 + 1 here and a decode 1 + 100; without eviction the decode is certain, which certifies 104."""
    cost = CostModel(base=1, token=0, decode_req=100, prefill_req=1)
    rules = Rules(chunked_prefill=False)
    instance = Instance("pause", Limits(9, 9, 9), rules, cost, (Request(1, 2), Request(1, 1)))
    assert Restrictions(max_evictions=0).apply(instance).rules == replace(rules, eviction=False)
    assert Restrictions(max_evictions=1).apply(instance).rules == rules
    result = solve(instance, restrictions=Restrictions(max_evictions=0), workers=1)
    assert (result.status, result.value, result.badge) == (Status.OPTIMAL, 104, Badge.CERTIFIED)
    assert check_result(claimed(result)).violations == ()


@pytest.mark.slow
@settings(SLOW, max_examples=15)
@given(instances(online=True), st.sampled_from(MONOTONE))
def test_relations_between_classes(instance: Instance, objective: Objective) -> None:
    best = least(instance, objective, Restrictions())
    by_evictions = [least(instance, objective, Restrictions(max_evictions=q)) for q in range(4)]
    assert by_evictions == sorted(by_evictions, reverse=True)
    assert by_evictions[0] == least(instance, objective, Restrictions(("eviction",)))
    assert by_evictions[-1] >= best
    count = len(instance.requests)
    by_runs = [least(instance, objective, Restrictions(max_batch=runs)) for runs in range(1, count + 1)]
    assert by_runs == sorted(by_runs, reverse=True)
    assert by_runs[-1] == best
    by_order = {order: least(instance, objective, Restrictions(order=order)) for order in permutations(range(count))}
    arrivals = tuple(sorted(range(count), key=lambda index: instance.requests[index].arrival_ps))
    assert by_order[arrivals] == least(instance, objective, Restrictions(("reordering",)))
    assert min(by_order.values()) == best  # the first runs of every schedule stand in some order


@pytest.mark.slow
@SLOW
@given(instances(online=True), st.data())
def test_bounds_and_policies_of_a_class_stand_on_their_sides_of_its_optimum(
    instance: Instance, data: st.DataObject
) -> None:
    given = data.draw(restrictions(instance))
    assume(infeasibility(instance, given) is None)
    best = optimum(instance, restrictions=given)
    assert best is not None
    assert volume_bound(given.apply(instance)).value <= best
    for name in policy_names():
        run = simulate(instance, name, restrictions=given)
        if run.value is None:
            assert run.message is not None
            assert run.message.startswith(f"{name}: ")
            assert ": raised " not in run.message, "no policy of ours has a defect"
        else:
            assert run.value >= best
        assert check_result(claimed(run)).violations == ()


# The checker -----------------------------------------------------------------------------------------------


def claimed(result: Result) -> ClaimedResult:
    return parse_results(dump(result_document(result)).encode(), lambda name: TEN)[0]


LATE_FIRST = problem(Request(1, 1, arrival_ps=5), Request(1, 1), Request(1, 1, arrival_ps=5))
FEW = problem(Request(1, 1), Request(1, 1), Request(1, 1), runs=2)
TWO_ONE = timed(FEW, [Assignment([(0, 1), (1, 1)], []), Assignment([(2, 1)], [])])
# The first chunk of request 0 is its first run, though it is evicted before its first token.
CHUNKS = problem(Request(2, 1), Request(1, 1))
DROPPED = timed(CHUNKS, [Assignment([(0, 1)], []), Assignment([(1, 1)], [0]), Assignment([(0, 2)], [])])
SERVED_AS_NUMBERED = Schedule(tuple(Batch(10 * n, 10 * n + 10, ((n, 1),)) for n in range(3)))


@pytest.mark.parametrize(
    ("instance", "schedule", "given", "violations"),
    [
        (ONE_BY_ONE, A_FIRST, Restrictions(("reordering",)), []),
        (ONE_BY_ONE, A_FIRST, Restrictions(order=(0, 1)), []),
        (ONE_BY_ONE, B_FIRST, Restrictions(order=(1, 0)), []),
        (ONE_BY_ONE, B_FIRST, Restrictions(max_batch=7), []),
        (
            ONE_BY_ONE,
            B_FIRST,
            Restrictions(("reordering",)),
            [
                "batch 0: request 1 has its first run, before that of request 0 in batch 1, but request 0 stands "
                "before it in the order"
            ],
        ),
        (
            ONE_BY_ONE,
            A_FIRST,
            Restrictions(order=(1, 0)),
            [
                "batch 0: request 0 has its first run, before that of request 1 in batch 1, but request 1 stands "
                "before it in the order"
            ],
        ),
        (
            ONE_BY_ONE,
            A_FIRST,
            Restrictions(order=(2, 0, 1)),
            ["the order has 3 requests, the instance has 2"],
        ),
        # In one batch no request is before another.
        (FEW, TWO_ONE, Restrictions(("reordering",)), []),
        (FEW, TWO_ONE, Restrictions(order=(1, 0, 2)), []),
        (
            FEW,
            TWO_ONE,
            Restrictions(order=(2, 1, 0)),
            [
                f"batch 0: request {index} has its first run, before that of request 2 in batch 1, but request 2 "
                "stands before it in the order"
                for index in (1, 0)
            ],
        ),
        # By arrival 1, 0, 2.
        (
            LATE_FIRST,
            Schedule((Batch(0, 10, ((1, 1),)), Batch(10, 20, ((0, 1),)), Batch(20, 30, ((2, 1),)))),
            Restrictions(("reordering",)),
            [],
        ),
        (
            LATE_FIRST,
            Schedule((Batch(0, 10, ((1, 1),)), Batch(10, 20, ((2, 1),)), Batch(20, 30, ((0, 1),)))),
            Restrictions(("reordering",)),
            [
                "batch 1: request 2 has its first run, before that of request 0 in batch 2, but request 0 stands "
                "before it in the order"
            ],
        ),
        (CHUNKS, DROPPED, Restrictions(("reordering",)), []),
        (TIGHT, EVICTING, Restrictions(max_evictions=1), []),
        (
            TIGHT,
            EVICTING,
            Restrictions(max_evictions=0),
            [
                "batch 2: request 1 is evicted, but eviction is forbidden",
            ],
        ),
        (FEW, TWO_ONE, Restrictions(max_batch=2), []),
        (FEW, TWO_ONE, Restrictions(max_batch=1), ["batch 0: has 2 runs, at most 1 are allowed"]),
        (
            replace(FEW, limits=replace(FEW.limits, batch_requests=1)),
            TWO_ONE,
            Restrictions(max_batch=2),
            ["batch 0: has 2 runs, at most 1 are allowed"],
        ),
    ],
)
def test_the_checker_knows_the_class(
    instance: Instance, schedule: Schedule, given: Restrictions, violations: list[str]
) -> None:
    assert check_schedule(instance, schedule, given)[0] == violations


def test_only_evictions_beyond_the_last_allowed_are_named() -> None:
    instance = problem(Request(1, 3), Request(1, 2))
    turns = [([(0, 1)], []), ([(1, 1)], [0]), ([(0, 2)], [1]), ([(1, 2)], [0]), ([(0, 3)], [])]
    schedule = timed(instance, [Assignment(run, evict) for run, evict in turns])
    assert check_schedule(instance, schedule, Restrictions(max_evictions=3))[0] == []
    assert check_schedule(instance, schedule, Restrictions(max_evictions=1))[0] == [
        "batch 2: request 1 is evicted, which is eviction number 2 of the schedule, at most 1 are allowed",
        "batch 3: request 0 is evicted, which is eviction number 3 of the schedule, at most 1 are allowed",
    ]


def solved(**changes: Any) -> Result:
    fields: dict[str, Any] = {
        "instance": TIGHT,
        "method": "test",
        "objective": Objective.MAKESPAN,
        "status": Status.FEASIBLE,
        "value": 40,
        "schedule": EVICTING,
        "metrics": evaluate(TIGHT, EVICTING),
    }
    return Result(**fields | changes)


def empty(at_most: int, bound: int | None, badge: Badge = Badge.SOLVER_CLAIMED, **changes: Any) -> Result:
    """Say that no schedule has a makespan of at most so much."""
    fields = {"status": Status.INFEASIBLE, "value": None, "schedule": None, "metrics": None, "bound": bound}
    return solved(**fields, badge=badge, restrictions=Restrictions(at_most=at_most), **changes)


# TIGHT takes three batches at least: the KV of its tokens is 2 (2 + 3 + 4) = 18, three times M.
VOLUME = {"kind": "volume", "piece_weights": [1], "release_ps": 0}
SERVABLE = "status is infeasible, but each request can be served, so one after another is a schedule"


@pytest.mark.parametrize(
    ("result", "violations"),
    [
        (solved(restrictions=Restrictions(at_most=40)), []),
        (solved(restrictions=Restrictions(at_most=39)), ["makespan of the schedule is 40, at most 39 is allowed"]),
        (empty(29, 30, Badge.CERTIFIED, certificate=VOLUME), []),
        (
            empty(29, 31, Badge.CERTIFIED, certificate=VOLUME),
            ["certificate: it proves a bound of 30, less than the stated 31"],
        ),
        (
            empty(30, 30, Badge.CERTIFIED, certificate=VOLUME),
            [f"{SERVABLE}, and the bound 30 does not exceed the 30 allowed"],
        ),
        (empty(39, 40), []),
        (empty(40, 40), [f"{SERVABLE}, and the bound 40 does not exceed the 40 allowed"]),
        (empty(39, None, Badge.HEURISTIC), [f"{SERVABLE}, and the bound None does not exceed the 39 allowed"]),
        (
            replace(empty(39, 40), status=Status.BOUND_ONLY),
            ["status is bound_only, but the bound 40 exceeds the 39 allowed, which is infeasible"],
        ),
        (replace(empty(40, 40), status=Status.BOUND_ONLY), []),
        (replace(empty(39, 40), restrictions=Restrictions(max_evictions=0)), [SERVABLE]),
    ],
)
def test_a_limit_of_the_value_is_checked(result: Result, violations: list[str]) -> None:
    assert list(check_result(claimed(result)).violations) == violations


def test_a_certificate_counts_the_batch_cap_of_the_class() -> None:
    # Six tokens one by one.
    proof: dict[str, Any] = {"badge": Badge.CERTIFIED, "certificate": VOLUME, "bound": 60}
    result = replace(empty(59, 60), restrictions=Restrictions(max_batch=1, at_most=59), **proof)
    assert check_result(claimed(result)).violations == ()
    assert not check_result(claimed(replace(result, restrictions=Restrictions(max_batch=2, at_most=59)))).ok


# Documents -------------------------------------------------------------------------------------------------


@given(
    st.builds(
        Restrictions,
        forbid=st.lists(st.sampled_from([name for name in FORBIDDABLE if name != "reordering"]), unique=True).map(
            tuple
        ),
        max_evictions=st.none() | st.integers(0, 9),
        max_batch=st.none() | st.integers(1, 9),
        order=st.sampled_from([(), (0, 1), (1, 0)]),
        at_most=st.none() | st.integers(0, 10**30),
    )
)
def test_restrictions_survive_their_document(given: Restrictions) -> None:
    result = Result(TIGHT, "x", Objective.MEAN_E2E, Status.UNKNOWN, restrictions=given)
    document = result_document(result)
    assert claimed(result).result == result
    assert document["instance_sha256"] == instance_sha256(TIGHT)
    stated = document.get("restrictions", {})
    assert list(stated.items()) == [
        (name, list(value) if isinstance(value, tuple) else value)
        for name in ("forbid", "max_evictions", "max_batch", "order", "at_most")
        if (value := getattr(given, name)) not in {None, ()}
    ]
    assert ("restrictions" in document) == (given != Restrictions())


@pytest.mark.parametrize(
    ("stated", "complaint"),
    [
        ({"max_evictions": -1}, "restrictions.max_evictions: got -1, expected an integer ≥ 0"),
        ({"max_batch": 0}, "restrictions.max_batch: got 0, expected an integer ≥ 1"),
        ({"order": [0, 0]}, "restrictions.order: got (0, 0), expected every request index once, counted from 0"),
        ({"order": [0, 1], "forbid": ["reordering"]}, "restrictions.order: got (0, 1), expected none where reordering"),
        ({"at_most": 1.5}, "restrictions.at_most: got 1.5, expected an integer"),
        ({"most": 1}, "restrictions.most: got 1, expected no field of this name"),
    ],
)
def test_a_wrong_restriction_is_named(stated: dict[str, Any], complaint: str) -> None:
    document = result_document(solved()) | {"restrictions": stated}
    with pytest.raises(InputError) as error:
        parse_results(dump(document).encode(), lambda name: TEN)
    assert str(error.value).startswith(complaint)


# Policies --------------------------------------------------------------------------------------------------


Answer = tuple[list[tuple[int, int]], list[int]]


class Scripted:
    """Answers what it was told to, in turn."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = iter(answers)

    def next_batch(self, replica: Replica) -> Assignment:
        return Assignment(*next(self._answers))


B_THEN_A: tuple[Answer, ...] = ([(1, 1)], []), ([(0, 1)], []), ([(0, 1)], []), ([(0, 1)], [])


@pytest.mark.parametrize(
    ("answers", "given", "message"),
    [
        (B_THEN_A, Restrictions(), None),
        (B_THEN_A, Restrictions(order=(1, 0), max_evictions=0, max_batch=1, at_most=40), None),
        (
            B_THEN_A,
            Restrictions(("reordering",)),
            "batch 0: request 1 has its first run, before that of request 0 in batch 1, but request 0 stands before "
            "it in the order",
        ),
        (B_THEN_A, Restrictions(at_most=39), "makespan is 40, at most 39 is allowed"),
        # Illegal in any class: two runs where one is allowed, a run in the batch of the eviction.
        ([([(0, 1), (1, 1)], []), *B_THEN_A[1:]], Restrictions(), "batch 0: has 2 runs, at most 1 are allowed"),
        (
            [([(0, 1)], []), ([(0, 2)], [0]), ([(1, 1)], []), ([(0, 1)], [])],
            Restrictions(),
            "batch 1: request 0 is evicted and runs, only 1 of both is allowed",
        ),
        ([([(7, 1)], [])], Restrictions(), "request 0 at 0 ps: the policy runs 1 tokens of request 7"),
    ],
)
def test_a_policy_that_leaves_the_class_or_the_rules_fails(
    answers: Sequence[Answer], given: Restrictions, message: str | None
) -> None:
    result = simulate(ONE_BY_ONE, Scripted(*answers), restrictions=given)
    assert check_result(claimed(result)).violations == ()
    if message is None:
        assert (result.status, result.value, result.message) == (Status.FEASIBLE, 40, None)
    else:
        assert (result.status, result.value, result.schedule) == (Status.FAILED, None, None)
        assert (result.message or "").startswith(f"Scripted: {message}")


# Solving ---------------------------------------------------------------------------------------------------


class Stub:
    """A formulation that answers what the test wants, and keeps what it was asked."""

    asked: list[Task]
    answer: Outcome

    def solve(self, task: Task) -> Outcome:
        type(self).asked.append(task)
        return self.answer


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Outcome], type[Stub]]:
    """Put a stub in the place of all formulations."""

    def install(answer: Outcome) -> type[Stub]:
        made = type("Made", (Stub,), {"asked": [], "answer": answer})
        monkeypatch.setattr(planning, "make_formulation", lambda name, options: made())
        monkeypatch.setattr(planning, "entries", lambda group: {"stub": "stub:Stub"})
        monkeypatch.setattr(planning, "declaration_named", lambda name: Declaration())
        return made

    return install


LIMIT = Outcome(Termination.LIMIT, None, None, Badge.HEURISTIC)
# Policies need 50 ps for TIGHT, or evict: the best one needs 40; its bound is 30.


def test_a_known_schedule_decides(stub: Callable[[Outcome], type[Stub]]) -> None:
    made = stub(LIMIT)
    result = solve(TIGHT, restrictions=Restrictions(at_most=50))
    assert (result.status, result.bound, made.asked) == (Status.FEASIBLE, 30, [])
    assert result.value in {40, 50}
    single = problem(Request(1, 3))
    assert solve(single, restrictions=Restrictions(at_most=31)).status == Status.OPTIMAL
    assert check_result(claimed(result)).ok


def test_a_known_bound_decides(stub: Callable[[Outcome], type[Stub]]) -> None:
    made = stub(LIMIT)
    result = solve(TIGHT, restrictions=Restrictions(at_most=29))
    assert (result.status, result.bound, result.badge) == (Status.INFEASIBLE, 30, Badge.CERTIFIED)
    assert (result.value, result.schedule, made.asked) == (None, None, [])
    assert result.message == "no schedule has makespan <= 29: bound 30"
    assert check_result(claimed(result)).violations == ()


@pytest.mark.parametrize("badge", [Badge.SOLVER_CLAIMED, Badge.HEURISTIC])
def test_a_formulation_that_finds_nothing_decides(badge: Badge, stub: Callable[[Outcome], type[Stub]]) -> None:
    made = stub(Outcome(Termination.INFEASIBLE, None, None, badge))
    given = Restrictions(("reordering",), max_evictions=1, max_batch=2, at_most=39)
    result = solve(TIGHT, restrictions=given)
    (task,) = made.asked
    assert task.restrictions == given
    assert task.instance == given.apply(TIGHT)
    assert (task.incumbent, task.incumbent_value, task.bound) == (None, None, 30)
    assert (result.status, result.bound, result.badge) == (Status.INFEASIBLE, 40, Badge.SOLVER_CLAIMED)
    assert result.message == "no schedule has makespan <= 39: bound 40"
    assert check_result(claimed(result)).violations == ()


def test_a_schedule_that_is_not_as_good_as_asked_is_none(stub: Callable[[Outcome], type[Stub]]) -> None:
    stub(Outcome(Termination.LIMIT, EVICTING, 35, Badge.SOLVER_CLAIMED))
    result = solve(TIGHT, restrictions=Restrictions(at_most=39))
    assert (result.status, result.value, result.bound) == (Status.BOUND_ONLY, None, 35)
    assert check_result(claimed(result)).violations == ()
    stub(Outcome(Termination.OPTIMAL, EVICTING, 40, Badge.SOLVER_CLAIMED))
    assert solve(TIGHT, restrictions=Restrictions(at_most=39)).status == Status.INFEASIBLE


def test_policies_outside_the_class_are_no_incumbents(stub: Callable[[Outcome], type[Stub]]) -> None:
    made = stub(LIMIT)
    result = solve(ONE_BY_ONE, "mean_e2e", restrictions=Restrictions(order=(1, 0)))
    assert made.asked[0].incumbent is None  # all policies serve in order of arrival
    assert (result.status, result.value, result.found_by) == (Status.BOUND_ONLY, None, {"bound": "machine"})
    assert solve(ONE_BY_ONE, "mean_e2e", restrictions=Restrictions(order=(0, 1))).value is not None


def test_a_formulation_outside_the_class_is_a_defect(stub: Callable[[Outcome], type[Stub]]) -> None:
    stub(Outcome(Termination.LIMIT, EVICTING, None, Badge.HEURISTIC))
    with pytest.raises(DefectError, match="stub made an illegal schedule: batch 2: request 1 is evicted"):
        solve(TIGHT, restrictions=Restrictions(max_evictions=0))


# Infeasible instances --------------------------------------------------------------------------------------

WHOLE = Rules(chunked_prefill=False)
NEEDS_NINE = Request(5, 5)
ALLOWED_FORBIDDEN = ", which the instance allows and the restrictions forbid"


@pytest.mark.parametrize(
    ("instance", "given", "message"),
    [
        (
            problem(Request(1, 1), NEEDS_NINE, kv=8),
            Restrictions(),
            "request 1 needs 9 KV tokens (input 5 + output 5 - 1, in blocks of 1), the cache holds 8 (kv_tokens = 8); "
            "kv_tokens = 9 would do",
        ),
        # 9 tokens take 3 blocks of 4; 11 tokens of M are 2 blocks. The second one needs 13 tokens, 4 blocks.
        (
            problem(NEEDS_NINE, Request(4, 10), kv=11, block=4),
            Restrictions(),
            "request 0 needs 12 KV tokens (input 5 + output 5 - 1, in blocks of 4), the cache holds 8 "
            "(kv_tokens = 11) (and 1 more requests); kv_tokens = 16 would do",
        ),
        (
            problem(Request(4, 1), Request(6, 1, id="q"), prefill=5, rules=WHOLE),
            Restrictions(),
            "request 1 (q) has a prompt of 6 tokens, more than prefill_tokens = 5, and chunked prefill is forbidden; "
            "prefill_tokens = 6 would do, or chunked prefill",
        ),
        (
            problem(Request(6, 1), budget=5),
            Restrictions(("chunked", "hybrid"), max_batch=1),
            "request 0 has a prompt of 6 tokens, more than prefill_tokens = 5, and chunked prefill is forbidden; "
            f"prefill_tokens = 6 and batch_tokens = 6 would do, or chunked prefill{ALLOWED_FORBIDDEN}",
        ),
        (
            problem(NEEDS_NINE, kv=8, budget=4, prefill=3),
            Restrictions(("chunked",)),
            "request 0 needs 9 KV tokens (input 5 + output 5 - 1, in blocks of 1), the cache holds 8 (kv_tokens = 8), "
            "and has a prompt of 5 tokens, more than prefill_tokens = 3, and chunked prefill is forbidden; "
            "kv_tokens = 9 and prefill_tokens = 5 and batch_tokens = 5 would do, or kv_tokens = 9 and chunked "
            f"prefill{ALLOWED_FORBIDDEN}",
        ),
    ],
)
def test_what_would_do_is_said(instance: Instance, given: Restrictions, message: str) -> None:
    found = infeasibility(instance, given)
    assert str(found) == message
    with pytest.raises(InfeasibleInstanceError) as error:
        simulate(instance, "vllm", restrictions=given)
    assert str(error.value) == message
    result = solve(instance, restrictions=given)
    assert result.status == Status.INFEASIBLE
    assert found is not None
    assert result.message == "; ".join((*found.reasons, found.remedy))
    assert check_result(claimed(result)).violations == ()


@settings(max_examples=180)
@given(
    st.lists(st.builds(Request, input=st.integers(1, 9), output=st.integers(1, 9)), min_size=1, max_size=3),
    st.builds(
        lambda kv, prefill, more, block: Limits(kv, prefill + more, prefill, None, block),
        st.integers(1, 20),
        st.integers(1, 9),
        st.integers(0, 2),
        st.integers(1, 4),
    ),
    st.booleans(),
)
def test_the_smallest_limits_do_and_one_less_does_not(requests: list[Request], limits: Limits, chunked: bool) -> None:
    instance = problem(*requests, rules=Rules(chunked_prefill=chunked))
    enough = replace(instance, limits=limits).sufficient_limits()

    def does(kv: int, budget: int, prefill: int) -> bool:
        made = replace(limits, kv_tokens=kv, batch_tokens=budget, prefill_tokens=min(budget, prefill))
        return infeasibility(replace(instance, limits=made)) is None

    kv, budget, prefill = enough.kv_tokens, enough.batch_tokens, enough.prefill_tokens
    assert does(kv, budget, prefill)
    require_feasible(replace(instance, limits=enough))
    before = (limits.kv_tokens, limits.batch_tokens, limits.prefill_tokens)
    if kv != before[0]:
        assert kv % limits.kv_block == 0
        assert not does(kv - 1, budget, prefill)
    if budget != before[1]:
        assert not does(kv, budget - 1, prefill)
    if prefill != before[2]:
        assert not does(kv, budget, prefill - 1)
    assert (does(*before)) == (enough == limits)


# Command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def optsched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[object, str, str]]:
    monkeypatch.chdir(tmp_path)
    for name, instance in {"tight.json": TIGHT, "one.json": ONE_BY_ONE}.items():
        Path(name).write_text(dump(instance_document(instance)))

    def run(*arguments: str) -> tuple[object, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return (ended.value.code, *capsys.readouterr())

    return run


Command = Callable[..., tuple[object, str, str]]


@pytest.mark.parametrize(
    ("options", "stated"),
    [
        (["--forbid", "reordering"], {"forbid": ["reordering"]}),
        (["--forbid", "hybrid,reordering", "--forbid", "hybrid"], {"forbid": ["hybrid", "reordering"]}),
        (["--max-evictions", "0"], {"max_evictions": 0}),
        (["--max-batch", "2"], {"max_batch": 2}),
        (["--fix-order", "0,1"], {"order": [0, 1]}),
    ],
)
def test_options_become_restrictions(options: list[str], stated: dict[str, Any], optsched: Command) -> None:
    for command in (["simulate", "one.json", "--policy", "vllm"], ["solve", "one.json", "--objective", "max_ttft"]):
        code, out, err = optsched(*command, *options, "--json")
        assert (code, err) == (0, "")
        document = json.loads(out)
        assert document["restrictions"] == stated
        assert document["value"] is not None
        Path("out.json").write_text(out)
        assert optsched("check", "out.json")[0] == 0


def test_a_policy_outside_the_class_is_not_available(optsched: Command) -> None:
    code, out, _ = optsched("simulate", "one.json", "--policy", "vllm", "--fix-order", "1,0")
    assert code == 0
    assert "n/a: vllm: batch 0: request 0 has its first run, before that of request 1 in batch " in out


def test_a_decision_by_the_command(optsched: Command) -> None:
    code, out, err = optsched("solve", "tight.json", "--at-most", "29", "--out", "no.json")
    assert code == 1
    assert err == "optsched: infeasible: no schedule has makespan <= 29: bound 30\n"
    assert "infeasible" in out
    assert json.loads(Path("no.json").read_text())["restrictions"] == {"at_most": 29}
    assert optsched("check", "no.json")[0] == 0
    code, out, err = optsched("solve", "tight.json", "--at-most", "50", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["value"] <= 50


def test_a_table_is_titled_with_its_class(optsched: Command) -> None:
    options = ["--forbid", "eviction,hybrid", "--max-evictions", "2", "--max-batch", "1", "--fix-order", "0,1"]
    # No formulation is needed for it: whatever is best without time is in the table.
    code, out, _ = optsched("table", "one.json", "--policies", "vllm", *options, "--time-limit", "1e-9")
    assert code == 0
    assert " ".join(out.split()).startswith(
        "test: makespan, no eviction, no hybrid, at most 2 evictions, at most 1 runs in a batch, "
        "first runs in the order 0, 1, gap of each policy in % "
    )
    assert class_texts(Restrictions(at_most=7)) == ["value at most 7"]


def test_results_of_different_classes_are_kept_apart(tmp_path: Path) -> None:
    classes = [
        Restrictions(),
        Restrictions(("eviction",)),
        Restrictions(max_evictions=1),
        Restrictions(max_evictions=2),
        Restrictions(max_batch=1),
        Restrictions(order=(0, 1)),
        Restrictions(order=(1, 0)),
        Restrictions(at_most=1),
    ]
    trials = [simulating(TIGHT, Objective.MAKESPAN, given, policy="vllm") for given in classes]
    results = [
        Result(TIGHT, "vllm", Objective.MAKESPAN, Status.UNKNOWN, restrictions=given, runtime_s=float(place))
        for place, given in enumerate(classes)
    ]
    with Store(tmp_path / "store.sqlite") as store:
        for trial, result in zip(trials, results, strict=True):
            store.add(trial, execute.Outcome(Ended.FINISHED, result=result))
        found = [store.find(trial) for trial in trials]
    assert [attempt and attempt.outcome.result for attempt in found] == results


TABLE = ["table", "suite.json"]
SOLVE = ["solve", "tight.json"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([*SOLVE, "--fix-order", "0"], "tight.json: --fix-order: got (0,), expected all 2 requests"),
        (
            ["simulate", "tight.json", "--policy", "vllm", "--fix-order", "0,2,1"],
            "tight.json: --fix-order: got (0, 2, 1), expected all 2 requests",
        ),
        ([*TABLE, "--fix-order", "0,1"], "suite.json: three: --fix-order: got (0, 1), expected all 3 requests"),
        ([*SOLVE, "--fix-order", "1,2"], "--fix-order: got (1, 2), expected every request index once, counted from 0"),
        ([*SOLVE, "--fix-order", "a"], "--fix-order: got a, expected request indices joined by commas, such as 2,0,1"),
        ([*SOLVE, "--fix-order", ""], "--fix-order: got '', expected request indices joined by commas, such as 2,0,1"),
        (
            [*SOLVE, "--fix-order", "0,1", "--forbid", "reordering"],
            "--fix-order: got (0, 1), expected none where reordering is forbidden",
        ),
        ([*SOLVE, "--max-evictions", "-1"], "--max-evictions: got -1, expected an integer ≥ 0"),
        ([*TABLE, "--max-batch", "0"], "--max-batch: got 0, expected an integer from 1 to 1000000000"),
        ([*SOLVE, "--at-most", "1e9"], "--at-most: got 1e9, expected an integer ≥ 0"),
        ([*TABLE, "--at-most", "1"], "No such option"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], complaint: str, optsched: Command) -> None:
    three = replace(TIGHT, name="three", requests=(Request(1, 1),) * 3)
    Path("suite.json").write_text(dump(suite_document(Suite("s", "", (TIGHT, three)), "a100-llama2-7b")))
    code, out, err = optsched(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"optsched: {complaint}")
    assert len(err.splitlines()) == 1


def test_the_command_says_what_would_do(optsched: Command) -> None:
    small = problem(Request(6, 1), Request(7, 1), budget=5)
    Path("small.json").write_text(dump(instance_document(small)))
    for command in (["solve"], ["simulate", "--policy", "vllm"], ["table"]):
        code, _, err = optsched(*command, "small.json", "--forbid", "chunked")
        assert code == 1
        assert err.startswith(f"optsched: infeasible: {'test: ' if command == ['table'] else ''}request 0 has a prompt")
        assert err.endswith(
            f"; prefill_tokens = 7 and batch_tokens = 7 would do, or chunked prefill{ALLOWED_FORBIDDEN}\n"
        )
        assert len(err.splitlines()) == 1
