"""Certificates of what prefix caches save, and of what machines with them recompute, beside all ways to fill them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from random import Random
from typing import Any

from optsched.check.certificates.prefix_cache import Service, largest_load_bound, saved_bound
from optsched_formulations.eviction.pooled import pooled_use
from optsched_formulations.eviction.prefix_cache import most_saved
from optsched_formulations.eviction.service import BlockValue, ServiceOrder, service_order
from trial.clusters import climb, subsets
from trial.tried import Tally

Document = dict[str, Any]


@dataclass(frozen=True)
class Served:
    """Requests in the order of service, for one cache in which each of them fits.

    Parameters
    ----------
    service
        The requests and the cache.
    parents
        The block in front of every block, None for a first one.
    """

    service: Service
    parents: Sequence[int | None]

    @property
    def order(self) -> ServiceOrder:
        """The same requests as formulations take them."""
        return service_order(self.service.paths, findable=self.service.findable, occupied=self.service.occupied)

    @property
    def value(self) -> BlockValue:
        """What finding blocks is worth."""
        return BlockValue(self.service.linear, self.service.square)

    def finding(self) -> Document:
        """Return what a finding says of them."""
        return dict(vars(self.service))

    def most_saved(self, requests: Sequence[int], capacity: int) -> int:
        """Return the most that a cache of some blocks saves which serves some of the requests, all ways tried.

        Only what is kept counts: after every request, any blocks of its path and of those kept before that have all
        blocks in front of them.
        """
        service, states = self.service, {frozenset[int](): 0}
        for index in requests:
            path, following = service.paths[index], dict[frozenset[int], int]()
            beside = capacity - service.occupied[index]
            for kept, saved in states.items():
                hits = next((depth for depth, block in enumerate(path) if block not in kept), len(path))
                worth = max(service.worth(found) for found in range(min(hits, service.findable[index]) + 1))
                for chosen in subsets([block for block in kept if block not in path]):
                    after = frozenset(chosen) | frozenset(path)
                    if len(chosen) <= beside and all(self.parents[block] in after | {None} for block in after):
                        following[after] = max(following.get(after, 0), saved + worth)
            states = following
        return max(states.values())


def _drawn(rng: Random) -> Served:
    parents = [rng.choice([None, *range(block)]) if block else None for block in range(rng.randint(1, 6))]
    paths = []
    for _ in range(rng.randint(2, 5)):
        path = [rng.randrange(len(parents))]
        while (front := parents[path[-1]]) is not None:
            path.append(front)
        paths.append(path[::-1])
    findable, occupied = list(map(len, paths)), list(map(len, paths))
    if rng.random() < 0.4:
        findable = [rng.randint(0, most) for most in findable]
        occupied = [taken + rng.choice((0, 0, 1, 2)) for taken in occupied]
    square = rng.choice((0, 0, 1, 3))
    linear = rng.choice((rng.randint(0, 3), -square))
    return Served(Service(paths, findable, occupied, max(occupied) + rng.randint(0, 3), linear, square), parents)


def _prices(rng: Random, service: Service) -> list[int]:
    """Return prices of requests: small, those of a block, or any that a document may hold."""
    block = max(1, service.worth(1))
    choices = ((0, 1, 2, 3, 4), (0, 0, block, block, block // 2, 2 * block), (0, 1, block, 2**63, 2**70))
    some = rng.choice(choices)
    return [rng.choice(some) for _ in service.paths]


def _certificates(rng: Random, service: Service, found: Document) -> Iterator[Document]:
    yield found
    for _ in range(2):
        yield {"kind": "prefix_cache", "prices": _prices(rng, service)}


def one_cache(rng: Random, tally: Tally) -> None:
    """Hold bounds on what a cache saves, as −1 × the bound, against all ways to fill it."""
    for _ in range(20):
        drawn = _drawn(rng)
        service = drawn.service
        best = drawn.most_saved(range(len(service.paths)), service.capacity)
        found = most_saved(drawn.order, service.capacity, drawn.value)
        finding = drawn.finding() | {"optimum": best}
        if not found.saved <= best <= found.bound:
            tally.find("false", "cache", finding | {"bound": found.bound, "saved": found.saved})
        for certificate in _certificates(rng, service, found.certificate):
            # What is proved is an upper bound: turned round, it is one from below like the others.
            asked = (lambda given, service=service: -saved_bound(service, given)), -best, finding
            climb(rng, tally, "prefix_cache", certificate, asked)


def pooled_caches(rng: Random, tally: Tally) -> None:
    """Hold bounds of several machines against all assignments of requests and all ways to fill their caches.

    What they save together, as −1 × the bound, and the largest load.
    """
    for _ in range(10):
        drawn = _drawn(rng)
        machines = rng.choice((1, 2, 2, 3))
        # Every request fits the first.
        capacities = [drawn.service.capacity, *(rng.randint(1, drawn.service.capacity) for _ in range(machines - 1))]
        pooled = replace(drawn.service, capacity=sum(capacities))
        times = [max(0, pooled.worth(most)) + rng.choice((0, 0, 1, rng.randint(0, 9))) for most in pooled.findable]
        total = sum(times)
        saved, load = best_of_all(drawn, capacities, times)
        found = pooled_use(drawn.order, capacities, drawn.value, total)
        finding = drawn.finding() | {"capacities": capacities, "times": times, "saved": saved, "load": load}
        tally.counts["bounds/pooled/tried"] += 1
        tally.counts["bounds/pooled/tight"] += found.largest_load == load
        if found.use.bound < saved or found.largest_load > load:
            stated = {"saved_bound": found.use.bound, "load_bound": found.largest_load}
            tally.find("false", "bounds/pooled", finding | stated)
        for certificate in _certificates(rng, pooled, found.use.certificate):

            def prove_saved(given: Document, pooled: Service = pooled) -> int:
                return -saved_bound(pooled, given)

            def prove_load(given: Document, terms: tuple[Service, int, int] = (pooled, total, machines)) -> int:
                return largest_load_bound(*terms, given)

            climb(rng, tally, "pooled, saved", certificate, (prove_saved, -saved, finding))
            climb(rng, tally, "pooled, load", certificate, (prove_load, load, finding))


def best_of_all(drawn: Served, capacities: Sequence[int], times: Sequence[int]) -> tuple[int, int]:
    """Return the most that all machines save together, and the least largest load, of all assignments.

    Loads are what the requests of a machine take on nothing, less what its cache saves.
    """
    occupied = drawn.service.occupied

    @cache
    def saves(capacity: int, mine: tuple[int, ...]) -> int | None:
        fit = all(occupied[index] <= capacity for index in mine)
        return drawn.most_saved(mine, capacity) if fit else None

    saved, loads = [], []
    for choice in product(range(len(capacities)), repeat=len(times)):
        parts = [tuple(index for index, at in enumerate(choice) if at == machine) for machine in range(len(capacities))]
        found = [saves(capacity, mine) for capacity, mine in zip(capacities, parts, strict=True)]
        sure = [each for each in found if each is not None]
        if len(sure) == len(found):
            saved.append(sum(sure))
            alone = [sum(times[index] for index in mine) for mine in parts]
            loads.append(max(time - each for time, each in zip(alone, sure, strict=True)))
    return max(saved), min(loads)
