"""The time limit holds while models are built, and one that is too large to build is refused at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from test_congestion import busy
from test_ramp import equal_requests

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace, solve
from optsched.bounds.bound import Bound
from optsched.bounds.congestion import congestion_bound
from optsched.bounds.ramp import ramp_bound
from optsched.check import proved_bound
from optsched.methods import stages
from optsched.methods.bound import BoundRun, run_bound
from optsched.methods.formulations import make_formulation
from optsched.model.cost import CostModel
from optsched.model.errors import InputError
from optsched.solvers.deadline import Deadline, OutOfTimeError
from optsched.solvers.formulation import Task, Termination, UnsupportedError
from optsched.stopwatch import STOPWATCH, Stopwatch

COST = CostModel(base=100, token=1)
WHOLE = Instance("whole", Limits(8, 64, 64), Rules(chunked_prefill=False), COST, (Request(2, 3),) * 4)
CHUNKS = replace(WHOLE, rules=Rules())


def never(*_: object, **__: object) -> None:
    raise AssertionError("time is up")


@pytest.mark.parametrize("instance", [WHOLE, CHUNKS], ids=["whole", "chunks"])
@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.MEAN_E2E])
def test_no_solver_is_asked_when_time_is_up(
    instance: Instance, objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optsched_formulations.batching.token.minimize.minimize_cpsat", never)
    monkeypatch.setattr("optsched_formulations.batching.infermax.minimize.Programme", never)
    monkeypatch.setattr("optsched_formulations.batching.pairs.solution.Priced", never)
    for name in ("token_cpsat", "infermax_milp", "pair_flow"):
        try:
            outcome = make_formulation(name, {}).solve(Task(instance, objective, time_limit_s=-1.0, bound=7))
        except UnsupportedError:
            assert name == "pair_flow"
            continue
        assert outcome.termination == Termination.LIMIT
        assert outcome.schedule is None
        assert outcome.bound in {None, 7}


@pytest.mark.parametrize(
    ("name", "module", "counted", "message"),
    [
        ("token_cpsat", "token.chunks", "Horizon", "it builds up to 200000"),
        ("infermax_milp", "infermax.model", "Plan", "it builds up to 50000"),
    ],
)
def test_what_is_too_large_whatever_is_counted_is_refused_before(
    name: str, module: str, counted: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting how many batches are enough takes seconds for thousands of requests."""
    large = replace(CHUNKS, limits=replace(CHUNKS.limits, kv_tokens=300_000), requests=(Request(1, 250_000),))
    monkeypatch.setattr(f"optsched_formulations.batching.{module}.{counted}", never)
    with pytest.raises(UnsupportedError, match=message):
        make_formulation(name, {}).solve(Task(large, Objective.MAKESPAN))


@pytest.mark.parametrize(("until", "raises"), [(-math.inf, True), (math.inf, False)])
def test_a_deadline(until: float, raises: bool) -> None:
    deadline = Deadline(until)
    require: Callable[[], None] = deadline.require
    assert deadline.left_s() == (0.0 if raises else math.inf)
    if raises:
        with pytest.raises(OutOfTimeError):
            require()
    else:
        require()


def test_time_is_up_for_what_a_thread_does_in_a_block() -> None:
    watch = Stopwatch()
    before = watch.now_s()
    with watch.limited(1000):
        assert not watch.is_over()
        with watch.limited(-1):
            assert watch.is_over()
            assert watch.left_s() < 0
            assert watch.now_s() > before + 10**6
        with watch.limited(math.inf):
            assert 0 < watch.left_s() <= 1000
        assert not watch.is_over()
    assert watch.left_s() == math.inf
    assert watch.now_s() < before + 1000


@pytest.mark.slow
@pytest.mark.parametrize("bound", [congestion_bound, ramp_bound])
def test_a_bound_ends_with_what_it_has(bound: Callable[[Instance, Objective], Bound | None]) -> None:
    """What is proved in no time is less than in time enough, and proved."""
    instance, objective = equal_requests(64), Objective.MAKESPAN
    if bound is congestion_bound:
        instance, objective = busy(64), Objective.MEAN_E2E
    whole = bound(instance, objective)
    assert whole is not None
    with STOPWATCH.limited(-1):
        hurried = bound(instance, objective)
    if hurried is not None:
        assert proved_bound(instance, Restrictions(), objective, hurried.certificate) == hurried.value
        assert hurried.value < whole.value


def test_bounds_leave_time_for_the_method_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not cover the instance is refused, however long bounds would take."""

    def endless(*asked: Any) -> BoundRun:
        while asked[2] != "volume" and not STOPWATCH.is_over():
            pass
        return run_bound(*asked)

    monkeypatch.setattr(stages, "run_bound", endless)
    with pytest.raises(InputError, match="chunked prefill"):
        solve(CHUNKS, method="class_flow", time_limit=2)
