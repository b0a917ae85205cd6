"""Solving for several machines without caches and moves: bounds, the planner for several machines, and joint optima.

What these share with one machine are the question, the best answer so far (`Best`), which the checker has the last word
on, and the result.
"""

from __future__ import annotations

import time
from functools import partial
from importlib import import_module
from itertools import islice
from math import prod
from threading import Event
from typing import Any

import numpy as np

from optsched.bounds.bound import Bound
from optsched.bounds.catalogue import BOUNDS_OF_SEVERAL, bound_of_several
from optsched.methods.best import Best
from optsched.methods.stages import SolveRun
from optsched.model.instance import Instance
from optsched.planner.machines import FleetSearch, joined
from optsched.planner.sizes import TooLargeToPlanError
from optsched.solvers.formulation import ProgressEvent, UnsupportedError
from optsched.solvers.interrupt import until_interrupted, wait_interruptibly

_JOINT = "optsched_formulations.routing.joint:solve_jointly"
_MOST_TOKENS, _MOST_SETS = 500, 20_000
"""Output tokens, and different sets of requests, beyond which no joint optimum is sought."""
_PLANNED_BEFORE, _CHANGES_BEFORE = 0.1, 500
"""Share of the time for the planner, and changes of its plans, where joint optima are sought, too."""


def search_several(run: SolveRun) -> bool:
    """Let bounds, the planner and the exact method search; return whether an interrupt has left it unfinished."""
    best, question = run.best, run.question
    with until_interrupted() as interrupted:
        for name in BOUNDS_OF_SEVERAL:
            with best.surviving(name):
                found = bound_of_several(name)(question.instance, question.objective)
                if found is not None:
                    _offer(best, found, name)
        run.progress(ProgressEvent(run.elapsed_s(), best.value, best.bound))
        small = _is_small(question.instance)
        with best.surviving("planner"):
            _plan(run, *((_PLANNED_BEFORE, _CHANGES_BEFORE) if small else (1.0, None)))
        if small and not run.over(interrupted):
            with best.surviving("joint"):
                _solve_jointly(run)
    return interrupted.is_set() and not best.settled


def _offer(best: Best, found: Bound, name: str) -> None:
    if found.value > 0:
        best.offer_proof(found, name)


def _is_small(instance: Instance) -> bool:
    """Whether the sets of requests may be listed; requests that differ in nothing are counted, not named."""
    groups: dict[tuple[object, ...], int] = {}
    for request in instance.requests:
        slos = request.slo_ttft_ps, request.slo_e2e_ps
        key = (request.arrival_ps, request.input, request.output, request.weight, *slos)
        groups[key] = groups.get(key, 0) + 1
    tokens = sum(request.output for request in instance.requests)
    return tokens <= _MOST_TOKENS and prod(count + 1 for count in groups.values()) <= _MOST_SETS


def _plan(run: SolveRun, share: float, changes: int | None) -> None:
    """Look for better schedules for a share of the time, or so many changes, or until one meets the bound."""
    question, best = run.question, run.best
    try:
        search = FleetSearch(question.instance, question.objective, np.random.default_rng(run.seed))
    except TooLargeToPlanError as error:
        best.failures.append(f"planner: {error}")
        return
    until = time.perf_counter() + share * (run.time_limit_s - run.elapsed_s())
    stopped = Event()
    # Ctrl-C on the way into compiled code, which the search enters all the time, may crash the process.
    wait_interruptibly(partial(_search, run, search, (until, changes), stopped), stopped.set)
    best.offer_schedule(search.schedule(), "planner")


def _search(run: SolveRun, search: FleetSearch, limits: tuple[float, int | None], stopped: Event) -> None:
    value, (until, changes) = None, limits
    for _ in islice(search.search(), changes):
        if value is None or search.value < value:
            value = search.value
            run.progress(ProgressEvent(run.elapsed_s(), value, run.best.bound))
        if stopped.is_set() or value <= (run.best.bound or 0) or time.perf_counter() > until:
            return


def _solve_jointly(run: SolveRun) -> None:
    question, best = run.question, run.best
    left = max(0.0, run.time_limit_s - run.elapsed_s())
    try:
        found = _named(_JOINT)(question.instance, question.objective, time_limit_s=left, known=best.value)
    except UnsupportedError as error:
        best.failures.append(f"joint: {error}")
        return
    if found.parts:
        best.offer_schedule(joined([(part.requests, part.schedule) for part in found.parts]), "joint")
    best.offer_bound(found.bound, found.badge, found.certificate, "joint")


def _named(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
