"""Some requests alone, and what others take: a bound below every optimum, whatever the core, and its certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as changed
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import require_bound_below_optimum
from strategies import instances, memory_only
from test_last_arrivals import INNER, PAUSED

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace
from optsched.check import UnprovedError, proved_bound
from optsched.check.certificates.core_alone import core_alone_bound
from optsched.check.problem import Problem, problem_of
from optsched.model.cost import CostModel
from optsched.model.result import Badge
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.core_alone import CoreAlone, core_part
from optsched_formulations.batching.refills import least_beyond_ps

FREE = Restrictions()
LADDER = {instance.name: instance for instance in ladder("a100-llama2-7b-linear").instances}

# A batch takes 10 and 1 for each token that it runs. Four cached tokens: a large request (3, 2) fills the cache with
# its second token. Requests 0 and 2 are large, from 0 and 20; request 1, (1, 1), comes at 5. The first runs 0-13 and
# 13-24. Then 3 + 1 tokens, 24-38, and the last decode, 38-49: 49 is optimal, as no batch can hold more.
# Request 1 takes 1, so that the core {0, 2} arrives at 0 and 19, ends 24, and then 37 and 48: 48 + 1 = 49.
BETWEEN = Instance(
    "between",
    Limits(4, 64, 64),
    Rules(chunked_prefill=False),
    CostModel(base=10, token=1),
    (Request(3, 2), Request(1, 1, arrival_ps=5), Request(3, 2, arrival_ps=20)),
)


def ask(instance: Instance = BETWEEN, **more: Any) -> tuple[Outcome, list[ProgressEvent]]:
    events: list[ProgressEvent] = []
    task = Task(instance, Objective.MAKESPAN, progress=events.append)
    return CoreAlone().solve(changed(task, **more)), events


def stated(core: list[int], inner: Mapping[str, Any] = INNER) -> dict[str, Any]:
    return {"kind": "core_alone", "requests": core, "certificate": inner}


def proved_by_brute_force(instance: Instance, core: list[int]) -> int:
    """Return what the checker proves with a proof of the core's optimum."""

    def prove(part: Problem, objective: Objective, _: Mapping[str, Any]) -> int:
        best = optimum(replace(instance, requests=part.requests), objective)
        assert best is not None
        return best

    return core_alone_bound(problem_of(instance, FREE), Objective.MAKESPAN, stated(core), prove)


def test_worked_example() -> None:
    assert optimum(BETWEEN) == 49
    part = core_part(BETWEEN, (0, 2))
    assert [request.arrival_ps for request in part.instance.requests] == [0, 19]
    assert part.added == 1
    assert proved_by_brute_force(BETWEEN, [0, 2]) == 1 + 48
    # Request 1 alone: one batch of 11 or more begins before 5, in which request 0 generates its first token, for 3.
    assert [request.arrival_ps for request in core_part(BETWEEN, (1,)).instance.requests] == [2]
    # The others take 3 + 1 each.
    assert proved_by_brute_force(BETWEEN, [1]) == 8 + 2 + 11
    outcome, events = ask()
    assert outcome.termination == Termination.LIMIT
    assert outcome.bound == 49
    assert events[-1].bound == 49
    assert outcome.badge == Badge.CERTIFIED
    assert outcome.certificate is not None
    assert outcome.certificate["requests"] == [0, 2]
    assert proved_bound(BETWEEN, FREE, Objective.MAKESPAN, outcome.certificate) == 49


@pytest.mark.parametrize(("at_most", "end"), [(48, Termination.INFEASIBLE), (49, Termination.LIMIT)])
def test_a_value_that_is_out_of_reach(at_most: int, end: Termination) -> None:
    outcome, _ = ask(restrictions=Restrictions(at_most=at_most))
    assert (outcome.termination, outcome.bound) == (end, 49)


def test_without_time_there_is_no_bound() -> None:
    outcome, events = ask(time_limit_s=0.0)
    assert (outcome.bound, outcome.badge, events) == (None, Badge.HEURISTIC, [])


