"""What routers, evictors and formulations have to keep to, tried on small instances, as `optsched.methods.conform`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Any

from optsched.cache.blocks import EVICTOR_NAMES, require_evictor
from optsched.catalogue import FORMULATION_GROUP, ROUTER_GROUP, entries, in_file, lookup
from optsched.check import check_schedule
from optsched.failures import FAILURES, failure_text
from optsched.methods import conform as policies
from optsched.methods.conform import Conformance, Verdict
from optsched.methods.policies import policy_in_file, policy_names
from optsched.methods.routing import find_router, router_names
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.cluster import CacheMode, CacheRules, Role, ViewAge
from optsched.model.domain import replace
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance, Limits, MachineGroup, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.result import Result, Status
from optsched.routers.router import Router
from optsched.solvers.formulation import Outcome, Task, Termination, UnsupportedError
from optsched.solvers.interrupt import until_interrupted

_LIMIT_S = 10.0
"""Seconds of a formulation on an instance, and of our search for its optimum."""


class Kind(StrEnum):
    """What a user's own part is."""

    POLICY = "policy"
    ROUTER = "router"
    EVICTOR = "evictor"
    FORMULATION = "formulation"


def _names(kind: Kind) -> tuple[str, ...]:
    match kind:
        case Kind.POLICY:
            return policy_names()
        case Kind.ROUTER:
            return router_names()
        case Kind.EVICTOR:
            return EVICTOR_NAMES
        case Kind.FORMULATION:
            return tuple(entries(FORMULATION_GROUP))


def kind_of(name: str) -> Kind:
    """Return what a name means, or what ``FILE.py:NAME`` defines: by its methods; a function is an evictor.

    Raises
    ------
    InputError
        If there is no such name, or the file does not define it.
    """
    if not in_file(name):
        known = {kind: _names(kind) for kind in Kind}
        for kind, names in known.items():
            if name in names:
                return kind
        raise InputError("NAME", name, "FILE.py:NAME, or " + one_of(name, known[Kind.POLICY]))
    found: Any = lookup(ROUTER_GROUP, name, "NAME")
    if inspect.isclass(found) and issubclass(found, Router):
        return Kind.ROUTER
    if hasattr(found, "solve"):
        return Kind.FORMULATION
    return Kind.EVICTOR if inspect.isfunction(found) else Kind.POLICY


def require_part(name: str, kind: Kind) -> None:
    """Raise `InputError` if a name is nothing of that kind."""
    match kind:
        case Kind.POLICY:
            if in_file(name):
                policy_in_file(name, "NAME")
        case Kind.ROUTER:
            find_router(name, "NAME")
        case Kind.EVICTOR:
            require_evictor(name, "NAME")
        case Kind.FORMULATION:
            lookup(FORMULATION_GROUP, name, "NAME")


def _clusters() -> Iterator[Instance]:
    base = policies.INSTANCES["memory binds, arrivals"]
    many = replace(base, requests=tuple(replace(each, arrival_ps=900 * n) for n, each in enumerate(base.requests * 4)))
    yield replace(many, name="2 machines", replicas=2)
    yield replace(many, name="3 machines, old views", replicas=3, view=ViewAge(every_ps=5000, delay_ps=700))
    cached = replace(many, cache=CacheRules(CacheMode.ALL), limits=replace(many.limits, kv_block=4, kv_tokens=24))
    yield replace(cached, name="2 machines that cache", replicas=2)
    groups = (MachineGroup(role=Role.PREFILL), MachineGroup(2, role=Role.DECODE))
    yield replace(many, name="1 prefills, 2 decode", machine_groups=groups)


def _caches() -> Iterator[Instance]:
    base = policies.INSTANCES["memory binds, arrivals"]
    chance = Random(1)
    requests = tuple(
        Request(chance.randint(4, 16), chance.randint(1, 6), arrival_ps=2000 * number) for number in range(24)
    )
    for block, tokens in ((1, 22), (4, 24)):
        limits = Limits(tokens, 64, 64, kv_block=block)
        for mode in (CacheMode.PREFIX, CacheMode.ALL):
            name = f"blocks of {block}, cache {mode.value}"
            yield replace(base, name=name, limits=limits, requests=requests, cache=CacheRules(mode))


