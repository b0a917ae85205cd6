"""The beam on the clock: legal schedules, optimal where nothing has to be cut, and optima of the ladder."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import legal_value
from strategies import assume_only_memory_binds, memory_only

from optsched import Instance, Limits, Objective, Request, Rules
from optsched.model.cost import CostModel
from optsched.solvers.formulation import Outcome, Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.clock_beam import ClockBeam

LADDER = {instance.name: instance for instance in ladder("a100-llama2-7b-linear").instances}
TEN = CostModel(base=10, token=0)
WHOLE = Rules(chunked_prefill=False)


def ask(instance: Instance, **more: Any) -> Outcome:
    return ClockBeam().solve(changed(Task(instance, Objective.MAKESPAN, time_limit_s=20), **more))


def value_of(instance: Instance, outcome: Outcome) -> int:
    assert outcome.termination == Termination.LIMIT
    assert outcome.bound is None
    return legal_value(instance, outcome.schedule)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(memory_only(online=True, most_requests=3) | memory_only(most_requests=3), st.booleans())
def test_schedules_are_legal_and_never_better_than_the_optimum(instance: Instance, eviction: bool) -> None:
    instance = changed(instance, rules=changed(instance.rules, eviction=eviction))
    assume(instance.cost.affine[0][0] > 0)
    assume_only_memory_binds(instance)
    outcome = ask(instance)
    best = optimum(instance)
    assert outcome.schedule is None or value_of(instance, outcome) >= best
    # Only schedules below the value known are looked for.
    assert ask(instance, incumbent_value=best).schedule is None


def test_one_that_waits_and_one_that_is_evicted() -> None:
    # Request 0 runs at 0 to 10 and 10 to 20; request 1 comes at 5 and fits beside its first tokens only.
    requests = (Request(4, 3), Request(1, 3, arrival_ps=5))
    instance = Instance("beside", Limits(6, 99, 99), WHOLE, TEN, requests)
    assert value_of(instance, ask(instance)) == optimum(instance)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ladder-n08-SILO+LISO-k2-poisson", 114_526_147_306),
        ("ladder-n24-LILO+SISO-k2-poisson", 556_681_216_304),
    ],
)
def test_optima_of_the_ladder(name: str, value: int) -> None:
    assert value_of(LADDER[name], ask(LADDER[name], bound=value)) == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": Objective.MEAN_E2E}, "objective mean_e2e"),
        ({"deterministic_limit": 1.0}, "a deterministic limit"),
        ({"instance": changed(LADDER["ladder-n04-SILO+LISO-k2-poisson"], cost=CostModel(0, 1))}, "without a base"),
    ],
)
def test_what_it_does_not_cover_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        ask(**{"instance": LADDER["ladder-n04-SILO+LISO-k2-poisson"], **changes})
