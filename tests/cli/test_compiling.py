"""The first compilation on a machine is announced, and takes nothing of the time limit."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import numba
import pytest

import optsched.machine_code  # numba tells the stopwatch
from optsched import solve
from optsched.cli.streams import announcing
from optsched.model.result import Status
from optsched.solvers.formulation import ProgressEvent
from optsched.stopwatch import STOPWATCH, Stopwatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list whose only item is what the system's clock says."""
    now = [100.0]
    monkeypatch.setattr("optsched.stopwatch.time.perf_counter", lambda: now[0])
    return now


def test_the_clock_stands_still_while_the_compiler_runs(clock: list[float]) -> None:
    """3 s, then a compilation of 20 s that takes another one of 5 s along, then 2 s."""
    watch = Stopwatch()
    started = watch.now_s()
    clock[0] += 3
    watch.compiling()
    clock[0] += 10
    assert watch.now_s() - started == 3
    watch.compiling()
    clock[0] += 5
    watch.compiled()
    clock[0] += 5
    watch.compiled()
    assert watch.now_s() - started == 3
    clock[0] += 2
    assert watch.now_s() - started == 5


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_first_compilation_is_announced_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    with announcing():
        for stream in (file, terminal):
            monkeypatch.setattr(sys, "stderr", stream)
            watch = Stopwatch()
            for _ in range(2):
                watch.compiling()
                watch.compiled()
    assert terminal.getvalue() == "optsched: compiling once on this machine, 10 to 30 s\n"
    assert file.getvalue() == ""


def test_numba_stops_the_clock() -> None:
    assert optsched.machine_code.dispatcher_of is not None
    twice: Any = numba.njit(lambda number: 2 * number)
    spent = [STOPWATCH._compiled_s]
    for number in (3, 4):
        assert twice(number) == 2 * number
        spent.append(STOPWATCH._compiled_s)
    assert spent[0] < spent[1] == spent[2]


@pytest.mark.parametrize("compiling", [True, False])
def test_only_compiling_takes_nothing_of_the_limit(compiling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 s pass before the method begins, of 60 that it may take."""
    real, passed = time.perf_counter, [0.0]
    monkeypatch.setattr("optsched.stopwatch.time.perf_counter", lambda: real() + passed[0])

    def wait(event: ProgressEvent) -> None:
        if passed[0]:
            return
        if compiling:
            STOPWATCH.compiling()
        passed[0] = 1000.0
        if compiling:
            STOPWATCH.compiled()

    found = solve("infermax-fig15-I4", method="token_cpsat", time_limit=60, workers=1, progress=wait)
    assert (found.status == Status.OPTIMAL) is (found.runtime_s < 1000) is compiling
