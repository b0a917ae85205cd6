r"""The planner for several machines without moves: requests are assigned, and each machine's part is planned.

Assignments to begin with are lists of requests: by what they need or by arrival, dealt out to the machine with the
least so far; and cut into parts, by output, so that only one machine has as many batches as the longest output, by
prompt, so that long prompts delay few decodes, and by how many times the prompt is as long as the output. Where the
cuts are follows from what the parts take. Then requests move between machines, alone or in exchange for another, each
part planned by the recipe that was best there; now and then the recipe of one machine changes. When that has gone on
for a while, every machine's recipe is looked for anew, as if it were alone, and requests move again.

*Late acceptance* (Burke and Bykov 2017) decides what is kept: what is no worse than what was current some changes ago.
Machines that all end at about the same time leave nothing to gain for the last of them alone. So where the largest
value counts, plans are compared by a smooth maximum, :math:`τ \log \sum_m \exp(v_m / τ)`, by which a machine that ends
earlier makes room, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from optsched.arrays import InstanceArrays, RequestArrays
from optsched.model.domain import replace
from optsched.model.instance import Instance, Request
from optsched.model.ints import Ints
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Batch, Schedule
from optsched.planner.ranking import Feature, features, ranking
from optsched.planner.search import Candidate, Recipe, RuleSearch, candidate
from optsched.planner.sizes import arrays_to_plan

_HEATS = ((3, 1280), (2, 4000))
"""How many of the best assignments go on, and for how many changes of each, before the best goes on alone."""
_CUTS = 40
"""Cuts of a list that are tried: by what the parts of the one before took, or of a sum by chance."""
_VARIED = 0.15
"""By how much shares of the list vary then, as the deviation of their logarithm."""
_MOVES, _OWN = 4000, 4000
"""Changes of the best from one time to the next that recipes are looked for anew, and of each machine's recipe then."""
_DEAL, _DEAL_LARGEST = 8, 3
"""Changes from one of a recipe to the next, of a sum and of a largest value; the others move requests.

All machines of a largest value have to end earlier, and each does so by its recipe, too.
"""
_RULES = 4
"""Changes of the recipe then."""
_LATE = 100
"""Changes after which a largest value is forgotten; a sum has no plateaus, and is not to get worse."""
_SMOOTH, _SHARP = 300, 4000
"""The part of the largest value that is τ, at the begin and in the end."""
_ALIKE = 8
"""Requests that are taken to be like another."""

Members = tuple[int, ...]
"""The requests of a machine, ascending."""


@dataclass(frozen=True)
class MachinePlan:
    """What one machine does: its requests, how their plan was made, and its value.

    Parameters
    ----------
    members
        The requests, which are 0, 1, … in the plan.
    candidate
        Recipe and plan; None if there are no requests.
    value
        Of its objective, a makespan counted from the earliest arrival of all.
    """

    members: Members
    candidate: Candidate | None
    value: int


Fleet = tuple[MachinePlan, ...]
"""What all machines do."""


