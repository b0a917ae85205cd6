"""Fewer and fewer batches in which requests only have to begin, as `unbroken` says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ortools.sat.python import cp_model

from optsched.bounds.volume import volume_bound
from optsched.model.instance import Instance, Request
from optsched.model.ints import Ints
from optsched.model.metrics import evaluate
from optsched.model.result import Badge
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.solvers.cpsat import Values, minimize_cpsat
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError, silent
from optsched.solvers.interrupt import until_interrupted
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import Costs, Horizon, value_to_beat
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.beginnings_kernel import Needs, Walk, walk_beginnings

_MOST_TERMS = 500_000
"""Terms of a model, beyond which it is not built."""
_MOST_USE = 1 << 60
"""What all requests of an instance take together, beyond which integers might wrap."""
_CPSAT_S = 1.0
"""Seconds that CP-SAT has for a number of batches."""
_STEPS, _LOOK = 100_000, 200
"""Steps after which a walk begins anew, and between two looks at the clock."""


class Beginnings:
    """One task: fewer and fewer batches, with the best schedule so far."""

    def __init__(self, task: Task) -> None:
        self._task, self._started = task, now_s()
        self._schedule, self._value = task.incumbent, task.incumbent_value
        self._rng = np.random.default_rng(task.seed)

    def best(self) -> Outcome:
        """Return the best schedule, at Ctrl-C that so far."""
        until_interrupted(self._search)
        return Outcome(Termination.LIMIT, self._schedule, None, Badge.HEURISTIC)

    def _search(self, interrupted: threading.Event) -> None:
        task, instance = self._task, self._task.instance
        costs = Costs(instance)
        most = Horizon(costs, task.objective, value_to_beat(task), len(costs.tokens)).batches
        fewest = max(volume_bound(instance).batches, *(request.output for request in instance.requests))
        enough = max(task.bound, task.restrictions.at_most or 0)
        needs = _Needs(instance, most)
        for batches in range(most, fewest - 1, -1):
            if self._value is not None and self._value <= enough:
                return
            begins = self._begins(needs, batches, lambda: 0.0 if interrupted.is_set() else self._left_s())
            if begins is None:
                return
            found = needs.schedule(batches, begins)
            makespan = evaluate(instance, found)["objectives"][task.objective.value]
            if self._value is None or makespan < self._value:
                self._schedule, self._value = found, makespan
                task.progress(ProgressEvent(now_s() - self._started, makespan, task.bound))

    def _begins(self, needs: _Needs, batches: int, left_s: Callable[[], float]) -> Sequence[int] | None:
        """Return where requests begin; None if there is no such schedule, or none is found in time."""
        model = _Model(needs, batches)
        seconds = min(_CPSAT_S, left_s())
        if seconds <= 0:
            return None
        answer = minimize_cpsat(*model.asked, replace(self._task, time_limit_s=seconds, progress=silent), int)
        if answer.termination == Termination.INFEASIBLE:
            return None
        if answer.value_of is not None:
            return model.read(answer.value_of)
        return _walked(needs.each, batches, self._rng, left_s)

    def _left_s(self) -> float:
        return self._task.time_limit_s - (now_s() - self._started)


@dataclass(frozen=True)
class _Class:
    """Requests of one input and output."""

    shape: Request
    members: tuple[int, ...]


class _Needs:
    """What the requests of an instance take of what may bind, from when they begin.

    Attributes
    ----------
    classes
        Large requests first: CP-SAT finds schedules sooner so.
    use
        By limit, class and batches since a request has begun.
    limit
        How much of each there is.
    each
        The same by request.
    """

    def __init__(self, instance: Instance, batches: int) -> None:
        self._instance = instance
        classes = [_Class(instance.requests[members[0]], tuple(members)) for members in Classes(instance).members]
        self.classes = sorted(classes, key=lambda each: (each.shape.peak_tokens, each.shape.output), reverse=True)
        limits, shapes = instance.limits, [each.shape for each in self.classes]
        terms = batches * sum(shape.output for shape in shapes)
        if terms > _MOST_TERMS:
            raise UnsupportedError(f"a model of {terms} terms, more than {_MOST_TERMS}")
        longest = max(shape.output for shape in shapes)
        begun = [[k < shape.output for k in range(longest)] for shape in shapes]
        blocks = [[limits.blocks(shape.input + k) for k in range(longest)] for shape in shapes]
        running = [[shape.input if k == 0 else 1 for k in range(longest)] for shape in shapes]
        prompts = [[shape.input if k == 0 else 0 for k in range(longest)] for shape in shapes]
        together = sum(request.input for request in instance.requests)
        rows = [(blocks, limits.kv_blocks)]
        if together > limits.batch_tokens:
            rows.append((running, limits.batch_tokens))
        if together > limits.prefill_tokens:
            rows.append((prompts, limits.prefill_tokens))
        if limits.batch_requests is not None:
            rows.append(([[1] * longest] * len(shapes), limits.batch_requests))
        if len(instance.requests) * max(limits.blocks(shape.peak_tokens) + shape.input for shape in shapes) > _MOST_USE:
            raise UnsupportedError(f"requests that take more than {_MOST_USE} together")
        self.use = np.array([use for use, _ in rows], dtype=np.int64) * np.array(begun, dtype=np.int64)
        self.limit = np.array([min(limit, _MOST_USE) for _, limit in rows], dtype=np.int64)
        class_of = {request: number for number, each in enumerate(self.classes) for request in each.members}
        alike = np.array([class_of[request] for request in sorted(class_of)], dtype=np.int64)
        output = np.array([shape.output for shape in shapes], dtype=np.int64)[alike]
        self.each = Needs(np.take(self.use, alike, axis=1), output, alike, self.limit)

    def schedule(self, batches: int, begins: Sequence[int]) -> Schedule:
        """Return the schedule of requests that begin in some batches."""
        runs: list[list[tuple[int, int]]] = [[] for _ in range(batches)]
        for request, (shape, begin) in enumerate(zip(self._instance.requests, begins, strict=True)):
            for k in range(shape.output):
                runs[begin + k].append((request, shape.input if k == 0 else 1))
        return timed(self._instance, [Assignment(tuple(run), ()) for run in runs if run])


class _Model:
    """Where requests begin, for a number of batches, as a model of CP-SAT."""

    def __init__(self, needs: _Needs, batches: int) -> None:
        self._classes = needs.classes
        model = cp_model.CpModel()
        self._begin = [
            [model.new_int_var(0, len(each.members), "") for _ in range(batches - each.shape.output + 1)]
            for each in needs.classes
        ]
        for each, begin in zip(needs.classes, self._begin, strict=True):
            model.add(cp_model.LinearExpr.sum(begin) == len(each.members))
        for use, limit in zip(needs.use, needs.limit, strict=True):
            for batch in range(batches):
                model.add(self._taken(use, batch) <= int(limit))
        self.asked = model, model.new_constant(0)

    def _taken(self, use: Ints, batch: int) -> cp_model.LinearExprT:
        variables, factors = [], []
        for each, begin, mine in zip(self._classes, self._begin, use.tolist(), strict=True):
            for k in range(max(0, batch - len(begin) + 1), min(each.shape.output, batch + 1)):
                if mine[k]:
                    variables.append(begin[batch - k])
                    factors.append(mine[k])
        return cp_model.LinearExpr.weighted_sum(variables, factors)

    def read(self, value_of: Values) -> list[int]:
        """Return where requests begin."""
        begins: dict[int, int] = {}
        for each, begin in zip(self._classes, self._begin, strict=True):
            at = [batch for batch, variable in enumerate(begin) for _ in range(value_of(variable))]
            begins.update(zip(each.members, at, strict=True))
        return [begins[request] for request in sorted(begins)]


def _walked(needs: Needs, batches: int, rng: np.random.Generator, left_s: Callable[[], float]) -> Sequence[int] | None:
    """Walk until no batch takes too much; return where requests begin, None if there is no time left."""
    while True:
        begin = rng.integers(batches - needs.output + 1)
        load = np.zeros((len(needs.limit), batches), dtype=np.int64)
        for request, at in enumerate(begin):
            load[:, at : at + needs.output[request]] += needs.use[:, request, : needs.output[request]]
        walk = Walk(begin, load, np.ones(load.shape), np.zeros((len(begin), batches), dtype=np.int64))
        for first in range(0, _STEPS, _LOOK):
            if walk_beginnings(needs, walk, first, _LOOK, int(rng.integers(1 << 32))):
                return list(walk.begin.tolist())
            if left_s() <= 0:
                return None
