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
``batches`` has an object: ``count``, which is J, and ``item_prices``. ``scale`` holds for all of them.

*Bound.* The least over these J of what the search proves, or ``bound`` if that is less. Every schedule has a schedule
without pauses that is no worse, whose number of batches is one of these or takes at least ``bound``. All searches
together look at up to ``pairs`` pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optsched.check.certificates.resident_search import least_of_walks
from optsched.check.certificates.shared.contents import Item, items_of, offline, prices_of, require_memory_only
from optsched.check.certificates.shared.refills import require_dear_refills
from optsched.check.problem import Problem, pieces_of
from optsched.check.reading import UnprovedError, natural, shown
from optsched.model.objectives import Objective

_KIND = "layered_search"
_MOST_COUNTS = 100
"""Numbers of batches that the checker is ready to search."""


def layered_search_bound(problem: Problem, objective: Objective, certificate: Mapping[str, Any]) -> int:
    """Return the bound of a ``layered_search`` certificate; the module says why it holds."""
    if objective not in {Objective.MAKESPAN, Objective.MAX_E2E}:
        raise UnprovedError(f"kind {_KIND} bounds makespan and max_e2e, the objective is {objective.value}")
    if not offline(problem):
        raise UnprovedError(f"kind {_KIND} needs requests that arrive at the same time")
    require_memory_only(_KIND, problem)
    require_dear_refills(_KIND, problem)
    items = items_of(problem, Objective.MAKESPAN)
    bound, pairs = natural(certificate, "bound"), natural(certificate, "pairs")
    stated = _by_count(certificate.get("batches"))
    [(base, _)] = pieces_of(problem.cost)
    work = sum(item.requests * item.work_ps for item in items)
    count, least = _fewest(problem, items), bound
    while base * count + work < least:
        if count not in stated:
            raise UnprovedError(f"batches has nothing for {count} batches, which may take less than the bound")
        prices = prices_of({**certificate, "item_prices": stated[count], "tracked": []}, items)
        least, looked = least_of_walks(problem, items, prices, least, batches=count, most_pairs=pairs)
        pairs, count = max(0, pairs - looked), count + 1
    return least


def _fewest(problem: Problem, items: list[Item]) -> int:
    """Return a number of batches that every schedule has."""
    blocks = sum(item.requests * item.blocks for item in items)
    return max(-(-blocks // problem.blocks), *(item.k for item in items))


def _by_count(batches: object) -> dict[int, object]:
    """Return prices by the number of batches that they are for."""
    if not isinstance(batches, list) or not all(isinstance(entry, dict) for entry in batches):
        raise UnprovedError(f"batches is {shown(batches)}, expected a list of objects")
    if len(batches) > _MOST_COUNTS:
        raise UnprovedError(f"batches has {len(batches)} objects, expected at most {_MOST_COUNTS}")
    found: dict[int, object] = {}
    for place, entry in enumerate(batches):
        count = entry.get("count")
        if type(count) is not int or count < 1:
            raise UnprovedError(f"batches.{place}.count is {shown(count)}, expected an integer ≥ 1")
        found[count] = entry.get("item_prices")
    return found
