"""Ctrl-C loses nothing: what a search has found by then is returned, written and legal."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from optsched import Instance, Status, load_instance, solve
from optsched.bounds.volume import volume_bound
from optsched.catalogue import FORMULATION_GROUP, entries
from optsched.cli import main
from optsched.methods.solve import INTERRUPTED
from optsched.solvers.interrupt import until_interrupted, wait_interruptibly

HARD, HARD_ONLINE = "ladder-n16-I4-O8-k2", "ladder-n16-LILO+SISO-k2-poisson"
"""No method proves them in less than minutes."""
ENGINES = (*((name,) for name in entries(FORMULATION_GROUP)), ("infermax_milp", "cbc"))
"""All formulations, with a solver if not their own choice."""

# Imports come before the word that the search begins: a busy machine takes seconds for them.
COMMAND = """
import sys
from optsched.catalogue import FORMULATION_GROUP, entries, lookup
from optsched.cli import main
for name in entries(FORMULATION_GROUP):
    lookup(FORMULATION_GROUP, name, "method")
print("begins", flush=True)
main()
"""

# Ctrl-C again and again, as people do; a formulation alone, without policies or a bound.
ALONE = """
import signal, sys
from optsched import Objective, check_schedule, load_instance
from optsched.methods.formulations import make_formulation
from optsched.solvers.formulation import Task
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
instance = load_instance(sys.argv[1])
formulation = make_formulation(sys.argv[2], {"solver": name for name in sys.argv[3:]})
signal.setitimer(signal.ITIMER_REAL, 3, 1)
outcome = formulation.solve(Task(instance, Objective.MAKESPAN, workers=1))
signal.setitimer(signal.ITIMER_REAL, 0)
assert outcome.schedule is None or not check_schedule(instance, outcome.schedule)[0]
assert outcome.bound is None if sys.argv[2] == "planner" else outcome.bound > 0
print(outcome.termination.value)
"""


def hard_for(method: str) -> str:
    """Return an instance that the method covers."""
    return HARD_ONLINE if method == "last_arrivals" else HARD


@pytest.mark.parametrize("method", [("auto",), *ENGINES], ids="-".join)
def test_the_command_writes_what_it_has(
    method: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, name = tmp_path / "out.json", hard_for(method[0])
    options = [
        "--method",
        method[0],
        "--out",
        str(out),
        *(word for solver in method[1:] for word in ("--solver", solver)),
    ]
    program = [sys.executable, "-c", COMMAND, "solve", name, *options]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        interrupted = time.perf_counter()
        try:
            printed, complaint = process.communicate(timeout=30)
        finally:
            process.kill()
        assert time.perf_counter() - interrupted < 10
    assert process.returncode == 130
    assert complaint.strip() == "optsched: interrupted; what was finished is kept"
    assert printed.startswith(f"{name}: makespan, feasible")
    document = json.loads(out.read_text())
    assert (document["method"], document["status"], document["message"]) == (method[0], "feasible", INTERRUPTED)
    assert document["schedule"]["batches"]
    assert document["value"] > document["bound"] >= volume_bound(load_instance(name)).value
    with pytest.raises(SystemExit) as ended:
        main(["check", str(out)])
    assert ended.value.code == 0, capsys.readouterr().out


@pytest.mark.parametrize("method", ENGINES, ids="-".join)
def test_a_formulation_returns_what_it_has(method: tuple[str, ...]) -> None:
    name = "infermax-fig15-I4" if method[0] == "infermax_milp" else hard_for(method[0])
    program = [sys.executable, "-c", ALONE, name, *method]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "limit\n", "")


def interrupting(seconds: float) -> threading.Timer:
    return threading.Timer(seconds, lambda: signal.raise_signal(signal.SIGINT))


def test_an_interrupt_in_a_policy_keeps_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("optsched.methods.solve.play", interrupted)
    instance: Instance = load_instance(HARD)
    result = solve(instance)
    assert (result.status, result.message) == (Status.BOUND_ONLY, INTERRUPTED)
    assert result.bound == volume_bound(instance).value


def test_an_interrupt_is_noticed_whoever_catches_it() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with until_interrupted() as came:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert came.is_set()
    with until_interrupted() as came:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the block ends at the interrupt")
    assert came.is_set()
    with until_interrupted() as came:
        pass
    assert not came.is_set()
    assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_run_without_signals() -> None:
    seen: list[bool] = []

    def run() -> None:
        with until_interrupted() as came:
            seen.append(came.is_set())
        wait_interruptibly(lambda: seen.append(True), lambda: None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert seen == [False, True]


def test_what_a_solver_raises_is_raised() -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        wait_interruptibly(fail, lambda: None)


def test_a_stop_is_asked_for_until_it_helps() -> None:
    asked: list[float] = []
    enough = threading.Event()

    def stop() -> None:
        asked.append(time.perf_counter())
        if len(asked) == 3:
            enough.set()

    timer = interrupting(0.2)
    timer.start()
    wait_interruptibly(lambda: enough.wait(20), stop)
    assert len(asked) == 3
