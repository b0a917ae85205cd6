"""Warm-ups of the loops of formulations: tiny tasks, each for loops of its own (`optsched.ahead.catalogue`).

They end long before their time limits, so that however slow the machine is they reach the same loops.
"""

from __future__ import annotations

from dataclasses import replace as replace_task

import numpy as np

from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import evaluate
from optsched.model.objectives import Objective
from optsched.solvers.formulation import Task
from optsched_formulations.batching.clock_beam import ClockBeam
from optsched_formulations.batching.costs import one_after_another
from optsched_formulations.batching.free_pauses import FreePauses
from optsched_formulations.batching.layer_search import LayerSearch
from optsched_formulations.batching.reinsertion import Reinsertion
from optsched_formulations.batching.search.beginnings_kernel import Needs, Walk, walk_beginnings
from optsched_formulations.batching.state_search import StateSearch
from optsched_formulations.routing.component import DocumentNeed, component_bound
from optsched_formulations.routing.joint import solve_jointly
from optsched_formulations.routing.prefix_placement import place
from optsched_formulations.routing.prefix_tree import PlacedRequest, PrefixTree

_TOGETHER = tuple(Request(2, 2) for _ in range(3))
_APART = tuple(Request(2, 3, arrival_ps=at) for at in (0, 0, 1500, 4000))
_PLACED = tuple(
    PlacedRequest(*placed)
    for placed in ((1, 1), (3, 17), (0, 5), (4, 13), (2, 2), (5, 7), (3, 10), (1, 18), (1, 1), (5, 19))
)
"""Requests behind six documents that two machines share evenly, which only annealing finds."""


def _task(requests: tuple[Request, ...]) -> Task:
    """Return a task in which only memory binds."""
    cost = CostModel(base=1000, token=10, decode_kv=1, prefill_req=1)
    instance = Instance("tiny", Limits(6, 100, 100), Rules(chunked_prefill=False), cost, requests)
    return Task(instance, Objective.MAKESPAN)


def states() -> None:
    """Search states best first, and by beams."""
    StateSearch().solve(_task(_TOGETHER))


def layers() -> None:
    """Search batch by batch with prices on the graph of resident sets."""
    LayerSearch().solve(_task(_TOGETHER))


def patterns() -> None:
    """Search batch by batch with prices of blocks, as for graphs that are too large."""
    LayerSearch(most_nodes=1).solve(_task(_TOGETHER))


def pauses() -> None:
    """Search with free pauses, and with those that hold memory."""
    FreePauses().solve(_task(_APART))


def clocks() -> None:
    """Search by a beam of states whose batches end at about the same time."""
    ClockBeam().solve(_task(_APART))


def reinsertions() -> None:
    """Put pairs of requests elsewhere, until a schedule is better than one request after another."""
    task = _task(_TOGETHER)
    alone = evaluate(task.instance, one_after_another(task))["objectives"][task.objective.value]
    Reinsertion().solve(replace_task(task, bound=int(alone) - 1))


def beginnings() -> None:
    """Let a request begin a batch later, when the other one has ended."""
    once, two = np.ones((1, 2, 1), dtype=np.int64), np.arange(2)
    walk = Walk(0 * two, np.array([[2, 0]]), np.ones((1, 2)), np.zeros((2, 2), dtype=np.int64))
    walk_beginnings(Needs(once, two // 2 + 1, two, np.ones(1, dtype=np.int64)), walk, 0, 1, 0)


def machines() -> None:
    """Assign requests to machines: with prefixes to be computed once on each, and with what machines then take."""
    place(PrefixTree((None,) * 6, (1, 4, 5, 5, 7, 4), _PLACED), 2)
    component_bound([DocumentNeed(5, 1, 2, 2)] * 2, 0, 2, (4, 6), (1.0, 1))
    solve_jointly(replace(_task(_TOGETHER).instance, replicas=2), Objective.MAKESPAN)
