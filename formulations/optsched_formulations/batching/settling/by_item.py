"""Settling numbers of batches by prices of items on a graph: all at once, then those of the least bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.graph_layers import GraphRelaxation
from optsched_formulations.batching.layers.two_sided import TwoSided, affordable, arcs_back
from optsched_formulations.batching.settling.known import Known
from optsched_formulations.batching.settling.settler import GAIN, LONG, QUICK, QUICK_SHARE, Become, Settler

_TOGETHER_SHARE, RISE_SHARE = 0.7, 0.05
"""Shares of the time left for prices of all numbers of batches at once, and for letting those of one rise."""
_LEAST_SHARE = 0.9
"""Share of the time left for raising the least bound, by prices and from both ends."""
VISIT_SHARE, _SEARCH_SHARE = 0.15, 0.04
"""Shares of the time left for a visit to the prices of the least bound, and for a search once they have converged."""


class ItemSettler(Settler):
    """As `Settler`, of prices of items.

    Parameters
    ----------
    known, become
        As there.
    partial
        Whether these schedules are only parts of those of all requests: then a schedule of the least cost is no end.
    """

    def __init__(self, known: Known, become: Become, *, partial: bool) -> None:
        super().__init__(known, become)
        self._partial = partial

    def settle(self, relaxation: GraphRelaxation) -> None:
        """Settle what can be in the time that is left."""
        known, (quick, long) = self.known, relaxation.widths
        self.begin(relaxation)
        if not known.open:
            return
        if relaxation.walks.many_places(known.most):
            until = known.at(_TOGETHER_SHARE)
            self.raise_together(relaxation, until, (quick,), until)
        else:
            self.improve_all(relaxation, known.most, QUICK, quick, known.at(QUICK_SHARE))
        self.raise_least(dict.fromkeys(known.open, relaxation), long, known.at(_LEAST_SHARE))
        self.search_all(relaxation)

    def raise_together(
        self, relaxation: GraphRelaxation, rise_until: float, widths: Sequence[int], until: float
    ) -> None:
        """Bound all numbers of batches that are open by the same prices, and look for schedules."""
        known = self.known
        fewest, most, over = min(known.open), max(known.open), known.over(until)
        price = relaxation.raised_together(fewest, most, known.enough, LONG, known.over(rise_until))
        every = relaxation.priced(price, most) if self._time_for(relaxation, most) else None
        proved = relaxation.walks.proved(price, most) if every is None else [every.of(n).bound for n in range(most + 1)]
        for batches in list(known.open):
            self.prices[batches] = price
            known.raise_bound(batches, proved[batches])
        if every is None:
            return
        for width in widths:
            for batches in known.by_bound():
                self.search(every.of(batches), batches, width, over)

    def raise_least(self, relaxations: Mapping[int, GraphRelaxation], width: int, until: float) -> None:
        """Raise the least bound: by prices until they have converged, by a search in layers, then from both ends.

        Each search from both ends of a number of batches goes a little further than the one before. Where it is large,
        prices may rise before it begins again.
        """
        known = self.known
        if not known.open:
            return
        over, graph = known.over(until), relaxations[min(known.open)].graph
        dear = relaxations[min(known.open)].walks.many_places(min(known.open))
        converged: set[int] = set()
        # What is known of them is all that there is.
        searched: set[int] = set()
        # Where looks take long prices may rise from the begin.
        risen = set(known.open) if dear else set[int]()
        searches: dict[int, TwoSided] = {}
        back = arcs_back(graph)
        while known.open and not over():
            batches = known.least
            relaxation = relaxations[batches]
            if batches in searched or not self._time_for(relaxation, batches):
                break
            if batches not in converged:
                before = known.open[batches]
                beside = [self.prices[other] for other in (batches - 1, batches, batches + 1) if other in self.prices]
                soon = known.over(min(until, known.at(VISIT_SHARE)))
                better = relaxation.raised if dear else relaxation.improved
                start = relaxation.best_of(beside, batches)
                priced = self.priced(relaxation, batches, better(start, batches, known.enough, LONG, soon))
                self.search(priced, batches, width, over)
                if priced.bound < before + GAIN * known.base:
                    converged.add(batches)
                    soon = known.over(min(until, known.at(_SEARCH_SHARE)))
                    if self.search(priced, batches, None, soon):
                        searched.add(batches)
                continue
            if batches not in risen:
                risen.add(batches)
                priced = self.priced(relaxation, batches, self._risen(relaxation, batches, until))
                self.search(priced, batches, width, over)
                continue
            if not affordable(graph, batches):
                break
            if batches not in searches:
                if not affordable(graph, batches, len(searches) + 1):
                    searches.clear()
                searches[batches] = TwoSided(relaxation, back, relaxation.priced(self.prices[batches], batches))
            found = searches[batches].further(known.budget, over)
            self.take_found(found, batches)
            if found.steps and self._partial:
                searched.add(batches)
            if not found.complete:
                break

    def _risen(self, relaxation: GraphRelaxation, batches: int, until: float) -> Floats:
        """Return prices that rise, or those that are known if these prove more.

        They begin with first prices: where steps along slopes end depends on that, and with what is known of other
        numbers of batches they end lower.
        """
        known = self.known
        soon = known.over(min(until, known.at(RISE_SHARE)))
        first = relaxation.improved(relaxation.first_prices(batches), batches, known.enough, LONG, soon)
        risen = relaxation.raised(first, batches, known.enough, LONG, soon)
        return relaxation.best_of([self.prices[batches], risen], batches)

    def _time_for(self, relaxation: GraphRelaxation, batches: int) -> bool:
        """Return whether what prices prove of a number of batches can be computed in time."""
        return relaxation.walks.exact_s(batches) < self.known.deadline - now_s()
