"""Formulations side by side: those that use one core run together, and all end with the search."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from patience import PATIENCE_S

from optsched import Instance, Limits, Objective, Request, Rules, Status, solve
from optsched.methods import lanes, stages
from optsched.methods import plan as planning
from optsched.methods.bound import BoundRun, run_bound
from optsched.methods.formulations import make_formulation
from optsched.methods.solve import was_interrupted
from optsched.model.cost import CostModel
from optsched.model.result import Badge
from optsched.solvers.declaration import Declaration
from optsched.solvers.formulation import Formulation, Outcome, Task, Termination
from optsched.solvers.interrupt import wait_interruptibly
from optsched.stopwatch import STOPWATCH, now_s

TEN = CostModel(base=10, token=0)
HARD = Instance("hard", Limits(8, 64, 64), Rules(chunked_prefill=False), TEN, (Request(3, 4), Request(4, 3)) * 2)
"""No policy's value meets a bound, so that formulations are asked."""
NOTHING = Outcome(Termination.LIMIT, None, None, Badge.HEURISTIC)

Search = Callable[[Task], Outcome]


ONE_CORE = Declaration(sequential=True)


def only(monkeypatch: pytest.MonkeyPatch, searches: dict[str, Search], declared: Declaration = ONE_CORE) -> None:
    """Let ``auto`` have these formulations, and no others."""

    class Mine:
        declaration = declared

        def __init__(self, search: Search) -> None:
            self.solve = search

    def make(name: str, options: dict[str, str]) -> Formulation:
        return Mine(searches[name])

    monkeypatch.setattr(planning, "entries", lambda group: tuple(searches))
    monkeypatch.setattr(planning, "declaration_named", lambda name: declared)
    monkeypatch.setattr(planning, "make_formulation", make)


def proved(task: Task) -> Outcome:
    """Prove the optimum, as a formulation of ours does."""
    return make_formulation("token_cpsat", {}).solve(task)


def test_two_that_use_one_core_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def meet(task: Task) -> Outcome:
        assert task.workers == 1
        both.wait(PATIENCE_S)
        return NOTHING

    only(monkeypatch, {"a": meet, "b": meet})
    result = solve(HARD, time_limit=PATIENCE_S, workers=2)
    assert (result.status, result.message) == (Status.FEASIBLE, None)


def test_others_take_all_cores_that_are_free_and_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    running, cores = threading.Lock(), list[int]()

    def alone(task: Task) -> Outcome:
        assert running.acquire(blocking=False)
        cores.append(task.workers)
        running.release()
        return NOTHING

    only(monkeypatch, {"a": alone, "b": alone}, Declaration())
    assert solve(HARD, time_limit=PATIENCE_S, workers=3).message is None
    assert cores == [3, 3]


def test_with_one_worker_or_a_deterministic_limit_one_knows_what_the_other_has_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = threading.current_thread()

    def bounded(task: Task) -> Outcome:
        assert threading.current_thread() is here
        return Outcome(Termination.LIMIT, None, task.bound + 1, Badge.SOLVER_CLAIMED)

    only(monkeypatch, {"a": bounded, "b": bounded})
    least = solve(HARD, time_limit=0).bound
    assert least is not None
    for options in ({"workers": 1}, {"workers": 2, "deterministic_limit": 1.0}):
        assert solve(HARD, time_limit=PATIENCE_S, **options).bound == least + 2


def test_when_one_has_settled_the_question_time_is_up_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    def polls(task: Task) -> Outcome:
        started = now_s()
        while now_s() < started + task.time_limit_s:
            pass
        seen.append("time is up")
        return NOTHING

    def waits(task: Task) -> Outcome:
        stopped = threading.Event()
        wait_interruptibly(lambda: stopped.wait(PATIENCE_S), stopped.set)
        seen.append("asked to stop")
        return NOTHING

    only(monkeypatch, {"polls": polls, "waits": waits, "proves": proved})
    result = solve(HARD, time_limit=PATIENCE_S, workers=3)
    assert result.status == Status.OPTIMAL
    assert result.runtime_s < PATIENCE_S / 2
    assert sorted(seen) == ["asked to stop", "time is up"]
    assert not STOPWATCH.is_over()


