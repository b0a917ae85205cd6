"""Ctrl-C loses nothing: what a search has found by then is returned, written and legal."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numba
import numpy as np
import pytest
from checkout import searching_here
from patience import PATIENCE_S, with_time_enough

from optsched import Instance, Status, check_schedule, load_instance, solve
from optsched.bounds.volume import volume_bound
from optsched.catalogue import FORMULATION_GROUP, entries
from optsched.cli import main
from optsched.methods.formulations import declaration_named
from optsched.methods.solve import INTERRUPTED
from optsched.model.ints import Ints
from optsched.model.schedule import one_after_another
from optsched.solvers.interrupt import until_interrupted, wait_interruptibly

HARD, HARD_ONLINE = "ladder-n16-I4-O8-k2", "ladder-n16-LILO+SISO-k2-poisson"
HARD_MIXED, HARD_TOGETHER = "ladder-n16-LILO+SISO-k2", "ladder-n12-LILO+SILO-k8"
"""No method proves them in less than minutes."""
ENGINES = (
    *((name,) for name in entries(FORMULATION_GROUP) if not declaration_named(name).at_once),
    ("infermax_milp", "cbc"),
)
"""All formulations but those that end at once, with a solver if not their own choice."""
COMMANDS = (
    ("auto",),
    ("token_cpsat",),
    ("class_flow_mip",),
    ("infermax_milp", "cbc"),
    ("state_search",),
    ("last_arrivals",),
)
"""One for each way to end: stages, CP-SAT, HiGHS, a solver of PuLP's, a search of ours, one that asks others."""

# Prints a line when a formulation begins: after imports, policies and bounds, however long they take. A shell that runs
# the tests in the background may have set Ctrl-C to be ignored.
COMMAND = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from optsched.catalogue import FORMULATION_GROUP, entries, lookup
from optsched.cli import main
def announced(solve):
    def announce(*arguments):
        print("begins", file=sys.stderr, flush=True)
        return solve(*arguments)
    return announce
for name in entries(FORMULATION_GROUP):
    formulation = lookup(FORMULATION_GROUP, name, "method")
    formulation.solve = announced(formulation.solve)
main()
"""

# Ctrl-C some seconds after the first progress report, and again and again until the solver has stopped, however long
# that takes; while its result is read, a signal would end the process. A formulation alone, without policies or a
# bound. CBC reports no progress, but starting it starts a process.
ALONE = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from optsched.solvers import interrupt
wait = interrupt.wait_interruptibly
def wait_impatiently(run, stop):
    def stop_again():
        signal.raise_signal(signal.SIGINT)
        stop()
    wait(run, stop_again)
interrupt.wait_interruptibly = wait_impatiently
from patience import interrupts
from optsched import Objective, check_schedule, load_instance
from optsched.methods.formulations import make_formulation
from optsched.solvers.formulation import Task
instance = load_instance(sys.argv[1])
formulation = make_formulation(sys.argv[3], {"solver": name for name in sys.argv[4:]})
with interrupts(float(sys.argv[2])) as progress:
    sys.addaudithook(lambda event, _: progress(event) if event == "subprocess.Popen" else None)
    objective = Objective.MEAN_E2E if sys.argv[3] == "pair_flow" else Objective.MAKESPAN
    outcome = formulation.solve(Task(instance, objective, workers=1, time_limit_s=1000, progress=progress))
assert outcome.schedule is None or not check_schedule(instance, outcome.schedule)[0]
assert (outcome.bound is None) == (sys.argv[3] in {"planner", "clock_beam", "reinsertion", "unbroken"})
print(outcome.termination.value, outcome.bound)
"""

# Ctrl-C while an extension module starts: `cp_model_helper` imports this one, and makes an error of its own of whatever
# comes out of that.
LOADING = """
import signal
import sys
import threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from optsched.solvers.interrupt import until_interrupted
def interrupts(event, arguments):
    if event == "import" and arguments[0] == "ortools.util.python.sorted_interval_list":
        signal.raise_signal(signal.SIGINT)
def loads(came):
    from ortools.sat.python import cp_model
    assert came.is_set()
    threading.Event().wait(float(sys.argv[1]))
    raise AssertionError("the block ends at the interrupt")
sys.addaudithook(interrupts)
assert until_interrupted(loads)
from ortools.sat.python import cp_model
assert cp_model.CpModel().validate() == ""
"""


