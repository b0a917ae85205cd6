"""Methods side by side: every method on every instance in a process of its own, and a file of what is finished."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import Field, TypeAdapter

from optsched.calibrate.library import cost_model
from optsched.model.documents import instance_document, instance_sha256, parse_results, read_bytes
from optsched.model.domain import domain
from optsched.model.errors import InputError
from optsched.model.instance import Instance
from optsched.model.json_text import parse_json
from optsched.model.lines import append_lines, drop_unended_line, line_error
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Result, Status, versions

GRACE_S = 30.0
"""How long a method may overrun its time limit before it is interrupted."""
_PATIENCE_S = 10.0
"""How long an interrupted method may take to hand in what it has."""


class Ended(StrEnum):
    """How a trial ended.

    ``finished``: with a result. ``overran``: it had to be interrupted or killed after its time limit. ``failed``: it
    ended without a result; the message says why.
    """

    FINISHED = "finished"
    OVERRAN = "overran"
    FAILED = "failed"


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Point = tuple[Seconds, int | None, int | None]
"""Time since the start in s, incumbent, bound."""


@domain
class Record:
    """One method on one instance.

    Parameters
    ----------
    suite, instance, instance_sha256, requests, kappa
        The problem, and what describes it in tables.
    objective, method, time_limit_s, workers, seed
        What was asked of which method.
    ended, message
        How the process ended, and why if it gave no result.
    status, badge, value, bound
        The result's; without one, what was last reported, and a bound that nothing backs (``heuristic``).
    runtime_s
        The method's own time.
    points
        Incumbent and bound over time, at every improvement.
    versions, commit, machine, date
        How, where and when it was made.
    """

    suite: str
    instance: str
    instance_sha256: str
    requests: Annotated[int, Field(ge=1)]
    kappa: Seconds
    objective: Objective
    method: str
    time_limit_s: Seconds
    workers: Annotated[int, Field(ge=1)]
    seed: int
    ended: Ended
    message: str | None
    status: Status
    badge: Badge
    value: int | None
    bound: int | None
    runtime_s: Seconds
    points: tuple[Point, ...]
    versions: dict[str, str]
    commit: str
    machine: str
    date: str

    def __post_init__(self) -> None:
        # A record has no schedule and no certificate, so that no checker can say more of one that is read back.
        if self.status == Status.OPTIMAL and (self.value is None or self.value != self.bound):
            raise InputError("bound", self.bound, f"the value {self.value} of an optimum")
        if self.value is None or self.bound is None or self.badge == Badge.HEURISTIC:
            return
        if self.bound > self.value:
            raise InputError("bound", self.bound, f"at most the value {self.value}")

    @property
    def solved_s(self) -> float | None:
        """Seconds to the proved optimum; None if it was not proved within the limit."""
        proved = self.ended == Ended.FINISHED and self.status == Status.OPTIMAL and self.runtime_s <= self.time_limit_s
        return self.runtime_s if proved else None


_RECORD = TypeAdapter(Record)


@dataclass(frozen=True)
class Trial:
    """What is to be run.

    Parameters
    ----------
    suite, instance, objective, method, time_limit_s, workers, seed
        As in a `Record`.
    """

    suite: str
    instance: Instance
    objective: Objective
    method: str
    time_limit_s: float
    workers: int
    seed: int

    @property
    def key(self) -> tuple[object, ...]:
        """What a record has to share to be of this trial, made by the installed versions."""
        digest, installed = instance_sha256(self.instance), tuple(sorted(versions().items()))
        return digest, self.objective, self.method, self.time_limit_s, self.workers, self.seed, installed


def _key(record: Record) -> tuple[object, ...]:
    made = tuple(sorted(record.versions.items()))
    return (
        record.instance_sha256,
        record.objective,
        record.method,
        record.time_limit_s,
        record.workers,
        record.seed,
        made,
    )


class Records:
    """A file of records, a line each; what is finished stays, whatever happens to the run.

    Parameters
    ----------
    path
        Made with the first record. A last line that a crash cut short is dropped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[object, ...], Record] = {}
        if not path.exists():
            return
        drop_unended_line(path)
        for number, line in enumerate(read_bytes(path).split(b"\n")[:-1], 1):
            try:
                record = parse_json(_RECORD, line)
            except InputError as error:
                raise line_error(error, path, number) from None
            self._found[_key(record)] = record

    def find(self, trial: Trial) -> Record | None:
        """Return the record of a trial, None if it is not finished."""
        return self._found.get(trial.key)

    def add(self, record: Record) -> None:
        """Keep a record; it is on disk when this returns."""
        append_lines(self._path, [_RECORD.dump_json(record).decode()])
        self._found[_key(record)] = record


