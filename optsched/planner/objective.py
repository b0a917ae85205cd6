"""What a plan is worth."""

from __future__ import annotations

import numpy as np

from optsched.model.instance import Instance
from optsched.model.objectives import Latency, Objective, percentile_rank
from optsched.planner.plan import Plan
from optsched.planner.problem import Ints

_HALF = 32


def value_of(instance: Instance, arrival: Ints, objective: Objective, plan: Plan) -> int:
    """Return the objective value of a plan, as `optsched.model.objectives.evaluate` does of its schedule."""
    if objective == Objective.MAKESPAN:
        return int(plan.end_ps[-1] - arrival.min())
    first, last = plan.end_ps[plan.first] - arrival, plan.end_ps[plan.last] - arrival
    waits = first if objective.latency == Latency.TTFT else last
    if objective.percentile is not None:
        return int(np.sort(waits)[percentile_rank(objective.percentile, waits.size) - 1])
    match objective:
        case Objective.MEAN_TTFT | Objective.MEAN_E2E:
            return _total(waits)
        case Objective.WEIGHTED_E2E:
            return sum(request.weight * stay for request, stay in zip(instance.requests, last.tolist(), strict=True))
        case Objective.SLO_MISSES:
            return sum(
                (request.slo_ttft_ps is not None and wait > request.slo_ttft_ps)
                or (request.slo_e2e_ps is not None and stay > request.slo_e2e_ps)
                for request, wait, stay in zip(instance.requests, first.tolist(), last.tolist(), strict=True)
            )
        case _:
            return int(waits.max())


def _total(values: Ints) -> int:
    """Add up numbers ≥ 0 whose sum may exceed 64 bits."""
    return (int((values >> _HALF).sum()) << _HALF) + int((values & ((1 << _HALF) - 1)).sum())
