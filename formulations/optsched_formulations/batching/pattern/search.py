"""Bound, patterns and schedules of one task, in the order that `pattern_cg` says."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection

import numpy as np

from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.model.metrics import evaluate
from optsched.model.result import Badge
from optsched.model.schedule import Assignment, Schedule, timed
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import Costs, Horizon, interchangeable, value_to_beat
from optsched_formulations.batching.flow.model import find_packing, holdings
from optsched_formulations.batching.pattern.cuts import violated_packings
from optsched_formulations.batching.pattern.dive import dive
from optsched_formulations.batching.pattern.master import LinearMaster, Shape, best_combination
from optsched_formulations.batching.pattern.network import IMPOSSIBLE, Floats, Network, Pattern, Shortest
from optsched_formulations.batching.pattern.patterns import PatternBound

_PACKING_SHARE, _BOUND_SHARE = 0.05, 0.6
"""Shares of the time limit that the packing inequality and the bound may take."""
_DIVE_SHARE = 0.6
"""Share of the time that is left then that diving may take."""
_PATTERNS = 24
"""New patterns of a class in a round."""
_SMALL = 1e-7
"""Share of the master's unit that a new pattern has to save."""
_CUTS, _MOST_PACKINGS = 4, 24
"""Packing inequalities that are added at a time, and in all."""
_MOST_NODES = 20_000_000
"""Classes × tokens × batches."""