class FleetSearch:
    """The search for one instance of several machines and an objective that is their largest or their sum.

    Parameters
    ----------
    instance
        Machines without roles, caches and moves; every request fits some machine.
    objective
        What to minimise.
    rng
        Draws the changes.

    Attributes
    ----------
    best
        The best plans so far; empty before the first.
    """

    def __init__(self, instance: Instance, objective: Objective, rng: np.random.Generator) -> None:
        self.best: Fleet = ()
        self._instance, self._objective, self._rng = instance, objective, rng
        self._arrival = instance.arrivals_ps
        self._starts: list[Fleet] = []
        self._largest = objective.is_largest
        self._alone = [instance.on(machine) for machine in range(len(instance.machines))]
        self._arrays = [arrays_to_plan(whole, Restrictions()) for whole in self._alone]
        self._rows = [features(whole, objective) for whole in self._alone]
        self._fits = [
            [not replace(whole, requests=(r,)).infeasibilities() for r in instance.requests] for whole in self._alone
        ]

    @property
    def value(self) -> int:
        """The best plans' value."""
        return self._value(self.best)

    def start(self) -> Iterator[int]:
        """Yield the values of the assignments to begin with."""
        rows = self._rows[0]
        load = rows[Feature.FILL] + rows[Feature.DECODE] + rows[Feature.VOLUME]
        for key in (-load, rows[Feature.ARRIVAL]):
            fleet = self._planned_all(self._dealt(np.argsort(key, kind="stable").tolist()))
            self._starts.append(fleet)
            yield self._value(fleet)
        prompt, output = (self._arrays[0].requests.input, self._arrays[0].requests.output)
        for keys in (-output, -prompt, -prompt / output):
            best: Fleet = ()
            for fleet in self._cuts(np.argsort(keys, kind="stable").tolist()):
                yield self._value(fleet)
                if not best or self._smooth(fleet, _SMOOTH) < self._smooth(best, _SMOOTH):
                    best = fleet
            self._starts.append(best)

    def search(self) -> Iterator[int]:
        """Yield the value of the current plans after every change, without end."""
        yield from self.start()
        fleets = self._starts
        for kept, changes in _HEATS:
            improved = []
            for current in sorted(fleets, key=self._value)[:kept]:
                last = current
                for last in islice(self._changed(current, _SMOOTH), changes):
                    yield self._value(last)
                improved.append(last)
            fleets = improved
        current = min(fleets, key=self._value)
        # A recipe that was good for a machine's first requests need not be for those that it has now.
        for turn in count():
            last = current
            for last in islice(self._changed(current, min(_SMOOTH << turn, _SHARP)), _MOVES):
                yield self._value(last)
            for current in self._searched(last, anew=not turn):
                yield self._value(current)

    def schedule(self) -> Schedule:
        """Return the best plans as one schedule."""
        return joined([(plan.members, self._own(machine, plan)) for machine, plan in enumerate(self.best)])

    def _own(self, machine: int, plan: MachinePlan) -> Schedule | None:
        if plan.candidate is None:
            return None
        return plan.candidate.plan.schedule()

    def _value(self, fleet: Sequence[MachinePlan]) -> int:
        values = [plan.value for plan in fleet]
        return max(values) if self._largest else sum(values)

    def _smooth(self, fleet: Fleet, part: int) -> float:
        """Return what plans are compared by if τ is such a part of the largest value."""
        if not self._largest:
            return self._value(fleet)
        largest = self._value(fleet)
        unit = max(1.0, largest / part)
        return largest + unit * log(sum(exp((plan.value - largest) / unit) for plan in fleet))

    def _keep(self, fleet: Fleet) -> None:
        if not self.best or self._value(fleet) < self._value(self.best):
            self.best = fleet

    # Plans of one machine ----------------------------------------------------------------------------------

    def _search_of(self, machine: int, members: Members) -> RuleSearch:
        requests, arrays, rows = self._part(machine, members)
        return RuleSearch(requests, self._objective, arrays, rows, self._rng)

    def _part(self, machine: int, members: Members) -> tuple[list[Request], InstanceArrays, Ints]:
        """Return some requests, the arrays of an instance of these on a machine, and their features."""
        chosen, arrays = np.array(members), self._arrays[machine]
        requests = RequestArrays(*(column[chosen] for column in arrays.requests))
        mine = [self._instance.requests[request] for request in members]
        return mine, arrays._replace(requests=requests), self._rows[machine][:, chosen]

    def _plan(self, members: Members, found: Candidate) -> MachinePlan:
        later = 0
        if self._objective is Objective.MAKESPAN:
            later = min(map(self._arrival.__getitem__, members))
        return MachinePlan(members, found, found.value + later)

    def _planned(self, machine: int, members: Members) -> MachinePlan:
        """Plan a part by the planner's fixed recipes."""
        if not members:
            return MachinePlan((), None, 0)
        search = self._search_of(machine, members)
        for _ in search.start():
            pass
        assert search.best is not None, "there is always a list to schedule by"
        return self._plan(members, search.best)

    def _planned_all(self, parts: Sequence[Members]) -> Fleet:
        """Plan all machines' parts by the planner's fixed recipes."""
        fleet = tuple(self._planned(machine, members) for machine, members in enumerate(parts))
        self._keep(fleet)
        return fleet

    def _replanned_all(self, before: Fleet, parts: Sequence[Members]) -> Fleet | None:
        """Plan other parts by the recipes that machines had."""
        plans = [self._replanned(machine, *each) for machine, each in enumerate(zip(before, parts, strict=True))]
        fleet = tuple(plan for plan in plans if plan is not None)
        if len(fleet) < len(plans):
            return None
        self._keep(fleet)
        return fleet

    def _replanned(self, machine: int, before: MachinePlan, members: Members) -> MachinePlan | None:
        """Plan a part that has changed a little, by the recipe that it had."""
        if not members:
            return MachinePlan((), None, 0)
        if before.candidate is None:
            return self._planned(machine, members)
        recipe = before.candidate.recipe
        requests, arrays, rows = self._part(machine, members)
        if recipe.weights is None:
            rank = self._ranks(machine, before, np.array(members))
        else:
            rank = ranking(rows, recipe.weights)
        recipe = Recipe(recipe.scheme, recipe.rule, rank, recipe.weights)
        found = candidate(requests, self._objective, arrays, recipe)
        return None if found is None else self._plan(members, found)

    def _ranks(self, machine: int, before: MachinePlan, members: Ints) -> Ints:
        """Return the ranks that requests had, and for a new one that of the request most like it."""
        assert before.candidate is not None
        known, there = before.candidate.recipe.rank, np.array(before.members)
        places = np.minimum(np.searchsorted(there, members), len(there) - 1)
        for new in np.flatnonzero(there[places] != members):
            places[new] = self._distances(machine, there, int(members[new])).argmin()
        ranks: Ints = known[places]
        return ranks

    def _distances(self, machine: int, members: Ints, request: int) -> Ints:
        """Return how unlike a request some others are."""
        rows = self._rows[machine][[Feature.FILL, Feature.OUTPUT]]
        distances: Ints = np.abs(rows[:, members] - rows[:, [request]]).sum(axis=0)
        return distances

    def _retuned(self, fleet: Fleet) -> Fleet:
        """Change the rule or the order of a machine."""
        machine = int(self._rng.integers(len(fleet)))
        plan = fleet[machine]
        if plan.candidate is None:
            return fleet
        search = self._search_of(machine, plan.members)
        best = plan.candidate
        for _ in range(_RULES):
            found = search.attempt(search.changed(best.recipe))
            if found is not None and found.value <= best.value:
                best = found
        return self._with(fleet, {machine: self._plan(plan.members, best)})

    def _searched(self, fleet: Fleet, *, anew: bool) -> Iterator[Fleet]:
        """Look for a recipe of each machine, ``anew`` also from all schemes; yield the current plans meanwhile."""
        for machine, plan in enumerate(fleet):
            if plan.candidate is None:
                continue
            search = self._search_of(machine, plan.members)
            search.attempt(plan.candidate.recipe)
            for _ in chain(search.start() if anew else (), islice(search.improve(), _OWN)):
                yield fleet
            assert search.best is not None, "the plan that there was"
            fleet = self._with(fleet, {machine: self._plan(plan.members, search.best)})
            self._keep(fleet)
            yield fleet

    # Assignments -------------------------------------------------------------------------------------------

    def _load(self, machine: int, request: int) -> int:
        rows = self._rows[machine][:, request]
        return int(rows[Feature.FILL] + rows[Feature.DECODE] + rows[Feature.VOLUME])

    def _dealt(self, order: Sequence[int]) -> list[Members]:
        """Deal requests out, each to the machine whose load is least with it."""
        loads = [0] * len(self._alone)
        parts: list[list[int]] = [[] for _ in self._alone]
        for request in order:
            machine = min(
                (m for m in range(len(loads)) if self._fits[m][request]),
                key=lambda m: loads[m] + self._load(m, request),
            )
            loads[machine] += self._load(machine, request)
            parts[machine].append(request)
        return [tuple(sorted(part)) for part in parts]

    def _cut(self, order: Sequence[int], shares: NDArray[np.float64]) -> list[Members]:
        """Cut a list of requests into parts that have these shares of the load."""
        loads = np.cumsum([self._load(0, request) for request in order])
        ends = np.searchsorted(loads, np.cumsum(shares) / shares.sum() * loads[-1])
        parts: list[list[int]] = [[] for _ in self._alone]
        for position, request in enumerate(order):
            machine = min(int(np.searchsorted(ends, position)), len(parts) - 1)
            if not self._fits[machine][request]:
                machine = next(m for m in range(len(parts)) if self._fits[m][request])
            parts[machine].append(request)
        return [tuple(sorted(part)) for part in parts]

    def _cuts(self, order: Sequence[int]) -> Iterator[Fleet]:
        """Yield plans of parts of a list, cut in one way after the other."""
        shares = np.ones(len(self._alone))
        fleet = best = self._planned_all(self._cut(order, shares))
        yield fleet
        for _ in range(_CUTS):
            if self._largest:
                values = np.array([max(1, plan.value) for plan in fleet], dtype=np.float64)
                tried = shares * np.sqrt(values.mean() / values)
            else:
                tried = shares * np.exp(self._rng.normal(0, _VARIED, len(shares)))
            new = self._replanned_all(fleet, self._cut(order, tried))
            if new is None:
                continue
            if self._largest or self._value(new) <= self._value(fleet):
                fleet, shares = new, tried
            if self._smooth(new, _SMOOTH) < self._smooth(best, _SMOOTH):
                best = new
            yield new
        yield self._planned_all([plan.members for plan in best])

    # Moves -------------------------------------------------------------------------------------------------

    def _changed(self, fleet: Fleet, part: int) -> Iterator[Fleet]:
        """Change plans without end, with τ such a part of the largest value; yield the current ones each time."""
        known = self._smooth(fleet, part)
        history = [known] * (_LATE if self._largest else 1)
        deal = _DEAL_LARGEST if self._largest else _DEAL
        for change in count(1):
            new = self._moved(fleet) if change % deal else self._retuned(fleet)
            value = known if new is None else self._smooth(new, part)
            if new is not None and value <= max(known, history[change % len(history)]):
                fleet, known = new, value
                self._keep(fleet)
            history[change % len(history)] = known
            yield fleet

    def _moved(self, fleet: Fleet) -> Fleet | None:
        """Return plans with a request moved, or two exchanged; None if that cannot be."""
        if len(fleet) == 1:
            return None
        giving, taking = int(self._rng.integers(len(fleet))), int(self._rng.integers(len(fleet) - 1))
        taking += taking >= giving
        giver, taker = fleet[giving], fleet[taking]
        if not giver.members:
            return None
        request = self._one_of(giver.members)
        if not self._fits[taking][request]:
            return None
        changed = {request}
        if taker.members and self._rng.integers(3):
            alike = bool(self._rng.integers(2))
            among = self._like(taking, taker.members, request) if alike else taker.members
            other = self._one_of(among)
            if not self._fits[giving][other]:
                return None
            changed.add(other)
        new = {
            giving: self._replanned(giving, giver, tuple(sorted(set(giver.members) ^ changed))),
            taking: self._replanned(taking, taker, tuple(sorted(set(taker.members) ^ changed))),
        }
        plans = {machine: plan for machine, plan in new.items() if plan is not None}
        return self._with(fleet, plans) if len(plans) == len(new) else None

    def _like(self, machine: int, members: Members, request: int) -> Members:
        """Return the few of a machine's requests that are most like another."""
        distances = self._distances(machine, np.array(members), request)
        return tuple(members[place] for place in np.argsort(distances, kind="stable")[:_ALIKE].tolist())

    def _one_of(self, members: Members) -> int:
        return members[int(self._rng.integers(len(members)))]

    @staticmethod
    def _with(fleet: Fleet, plans: dict[int, MachinePlan]) -> Fleet:
        return tuple(plans.get(machine, plan) for machine, plan in enumerate(fleet))


def joined(parts: Sequence[tuple[Sequence[int], Schedule | None]]) -> Schedule:
    """Return one schedule of machines' own: for each its requests, and the schedule in which these are 0, 1, …."""
    batches: list[Batch] = []
    routes = [0] * sum(len(members) for members, _ in parts)
    for machine, (members, schedule) in enumerate(parts):
        for request in members:
            routes[request] = machine
        if schedule is not None:
            batches += (_on(machine, members, batch) for batch in schedule.batches)
    batches.sort(key=lambda batch: (batch.start_ps, batch.replica))
    return Schedule(tuple(batches), tuple(routes))


def _on(machine: int, members: Sequence[int], batch: Batch) -> Batch:
    return replace(
        batch,
        replica=machine,
        run=tuple((members[request], tokens) for request, tokens in batch.run),
        **{
            name: tuple(members[request] for request in getattr(batch, name))
            for name in ("evict", "swap_out", "swap_in")
        },
        **{
            name: tuple((members[request], number) for request, number in getattr(batch, name))
            for name in ("hits", "drop")
        },
    )
