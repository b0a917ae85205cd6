"""Carrying out a trial, and what comes of it."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from optsched.calibrate.library import cost_model
from optsched.catalogue import FORMULATION_GROUP, POLICY_GROUP, BrokenEntryError, entries, in_file, lookup
from optsched.failures import FAILURES, failure_text
from optsched.methods.bound import bound
from optsched.methods.checked import DefectFoundError
from optsched.methods.plan import AUTO
from optsched.methods.policies import policy_in_file
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve, was_interrupted
from optsched.model.documents import parse_results, result_document
from optsched.model.domain import replace
from optsched.model.errors import InfeasibleInstanceError, InputError, Said, one_of, shown
from optsched.model.result import Badge, Result, Status, versions
from optsched.solvers.formulation import Progress, ProgressEvent, silent
from optsched.study.record import Ended, Point, Record, machine, now
from optsched.study.trial import Kind, Option, Trial
from optsched.uncollected import uncollected


@dataclass(frozen=True)
class Outcome:
    """What an attempt at a trial has given.

    Parameters
    ----------
    ended, message
        How it ended, and why if there is no result.
    points
        Incumbent and bound over time.
    result
        What the method says, already seen by the checker; None if it says nothing.
    defects
        Contradictions that were found on the way; `result` does not rest on them.
    error
        What was raised instead of a result; of what another process raised only wrong input.
    packed
        The result as `pack_result` packs it, where another process has done so: of a long schedule that takes a second.
    """

    ended: Ended
    message: str | None = None
    points: tuple[Point, ...] = ()
    result: Result | None = None
    defects: tuple[str, ...] = ()
    error: BaseException | None = None
    packed: bytes | None = dataclasses.field(default=None, compare=False, repr=False)


class Curve:
    """Incumbent and bound over time; solvers report them from threads of their own.

    Parameters
    ----------
    report
        Called with every new point.
    """

    def __init__(self, report: Callable[[Point], None] = lambda _: None) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._started = time.perf_counter()
        self.points: list[Point] = []

    def start(self) -> None:
        """Count time from now on."""
        self._started = time.perf_counter()

    def __call__(self, event: ProgressEvent) -> None:
        """Keep a point if incumbent or bound improves."""
        elapsed = time.perf_counter() - self._started
        with self._lock:
            _, incumbent, bound = self.points[-1] if self.points else (0.0, None, None)
            incumbents = [value for value in (incumbent, event.incumbent) if value is not None]
            bounds = [value for value in (bound, event.bound) if value is not None]
            now = (min(incumbents, default=None), max(bounds, default=None))
            if now != (incumbent, bound):
                self.points.append((round(elapsed, 4), *now))
                self._report(self.points[-1])


def execute(trial: Trial, watch: Progress = silent, report: Callable[[Point], None] = lambda _: None) -> Outcome:
    """Carry out a trial; only Ctrl-C, and what ends the process, gets through."""
    curve = Curve(report)

    def progress(event: ProgressEvent) -> None:
        curve(event)
        watch(event)

    defects: tuple[str, ...] = ()
    try:
        result = _run(trial, curve, progress)
    except DefectFoundError as found:
        result, defects = found.result, found.defects
    except (InputError, InfeasibleInstanceError) as error:
        return Outcome(Ended.FAILED, str(error), error=error)
    except FAILURES as error:
        return Outcome(Ended.FAILED, failure_text(error), tuple(curve.points), error=error)
    if trial.options and trial.kind == Kind.SIMULATE:
        given = {name: str(value) for name, value in trial.options.items()}
        result = replace(result, method=trial.method, options=result.options | given)
    ended = Ended.INTERRUPTED if was_interrupted(result) else Ended.FINISHED
    return Outcome(ended, result.message, backed(curve.points, result), result, defects)


def _run(trial: Trial, curve: Curve, progress: Progress) -> Result:
    if trial.kind == Kind.SIMULATE:
        policy: Any = configured(trial.method, trial.options) if trial.options else trial.method
        return simulate(
            trial.instance,
            policy,
            trial.objective,
            restrictions=trial.restrictions,
            predictor=trial.predictor,
            router=trial.router,
            evictor=trial.evictor,
            seed=trial.seed,
        )
    if trial.kind == Kind.BOUND:
        return bound(trial.instance, trial.objective, method=trial.method, restrictions=trial.restrictions)
    for name in entries(FORMULATION_GROUP) if trial.method == AUTO else (trial.method,):
        with suppress(BrokenEntryError, InputError):  # the search says so
            lookup(FORMULATION_GROUP, name, "method")  # importing solvers is not part of the time
    curve.start()
    return solve(
        trial.instance,
        trial.objective,
        method=trial.method,
        options={name: str(value) for name, value in trial.options.items()},
        time_limit=float("inf") if trial.time_limit_s is None else trial.time_limit_s,
        deterministic_limit=trial.deterministic_limit,
        restrictions=trial.restrictions,
        workers=trial.workers,
        seed=trial.seed,
        progress=progress,
    )


def configured(policy: str, options: Mapping[str, Option]) -> Any:
    """Return a policy with some of its fields changed; members of an enumeration are given by value.

    Raises
    ------
    InputError
        If the policy has no such field, or the field no such value.
    """
    found: Any = policy_in_file(policy) if in_file(policy) else lookup(POLICY_GROUP, policy, "policy")
    names = [field.name for field in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in names:
            expected = f"{one_of(name, names)} of policy {policy}" if names else f"no parameters: {policy} has none"
            raise InputError("parameter", name, expected)
        now = getattr(found, name)
        if isinstance(now, Enum):
            if value not in [member.value for member in type(now)]:
                raise InputError(f"{policy}.{name}", value, one_of(value, [str(each.value) for each in type(now)]))
            given[name] = type(now)(value)
        elif type(value) is type(now) or (type(now) is float and type(value) is int):
            given[name] = value
        else:
            raise InputError(f"{policy}.{name}", value, f"a value such as {now!r}")
    return dataclasses.replace(found, **given)


def record_of(
    trial: Trial,
    outcome: Outcome,
    *,
    suite: str = "",
    commit: str = "unknown",
    date: str | None = None,
    where: str | None = None,
) -> Record:
    """Return what is known of an attempt, made now and here unless it is said when and where.

    Without a result the last point says what it had.
    """
    result, last = outcome.result, outcome.points[-1] if outcome.points else (0.0, None, None)
    return Record(
        suite=suite,
        instance=trial.instance.name,
        instance_sha256=trial.instance_sha256,
        requests=len(trial.instance.requests),
        kappa=round(trial.instance.kappa, 4),
        objective=trial.objective,
        method=trial.label,
        time_limit_s=trial.time_limit_s,
        workers=trial.workers,
        seed=trial.seed,
        ended=outcome.ended,
        message=outcome.message,
        status=Status.UNKNOWN if result is None else result.status,
        badge=Badge.HEURISTIC if result is None else result.badge,
        value=last[1] if result is None else result.value,
        bound=last[2] if result is None else result.bound,
        runtime_s=last[0] if result is None else result.runtime_s,
        points=outcome.points,
        versions=dict(versions()) if result is None else result.versions,
        commit=commit,
        machine=machine() if where is None else where,
        date=now() if date is None else date,
    )


def backed(points: Sequence[Point], result: Result) -> tuple[Point, ...]:
    """Return the points up to the result's own; reported on the way, a bound may be rounded up."""
    end = round(result.runtime_s, 4)
    found = [
        (min(time, end), value, None if bound is None or result.bound is None else min(bound, result.bound))
        for time, value, bound in points
    ]
    return (*found, (end, result.value, result.bound))


def pack_result(result: Result) -> bytes:
    """Return a result document, packed."""
    with uncollected():
        text = json.dumps(result_document(result), separators=(",", ":"))
    return zlib.compress(text.encode(), 1)


def sent(outcome: Outcome) -> Outcome:
    """Return an outcome for another process: the result packed, of what was raised only wrong input, in words."""
    error, result = None, outcome.result
    if isinstance(outcome.error, InputError):
        said, value = outcome.error, outcome.error.value
        error = InputError(said.field, value if type(value) is Said else Said(shown(value)), said.expected, said.source)
    packed = None if result is None else outcome.packed or pack_result(result)
    return dataclasses.replace(outcome, result=None, error=error, packed=packed)


def received(outcome: Outcome) -> Outcome:
    """Return the outcome of which `sent` came from another process."""
    if outcome.packed is None:
        return outcome
    (found,) = parse_results(zlib.decompress(outcome.packed), cost_model)
    return dataclasses.replace(outcome, result=found.result)
