"""A process that carries out one trial after another, and what holds it: time, memory, and its end.

The process (`main`) gets trials through a socket that is its standard input, and answers through it: points of the
curve, at last the outcome. It stays alive between trials, so that starting Python and loading solvers is paid once.
When the socket ends, what started the process is gone, and it ends with all that it has started itself.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from optsched.model.errors import printable
from optsched.study.execute import Outcome, execute, received, sent
from optsched.study.record import Ended, Point
from optsched.study.trial import Kind, Trial

GRACE_S = 30.0
"""How long a search may overrun its time limit before it is interrupted."""
_PATIENCE_S = 10.0
"""How long an interrupted search may take to hand in what it has."""
_LOOK_S = 0.25
"""How often time and memory are looked at."""
TOO_LONG = "it took more than the"
"""How the message of a trial begins that has overrun."""


@dataclass(frozen=True)
class Allowance:
    """What a trial may use, and hand in.

    Parameters
    ----------
    grace_s
        Seconds by which a search may overrun its time limit before it is interrupted.
    policy_s
        Seconds that a policy or a bound may take; None for no limit.
    memory_bytes
        Resident memory of the process and all that it starts; None for no limit.
    schedules
        Whether results keep their schedules, which take time between processes.
    """

    grace_s: float = GRACE_S
    policy_s: float | None = None
    memory_bytes: int | None = None
    schedules: bool = True

    def seconds(self, trial: Trial) -> float | None:
        """Return after how many seconds a trial is interrupted."""
        if trial.kind != Kind.SOLVE:
            return self.policy_s
        return None if trial.time_limit_s is None else trial.time_limit_s + self.grace_s


class Worker:
    """One such process, started when there is something to run.

    Parameters
    ----------
    allowance
        What each trial may use.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._closed = False

    def run(self, trial: Trial) -> Outcome:
        """Carry out a trial and wait for it; that it ends badly, or the process does, is an outcome like any other."""
        points: list[Point] = []
        interrupted = threading.Event()
        try:
            process, connection = self._started()
            connection.send((trial, self._allowance.schedules))
            outcome = self._wait(process, connection, self._allowance.seconds(trial), points, interrupted)
        except (OSError, EOFError):
            if interrupted.is_set():
                outcome = Outcome(Ended.OVERRAN, _too_long(self._allowance.seconds(trial)), tuple(points))
            else:
                outcome = Outcome(Ended.LOST, self._last_words(), tuple(points))
        if outcome.ended in {Ended.OVERRAN, Ended.LOST}:
            self.end()
        return outcome

    def end(self) -> None:
        """End the process and whatever solvers it has started."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is not None and connection is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            connection.close()

    def kill(self) -> None:
        """End the process, which never starts again; a trial that it carries out is lost. Any thread may call it."""
        self._closed = True
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process for good, when no trial is carried out any more."""
        self.kill()
        self.end()
        self._errors.close()

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection]:
        if self._closed:
            raise EOFError
        if self._process is None or self._connection is None or self._process.poll() is not None:
            self.end()
            self._errors.seek(0)
            self._errors.truncate()
            self._connection, theirs = Pipe()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", "from optsched.study.worker import main; main()"],
                    stdin=theirs.fileno(),
                    stdout=self._errors,
                    stderr=self._errors,
                    start_new_session=True,
                )
        return self._process, self._connection

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        connection: Connection,
        seconds: float | None,
        points: list[Point],
        interrupted: threading.Event,
    ) -> Outcome:
        started, most = time.monotonic(), self._allowance.memory_bytes
        while True:
            while connection.poll(_LOOK_S):
                message = connection.recv()
                if isinstance(message, Outcome):
                    outcome = received(message)
                    return replace(outcome, ended=Ended.OVERRAN) if interrupted.is_set() else outcome
                points.append(message)
            elapsed = time.monotonic() - started
            if most is not None and (used := _resident_bytes(process.pid)) > most:
                self.end()
                said = f"memory: {used / 2**30:.2f} GiB, of which {most / 2**30:.2f} GiB are allowed"
                return Outcome(Ended.FAILED, said, tuple(points))
            if seconds is None or elapsed <= seconds:
                continue
            if not interrupted.is_set():
                interrupted.set()
                process.send_signal(signal.SIGINT)
            elif elapsed > seconds + _PATIENCE_S:
                return Outcome(Ended.OVERRAN, _too_long(seconds), tuple(points))

    def _last_words(self) -> str:
        """Return how the process ended, and the last line that it wrote."""
        process = self._process
        code = None if process is None else process.wait()
        how = "its process ended" if code is None or code >= 0 else f"its process was killed by signal {-code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"{how}: {printable(lines[-1])}" if lines else how


def _too_long(seconds: float | None) -> str:
    return f"{TOO_LONG} {seconds or 0.0:g} s that it was allowed"


def _resident_bytes(root: int) -> int:
    """Return the resident memory of a process and its descendants, as far as /proc tells."""
    total, todo = 0, [root]
    while todo:
        process = Path(f"/proc/{todo.pop()}")
        try:
            total += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            todo += [int(child) for task in process.glob("task/*/children") for child in task.read_text().split()]
        except OSError:
            continue  # it has ended meanwhile
    return total


def main() -> None:
    """Carry out trials until standard input ends."""
    connection = Connection(os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    trials: queue.SimpleQueue[tuple[Trial, bool]] = queue.SimpleQueue()
    sending = threading.Lock()

    def receive() -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    trials.put(connection.recv())
        finally:
            os.killpg(0, signal.SIGKILL)

    def send(message: Point | Outcome) -> None:
        with sending:
            connection.send(message)

    # A shell's background jobs ignore interrupts; a search that overruns is ended by one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=receive, daemon=True).start()
    while True:
        trial, whole = trials.get()
        outcome = execute(trial, report=send)
        if not whole and outcome.result is not None:
            outcome = replace(outcome, result=replace(outcome.result, schedule=None))
        send(sent(outcome))
