r"""Certificates of kind ``layered_search``: `resident_search` for every number of batches by itself.

It is for the makespan, or the largest e2e latency, of requests that arrive together, where `resident_search` needs no
pauses. A schedule without pauses that has J batches is a walk in the graph of cache contents (`contents`) with J runs,
and the other way round, with pools: see there. So copy the graph once for each number of batches that have run, from 0
to J, let runs lead from a copy to the next, and let the sink be that of the last. Walks of this *layered* graph are
those with J runs. Prices may now be others for each J, and way costs to the sink depend on the batches that are left:
prices that hold for all numbers of batches at once prove less.

*Which numbers.* A request generates a token in a batch, so that J is at least the largest O; and the token k of a
request takes the blocks of I + k - 1 tokens in the batch that generates it, so that all of these together fit J times
in memory. On the other side all first fills and decodes take W in all, and refills are no cheaper than decodes, so that
J batches take at least W + base · J. For every J from the first of these on, and while the last is less than ``bound``,
``batches`` has an object: ``count``, which is J, ``item_prices`` and, optionally, ``later``, other prices from then on:
a list of objects with ``after``, a number of batches that never falls, and ``item_prices``. ``scale`` holds for all of
them. The search is `by_batches`.

*Fillers.* Optional ``core`` has the numbers of some groups; the others are *fillers*, which the graph leaves out, and
whose prices p, of any sign, are those of generating a token. With g(r) the most that fillers can be worth which
generate a token in one batch and hold at most r blocks, n requests of a group at most, let a run take g of what the
core leaves to them less, and let batches of none of the core run too. A schedule of J batches costs no less than the
cheapest walk of the core with J runs, and n (work + p) for every item of the fillers. For leave out all that fillers do
of a schedule without pauses: it is such a walk; what fillers run in a batch fits beside the core, so that it is worth
g at most; they generate each of their tokens once, so that in all batches they are worth the sum of n p; and no refill
of them takes less than the decode in its place.

*Bound.* The least over these J of what the search proves, or ``bound`` if that is less. Every schedule has a schedule
without pauses that is no worse, whose number of batches is one of these or takes at least ``bound``. All searches
together look at up to ``pairs`` pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from optsched.check.certificates.shared.by_batches import Stage, Walkers, least_of_walks
from optsched.check.certificates.shared.contents import (
    Item,
    Prices,
    items_of,
    offline,
    prices_of,
    require_memory_only,
)
from optsched.check.certificates.shared.refills import require_dear_refills
from optsched.check.problem import Problem, pieces_of
from optsched.check.reading import UnprovedError, natural, shown
from optsched.model.objectives import Objective

_KIND = "layered_search"
_MOST_COUNTS, _MOST_STAGES = 100, 500
"""Numbers of batches that the checker is ready to search, and prices in all."""
_MOST_PAIRS = 200_000_000
"""All searches together look at no more; these take a minute or two."""
_MOST_ADDED = 2_000_000
"""Output tokens of fillers times blocks: that many additions for prices of theirs."""
_MOST_WORTH = 2**58
"""What fillers are worth is less, so that no sum wraps."""


def layered_search_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of a ``layered_search`` certificate; the module says why it holds."""
    if objective not in {Objective.MAKESPAN, Objective.MAX_E2E}:
        raise UnprovedError(f"kind {_KIND} bounds makespan and max_e2e, the objective is {objective.value}")
    if not offline(problem):
        raise UnprovedError(f"kind {_KIND} needs requests that arrive at the same time")
    require_memory_only(_KIND, problem)
    require_dear_refills(_KIND, problem)
    items = items_of(problem, Objective.MAKESPAN)
    core = _core(certificate, items)
    bound, pairs = natural(certificate, "bound"), min(natural(certificate, "pairs"), _MOST_PAIRS)
    stated = _by_count(certificate, items)
    [(base, _)] = pieces_of(problem.cost)
    work = sum(item.requests * item.work_ps for item in items)
    count, least = _fewest(problem, items), bound
    while base * count + work < least:
        if count not in stated:
            raise UnprovedError(f"batches has nothing for {count} batches, which may take less than the bound")
        split = _split(problem, items, stated[count], core)
        scale = split.walkers.scale
        # The least cost in ps / scale that is no less than ``least`` when it is rounded up.
        beyond = scale * (least - 1) + 1 - split.paid
        found, looked = least_of_walks(problem, split.walkers, split.stages, beyond, batches=count, most=pairs)
        least = -(-(found + split.paid) // scale)
        pairs, count = max(0, pairs - looked), count + 1
    return least


def _fewest(problem: Problem, items: list[Item]) -> int:
    """Return a number of batches that every schedule has."""
    blocks = sum(item.requests * item.blocks for item in items)
    return max(-(-blocks // problem.blocks), *(item.k for item in items))


# What is stated --------------------------------------------------------------------------------------------


class _Stated(NamedTuple):
    """Prices of all items that are stated for a number of batches; costs count in ps / ``scale``."""

    stages: list[Stage]
    scale: int


def _by_count(certificate: Mapping[str, Any], items: list[Item]) -> dict[int, _Stated]:
    """Return what is stated by the number of batches that it is for."""
    found, stages = dict[int, _Stated](), 0
    for place, entry in enumerate(_objects("batches", certificate.get("batches"), _MOST_COUNTS)):
        count = entry.get("count")
        if type(count) is not int or count < 1:
            raise UnprovedError(f"batches.{place}.count is {shown(count)}, expected an integer ≥ 1")
        found[count] = _stages(certificate, entry, items)
        stages += len(found[count].stages)
    if stages > _MOST_STAGES:
        raise UnprovedError(f"batches has {stages} prices of all items, expected at most {_MOST_STAGES}")
    return found


def _stages(certificate: Mapping[str, Any], entry: Mapping[str, Any], items: list[Item]) -> _Stated:
    """Return the prices that hold from the begin, and those from then on."""

    def prices(stated: Mapping[str, Any]) -> Prices:
        return prices_of({**certificate, "item_prices": stated.get("item_prices"), "tracked": []}, items)

    first, others = prices(entry), _objects("later", entry.get("later", []), _MOST_STAGES)
    stages = [Stage(0, first.items), *(Stage(natural(later, "after"), prices(later).items) for later in others)]
    for before, after in pairwise(stages):
        if after.after < max(1, before.after):
            raise UnprovedError(f"later has prices after {after.after} batches, expected 1 or more, in order")
    return _Stated(stages, first.scale)


def _objects(name: str, stated: object, most: int) -> list[dict[str, Any]]:
    if not isinstance(stated, list) or not all(isinstance(entry, dict) for entry in stated):
        raise UnprovedError(f"{name} is {shown(stated)}, expected a list of objects")
    if len(stated) > most:
        raise UnprovedError(f"{name} has {len(stated)} objects, expected at most {most}")
    return stated


def _core(certificate: Mapping[str, Any], items: list[Item]) -> list[int]:
    """Return the numbers of the groups that the graph is of, all if none are stated."""
    groups = range(items[-1].group + 1)
    core = certificate.get("core", [*groups])
    known = isinstance(core, list) and all(type(group) is int and group in groups for group in core)
    if not known or not core or len(set(core)) != len(core):
        raise UnprovedError(f"core is {shown(core)}, expected different groups from 0 to {groups[-1]}, one at least")
    return sorted(core)


# Fillers ---------------------------------------------------------------------------------------------------


class _Split(NamedTuple):
    """What walks, and prices of its items; what fillers pay in all, in ps / scale."""

    walkers: Walkers
    stages: list[Stage]
    paid: int


def _split(problem: Problem, items: list[Item], stated: _Stated, core: Sequence[int]) -> _Split:
    """Return the core's part and the fillers', whose prices are those from the begin."""
    place = {group: number for number, group in enumerate(core)}
    inside = [number for number, item in enumerate(items) if item.group in place]
    others = [
        (item, price) for item, price in zip(items, stated.stages[0].prices, strict=True) if item.group not in place
    ]
    stages = [Stage(stage.after, [stage.prices[number] for number in inside]) for stage in stated.stages]
    walking = [replace(items[number], group=place[items[number].group]) for number in inside]
    worth = _most_worth(problem.blocks, others) if others else []
    paid = sum(item.requests * (stated.scale * item.work_ps + price) for item, price in others)
    return _Split(Walkers(walking, worth, stated.scale), stages, paid)


def _most_worth(blocks: int, others: list[tuple[Item, int]]) -> list[int]:
    """Return the most that fillers are worth in a batch, for every number of blocks that are left to them.

    One request after another is added, which generates one of its tokens or none.
    """
    added = sum(item.requests for item, _ in others) * blocks
    if added > _MOST_ADDED:
        raise UnprovedError(f"tokens outside the core times blocks are {added}, expected at most {_MOST_ADDED}")
    if sum(item.requests * abs(price) for item, price in others) >= _MOST_WORTH:
        raise UnprovedError("item_prices outside the core add up to 2^58 or more")
    worth = np.zeros(blocks + 1, dtype=np.int64)
    for _, group in groupby(others, key=lambda other: other[0].group):
        each = [*group]
        for _ in range(each[0][0].requests):
            with_it = worth.copy()
            for item, price in each:
                beside = with_it[item.blocks :]
                np.maximum(beside, worth[: len(beside)] + price, out=beside)
            worth = with_it
    return [int(most) for most in worth]
