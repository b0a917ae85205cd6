"""Settling numbers of batches by the largest classes alone, with others in the room that they leave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optsched.stopwatch import now_s
from optsched_formulations.batching.layers.bundle import Floats
from optsched_formulations.batching.layers.completion import completed
from optsched_formulations.batching.layers.core import Core, Master, core_of
from optsched_formulations.batching.layers.graph_layers import GraphRelaxation
from optsched_formulations.batching.layers.joint_prices import JointPrices
from optsched_formulations.batching.layers.outputs import Steps, by_output, prices_by_input
from optsched_formulations.batching.settling.by_item import RISE_SHARE, ItemSettler
from optsched_formulations.batching.settling.known import Known
from optsched_formulations.batching.settling.loops import compile_graphs, compile_patterns
from optsched_formulations.batching.settling.settler import GAIN, LONG

_MASTER_SHARE, _SEARCH_SHARE, _COMPLETION_SHARE = 0.3, 0.05, 0.01
"""Of a core's time, for its prices; of the time left, for a search of a number of batches, and for fillers."""
_REFILLS = 1.0
"""In batches: where a core takes fewer refills, at prices of a linear programme, it is no use but for schedules."""
_LARGE_SHARE, _JOINT_SHARE = 0.8, 0.4
"""Shares of the time left for a large core, and for its first prices."""
_FEW_REFILLS = 0.2
"""In batches beyond the fewest: where a large core proves no more, it is left."""


def settle_cores(known: Known, cores: Sequence[tuple[int, float]]) -> None:
    """Bound the numbers of batches that are open by cores, each of more nodes than the one before.

    Parameters
    ----------
    known
        What is known, which they add to: prices to begin with, too.
    cores
        Most nodes, and the share of the time left that each may take.
    """
    items, linear = 0, dict[int, int]()
    for most_nodes, share in cores:
        if items and (known.start is None or not known.open):
            break
        core = core_of(known.rest, known.classes, most_nodes)
        if core is None:
            break
        if core.items == items:
            continue
        if not items:
            compile_graphs()
            compile_patterns()
        items, until = core.items, known.at(share)
        settler = _CoreSettler(known, core)
        relaxations = settler.relaxations(linear, known.at(share * _MASTER_SHARE))
        bounds = known.start is not None
        settler.search_in_turn(relaxations, until, bounds=bounds)
        if bounds and known.open and relaxations.keys() >= known.open.keys():
            settler.raise_least(relaxations, GraphRelaxation.widths[1], until)


def settle_large_core(known: Known, most_nodes: int) -> None:
    """Bound the numbers of batches that are open by a core that is too large for a linear programme."""
    core = core_of(known.rest, known.classes, most_nodes)
    if core is None:
        return
    compile_graphs()
    compile_patterns()
    settler, until = _CoreSettler(known, core), known.at(_LARGE_SHARE)
    over = known.over(known.at(_JOINT_SHARE))
    waiting, tokens = JointPrices(core, min(known.open), known.reach).improved(known.enough, LONG, over)
    relaxation = settler.relaxation(known.reach, tokens, waiting)
    settler.raise_together(relaxation, known.at(RISE_SHARE), relaxation.widths, until)
    # Where it takes no refills it is no use: others need the time.
    if known.open and min(known.open.values()) > (min(known.open) + _FEW_REFILLS) * known.base:
        settler.raise_least(dict.fromkeys(known.open, relaxation), relaxation.widths[1], until)


class _CoreSettler(ItemSettler):
    """As `ItemSettler`, of a core: its schedules become some of all requests where fillers find room."""

    def __init__(self, known: Known, core: Core) -> None:
        super().__init__(known, self._completed, partial=True)
        self._core = core

    def relaxations(self, linear: dict[int, int], until: float) -> dict[int, GraphRelaxation]:
        """Return what prices of a linear programme prove of the numbers of batches that are open, the least first.

        ``linear`` is what those of a smaller core prove, and then those of this one; if no more, the smaller one does.
        """
        known, core = self.known, self._core
        master = Master(core, known.most, known.task.workers, known.task.seed)
        relaxations: dict[int, GraphRelaxation] = {}
        starts: dict[int, Floats] = {}
        for batches in known.by_bound():
            prices = master.prices(batches, until) if now_s() < until else None
            if prices is None:
                break
            waiting, tokens = prices
            relaxation = self.relaxation(batches, tokens)
            priced = self.priced(relaxation, batches, np.tile(waiting, (batches + 1, 1)))
            if batches in known.open:
                if not relaxations and priced.bound < linear.get(batches, 0) + GAIN * known.base:
                    return {}
                relaxations[batches], linear[batches] = relaxation, priced.bound
                starts[batches] = core.prices(waiting, tokens)
        least = min(relaxations, key=lambda batches: linear[batches], default=None)
        if least is not None:
            useful = linear[least] > (least + _REFILLS) * known.base
            known.start = prices_by_input(known.by_input, known.classes, starts[least]) if useful else None
        return relaxations

    def relaxation(self, batches: int, tokens: Floats, start: Floats | None = None) -> GraphRelaxation:
        """Return prices of the core's items, with those of tokens of fillers in whole units."""
        core, scale = self._core, self.known.scale
        walks = core.walks(core.rounded(tokens, batches, scale), batches, scale)
        return GraphRelaxation(core.graph, walks, self.known.task.seed, start)

    def search_in_turn(self, relaxations: dict[int, GraphRelaxation], until: float, *, bounds: bool) -> None:
        """Look for schedules of the least bounds; then settle what takes least, until something takes too long."""
        known = self.known
        order = sorted(relaxations, key=lambda batches: known.open.get(batches, 0))
        for width in (*GraphRelaxation.widths, None) if bounds else GraphRelaxation.widths[:1]:
            for batches in order if width else order[::-1]:
                soon = known.over(min(until, known.at(_SEARCH_SHARE)))
                if batches in known.open and not soon():
                    priced = relaxations[batches].priced(self.prices[batches], batches)
                    if not self.search(priced, batches, width, soon) and width is None:
                        return

    def _completed(self, steps: Steps, batches: int) -> Steps:
        known, core = self.known, self._core
        over = known.over(known.at(_COMPLETION_SHARE))
        steps = by_output(core.graph.classes, core.inside, steps)
        return completed(core, steps, batches, known.scale, known.budget, seed=known.task.seed, over=over)
