"""Solving for the optimum: policies for a start, combinatorial bounds, then exact formulations."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from optsched.bounds.bound import Bound
from optsched.bounds.catalogue import BOUNDS
from optsched.catalogue import FORMULATION_GROUP, broken_entries, entries
from optsched.failures import FAILURES, failure_text
from optsched.methods.arguments import read_integer, read_problem, read_seconds, read_seed
from optsched.methods.bound import run_bounds
from optsched.methods.checked import DefectError, DefectFoundError, checked_metrics, is_proved
from optsched.methods.formulations import Options, make_formulation, require_options
from optsched.methods.simulate import play
from optsched.model.domain import replace
from optsched.model.errors import InputError, one_of, require_type, shown
from optsched.model.feasibility import infeasibility
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.model.schedule import Schedule
from optsched.policies import STANDARD
from optsched.solvers.formulation import (
    Formulation,
    Outcome,
    Progress,
    ProgressEvent,
    SolverCrashError,
    Task,
    Termination,
    UnsupportedError,
    require_covered,
    silent,
)
from optsched.solvers.interrupt import until_interrupted

AUTO = "auto"
_BETWEEN = "; "
"""What stands between the sentences of a message."""
INTERRUPTED = "interrupted"
"""How the message of a result begins that Ctrl-C cut short (`was_interrupted`)."""
_START_SHARE = 0.3
"""Share of the time limit after which no further bound and no further policy is tried for a start."""
_CROWDED = 5.0
"""κ from which many requests share the cache."""
_SPARSE_PLAN = (
    ("token_cpsat", 0.02),
    ("planner", 0.01),
    ("last_arrivals", 0.15),
    ("state_search", 0.85),
    ("pattern_cg", 0.4),
    ("class_flow", 0.6),
    ("token_cpsat", 1.0),
)
_CROWDED_PLAN = (
    ("token_cpsat", 0.02),
    ("planner", 0.01),
    ("last_arrivals", 0.15),
    ("state_search", 0.3),
    ("pattern_cg", 0.4),
    ("class_flow", 0.85),
    ("token_cpsat", 1.0),
)
"""The formulations that ``auto`` tries in turn, each with its share of the time that is left.

