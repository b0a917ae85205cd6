"""Times between tokens as objectives: TPOT and TBT, their values, bounds and what refuses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched import CostModel, Instance, Limits, Objective, Request, Restrictions, Rules, replace, simulate, solve
from optsched.bounds.alone import alone_bound
from optsched.bounds.catalogue import BOUNDS, bound_method
from optsched.catalogue import FORMULATION_GROUP, entries
from optsched.check import UnprovedError, check_result, check_schedule, proved_bound
from optsched.methods.export import export_model
from optsched.methods.formulations import make_formulation
from optsched.model.documents import dump, parse_results, result_document
from optsched.model.errors import InputError
from optsched.model.metrics import evaluate
from optsched.model.objectives import value_at
from optsched.model.result import Badge, Status
from optsched.model.schedule import Batch, Schedule, one_after_another
from optsched.policies import STANDARD
from optsched.report.summary import objective_text
from optsched.solvers.formulation import Task, UnsupportedError

TPOT, TBT = Objective.MEAN_TPOT, Objective.P99_TBT
BETWEEN = (TPOT, TBT)
FREE = Restrictions()
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


SERVED = CostModel(base=10, token=1, decode_kv=2, decode_req=3)


def problem(*requests: Request, cost: CostModel, prefill: int = 9, **rules: bool) -> Instance:
    return Instance("between", Limits(20, 9, prefill), Rules(**rules), cost, requests)


def bound(instance: Instance, objective: Objective) -> int:
    """Return the bound that the checker confirms to the unit."""
    found = alone_bound(instance, objective)
    assert found is not None
    assert proved_bound(instance, FREE, objective, found.certificate) == found.value
    return found.value


def values(instance: Instance, schedule: Schedule) -> tuple[int, int]:
    """Return both objectives, which the checker computes like the metrics."""
    wrong, metrics = check_schedule(instance, schedule)
    assert wrong == []
    assert metrics is not None
    assert metrics == evaluate(instance, schedule)
    return metrics["objectives"]["mean_tpot"], metrics["objectives"]["p99_tbt"]


def violations(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the checker finds wrong in a result's document."""
    return check_result(parse_results(dump(document).encode(), lambda name: SERVED)[0]).violations


def test_only_these_are_not_monotone() -> None:
    assert tuple(objective for objective in Objective if not objective.is_monotone) == (*BETWEEN, Objective.MAX_LOAD)
    instance = problem(Request(1, 1), cost=CostModel(base=1, token=0))
    for objective in BETWEEN:
        with pytest.raises(ValueError, match=objective.value):
            value_at(instance.requests, objective, [1], [1])


def test_a_pause_before_the_first_token_can_help() -> None:
    """All batches take 10 ps. The second one decodes request 0 and fills request 1, which arrives at 30."""
    instance = problem(Request(1, 2), Request(1, 1, arrival_ps=30), cost=CostModel(base=10, token=0))
    second = Batch(30, 40, ((0, 1), (1, 1)))
    assert values(instance, Schedule((Batch(0, 10, ((0, 1),)), second))) == (30, 30)
    assert values(instance, Schedule((Batch(20, 30, ((0, 1),)), second))) == (10, 10)
    assert (bound(instance, TPOT), bound(instance, TBT)) == (10, 10)


def test_worked_bounds_of_decodes() -> None:
    """A decode on m tokens takes 10 + 1 + 3 + 2 m: on 3, 4, 5 and on 1, 2. TPOT 66 / 3 = 22 and 34 / 2 = 17."""
    instance = problem(Request(3, 4), Request(1, 3), Request(5, 1), cost=SERVED, eviction=False)
    assert bound(instance, TPOT) == 22 + 17
    assert bound(instance, TBT) == 24
    # 17 + 18 + 19 and 15 + 16: the mean of the latter, 15.5, is rounded down.
    assert bound(replace(instance, cost=replace(SERVED, decode_kv=1)), TPOT) == 18 + 15


