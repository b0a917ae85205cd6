"""Problems of several machines, and their optima: the best of all assignments, each machine's part by the search."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import product
from random import Random

from trial.case import Case, read_case
from trial.exhaustive import Exhaustive, Optimum, TooLargeError
from trial.odd import Document, Wanted, changed, many, problem
from trial.tried import TriedProblem

LARGEST = ("makespan", "max_ttft", "max_e2e")
SUMS = ("mean_ttft", "mean_e2e", "weighted_e2e", "slo_misses")
"""Objectives that are the largest, or the sum, of what machines have by themselves."""


class TriedCluster(TriedProblem):
    """A problem of several machines without caches and moves; nothing restricts it."""

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """The cases of all machines, each with all requests."""
        found = [read_case(self.document)] * self.document.get("replicas", 1)
        for group in self.document.get("machines", []):
            other = read_case({**self.document, **{key: group[key] for key in _PARTS if key in group}})
            found += [other] * group.get("count", 1)
        return tuple(found[1:] if "machines" in self.document else found)

    @cached_property
    def case(self) -> Case:
        """The case of the first machine."""
        return self.cases[0]

    def optimum(self, objective: str) -> Optimum:
        """Return the optimum; of other objectives none is known."""
        if objective not in self._optima:
            self._optima[objective] = Optimum(self._least(objective), [])
        return self._optima[objective]

    @cached_property
    def _optima(self) -> dict[str, Optimum]:
        return {}

    @cached_property
    def _searches(self) -> dict[Case, Exhaustive | None]:
        return {}

    def _least(self, objective: str) -> int:
        if objective not in LARGEST + SUMS:
            raise TooLargeError
        jobs, best = self.case.jobs, None
        for places in product(range(len(self.cases)), repeat=len(jobs)):
            parts = [self._of(objective, machine, places) for machine in set(places)]
            values = [value for value in parts if value is not None]
            if len(values) == len(parts):
                value = max(values) if objective in LARGEST else sum(values)
                best = value if best is None else min(best, value)
        assert best is not None, "every request fits the first machine"
        return best

    def _of(self, objective: str, machine: int, places: tuple[int, ...]) -> int | None:
        """Return what the requests of a machine have there at least; None if one does not fit."""
        jobs = self.case.jobs
        mine = tuple(job for job, place in zip(jobs, places, strict=True) if place == machine)
        case = replace(self.cases[machine], jobs=mine)
        if case not in self._searches:
            self._searches[case] = Exhaustive(case) if case.servable else None
        search = self._searches[case]
        if search is None:
            return None
        later = min(job.arrival for job in mine) - min(job.arrival for job in jobs) if objective == "makespan" else 0
        return search.optimum(objective).value + later


_PARTS = ("limits", "rules", "cost")


def cluster(rng: Random, wanted: Wanted, equal: bool) -> TriedCluster:
    """Draw two or three machines, equal or not, and requests of which each fits the first."""
    document = problem(rng, wanted)
    if equal or rng.random() < 0.3:
        return TriedCluster(document | {"replicas": rng.choice((2, 2, 3))}, {})
    groups: list[Document] = [{"count": 1}]
    for _ in range(rng.choice((1, 1, 2))):
        other = changed(rng, changed(rng, document))
        groups.append({"count": 1} | {part: other[part] for part in _PARTS})
    return TriedCluster(document | {"machines": groups}, {})


def many_on_several(rng: Random) -> Document:
    """Return an instance of 64 to 90 requests on two or three equal machines, at about the pace of one."""
    document, machines = many(rng), rng.choice((2, 3))
    for entry in document["requests"]:
        entry["arrival_ps"] //= rng.choice((1, machines))
    return document | {"replicas": machines}
