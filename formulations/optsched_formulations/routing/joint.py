r"""Assignment and batch schedules of several machines together, exactly.

Theorem
-------
Without moves a schedule of R machines is an assignment of requests to machines and a schedule of each machine, so with
:math:`v_m(S)` the optimum of machine m for the requests S alone, and Ω the maximum or the sum,

.. math:: \mathrm{OPT} = \min_{S_1 ⊎ … ⊎ S_R} \; Ω_m \; v_m(S_m) .

If :math:`\mathrm{LB}_m(S) ≤ v_m(S)` for all m and S, the same minimum over LB is at most OPT; where it is taken by sets
with :math:`\mathrm{LB}_m(S_m) = v_m(S_m)`, it is OPT.

Proof
-----
Batches of different machines do not depend on each other, and each objective here is the maximum (makespan, counted
from the earliest arrival of all; largest latencies) or the sum (of latencies; of missed SLOs) over requests, hence over
machines. ∎

*Search.* LB starts with bounds that scale. A dynamic programme finds the best sets (`partition`); those among them
whose optimum is not known are solved by the exact engines for one machine, which raises LB; and so on until the best
sets are all solved. Requests that differ in nothing are counted, not named; equal machines share LB.

*Propagation.* A schedule of S without the requests outside of S' ⊆ S is one of S', no batch of which lasts longer:
:math:`v(S) ≥ v(S')`, and :math:`v(S) ≥ v(S') + v(S ∖ S')` for sums. An eviction may lose the batch of its pause: then
it pauses in the next batch, or, where that fills it again, keeps its KV and decodes. So evictions have to be forbidden,
or prefills whole, refills dear (`refills`) and batches hybrid: in chunks, what is filled again holds less at first than
what is kept, and beside prefills a decode needs hybrid batches. Swapping is left out. With prefix caches nothing of it
holds: a request may warm the cache for another, so that a smaller set may cost more.

Conditions
----------
No moves. `optsched.check.certificates.joint.joint_bound` checks a lower bound of each set that is listed, propagates
them only under these conditions, which it tests itself, and repeats the dynamic programme; not with caches yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optsched.bounds.catalogue import BOUNDS_WITH_CACHES, bound_method, bound_of_several
from optsched.model.cluster import CacheMode
from optsched.model.cluster_metrics import cluster_metrics
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.model.schedule import Schedule
from optsched.solvers.formulation import Formulation, Outcome, Task, Termination, UnsupportedError
from optsched.stopwatch import now_s
from optsched_formulations.batching.refills import least_beyond_ps
from optsched_formulations.batching.state_search import StateSearch
from optsched_formulations.batching.token_cpsat import TokenCpSat
from optsched_formulations.routing.cached_search import solve_cached
from optsched_formulations.routing.fleet import (
    equal_machines,
    equal_requests,
    require_independent,
    require_places,
)
from optsched_formulations.routing.partition import MOST_VALUE, Subsets, add_machine

_BOUNDS = ("volume", "alone", "machine", "late")
"""The bounds to begin with."""
_MOST_SUBSETS = 100_000
"""Sets of requests that are listed."""
_FIRST_SECONDS, _MORE = 1.0, 4
"""For the first call of an engine for a set, and how many times as long each further call for it has."""

Engine = Callable[[Instance, Objective, float], Outcome]
"""Solves one machine within some seconds."""


def exact_engine(instance: Instance, objective: Objective, time_limit_s: float) -> Outcome:
    """Solve one machine by the first of the exact formulations that covers it."""
    if instance.is_cached:
        return solve_cached(instance, objective, time_limit_s)
    engines: tuple[Formulation, ...] = (StateSearch(), TokenCpSat())
    task = Task(instance, objective, time_limit_s=time_limit_s)
    for engine in engines[:-1]:
        try:
            return engine.solve(task)
        except UnsupportedError:
            continue
    return engines[-1].solve(task)


@dataclass(frozen=True)
class Part:
    """What one machine serves in the best assignment found.

    Parameters
    ----------
    requests
        Indices.
    schedule
        Its schedule, in which request k is ``requests[k]``; None if it serves none.
    """

    requests: tuple[int, ...]
    schedule: Schedule | None


@dataclass(frozen=True)
class JointOptimum:
    """The best assignment and schedules found, and the best bound.

    Parameters
    ----------
    parts
        By machine; empty if no assignment has been solved.
    value, bound
        In the objective's unit; the value is None without an assignment.
    badge, certificate
        What backs the bound.
    solved
        How many sets were solved exactly.
    """

    parts: tuple[Part, ...]
    value: int | None
    bound: int
    badge: Badge
    certificate: dict[str, Any] | None
    solved: int

    @property
    def optimal(self) -> bool:
        """Whether no schedule of the machines is better."""
        return self.value == self.bound


def solve_jointly(
    cluster: Instance,
    objective: Objective,
    *,
    time_limit_s: float = 60.0,
    monotone: bool = True,
    engine: Engine = exact_engine,
) -> JointOptimum:
    """Minimise an objective over assignments and schedules.

    Parameters
    ----------
    cluster
        Machines and requests.
    objective
        A maximum or a sum over requests, or the makespan.
    time_limit_s
        Wall-clock limit, also of the first bounds; sets that have none by then count as taking nothing.
    monotone
        Whether fewer requests never take longer, or more in sum. Where refills may be cheap, or prefixes are cached, it
        is not relied on.
    engine
        Solves one machine exactly.

    Raises
    ------
    UnsupportedError
        For other objectives and moves, or if there are too many sets of requests.
    InputError
        If a request fits no machine.
    """
    return _Search(cluster, objective, monotone, engine, now_s() + time_limit_s).run()


class _Search:
    """One call: lower bounds of all sets on all kinds of machines, and what is solved."""

    def __init__(
        self,
        cluster: Instance,
        objective: Objective,
        monotone: bool,
        engine: Engine,
        deadline: float,
    ) -> None:
        if not objective.is_largest and not objective.is_sum:
            raise UnsupportedError(f"objective {objective.value}, it is no maximum or sum over machines")
        require_independent(cluster, caches=True)
        require_places(cluster)
        self._cluster, self._objective, self._engine, self._deadline = cluster, objective, engine, deadline
        self._kind_of, self._groups = equal_machines(cluster), equal_requests(cluster)
        sizes = tuple(map(len, self._groups))
        if np.prod([size + 1 for size in sizes], dtype=np.float64) > _MOST_SUBSETS:
            raise UnsupportedError(f"more than {_MOST_SUBSETS} different sets of requests")
        self._subsets = Subsets(sizes)
        self._kinds = sorted(set(self._kind_of))
        self._monotone = {
            kind: monotone and _may_lose_requests(cluster.on(kind, range(len(cluster.requests))))
            for kind in self._kinds
        }
        self._proofs: dict[tuple[int, int], tuple[int, dict[str, Any] | None]] = {}
        self._exact: dict[tuple[int, int], Schedule] = {}
        self._least = {kind: self._first_bounds(kind) for kind in self._kinds}
        self._best: tuple[int, list[int]] | None = None
        # Seconds of the next call for a set that was not solved before; infinite if its engine says no more.
        self._seconds: dict[tuple[int, int], float] = {}

    def run(self) -> JointOptimum:
        while True:
            bound, sets = self._divide()
            open_sets = [
                (kind, subset)
                for kind, subset in zip(self._kind_of, sets, strict=True)
                if subset and (kind, subset) not in self._exact
            ]
            if not open_sets:
                self._offer(sets)
                break
            missing = [key for key in dict.fromkeys(open_sets) if self._seconds.get(key, 0) < math.inf]
            if not missing or now_s() > self._deadline:
                break
            # The largest set first: what it teaches may change the division. One that takes long comes after the
            # others, which may show that nothing depends on it.
            key = min(missing, key=lambda key: (self._seconds.get(key, 0), -int(self._subsets.counts[key[1]].sum())))
            self._solve(*key)
            self._offer(sets)
        return self._answer(bound)

    def _members(self, subset: int) -> list[int]:
        """Return the requests of a set: the first of every group."""
        counts = self._subsets.counts[subset].tolist()
        return [request for group, count in zip(self._groups, counts, strict=True) for request in group[:count]]

    def _instance(self, kind: int, subset: int) -> Instance:
        return self._cluster.on(kind, self._members(subset))

    def _later_ps(self, instance: Instance) -> int:
        """Return by how much the makespan of one machine's requests counts from a later moment than that of all."""
        return instance.start_ps - self._cluster.start_ps if self._objective is Objective.MAKESPAN else 0

    def _first_bounds(self, kind: int) -> Ints:
        least = np.zeros(len(self._subsets.counts), dtype=np.int64)
        if self._cluster.machines[kind].cache.mode is CacheMode.NONE:
            methods = [bound_method(name) for name in _BOUNDS]
        else:
            methods = [bound_of_several(name) for name in BOUNDS_WITH_CACHES]
        for subset in range(1, len(least)):
            if now_s() > self._deadline:
                break  # What has no bound yet takes at least nothing.
            instance = self._instance(kind, subset)
            # Where prefixes are cached one request may make room for the prefill of another.
            if instance.infeasibilities() and not instance.is_cached:
                least[subset] = MOST_VALUE
                continue
            bounds = [found for method in methods if (found := method(instance, self._objective)) is not None]
            best = max(bounds, key=lambda found: found.value)
            value = best.value + self._later_ps(instance)
            if value >= MOST_VALUE:
                raise UnsupportedError("times beyond 61 bits")
            least[subset] = value
            self._proofs[kind, subset] = value, best.certificate
        return least

    def _divide(self) -> tuple[int, list[int]]:
        """Return the least value by the bounds, and the set of every machine."""
        subsets, largest = self._subsets, self._objective.is_largest
        best = np.full(len(subsets.counts), MOST_VALUE, dtype=np.int64)
        best[0] = 0
        parts = []
        for kind in self._kind_of:
            best, part = add_machine(best, self._least[kind], subsets.counts, subsets.digit, largest)
            parts.append(part)
        left, sets = len(best) - 1, []
        for part in reversed(parts):
            sets.append(int(part[left]))
            left -= sets[-1]
        return int(best[-1]), sets[::-1]

    def _solve(self, kind: int, subset: int) -> None:
        """Solve a set on a machine, and raise the bounds."""
        instance = self._instance(kind, subset)
        left = max(self._deadline - now_s(), 0.1)
        seconds = max(self._seconds.get((kind, subset), 0), _FIRST_SECONDS)
        outcome = self._engine(instance, self._objective, min(left, seconds))
        later = self._later_ps(instance)
        if outcome.termination is Termination.INFEASIBLE:
            self._least[kind][subset] = MOST_VALUE
            return
        if outcome.schedule is not None and outcome.termination is Termination.OPTIMAL:
            self._exact[kind, subset] = outcome.schedule
        else:
            self._seconds[kind, subset] = _MORE * seconds if outcome.termination is Termination.LIMIT else math.inf
        if outcome.bound is None or outcome.bound + later < self._least[kind][subset]:
            return
        value = outcome.bound + later
        certificate = outcome.certificate if outcome.badge is Badge.CERTIFIED else None
        known = self._proofs.get((kind, subset))
        if certificate is None and known is not None and known[0] == value:
            certificate = known[1]
        self._proofs[kind, subset] = value, certificate
        self._least[kind][subset] = value
        if not self._monotone[kind]:
            return
        least, counts = self._least[kind], self._subsets.counts
        containing = np.flatnonzero(self._subsets.below(counts[subset]))
        raised = np.full(len(containing), value, dtype=np.int64)
        if self._objective.is_sum:
            raised += least[containing - subset]
        least[containing] = np.minimum(np.maximum(least[containing], raised), MOST_VALUE)

    def _offer(self, sets: list[int]) -> None:
        """Take an assignment if all of its sets are solved and it is the best."""
        keys = [key for key in zip(self._kind_of, sets, strict=True) if key[1]]
        if not all(key in self._exact for key in keys):
            return
        values = [int(self._least[kind][subset]) for kind, subset in keys]
        value = max(values) if self._objective.is_largest else sum(values)
        if self._best is None or value < self._best[0]:
            self._best = value, sets

    def _answer(self, bound: int) -> JointOptimum:
        parts, value = [], None
        if self._best is not None:
            value, sets = self._best
            taken = [0] * len(self._groups)
            for kind, subset in zip(self._kind_of, sets, strict=True):
                requests: list[int] = []
                for number, count in enumerate(self._subsets.counts[subset].tolist()):
                    requests += self._groups[number][taken[number] : taken[number] + count]
                    taken[number] += count
                parts.append(Part(tuple(requests), self._exact.get((kind, subset))))
        certificate = self._certificate(bound)
        badge = Badge.SOLVER_CLAIMED if certificate is None else Badge.CERTIFIED
        return JointOptimum(tuple(parts), value, bound, badge, certificate, len(self._exact))

    def _certificate(self, bound: int) -> dict[str, Any] | None:
        """Return the bounds of all sets with their certificates; None if one that is needed has none.

        A bound without a certificate counts for nothing, and the checker knows no sets of machines with caches.
        """
        if self._cluster.is_cached:
            return None
        entries = [
            {
                "machine": kind,
                "counts": self._subsets.counts[subset].tolist(),
                "bound": value - self._later_ps(self._instance(kind, subset)),
                "certificate": certificate,
            }
            for (kind, subset), (value, certificate) in self._needed(bound)
        ]
        if any(entry["certificate"] is None for entry in entries):
            return None
        return {"kind": "joint", "bound": bound, "sets": entries}

    def _needed(self, bound: int) -> Iterator[tuple[tuple[int, int], tuple[int, dict[str, Any] | None]]]:
        """Yield the sets and their proofs that a certificate has.

        Whether the largest value is the bound or more depends on the sets that reach it, and of these on the smallest,
        if larger ones take no less.
        """
        counts = self._subsets.counts
        kept: dict[int, list[Ints]] = {kind: [] for kind in self._kinds}
        # Sets are numbered so that what a set contains comes before it.
        for (kind, subset), proof in sorted(self._proofs.items(), key=lambda item: item[0]):
            if self._objective.is_largest:
                if proof[0] < bound:
                    continue
                if self._monotone[kind] and any((part <= counts[subset]).all() for part in kept[kind]):
                    continue
                kept[kind].append(counts[subset])
            yield (kind, subset), proof


def _may_lose_requests(instance: Instance) -> bool:
    """Whether a schedule without some requests is one of the others (see the module's docstring)."""
    rules = instance.rules
    dear = rules.hybrid and not rules.chunked_prefill and least_beyond_ps(instance) >= 0
    return not rules.swap and not instance.is_cached and (not rules.eviction or dear)


def objective_of(cluster: Instance, objective: Objective, parts: Sequence[Part]) -> int:
    """Return the objective's value of schedules of all machines, from their replays."""
    values = []
    for machine, part in enumerate(parts):
        if part.schedule is not None:
            instance = cluster.on(machine, part.requests)
            measured = (cluster_metrics if instance.is_cached else evaluate)(instance, part.schedule)
            value = int(measured["objectives"][objective.value])
            later = instance.start_ps - cluster.start_ps if objective is Objective.MAKESPAN else 0
            values.append(value + later)
    return max(values) if objective.is_largest else sum(values)
