"""The largest gap of a policy over a whole finite grid of small instances, proved.

An instance of the grid has up to three requests in every order, with every combination of some inputs and outputs, and
every M from the largest peak of a request to the sum of all peaks: with less it cannot be served, with more nothing
changes. Let U = 1 − (lower bound) / (value of the policy) of an instance, which is at least its gap. The instances are
solved in decreasing order of U until the largest gap of those that are solved is at least the U of all others: then it
is the largest of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Status
from optsched.study.worst import quick_bound

_SOLVED_S = 60.0


@dataclass(frozen=True)
class Largest:
    """The largest gap of a policy over a grid.

    Parameters
    ----------
    policy, gap, instance
        The policy, its largest gap, and an instance that has it; None if the policy serves no instance.
    value, optimum
        Of the policy on that instance, and the least of all schedules.
    solved, failed
        How many instances had to be solved for the proof, and on how many the policy fails; they do not count.
    badge
        The weakest that backs an optimum or a bound of the proof.
    """

    policy: str
    gap: float
    instance: Instance | None
    value: int
    optimum: int
    solved: int
    failed: int
    badge: Badge


@dataclass(frozen=True)
class Grid:
    """Instances of a few small requests, all of which arrive at once.

    Parameters
    ----------
    inputs, outputs
        The lengths.
    most_requests
        The most requests.
    cost, rules, objective
        Cost model, rules, and what is minimised.
    budget
        C, and P.
    """

    inputs: Sequence[int]
    outputs: Sequence[int]
    most_requests: int
    cost: CostModel
    rules: Rules
    objective: Objective = Objective.MAKESPAN
    budget: int = 4096

    def instances(self) -> Iterator[Instance]:
        """Yield the instances."""
        kinds = list(product(self.inputs, self.outputs))
        for number in range(1, self.most_requests + 1):
            for chosen in product(kinds, repeat=number):
                peaks = [size + length - 1 for size, length in chosen]
                requests = tuple(Request(size, length) for size, length in chosen)
                for tokens in range(max(peaks), sum(peaks) + 1):
                    limits = Limits(tokens, self.budget, self.budget)
                    yield Instance("grid", limits, self.rules, self.cost, requests)


def largest_gaps(grid: Grid, policies: Sequence[str]) -> Iterator[Largest]:
    """Yield the largest gap of each policy."""
    bounds = [(instance, quick_bound(instance, grid.objective)) for instance in grid.instances()]
    optima: dict[int, tuple[int, Badge]] = {}

    def optimum(place: int) -> tuple[int, Badge]:
        if place not in optima:
            found = solve(bounds[place][0], grid.objective, time_limit=_SOLVED_S, workers=1)
            assert found.status is Status.OPTIMAL, "a handful of tokens is solved"
            assert found.value is not None, "it is optimal"
            optima[place] = found.value, found.badge
        return optima[place]

    for policy in policies:
        values = [simulate(instance, policy, grid.objective).value for instance, _ in bounds]
        failed = sum(value is None for value in values)
        served = [(1 - bounds[place][1] / value, place, value) for place, value in enumerate(values) if value]
        best = Largest(policy, -1.0, None, 0, 0, 0, failed, Badge.CERTIFIED)
        solved, badge = 0, Badge.CERTIFIED
        for most, place, value in sorted(served, reverse=True):
            if most <= best.gap:
                break
            least, backed = optimum(place)
            solved += 1
            badge = badge if backed is Badge.CERTIFIED else backed
            if 1 - least / value > best.gap:
                best = replace(best, gap=1 - least / value, instance=bounds[place][0], value=value, optimum=least)
        yield replace(best, solved=solved, badge=badge)
