r"""Schedules in which every request runs in successive batches: few batches, by CP-SAT on where requests begin.

Offline, a schedule without pauses and evictions is no more than a first batch for each request. With :math:`x_{ct}`
requests of class c (input I and output O) that begin in batch t of J, memory asks for

.. math:: \sum_{c,k < O_c} ⌈(I_c + k)/b⌉\, x_{c,j-k} ≤ M/b, \qquad 0 ≤ j < J, \qquad \sum_t x_{ct} = n_c,

and so do C, P and N with what the requests run in batch j. That is far smaller than a model of evictions (`flow`), and
where many requests share the cache an optimal schedule mostly needs none. J falls by one as long as a schedule is
found; where the batch time has one piece all schedules without refills differ in J alone. So a schedule may not be
optimal, and nothing is bounded. How long CP-SAT takes for one J is luck, from half a second to minutes: so it begins
anew with another seed, and more time, again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from ortools.sat.python import cp_model

from optsched.bounds.volume import volume_bound
from optsched.model.instance import Instance, Request
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.solvers.cpsat import Values, minimize_cpsat
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import (
    Outcome,
    ProgressEvent,
    Task,
    Termination,
    UnsupportedError,
    require_seconds,
    silent,
)
from optsched.solvers.interrupt import until_interrupted
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import Costs, Horizon, value_to_beat
from optsched_formulations.batching.memory_only import Classes

_MOST_TERMS = 500_000
"""Terms of a model, beyond which it is not built."""
_TRY_S, _TRIES = 1.0, 3
"""Seconds of the first tries for a number of batches, and tries after which these are doubled."""


class Unbroken:
    """The method of this module, as `optsched.solvers.formulation.Formulation`."""

    declaration = Declaration(sequential=True, turns=(Turn(35, 0.25, (Regime.MANY_TOGETHER,)),))
    """Where few requests share the cache the best schedules evict."""

    def solve(self, task: Task) -> Outcome:
        """Look for schedules of an offline instance with few batches; it bounds nothing.

        Raises
        ------
        UnsupportedError
            For another objective than the makespan, arrivals, batches of one kind, prompts that no batch holds whole,
            an order of first runs, a limit in deterministic time, or if the model would be too large to build.
        """
        _require(task)
        return _Search(task).best()


class _Search:
    """One task: fewer and fewer batches, with the best schedule so far."""

    def __init__(self, task: Task) -> None:
        self._task, self._started = task, now_s()
        self._schedule, self._value = task.incumbent, task.incumbent_value

    def best(self) -> Outcome:
        """Return the best schedule, at Ctrl-C that so far."""
        until_interrupted(self._search)
        return Outcome(Termination.LIMIT, self._schedule, None, Badge.HEURISTIC)

    def _search(self, interrupted: threading.Event) -> None:
        task, instance = self._task, self._task.instance
        costs, classes = Costs(instance), _classes(instance)
        most = Horizon(costs, task.objective, value_to_beat(task), len(costs.tokens)).batches
        fewest = max(volume_bound(instance).batches, *(request.output for request in instance.requests))
        enough = max(task.bound, task.restrictions.at_most or 0)
        for batches in range(most, fewest - 1, -1):
            if self._value is not None and self._value <= enough:
                return
            model = _Model(classes, batches, task)
            found = model.schedule(lambda: 0.0 if interrupted.is_set() else self._left_s())
            if found is None:
                return
            makespan = evaluate(instance, found)["objectives"][task.objective.value]
            if self._value is None or makespan < self._value:
                self._schedule, self._value = found, makespan
                task.progress(ProgressEvent(now_s() - self._started, makespan, task.bound))

    def _left_s(self) -> float:
        return self._task.time_limit_s - (now_s() - self._started)


def _require(task: Task) -> None:
    instance, limits = task.instance, task.instance.limits
    if task.objective != Objective.MAKESPAN:
        raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan")
    if not instance.offline:
        raise UnsupportedError("requests that arrive over time, it is for those that arrive together")
    if not instance.rules.hybrid:
        raise UnsupportedError("batches of one kind, it needs hybrid ones")
    if max(request.input for request in instance.requests) > min(limits.prefill_tokens, limits.batch_tokens):
        raise UnsupportedError("prompts that no batch holds whole")
    if task.restrictions.first_runs(instance):
        raise UnsupportedError("an order of first runs")
    require_seconds(task)


@dataclass(frozen=True)
class _Class:
    """Requests of one input and output."""

    shape: Request
    members: tuple[int, ...]


def _classes(instance: Instance) -> list[_Class]:
    """Return the classes, large ones first: CP-SAT finds schedules sooner so."""
    classes = [_Class(instance.requests[members[0]], tuple(members)) for members in Classes(instance).members]
    return sorted(classes, key=lambda each: (each.shape.peak_tokens, each.shape.output), reverse=True)


class _Model:
    """Where requests begin, for a number of batches."""

    def __init__(self, classes: list[_Class], batches: int, task: Task) -> None:
        terms = batches * sum(each.shape.output for each in classes)
        if terms > _MOST_TERMS:
            raise UnsupportedError(f"a model of {terms} terms, more than {_MOST_TERMS}")
        self._classes, self._batches, self._task = classes, batches, task
        self._model = model = cp_model.CpModel()
        self._begin = [
            [model.new_int_var(0, len(each.members), "") for _ in range(batches - each.shape.output + 1)]
            for each in classes
        ]
        for each, begin in zip(classes, self._begin, strict=True):
            model.add(cp_model.LinearExpr.sum(begin) == len(each.members))
        for batch in range(batches):
            self._limit(batch)
        self._nothing = model.new_constant(0)

    def _limit(self, batch: int) -> None:
        """Let a batch hold and run no more than it may."""
        limits, eager = self._task.instance.limits, []
        held, running = [], []
        for each, begin in zip(self._classes, self._begin, strict=True):
            shape = each.shape
            for k in range(max(0, batch - len(begin) + 1), min(shape.output, batch + 1)):
                first = begin[batch - k]
                held.append((first, limits.blocks(shape.input + k)))
                running.append((first, shape.input if k == 0 else 1))
                if k == 0:
                    eager.append((first, shape.input))
        most, prompts = limits.batch_requests, sum(request.input for request in self._task.instance.requests)
        rows = [(held, limits.kv_blocks)]
        if prompts > limits.batch_tokens:
            rows.append((running, limits.batch_tokens))
        if prompts > limits.prefill_tokens:
            rows.append((eager, limits.prefill_tokens))
        if most is not None:
            rows.append(([(first, 1) for first, _ in running], most))
        for terms, bound in rows:
            variables, factors = [variable for variable, _ in terms], [factor for _, factor in terms]
            self._model.add(cp_model.LinearExpr.weighted_sum(variables, factors) <= bound)

    def schedule(self, left_s: Callable[[], float]) -> Schedule | None:
        """Return a schedule; None if there is none, or none is found in time."""
        for turn in count():
            seconds = min(_TRY_S * 2 ** (turn // _TRIES), left_s())
            if seconds <= 0:
                return None
            task = replace(self._task, time_limit_s=seconds, seed=self._task.seed + turn, progress=silent)
            answer = minimize_cpsat(self._model, self._nothing, task, int)
            if answer.termination == Termination.INFEASIBLE:
                return None
            if answer.value_of is not None:
                return self._read(answer.value_of)
        raise AssertionError("turns go on without end")

    def _read(self, value_of: Values) -> Schedule:
        runs: list[list[tuple[int, int]]] = [[] for _ in range(self._batches)]
        for each, begin in zip(self._classes, self._begin, strict=True):
            waiting = list(each.members)
            for batch, variable in enumerate(begin):
                for _ in range(value_of(variable)):
                    request = waiting.pop(0)
                    for k in range(each.shape.output):
                        runs[batch + k].append((request, each.shape.input if k == 0 else 1))
        return timed(self._task.instance, [Assignment(sorted(run), ()) for run in runs if run])
