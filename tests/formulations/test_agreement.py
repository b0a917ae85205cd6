"""Every formulation that is registered agrees with brute force and so with the others, and obeys what optima obey.

A new formulation is tested by registering it; `COVERS` has to say where it applies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import pytest
from brute_force import MONOTONE, optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import FREE, exact_value, legal_value
from strategies import instances, memory_only, restrictions

from optsched import Instance, Objective, Restrictions, replace
from optsched.catalogue import FORMULATION_GROUP, entries
from optsched.methods.formulations import make_formulation
from optsched.model.restrictions import FORBIDDABLE
from optsched.solvers.formulation import Outcome, Task, Termination, UnsupportedError

FORMULATIONS = tuple(
    name for name in entries(FORMULATION_GROUP) if name not in {"planner", "clock_beam", "reinsertion", "unbroken"}
)
"""Those that prove something; the others are held against brute force in their own tests."""
BOUNDING = frozenset({"core_alone", "free_pauses", "last_arrivals", "pattern_cg"})
"""Formulations that bound the optimum and need not prove it."""
FAST = frozenset(FORMULATIONS) - {"infermax_milp"}
MAKESPAN = (Objective.MAKESPAN,)
PERCENTILES = tuple(objective for objective in Objective if objective.percentile is not None)
OTHERS = tuple(objective for objective in MONOTONE if objective.percentile is None)
LATENCIES = (Objective.MEAN_E2E, Objective.WEIGHTED_E2E, Objective.MAX_E2E)


@dataclass(frozen=True)
class Family:
    """A kind of instances.

    Parameters
    ----------
    drawn
        The instances.
    objectives
        What may be minimised.
    examples
        How many of them the formulations have to agree on.
    covered
        Formulations that are to be used on many of them.
    """

    drawn: st.SearchStrategy[Instance]
    objectives: tuple[Objective, ...]
    examples: int
    covered: frozenset[str]


FLOWS = frozenset({"token_cpsat", "infermax_milp", "class_flow", "class_flow_mip", "pattern_cg"})
GENERAL = frozenset({"token_cpsat", "infermax_milp"})
KINDS = {
    "memory alone": Family(memory_only(), MAKESPAN, 100, FLOWS | {"small_search", "state_search", "layer_search"}),
    "memory alone, latencies": Family(
        memory_only(most_requests=3), LATENCIES, 40, GENERAL | {"small_search", "state_search", "pair_flow"}
    ),
    "memory alone, arrivals": Family(
        memory_only(online=True, most_requests=3),
        MAKESPAN,
        60,
        GENERAL | {"core_alone", "free_pauses", "last_arrivals", "small_search", "state_search"},
    ),
    "memory alone, arrivals, latencies": Family(
        memory_only(online=True, most_requests=3), (Objective.MEAN_E2E,), 40, GENERAL | {"small_search", "state_search"}
    ),
    "whole prefills": Family(instances(chunked=False), MAKESPAN, 100, FLOWS),
    "arrivals": Family(instances(chunked=False, online=True), OTHERS, 100, GENERAL),
    "chunks": Family(instances(chunked=True, online=True, most_requests=2, most_tokens=2), OTHERS, 100, GENERAL),
    "percentiles": Family(
        instances(chunked=False, online=True) | instances(chunked=True, online=True, most_requests=2, most_tokens=2),
        PERCENTILES,
        60,
        frozenset({"token_cpsat"}),
    ),
}


def small_enough(name: str, instance: Instance) -> bool:
    """Whether the formulation takes no more than some tenths of a second: the paper's programme soon takes minutes."""
    if name in FAST:
        return True
    requests = instance.requests
    if instance.rules.chunked_prefill:
        batches = sum(q.peak_tokens * (q.output if instance.rules.eviction else 1) for q in requests)
        return batches * len(requests) <= 12
    return sum(q.output for q in requests) * len(requests) <= 10


def answers(
    instance: Instance, objective: Objective, allowed: Restrictions = FREE, names: frozenset[str] | None = None
) -> Iterator[tuple[str, Outcome]]:
    """Yield what every formulation that covers the task says, or those of some names."""
    restricted = allowed.apply(instance)
    for name in FORMULATIONS if names is None else sorted(names):
        if small_enough(name, restricted):
            try:
                yield name, make_formulation(name, {}).solve(Task(restricted, objective, allowed))
            except UnsupportedError:
                continue


def require_truth(instance: Instance, objective: Objective, allowed: Restrictions, outcome: Outcome, best: int) -> None:
    """Require that what a formulation says is true; ``best`` is the optimum of the class, whatever `at_most` asks."""
    if outcome.termination == Termination.INFEASIBLE:
        assert allowed.at_most is not None
        assert best > allowed.at_most
        assert outcome.schedule is None
    if outcome.termination == Termination.OPTIMAL:
        assert exact_value(instance, outcome, objective, allowed) == best
    if outcome.schedule is not None:
        assert legal_value(instance, outcome.schedule, objective, allowed) >= best
    if outcome.bound is not None:
        assert outcome.bound <= best


