"""`optsched compile` reaches every loop, says what it has done, and leaves nothing behind when it is interrupted."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import commands
import pytest
from checkout import ROOT

from optsched.ahead.processes import compile_all
from optsched.compiled import compiled

_LOOPS = """\
import time
from optsched.compiled import compiled

@compiled
def _twice(number):
    return 2 * number

@compiled
def _thrice(number):
    return 3 * number

def first():
    _twice(1), _twice(1.0)

def second():
    _thrice(1)

def endless():
    while True:
        time.sleep(60)
"""


def _warm_ups(*names: str) -> dict[str, str]:
    return {name: f"own_loops:{name}" for name in names}


@pytest.fixture
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with two loops that are not compiled yet."""
    (tmp_path / "own_loops.py").write_text(_LOOPS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "optsched.ahead.processes.WARM_UPS", {name: f"own_loops:{name}" for name in ("first", "second")}
    )


@pytest.mark.slow
def test_the_warm_ups_reach_every_loop() -> None:
    path = os.pathsep.join(sys.path)
    program = [sys.executable, str(ROOT / "tests/support/loops.py")]
    ran = subprocess.run(program, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [], "no warm-up of optsched.ahead.catalogue reaches these"


@pytest.mark.slow
@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_second_run_finds_all_there(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = commands.optsched(capsys, "compile", "--workers", workers)
    assert (code, err) == (0, "")
    assert out.startswith("2 loops compiled in ")
    assert commands.optsched(capsys, "compile") == (0, "all loops are compiled already\n", "")


@pytest.mark.slow
@pytest.mark.usefixtures("loops")
def test_an_interrupted_run_keeps_what_it_has_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optsched.ahead.processes.WARM_UPS", _warm_ups("endless", "first", "second"))
    with closing(compile_all(2)) as running:
        assert {next(running), next(running)} == {frozenset({"own_loops._twice"}), frozenset({"own_loops._thrice"})}
    assert not multiprocessing.active_children()
    monkeypatch.setattr("optsched.ahead.processes.WARM_UPS", _warm_ups("first"))
    assert list(compile_all(1)) == [frozenset()]


def test_without_a_folder_for_machine_code_loops_run_and_compile_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])

    def twice(number: int) -> int:
        return 2 * number

    loop: Any = compiled(twice)
    assert loop(3) == 6
    assert loop.stats.cache_path is None
    code, out, err = commands.optsched(capsys, "compile")
    assert (code, out) == (2, "")
    assert err == (
        "optsched: NUMBA_CACHE_DIR: got nowhere to keep machine code, expected a folder that can be written\n"
    )