def test_what_is_found_when_time_is_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(task: Task) -> Outcome:
        while not STOPWATCH.is_over():
            pass
        return Outcome(Termination.LIMIT, None, task.bound + 1, Badge.SOLVER_CLAIMED)

    only(monkeypatch, {"a": late, "b": late})
    before = solve(HARD, time_limit=0).bound
    assert before is not None
    assert solve(HARD, time_limit=2, workers=2).bound == before + 1


def test_bounds_that_are_left_are_tried_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def later(instance: Instance, objective: Objective, name: str) -> BoundRun:
        if name == "machine":
            both.wait(PATIENCE_S)
        return run_bound(instance, objective, name)

    def meets(task: Task) -> Outcome:
        both.wait(PATIENCE_S)
        return NOTHING

    only(monkeypatch, {"meets": meets}, Declaration(sequential=True, before_policies=True))
    monkeypatch.setattr(stages, "run_bound", later)
    result = solve(HARD, Objective.MEAN_E2E, time_limit=PATIENCE_S, workers=2)
    assert result.found_by["bound"] == "machine"


def test_one_that_raises_costs_nothing_that_the_others_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(task: Task) -> Outcome:
        raise ValueError("no")

    only(monkeypatch, {"fails": fails, "proves": proved})
    result = solve(HARD, time_limit=PATIENCE_S, workers=2)
    assert result.status == Status.OPTIMAL
    assert result.message is not None
    assert result.message.startswith("fails: ValueError: no (")


def test_one_that_looks_at_another_clock_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = threading.Event()

    def deaf(task: Task) -> Outcome:
        freed.wait(PATIENCE_S)
        return NOTHING

    monkeypatch.setattr(lanes, "_PATIENCE_S", 0.1)
    only(monkeypatch, {"deaf": deaf, "proves": proved})
    try:
        assert solve(HARD, time_limit=PATIENCE_S, workers=2).status == Status.OPTIMAL
    finally:
        freed.set()


# One that was left behind ends 2 s after all others; what it prints then comes after the result.
DEAF = """
import sys
import time
from optsched.cli import main
from optsched.methods import lanes
lanes._PATIENCE_S = 0.1
begun = lanes.Event()
def deaf(cores):
    begun.set()
    time.sleep(float(sys.argv[1]))
    print("late", flush=True)
def leave_one_behind(*_, **__):
    lanes.search_side_by_side([lanes.Job(True, deaf, lambda answer: answer())], 1, begun.is_set)
    print("result")
    return 3
if sys.argv[2:]:
    main.__globals__["cli"].main = leave_one_behind
    main()
leave_one_behind()
"""


def left_behind(*arguments: str) -> tuple[int, str, str]:
    program = [sys.executable, "-c", DEAF, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_process_ends_after_one_that_was_left_behind() -> None:
    """Or else Python ends its thread in the middle of what a solver runs, which crashes the process."""
    assert left_behind("2") == (0, "result\nlate\n", "")


def test_a_command_does_not_wait_for_one_that_was_left_behind() -> None:
    assert left_behind("1000", "as a command") == (3, "result\n", "")


def test_ctrl_c_ends_all_and_keeps_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def interrupted(task: Task) -> Outcome:
        if both.wait(PATIENCE_S) == 0:
            os.kill(os.getpid(), signal.SIGINT)
        while not STOPWATCH.is_over():
            pass
        return Outcome(Termination.LIMIT, None, task.bound + 1, Badge.SOLVER_CLAIMED)

    only(monkeypatch, {"a": interrupted, "b": interrupted})
    before = solve(HARD, time_limit=0).bound
    assert before is not None
    result = solve(HARD, time_limit=PATIENCE_S, workers=2)
    assert was_interrupted(result)
    assert result.bound == before + 1