def hard_for(method: str) -> str:
    """Return an instance that the method covers."""
    hard = dict.fromkeys(("free_pauses", "last_arrivals", "clock_beam", "core_alone"), HARD_ONLINE) | {
        "layer_search": HARD_MIXED
    }
    return (hard | {"pair_flow": HARD_TOGETHER}).get(method, HARD)


@pytest.mark.slow
@pytest.mark.parametrize("method", COMMANDS, ids="-".join)
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
        "--time-limit",
        "1000",
    ]
    program = [sys.executable, "-c", COMMAND, "solve", name, *options]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "begins\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        try:
            printed, complaint = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    *later, last = complaint.splitlines()
    assert set(later) <= {"begins", ""}
    assert last == "optsched: interrupted; what was finished is kept"
    assert printed.startswith(f"{name}: makespan, feasible")
    document = json.loads(out.read_text())
    assert (document["method"], document["status"], document["message"]) == (method[0], "feasible", INTERRUPTED)
    assert document["schedule"]["batches"]
    assert document["value"] > document["bound"] >= volume_bound(load_instance(name)).value
    with pytest.raises(SystemExit) as ended:
        main(["check", str(out)])
    assert ended.value.code == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("method", ENGINES, ids="-".join)
def test_a_formulation_returns_what_it_has(method: tuple[str, ...]) -> None:
    name = "infermax-fig15-I4" if method[0] == "infermax_milp" else hard_for(method[0])

    def interrupted(delay: float) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", ALONE, name, str(delay), *method]
        return subprocess.run(
            program,
            cwd=Path(__file__).parent,
            env=searching_here(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    # CBC's bound is 0 until it has solved the root.
    done = with_time_enough(interrupted, lambda done: done.stdout != "limit 0\n", 2 if "cbc" in method else 0.25)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"limit (None|[1-9]\d*)\n", done.stdout)


@pytest.mark.slow
def test_an_interrupt_in_a_policy_keeps_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("optsched.methods.stages.served_alone", interrupted)
    instance: Instance = load_instance(HARD)
    result = solve(instance)
    assert (result.status, result.message) == (Status.BOUND_ONLY, INTERRUPTED)
    assert result.bound == volume_bound(instance).value


def test_an_interrupt_is_noticed_whoever_catches_it() -> None:
    handler = signal.getsignal(signal.SIGINT)
    noticed: list[bool] = []

    def caught(came: threading.Event) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        noticed.append(came.is_set())

    def ended(_: threading.Event) -> None:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the block ends at the interrupt")

    assert until_interrupted(caught)
    assert noticed == [True]
    assert until_interrupted(ended)
    assert not until_interrupted(lambda _: None)
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_at_any_moment_is_noticed_and_none_is_left_behind() -> None:
    handler = signal.getsignal(signal.SIGINT)

    def interrupted_at(line: int) -> tuple[bool, int]:
        """Ctrl-C at one of the lines run from the handler's start on, in whichever function; how many there were."""
        lines = 0

        def traced(frame: object, event: str, _: object) -> object:
            nonlocal lines
            if event == "line" and signal.getsignal(signal.SIGINT) is not handler:
                lines += 1
                if lines == line:
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGINT)
            return traced

        sys.settrace(traced)  # type: ignore[arg-type]
        try:
            came = until_interrupted(lambda _: None)
        finally:
            sys.settrace(None)
        return came, lines

    moments = interrupted_at(0)[1]
    assert moments > 5
    for moment in range(1, moments + 1):
        assert interrupted_at(moment) == (True, moment)
        assert signal.getsignal(signal.SIGINT) is handler


class Finalised:
    """Ctrl-C comes while it is finalised, where an exception would be printed and go no further."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_while_an_object_is_finalised_comes_later() -> None:
    handler = signal.getsignal(signal.SIGINT)
    waiting = threading.Event()

    def waits(_: threading.Event) -> None:
        Finalised()
        waiting.wait(PATIENCE_S)
        raise AssertionError("the block ends at the interrupt")

    assert until_interrupted(waits)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
def test_an_interrupt_while_an_extension_module_starts_comes_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(PATIENCE_S)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_while_garbage_is_collected_comes_later() -> None:
    """What calls are told of it is Python's to print: hypothesis, for one, measures how long it takes."""
    handler, waiting = signal.getsignal(signal.SIGINT), threading.Event()

    def collecting(phase: str, _: object) -> None:
        if phase == "stop":
            signal.raise_signal(signal.SIGINT)
            gc.callbacks.remove(collecting)

    def waits(_: threading.Event) -> None:
        gc.callbacks.append(collecting)
        gc.collect()
        waiting.wait(PATIENCE_S)
        raise AssertionError("the block ends at the interrupt")

    assert until_interrupted(waits)
    assert collecting not in gc.callbacks
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_while_an_object_is_finalised_is_noticed_by_what_is_around() -> None:
    handler, noticed = signal.getsignal(signal.SIGINT), list[bool]()

    def searches(came: threading.Event) -> None:
        # The inner block ends before Ctrl-C is sent again.
        noticed.append(until_interrupted(lambda _: Finalised()))
        noticed.append(came.is_set())

    assert until_interrupted(searches)
    assert noticed == [True, True]
    assert signal.getsignal(signal.SIGINT) is handler


