"""Solving for several machines: bounds, joint optima, and the planner for several machines.

Where prefixes are cached, on several machines or on one, and where machines have roles, so that requests move, runs of
routers and policies take the place of the planner; with roles there is no exact method, only bounds.

Question, best answer so far (`Best`, which is checked), and result are those of one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import product
from math import prod
from threading import Event, Thread
from typing import Any

import numpy as np

from optsched.bounds import worth
from optsched.bounds.bound import Bound
from optsched.bounds.catalogue import bound_of_several, bounds_for
from optsched.failures import FAILURES
from optsched.methods.apart import BoundsApart
from optsched.methods.checked import checked_cluster_metrics
from optsched.methods.simulate import simulate
from optsched.methods.stages import SolveRun
from optsched.model.domain import replace
from optsched.model.instance import Instance
from optsched.model.schedule import Schedule
from optsched.planner.machines import FleetSearch, joined
from optsched.planner.sizes import TooLargeToPlanError
from optsched.solvers.formulation import ProgressEvent, UnsupportedError
from optsched.solvers.interrupt import until_interrupted, wait_interruptibly
from optsched.stopwatch import STOPWATCH

_JOINT = "optsched_formulations.routing.joint:solve_jointly"
_SLOW = ("congestion",)
"""Bounds that take as long as the planner, and run beside it."""
_APART, _BOUNDS_APART = "worth", "optsched.bounds.worth:makespan_bounds"
"""A bound that gets better for as long, on another core if there is one."""
_MOST_TOKENS, _MOST_SETS = 500, 20_000
"""Output tokens, and different sets of requests, beyond which no joint optimum is sought."""
_ROUTERS, _POLICIES = ("e2", "least_tokens", "cache_aware", "round_robin"), ("vllm", "sarathi", "lpm", "sjf")
"""What serves where prefixes are cached, before anything is solved."""
_PAIRS = ("disaggregated", "splitwise", "round_robin", "least_tokens", "least_kv")
"""What routes where machines have roles."""
_COVERED_RULES = frozenset({"swap", "migration"})
"""Added rules with which joint optima and the planner are right: these allow more, and neither needs it."""
_LOOK_S = 0.1
"""Seconds between two looks at whether Ctrl-C has come."""
_BOUNDS_SHARE = 0.5
"""Share of the time limit after which bounds end with the best that they have, where nothing runs beside."""
_JOINT_SHARE = 0.8
"""Share of the time for joint optima, where they are sought; the planner has the rest."""


def search_several(run: SolveRun) -> bool:
    """Let bounds, the exact method and the planner search; return whether an interrupt has left it unfinished."""
    best, question = run.best, run.question
    covered = not question.instance.has_roles and _covers_rules(question.instance)
    planned = covered and not question.instance.is_cached
    apart = planned and run.workers > 1 and worth.says_something(question.instance, question.objective)

    def stages(interrupted: Event) -> None:
        later = (*_SLOW, _APART) if apart else _SLOW
        for name in bounds_for(question.instance):
            if name not in later:
                with best.surviving(name):
                    with STOPWATCH.limited(_BOUNDS_SHARE * run.time_limit_s - run.elapsed_s()):
                        bound = bound_of_several(name)(question.instance, question.objective)
                    _offer_proof(run, name, bound)
        run.progress(ProgressEvent(run.elapsed_s(), best.value, best.bound))
        if not planned:
            _play(run, interrupted)
        combined = question.objective.is_largest or question.objective.is_sum
        if covered and combined and _is_small(question.instance) and not run.over(interrupted):
            with best.surviving("joint"):
                _solve_jointly(run)
        if planned and (best.value is None or not run.over(interrupted)):
            beside = _slow_bounds(run, interrupted), _bounds_apart(run, interrupted, wanted=apart)
            with beside[0], beside[1] as known, best.surviving("planner"):
                _plan(run, known)

    return until_interrupted(stages) and not best.settled


@contextmanager
def _slow_bounds(run: SolveRun, interrupted: Event) -> Iterator[None]:
    """Compute bounds that take long beside what a block does, and take what they have when time is up."""
    question, found = run.question, dict[str, Bound | BaseException | None]()

    def compute() -> None:
        for name in _SLOW:
            try:
                with STOPWATCH.limited(run.time_limit_s - run.elapsed_s()):
                    found[name] = bound_of_several(name)(question.instance, question.objective)
            except FAILURES as error:
                found[name] = error

    # Ctrl-C leaves it behind, which must not keep the process.
    beside = Thread(target=compute, daemon=True)
    beside.start()
    yield
    while beside.is_alive() and not interrupted.is_set():
        beside.join(_LOOK_S)
    for name, bound in list(found.items()):
        with run.best.surviving(name):
            if isinstance(bound, BaseException):
                raise bound
            _offer_proof(run, name, bound)


@contextmanager
def _bounds_apart(run: SolveRun, interrupted: Event, *, wanted: bool) -> Iterator[Callable[[], int]]:
    """Let a process look for bounds while a block runs, in which what is returned says how much is claimed by then.

    At the end it is waited for, while there is time, until it has had as many rounds as where nothing runs beside.
    """
    if not wanted:
        yield lambda: 0
        return
    process = BoundsApart(_BOUNDS_APART, run.question.instance, run.question.objective)

    def known() -> int:
        process.look()
        return 0 if process.best is None else process.best.value

    try:
        yield known
        while not (process.has_ended or process.rounds >= worth.ROUNDS or run.over(interrupted)):
            process.look(_LOOK_S)
    finally:
        process.end()
    if process.failure:
        run.best.failures.append(f"{_APART}: {process.failure}")
    with run.best.surviving(_APART):
        _offer_proof(run, _APART, process.best)


def _offer_proof(run: SolveRun, name: str, bound: Bound | None) -> None:
    if bound is not None and bound.value > 0:
        run.best.offer_proof(bound, name)


def _covers_rules(instance: Instance) -> bool:
    """Whether joint optima and the planner know the rules of all machines."""
    return all(_COVERED_RULES.issuperset(machine.rules.added) for machine in instance.machines)


def _is_small(instance: Instance) -> bool:
    """Whether the sets of requests may be listed; requests that differ in nothing are counted, not named."""
    groups: dict[tuple[object, ...], int] = {}
    for request in instance.requests:
        slos = request.slo_ttft_ps, request.slo_e2e_ps
        key = (request.arrival_ps, request.input, request.output, request.weight, *slos, request.prefix)
        groups[key] = groups.get(key, 0) + 1
    tokens = sum(request.output for request in instance.requests)
    return tokens <= _MOST_TOKENS and prod(count + 1 for count in groups.values()) <= _MOST_SETS


def _play(run: SolveRun, interrupted: Event) -> None:
    """Let policies serve what routers route, until time is up; the first pair always."""
    asked, best = run.question, run.best
    routers: tuple[str | None, ...] = _ROUTERS if asked.instance.is_distributed else (None,)
    if asked.instance.has_roles:
        routers = _PAIRS
    for router, policy in product(routers, _POLICIES):
        if best.value is not None and run.over(interrupted):
            return
        with best.surviving(f"{router} {policy}" if router else policy):
            found = simulate(asked.instance, policy, asked.objective, router=router, seed=run.seed)
            if found.schedule is not None and found.metrics is not None:
                best.offer_checked(found.schedule, found.metrics, f"{router} {policy}" if router else policy)
                run.progress(ProgressEvent(run.elapsed_s(), best.value, best.bound))


def _plan(run: SolveRun, known: Callable[[], int]) -> None:
    """Look for better schedules until time is up, or one meets the bound, or what is ``known``."""
    question, best = run.question, run.best
    try:
        search = FleetSearch(question.instance, question.objective, np.random.default_rng(run.seed))
    except TooLargeToPlanError as error:
        best.failures.append(f"planner: {error}")
        return
    stopped = Event()
    # Ctrl-C on the way into compiled code, which the search enters all the time, may crash the process.
    wait_interruptibly(partial(_search, run, search, stopped, known), stopped.set)
    _offer(run, search.schedule(), "planner")


def _search(run: SolveRun, search: FleetSearch, stopped: Event, known: Callable[[], int]) -> None:
    value = None
    for _ in search.search():
        if value is None or search.value < value:
            value = search.value
            run.progress(ProgressEvent(run.elapsed_s(), value, run.best.bound))
        least = max(run.best.bound or 0, known())
        if stopped.is_set() or value <= least or run.elapsed_s() > run.time_limit_s:
            return


def _solve_jointly(run: SolveRun) -> None:
    question, best = run.question, run.best
    left = _JOINT_SHARE * max(0.0, run.time_limit_s - run.elapsed_s())
    try:
        found = _named(_JOINT)(question.instance, question.objective, time_limit_s=left)
    except UnsupportedError as error:
        best.failures.append(f"joint: {error}")
        return
    if found.parts:
        schedule = joined([(part.requests, part.schedule) for part in found.parts])
        # Where there is one machine nothing is routed.
        _offer(run, schedule if question.instance.is_distributed else replace(schedule, routes=()), "joint")
    best.offer_bound(found.bound, found.badge, found.certificate, "joint")


def _offer(run: SolveRun, schedule: Schedule, origin: str) -> None:
    asked = run.question
    metrics = checked_cluster_metrics(asked.instance, schedule, origin, asked.restrictions)
    run.best.offer_checked(schedule, metrics, origin)


def _named(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
