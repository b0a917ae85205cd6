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

*Requests apart.* Optional ``apart`` has the numbers of groups each of whose requests leaves no room for any other
request, already with its prompt. In a batch that generates a token of one nothing else is resident. It generates one in
each of O batches, which take O times the base, and its work at least. Leave all these batches out of a schedule without
pauses. Where the eviction and the refill of another have no batch between them any more, let it keep its KV and decode,
which takes no more time and holds as much. So the others have a schedule of their own, and the optimum is no less than
theirs and all that those apart take; all else in the certificate, numbers of groups and of batches too, is about the
others, without those apart.

*Requests of one input.* Where ``alike`` is ``input`` ("output" if it is missing), those of the core that have the same
input are one group of the graph, with ends (`contents`). Then ``item_prices`` are of the items of these groups, of
their ends, and of the other groups' items.

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
    group_of,
    items_by_input,
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
    bound = natural(certificate, "bound")
    others, taken = _without_apart(certificate, problem)
    if not others.requests:
        return min(bound, taken)
    return taken + _least_of_all(others, certificate, bound - taken) if taken < bound else bound


def _least_of_all(problem: Problem, certificate: Mapping[str, Any], bound: int) -> int:
    """Return the least that is proved of any number of batches, or the bound."""
    items = items_of(problem, Objective.MAKESPAN)
    parts = _parts(certificate, problem, items)
    pairs = min(natural(certificate, "pairs"), _MOST_PAIRS)
    stated = _by_count(certificate, parts)
    [(base, _)] = pieces_of(problem.cost)
    work = sum(item.requests * item.work_ps for item in items)
    count, least = _fewest(problem, items), bound
    while base * count + work < least:
        if count not in stated:
            raise UnprovedError(f"batches has nothing for {count} batches, which may take less than the bound")
        split = _split(problem, parts, stated[count])
        scale = split.walkers.scale
        # The least cost in ps / scale that is no less than ``least`` when it is rounded up.
        beyond = scale * (least - 1) + 1 - split.paid
        found, looked = least_of_walks(problem, split.walkers, split.stages, beyond, batches=count, most=pairs)
        least = -(-(found + split.paid) // scale)
        pairs, count = max(0, pairs - looked), count + 1
    return least


def _without_apart(certificate: Mapping[str, Any], problem: Problem) -> tuple[Problem, int]:
    """Return the problem of those that are not apart, and what those take that are."""
    items = items_of(problem, Objective.MAKESPAN)
    apart = _groups("apart", certificate.get("apart", []), items)
    [(base, _)] = pieces_of(problem.cost)
    firsts = [item for item in items if item.first]
    for group in apart:
        beside = [item.blocks for item in firsts if item.group != group or item.requests > 1]
        if firsts[group].blocks + min(beside, default=problem.blocks) <= problem.blocks:
            raise UnprovedError(f"apart has group {group}, which leaves room for another request")
    gone = _of_groups(problem, apart)
    others = tuple(each for number, each in enumerate(problem.requests) if number not in gone)
    taken = sum(item.requests * (base + item.work_ps) for item in items if item.group in apart)
    return replace(problem, requests=others, queue=()), taken


def _of_groups(problem: Problem, groups: Sequence[int]) -> set[int]:
    """Return the requests of some groups."""
    kinds = [group_of(problem, Objective.MAKESPAN, request) for request in range(len(problem.requests))]
    some = {kind for group, kind in enumerate(sorted(set(kinds))) if group in groups}
    return {request for request, kind in enumerate(kinds) if kind in some}


def _fewest(problem: Problem, items: list[Item]) -> int:
    """Return a number of batches that every schedule has."""
    blocks = sum(item.requests * item.blocks for item in items)
    return max(-(-blocks // problem.blocks), *(item.k for item in items))


# What is stated --------------------------------------------------------------------------------------------


class _Stated(NamedTuple):
    """Prices of all items that are stated for a number of batches; costs count in ps / ``scale``."""

    stages: list[Stage]
    scale: int


def _by_count(certificate: Mapping[str, Any], parts: _Parts) -> dict[int, _Stated]:
    """Return what is stated by the number of batches that it is for."""
    found, stages = dict[int, _Stated](), 0
    for place, entry in enumerate(_objects("batches", certificate.get("batches"), _MOST_COUNTS)):
        count = entry.get("count")
        if type(count) is not int or count < 1:
            raise UnprovedError(f"batches.{place}.count is {shown(count)}, expected an integer ≥ 1")
        found[count] = _stages(certificate, entry, parts.priced)
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


class _Parts(NamedTuple):
    """The items that prices are of; which of them the graph has, as its own, and which are the fillers'."""

    priced: list[Item]
    inside: list[int]
    walking: list[Item]
    outside: list[int]


def _parts(certificate: Mapping[str, Any], problem: Problem, items: list[Item]) -> _Parts:
    """Return what walks and what fills, as ``core`` and ``alike`` say."""
    core = _core(certificate, items)
    place = {group: number for number, group in enumerate(core)}
    alike = certificate.get("alike", "output")
    if alike == "output":
        inside = [number for number, item in enumerate(items) if item.group in place]
        outside = [number for number, item in enumerate(items) if item.group not in place]
        return _Parts(items, inside, [replace(items[n], group=place[items[n].group]) for n in inside], outside)
    if alike != "input":
        raise UnprovedError(f"alike is {shown(alike)}, expected output or input")
    walking = items_by_input(problem, _of_groups(problem, core))
    others = [item for item in items if item.group not in place]
    priced = walking + others
    return _Parts(priced, [*range(len(walking))], walking, [*range(len(walking), len(priced))])


def _core(certificate: Mapping[str, Any], items: list[Item]) -> list[int]:
    """Return the numbers of the groups that the graph is of, all if none are stated."""
    core = certificate.get("core", [*range(items[-1].group + 1)])
    if not core:
        raise UnprovedError("core is [], expected different groups, one at least")
    return _groups("core", core, items)


def _groups(name: str, stated: object, items: list[Item]) -> list[int]:
    """Return numbers of different groups, ascending."""
    groups = range(items[-1].group + 1)
    if isinstance(stated, list) and all(type(group) is int and group in groups for group in stated):
        found = sorted(set(stated))
        if len(found) == len(stated):
            return found
    raise UnprovedError(f"{name} is {shown(stated)}, expected different groups from 0 to {groups[-1]}")


# Fillers ---------------------------------------------------------------------------------------------------


class _Split(NamedTuple):
    """What walks, and prices of its items; what fillers pay in all, in ps / scale."""

    walkers: Walkers
    stages: list[Stage]
    paid: int


def _split(problem: Problem, parts: _Parts, stated: _Stated) -> _Split:
    """Return the core's part and the fillers', whose prices are those from the begin."""
    others = [(parts.priced[number], stated.stages[0].prices[number]) for number in parts.outside]
    stages = [Stage(stage.after, [stage.prices[number] for number in parts.inside]) for stage in stated.stages]
    worth = _most_worth(problem.blocks, others) if others else []
    paid = sum(item.requests * (stated.scale * item.work_ps + price) for item, price in others)
    return _Split(Walkers(parts.walking, worth, stated.scale), stages, paid)


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
