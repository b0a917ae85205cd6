"""Several machines under one clock: a router sends requests to them, and each has a policy of its own.

Where nothing moves, machines do not know of each other between arrivals, so each runs by itself and only as far as a
router looks at it. A router that looks at none, and is notified of nothing, leaves all of them untouched until
everything is routed; then a compiled policy serves each machine at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from optsched.cache.blocks import CacheSetting
from optsched.model.cost import BatchCost
from optsched.model.feasibility import require_feasible
from optsched.model.instance import Instance
from optsched.model.schedule import Schedule
from optsched.routers.router import RouterFactory
from optsched.simulator.engine import arrival_order
from optsched.simulator.moving import MovingCluster
from optsched.simulator.replica import COMPILED_TOKENS, LeftToEngineError
from optsched.simulator.routed import DecisionRecord, PolicyMaker, RoutedCluster, has_moves

_LRU = CacheSetting()


def run_cluster(
    instance: Instance,
    policy: PolicyMaker,
    router: RouterFactory,
    *,
    setting: CacheSetting = _LRU,
    seed: int = 0,
    routers: int | None = None,
    jumps: bool = True,
    record: DecisionRecord | None = None,
    costs: Sequence[BatchCost] | None = None,
) -> Schedule:
    """Let a router and policies schedule an instance.

    What happens at one instant, in this order: batches end; moves end; routers are notified; requests that arrive are
    routed, by index; pairs of machines between which requests migrate are chosen; requests with their first token are
    sent on; moves start, and those that take no time end; batches start, by machine.

    Parameters
    ----------
    instance
        What is to be scheduled.
    policy
        Makes a policy object for each machine, in the order of the machines.
    router
        Makes a router.
    setting
        How machines keep their caches.
    seed
        Of the routers' random numbers.
    routers
        How many routers there are; None for as many as the instance says (`optsched.model.cluster.ViewAge`).
    jumps
        As `optsched.simulator.engine.run_policy` takes it.
    record
        Where decisions are written down; each then takes time to look at all machines.
    costs
        How long the steps of batches take on each machine, if not what the instance says.

    Raises
    ------
    InfeasibleInstanceError
        If a request fits no machine.
    PolicyFailureError
        If a policy fails on its machine (`optsched.simulator.engine.run_policy`), or a router answers what is no
        machine, or none that can serve the request.
    """
    require_feasible(instance)
    # Where routers see machines late, these run no further than is seen; there, all of them run up to now.
    looks_at_now = record is not None and instance.view.is_aged
    kind = MovingCluster if has_moves(instance) or looks_at_now else RoutedCluster
    number = instance.view.routers if routers is None else routers

    def run(compiled: bool, record: DecisionRecord | None) -> Schedule:
        cluster = kind(
            instance,
            policy,
            router,
            setting,
            seed=seed,
            routers=number,
            jumps=jumps,
            record=record,
            costs=costs,
            compiled=compiled,
        )
        return cluster.run(arrival_order(instance))

    # Compiled policies know no other costs than the instance's, and where requests move each machine is on its own.
    tokens = sum(request.output for request in instance.requests)
    if jumps and costs is None and record is None and kind is RoutedCluster and tokens >= COMPILED_TOKENS:
        try:
            return run(True, None)
        except LeftToEngineError:
            pass
    return run(False, record)
