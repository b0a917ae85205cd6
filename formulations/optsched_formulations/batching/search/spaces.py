"""Spaces one after the other, beams before and behind: how `state_search` spends its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from threading import Event
from typing import Any

import numpy as np

from optsched.bounds.volume import volume_bound
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.model.result import Badge
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError, nothing_better
from optsched.solvers.interrupt import until_interrupted, wait_interruptibly
from optsched.stopwatch import now_s
from optsched_formulations.batching.costs import value_to_beat
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.pairs.batch_prices import BatchPrices
from optsched_formulations.batching.pairs.best_prices import batch_prices
from optsched_formulations.batching.search.naming import schedule_of_steps
from optsched_formulations.batching.search.node_space import node_space
from optsched_formulations.batching.search.request_space import request_space, shares_of, too_large
from optsched_formulations.batching.search.resident_graph import (
    ResidentGraph,
    TooLargeError,
    build_graph,
    growing_graphs,
)
from optsched_formulations.batching.search.resident_search import plain_certificate, priced_certificate
from optsched_formulations.batching.search.resident_walk import Prices, certificate, price, scale_of
from optsched_formulations.batching.search.resident_walk import evaluate as evaluate_prices
from optsched_formulations.batching.search.state_space import Space, States, compile_loops

_GRAPH_SHARE, _PRICE_SHARE = 0.2, 0.92
"""Shares of the time left that building graphs, and the prices of each, may take."""
_WEIGHTS_SHARE = 0.05
"""Share of the time left that weights of items may take."""
_BATCH_PRICES_SHARE = 0.15
"""Share of the time left that prices of batches may take."""
_FIRST_SHARE, _WIDE_SHARE = 0.06, 0.9
"""Shares of the time left for a search that another follows, and for the last, before a wide beam."""
_NARROW, _WIDE = (30, 300), 10_000
"""States that beams keep: before a search, as long as they are quick, and after one that did not end."""
_MOST_IN_BEAM = 4_000_000
"""Expansions of a beam, some seconds."""
_MOST_PROVED, _MOST_PROVED_NODES = 200_000, 20_000
"""Expansions, and nodes of the graph of resident sets, up to which the checker can search anew in some seconds."""
_MOST_PROVED_SUMS = 10_000
"""Expansions likewise where latencies are summed: the checker's estimates are weaker there, so it expands far more."""
_MOST_PROVED_ON_NODES = 3_000_000
"""Expansions on nodes, of whose graph and prices the checker has a compiled search, too."""
_MOST_PAUSING = 800_000
"""Nodes of a graph with pauses, which needs no linear programme."""
_STEP = 20_000
"""States between two looks at the clock."""
_MOST_TIME = 1 << 60
"""In units of cost; the compiled loops add up a few of them."""
Prove = Callable[[int], dict[str, Any]]
"""Makes the certificate of a bound."""


