r"""Every number of batches by itself: what prices prove of it, then a search in layers.

It covers what `memory_only` says, offline, for the makespan. There a schedule of J batches takes

.. math:: \mathrm{constant} + \mathrm{base} \cdot J + \text{the extra cost of its refills},

and the constant is the work of all first fills and decodes. With few batches many refills are needed, with many the
batches alone take too long; so each J between the fewest possible and what the best schedule known leaves room for is
settled by itself:

1. *A core* (`settling.by_core`): the largest classes alone, on their merged graph, where the others only fill the room
   that is left, at prices of their tokens (`layers.fillers`, `layers.core`). Its graph is small, and what its schedules
   cost at least is found exactly, by the searches below. Where a schedule of the core costs little, the others are
   fitted in (`layers.completion`). That settles what a few large requests decide. Where the graph of all requests is
   too large, a core with as many nodes as there is time for comes first (`layers.joint_prices`).
2. *Sizes* (`settling.by_size`): prices as below where nothing but their sizes tells requests apart (`Alike.SIZE`): a
   graph that is smaller by far, and bounds that are hardly less; but where many requests are resident blocks prove
   more.
3. *Prices* (`settling.by_item`, `settling.by_block`): a Lagrangian bound on the extra cost of schedules of J batches,
   whose search begins with the prices of J + 1. They are of items on the merged graph of resident sets
   (`layers.walks`): the same in all batches at first, then such that rise; where that graph is large, for all J at
   once. Requests of one input are one class there (`Alike.INPUT`), as nothing tells them apart before they end. Where
   the cache holds many requests and there are too many such sets, they are of blocks in batches
   (`layers.pattern_layers`). They refute many J.
4. *A beam* (`layers.search`) looks for schedules, guided by the same prices.
5. *Arcs*: where prices are of blocks, all steps that requests may do in a better schedule are listed, and HiGHS packs
   them into the batches (`layers.arc_programme`).
6. *A search from both ends* (`layers.two_sided`) where prices are of items: of the J with the least bound so far, once
   its prices have converged and a short search as below has not settled it, each time a little further. It ends with
   the best schedule of J batches, or with a better bound.
7. *A search* of all states, layer by layer, for the J that are left, those of the best bounds first. Where it is not
   finished, the least bound of its last layer is one of J.

*Requests that leave no room for any other* run first, one after another, without being looked at: a batch in which one
runs holds nothing else, so that of any schedule these batches can be left out. What others are evicted before them and
refilled behind them is kept then, which costs no more. Each takes O batches and its constant work at least.

The bound on the makespan is the least over all J, where a J that is settled is worth the best schedule's value. Prices
are rounded, and what they prove is computed again in integers, as searches do; what HiGHS says of arcs is its claim.
"""

from __future__ import annotations

from collections.abc import Sequence

from optsched.model.objectives import Objective
from optsched.solvers.declaration import Declaration, Regime, Turn
from optsched.solvers.formulation import Outcome, Task, UnsupportedError, require_seconds
from optsched_formulations.batching.memory_only import require_memory_only

_MOST_NODES = 3_000_000
"""Nodes of the graph."""
_LARGE_CORE_NODES = 1_000_000
"""Of a core: enumerating more, and prices of them, take a minute that blocks need."""
_MOST_REQUESTS = 255
_CORES = (300, 0.8), (1_500, 0.6)
"""Nodes of the cores that are tried, and the share of the time left that each may take."""


class LayerSearch:
    """The method of this module, as `optsched.solvers.formulation.Formulation`.

    Parameters
    ----------
    most_nodes
        Of the graph of resident sets: where it would have more, prices are of blocks in batches.
    few_places
        Nodes of the graph times batches beyond which prices are found on walks near the least one; None for
        as many as `layers.walks` takes.
    cores
        Nodes of the cores that are tried, and the share of the time left that each may take.
    large_core
        Nodes of the core that is tried where the graph would have too many.
    """

    declaration = Declaration(
        sequential=True,
        turns=(
            Turn(45, 0.8, (Regime.FEW_RESIDENT,)),
            Turn(45, 0.85, (Regime.FEW_TOGETHER,)),
            Turn(45, 1.0, (Regime.MANY_TOGETHER,)),
        ),
    )
    """It comes after the state search, whose small proofs are certified."""

    def __init__(
        self,
        most_nodes: int = _MOST_NODES,
        few_places: int | None = None,
        cores: Sequence[tuple[int, float]] = _CORES,
        large_core: int = _LARGE_CORE_NODES,
    ) -> None:
        self._sizes = most_nodes, few_places, cores, large_core

    def solve(self, task: Task) -> Outcome:
        """Minimise the makespan of an offline instance in which only memory binds.

        With the restriction ``at_most``, ``INFEASIBLE`` says that every schedule exceeds it.

        Raises
        ------
        UnsupportedError
            For any other instance, a limit in deterministic time, or if numbers are too large.
        """
        _require_layers(task)
        from optsched_formulations.batching.settling.settle import Sizes, settle  # noqa: PLC0415  # loads compiled code

        return settle(task, Sizes(*self._sizes))


def _require_layers(task: Task) -> None:
    """Raise `UnsupportedError` for a task that layers do not cover."""
    require_memory_only(task)
    if task.objective not in {Objective.MAKESPAN, Objective.MAX_E2E}:
        raise UnsupportedError(f"objective {task.objective.value}, it minimises the makespan")
    if not task.instance.offline:
        raise UnsupportedError("requests that arrive at different times, it is offline")
    require_seconds(task)
    if task.instance.cost.affine[0][0] == 0:
        raise UnsupportedError("batches without a base, it settles their number")
    if len(task.instance.requests) > _MOST_REQUESTS:
        raise UnsupportedError(f"more than {_MOST_REQUESTS} requests")
