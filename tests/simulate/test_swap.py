"""Swapping over a link, and a scheduler that takes time: by hand and by brute force."""

from __future__ import annotations

import json

import pytest
from brute_force import MONOTONE, optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import instances as larger
from playing import outcome, problem, served
from strategies import instances

from optsched import Instance, Objective, Request, Restrictions, Rules, replace, simulate, solve
from optsched.bounds.catalogue import BOUNDS, bound_method
from optsched.calibrate.library import cost_model
from optsched.check import check_schedule
from optsched.methods.checked import is_proved
from optsched.methods.export import export_model
from optsched.model.cost import CostModel
from optsched.model.documents import instance_document, parse_instance
from optsched.model.errors import InputError
from optsched.model.metrics import evaluate
from optsched.model.schedule import Assignment, Batch, Schedule, timed
from optsched.policies import POLICIES
from optsched.policies.infermax import VLLM
from optsched.policies.round_robin import RoundRobin
from optsched.report.summary import policy_comparison
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import PolicyFailureError, Replica

SWAPS = Rules(eviction=False, swap=True)
COST = CostModel(base=100, token=10, decode_kv=1, swap_out_kv=7, swap_in_kv=5)


# The batch time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "besides"),
    # 4 tokens leave and 6 come back: 4 * 7 + 6 * 5 = 58 ps on the link, beside steps of 101 ps.
    [(0, 58), (1, 57), (50, 8), (57, 1), (58, 0), (100, 0)],  # 101 * 57 // 100 = 57, 101 * 58 // 100 = 58
)
def test_the_link_works_beside_the_steps_as_long_as_it_may(overlap: int, besides: int) -> None:
    assert replace(COST, swap_overlap=overlap).overhead_ps(101, 4, 6, 0) == besides


def test_a_scheduler_takes_time_for_every_batch_and_every_request_that_it_considers() -> None:
    cost = replace(COST, cpu_batch=1000, cpu_request=20)
    assert cost.batch_ps(3, 0, 0, [(3, 0)]) == 1000 + 100 + 3 * 10
    assert cost.overhead_ps(1130, 0, 0, 3) == 60


# A schedule by hand -----------------------------------------------------------------------------------------

PAIR = problem(Request(2, 4), Request(3, 3), kv=7, rules=SWAPS, cost=COST)
ASSIGNMENTS = [
    Assignment([(0, 2), (1, 3)], []),
    Assignment([(0, 1), (1, 1)], []),  # 3 + 4 = 7 tokens, the cache is full
    Assignment([(1, 1)], [], swap_out=[0]),  # 1 ends with 5 tokens, 3 of 0 are on the host
    Assignment([(0, 1)], [], swap_in=[0]),
    Assignment([(0, 1)], []),
]
# Base and tokens, KV that decodes read, link:
#   100 + 50, 100 + 20 + (2 + 3), 100 + 10 + 4 + 3 * 7, 100 + 10 + 3 + 3 * 5, 100 + 10 + 4
DURATIONS = [150, 125, 135, 128, 114]


def batches() -> list[Batch]:
    return list(timed(PAIR, ASSIGNMENTS).batches)


def test_a_swap_by_hand() -> None:
    schedule = timed(PAIR, ASSIGNMENTS)
    assert [batch.end_ps - batch.start_ps for batch in schedule.batches] == DURATIONS
    violations, metrics = check_schedule(PAIR, schedule)
    assert violations == []
    assert metrics == evaluate(PAIR, schedule)
    assert metrics is not None
    assert (metrics["swaps"], metrics["swapped_tokens"], metrics["evictions"]) == (1, 3, 0)
    assert metrics["recomputed_tokens"] == 0
    assert metrics["peak_kv_tokens"] == 7
    # Of 7 tokens: 5, 7, 5 (not the 3 on the host), 4 and 5.
    held = sum(tokens * duration for tokens, duration in zip([5, 7, 5, 4, 5], DURATIONS, strict=True))
    assert metrics["kv_utilisation"] == held / (7 * sum(DURATIONS))


