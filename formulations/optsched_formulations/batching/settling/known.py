"""What is known of every number of batches of a task, and the best schedule so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from optsched.bounds.volume import volume_bound
from optsched.model.metrics import evaluate
from optsched.model.result import Badge
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, nothing_better
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import value_to_beat
from optsched_formulations.batching.flow.model import find_packing
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.completion import among
from optsched_formulations.batching.layers.graph import MergedGraph, merged_graph
from optsched_formulations.batching.layers.lonely import lonely_of
from optsched_formulations.batching.layers.outputs import Steps
from optsched_formulations.batching.layers.walks import MOST_PAID, most_steps
from optsched_formulations.batching.memory_only import Alike, Classes
from optsched_formulations.batching.search.naming import schedule_of_steps
from optsched_formulations.batching.search.resident_graph import TooLargeError
from optsched_formulations.batching.search.resident_walk import scale_of

_MOST_PLACES, _PLACES_PER_S = 80_000_000, 2_000_000
"""Nodes of a graph × batches, of which each takes some 24 bytes; and those by the time limit."""
_PACKING_SHARE, _GRAPH_SHARE = 0.02, 0.2
"""Shares of the time limit that the fewest batches may take, and of the time left for a graph."""
_MANY_RESIDENT = 5.0
"""κ from which on the cache holds many requests at a time."""


class Known:
    """One task: what is known of every number of batches, and the best schedule so far.

    Parameters
    ----------
    task
        Of an offline instance in which only memory binds, for the makespan.

    Attributes
    ----------
    task, deadline
        What is asked, and when time is over.
    rest, classes, by_input
        The requests that leave room for others; their classes, and those of one input.
    scale, base
        Units in a ps, and what a batch costs in units.
    fewest
        No schedule has fewer batches.
    open
        A bound on the cost of schedules of each number of batches that is not settled, in units, without the constant
        work.
    exact
        Whether sums along all walks fit into 64 bits.
    start
        Prices of all items, by input, to begin with; None if there are none.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._started = now_s()
        self.deadline = self._started + task.time_limit_s
        self._lonely = lonely_of(task.instance)
        self.rest = self._lonely.rest
        self.classes = classes = Classes(self.rest)
        self.by_input = Classes(self.rest, alike=Alike.INPUT)
        self._constant_ps = self._lonely.constant_ps
        self.scale = scale = scale_of(classes)
        self.base = classes.base_ps * scale
        self._schedule = task.incumbent
        most = value_to_beat(task)
        # Value of a schedule that is as good as asked, if there is one. Only schedules of less than ``beyond`` matter;
        # whether that is the value of one that was found beside.
        self._value = most if task.incumbent_value == most else None
        self._beyond = most if task.incumbent_value == most else most + 1
        self._beside = False
        packing = find_packing(task.about(self.rest), _PACKING_SHARE * task.time_limit_s)
        least = [volume_bound(self.rest).batches, max(output for _, output, _ in classes.kinds)]
        self.fewest = max(least if packing is None else [*least, packing.batches])
        self.open = {batches: batches * self.base for batches in range(self.fewest, self.most + 1)}
        self.start: Floats | None = None
        largest = scale * max(classes.base_ps, *classes.fill_ps, *classes.decode_ps)
        steps = most_steps(max(self.fewest, self.most), len(task.instance.requests))
        self.exact = largest * steps <= MOST_PAID

    @property
    def many_resident(self) -> bool:
        """Whether the cache holds many requests at a time."""
        return self.rest.kappa >= _MANY_RESIDENT

    @property
    def reach(self) -> int:
        """The largest number of batches that prices may be asked for."""
        return max(self.fewest, self.most)

    def most_nodes(self, most: int) -> int:
        """Return how many nodes of a graph, of at most some number, there is time and room for."""
        places = min(_MOST_PLACES, _PLACES_PER_S * self.task.time_limit_s)
        return min(most, int(places) // (self.reach + 1))

    def graph(self, classes: Classes, most_nodes: int) -> MergedGraph | None:
        """Return the merged graph of some classes; None if it has too many nodes, or takes too long."""
        try:
            return merged_graph(classes, most_nodes, self.at(_GRAPH_SHARE))
        except TooLargeError:
            return None

    @property
    def budget(self) -> int:
        """Cost in units from which on a schedule is of no use, without the constant work."""
        return (self._beyond - self._constant_ps) * self.scale

    @property
    def enough(self) -> float:
        """The budget in batches."""
        return self.budget / self.base

    @property
    def most(self) -> int:
        """More batches take too long."""
        return (self.budget - 1) // self.base

    @property
    def least(self) -> int:
        """The number of batches of the least bound, the smallest on ties; there is one that is open."""
        return self.by_bound()[0]

    def by_bound(self) -> list[int]:
        """Return the numbers of batches that are open, by their bounds, the smallest first on ties."""
        return sorted(self.open, key=lambda batches: (self.open[batches], batches))

    @property
    def _bound(self) -> int:
        """No schedule is better, in ps."""
        least = min(self.open.values(), default=self.budget)
        return min(self._beyond, self._constant_ps - (-least // self.scale))

    def outcome(self) -> Outcome:
        """Return what was found and proved."""
        badge = Badge.SOLVER_CLAIMED
        if self._bound < self._beyond or self._beside:
            return Outcome(Termination.LIMIT, self._schedule, self._bound, badge)
        if self._value is None:
            return replace(nothing_better(self.task), badge=badge)
        return Outcome(Termination.OPTIMAL, self._schedule, self._value, badge)

    def raise_bound(self, batches: int, proved: int) -> None:
        """Take a bound on a number of batches, in units."""
        if batches in self.open:
            self.open[batches] = max(self.open[batches], proved)
        self._settle()

    def take(self, steps: Steps) -> None:
        """Take a schedule that is better, unless there are no steps."""
        if steps:
            found = self._lonely.steps + among(self._lonely.classes, self.classes, steps)
            self._schedule = schedule_of_steps(self.task.instance, self._lonely.classes, found)
            metrics = evaluate(self.task.instance, self._schedule)
            self._value = self._beyond = int(metrics["objectives"][self.task.objective.value])
            self._beside = False

    def _settle(self) -> None:
        """Drop the numbers of batches that cannot be better than what is known by now, and tell what is."""
        beside = self.task.value_beside()
        if beside is not None and beside < self._beyond:
            self._beyond, self._beside = beside, True
        self.open = {batches: bound for batches, bound in self.open.items() if bound < self.budget}
        elapsed = now_s() - self._started
        self.task.progress(ProgressEvent(elapsed, self._value or self.task.incumbent_value, self._bound))

    def at(self, share: float) -> float:
        """Return the moment when a share of the time left will have passed."""
        now = now_s()
        return now + share * (self.deadline - now)

    @staticmethod
    def over(until: float) -> Callable[[], bool]:
        """Return what says whether a moment has passed."""
        return lambda: now_s() > until
