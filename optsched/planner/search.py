"""Search over rules and orders of list scheduling: a fixed start, then changes that are kept where they pay.

Late acceptance (Burke and Bykov 2017, European Journal of Operational Research 258) decides what pays: a change is
kept if it is no worse than what was current some changes ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise

import numpy as np

from optsched.arrays import InstanceArrays
from optsched.model.instance import Instance, Request
from optsched.model.ints import Ints
from optsched.model.objectives import Latency, Objective, value_at
from optsched.model.restrictions import Restrictions
from optsched.planner.backward import backward
from optsched.planner.evicting import evicting, may_refill
from optsched.planner.first_tokens import first_tokens, may_drop
from optsched.planner.forward import forward
from optsched.planner.plan import ScheduleArrays
from optsched.planner.ranking import Feature, Weights, features, ranking, weights
from optsched.planner.responsive import may_respond, responsive
from optsched.planner.sizes import LEAST_CHUNK, arrays_to_plan
from optsched.planner.steps import ListRule

_ONE = 16
"""A weight of 1."""
_LATE = 30
"""Changes after which a value is forgotten."""
_PATIENCE = 1000
"""Changes without a better plan after which the search starts anew from another scheme."""
_NEAR, _HASTE = 400, 8
"""A scheme whose best plan is worse than that of another by more than such a part has a fraction of this patience."""
_PROPOSALS = 50_000_000
"""Runs in plans after which another order is proposed from outside: those of some hundred plans of 2,000 requests."""
_PLANS = 100
"""Plans that are tried before that at least, where these are large."""
_SETTLED = 100
"""Changes without a better plan before an order by weights is changed without them. It has no weights any more then,
and its requests change places a few at a time, while a weight changes the order of all."""
_SHARES = (0, 4, 8, 12)
"""Sixteenths of the requests with long prompts that are kept for the start of the schedule."""

_SHORT_FIRST = (
    weights(fill=22, decode=_ONE, volume=4),
    weights(fill=_ONE, decode=_ONE, volume=_ONE),
    weights(fill=_ONE, output=_ONE),
    weights(fill=_ONE),
)
_BY_ARRIVAL = (
    weights(arrival=_ONE),
    weights(arrival=_ONE, fill=_ONE),
    weights(arrival=_ONE, output=-_ONE),
    weights(output=-_ONE),
)
_BY_DEADLINE = (
    weights(deadline=_ONE),
    weights(deadline=_ONE, fill=-_ONE, output=-_ONE),
    weights(deadline=1, fill=_ONE, output=_ONE),
)
_BACKWARD = (weights(output=-_ONE, fill=-1), weights(fill=_ONE, output=-1), weights(fill=-_ONE, output=-1))
"""Of the requests that end last."""


Scheme = Callable[[InstanceArrays, ListRule, Ints], ScheduleArrays | None]
"""A scheme of list scheduling: `forward`, `backward`, `evicting`, `responsive` or `first_tokens`; None if it makes no
plan of use."""


Ranks = list[tuple[Weights | None, Ints]]
"""Ranks of the requests, with the weights that they came from."""


@dataclass(frozen=True)
class Recipe:
    """How a plan is made: the scheme, the rule, the rank of every request, and the weights that it came from."""

    scheme: Scheme
    rule: ListRule
    rank: Ints
    weights: Weights | None = None

    def ordered(self, rank: Ints) -> Recipe:
        """Return the recipe with another order."""
        return replace(self, rank=rank, weights=None)


@dataclass(frozen=True)
class Candidate:
    """A recipe's plan and its value."""

    recipe: Recipe
    plan: ScheduleArrays
    value: int


def candidate(
    requests: Sequence[Request], objective: Objective, arrays: InstanceArrays, recipe: Recipe
) -> Candidate | None:
    """Return what a recipe makes of requests and the arrays of an instance with these; None if that is of no use."""
    plan = recipe.scheme(arrays, recipe.rule, recipe.rank)
    if plan is None:
        return None
    ttft, e2e = ((plan.end_ps[batch] - arrays.requests.arrival).tolist() for batch in (plan.first, plan.last))
    return Candidate(recipe, plan, value_at(requests, objective, ttft, e2e))


Propose = Callable[[Candidate], Ints | None]
"""Proposes another order of the requests for a plan's recipe; None if it has none."""


