"""The search of one call of `optsched.methods.solve.solve`, in stages.

What is small is settled at once. Else come bounds, policies, formulations and certificates.

Each stage works on a `SolveRun` and offers what it finds to the run's `Best`, the only part that changes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from threading import Event, Lock
from typing import Any

from optsched.bounds.catalogue import BOUNDS
from optsched.methods.best import Best
from optsched.methods.bound import BoundRun, run_bound
from optsched.methods.checked import IllegalScheduleError
from optsched.methods.lanes import Job, search_side_by_side
from optsched.methods.plan import AUTO, SolvePlan, Step
from optsched.methods.question import Question
from optsched.methods.simulate import served_alone
from optsched.model.errors import InputError
from optsched.model.result import Badge
from optsched.model.schedule import one_after_another
from optsched.policies import STARTING
from optsched.simulator.replica import PolicyFailureError
from optsched.solvers.declaration import declaration_of
from optsched.solvers.formulation import Outcome, Progress, ProgressEvent, Task, UnsupportedError, require_covered
from optsched.solvers.interrupt import until_interrupted
from optsched.stopwatch import STOPWATCH, now_s

_START_SHARE = 0.3
"""Share of the time limit after which no further bound and no further policy is tried for a start."""
_QUICK_SHARE = 0.05
"""Share of the time limit after which no bound begins before formulations that need no start have had their turn;
beside them they all can."""
_CERTIFICATES = "optsched_formulations.batching.search.optimum_certificates:optimum_certificates"
_CERTIFY_LEAST_S = 1.0
"""Seconds for certificates of an answer that took less."""
_ALONE = "one_after_another"
"""Origin of the schedule that serves requests one after another."""


@dataclass(frozen=True)
class SolveRun:
    """One call: what is asked, what it may cost, and the best found so far.

    Parameters
    ----------
    question, best
        What is asked, and the best answer so far.
    method
        What was asked for: a formulation's name, or ``auto``.
    time_limit_s, deterministic_limit, workers, seed, progress
        As `optsched.methods.solve.solve` takes them.
    started_s
        When it started, on the clock of `optsched.stopwatch`.
    reporting
        Lets one formulation at a time report progress.
    """

    question: Question
    best: Best
    method: str
    time_limit_s: float
    deterministic_limit: float | None
    workers: int
    seed: int
    progress: Progress
    started_s: float = field(default_factory=now_s)
    reporting: Lock = field(default_factory=Lock)

    @property
    def side_by_side(self) -> bool:
        """Whether methods search beside each other.

        Limits in deterministic time are for one after the other, each of which knows what all before it have found.
        """
        return self.method == AUTO and self.workers > 1 and self.deterministic_limit is None

    def elapsed_s(self) -> float:
        """Return the seconds since the start, without those spent compiling."""
        return now_s() - self.started_s

    def report(self, event: ProgressEvent) -> None:
        """Pass on what a formulation says of itself: on the clock of the whole search, and nothing worse than is known.

        Formulations count from their own start, and may know less than the stages before them. Several may speak at a
        time; one whose time is up no longer does.
        """
        if STOPWATCH.is_over():
            return
        values = [value for value in (event.incumbent, self.best.value) if value is not None]
        bounds = [bound for bound in (event.bound, self.best.bound) if bound is not None]
        with self.reporting:
            self.progress(ProgressEvent(self.elapsed_s(), min(values, default=None), max(bounds, default=None)))

    def over(self, interrupted: Event) -> bool:
        """Return whether nothing more is to be tried."""
        return self.best.settled or interrupted.is_set() or self.elapsed_s() >= self.time_limit_s


def search(run: SolveRun, plan: SolvePlan) -> bool:
    """Let bounds, policies and formulations search; return whether an interrupt has left it unfinished.

    Raises
    ------
    InputError
        If the one formulation that was asked for does not cover the question.
    """
    bounds = deque(BOUNDS)

    def stages(interrupted: Event) -> None:
        # Such formulations are quicker than the policies, and better, and than bounds that take long.
        _ask_at_once(run, plan.at_once)
        if run.best.settled:
            return
        first = plan.before_policies
        quick = 0.0 if run.side_by_side else _QUICK_SHARE
        _prove_bounds(run, bounds, quick if first else _START_SHARE)
        if not first:
            _play_policies(run)
            run.progress(ProgressEvent(run.elapsed_s(), run.best.value, run.best.bound))
        _search_on(run, plan.others, bounds, interrupted)
        if first and not interrupted.is_set():
            _play_policies(run)
        _certify(run, interrupted)

    return until_interrupted(stages) and not run.best.settled


def _ask_at_once(run: SolveRun, steps: tuple[Step, ...]) -> None:
    """Let formulations settle what is small: they are quicker than a policy and its check."""
    for step in steps:
        _take_outcome(run, step, partial(_ask, run, step, 1))
        if run.best.settled:
            run.progress(ProgressEvent(run.elapsed_s(), run.best.value, run.best.bound))
            break


def _prove_bounds(run: SolveRun, names: deque[str], share: float) -> None:
    """Take bounds off a list until a share of the time limit has passed; at least one that is proved.

    Those that take long end with the best that they have then, but in searches that do not depend on the clock.
    """
    until_s = share * run.time_limit_s if run.deterministic_limit is None else math.inf
    while names:
        with STOPWATCH.limited(until_s - run.elapsed_s()):
            found = run_bound(run.question.restricted, run.question.objective, names.popleft())
        _take_bound(run, found)
        if run.best.bound is not None and run.elapsed_s() > share * run.time_limit_s:
            break


def _take_bound(run: SolveRun, found: BoundRun) -> None:
    if found.failure is not None:
        run.best.failures.append(found.failure)
    with run.best.surviving(found.name):
        if found.bound is not None:
            run.best.offer_proof(found.bound, found.name)


def _play_policies(run: SolveRun) -> None:
    """Let policies find schedules; at least one that is legal, the others while there is time for a start.

    For times between tokens one request after another comes first: nothing comes between the tokens of a request that
    is alone, and no policy waits for that.
    """
    best, question = run.best, run.question
    if not question.objective.is_monotone:
        with best.surviving(_ALONE):
            order = question.restrictions.first_runs(question.instance)
            best.offer_schedule(one_after_another(question.instance, order), _ALONE)
    for name in STARTING:
        if best.settled or (best.value is not None and run.elapsed_s() > _START_SHARE * run.time_limit_s):
            break
        # One that cannot serve the instance, or leaves the class of schedules, is of no use here.
        with best.surviving(f"policy {name}"), suppress(PolicyFailureError, IllegalScheduleError):
            schedule, tally = served_alone(run.question, name, run.seed)
            best.offer_schedule(schedule, name, tally)


def _search_on(run: SolveRun, steps: tuple[Step, ...], bounds: deque[str], interrupted: Event) -> None:
    """Let formulations search between the best schedule and the best bound, and try the bounds that are left.

    They do so side by side where that is possible (`SolveRun.side_by_side`).
    """

    def over() -> bool:
        return run.over(interrupted)

    if run.side_by_side:
        jobs = [_job_of_step(run, step) for step in steps]
        search_side_by_side([*jobs, *(_job_of_bound(run, name) for name in bounds)], run.workers, over)
        return
    for step in steps:
        if over():
            break
        _take_outcome(run, step, partial(_ask, run, step, run.workers))
    if not over():
        _prove_bounds(run, bounds, 1.0)


def _job_of_step(run: SolveRun, step: Step) -> Job[Outcome]:
    sequential = declaration_of(step.formulation).sequential
    return Job(sequential, partial(_ask, run, step), partial(_take_outcome, run, step))


def _job_of_bound(run: SolveRun, name: str) -> Job[BoundRun]:
    def prove(_: int) -> BoundRun:
        with STOPWATCH.limited(run.time_limit_s - run.elapsed_s()):
            return run_bound(run.question.restricted, run.question.objective, name)

    return Job(True, prove, lambda answer: _take_bound(run, answer()))


def _ask(run: SolveRun, step: Step, cores: int) -> Outcome:
    require_covered(step.formulation, run.question.restricted)
    return step.formulation.solve(_task(run, step, cores))


def _take_outcome(run: SolveRun, step: Step, answer: Callable[[], Outcome]) -> None:
    """Take what a formulation has found; that it does not cover the question matters only if it was asked for."""
    unsupported = None
    with run.best.surviving(step.name):
        try:
            run.best.offer_outcome(answer(), step.name)
        except UnsupportedError as error:
            unsupported = error
    if unsupported is not None and run.method != AUTO:
        raise InputError("method", run.method, f"a method that covers {unsupported}")


def _certify(run: SolveRun, interrupted: Event) -> None:
    """Let the checker's own searches confirm what a solver only claims and what ended the search.

    They may take as long as the search did, in the time left: a quick answer stays quick.
    """
    best, searched_s = run.best, run.elapsed_s()
    until_s = min(run.time_limit_s, searched_s + max(searched_s, _CERTIFY_LEAST_S))

    def goes_on() -> bool:
        claimed = (best.closed or best.hopeless) and best.claim.badge == Badge.SOLVER_CLAIMED
        return claimed and not interrupted.is_set() and run.elapsed_s() < until_s

    if not goes_on():
        return
    with best.surviving("certificates"):
        # Models are loaded by name, and only where a claim is left.
        make = _named(_CERTIFICATES)
        asked, left_s = run.question, until_s - run.elapsed_s()
        for certificate in make(asked.restricted, asked.objective, best.claim.bound, left_s, run.workers):
            best.offer_certificate(certificate)
            if not goes_on():
                break


def _named(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _task(run: SolveRun, step: Step, cores: int) -> Task:
    return Task(
        instance=run.question.restricted,
        objective=run.question.objective,
        restrictions=run.question.restrictions,
        incumbent=run.best.schedule,
        incumbent_value=run.best.value,
        bound=run.best.bound or 0,
        time_limit_s=step.share * (run.time_limit_s - run.elapsed_s()),
        deterministic_limit=run.deterministic_limit,
        workers=cores,
        seed=run.seed,
        progress=run.report,
        value_beside=lambda: run.best.value,
    )
