"""What a policy runs with: predictors, routers of several machines, evictors of caches; and the machines themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.domain import replace
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.study.trial import Option, Trial, simulating

Problem = tuple[Instance, Objective, Restrictions]


def shaped(instance: Instance, machines: int | None = None, cache: CacheMode | None = None) -> Instance:
    """Return an instance with this number of equal machines and this cache; None for its own."""
    if machines is not None:
        instance = replace(instance, replicas=machines, machine_groups=())
    return instance if cache is None else replace(instance, cache=CacheRules(cache))


def all_shapes(
    instances: Iterable[Instance], machines: Sequence[int], caches: Sequence[CacheMode]
) -> Iterator[Instance]:
    """Yield each instance with each number of machines and each cache, named after them; without any as it is."""
    for instance, number, cache in product(instances, machines or (None,), caches or (None,)):
        parts = [instance.name]
        parts += [] if number is None else [f"x{number}"]
        parts += [] if cache is None else [cache.value]
        yield replace(shaped(instance, number, cache), name="-".join(parts))


@dataclass(frozen=True)
class Setups:
    """Policies, each with each of the rest.

    Parameters
    ----------
    policies
        Names, and the parameters that differ from their defaults.
    routers, evictors
        Of several machines, and of caches; None for the default.
    predictors, seeds
        Of what policies predict, and leave to chance; None for a policy's own predictor.
    """

    policies: Sequence[tuple[str, Mapping[str, Option]]]
    routers: Sequence[str | None] = (None,)
    evictors: Sequence[str | None] = (None,)
    predictors: Sequence[str | None] = (None,)
    seeds: Sequence[int] = (0,)

    @classmethod
    def named(
        cls,
        policies: Iterable[str],
        *,
        routers: Sequence[str | None] = (None,),
        evictors: Sequence[str | None] = (None,),
        predictor: str | None = None,
        seed: int = 0,
    ) -> Setups:
        """Return policies as they are, with one predictor and one seed."""
        return cls([(name, {}) for name in policies], routers, evictors, (predictor,), (seed,))

    @property
    def labels(self) -> list[str]:
        """What tells the setups of one predictor and one seed apart, such as ``sal vllm lru``."""
        found = product(self.routers, self.policies, self.evictors)
        return [" ".join(part for part in (router, policy, evictor) if part) for router, (policy, _), evictor in found]

    def fitting(self, instance: Instance) -> Setups:
        """Return the setups that an instance can have: routers are for several machines, evictors for caches."""
        routers = self.routers if instance.is_distributed else (None,)
        evictors = self.evictors if instance.is_cached else (None,)
        return Setups(self.policies, routers, evictors, self.predictors, self.seeds)

    def trials(self, problem: Problem) -> Iterator[Trial]:
        """Yield the trials on an instance: router by router, policy by policy."""
        every = product(self.routers, self.policies, self.evictors, self.predictors, self.seeds)
        for router, (policy, options), evictor, predictor, seed in every:
            yield simulating(
                *problem,
                policy=policy,
                options=options,
                predictor=predictor,
                router=router,
                evictor=evictor,
                seed=seed,
            )
