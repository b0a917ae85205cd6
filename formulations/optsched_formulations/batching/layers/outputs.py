"""From classes by input to those by input and output, and by size: steps of schedules, and prices."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.naming import before_batches
from optsched_formulations.batching.search.state_steps import EVICT, RUN

Steps = list[tuple[int, int]]
"""Kinds and items, in the order of a schedule."""


@dataclass
class _Unnamed:
    """A request whose output is not known before it ends."""

    output: int = 0


def by_output(classes: Classes, every: Classes, steps: Steps) -> Steps:
    """Return the steps of a schedule by classes of one input and output each.

    Parameters
    ----------
    classes, steps
        Classes by input, and the steps of their items: evictions, fills, which for an end are that as many requests
        take it, and runs. What is due after the last batch ends, too.
    every
        The same requests, by input and output.
    """
    due: dict[int, list[_Unnamed]] = defaultdict(list)
    waiting: dict[int, list[_Unnamed]] = defaultdict(list)
    for first, members in zip(classes.first, classes.members, strict=True):
        waiting[first] = [_Unnamed() for _ in members]
    done: list[tuple[int, int, _Unnamed | None]] = []
    batches = sum(kind == RUN for kind, _ in steps)
    for number, before in enumerate(before_batches(steps, batches)):
        ends = Counter(item for _, item in before if item >= classes.tokens)
        moved: list[tuple[int, _Unnamed]] = []
        filled: dict[int, list[_Unnamed]] = defaultdict(list)
        for kind, item in before:
            if item >= classes.tokens:
                continue
            request = (due if kind == EVICT else waiting)[item].pop()
            done.append((kind, item, request))
            if kind == EVICT:
                moved.append((item, request))
            else:
                filled[item].append(request)
        for end, item in enumerate(classes.ends):
            taken = ends[classes.tokens + end]
            if number == batches - 1:
                # Those that generate the last token before it in this batch take it after that.
                taken -= len(due[item - 1]) + len(filled[item - 1])
            for _ in range(taken):
                due[item].pop().output = classes.token[item] - 1
        for item, request in moved:
            waiting[item].append(request)
        done.append((RUN, -1, None))
        after: dict[int, list[_Unnamed]] = defaultdict(list)
        for running in (due, filled):
            for item, requests in running.items():
                following = classes.following[item]
                if following < 0:
                    for request in requests:
                        request.output = classes.token[item]
                else:
                    after[following] += requests
        due = after
    for item, requests in due.items():
        for request in requests:
            request.output = classes.token[item] - 1
    return [_told(classes, every, *step) for step in done]


def _told(classes: Classes, every: Classes, kind: int, item: int, request: _Unnamed | None) -> tuple[int, int]:
    """Return a step by the class of the request that it is of."""
    if request is None:
        return kind, item
    prompt, _, weight = classes.kinds[classes.owner[item]]
    return kind, every.first[every.kinds.index((prompt, request.output, weight))] + classes.token[item] - 1


def prices_by_input(classes: Classes, every: Classes, price: Floats) -> Floats:
    """Return prices of items by input that are as those by output: of the longest output; ends give back what is left.

    Parameters
    ----------
    classes, every
        The same requests, by input, and by input and output.
    price
        Of the items of the latter.
    """
    found = np.zeros(len(classes.owner))
    for item in range(classes.tokens):
        found[item] = price[
            every.first[every.kinds.index(classes.kinds[classes.owner[item]])] + classes.token[item] - 1
        ]
    for end, item in enumerate(classes.ends):
        found[classes.tokens + end] = -found[item]
    return found


def prices_by_output(every: Classes, classes: Classes, price: Floats) -> Floats:
    """Return prices of items by output that are as those by input: a request pays for its end when it is filled.

    Parameters
    ----------
    every, classes
        The same requests, by input and output, and alike in either.
    price
        Of the items of the latter.
    """
    first = {kind[0]: item for kind, item in zip(classes.kinds, classes.first, strict=True)}
    if len(classes.kinds) == len(every.kinds):
        return price
    found = np.zeros(len(every.owner))
    for item in range(every.tokens):
        prompt, output, _ = every.kinds[every.owner[item]]
        due = first[prompt] + output
        ends = due < classes.tokens and classes.ending[due] >= 0
        found[item] = price[first[prompt] + every.token[item] - 1] + (price[classes.ending[due]] if ends else 0.0)
    return found


def prices_by_size(classes: Classes, sizes: Classes, price: Floats) -> Floats:
    """Return prices of items by input with which walks cost as much as with those of sizes, in batches.

    Parameters
    ----------
    classes, sizes
        The same requests, by input and by size.
    price
        Of the items of the latter.
    """
    place = {sizes.held(item): item for item in range(sizes.tokens)}

    def end(size: int) -> float:
        """Return the price of the end of requests that are due for a size; the largest of a class has none."""
        item = place.get(size, -1)
        return float(price[sizes.ending[item]]) if item >= 0 and sizes.ending[item] >= 0 else 0.0

    # Those of the longest output leave without an end: what they pay for it is paid at their fill.
    longest = [end(prompt + output) for prompt, output, _ in classes.kinds]
    found = np.zeros(len(classes.owner))
    for item in range(classes.tokens):
        same = place[classes.held(item)]
        # What first fills are charged for in sizes.
        charged = (sizes.extra_ps(same) - classes.extra_ps(item)) / sizes.base_ps
        found[item] = price[same] - charged + longest[classes.owner[item]]
    for number, item in enumerate(classes.ends, start=classes.tokens):
        found[number] = end(classes.held(item)) - longest[classes.owner[item]]
    return found