def side_by_side(
    trials: Sequence[Trial],
    records: Records,
    commit: str,
    finished: Callable[[Record, Result | None], None],
) -> Iterator[Record]:
    """Yield the record of every trial, from the file or run now.

    ``finished`` gets a new record and its result, if there is one, before the record is kept: whatever it does is done
    again if the run is killed meanwhile.
    """
    for trial in trials:
        record = records.find(trial)
        if record is None:
            record, result = run(trial, commit)
            finished(record, result)
            records.add(record)
        yield record


def run(trial: Trial, commit: str = "unknown", grace_s: float = GRACE_S) -> tuple[Record, Result | None]:
    """Run a trial in a process of its own, which ends with this one; also return its result if it gave one."""
    task = {
        "instance": instance_document(trial.instance),
        "objective": trial.objective.value,
        "method": trial.method,
        "time_limit_s": trial.time_limit_s,
        "workers": trial.workers,
        "seed": trial.seed,
    }
    command = [sys.executable, "-m", "optsched.study.worker"]
    lines: list[str] = []
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None, "asked for"
        assert process.stdout is not None, "asked for"
        reader = threading.Thread(target=_collect, args=(process.stdout, lines))
        reader.start()
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()  # and left open: its end is the worker's end
            overran = not _ended(process, trial.time_limit_s + grace_s)
            if overran:
                process.send_signal(signal.SIGINT)
                _ended(process, _PATIENCE_S)
        finally:
            _kill_group(process)
            reader.join()
        errors.seek(0)
        said = errors.read().strip().splitlines()
    return _record(trial, commit, lines, overran, said)


def _collect(stream: IO[str], lines: list[str]) -> None:
    lines.extend(stream)


def _ended(process: subprocess.Popen[str], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(process: subprocess.Popen[str]) -> None:
    """End the worker and whatever solvers it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _record(
    trial: Trial, commit: str, lines: Sequence[str], overran: bool, said: Sequence[str]
) -> tuple[Record, Result | None]:
    points: list[Point] = []
    result: Result | None = None
    for line in lines:
        if not line.endswith("\n"):
            break  # the worker was killed while it wrote
        entry: dict[str, Any] = json.loads(line)
        if "point" in entry:
            points.append(tuple(entry["point"]))
        else:
            result = parse_results(json.dumps(entry["result"]).encode(), cost_model)[0].result
    about: dict[str, Any] = {
        "suite": trial.suite,
        "instance": trial.instance.name,
        "instance_sha256": instance_sha256(trial.instance),
        "requests": len(trial.instance.requests),
        "kappa": round(trial.instance.kappa, 4),
        "objective": trial.objective,
        "method": trial.method,
        "time_limit_s": trial.time_limit_s,
        "workers": trial.workers,
        "seed": trial.seed,
        "commit": commit,
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    if result is not None:
        ended = Ended.OVERRAN if overran else Ended.FINISHED
        names = ("message", "status", "badge", "value", "bound", "runtime_s", "versions")
        found: dict[str, Any] = {name: getattr(result, name) for name in names}
        return Record(**about, **found, ended=ended, points=_backed(points, result)), result
    last = points[-1] if points else (0.0, None, None)
    record = Record(
        **about,
        ended=Ended.OVERRAN if overran else Ended.FAILED,
        message=said[-1] if said else None,
        status=Status.UNKNOWN,
        badge=Badge.HEURISTIC,
        value=last[1],
        bound=last[2],
        runtime_s=last[0],
        points=tuple(points),
        versions=dict(versions()),
    )
    return record, None


def _backed(points: Sequence[Point], result: Result) -> tuple[Point, ...]:
    """Return the points up to the result's own; reported on the way, a bound may be rounded up."""
    end = round(result.runtime_s, 4)
    found = [
        (min(time, end), value, None if bound is None or result.bound is None else min(bound, result.bound))
        for time, value, bound in points
    ]
    return (*found, (end, result.value, result.bound))


def machine() -> str:
    """Describe this machine: cores and processor."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*: (.+)$", text, flags=re.MULTILINE)
    return f"{cores} cores, {model[1].strip() if model else platform.processor() or platform.machine()}"
