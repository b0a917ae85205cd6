"""Settling numbers of batches by prices of blocks in batches, and by packing arcs."""

from __future__ import annotations

from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.arc_programme import ArcProgramme, tightened
from optsched_formulations.batching.layers.outputs import Steps
from optsched_formulations.batching.layers.pattern_layers import PatternPriced, PatternRelaxation
from optsched_formulations.batching.settling.known import Known
from optsched_formulations.batching.settling.settler import LONG, QUICK, QUICK_SHARE, Settler

_LONG_SHARE = 0.5
"""Share of the time left for prices of the numbers of batches that are still open."""
_LEAST_ARCS_S = 0.5
"""The shortest time for which the arcs of a number of batches are packed."""
_MOST_OPEN = 3
"""Numbers of batches of which all states are searched: of more the time would not suffice."""
_MOST_ARCS = 20_000
"""Items × batches, of which each has up to three arcs, that are packed."""
_RISE, _MORE, _SHARE = 0.2, 1.5, 0.6
"""Batches by which the budget of arcs rises at first, and times as many at a time; share of the time left for each
number of batches but the last one with the last budget: after one that takes too long none follows."""


class BlockSettler(Settler):
    """As `Settler`, of prices of blocks.

    Parameters
    ----------
    known
        What is known, which they add to.
    """

    def __init__(self, known: Known) -> None:
        super().__init__(known, _unchanged)

    def settle(self, relaxation: PatternRelaxation) -> None:
        """Settle what can be in the time that is left."""
        known, (quick, long) = self.known, relaxation.widths
        self.begin(relaxation)
        if not known.open:
            return
        most = known.most
        self.improve_all(relaxation, most, QUICK, quick, known.at(QUICK_SHARE))
        if self._affordable(relaxation):
            self._pack_all(relaxation)
            self.improve_all(relaxation, most, LONG, long, known.at(_LONG_SHARE))
            if len(known.open) <= _MOST_OPEN:
                self.search_all(relaxation)

    def _affordable(self, relaxation: PatternRelaxation) -> bool:
        """Whether there is time for prices to converge: else others make more of it."""
        return sum(self.known.open) * relaxation.batch_s < self.known.deadline - now_s()

    def _pack_all(self, relaxation: PatternRelaxation) -> None:
        """Pack arcs for the numbers of batches that are open, with budgets that rise from the bound.

        Arcs within a small budget are few: it is refuted soon, or HiGHS finds what ends the search.
        """
        known, priced = self.known, dict[int, PatternPriced]()
        for batches in list(known.open):
            now = now_s()
            small = batches * len(known.classes.size) <= _MOST_ARCS
            if batches in known.open and now < known.deadline and small:
                before = relaxation.priced(self.prices[batches], batches)
                seconds = (known.deadline - now) / len(known.open)
                priced[batches] = tightened(before, known.budget, seconds, known.task.seed)
                self.prices[batches] = priced[batches].price / relaxation.base
                known.raise_bound(batches, priced[batches].bound)
        settled, rise = True, _RISE * known.base
        while settled and priced.keys() >= known.open.keys() and known.open:
            budget = min(known.budget, min(known.open.values()) + int(rise))
            order = known.by_bound()
            rise *= _MORE
            while order and settled:
                share, batches = (1.0 if len(order) == 1 and budget == known.budget else _SHARE), order.pop()
                budget, seconds = min(budget, known.budget), share * (known.deadline - now_s())
                if known.open.get(batches, budget) < budget:
                    settled = seconds > _LEAST_ARCS_S and self._pack(priced[batches], budget, seconds)

    def _pack(self, priced: PatternPriced, budget: int, seconds: float) -> bool:
        """Pack the arcs of a number of batches; return whether none costs less than the budget, or one was found."""
        known = self.known
        packed = ArcProgramme(priced, budget).pack(seconds, known.task.seed)
        known.take(packed.steps)
        known.raise_bound(priced.batches, packed.bound)
        return known.budget < budget or known.open.get(priced.batches, budget) >= budget


def _unchanged(steps: Steps, _: int) -> Steps:
    return steps