def broken(number: int, **changes: object) -> list[str]:
    changed = batches()
    changed[number] = replace(changed[number], **changes)
    return check_schedule(PAIR, Schedule(tuple(changed)))[0]


@pytest.mark.parametrize(
    ("number", "changes", "violation"),
    [
        (2, {"swap_out": ()}, "batch 3: request 0 is swapped in, but it has no tokens on the host"),
        (2, {"swap_out": (0, 0)}, "batch 2: request 0 is swapped out 2 times, at most 1 is allowed"),
        (2, {"swap_out": (0, 1)}, "batch 2: request 1 is swapped out and runs, only 1 of both is allowed"),
        (2, {"evict": (0,)}, "batch 2: request 0 is swapped out and is evicted, only 1 of both is allowed"),
        (2, {"swap_out": (5,)}, "batch 2: request 5 is swapped out, but requests are numbered from 0 to 1"),
        (0, {"swap_out": (0,)}, "batch 0: request 0 is swapped out with 0 cached tokens, at least 1 is required"),
        (3, {"swap_in": ()}, "batch 3: request 0 runs, but its 3 tokens are on the host"),
        (4, {"swap_in": (0,)}, "batch 4: request 0 is swapped in, but it has no tokens on the host"),
        (3, {"swap_out": (1,)}, "batch 3: request 1 is swapped out, but it is finished"),
        (1, {"repeat": 2, "swap_out": (0,)}, "batch 1: is repeated 2 times, but it swaps out request 0"),
        (1, {"repeat": 2, "swap_in": (0,)}, "batch 1: is repeated 2 times, but it swaps in request 0"),
        (2, {"end_ps": 150 + 125 + 134}, "batch 2: ends at 409 ps, but it starts at 275 ps and takes 135 ps"),
    ],
)
def test_the_checker_names_what_is_wrong_with_a_swap(number: int, changes: dict[str, object], violation: str) -> None:
    assert any(found.startswith(violation) for found in broken(number, **changes))


def test_swapping_has_to_be_allowed() -> None:
    forbidden = replace(PAIR, rules=Rules(eviction=False))
    expected = "batch 2: request 0 is swapped out, but swapping is forbidden"
    assert expected in check_schedule(forbidden, timed(PAIR, ASSIGNMENTS))[0]
    assert expected in check_schedule(PAIR, timed(PAIR, ASSIGNMENTS), Restrictions(forbid=("swap",)))[0]


def test_what_was_considered_takes_time_and_is_checked() -> None:
    instance = replace(PAIR, cost=replace(COST, cpu_request=20))
    schedule = timed(instance, [assignment._replace(considered=2) for assignment in ASSIGNMENTS])
    assert [batch.end_ps - batch.start_ps for batch in schedule.batches] == [d + 40 for d in DURATIONS]
    assert check_schedule(instance, schedule)[0] == []
    first, *others = schedule.batches
    assert check_schedule(instance, Schedule((replace(first, considered=1), *others)))[0] == [
        "batch 0: ends at 190 ps, but it starts at 0 ps and takes 170 ps, so it must end at 170 ps"
    ]


# Policies ---------------------------------------------------------------------------------------------------


def test_vllm_swaps_the_last_to_arrive_and_takes_it_back_before_others_start() -> None:
    # Two of 7 tokens: 2 + 2, 3 + 3, and 4 + 4 do not fit. The second waits on the host until the first has ended, and
    # so does the third request, which came later, though it would fit at first.
    instance = problem(Request(2, 4), Request(2, 4), Request(1, 1, arrival_ps=300), kv=7, rules=SWAPS, cost=COST)
    found = [
        (list(batch.run), batch.swap_out, batch.swap_in, batch.evict) for batch in served(instance, "vllm_swap").batches
    ]
    assert found == [
        ([(0, 2), (1, 2)], (), (), ()),
        ([(0, 1), (1, 1)], (), (), ()),
        ([(0, 1)], (1,), (), ()),
        ([(0, 1)], (), (), ()),
        ([(1, 1)], (), (1,), ()),
        ([(2, 1)], (), (), ()),
        ([(1, 1)], (), (), ()),
    ]


