"""Several machines together, against all assignments with exhaustive search on each machine."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from clusters import MAXIMA, all_machines, brute_force, cluster_of, least_value, random_cluster

from optsched import (
    CostModel,
    InputError,
    Instance,
    Limits,
    MachineGroup,
    Request,
    Role,
    Rules,
    replace,
)
from optsched.check.certificates.joint import joint_bound
from optsched.check.certificates.proofs import proved_bound
from optsched.check.reading import UnprovedError
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge
from optsched.model.schedule import one_after_another
from optsched.solvers.formulation import Outcome, Termination, UnsupportedError
from optsched_formulations.routing.joint import JointOptimum, objective_of, solve_jointly
from optsched_formulations.routing.partition import Subsets, add_machine

SUMS = (Objective.MEAN_E2E, Objective.MEAN_TTFT, Objective.WEIGHTED_E2E, Objective.SLO_MISSES)


def prove(instance: Instance, objective: Objective, certificate: Mapping[str, Any]) -> int:
    return proved_bound(instance, Restrictions(), objective, certificate)


def searched(instance: Instance, objective: Objective, _seconds: float) -> Outcome:
    """An engine that is not ours: the exhaustive search, with any schedule."""
    schedule = one_after_another(instance, ())
    return Outcome(Termination.OPTIMAL, schedule, least_value(instance, objective), Badge.SOLVER_CLAIMED)


@pytest.mark.parametrize("objective", [*MAXIMA, *SUMS])
def test_the_joint_optimum_is_the_best_assignment(objective: Objective) -> None:
    rng = random.Random(objective.value)
    for _ in range(150):
        cluster = random_cluster(rng)
        found = solve_jointly(cluster, objective, engine=searched)
        assert found.optimal
        assert found.value == brute_force(cluster, objective)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.MEAN_E2E])
def test_exact_engines_give_schedules_and_certificates(objective: Objective) -> None:
    rng = random.Random(5)
    certified = 0
    for _ in range(4):
        cluster = random_cluster(rng)
        found = solve_jointly(cluster, objective, time_limit_s=600)
        assert found.value == found.bound == brute_force(cluster, objective)
        assert objective_of(cluster, objective, found.parts) == found.value
        assert sorted(r for part in found.parts for r in part.requests) == list(range(len(cluster.requests)))
        if found.badge is Badge.CERTIFIED:
            certified += 1
            assert found.certificate is not None
            assert joint_bound(all_machines(cluster), objective, found.certificate, prove) == found.bound
    assert certified >= 1


def test_out_of_time_sets_without_bounds_take_nothing() -> None:
    """Without time no set has a bound and none is solved: what is proved is 0, of an optimum that is more."""
    cluster = random_cluster(random.Random(1))
    found = solve_jointly(cluster, Objective.MAKESPAN, time_limit_s=0.0, engine=searched)
    assert (found.parts, found.solved, found.bound) == ((), 0, 0)
    assert found.certificate is not None
    assert found.certificate["sets"] == []
    assert prove(cluster, Objective.MAKESPAN, found.certificate) == 0
    assert brute_force(cluster, Objective.MAKESPAN) > 0


def test_a_smaller_set_may_cost_more_if_a_request_warms_a_cache() -> None:
    """With prefixes v({b}) may exceed v({a, b}): here 9 against 5, so that propagation would refute the optimum."""
    cost = CostModel(base=1, token=0)
    machine = MachineGroup(limits=Limits(10, 10, 10), rules=Rules(chunked_prefill=False, eviction=False), cost=cost)
    requests = (Request(1, 1), Request(2, 1), Request(3, 1))
    cluster = cluster_of((machine, machine), requests)
    values = {(1,): 1, (2,): 9, (3,): 9, (1, 2): 5, (1, 3): 12, (2, 3): 20, (1, 2, 3): 20}

    def engine(instance: Instance, _objective: Objective, _seconds: float) -> Outcome:
        value = values[tuple(request.input for request in instance.requests)]
        return Outcome(Termination.OPTIMAL, one_after_another(instance, ()), value, Badge.SOLVER_CLAIMED)

    # {a, b} and {c}: 5 + 9. {b} and {a, c}: 9 + 12. {a} and {b, c}: 1 + 20. All on one machine: 20.
    assert solve_jointly(cluster, Objective.MEAN_E2E, monotone=False, engine=engine).value == 14


def test_the_partition_is_the_least_of_all() -> None:
    rng = random.Random(6)
    for _ in range(60):
        sizes = tuple(rng.randint(1, 2) for _ in range(rng.randint(1, 3)))
        subsets, largest = Subsets(sizes), rng.random() < 0.5
        every = list(itertools.product(*(range(size + 1) for size in sizes)))
        assert [subsets.number(counts) for counts in subsets.counts] == list(range(len(every)))
        one, two = ([0, *(rng.randint(0, 50) for _ in every[1:])] for _ in range(2))
        best, part = add_machine(_array(one), _array(two), subsets.counts, subsets.digit, largest)
        for whole, counts in enumerate(every):
            values = []
            for mine, own in enumerate(every):
                if all(a <= b for a, b in zip(own, counts, strict=True)):
                    rest = every.index(tuple(b - a for a, b in zip(own, counts, strict=True)))
                    values.append(max(two[mine], one[rest]) if largest else two[mine] + one[rest])
            assert best[whole] == min(values)
            mine = int(part[whole])
            rest = whole - mine
            assert best[whole] == (max(two[mine], one[rest]) if largest else two[mine] + one[rest])


def _array(values: Sequence[int]) -> Any:
    return np.array(values, dtype=np.int64)


def certified() -> tuple[Instance, JointOptimum]:
    machine = MachineGroup(
        limits=Limits(10, 20, 20), rules=Rules(chunked_prefill=False), cost=CostModel(base=5, token=1, prefill_sq=1)
    )
    cluster = cluster_of((machine, machine), (Request(2, 2), Request(3, 2), Request(4, 1)))
    return cluster, solve_jointly(cluster, Objective.MAKESPAN, time_limit_s=600)


@pytest.mark.slow
def test_forged_certificates_prove_nothing() -> None:
    cluster, found = certified()
    machines, certificate = all_machines(cluster), found.certificate
    assert certificate is not None
    assert joint_bound(machines, Objective.MAKESPAN, certificate, prove) == found.bound
    sets = certificate["sets"]
    # Without the sets that were solved, and so without those that the others get their bounds from, less is proved.
    weak = [entry for entry in sets if entry["certificate"]["kind"] == "alone"]
    forged: list[dict[str, Any]] = [
        {**certificate, "bound": found.bound + 1},
        {**certificate, "sets": weak},
        {**certificate, "sets": [{**entry, "machine": 2} for entry in sets]},
        {**certificate, "sets": [{**entry, "counts": [9, 9, 9]} for entry in sets]},
        {**certificate, "sets": [{**entry, "certificate": None} for entry in sets]},
        {**certificate, "sets": [3]},
        {**certificate, "kind": "volume"},
    ]
    for wrong in forged:
        with pytest.raises(UnprovedError):
            joint_bound(machines, Objective.MAKESPAN, wrong, prove)
    with pytest.raises(UnprovedError):
        joint_bound(
            [*machines, replace(machines[0], requests=(Request(1, 1),))], Objective.MAKESPAN, certificate, prove
        )
    with pytest.raises(UnprovedError, match="no maximum or sum"):
        joint_bound(machines, Objective.P99_E2E, certificate, prove)


def test_what_is_not_covered_is_said() -> None:
    machine = MachineGroup(limits=Limits(4, 20, 20), rules=Rules(), cost=CostModel(base=5, token=1))
    with pytest.raises(UnsupportedError, match="no maximum or sum"):
        solve_jointly(cluster_of((machine,), (Request(1, 1),)), Objective.P99_E2E)
    with pytest.raises(InputError, match="one that fits a machine"):
        solve_jointly(cluster_of((machine,), (Request(5, 1),)), Objective.MAKESPAN)
    for part in ({"role": Role.PREFILL}, {"rules": Rules(migration=True)}):
        with pytest.raises(UnsupportedError, match="requests move"):
            solve_jointly(cluster_of((machine, replace(machine, **part)), (Request(1, 1),)), Objective.MAKESPAN)
    with pytest.raises(UnsupportedError, match="different sets"):
        solve_jointly(cluster_of((machine,), tuple(Request(1, 1, t) for t in range(20))), Objective.MAKESPAN)


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.MEAN_E2E])
@pytest.mark.parametrize("eviction", [False, True])
def test_sets_prove_the_least_of_all_partitions(objective: Objective, eviction: bool) -> None:
    """With any numbers for the bounds of some sets; chunked prefills forbid that one set has the bound of another."""
    rng = random.Random(f"{objective} {eviction}")
    rules, largest = Rules(chunked_prefill=eviction, eviction=eviction), objective is Objective.MAKESPAN
    machine = MachineGroup(limits=Limits(99, 99, 99), rules=rules, cost=CostModel(1, 1), count=2)
    for _ in range(30):
        sizes = [rng.randint(1, 2) for _ in range(rng.randint(1, 3))]
        requests = [Request(1 + kind, 1) for kind, size in enumerate(sizes) for _ in range(size)]
        cluster = cluster_of((machine,), requests)
        every = list(itertools.product(*(range(size + 1) for size in sizes)))
        stated = {counts: rng.randint(0, 30) for counts in rng.sample(every[1:], rng.randint(1, len(every) - 1))}

        def less(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
            return tuple(a - b for a, b in zip(one, other, strict=True))

        least: dict[tuple[int, ...], int] = {}
        for counts in every:
            least[counts] = stated.get(counts, 0)
            for part, value in stated.items() if not eviction else ():
                if min(less(counts, part)) >= 0:
                    least[counts] = max(least[counts], value if largest else value + least[less(counts, part)])
        join = max if largest else sum
        best = min(join((least[counts], least[less(sizes, counts)])) for counts in every)
        sets = [{"machine": 0, "counts": list(counts), "certificate": {"is": stated[counts]}} for counts in stated]
        certificate = {"kind": "joint", "bound": best, "sets": sets}

        def said(instance: Instance, objective: Objective, certificate: Mapping[str, Any]) -> int:
            return int(certificate["is"])

        assert joint_bound(all_machines(cluster), objective, certificate, said) == best
        with pytest.raises(UnprovedError, match="the sets prove"):
            joint_bound(all_machines(cluster), objective, certificate | {"bound": best + 1}, said)


def test_a_largest_value_is_proved_by_the_smallest_sets_that_reach_it() -> None:
    """Two machines with room for all: each set of two of four equal requests takes 10 + 2, of three 10 + 3."""
    machine = MachineGroup(limits=Limits(9, 9, 9), rules=Rules(eviction=False), cost=CostModel(10, 1), count=2)
    cluster = cluster_of((machine,), (Request(1, 1),) * 4)
    found = solve_jointly(cluster, Objective.MAKESPAN, time_limit_s=600)
    assert (found.value, found.bound) == (12, 12)
    assert found.certificate is not None
    assert [entry["counts"] for entry in found.certificate["sets"]] == [[2]]
    assert prove(cluster, Objective.MAKESPAN, found.certificate) == 12
