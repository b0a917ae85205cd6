"""A trial: one method, with all its parameters, on one instance for one objective; and the key that identifies it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from optsched.calibrate.library import cost_model
from optsched.methods.plan import AUTO
from optsched.methods.routing import DEFAULT
from optsched.model.documents import instance_sha256, parse_instance, restrictions_document
from optsched.model.instance import Instance
from optsched.model.json_text import parse_json
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.study.fingerprint import code_of_bound, code_of_method, code_of_policy

Option = str | int | float | bool
"""A parameter's value, as TOML and JSON write it."""
_NO_OPTIONS: Mapping[str, Option] = MappingProxyType({})
_UNRESTRICTED = Restrictions()
_RESTRICTIONS = TypeAdapter(Restrictions)
_LIMITS = ("time_limit_s", "deterministic_limit", "workers")
"""What decides only how far a search comes: a proof counts under any of them."""


class Kind(StrEnum):
    """What is done with an instance: searching for the optimum, bounding it, or running a policy."""

    SOLVE = "solve"
    BOUND = "bound"
    SIMULATE = "simulate"


@dataclass(frozen=True)
class Trial:
    """What is run; make one with `solving`, `bounding` or `simulating`.

    Parameters
    ----------
    instance, objective, restrictions
        The problem.
    kind, method
        What is done, and the name of the formulation, the bound or the policy.
    options
        Options of the formulation, or fields of the policy, that differ from their defaults.
    predictor
        Predictor of output lengths; None for the policy's own choice.
    router, evictor
        Of several machines, and of caches; None for the default.
    seed
        Random seed; 0 for a bound.
    time_limit_s, deterministic_limit, workers
        Limits of the search; None for no limit, and for what is no search.
    fingerprint
        Of the code that carries the trial out (`optsched.study.fingerprint`); None for the installed code's.
    """

    instance: Instance
    objective: Objective
    restrictions: Restrictions
    kind: Kind
    method: str
    options: Mapping[str, Option] = field(default_factory=dict)
    predictor: str | None = None
    router: str | None = None
    evictor: str | None = None
    seed: int = 0
    time_limit_s: float | None = None
    deterministic_limit: float | None = None
    workers: int | None = None
    fingerprint: str | None = field(default=None, compare=False)

    @property
    def code(self) -> str:
        """Fingerprint of the code that carries the trial out; that of the installed code is taken once."""
        return str(self.about["code"])

    @property
    def label(self) -> str:
        """The method with its parameters, such as ``larry(alpha=1000)``."""
        given = [f"{name}={value}" for name, value in sorted(self.options.items())]
        chosen = {"predictor": self.predictor, "router": self.router, "evictor": self.evictor}
        given += [f"{name}={value}" for name, value in chosen.items() if value is not None]
        return f"{self.method}({', '.join(given)})" if given else self.method

    @cached_property
    def instance_sha256(self) -> str:
        """The hash of the instance."""
        return _hash_of(self.instance)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What is asked of which code, as a JSON object; the instance by its hash."""
        code = self.installed_code if self.fingerprint is None else self.fingerprint
        return self._asked | {"code": code}

    @cached_property
    def _asked(self) -> dict[str, Any]:
        return {
            "instance": self.instance_sha256,
            "objective": self.objective.value,
            "restrictions": restrictions_document(self.restrictions),
            "kind": self.kind.value,
            "method": self.method,
            "options": dict(self.options),
            "predictor": self.predictor,
            "router": self.router,
            "evictor": self.evictor,
            "seed": self.seed,
            **{name: getattr(self, name) for name in _LIMITS},
        }

    @cached_property
    def identity(self) -> str:
        """SHA-256 of `about` without the code, which takes longer to find than a small instance to simulate."""
        return digest(self._asked)

    @cached_property
    def key(self) -> str:
        """SHA-256 of `about`."""
        return digest(self.about)

    @cached_property
    def unlimited_key(self) -> str:
        """SHA-256 of `about` without the limits of the search: the same for all trials that a proof answers."""
        return digest({name: value for name, value in self.about.items() if name not in _LIMITS})

    @cached_property
    def question(self) -> str:
        """SHA-256 of the problem alone: the same for all methods."""
        return digest({name: self.about[name] for name in ("instance", "objective", "restrictions")})

    @property
    def installed_code(self) -> str:
        """The fingerprint of the installed code that would carry the trial out."""
        if self.kind == Kind.SOLVE:
            return code_of_method(self.method)
        if self.kind == Kind.BOUND:
            return code_of_bound()
        return code_of_policy(self.method, self.predictor is not None, _router(self.instance, self.router))


def trial_of(about: Mapping[str, Any], instance: Instance) -> Trial:
    """Return the trial of a `Trial.about`."""
    return Trial(
        **{name: value for name, value in about.items() if name != "code"}
        | {
            "instance": instance,
            "objective": Objective(about["objective"]),
            "restrictions": parse_json(_RESTRICTIONS, json.dumps(about["restrictions"])),
            "kind": Kind(about["kind"]),
            "fingerprint": about["code"],
        }
    )


@lru_cache(maxsize=64)
def read_instance(document: bytes) -> Instance:
    """Read an instance once for all the methods that follow each other on it."""
    return parse_instance(document, cost_model)


@lru_cache(maxsize=16)
def _hash_of(instance: Instance) -> str:
    return instance_sha256(instance)


def digest(document: object) -> str:
    """Return the SHA-256 of a JSON document in its canonical form: keys sorted, no spaces."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def solving(
    instance: Instance,
    objective: Objective,
    restrictions: Restrictions = _UNRESTRICTED,
    *,
    method: str = AUTO,
    options: Mapping[str, Option] = _NO_OPTIONS,
    time_limit: float = 60.0,
    deterministic_limit: float | None = None,
    workers: int | None = None,
    seed: int = 0,
) -> Trial:
    """Return the trial of a search, as `optsched.methods.solve.solve` takes it; None workers are one for each core."""
    return Trial(
        instance,
        objective,
        restrictions,
        Kind.SOLVE,
        method,
        dict(options),
        seed=seed,
        time_limit_s=float(time_limit) if isfinite(time_limit) else None,
        deterministic_limit=deterministic_limit,
        workers=workers or os.cpu_count() or 1,
    )


def bounding(
    instance: Instance, objective: Objective, restrictions: Restrictions = _UNRESTRICTED, *, method: str
) -> Trial:
    """Return the trial of a bound alone, as `optsched.methods.bound.bound` takes it."""
    return Trial(instance, objective, restrictions, Kind.BOUND, method)


def simulating(
    instance: Instance,
    objective: Objective,
    restrictions: Restrictions = _UNRESTRICTED,
    *,
    policy: str,
    options: Mapping[str, Option] = _NO_OPTIONS,
    predictor: str | None = None,
    router: str | None = None,
    evictor: str | None = None,
    seed: int = 0,
) -> Trial:
    """Return the trial of a policy, as `optsched.methods.simulate.simulate` takes it."""
    return Trial(
        instance,
        objective,
        restrictions,
        Kind.SIMULATE,
        policy,
        dict(options),
        predictor,
        router,
        evictor,
        seed,
    )


def _router(instance: Instance, router: str | None) -> str | None:
    """Return the router of an instance; None for one machine."""
    return (router or DEFAULT) if len(instance.machines) > 1 else None