def test_what_it_does_not_cover_is_refused() -> None:
    waiting = replace(BETWEEN, cost=CostModel(base=10, token=1, cpu_request=1))
    not_covered: tuple[dict[str, Any], ...] = (
        {"objective": Objective.MEAN_E2E},
        {"instance": replace(BETWEEN, requests=(Request(1, 1), Request(1, 1)))},
        {"instance": replace(BETWEEN, rules=Rules())},
        {"instance": waiting},
        {"restrictions": Restrictions(order=(0, 1, 2))},
    )
    for refused in not_covered:
        with pytest.raises(UnsupportedError):
            ask(**{"instance": BETWEEN, **refused})


def test_where_refills_are_cheap_a_core_alone_is_no_bound() -> None:
    """The example of `last_arrivals`: the early request's batch is the pause in which the late one is evicted."""
    assert optimum(PAUSED) == 100_034
    with pytest.raises(UnprovedError, match="generating token 2 of an input of 1 tokens takes 999999999 ps less"):
        proved_bound(PAUSED, FREE, Objective.MAKESPAN, stated([1]))
    assert ask(PAUSED)[0].bound is None


@pytest.mark.slow
@pytest.mark.parametrize("family", [instances(online=True, chunked=False), memory_only(online=True)])
def test_no_core_proves_more_than_the_optimum(family: st.SearchStrategy[Instance]) -> None:
    """Whatever core it is, and with its own optimum; and the formulation's cores are those of the checker."""

    @settings(
        max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
    )
    @given(family, st.data())
    def hold(instance: Instance, data: st.DataObject) -> None:
        assume(not instance.offline and not instance.rules.swap and instance.cost.cpu_request == 0)
        number = len(instance.requests)
        core = sorted(data.draw(st.sets(st.integers(0, number - 1), min_size=1)))
        part = core_part(instance, tuple(core))
        alone = optimum(part.instance)
        assert alone is not None
        best = optimum(instance)
        assert best is not None
        if least_beyond_ps(part.instance) < 0:
            with pytest.raises(UnprovedError, match="less by a refill"):
                proved_by_brute_force(instance, core)
            return
        assert proved_by_brute_force(instance, core) == part.added + alone <= best

    hold()


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(memory_only(online=True))
def test_bounds_never_exceed_the_optimum(instance: Instance) -> None:
    assume(not instance.offline)
    require_bound_below_optimum(instance, CoreAlone().solve(Task(instance, Objective.MAKESPAN)))


@pytest.mark.slow
def test_large_requests_decide_where_they_fill_the_cache() -> None:
    """Sixteen requests, of which eight are large: 338,311,402,829 is the best that other methods prove in a minute."""
    outcome, _ = ask(LADDER["ladder-n16-LILO+SISO-k2-poisson"], time_limit_s=120, incumbent_value=371_175_378_183)
    assert outcome.bound == 371_175_378_183


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"requests": []}, "requests is \\[\\], expected numbers of requests from 0 to 2"),
        ({"requests": [0, 3]}, "expected numbers of requests from 0 to 2"),
        ({"requests": [-1, 0]}, "expected numbers of requests from 0 to 2"),
        ({"requests": [True]}, "expected numbers of requests from 0 to 2"),
        ({"requests": [1, 1]}, "expected ascending numbers"),
        ({"requests": [2, 0]}, "expected ascending numbers"),
        ({"certificate": 1}, "certificate is 1, expected one of another kind"),
        ({"certificate": {"kind": "core_alone"}}, "expected one of another kind"),
        ({"certificate": {"kind": "hope"}}, "kind is 'hope'"),
    ],
)
def test_certificates_are_read_strictly(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(BETWEEN, FREE, Objective.MAKESPAN, stated([0, 2]) | change)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rules": Rules()}, "needs whole prefills"),
        ({"rules": Rules(chunked_prefill=False, swap=True)}, "does not cover swapping"),
        ({"cost": CostModel(base=10, token=1, cpu_request=1)}, "cpu_request is not 0"),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnprovedError, match=reason):
        proved_bound(replace(BETWEEN, **changes), FREE, Objective.MAKESPAN, stated([0, 2]))


def test_it_bounds_the_makespan_only() -> None:
    with pytest.raises(UnprovedError, match="kind core_alone bounds the makespan"):
        proved_bound(BETWEEN, FREE, Objective.MEAN_E2E, stated([0, 2]))
