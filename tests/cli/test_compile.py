"""`optsched compile` reaches every loop, says what it has done, and leaves nothing behind when it is interrupted."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
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
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two loops that are not compiled yet; what numba and ``compile`` keep stays in its folder."""
    package = tmp_path / "own_loops"
    package.mkdir()
    (package / "__init__.py").write_text(_LOOPS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))  # for the processes that compile, and the note
    (tmp_path / "kept").mkdir()
    for module in ("optsched.ahead.processes", "optsched.cli.compile_command"):
        monkeypatch.setattr(f"{module}.WARM_UPS", _warm_ups("first", "second"))
    return tmp_path


@pytest.mark.slow
def test_the_warm_ups_reach_every_loop() -> None:
    path = os.pathsep.join(sys.path)
    program = [sys.executable, str(ROOT / "tests/support/loops.py")]
    ran = subprocess.run(program, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [], "no warm-up of optsched.ahead.catalogue reaches these"


_ALL_THERE = 0, "all loops are compiled already\n", ""


@pytest.mark.slow
@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_second_run_finds_all_there(
    workers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = commands.optsched(capsys, "compile", "--workers", workers)
    assert (code, err) == (0, "")
    assert out.startswith("2 loops compiled in ")
    # It looks at its note and runs nothing.
    monkeypatch.delattr("optsched.ahead.processes.compile_all")
    assert commands.optsched(capsys, "compile") == _ALL_THERE


def _changed_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own_loops" / "__init__.py").write_text(_LOOPS.replace("3 *", "9 *"))


def _lost_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next((folder / "kept").rglob("*_thrice*.nbi")).unlink()


def _other_processor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cpuinfo").write_text("processor : 0\nmodel name : another one\n")
    monkeypatch.setattr("optsched.ahead.note._PROCESSOR", folder / "cpuinfo")


def _no_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "kept" / "optsched-compiled.json").write_text("[")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "compiles"), [(_changed_source, 2), (_lost_code, 1), (_other_processor, 0), (_no_note, 0)]
)
def test_what_has_changed_since_is_looked_at_again(
    change: Callable[[Path, pytest.MonkeyPatch], None],
    compiles: int,
    loops: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert commands.optsched(capsys, "compile")[0] == 0
    change(loops, monkeypatch)
    code, out, _ = commands.optsched(capsys, "compile")
    assert code == 0
    # Each of both loops is in the file that is new; numba has the code where only the note is of another state.
    assert out.startswith(f"{compiles} loops compiled in " if compiles else _ALL_THERE[1])
    monkeypatch.delattr("optsched.ahead.processes.compile_all")
    assert commands.optsched(capsys, "compile") == _ALL_THERE


@pytest.mark.slow
def test_sources_are_compiled_too(
    loops: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Containers often set it; without this each start would translate all sources anew.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert commands.optsched(capsys, "compile")[0] == 0
    assert list((loops / "own_loops" / "__pycache__").glob("__init__.*.pyc"))


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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])

    def twice(number: int) -> int:
        return 2 * number

    loop: Any = compiled(twice)
    assert loop(3) == 6
    assert loop.dispatcher.stats.cache_path is None
    code, out, err = commands.optsched(capsys, "compile")
    assert (code, out) == (2, "")
    assert err == (
        "optsched: NUMBA_CACHE_DIR: got nowhere to keep machine code, expected a folder that can be written\n"
    )
