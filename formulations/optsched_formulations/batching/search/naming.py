"""From steps that act on classes and items to a schedule that names requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from optsched.model.instance import Instance
from optsched.model.schedule import Assignment, Schedule, timed
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.state_steps import EVICT, FILL, PAUSE, RUN


def steps_of_batches(before: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Return the steps before each batch, evictions first, and the batches."""
    return [step for each in before for step in [*sorted(each, key=lambda step: step[0] != EVICT), (RUN, -1)]]


def before_batches(steps: Sequence[tuple[int, int]], batches: int) -> list[list[tuple[int, int]]]:
    """Return the steps before each of some batches, of which the last may have none."""
    before: list[list[tuple[int, int]]] = [[] for _ in range(batches)]
    batch = 0
    for step in steps:
        if step[0] == RUN:
            batch += 1
        else:
            before[batch].append(step)
    return before


def schedule_of_steps(instance: Instance, classes: Classes, steps: list[tuple[int, int]]) -> Schedule:
    """Turn a walk into a schedule: each (kind, item) step acts on some request that is in the item's place.

    Batches in which nothing runs are left out: what is evicted before one and refilled after it keeps its KV.
    """
    waiting: dict[int, list[int]] = defaultdict(list)
    for first, members in zip(classes.first, classes.members, strict=True):
        waiting[first] = members[::-1]  # the first to arrive is last, and goes first
    resident: dict[int, int] = {}  # request -> item that it generated last
    evicted: dict[int, int] = {}  # request -> item that it is due for, since the last batch
    filled: dict[int, int] = {}  # request -> item that it is filled for in this batch
    paused: dict[int, int] = {}  # request -> item that it generated last
    assignments: list[Assignment] = []
    for kind, item in steps:
        if kind == EVICT:
            request = next(r for r, last in resident.items() if classes.following[last] == item)
            del resident[request]
            evicted[request] = item
        elif kind == PAUSE:
            request = next(r for r, last in resident.items() if last == item)
            paused[request] = resident.pop(request)
        elif kind == FILL:
            again = next((r for r, due in evicted.items() if due == item), None)
            if again is None:
                filled[waiting[item].pop()] = item
            else:
                # Evicted and refilled between two batches: keep instead.
                del evicted[again]
                resident[again] = item - 1
        elif kind == RUN and not resident and not filled:
            resident, paused = paused, {}
        elif kind == RUN:
            resident = {request: classes.following[last] for request, last in resident.items()}
            run = [(request, 1) for request in resident]
            run += [(request, classes.held(due)) for request, due in filled.items()]
            assignments.append(Assignment(sorted(run), sorted(evicted)))
            for request, due in evicted.items():
                waiting[due].append(request)
            left = {r: last for r, last in (resident | filled).items() if classes.following[last] >= 0}
            resident, evicted, filled, paused = left | paused, {}, {}, {}
    return timed(instance, assignments)
