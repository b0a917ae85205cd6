r"""The objectives, written over the ends of the batches that generate first and last tokens.

With :math:`F^1_r` and :math:`F^O_r` these ends and :math:`T_r` the arrivals, in units after the earliest arrival:

- makespan: :math:`z ≥ F^O_r` for all r; max e2e and TTFT: :math:`z ≥ F_r - T_r`;
- means: :math:`\sum_r F_r - \sum_r T_r`; weighted: :math:`\sum_r w_r (F^O_r - T_r)`;
- percentile q of n requests: :math:`F_r - T_r ≤ z` if :math:`\mathit{within}_r`, and
  :math:`\sum_r \mathit{within}_r ≥ ⌈q n / 100⌉`;
- SLO misses: :math:`\sum_r \mathit{miss}_r`, where :math:`¬\mathit{miss}_r ⇒ F_r ≤ T_r + ⌊\mathrm{SLO}_r⌋`, the SLO
  rounded down to units after the earliest arrival, since every F is whole.

Every objective only rises when batches end later, so ends need lower bounds only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from optsched.model.domain import MAX_PS
from optsched.model.objectives import Latency, Objective, percentile_rank
from optsched.solvers.formulation import Task, UnsupportedError
from optsched_formulations.batching.costs import Costs, Horizon, Token

_LARGEST = 2**60
"""Larger sums could overflow in CP-SAT."""

EndOf = Callable[[Token], cp_model.IntVar]
"""Returns a variable that is at least the end of the batch that generates a token, in units."""


@dataclass(frozen=True)
class Goal:
    """What CP-SAT minimises, and what it means.

    Parameters
    ----------
    expression
        A variable or expression with integer coefficients.
    scale, constant
        The objective's value is ``constant + scale × expression``.
    """

    expression: cp_model.LinearExprT
    scale: int
    constant: int

    def to_value(self, expression: int) -> int:
        """Translate to the objective's unit."""
        return self.constant + self.scale * expression


def require_range(largest: int) -> None:
    """Refuse numbers that CP-SAT cannot add."""
    if largest > _LARGEST:
        raise UnsupportedError(f"times of up to {largest} units, it adds numbers up to {_LARGEST}")


def require_horizon(horizon: Horizon) -> None:
    """Refuse a model whose sums CP-SAT cannot add, or whose schedules may end beyond 64 bits."""
    require_range(horizon.largest)
    instance = horizon.costs.instance
    if instance.start_ps + horizon.costs.scale * horizon.end > MAX_PS:
        raise UnsupportedError("times beyond 64 bits")


def bounded(cp: cp_model.CpModel, goal: Goal, task: Task, upper: int) -> Goal:
    """Put the bounds known on the objective's value into the domain of a variable.

    A bound belongs there: as a row on the sum it misleads CP-SAT's search.
    """
    most = (upper - goal.constant) // goal.scale
    least = -(-(task.bound - goal.constant) // goal.scale)
    require_range(max(abs(most), abs(least)))
    total = cp.new_int_var(min(least, most), most, task.objective.value)
    cp.add(total == goal.expression)
    return Goal(total, goal.scale, goal.constant)


def add_goal(cp: cp_model.CpModel, task: Task, costs: Costs, horizon: Horizon, end_of: EndOf) -> Goal:
    """Add the objective of a task, bounded by what is known of its value."""
    requests, arrivals, scale = costs.requests, costs.arrivals, costs.scale
    first = {r: (r, 1) for r in range(len(requests))}
    last = {r: (r, request.output) for r, request in enumerate(requests)}

    def weighted(tokens: dict[int, Token], weights: list[int]) -> Goal:
        chosen = [r for r, weight in enumerate(weights) if weight]
        require_range(sum(weights) * horizon.end)
        total = cp_model.LinearExpr.weighted_sum([end_of(tokens[r]) for r in chosen], [weights[r] for r in chosen])
        past = sum(weight * arrival for weight, arrival in zip(weights, arrivals, strict=True))
        return Goal(total, scale, -scale * past)

    def largest(tokens: dict[int, Token], since: list[int]) -> Goal:
        require_range(horizon.end)
        worst = cp.new_int_var(0, horizon.end, "")
        for r, token in tokens.items():
            cp.add(worst >= end_of(token) - since[r])
        return Goal(worst, scale, 0)

    def percentile(tokens: dict[int, Token], q: int) -> Goal:
        require_range(horizon.end)
        latency = cp.new_int_var(0, horizon.end, "")
        within = {r: cp.new_bool_var(f"within[{r}]") for r in tokens}
        for r, token in tokens.items():
            cp.add(end_of(token) - arrivals[r] <= latency).only_enforce_if(within[r])
        cp.add(cp_model.LinearExpr.sum(list(within.values())) >= percentile_rank(q, len(tokens)))
        return Goal(latency, scale, 0)

    match task.objective:
        case Objective.MAKESPAN:
            goal = largest(last, [0] * len(requests))
        case Objective.MAX_E2E:
            goal = largest(last, arrivals)
        case Objective.MAX_TTFT:
            goal = largest(first, arrivals)
        case Objective.MEAN_E2E:
            goal = weighted(last, [1] * len(requests))
        case Objective.MEAN_TTFT:
            goal = weighted(first, [1] * len(requests))
        case Objective.WEIGHTED_E2E:
            goal = weighted(last, [request.weight for request in requests])
        case Objective.SLO_MISSES:
            goal = Goal(cp_model.LinearExpr.sum(_misses(cp, costs, horizon, end_of)), 1, 0)
        case Objective(latency=latency, percentile=int(q)):
            goal = percentile(first if latency is Latency.TTFT else last, q)
        case other:
            raise UnsupportedError(f"objective {other.value}, there is no model of it")
    return bounded(cp, goal, task, horizon.value)


def _misses(cp: cp_model.CpModel, costs: Costs, horizon: Horizon, end_of: EndOf) -> list[cp_model.IntVar]:
    """Return a literal for every request that has an SLO: whether it is missed."""
    require_range(horizon.end)
    start, misses = costs.instance.start_ps, []
    for r, request in enumerate(costs.requests):
        due = [((r, 1), request.slo_ttft_ps), ((r, request.output), request.slo_e2e_ps)]
        limits = [(token, slo) for token, slo in due if slo is not None]
        if not limits:
            continue
        missed = cp.new_bool_var(f"missed[{r}]")
        misses.append(missed)
        for token, slo in limits:
            latest = min((request.arrival_ps + slo - start) // costs.scale, horizon.end)
            cp.add(end_of(token) <= latest).only_enforce_if(~missed)
    return misses
