"""Certificates of a makespan that is known: prices for each number of batches, for the checker's own search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from optsched.bounds.volume import volume_bound
from optsched.model.instance import Instance
from optsched.model.ints import Ints
from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.climb_kernel import Begin
from optsched_formulations.batching.layers.core import Master, core_of
from optsched_formulations.batching.layers.graph import merged_graph
from optsched_formulations.batching.layers.graph_layers import GraphRelaxation
from optsched_formulations.batching.layers.lonely import lonely_of
from optsched_formulations.batching.layers.search import search_layers
from optsched_formulations.batching.layers.walks import MOST_PAID, Walks, most_steps
from optsched_formulations.batching.memory_only import Alike, Classes
from optsched_formulations.batching.search.resident_graph import TooLargeError
from optsched_formulations.batching.search.resident_search import work_from
from optsched_formulations.batching.search.resident_walk import scale_of

_MOST_NODES, _MOST_PLACES = 1_000_000, 20_000_000
"""Nodes of the graph, and nodes times batches."""
_MOST_CORE_NODES = 1_500
_MOST_COUNTS = 60
"""Numbers of batches that are worth prices of their own."""
_ROUNDS, _CORE_ROUNDS = 300, 30
"""Of looking for prices, and where a linear programme has found good ones."""
_GRAPH_SHARE, _PRICE_SHARE = 0.3, 0.5
"""Shares of the time left for the graph, and for prices before a search with them."""


class LayeredCertificates:
    """What `optsched.check` needs to prove a bound on the makespan by searching each number of batches that matters.

    Parameters
    ----------
    instance
        The problem.
    bound
        What is to be proved.
    pairs
        That the searches may look at, all together.
    """

    def __init__(self, instance: Instance, bound: int, pairs: int) -> None:
        self._lonely = lonely = lonely_of(instance)
        self._instance, self._bound, self._pairs = lonely.rest, bound, pairs
        self._classes = classes = Classes(lonely.rest)
        self._by_input = Classes(lonely.rest, alike=Alike.INPUT)
        self._scale = scale_of(classes)
        base, left = max(1, classes.base_ps), bound - lonely.constant_ps
        self._most = (left - 1) // base
        self._fewest = max(volume_bound(lonely.rest).batches, *(output for _, output, _ in classes.kinds))
        self._budget, self._enough = left * self._scale, left / base

    @property
    def _fit(self) -> bool:
        """Whether batches have a base, numbers of them are few, and no sum of costs wraps."""
        classes = self._classes
        steps = most_steps(max(self._most, self._fewest), len(self._instance.requests))
        largest = self._scale * max(classes.base_ps, *classes.fill_ps, *classes.decode_ps)
        return classes.base_ps > 0 and self._most - self._fewest < _MOST_COUNTS and largest * steps <= MOST_PAID

    def of_all(self, deadline: float, seed: int) -> dict[str, Any] | None:
        """Return prices on the graph of all requests.

        None if it is too large for the time, or the checker, or if a search with these prices proves less.
        """
        left = deadline - now_s()
        if not self._fit or left <= 0:
            return None
        try:
            places = _MOST_PLACES // (self._most + 2)
            graph = merged_graph(self._by_input, min(_MOST_NODES, places), now_s() + _GRAPH_SHARE * left)
        except TooLargeError:
            return None
        walks, found = Walks(graph, self._scale, max(self._most, 1)), {}
        price = walks.first_prices(self._most)
        for count, until in self._shares(deadline):
            price = self._improved(walks, price, count, _ROUNDS, until)
            stages = self._searched(GraphRelaxation(graph, walks, seed), price, count, deadline)
            if stages is None:
                return None
            found[count] = stages
        return self._stated(found, self._by_input)

    def of_core(self, deadline: float, workers: int, seed: int) -> dict[str, Any] | None:
        """Return prices on the graph of the largest requests, and of the tokens of others; None as above.

        And if there is no core, or it costs less than is to be proved, which a narrow beam mostly finds.
        """
        classes = self._classes
        fit = self._fit and now_s() < deadline
        core = core_of(self._instance, classes, _MOST_CORE_NODES) if fit else None
        if core is None:
            return None
        master, found = Master(core, self._most, workers, seed), {}
        for count, until in self._shares(deadline):
            prices = master.prices(count, deadline)
            if prices is None:
                return None
            waiting, tokens = prices[0], core.rounded(prices[1], count, self._scale)
            walks = core.walks(tokens, count, self._scale)
            price = self._improved(walks, np.tile(waiting, (count + 1, 1)), count, _CORE_ROUNDS, until)
            relaxation = GraphRelaxation(core.graph, walks, seed)
            width = relaxation.widths[0]
            quick = search_layers(relaxation.priced(price, count).space(), count, self._budget, width, _never)
            stages = None if quick.steps else self._searched(relaxation, price, count, deadline)
            if stages is None:
                return None
            found[count] = [(after, np.concatenate([prices, tokens])) for after, prices in stages]
        kinds = [classes.kinds.index(kind) for kind in core.inside.kinds]
        return self._stated(found, core.graph.classes) | {"core": kinds}

    def _shares(self, deadline: float) -> Iterator[tuple[int, float]]:
        """Yield numbers of batches, most first, and until when each may take time."""
        for count in range(self._most, self._fewest - 1, -1):
            yield count, now_s() + _PRICE_SHARE * (deadline - now_s()) / (count - self._fewest + 1)

    def _improved(self, walks: Walks, price: Floats, count: int, rounds: int, until: float) -> Floats:
        begin = Begin(0, walks.fresh, count, count)
        return walks.improved(price, begin, self._enough, rounds, lambda: now_s() > until)[1]

    def _searched(
        self, relaxation: GraphRelaxation, price: Floats, count: int, deadline: float
    ) -> list[tuple[int, Ints]] | None:
        """Return prices, and those with which a search goes on, after how many batches; None if it proves less."""
        priced = relaxation.priced(price, count)
        space = priced.space()
        found = search_layers(space, count, self._budget, None, lambda: now_s() > deadline)
        proved = found.complete and not found.steps
        return [(0, priced.table.price[count]), *space.taken] if proved else None

    def _stated(self, found: Mapping[int, list[tuple[int, Ints]]], inside: Classes) -> dict[str, Any]:
        """Return the certificate; the checker's prices of what is in the graph also pay for the constant work.

        Those that end take back what is paid for tokens that they do not generate.
        """
        work = work_from(inside)
        for item in inside.ends:
            work[inside.ending[item]] = -work[item]
        paid = np.array(work, dtype=object) * self._scale

        def stage(prices: Ints) -> dict[str, Any]:
            return {"item_prices": [*(prices[: len(paid)] + paid).tolist(), *prices[len(paid) :].tolist()]}

        batches = []
        for count, ((_, first), *later) in sorted(found.items()):
            batches.append({"count": count} | stage(first))
            if later:
                batches[-1]["later"] = [{"after": after} | stage(prices) for after, prices in later]
        head = {"kind": "layered_search", "bound": self._bound, "scale": self._scale, "pairs": self._pairs}
        return head | {"apart": [*self._lonely.kinds], "alike": "input", "batches": batches}


def _never() -> bool:
    return False
