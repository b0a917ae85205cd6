"""Models of routing and caches of an instance, as programmes that `optsched solve --export` writes down."""

from __future__ import annotations

import pulp

from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.eviction.exact import cache_programme
from optsched_formulations.eviction.service import ServiceOrder, served_in, token_value
from optsched_formulations.routing.assignment import assignment_programme
from optsched_formulations.routing.fleet import require_independent
from optsched_formulations.routing.placement_models import placement_programme
from optsched_formulations.routing.prefixed import placement_of


def assignment(instance: Instance, objective: Objective) -> pulp.LpProblem:
    """Return the programme of `assignment_programme`, whose optimum is a bound on the makespan, in ms."""
    _require(objective, Objective.MAKESPAN)
    require_independent(instance)
    return assignment_programme(instance)


def prefix_placement(instance: Instance, objective: Objective) -> pulp.LpProblem:
    """Return the programme of `placement_programme`, whose optimum is a bound on the largest load, in ps."""
    _require(objective, Objective.MAX_LOAD)
    require_independent(instance, caches=True)
    return placement_programme(placement_of(instance), len(instance.machines))


def prefix_cache(instance: Instance, objective: Objective) -> pulp.LpProblem:
    """Return the programme of `cache_programme`: the most tokens that are found if requests are served as they arrive.

    What is not found is recomputed, whatever the objective.
    """
    _require(objective, Objective.MAKESPAN)
    order, capacity = order_of(instance)
    return cache_programme(order, capacity, token_value(instance.machines[0].limits.kv_block))


def order_of(instance: Instance) -> tuple[ServiceOrder, int]:
    """Return the requests of one machine with a cache in the order of their arrival, and its blocks.

    Raises
    ------
    UnsupportedError
        For several machines, or one without a cache.
    """
    if len(instance.machines) > 1 or not instance.is_cached:
        raise UnsupportedError("several machines" if len(instance.machines) > 1 else "a machine without a cache")
    requests = instance.requests
    turns = sorted(range(len(requests)), key=lambda index: requests[index].arrival_ps)
    return served_in(instance, turns), instance.machines[0].limits.kv_blocks


def _require(objective: Objective, covered: Objective) -> None:
    if objective is not covered:
        raise UnsupportedError(f"objective {objective.value}: the model is for {covered.value}")