The token-indexed model proves small instances at once; the planner soon finds a schedule to beat; the last requests to
arrive may decide alone; the state search goes furthest where few requests fit the cache together, or few classes; where
many do, patterns bound best, and the class flow finds schedules between the two."""
_BASELINES = frozenset({"infermax_milp", "class_flow_mip"})
"""Formulations to measure others against; ``auto`` leaves them out."""
_PLANNER = "planner"
_PLAN_SHARE = 0.6
"""Share of the time left that the planner may use where it is alone: its schedule has to be checked, too."""
_QUICK_SHARE = 0.05
"""Share of the time limit after which no bound begins before the planner has had its turn."""
_NO_OPTIONS: Options = MappingProxyType({})
_MOST_TOKENS = 2_000
"""Output tokens of all requests beyond which ``auto`` builds no exact models and only plans."""


def method_names() -> tuple[str, ...]:
    """Return ``auto`` and the names of all installed formulations."""
    return (AUTO, *entries(FORMULATION_GROUP))


def was_interrupted(result: Result) -> bool:
    """Return whether Ctrl-C cut the search for a result short."""
    return result.message is not None and result.message.partition(_BETWEEN)[0] == INTERRUPTED


@dataclass(frozen=True)
class _Claim:
    """A lower bound, what backs it, and which method claims it."""

    bound: int
    badge: Badge
    certificate: dict[str, Any] | None
    origin: str


_NO_CLAIM = _Claim(0, Badge.HEURISTIC, None, "")


@dataclass
class _Best:
    """The best schedule and bounds so far, which methods found them, and what went wrong.

    Attributes
    ----------
    least, least_by
        Least value of any schedule that the checker has replayed, and the method; it may be more than `at_most` allows.
    claims
        Bounds in ascending order, none above ``least``. The last one is the best; the others take its place if a
        schedule refutes it.
    failures
        A sentence for each method whose code raised.
    defects
        A sentence for each claim that contradicts the checker or a replayed schedule. Such a claim is dropped.
    """

    instance: Instance
    objective: Objective
    restrictions: Restrictions
    value: int | None = None
    schedule: Schedule | None = None
    metrics: dict[str, Any] | None = None
    found_by: str | None = None
    least: int | None = None
    least_by: str | None = None
    claims: list[_Claim] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)

    @property
    def claim(self) -> _Claim:
        """The best bound; one of badge ``heuristic`` if there is none."""
        return self.claims[-1] if self.claims else _NO_CLAIM

    @property
    def bound(self) -> int | None:
        return self.claim.bound if self.claims else None

    @property
    def closed(self) -> bool:
        return self.value is not None and self.value == self.bound

    @property
    def hopeless(self) -> bool:
        """Whether no schedule is as good as asked."""
        at_most = self.restrictions.at_most
        return at_most is not None and self.bound is not None and self.bound > at_most

    @property
    def settled(self) -> bool:
        """Whether nothing is left to search: the optimum is proved, or the question of `at_most` answered."""
        return self.closed or self.hopeless or (self.restrictions.at_most is not None and self.value is not None)

    @contextmanager
    def surviving(self, origin: str) -> Iterator[None]:
        """Run one method, and note what its code raises instead of ending the search; Ctrl-C ends it."""
        try:
            yield
        except DefectError as defect:
            self.defects.append(str(defect))
        except SolverCrashError as crash:
            self.failures.append(f"{origin}: {crash}")
        except FAILURES as error:
            self.failures.append(f"{origin}: {failure_text(error)}")

    def offer_schedule(self, schedule: Schedule, origin: str) -> None:
        """Take a schedule if it is better and as good as asked; it goes through the checker first.

        It refutes every bound above its value.
        """
        metrics = checked_metrics(self.instance, schedule, origin, self.restrictions)
        value = metrics["objectives"][self.objective.value]
        at_most = self.restrictions.at_most
        if (at_most is None or value <= at_most) and (self.value is None or value < self.value):
            self.value, self.schedule, self.metrics, self.found_by = value, schedule, metrics, origin
        if self.least is None or value < self.least:
            self.least, self.least_by = value, origin
        while self.claims and self.claim.bound > value:
            self._refute(self.claims.pop())

    def offer_bound(self, bound: int, badge: Badge, certificate: dict[str, Any] | None, origin: str) -> None:
        """Take a bound if it is better than the one before, and not above the value of a replayed schedule."""
        if type(bound) is not int or bound < 0:
            raise TypeError(f"a bound is {shown(bound)}, expected an integer ≥ 0")
        if self.bound is not None and bound <= self.bound:
            return
        # The bound may be true without the checker's word: the checker has limits, and may fail.
        if badge == Badge.CERTIFIED and not self._confirmed(bound, certificate, origin):
            badge, certificate = Badge.SOLVER_CLAIMED, None
        self._take(_Claim(bound, badge, certificate, origin))

    def offer_proof(self, found: Bound, origin: str) -> None:
        """Take a bound of the catalogue, which counts only as far as the checker proves it.

        Its arithmetic is that of arrays; where the checker refuses a number as too large it may have wrapped.
        """
        if self.bound is None or found.value > self.bound:
            if self._confirmed(found.value, found.certificate, origin):
                self._take(_Claim(found.value, Badge.CERTIFIED, found.certificate, origin))
            else:
                self.failures.append(f"{origin}: the checker does not prove its bound {found.value}, which is not used")

    def _take(self, claim: _Claim) -> None:
        if self.least is not None and claim.bound > self.least:
            self._refute(claim)
        else:
            self.claims.append(claim)

    def _confirmed(self, bound: int, certificate: dict[str, Any] | None, origin: str) -> bool:
        with self.surviving(f"the check of {origin}'s bound {bound}"):
            return is_proved(self.instance, self.restrictions, self.objective, bound, certificate)
        return False

    def _refute(self, claim: _Claim) -> None:
        self.defects.append(
            f"{claim.origin}: its bound {claim.bound} ({claim.badge.value}) exceeds the value {self.least} of a "
            f"schedule of {self.least_by}, which the checker has replayed; the bound is not used"
        )

    def offer_outcome(self, outcome: Outcome, origin: str) -> None:
        """Take what a formulation found; that it found the class empty bounds the objective beyond what was asked."""
        if outcome.schedule is not None:
            self.offer_schedule(outcome.schedule, origin)
        bound, badge = outcome.bound, outcome.badge
        if self.restrictions.at_most is not None and outcome.termination == Termination.INFEASIBLE:
            bound = max(bound or 0, self.restrictions.at_most + 1)
            badge = Badge.SOLVER_CLAIMED if badge == Badge.HEURISTIC else badge
        if bound is not None:
            self.offer_bound(bound, badge, outcome.certificate, origin)


def solve(
    instance: Instance | str | Path,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    method: str = AUTO,
    options: Options = _NO_OPTIONS,
    time_limit: float = 60.0,
    deterministic_limit: float | None = None,
    restrictions: Restrictions | None = None,
    workers: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Result:
    """Find the best schedule and the best bound, proved optimal where time suffices.

    Policies give a first schedule, the volume bound a first bound; then the formulations that cover the
    instance search between the two. Large instances are left to the planner. Whatever is found before the time limit
    or an interrupt is returned. The policies are optsched's own, whatever else is installed.

    A method whose code raises is named in the result's message, and the others go on.

    Parameters
    ----------
    instance, objective
        The problem: an instance, or the name or file of one.
    method
        A formulation's name; ``auto`` tries those that cover the instance in turn, and only the planner if the
        instance is large.
    options
        What the formulation leaves to choose, such as ``{"solver": "cbc"}`` for ``infermax_milp``.
    time_limit
        Seconds of wall-clock time.
    deterministic_limit
        Limit in the solver's deterministic time, for reproducible searches with one worker.
    restrictions
        Optimise over a smaller class of schedules. With ``at_most`` the search only decides whether the class is
        empty: it ends with the first schedule that is as good (``feasible``, or ``optimal`` if a bound meets it), or
        with a bound beyond (``infeasible``).
    workers
        Solver threads; None for one per core.
    seed
        Random seed of the solver.
    progress
        Called with incumbent and bound whenever one improves.

    Raises
    ------
    InputError
        For an unknown method, one that does not cover the instance, or an option that it does not take.
    DefectFoundError
        If a schedule fails the checker, or a bound exceeds the value of a schedule, which refutes it. It is raised when
        the search has ended; its ``result`` is what there is without the wrong claims, and names them in its message.
    """
    instance, objective, restrictions = read_problem(instance, objective, restrictions)
    time_limit, seed = read_seconds("time_limit", time_limit), read_seed(seed)
    if deterministic_limit is not None:
        deterministic_limit = read_seconds("deterministic_limit", deterministic_limit)
    workers = None if workers is None else read_integer("workers", workers, 1)
    require_type("options", options, Mapping, "a mapping from names to texts")
    if not callable(progress):
        raise InputError("progress", progress, "a function of a ProgressEvent")
    if method not in method_names():
        raise InputError("method", method, one_of(method, method_names()))
    plan = _plan(instance, objective) if method == AUTO else ((method, 1.0),)
    require_options(method, options)
    best = _Best(instance, objective, restrictions)
    if method == AUTO:
        best.failures.extend(broken_entries(FORMULATION_GROUP))
    solvers = {name: _made(name, options, best) for name, _ in plan}
    limit = time_limit if isfinite(time_limit) else None
    restricted = restrictions.apply(instance)
    started = time.perf_counter()

    def elapsed() -> float:
        return time.perf_counter() - started

    reason = infeasibility(instance, restrictions)
    if reason is not None:
        return Result(
            instance=instance,
            method=method,
            objective=objective,
            status=Status.INFEASIBLE,
            runtime_s=elapsed(),
            seed=seed,
            restrictions=restrictions,
            time_limit_s=limit,
            options=dict(options),
            message=reason.message,
        )

    def play_policies() -> None:
        for name in STANDARD:
            if name == _PLANNER:
                continue  # the method of that name does more
            if best.settled or (best.value is not None and elapsed() > _START_SHARE * time_limit):
                break
            with best.surviving(f"policy {name}"):
                played = play(instance, name, objective, restrictions=restrictions, seed=seed)
                if played.schedule is not None:
                    best.offer_schedule(played.schedule, name)

    runs = run_bounds(restricted, objective, tuple(BOUNDS))

    def prove(until: float) -> None:
        for run in runs:
            if run.failure is not None:
                best.failures.append(run.failure)
            with best.surviving(run.name):
                if run.bound is not None:
                    best.offer_proof(run.bound, run.name)
            if best.bound is not None and elapsed() > until:
                break

    with until_interrupted() as interrupted:
        # Where only the planner is asked it is quicker than the policies, and better, and than bounds that take long.
        planned = all(name == _PLANNER for name, _ in plan)
        prove((_QUICK_SHARE if planned else _START_SHARE) * time_limit)
        if not planned:
            play_policies()
            progress(ProgressEvent(elapsed(), best.value, best.bound))
        for name, share in plan:
            if best.settled or interrupted.is_set() or elapsed() >= time_limit:
                break
            solver = solvers[name]
            if solver is None:
                continue
            task = Task(
                instance=restricted,
                objective=objective,
                restrictions=restrictions,
                incumbent=best.schedule,
                incumbent_value=best.value,
                bound=best.bound or 0,
                time_limit_s=share * (time_limit - elapsed()),
                deterministic_limit=deterministic_limit,
                workers=workers or os.cpu_count() or 1,
                seed=seed,
                progress=progress,
            )
            unsupported = None
            with best.surviving(name):
                try:
                    require_covered(solver, restricted)
                    outcome = solver.solve(task)
                except UnsupportedError as error:
                    unsupported = error
                else:
                    best.offer_outcome(outcome, name)
            if unsupported is not None and method != AUTO:
                raise InputError("method", method, f"a method that covers {unsupported}")
        if not (best.settled or interrupted.is_set() or elapsed() >= time_limit):
            prove(time_limit)
        if planned and not interrupted.is_set():
            play_policies()
    cut_short = interrupted.is_set() and not best.settled
    result = replace(
        _result(best, method, elapsed(), seed, [INTERRUPTED] if cut_short else []),
        time_limit_s=limit,
        options=dict(options),
    )
    if best.defects:
        raise DefectFoundError(best.defects, result)
    return result


def _made(name: str, options: Options, best: _Best) -> Formulation | None:
    """Return a formulation; None if it cannot be made, which is noted, unless an option is to blame."""
    try:
        return make_formulation(name, options)
    except InputError:
        raise
    except FAILURES as error:
        best.failures.append(f"{name}: {failure_text(error)}")
        return None


def _plan(instance: Instance, objective: Objective) -> tuple[tuple[str, float], ...]:
    """Return which formulations ``auto`` tries, in order, and the share of the time left that each may use."""
    if sum(request.output for request in instance.requests) > _MOST_TOKENS:
        return ((_PLANNER, _PLAN_SHARE),)
    # For latencies the state search has no rival.
    crowded = objective == Objective.MAKESPAN and instance.kappa >= _CROWDED
    plan = _CROWDED_PLAN if crowded else _SPARSE_PLAN
    offered = entries(FORMULATION_GROUP)
    planned = {name for name, _ in plan} | _BASELINES
    others = [(name, 0.5) for name in offered if name not in planned]
    return tuple(step for step in (*plan[:-1], *others, plan[-1]) if step[0] in offered)


def _result(best: _Best, method: str, runtime: float, seed: int, said: Sequence[str]) -> Result:
    """Return what was found; the message is what is said already, and all that went wrong."""
    if best.hopeless:
        status = Status.INFEASIBLE
        said = [f"no schedule has {best.objective.value} <= {best.restrictions.at_most}: bound {best.bound}"]
    elif best.closed:
        status = Status.OPTIMAL
    elif best.value is not None:
        status = Status.FEASIBLE
    else:
        status = Status.UNKNOWN if best.bound is None else Status.BOUND_ONLY
    origin = {"schedule": best.found_by, "bound": best.claim.origin or None}
    return Result(
        instance=best.instance,
        method=method,
        objective=best.objective,
        status=status,
        badge=best.claim.badge,
        value=best.value,
        bound=best.bound,
        runtime_s=runtime,
        seed=seed,
        schedule=best.schedule,
        metrics=best.metrics,
        certificate=best.claim.certificate,
        # A method that is tried twice may fail twice.
        message=_BETWEEN.join(dict.fromkeys((*said, *best.failures, *best.defects))) or None,
        restrictions=best.restrictions,
        found_by={part: name for part, name in origin.items() if name is not None},
    )
