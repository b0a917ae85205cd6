"""At the terminal: completion, SIGTERM, COLUMNS, a suite where an instance is due, and --out that fails late."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from checkout import searching_here
from commands import optsched

from optsched.cli import result_output
from optsched.cli.group import COMMANDS, cli
from optsched.library import load_suite
from optsched.model.documents import dump, suite_document
from optsched.model.errors import InputError, Said


def _completed(words: str) -> list[str]:
    """Return what bash would offer after these words, the last of which is not finished."""
    asked = {"_OPTSCHED_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    program = "from optsched.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=searching_here() | asked, capture_output=True, text=True, check=False
    )
    return [line.partition(",")[2] for line in ended.stdout.splitlines() if line.startswith("plain,")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("optsched solve infermax-fig15-I1", ["infermax-fig15-I1", "infermax-fig15-I16", "infermax-fig15-I128"]),
        ("optsched table infermax-fig15", ["infermax-fig15", "infermax-fig15-chunked"]),
        ("optsched simulate x --policy vllm,vllm_e", ["vllm,vllm_ef"]),
        ("optsched bound x --objective mean_", ["mean_ttft", "mean_e2e", "mean_tpot"]),
        ("optsched bound x --profile a100-llama2-7b-l", ["a100-llama2-7b-linear"]),
    ],
)
def test_names_are_completed(words: str, expected: list[str]) -> None:
    offered = _completed(words)
    assert set(expected) <= set(offered)
    last = words.rsplit(" ", maxsplit=1)[-1]
    assert all(name.startswith(last) for name in offered)


def test_a_suite_in_the_place_of_an_instance_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = optsched(capsys, "bound", "infermax-fig15")
    assert outcome.code == 2
    assert outcome.err.startswith(
        "optsched: INSTANCE: got the suite infermax-fig15, expected one of its instances: infermax-fig15-I1, "
    )


def test_columns_are_obeyed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = optsched(capsys, "simulate", "infermax-fig15-I8", "--policy", "vllm").out.splitlines()
    assert max(map(len, lines)) <= 60
    monkeypatch.setenv("COLUMNS", "200")
    lines = optsched(capsys, "simulate", "infermax-fig15-I8", "--policy", "vllm").out.splitlines()
    assert max(map(len, lines)) > 60


def test_out_that_fails_late_still_prints_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(out: str | None, text: str) -> None:
        raise InputError("--out", Said("No space left on device"), "a file to write", out)

    monkeypatch.setattr(result_output, "write_out", full)
    file = str(tmp_path / "r.json")
    outcome = optsched(capsys, "bound", "infermax-fig15-I8", "--out", file)
    assert outcome.code == 2
    assert "bound  " in outcome.out
    assert "No space left on device" in outcome.err


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def test_sigterm_is_like_ctrl_c(
    handler: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A policy sends it in the middle of a command; shells start background jobs with Ctrl-C ignored."""
    monkeypatch.chdir(tmp_path)
    ctrl_c = signal.signal(signal.SIGINT, handler)
    body = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
    text = f"import os, signal, time\n\nclass Ending:\n    def next_batch(self, replica):\n        {body}\n"
    Path("mine.py").write_text(text)
    before = signal.getsignal(signal.SIGTERM)
    try:
        outcome = optsched(capsys, "simulate", "infermax-fig15-I8", "--policy", "mine.py:Ending")
    finally:
        signal.signal(signal.SIGINT, ctrl_c)
    assert (outcome.code, outcome.err.strip()) == (130, "optsched: interrupted; what was finished is kept")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_suite_in_a_file_is_no_instance(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(dump(suite_document(load_suite("infermax-fig15"), "a100-llama2-7b-linear")))
    assert "(one instance, not a suite)" in optsched(capsys, "bound", str(file)).err


def test_the_list_of_commands_is_what_their_modules_say() -> None:
    context = click.Context(cli)
    assert list(COMMANDS) == cli.list_commands(context)
    for name, (module, summary) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert f"optsched.cli.{module}" in sys.modules
        assert command.get_short_help_str(1000) == summary


def run_to_the_end(program: str) -> tuple[str, set[str]]:
    """Return what a program prints, and the modules that it has loaded in the end."""
    listing = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {program}"
    ended = subprocess.run(
        [sys.executable, "-c", listing], env=searching_here(), capture_output=True, text=True, check=True
    )
    printed, _, loaded = ended.stdout.rstrip("\n").rpartition("\n")
    return printed, set(loaded.split())


def running(line: str) -> str:
    """Return a program that runs a command."""
    return f"import sys; from optsched.cli import main; sys.argv = {['optsched', *line.split()]}; main()"


def test_help_loads_neither_the_package_nor_its_libraries() -> None:
    printed, loaded = run_to_the_end(running("--help"))
    assert "  solve " in printed
    assert not loaded & {"pydantic", "numpy", "numba", "ortools", "rich", "optsched.methods", "optsched.model.instance"}


@pytest.mark.parametrize(
    "program",
    [
        running("simulate infermax-fig15-I8 --policy vllm"),
        running("bound infermax-fig15-I8"),
        running("bound ladder-n16-LISO+SISO-k2 --objective mean_e2e"),
        "from optsched import Objective, load_instance; from optsched.methods.plan import plan_solve; "
        "plan_solve('auto', {}, load_instance('ladder-n16-LISO+SISO-k2'), Objective.MAKESPAN)",
        running("solve infermax-fig15-I8"),
        running("solve infermax-fig15-I8 --objective mean_e2e"),
        "import optsched.check, optsched_formulations.batching.search.request_kernel",
    ],
    ids=["simulate", "bound", "bound of latencies", "plan", "small", "small, latencies", "loops"],
)
def test_what_needs_no_solver_loads_none(program: str) -> None:
    """Each of these takes as long to load as all else together."""
    _, loaded = run_to_the_end(program)
    assert "pydantic" in loaded
    assert not loaded & {"numba", "ortools", "pandas", "highspy", "pulp", "scipy", "matplotlib"}