def doubled() -> Ints:
    """Compiled code loads the type of an array so; what is raised then is another error to it."""
    twice = numba.njit(lambda numbers: numbers + numbers)
    twice.compile("int64[:](int64[:])")
    numbers: Ints = twice(np.arange(3))
    return numbers


def first_rows() -> Ints:
    """Numpy asks whether rows are of one type before it compares them; what is raised then is another error to it."""
    return np.unique([[1, 2], [0, 3], [1, 2]], axis=0, return_index=True)[1]


def interrupted_in(inner: str, computes: Callable[[], object]) -> bool:
    """Return whether Ctrl-C that comes when a function is called ends what calls it, or the wait thereafter."""

    def traced(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == inner:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    def waits(_: threading.Event) -> None:
        sys.settrace(traced)
        computes()
        threading.Event().wait(PATIENCE_S)
        raise AssertionError("the block ends at the interrupt")

    try:
        return until_interrupted(waits)
    finally:
        sys.settrace(None)


@pytest.mark.parametrize(
    ("inner", "computed", "result"),
    [("_numba_unpickle", doubled, [0, 2, 4]), ("_promote_fields", first_rows, [1, 0])],
    ids=["numba", "numpy"],
)
def test_an_interrupt_where_another_error_would_follow_comes_later(
    inner: str, computed: Callable[[], Ints], result: list[int]
) -> None:
    results = list[list[int]]()
    assert interrupted_in(inner, lambda: results.append(computed().tolist()))
    assert results == [result]


@pytest.mark.parametrize("inner", ["_raw_object_cache_notify", "_raw_object_cache_getbuffer"])
def test_an_interrupt_while_numba_is_told_of_what_it_compiles_is_not_lost(
    inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    assert interrupted_in(inner, doubled)
    assert not lost


def test_only_the_first_few_interrupts_wait_for_what_reads_a_result() -> None:
    reached = 0

    def impatient(_: threading.Event) -> None:
        nonlocal reached
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        for _time in range(1000):
            signal.raise_signal(signal.SIGINT)
            reached += 1

    assert until_interrupted(impatient)
    assert 2 <= reached < 10


# Catches the first Ctrl-C to return what it has; the second one comes while it does so, a third one in the checker.
IMPATIENT = """
import signal
from optsched.model.result import Badge
from optsched.model.schedule import one_after_another
from optsched.solvers.formulation import Outcome, Termination
class Impatient:
    def solve(self, task):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        return Outcome(Termination.LIMIT, one_after_another(task.instance), None, Badge.HEURISTIC)
"""


def test_more_interrupts_lose_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*asked: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return check_schedule(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr("optsched.methods.stages.STARTING", ())
    monkeypatch.setattr("optsched.methods.checked.check_schedule", interrupted)
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    instance = load_instance(HARD)
    result = solve(instance, method=f"{tmp_path}/impatient.py:Impatient")
    assert (result.status, result.message) == (Status.FEASIBLE, INTERRUPTED)
    assert result.schedule == one_after_another(instance)


def test_other_threads_run_without_signals() -> None:
    seen: list[bool] = []

    def run() -> None:
        until_interrupted(lambda came: seen.append(came.is_set()))
        wait_interruptibly(lambda: seen.append(True), lambda: None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_S)
    assert seen == [False, True]


def test_what_a_solver_raises_is_raised() -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        wait_interruptibly(fail, lambda: None)


def test_a_stop_is_asked_for_until_it_helps() -> None:
    asked: list[None] = []
    enough = threading.Event()

    def run() -> None:
        signal.raise_signal(signal.SIGINT)
        enough.wait(PATIENCE_S)

    def stop() -> None:
        asked.append(None)
        if len(asked) == 3:
            enough.set()

    wait_interruptibly(run, stop)
    assert len(asked) == 3