def test_worked_bounds_of_refills() -> None:
    """A decode takes 111 ps, a refill of n tokens 10 + n; of 4 tokens it takes two steps if P = 3, or is forbidden."""
    cost = CostModel(base=10, token=1, decode_req=100)
    request = Request(2, 3)
    whole = problem(request, cost=cost, prefill=3, chunked_prefill=False)
    assert (bound(whole, TPOT), bound(whole, TBT)) == ((13 + 111) // 2, 111)
    chunked = replace(whole, rules=Rules())
    assert (bound(chunked, TPOT), bound(chunked, TBT)) == ((13 + 24) // 2, 24)
    kept = replace(whole, rules=Rules(eviction=False))
    assert (bound(kept, TPOT), bound(kept, TBT)) == (111, 111)


def test_worked_percentile() -> None:
    """Decodes on m tokens take m ps: 1 to 100 of the first request, each of them twice with a second one."""
    cost = CostModel(base=0, token=0, decode_kv=1)
    request = Request(1, 101)
    for requests in ((request,), (request, request)):
        instance = Instance("long", Limits(1000, 9, 9), Rules(eviction=False), cost, requests)
        assert bound(instance, TBT) == 99
        assert bound(instance, TPOT) == len(requests) * 50  # 5050 / 100 = 50.5


def test_no_second_token_no_time_between() -> None:
    instance = problem(Request(3, 1), Request(1, 1), cost=SERVED)
    assert values(instance, one_after_another(instance)) == (0, 0)
    assert (bound(instance, TPOT), bound(instance, TBT)) == (0, 0)
    assert objective_text(TPOT, instance.requests, 0) == "0.000 ms"


def least_times(instance: Instance) -> list[list[int]]:
    """Return what each token after the first takes at least, one by one, of every request."""
    cost, limits, rules = instance.cost, instance.limits, instance.rules
    pieces = [(cost.base + cost.cpu_batch, cost.token), *((b + cost.cpu_batch, t) for b, t in cost.pieces)]
    found = []
    for request in instance.requests:
        times = []
        for size in range(request.input + 1, request.input + request.output):
            decode = max(b + t for b, t in pieces) + cost.decode_req + cost.decode_kv * (size - 1)
            steps = -(-size // limits.prefill_tokens) if rules.chunked_prefill else 1
            fill = max(steps * b + t * size for b, t in pieces) + cost.prefill_sq * size**2 + cost.prefill_req * steps
            allowed = rules.eviction and (rules.chunked_prefill or size <= limits.prefill_tokens)
            times.append(min(decode, fill) if allowed else decode)
        found.append(times)
    return found


@QUICK
@given(instances(online=True, swap=True, most_tokens=9))
def test_bounds_are_sums_and_percentiles_of_least_times(instance: Instance) -> None:
    times = [own for own in least_times(instance) if own]
    every = sorted(time for own in times for time in own)
    assert bound(instance, TPOT) == sum(sum(own) // len(own) for own in times)
    rank = next(rank for rank in range(len(every) + 1) if 100 * rank >= 99 * len(every))
    assert bound(instance, TBT) == (every[rank - 1] if every else 0)


@settings(QUICK, max_examples=60)
@given(instances(online=True, swap=True, most_tokens=6), st.sampled_from(sorted(set(STANDARD) - {"planner"})))
def test_no_policy_beats_the_bounds(instance: Instance, name: str) -> None:
    """What a policy's run says of itself, compiled or not, is what the checker computes batch by batch."""
    for objective in BETWEEN:
        result = simulate(instance, name, objective)
        assert result.value is None or bound(instance, objective) <= result.value
        assert violations(result_document(result)) == ()


@settings(QUICK, max_examples=60)
@given(st.data(), instances(online=True))
def test_one_after_another_is_legal_and_optimal_without_refills(data: st.DataObject, instance: Instance) -> None:
    order = data.draw(st.sampled_from([(), *permutations(range(len(instance.requests)))]))
    schedule = one_after_another(instance, order)
    assert check_schedule(instance, schedule, Restrictions(order=order))[0] == []
    kept = replace(instance, rules=replace(instance.rules, eviction=False))
    assert values(kept, schedule) == (bound(kept, TPOT), bound(kept, TBT))


@pytest.mark.parametrize("objective", BETWEEN)
def test_solve_proves_the_optimum_where_refills_are_dear(objective: Objective) -> None:
    instance = problem(Request(3, 4), Request(1, 3, arrival_ps=5), cost=replace(SERVED, prefill_req=20))
    best = {TPOT: 39, TBT: 24}[objective]
    for restrictions in (FREE, Restrictions(order=(1, 0)), Restrictions(("reordering", "chunked"), max_batch=1)):
        result = solve(instance, objective, restrictions=restrictions, time_limit=20, workers=1)
        assert (result.status, result.badge) == (Status.OPTIMAL, Badge.CERTIFIED)
        assert result.value == result.bound == best
        assert violations(result_document(result)) == ()
    raised = result_document(result) | {"bound": best + 1, "value": best + 1}
    assert violations(raised)
    none = solve(instance, objective, restrictions=Restrictions(at_most=best - 1), time_limit=20, workers=1)
    assert none.status == Status.INFEASIBLE


@pytest.mark.parametrize("objective", BETWEEN)
def test_solve_claims_no_optimum_where_refills_are_cheap(objective: Objective) -> None:
    """Alone no request is refilled; a request that is decodes for 111 ps, the bound has 13 ps for the second token."""
    instance = problem(Request(2, 2), Request(2, 2), cost=CostModel(base=10, token=1, decode_req=100))
    result = solve(instance, objective, time_limit=20, workers=1)
    assert (result.status, result.badge) == (Status.FEASIBLE, Badge.CERTIFIED)
    assert result.bound == {TPOT: 2 * 13, TBT: 13}[objective]
    assert result.bound is not None
    assert result.value is not None
    assert result.bound < result.value <= {TPOT: 2 * 111, TBT: 111}[objective]


@pytest.mark.parametrize("objective", BETWEEN)
@pytest.mark.parametrize("name", entries(FORMULATION_GROUP))
def test_every_formulation_refuses_them(name: str, objective: Objective) -> None:
    rules = {"chunked_prefill": False}
    offline = problem(Request(1, 2), Request(1, 2), cost=CostModel(base=10, token=1), **rules)
    online = replace(offline, requests=(Request(1, 2), Request(1, 2, arrival_ps=7)))
    for instance in (offline, online, replace(online, rules=Rules())):
        with pytest.raises(UnsupportedError, match=f"objective {objective.value}"):
            make_formulation(name, {}).solve(Task(instance, objective, time_limit_s=5, workers=1))
    with pytest.raises(InputError, match=f"a method that covers objective {objective.value}"):
        solve(replace(offline, cost=replace(offline.cost, decode_req=99)), objective, method=name, time_limit=5)


def test_they_are_neither_planned_nor_exported() -> None:
    instance = problem(Request(1, 2), cost=SERVED)
    for objective in BETWEEN:
        result = simulate(instance, "planner", objective)
        assert (result.status, result.value) == (Status.FAILED, None)
        assert f"it does not plan for {objective.value}" in (result.message or "")
        with pytest.raises(InputError, match=objective.value):
            export_model(instance, objective, method="infermax_milp")


@pytest.mark.parametrize("objective", BETWEEN)
@pytest.mark.parametrize("name", sorted(set(BOUNDS) - {"alone"}))
def test_other_bounds_and_their_certificates_say_nothing(name: str, objective: Objective) -> None:
    requests = tuple(Request(1, 2, slo_e2e_ps=30) for _ in range(8))
    instance = problem(*requests, cost=SERVED, chunked_prefill=False, eviction=False)
    assert bound_method(name)(instance, objective) is None
    others = [bound_method(name)(instance, other) for other in Objective if other.is_monotone]
    for found in filter(None, others):
        with pytest.raises(UnprovedError, match=r"objective|says nothing"):
            proved_bound(instance, FREE, objective, found.certificate)


def test_documents_of_earlier_versions_do_not_have_them() -> None:
    document = result_document(simulate(problem(Request(2, 3), cost=SERVED), "vllm"))
    for name in ("mean_tpot", "p99_tbt"):
        wrong = json.loads(dump(document))
        wrong["metrics"]["objectives"][name] += 1
        (violation,) = violations(wrong)
        assert violation.startswith(f"metrics.objectives.{name} is ")
        del document["metrics"]["objectives"][name]
        assert violations(document) == ()


def test_a_mean_is_over_requests_with_a_second_token() -> None:
    requests = (Request(1, 1), Request(1, 2), Request(1, 3), Request(1, 1), Request(1, 2))
    assert objective_text(TPOT, requests, 6 * 10**9) == "2.000 ms"
    assert objective_text(Objective.MEAN_E2E, requests, 10**10) == "2.000 ms"
    assert objective_text(TBT, requests, 10**9) == "1.000 ms"
