"""Study files: which methods on which instances, in TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import field
from itertools import product
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter

from optsched.cache.blocks import require_setting
from optsched.library import load_instances
from optsched.methods.bound import bound_names
from optsched.methods.formulations import require_options
from optsched.methods.plan import require_method
from optsched.methods.policies import policy_of
from optsched.methods.routing import find_router
from optsched.model.cluster import CacheMode
from optsched.model.documents import read_text
from optsched.model.domain import MAX_MACHINES, Name, domain
from optsched.model.errors import InputError, Said, one_of
from optsched.model.instance import Instance
from optsched.model.json_text import parse_json
from optsched.model.objectives import Objective, find_objective
from optsched.model.restrictions import Restrictions
from optsched.study.execute import configured
from optsched.study.setups import Problem, Setups, all_shapes
from optsched.study.trial import Option, Trial, bounding, solving
from optsched.study.worker import Allowance
from optsched.traces.families import Family

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
_Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Method = Name | dict[Name, Option]
_T = TypeVar("_T")


@domain
class StudyFile:
    """What a study runs: every method on every instance for every objective.

    Parameters
    ----------
    name
        The study's name in the store.
    instances
        Names of the library, of suites or instances, and files; relative to the working directory, as all files.
    families
        Instances that are drawn.
    policies, methods, bounds
        Policies, formulations (``auto`` for the plan of several), and bounds alone: names, or tables with a name and
        parameters, such as ``{name = "larry", alpha = 1000}``.
    objectives, predictors, seeds
        Each policy runs for all of them, each formulation for all objectives and seeds. Without predictors a policy
        has its own choice.
    routers, evictors
        Each policy runs with each of them, where an instance has several machines, and where it has a cache. Without
        them it has round robin, and drops what was used least recently.
    machines, caches
        Each instance has each of these numbers of equal machines, and each of these caches (``none``, ``prefix``,
        ``all``); without them its own.
    restrictions
        The class of schedules.
    time_limit, workers
        Seconds and threads of a search.
    policy_limit, memory_gib
        Seconds of a policy or a bound, and resident memory of any trial; beyond it is ended. None for no limit.
    store
        The store; by default the study file's name with ``.sqlite``.
    runner, slots
        ``processes``, ``dask:ADDRESS`` or ``ray:ADDRESS``; how many trials at once, by default one per core.
    """

    name: Name
    instances: tuple[Name, ...] = ()
    families: tuple[Family, ...] = ()
    policies: tuple[_Method, ...] = ()
    methods: tuple[_Method, ...] = ()
    bounds: tuple[Name, ...] = ()
    objectives: tuple[Name, ...] = (Objective.MAKESPAN.value,)
    predictors: tuple[Name, ...] = ()
    routers: tuple[Name, ...] = ()
    evictors: tuple[Name, ...] = ()
    machines: tuple[Annotated[int, Field(ge=1, le=MAX_MACHINES)], ...] = ()
    caches: tuple[Annotated[CacheMode, Field(strict=False)], ...] = ()
    seeds: tuple[_Seed, ...] = (0,)
    restrictions: Restrictions = field(default_factory=Restrictions)
    time_limit: _Positive = 60.0
    workers: Annotated[int, Field(ge=1, le=1024)] = 1
    policy_limit: _Positive | None = None
    memory_gib: _Positive | None = None
    store: Name | None = None
    runner: Name = "processes"
    slots: Annotated[int, Field(ge=1, le=100_000)] | None = None

    @property
    def allowance(self) -> Allowance:
        """What each trial may use."""
        memory = None if self.memory_gib is None else int(self.memory_gib * 2**30)
        return Allowance(policy_s=self.policy_limit, memory_bytes=memory)

    def loaded(self) -> list[Instance]:
        """Return the instances."""
        found = [instance for source in self.instances for instance in load_instances(source)]
        found += [instance for family in self.families for instance in family.instances()]
        if not found:
            raise InputError("instances", Said("none"), "instances or families")
        found = list(all_shapes(found, self.machines, self.caches))
        if self.routers and not any(instance.is_distributed for instance in found):
            raise InputError("routers", self.routers[0], "none: every instance has one machine (machines)")
        if self.evictors and not any(instance.is_cached for instance in found):
            raise InputError("evictors", self.evictors[0], "none: no instance caches anything (caches)")
        return found

    def trials(self) -> list[Trial]:
        """Return the trials: instance by instance, first what bounds it, then the policies."""
        if not (self.policies or self.methods or self.bounds):
            raise InputError("policies", Said("none"), "policies, methods or bounds")
        objectives = [find_objective(name) for name in self.objectives]
        methods = [_named(f"methods[{place}]", given) for place, given in enumerate(self.methods)]
        policies = [_named(f"policies[{place}]", given) for place, given in enumerate(self.policies)]
        self._require_known(methods, policies)
        setups = Setups(
            policies, self.routers or (None,), self.evictors or (None,), self.predictors or (None,), self.seeds
        )
        return [
            trial
            for instance in self.loaded()
            for objective in objectives
            for trial in self._trials_of((instance, objective, self.restrictions), methods, setups)
        ]

    def _trials_of(self, problem: Problem, methods: list[_Named], setups: Setups) -> Iterator[Trial]:
        for bound in self.bounds:
            yield bounding(*problem, method=bound)
        for (name, options), seed in product(methods, self.seeds):
            yield solving(
                *problem, method=name, options=options, time_limit=self.time_limit, workers=self.workers, seed=seed
            )
        yield from setups.fitting(problem[0]).trials(problem)

    def _require_known(self, methods: list[_Named], policies: list[_Named]) -> None:
        """Raise `InputError` for what no trial could be run with."""
        for name in self.bounds:
            if name not in bound_names():
                raise InputError("bounds", name, one_of(name, bound_names()))
        for name, options in methods:
            require_method(name, "methods")
            require_options(name, {option: str(value) for option, value in options.items()})
        for (name, options), predictor in product(policies, self.predictors or (None,)):
            policy_of(configured(name, options) if options else name, predictor)
        for router in self.routers:
            find_router(router, "routers")
        for evictor in self.evictors:
            require_setting(evictor, "evictors")


_Named = tuple[str, dict[str, Option]]
_STUDY = TypeAdapter(StudyFile)


def _named(place: str, given: _Method) -> _Named:
    if isinstance(given, str):
        return given, {}
    options = dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f"{place}.name", Said("nothing") if name is None else name, "the name of a method")
    return name, options


def read_toml(adapter: TypeAdapter[_T], path: Path) -> _T:
    """Return what a TOML file holds, as the type of an adapter; what is wrong in it is said in one line."""
    try:
        document = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError("", Said(f"invalid TOML ({error})"), "a TOML document", str(path)) from None
    try:
        return parse_json(adapter, json.dumps(document, default=str))
    except InputError as error:
        raise error.located(str(path)) from None


def read_study(path: Path) -> StudyFile:
    """Return the study in a file."""
    return read_toml(_STUDY, path)