class RuleSearch:
    """The search for one instance, objective and class of schedules.

    Parameters
    ----------
    requests
        The requests.
    objective
        What to minimise, monotone.
    arrays
        The instance; restrictions are in its rules and in the order in which requests must first run.
    rows
        The requests' features.
    rng
        Draws the changes.

    Attributes
    ----------
    best
        The best plan so far, None before the first.
    work
        Runs in all plans tried, a measure of time that does not depend on the machine.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        objective: Objective,
        arrays: InstanceArrays,
        rows: Ints,
        rng: np.random.Generator,
    ) -> None:
        self.best: Candidate | None = None
        self.work = 0
        self._requests, self._objective, self._rng = requests, objective, rng
        self._arrays, self._features = arrays, rows
        self._levels = _levels(self._arrays)
        self._wait = max(_PROPOSALS, _PLANS * int(arrays.requests.output.sum()))
        self._best_of: dict[Scheme, Candidate] = {}
        arrival = self._arrays.requests.arrival
        sums = objective in {Objective.MEAN_E2E, Objective.WEIGHTED_E2E}
        self._queues = sums and bool((arrival != arrival[0]).any())

    @classmethod
    def of(
        cls, instance: Instance, objective: Objective, restrictions: Restrictions, rng: np.random.Generator
    ) -> RuleSearch:
        """Return the search for an instance to whose rules the restrictions have been applied.

        If the number of evictions is limited there are none.

        Raises
        ------
        TooLargeToPlanError
            If times could exceed 64 bits.
        """
        arrays = arrays_to_plan(instance, restrictions)
        return cls(instance.requests, objective, arrays, features(instance, objective), rng)

    def start(self) -> Iterator[Candidate]:
        """Yield the plans of a fixed set of recipes: orders first, then one parameter of the rule after the other."""
        for scheme, ranks in self._orders():
            best: Candidate | None = None
            rule, choices = self._choices(scheme)
            for chosen, rank in ranks:
                for level in sorted({rule.level, choices["level"][-1]}):
                    found = self.attempt(Recipe(scheme, rule._replace(level=level), rank, chosen))
                    if found is not None:
                        yield found
                        best = _better(best, found)
            if best is None or self.best is None or best.value * 16 > self.best.value * 17:
                continue
            for name, values in choices.items():
                rule = best.recipe.rule
                for value in values:
                    found = self.attempt(replace(best.recipe, rule=rule._replace(**{name: value})))
                    if found is not None:
                        yield found
                        best = _better(best, found)

    def improve(self, propose: Propose | None = None) -> Iterator[Candidate]:
        """Change recipes without end, from the best of each scheme in turn; yield the current one after every change.

        Now and then ``propose`` says how the order changes, once its weights are settled.
        """
        due = self.work
        for scheme in cycle(sorted(self._best_of, key=lambda scheme: self._best_of[scheme].value)):
            current = best = self._best_of[scheme]
            far = self.best is not None and current.value * _NEAR > self.best.value * (_NEAR + 1)
            patience = _PATIENCE // _HASTE if far else _PATIENCE
            history = [current.value] * _LATE
            fruitless = 0
            while fruitless < patience:
                fruitless += 1
                chosen, order = current.recipe, None
                by_hand = chosen.weights is None or fruitless > _SETTLED
                if propose is not None and by_hand and self.work >= due:
                    order, due = propose(current), self.work + self._wait
                found = self.attempt(self.changed(chosen, by_hand=by_hand) if order is None else chosen.ordered(order))
                if found is not None and found.value <= max(current.value, history[fruitless % _LATE]):
                    current = found
                history[fruitless % _LATE] = current.value
                if current.value < best.value:
                    best, fruitless = current, 0
                yield current

    def attempt(self, recipe: Recipe) -> Candidate | None:
        """Return what a recipe makes, if it is of use."""
        found = candidate(self._requests, self._objective, self._arrays, recipe)
        if found is None:
            return None
        self.work += found.plan.runs
        self.best = _better(self.best, found)
        self._best_of[recipe.scheme] = _better(self._best_of.get(recipe.scheme), found)
        return found

    def _orders(self) -> Iterator[tuple[Scheme, Ranks]]:
        """Yield the schemes that the instance allows, with ranks to start from and their weights."""
        rows, arrays, arrival = self._features, self._arrays, self._arrays.requests.arrival
        ranks: Ranks = [(chosen, ranking(rows, chosen)) for chosen in _orders_for(self._objective)]
        yield forward, ranks
        if self._objective.latency is Latency.TTFT and may_drop(arrays):
            yield first_tokens, ranks[:1]
        if may_refill(arrays):
            yield evicting, ranks
        if self._queues and may_respond(arrays):
            yield responsive, ranks
        if arrays.limits.hybrid and (arrival == arrival[0]).all() and not len(arrays.queue):
            mixed: Ranks = [(None, _interleaved(rows, share)) for share in _SHARES]
            yield backward, [*((chosen, ranking(rows, chosen)) for chosen in _BACKWARD), *mixed]

    def _choices(self, scheme: Scheme) -> tuple[ListRule, dict[str, list[int]]]:
        """Return the rule to start from, and the values to try of each of its parameters."""
        if scheme is first_tokens:
            return ListRule(_ONE, _ONE, 0, 0), {"tries": [1, _ONE, 1000], "least": [8, 64, 128], "level": [8, 32, 64]}
        middle, least = self._levels[len(self._levels) // 2], 4 * LEAST_CHUNK
        choices = {"level": self._levels, "least": [LEAST_CHUNK, 8 * LEAST_CHUNK, 16 * LEAST_CHUNK]}
        if scheme is responsive:
            choices |= {"tries": [16, 24, 32, 1000], "ahead": [16, 32, 64, 128]}
            return ListRule(middle, least, 1000, 0), choices
        if scheme is evicting:
            choices["ahead"] = [4, 16, 64, 256]
        if scheme is forward and self._queues and self._arrays.limits.hybrid:
            choices["ahead"] = [32, 64, 128]
        return ListRule(middle, least, 1 if scheme is backward else 8, 0), choices | {"tries": [1, 8, 64]}

    def changed(self, recipe: Recipe, *, by_hand: bool = True) -> Recipe:
        """Return a recipe with something else, drawn at random: a parameter of the rule, a weight, or the order.

        An order that has weights is changed by these alone if not ``by_hand``.
        """
        rng, rule = self._rng, recipe.rule
        match int(rng.integers(6)):
            case 0 | 1:
                level = int(rule.level * 2.0 ** rng.normal(0, 0.3))
                return replace(recipe, rule=rule._replace(level=min(max(level, LEAST_CHUNK), self._levels[-1])))
            case 2:
                least = int(rule.least * 2.0 ** rng.normal(0, 0.5))
                return replace(recipe, rule=rule._replace(least=min(max(least, LEAST_CHUNK), self._levels[-1])))
            case 3:
                if (recipe.scheme in {evicting, responsive} or rule.ahead) and rng.integers(2):
                    return replace(recipe, rule=rule._replace(ahead=int(2.0 ** rng.uniform(0, 10)) - 1))
                return replace(recipe, rule=rule._replace(tries=int(2 ** rng.integers(8))))
            case kind if recipe.weights is not None and (kind == 4 or not by_hand):
                changed = list(recipe.weights)
                changed[int(rng.integers(len(Feature)))] += int(rng.integers(-4, 5))
                return replace(recipe, rank=ranking(self._features, tuple(changed)), weights=tuple(changed))
            case _:
                return recipe.ordered(_shifted(recipe.rank, rng))


def _orders_for(objective: Objective) -> tuple[Weights, ...]:
    """Return weights to start from."""
    if objective.is_mean or objective == Objective.WEIGHTED_E2E:
        return _SHORT_FIRST
    if objective == Objective.SLO_MISSES:
        return _BY_DEADLINE + _SHORT_FIRST
    return _BY_ARRIVAL if objective.percentile is None else _BY_ARRIVAL + _SHORT_FIRST


def _better(one: Candidate | None, other: Candidate) -> Candidate:
    """Return the better one, the first if they are equal."""
    return other if one is None or other.value < one.value else one


def _levels(arrays: InstanceArrays) -> list[int]:
    """Return levels to try, ascending: where the next piece of the batch time takes over, and powers of two between."""
    limits, costs = arrays.limits, arrays.costs
    most = min(limits.tokens, limits.prefill)
    found = {most}
    pieces = sorted(zip(costs.token.tolist(), costs.base.tolist(), strict=True))
    for (slope, base), (steeper, lower) in pairwise(pieces):
        if steeper > slope:
            found.add((base - lower) // (steeper - slope))
    for power in range(2 * most.bit_length()):
        found.add(2 ** (power // 2) * (2 + power % 2) // 2)
    return sorted(level for level in found if min(most, 2 * LEAST_CHUNK) <= level <= most)


def _interleaved(rows: Ints, share: int) -> Ints:
    """Return ranks by output, long first, in which prompts come evenly, except ``share`` sixteenths, which come last.

    Requests whose prompts weigh more than their memory, compared to all requests, are those to be spread.
    """
    fill, volume = rows[Feature.FILL].tolist(), rows[Feature.VOLUME].tolist()
    fills, volumes = sum(fill), sum(volume)
    heavy = np.array([one * volumes > other * fills for one, other in zip(fill, volume, strict=True)])
    longest = np.argsort(-rows[Feature.OUTPUT], kind="stable")
    rank = np.empty(len(fill), dtype=np.int64)
    for members, spread in ((longest[~heavy[longest]], 16), (longest[heavy[longest]], 16 - share)):
        rank[members] = (np.arange(len(members)) << 30) // max(1, len(members) * spread)
    return rank


def _shifted(rank: Ints, rng: np.random.Generator) -> Ints:
    """Return the ranks with a stretch of the order, drawn at random, moved elsewhere."""
    order = np.argsort(rank, kind="stable")
    total = len(order)
    length = int(2.0 ** rng.uniform(0, np.log2(max(2, total // 2))))
    begin, to = int(rng.integers(total - length + 1)), int(rng.integers(total - length + 1))
    rest = np.concatenate((order[:begin], order[begin + length :]))
    moved = np.concatenate((rest[:to], order[begin : begin + length], rest[to:]))
    # The same ranks, but for those that are equal.
    placed, places = np.empty(total, dtype=np.int64), np.arange(total)
    placed[moved] = np.maximum.accumulate(rank[order] - places) + places
    return placed