class PatternSearch:
    """Bound, patterns and the best schedule so far of one task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._started = now_s()
        self._members = interchangeable(task)
        self._schedule, self._value = task.incumbent, task.incumbent_value
        self._upper = value_to_beat(task)
        costs = Costs(task.instance)
        self._most = Horizon(costs, task.objective, self._upper, len(costs.tokens)).batches
        levels = sum(task.instance.requests[first].output for first, *_ in self._members)
        if levels * self._most > _MOST_NODES:
            raise UnsupportedError(f"{levels} tokens of classes in {self._most} batches, too many for its paths")
        found = find_packing(task, _PACKING_SHARE * task.time_limit_s)
        self._packings = [] if found is None else [found]
        pieces = range(len(task.instance.cost.affine))
        networks = [self._network_of(piece) for piece in pieces]
        self._piece = max(pieces, key=lambda piece: networks[piece].least_ps)
        self._network = networks[self._piece]
        self._bound = PatternBound(len(pieces), self._piece, self._network)
        self._bound.use(self._network, self._packings)
        self._known = (
            one_after_another(task.instance, self._members)
            if task.incumbent is None
            else patterns_of(task.instance, self._members, task.incumbent)
        )
        # The patterns of the last optimum, to start the next one from, and of all; dictionaries keep their order.
        self._basis = list(dict.fromkeys(self._known))
        self._useful = dict.fromkeys(self._known)
        self._told = task.bound
        if task.incumbent is None:
            self._offer(self._known)

    def _network_of(self, piece: int) -> Network:
        return Network(self._task.instance, self._members, piece, self._packings)

    @property
    def _goal(self) -> int:
        """The bound that leaves nothing to look for."""
        known = self._value is not None and self._value <= self._upper
        return self._value if known and self._value is not None else self._upper + 1

    @property
    def settled(self) -> bool:
        """Whether the best schedule is optimal, or no schedule is as good as asked for."""
        return self._bound.least()[0] >= self._goal

    def outcome(self) -> Outcome:
        """Return what is found."""
        bound, _ = self._bound.least()
        proof = self._bound.certificate()
        if bound > self._upper:
            return Outcome(Termination.INFEASIBLE, None, bound, Badge.CERTIFIED, proof)
        found = Termination.OPTIMAL if self._value == bound else Termination.LIMIT
        return Outcome(found, self._schedule, bound, Badge.CERTIFIED, proof)

    def run(self) -> None:
        """Raise the bound, then look for schedules."""
        self.raise_bound(_BOUND_SHARE * self._task.time_limit_s)
        self.dive(_DIVE_SHARE)
        self.combine()

    # Bound ----------------------------------------------------------------------------------------------------

    def raise_bound(self, seconds: float) -> None:
        """Generate patterns, for any number of batches and then for those whose bound is least."""
        deadline = now_s() + seconds
        if self._bound.fewest <= self._most:
            self._generate(self._bound.fewest, self._most, deadline)
        while not self.settled and now_s() < deadline:
            _, batches = self._bound.least()
            solution = self._generate(batches, batches, deadline)
            # Where another number of batches is the least now, that one is next.
            if self._bound.least()[1] == batches and not self._cut(solution, batches, deadline):
                break

    def _generate(self, fewest: int, most: int, deadline: float) -> list[tuple[Pattern, float]]:
        """Solve the master for some numbers of batches.

        Returns
        -------
        list of (Pattern, float)
            How many requests run by each pattern; empty if time did not suffice or the bound is good enough.
        """
        new = [pattern for pattern in self._basis if pattern.batches[-1] < most] or self._first(most)
        patterns: dict[Pattern, None] = {}
        solution: list[tuple[Pattern, float]] = []
        center: Floats | None = None
        master = LinearMaster(Shape(self._network, fewest, most), self._task.workers, self._task.seed)
        while new and not self.settled:
            master.add(new)
            patterns.update(dict.fromkeys(new))
            duals = master.solve(deadline - now_s())
            if duals is None:
                break
            solution = [(pattern, times) for pattern, times in zip(patterns, duals.times, strict=True) if times > 0.0]
            # Duals jump from round to round; what lies between them and former ones bounds better (Wentges 1997).
            center = duals.shares if center is None else (center + duals.shares) / 2
            new = self._offered(center, duals.served, patterns)
            if not new:
                center = duals.shares
                new = self._offered(center, duals.served, patterns)
        self._basis = [pattern for pattern, _ in solution]
        self._useful.update(dict.fromkeys(self._basis))
        return [] if new else solution

    def _offered(self, shares: Floats, served: Floats, known: Collection[Pattern]) -> list[Pattern]:
        """Take what prices prove; return the cheapest patterns that cost less than serving a request does."""
        network = self._network
        prices, scale = network.whole(shares)
        found = [Shortest(network, c, prices, scale) for c in range(len(network.kinds))]
        self._bound.add(network, found, prices, scale)
        bound, _ = self._bound.least()
        if bound > self._told:
            self._told = bound
            self._task.progress(ProgressEvent(now_s() - self._started, self._value, bound))
        limits = ((served - _SMALL * network.unit) * scale).tolist()
        return [
            pattern
            for shortest, limit in zip(found, limits, strict=True)
            for pattern in shortest.patterns(_cheapest(shortest.cost, limit, _PATTERNS))
            if pattern not in known
        ]

    def _first(self, most: int) -> list[Pattern]:
        """Return patterns without extra times that end in different batches."""
        network = self._network
        free = np.zeros((len(network.rows), most), dtype=np.int64)
        return [
            pattern
            for c, kind in enumerate(network.kinds)
            for pattern in Shortest(network, c, free, 1).patterns(
                np.unique(np.linspace(kind.output - 1, most - 1, _PATTERNS).astype(np.int64))
            )
        ]

    def _cut(self, solution: list[tuple[Pattern, float]], batches: int, deadline: float) -> bool:
        """Add packing inequalities that a solution violates; return whether there are any."""
        room = min(_CUTS, _MOST_PACKINGS - len(self._packings))
        if not solution or not self._packings or room <= 0:
            return False
        held = self._network.held(solution, batches)
        found = violated_packings(*holdings(self._task), held, room, deadline)
        self._packings += found
        self._network = self._network_of(self._piece)
        self._bound.use(self._network, self._packings)
        return bool(found)

    # Schedules ------------------------------------------------------------------------------------------------

    def dive(self, share: float) -> None:
        """Look for schedules of few batches by diving, for numbers of batches by bisection."""
        task, network = self._task, self._network
        left = task.time_limit_s - (now_s() - self._started)
        deadline = now_s() + share * left
        numbers = self._bound.below(self._goal, self._most) if network.hybrid else []
        while numbers and now_s() < deadline:
            middle = len(numbers) // 2
            batches = numbers[middle]
            start = [pattern for pattern in self._useful if pattern.batches[-1] < batches] or self._first(batches)
            chosen = dive(
                LinearMaster(Shape(network, batches, batches), task.workers, task.seed),
                start,
                lambda duals, known: self._offered(duals.shares, duals.served, known),
                len(task.instance.requests),
                deadline,
            )
            numbers = numbers[:middle] if self._offer(chosen) else numbers[middle + 1 :]

    def combine(self) -> None:
        """Look for a better schedule that consists of known patterns."""
        task, numbers = self._task, self._bound.below(self._goal, self._most)
        if not numbers:
            return
        patterns = [pattern for pattern in self._useful if pattern.batches[-1] < numbers[-1]]
        start = self._known if set(self._known) <= set(patterns) else []
        left = task.time_limit_s - (now_s() - self._started)
        shape = Shape(self._network, numbers[0], numbers[-1])
        self._offer(best_combination(shape, patterns, start, seconds=left, workers=task.workers, seed=task.seed))

    def _offer(self, patterns: list[Pattern]) -> bool:
        """Take the schedule in which requests run by some patterns, if it is better; return whether it is.

        Solvers find patterns in floats; whether batches can take them is decided in integers.
        """
        if not self._network.admits(patterns) or not in_step(patterns):
            return False
        schedule = schedule_of(self._task.instance, self._members, patterns)
        value = evaluate(self._task.instance, schedule)["objectives"][self._task.objective.value]
        if value > self._upper or (self._value is not None and value >= self._value):
            return False
        self._schedule, self._value, self._known = schedule, value, patterns
        self._useful.update(dict.fromkeys(patterns))
        bound, _ = self._bound.least()
        self._task.progress(ProgressEvent(now_s() - self._started, value, bound))
        return True


def _cheapest(cost: Ints, below: float, most: int) -> Ints:
    """Return the last batches of the cheapest patterns that cost less than a limit, which may exceed `IMPOSSIBLE`."""
    ends = np.flatnonzero(cost < min(below, IMPOSSIBLE))
    return np.asarray(ends[np.argsort(cost[ends], kind="stable")][:most])


def patterns_of(instance: Instance, members: list[list[int]], schedule: Schedule) -> list[Pattern]:
    """Return the pattern of every request of a legal schedule."""
    owner = {r: c for c, of_class in enumerate(members) for r in of_class}
    batches: dict[int, list[int]] = {r: [] for r in owner}
    filled: dict[int, list[bool]] = {r: [] for r in owner}
    evicted = set(owner)
    for j, batch in enumerate(schedule.assignments()):
        evicted.update(batch.evict)
        for r, _ in batch.run:
            batches[r].append(j)
            filled[r].append(r in evicted)
            evicted.discard(r)
    return [Pattern(owner[r], tuple(batches[r]), tuple(filled[r])) for r in owner]


def one_after_another(instance: Instance, members: list[list[int]]) -> list[Pattern]:
    """Return patterns of all requests of which no two share a batch."""
    found: list[Pattern] = []
    begin = 0
    for c, of_class in enumerate(members):
        output = instance.requests[of_class[0]].output
        for _ in of_class:
            found.append(Pattern(c, tuple(range(begin, begin + output)), (True, *(False,) * (output - 1))))
            begin += output
    return found


def in_step(patterns: list[Pattern]) -> bool:
    """Whether evictions have a batch of their own also where batches in which no request runs are left out."""
    used = {j for pattern in patterns for j in pattern.batches}
    return all(
        any(j in used for j in range(before + 1, after))
        for pattern in patterns
        for before, after, fill in zip(pattern.batches, pattern.batches[1:], pattern.filled[1:], strict=False)
        if fill
    )


def schedule_of(instance: Instance, members: list[list[int]], patterns: list[Pattern]) -> Schedule:
    """Return the schedule in which requests run by given patterns, as many of each class as it has, `in_step`."""
    waiting = [deque(of_class) for of_class in members]
    used = {j for pattern in patterns for j in pattern.batches}
    runs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    evictions: dict[int, list[int]] = defaultdict(list)
    # Members are named in the order of first runs.
    for pattern in sorted(patterns, key=lambda pattern: pattern.batches):
        r = waiting[pattern.owner].popleft()
        for k, (j, fill) in enumerate(zip(pattern.batches, pattern.filled, strict=True)):
            runs[j].append((r, instance.requests[r].input + k if fill else 1))
            if k and fill:
                between = range(pattern.batches[k - 1] + 1, j)
                evictions[next(i for i in between if i in used)].append(r)
    return timed(instance, [Assignment(sorted(runs[j]), sorted(evictions[j])) for j in sorted(runs)])