class SpaceSearch:
    """One task: its searches one after the other, with the best schedule and bound so far."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._started = now_s()
        self._deadline = self._started + task.time_limit_s
        # Offline every request waits from the start, so the largest latency is the makespan.
        objective = Objective.MAKESPAN if task.objective == Objective.MAX_E2E else task.objective
        self._classes = Classes(task.instance, objective)
        self._schedule = task.incumbent
        most = value_to_beat(task)
        # Value of a schedule that is as good as asked, if there is one. Only schedules of less than ``beyond`` matter.
        self._value = most if task.incumbent_value == most else None
        self._beyond = most if task.incumbent_value == most else most + 1
        self._require_range()
        self._bound: int | None = None
        self._proof: dict[str, Any] | None = None
        self._expansions = None if task.deterministic_limit is None else int(task.deterministic_limit * 1e6)

    def _require_range(self) -> None:
        """Refuse numbers that could exceed 64 bits, and requests that do not fit their bytes."""
        classes = self._classes
        longest = sum(
            len(classes.members[owner]) * (classes.base_ps + max(fill, decode))
            for owner, fill, decode in zip(classes.owner, classes.fill_ps, classes.decode_ps, strict=True)
        )
        weight = sum(
            max(weight, 1) * len(members)
            for (_, _, weight), members in zip(classes.kinds, classes.members, strict=True)
        )
        arrivals = max(request.arrival_ps for request in self._task.instance.requests) - self._task.instance.start_ps
        if max((longest + arrivals) * weight, self._beyond) * scale_of(classes) > _MOST_TIME:
            raise UnsupportedError("times beyond 64 bits")
        if too_large(self._task.instance):
            raise UnsupportedError("more than 63 output tokens or 255 requests")

    def solve(self) -> Outcome:
        """Search space after space until one search ends, or time does, or Ctrl-C comes."""
        closed = False

        def search(_: Event) -> None:
            nonlocal closed
            closed = self._search_spaces()

        until_interrupted(search)
        badge = Badge.SOLVER_CLAIMED if self._proof is None else Badge.CERTIFIED
        if not closed:
            return Outcome(Termination.LIMIT, self._schedule, self._bound, badge, self._proof)
        if self._value is None:
            return replace(nothing_better(self._task), badge=badge, certificate=self._proof)
        return Outcome(Termination.OPTIMAL, self._schedule, self._value, badge, self._proof)

    def _search_spaces(self) -> bool:
        task, classes = self._task, self._classes
        graphs: list[ResidentGraph] = []
        if not classes.weighted:
            graphs += growing_graphs(classes, self._at(_GRAPH_SHARE), track=task.instance.offline)
        weights = _WEIGHTS_SHARE * (self._deadline - now_s())
        space = request_space(task.instance, classes, weights, self._batch_prices())
        self._bounded(space.value_of(0), None)
        _compile(space)
        prove: Prove | None = None
        # The checker sums latencies only where all requests arrive together.
        if task.instance.offline or not classes.weighted:
            prove = partial(plain_certificate, classes, shares_of(space, classes), space.scale)
        states = self._begin(space, prove)
        if graphs and self._search(space, states, prove, self._at(_FIRST_SHARE)):
            return True
        for number, graph in enumerate(graphs):
            prices = price(graph, _PRICE_SHARE * (self._deadline - now_s()), task.workers)
            better = None if prices is None else self._on_nodes(graph, prices)
            if better is None:
                break
            # What the search request by request has reached is given up for better bounds.
            space, prove = better
            states = self._begin(space, prove)
            if number < len(graphs) - 1 and self._search(space, states, prove, self._at(_FIRST_SHARE)):
                return True
        if self._search(space, states, prove, self._at(_WIDE_SHARE)):
            return True
        self._beam(space, _WIDE)
        return False

    def _batch_prices(self) -> BatchPrices | None:
        """Return prices for sums of latencies of equal weights, offline; None for others, or if time is short."""
        classes, known = self._classes, self._task.incumbent
        if not classes.weighted or not self._task.instance.offline:
            return None
        batches = volume_bound(self._task.instance).batches if known is None else known.length
        return batch_prices(classes, batches, _BATCH_PRICES_SHARE * (self._deadline - now_s()))

    def _on_nodes(self, graph: ResidentGraph, prices: Prices) -> tuple[Space, Prove] | None:
        """Return the space of a graph; with arrivals of one with pauses, where none is tracked."""
        instance = self._task.instance
        if instance.offline:
            self._bounded(prices.bound_ps, lambda _: certificate(graph, prices), certain=True)
            return node_space(instance, graph, prices), partial(priced_certificate, graph, prices)
        self._bounded(prices.bound_ps, None)
        try:
            pausing = build_graph(self._classes, frozenset(), _MOST_PAUSING, self._at(_PRICE_SHARE), pauses=True)
        except TooLargeError:
            return None
        # Prices of the graph without pauses are valid on the one with: the argument that removes pauses holds for any
        # closed walk. Potentials prove it again.
        found = evaluate_prices(pausing, prices.item, np.zeros(len(pausing.nodes), dtype=np.int64))
        if found is None:
            return None
        return node_space(instance, pausing, found), partial(priced_certificate, pausing, found)

    def _at(self, share: float) -> float:
        """Return the moment when a share of the time left will have passed."""
        now = now_s()
        return now + share * (self._deadline - now)

    def _begin(self, space: Space, prove: Prove | None) -> States:
        """Look for a good schedule, and return the first state."""
        self._bounded(space.value_of(0), prove, certain=_on_nodes(space))
        for width in _NARROW:
            if self._beam(space, width) * _NARROW[-1] > _MOST_IN_BEAM * _NARROW[0]:
                break
        return States(space, space.budget(self._beyond))

    def _search(self, space: Space, states: States, prove: Prove | None, until: float) -> bool:
        """Search a space; return whether the search ends."""
        certain = _on_nodes(space)
        most_proved = _MOST_PROVED_SUMS if self._classes.weighted else _MOST_PROVED
        most_proved = _MOST_PROVED_ON_NODES if certain else most_proved
        while states.expand(_STEP if self._expansions is None else min(_STEP, self._expansions)):
            self._look_at(space, states)
            proof = prove if states.expanded <= most_proved else None
            self._bounded(space.value_of(states.floor), proof, certain=certain)
            if self._expansions is not None:
                self._expansions -= _STEP
            if now_s() > until or states.full or (self._expansions is not None and self._expansions <= 0):
                return False
        self._look_at(space, states)
        self._bounded(self._beyond, prove if states.expanded <= most_proved else None, certain=certain)
        return True

    def _beam(self, space: Space, width: int) -> int:
        """Look for a better schedule, keeping a number of states after every batch; return how many were expanded."""
        states = States(space, space.budget(self._beyond))
        layer = np.zeros(1, dtype=np.int64)
        while len(layer) and now_s() < self._deadline and not states.finished:
            layer = states.through_a_batch(layer, width, _MOST_IN_BEAM, self._deadline)
        self._look_at(space, states)
        return states.expanded

    def _look_at(self, space: Space, states: States) -> None:
        """Take a finished state that is better than the best schedule."""
        if not states.finished or space.value_of(states.budget) >= self._beyond:
            return
        self._schedule = schedule_of_steps(self._task.instance, self._classes, states.steps())
        metrics = evaluate(self._task.instance, self._schedule)
        self._value = self._beyond = int(metrics["objectives"][self._task.objective.value])
        self._tell()

    def _bounded(self, bound: int, prove: Prove | None, *, certain: bool = False) -> None:
        """Take a bound, and what proves it, if it is better."""
        bound = min(bound, self._beyond)
        if self._bound is None or bound > self._bound or (bound == self._bound and self._proof is None):
            provable = prove is not None and (certain or self._provable)
            self._bound, self._proof = bound, prove(bound) if prove is not None and provable else None
            self._tell()

    @cached_property
    def _provable(self) -> bool:
        """Whether the checker's graph is small."""
        try:
            build_graph(self._classes, frozenset(), _MOST_PROVED_NODES, pauses=not self._task.instance.offline)
        except TooLargeError:
            return False
        return True

    def _tell(self) -> None:
        elapsed = now_s() - self._started
        self._task.progress(ProgressEvent(elapsed, self._value or self._task.incumbent_value, self._bound))


def _on_nodes(space: Space) -> bool:
    """Return whether states are nodes of a graph with a pool."""
    return len(space.arcs.begins) > 0


def _compile(space: Space) -> None:
    """Compile the loops where Ctrl-C does not reach the compiler, which would complain of it."""
    if until_interrupted(lambda _: wait_interruptibly(partial(compile_loops, space), lambda: None)):
        raise KeyboardInterrupt
