"""Schedules of all requests by a schedule of the core: fillers run in the room that it leaves, batch by batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from optsched.model.ints import Ints
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.batching.layers.core import Core, items_among
from optsched_formulations.batching.layers.outputs import Steps
from optsched_formulations.batching.layers.pattern_layers import PatternRelaxation
from optsched_formulations.batching.layers.search import search_layers
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.naming import before_batches, steps_of_batches
from optsched_formulations.batching.search.state_steps import FILL

_WIDTHS = 200, 2_000
"""States of beams, one after the other until a schedule is found."""
_ROUNDS = 10


def completed(
    core: Core, steps: Steps, batches: int, scale: int, budget: int, *, seed: int, over: Callable[[], bool]
) -> Steps:
    """Return the steps of a schedule that costs less than the budget and does what a core's does; none if not found.

    Parameters
    ----------
    core, steps, batches
        The core, the steps of its schedule, by input and output, and how many batches all requests may take.
    scale, budget
        Units in a ps, and the cost, in units, from which on a schedule is of no use, without the constant work.
    seed, over
        Of the search, and whether time is over.
    """
    classes = core.inside
    again = scale * sum(classes.extra_ps(item) for kind, item in steps if kind == FILL)
    rooms = np.append(rooms_left(core, steps, batches), 0)[::-1].copy()
    try:
        fillers = PatternRelaxation(core.fillers.classes, scale, budget, seed, rooms)
    except UnsupportedError:
        return []
    enough = (budget - again) / fillers.base
    priced = fillers.priced(fillers.improved(fillers.first_prices(batches), batches, enough, _ROUNDS, over), batches)
    for width in _WIDTHS:
        if over() or priced.bound + again >= budget:
            break
        found = search_layers(priced.space(), batches, budget - again, width, over)
        if found.steps:
            theirs = before_batches(among(core.classes, core.fillers.classes, found.steps), batches)
            mine = before_batches(among(core.classes, classes, steps), batches)
            return steps_of_batches([one + other for one, other in zip(mine, theirs, strict=True)])
    return []


def among(every: Classes, some: Classes, steps: Steps) -> Steps:
    """Return steps of some classes by the items of all."""
    items = items_among(every, some).tolist()
    return [(step, items[item] if item >= 0 else item) for step, item in steps]


def rooms_left(core: Core, steps: Steps, batches: int) -> Ints:
    """Return the blocks that a schedule of the core leaves in every batch."""
    classes = core.inside
    running: list[int] = []
    rooms = np.full(batches, classes.capacity, dtype=np.int64)
    for batch, before in enumerate(before_batches(steps, batches)):
        for kind, item in before:
            if kind == FILL:
                running.append(item)
            else:
                running.remove(item)
        rooms[batch] -= sum(classes.size[item] for item in running)
        running = [classes.following[item] for item in running if classes.following[item] >= 0]
    return rooms