def _tiny() -> Iterator[Instance]:
    """Yield instances of which we find the optimum in no time."""
    base = policies.INSTANCES["all fit"]
    three = (Request(4, 2), Request(2, 3), Request(3, 1))
    online = tuple(replace(each, arrival_ps=1700 * number) for number, each in enumerate(three))
    free, whole = Rules(), Rules(chunked_prefill=False)
    for name, requests, limits, rules in (
        ("all fit", three, Limits(40, 20, 20), whole),
        ("memory binds", three, Limits(6, 20, 20), whole),
        ("arrivals", online, Limits(6, 20, 20), whole),
        ("small budgets", three, Limits(12, 4, 3), free),
        ("no hybrid batches", three, Limits(8, 20, 20), Rules(hybrid=False, chunked_prefill=False)),
        ("no eviction", three, Limits(8, 20, 20), Rules(chunked_prefill=False, eviction=False)),
        ("2 requests in a batch", three, Limits(12, 20, 20, batch_requests=2), whole),
        ("one request", three[:1], Limits(6, 20, 20), whole),
    ):
        yield replace(base, name=name, requests=requests, limits=limits, rules=rules)


def instances_of(kind: Kind) -> Mapping[str, Instance]:
    """Return what parts of a kind are tried on, by name."""
    found = {
        Kind.POLICY: policies.INSTANCES.values,
        Kind.ROUTER: _clusters,
        Kind.EVICTOR: _caches,
        Kind.FORMULATION: _tiny,
    }[kind]
    return MappingProxyType({instance.name: instance for instance in found()})


def conform(name: str, kind: Kind) -> list[Conformance]:
    """Try a part on every instance for its kind."""
    return [conform_on(name, kind, instance) for instance in instances_of(kind)]


def conform_on(name: str, kind: Kind, instance: str) -> Conformance:
    """Try a part on one instance for its kind.

    A router or an evictor passes if the run is legal, is the same when it is run again with the same seed, and no code
    raises. A formulation passes if its schedule is legal, its bound is at most the value of any schedule that we know,
    and where it says that its schedule is optimal, both are equal; what it does not support is n/a.
    """
    trial: Mapping[Kind, Callable[[], str]] = {
        Kind.ROUTER: lambda: _served(instances_of(kind)[instance], router=name),
        Kind.EVICTOR: lambda: _served(instances_of(kind)[instance], evictor=name),
        Kind.FORMULATION: lambda: _solved(instances_of(kind)[instance], name),
    }
    if kind is Kind.POLICY:
        return policies.conform_on(name, instance)
    tried: list[str] = []
    try:
        # A search that ends early returns what it has: no verdict on what it would have found.
        if until_interrupted(lambda _: tried.append(trial[kind]())):
            raise KeyboardInterrupt
    except UnsupportedError as unsupported:
        return Conformance(instance, Verdict.NOT_AVAILABLE, f"not supported: {unsupported}")
    broken = tried[0]
    return Conformance(instance, Verdict.FAILED if broken else Verdict.PASSED, broken)


def _served(instance: Instance, **part: str) -> str:
    """Return what a router or an evictor breaks."""
    first, again = (simulate(instance, "vllm", seed=0, **part) for _ in range(2))  # type: ignore[arg-type]
    if first.status is Status.FAILED:
        return first.message or "no schedule"
    return "" if first.schedule == again.schedule else "another schedule when it is run again with the same seed"


def _solved(instance: Instance, name: str) -> str:
    """Return what a formulation breaks; `UnsupportedError` if it covers no objective."""
    refused: list[UnsupportedError] = []
    goals = (Objective.MAKESPAN, Objective.MEAN_TTFT, Objective.MEAN_E2E)
    for objective in goals:
        best = solve(instance, objective, time_limit=_LIMIT_S, workers=1)
        try:
            broken = _answer(Task(instance, objective, time_limit_s=_LIMIT_S, workers=1), name, best)
        except UnsupportedError as error:
            refused.append(error)
            continue
        if broken:
            return f"{objective.value}: {broken}"
    if len(refused) == len(goals):
        raise refused[0]
    return ""


def _answer(task: Task, name: str, best: Result) -> str:
    started = time.perf_counter()
    try:
        outcome = lookup(FORMULATION_GROUP, name, "NAME")().solve(task)
    except UnsupportedError:
        raise
    except FAILURES as error:
        return f"raised {failure_text(error)}"
    if not isinstance(outcome, Outcome):
        return f"answered {type(outcome).__name__}, not an Outcome"
    if time.perf_counter() - started > 2 * task.time_limit_s:
        return f"took more than twice its {task.time_limit_s:g} s"
    value = None
    if outcome.schedule is not None:
        violations, metrics = check_schedule(task.instance, outcome.schedule)
        if metrics is None:
            return violations[0]
        value = metrics["objectives"][task.objective.value]
    known = min(each for each in (value, best.value) if each is not None)
    if outcome.bound is not None and outcome.bound > known:
        return f"its bound {outcome.bound} is above the value {known} of a schedule"
    if outcome.termination is Termination.OPTIMAL and value != outcome.bound:
        return f"it says optimal, with the value {value} and the bound {outcome.bound}"
    if outcome.termination is Termination.INFEASIBLE:
        return "it says infeasible, which no instance here is"
    return ""