def require_share(used: Counter[str], kind: Family, examples: int) -> None:
    """Require that every formulation was used on enough examples of a kind that it covers."""
    for name in kind.covered & set(FORMULATIONS):
        assert 4 * used[name] >= examples, (name, used)


def quick(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


def test_every_formulation_has_its_kind() -> None:
    covered = frozenset().union(*(kind.covered for kind in KINDS.values()))
    assert set(FORMULATIONS) <= covered, "say in KINDS which instances a new formulation covers"
    assert sum(kind.examples for kind in KINDS.values()) >= 500


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_formulations_agree(name: str) -> None:
    """With brute force, on all schedules or on those of a class, with a value that they may not exceed or without."""
    kind, used, decided, drawn = KINDS[name], Counter[str](), Counter[str](), Counter[str]()

    @quick(kind.examples)
    @given(st.data(), kind.drawn, st.sampled_from(kind.objectives))
    def agree(data: st.DataObject, instance: Instance, objective: Objective) -> None:
        allowed = data.draw(st.just(FREE) | restrictions(instance))
        assume(not allowed.apply(instance).infeasibilities())
        best = optimum(instance, objective, restrictions=allowed)
        assert best is not None
        if data.draw(st.integers(0, 3)) == 3:
            allowed = replace(allowed, at_most=max(best + data.draw(st.sampled_from([-1, 0, 1, 20])), 0))
        drawn["examples"] += 1
        for formulation, outcome in answers(instance, objective, allowed):
            used[formulation] += 1
            decided[formulation] += outcome.termination != Termination.LIMIT
            require_truth(instance, objective, allowed, outcome, best)

    agree()
    assert drawn["examples"] >= kind.examples
    require_share(used, kind, kind.examples)
    for formulation in used.keys() - BOUNDING:
        assert decided[formulation] == used[formulation], formulation


# Relations ---------------------------------------------------------------------------------------------------


def roomier(instance: Instance) -> Instance:
    limits = instance.limits
    return replace(instance, limits=replace(limits, kv_tokens=limits.kv_tokens + limits.kv_block))


def permuted(data: st.DataObject, instance: Instance) -> Instance:
    return replace(instance, requests=tuple(data.draw(st.permutations(instance.requests))))


def scaled(instance: Instance, factor: int) -> Instance:
    """Return the instance with all coefficients, arrivals and SLOs multiplied."""

    def times(number: int | None) -> int | None:
        return None if number is None else factor * number

    cost = instance.cost
    names = [field.name for field in fields(cost) if field.name not in {"pieces", "swap_overlap"}]
    pieces = tuple((factor * base, factor * slope) for base, slope in cost.pieces)
    requests = tuple(
        replace(q, arrival_ps=factor * q.arrival_ps, slo_ttft_ps=times(q.slo_ttft_ps), slo_e2e_ps=times(q.slo_e2e_ps))
        for q in instance.requests
    )
    larger = replace(cost, **{name: factor * getattr(cost, name) for name in names}, pieces=pieces)
    return replace(instance, cost=larger, requests=requests)


Relation = Callable[[int, int], bool]
_RELATED = 30
"""Examples of each kind; what brute force says of the same kinds has relations already."""


def drawn_relation(
    data: st.DataObject, instance: Instance, objective: Objective
) -> tuple[Instance, Restrictions, Relation]:
    """Return another problem, and how its optimum relates to the instance's (optimum, other optimum)."""
    what = data.draw(st.sampled_from([*FORBIDDABLE, "memory", "order", "unit"]))
    match what:
        case "memory":
            return roomier(instance), FREE, lambda best, other: other <= best
        case "order":
            return permuted(data, instance), FREE, lambda best, other: other == best
        case "unit":
            factor = data.draw(st.integers(2, 1000))
            times = 1 if objective == Objective.SLO_MISSES else factor
            return scaled(instance, factor), FREE, lambda best, other: other == times * best
        case _:
            return instance, Restrictions((what,)), lambda best, other: other >= best


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_optima_obey_relations(name: str) -> None:
    """Of every formulation: its optimum of an instance and that of another one, which bounds or determines it."""
    kind, compared = KINDS[name], Counter[str]()

    @quick(_RELATED)
    @given(st.data(), kind.drawn, st.sampled_from(kind.objectives))
    def obey(data: st.DataObject, instance: Instance, objective: Objective) -> None:
        other, allowed, holds = drawn_relation(data, instance, objective)
        assume(not allowed.apply(other).infeasibilities())
        proved = {
            formulation: exact_value(instance, outcome, objective)
            for formulation, outcome in answers(instance, objective)
            if outcome.termination == Termination.OPTIMAL
        }
        for formulation, outcome in answers(other, objective, allowed, frozenset(proved)):
            if outcome.termination == Termination.OPTIMAL:
                compared[formulation] += 1
                value = exact_value(other, outcome, objective, allowed)
                assert holds(proved[formulation], value), (formulation, proved[formulation], value)

    obey()
    require_share(compared, replace(kind, covered=kind.covered - BOUNDING), _RELATED)