@pytest.mark.slow
def test_without_the_rule_it_evicts() -> None:
    instance = problem(Request(2, 4), Request(2, 4), kv=7, cost=COST)
    assert served(instance, "vllm_swap") == served(instance, VLLM)


def test_rr_sjf_swaps() -> None:
    # One slot: after two tokens the first makes room for the second, whose KV comes back in one step.
    instance = problem(Request(2, 4), Request(2, 2), runs=1, rules=SWAPS, cost=COST)
    policy = RoundRobin(shortest=True, steps=2, swaps=True)
    found = [(list(batch.run), batch.swap_out, batch.swap_in) for batch in served(instance, policy).batches]
    assert found == [
        ([(1, 2)], (), ()),
        ([(1, 1)], (), ()),
        ([(0, 2)], (), ()),
        *[([(0, 1)], (), ())] * 3,
    ]
    longer = problem(Request(2, 4), Request(2, 4), runs=1, rules=SWAPS, cost=COST)
    found = [(list(batch.run), batch.swap_out, batch.swap_in) for batch in served(longer, policy).batches]
    assert found == [
        ([(0, 2)], (), ()),
        ([(0, 1)], (), ()),
        ([(1, 2)], (0,), ()),
        ([(1, 1)], (), ()),
        ([(0, 1)], (1,), (0,)),
        ([(0, 1)], (), ()),
        ([(1, 1)], (), (1,)),
        ([(1, 1)], (), ()),
    ]


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        (Assignment([(0, 2)], [], swap_out=[1]), "the policy swaps out request 1, which holds no KV"),
        (Assignment([(0, 2)], [], swap_in=[1]), "the policy swaps in request 1, which has no KV on the host"),
    ],
)
def test_swaps_that_cannot_be_followed(assignment: Assignment, reason: str) -> None:
    class Stubborn:
        def next_batch(self, replica: Replica) -> Assignment:
            return assignment

    with pytest.raises(PolicyFailureError, match=reason):
        run_policy(PAIR, Stubborn())


def test_considered_requests_are_those_up_to_the_first_that_does_not_fit() -> None:
    # Two of five fit. FCFS looks at three; SJF has to order all five.
    requests = [Request(2, 2)] * 5
    priced = problem(*requests, kv=6, rules=Rules(eviction=False), cost=replace(COST, cpu_request=1))
    assert served(priced, "vllm_ef").batches[0].considered == 3
    assert served(problem(*requests, kv=9, cost=replace(COST, cpu_request=1)), "sjf").batches[0].considered == 5
    free = problem(*requests, kv=6, rules=Rules(eviction=False), cost=COST)
    assert served(free, "vllm_ef").batches[0].considered == 0


def test_the_table_of_policies_shows_swaps_where_they_are_allowed() -> None:
    instance = problem(Request(2, 4), Request(2, 4), kv=7, rules=SWAPS, cost=COST)
    shown = policy_comparison([simulate(instance, "vllm_swap")], 200)
    header, row = (line.split() for line in shown.splitlines() if line.startswith(("policy", "vllm_swap")))
    assert row[header.index("swap")] == "1"
    assert "swap" not in policy_comparison([simulate(replace(instance, rules=Rules()), "vllm")], 200)


# Documents --------------------------------------------------------------------------------------------------


def test_a_profile_takes_a_link_and_a_scheduler_beside_its_name() -> None:
    document = instance_document(PAIR) | {"cost": {"profile": "a100-llama2-7b", "swap_in_kv": 3, "cpu_request": 4}}
    instance = parse_instance(json.dumps(document).encode(), cost_model)
    assert instance.cost == replace(cost_model("a100-llama2-7b"), swap_in_kv=3, cpu_request=4)
    assert parse_instance(json.dumps(instance_document(instance)).encode(), cost_model) == instance
    wrong = document | {"cost": {"profile": "a100-llama2-7b", "swap_overlap": 101}}
    with pytest.raises(InputError, match=r"cost.swap_overlap: got 101, expected an integer ≤ 100"):
        parse_instance(json.dumps(wrong).encode(), cost_model)


# Optima and bounds ------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(instances(swap=True, online=True, most_requests=2), st.sampled_from(MONOTONE))
def test_bounds_hold_where_kv_may_wait_on_the_host(instance: Instance, objective: Objective) -> None:
    best = optimum(instance, objective)
    forbidden = optimum(instance, objective, restrictions=Restrictions(forbid=("swap",)))
    assert forbidden is not None
    assert best <= forbidden
    for name in BOUNDS:
        found = bound_method(name)(instance, objective)
        if found is not None:
            assert found.value <= best, name
            assert is_proved(instance, Restrictions(), objective, found.value, found.certificate)


def test_a_swap_can_be_optimal() -> None:
    """With a free link both run until the cache is full, and then one after the other: 4 batches.

    Without it the second starts a batch later and pauses for one (5 batches), or is filled again, which takes 100 ps.
    """
    cost = CostModel(base=10, token=0, prefill_req=100)
    instance = problem(Request(1, 3), Request(1, 3), kv=4, rules=Rules(swap=True), cost=cost)
    assert optimum(instance) == 4 * 10 + 2 * 100
    assert optimum(replace(instance, rules=Rules())) == 5 * 10 + 2 * 100
    # 2 tokens leave and come back: at 3 ps a token they take 12 ps, more than a batch.
    for link, best in ((1, 4 * 10 + 2 * 100 + 4), (3, 5 * 10 + 2 * 100)):
        assert optimum(replace(instance, cost=replace(cost, swap_out_kv=link, swap_in_kv=link))) == best


@pytest.mark.slow
@settings(max_examples=292, deadline=None)
@given(larger(), st.sampled_from(sorted(set(POLICIES) - {"planner"})))
def test_no_policy_beats_a_bound(instance: Instance, name: str) -> None:
    schedule = outcome(instance, name)
    if isinstance(schedule, Schedule):
        values = evaluate(instance, schedule)["objectives"]
        for method in BOUNDS:
            for objective in (Objective.MAKESPAN, Objective.MEAN_TTFT, Objective.MEAN_E2E):
                found = bound_method(method)(instance, objective)
                assert found is None or found.value <= values[objective.value]


@pytest.mark.slow
def test_exact_methods_leave_instances_with_swaps_alone() -> None:
    with pytest.raises(InputError, match=r"a method that covers swapping \(forbid swap\)"):
        solve(PAIR, method="class_flow")
    with pytest.raises(InputError, match=r"covers swapping \(forbid swap\)"):
        export_model(PAIR, method="infermax_milp")
    # `auto` still plans and bounds; without swaps it proves the optimum.
    found = solve(PAIR, time_limit=5)
    assert found.value is not None
    assert found.bound is not None
    assert found.bound <= optimum(PAIR)
    proved = solve(PAIR, time_limit=120, restrictions=Restrictions(forbid=("swap",)))
    assert proved.value == proved.bound == optimum(PAIR, restrictions=Restrictions(forbid=("swap",)))


@settings(max_examples=60, deadline=None)
@given(instances(online=True, most_requests=2), st.sampled_from([Objective.MAKESPAN, Objective.MEAN_E2E]))
def test_what_the_cpu_takes_of_a_batch_is_as_much_base(instance: Instance, objective: Objective) -> None:
    cost = instance.cost
    pieces = tuple((base + cost.cpu_batch, token) for base, token in cost.pieces)
    moved = replace(instance, cost=replace(cost, base=cost.base + cost.cpu_batch, pieces=pieces, cpu_batch=0))
    assert optimum(instance, objective) == optimum(moved, objective)
    for name in BOUNDS:
        assert bound_method(name)(instance, objective) == bound_method(name)(moved, objective)
    for policy in ("vllm", "sarathi_ef"):
        ours, theirs = outcome(instance, policy), outcome(moved, policy)
        assert ours == theirs
