"""Bounds for several machines that scale, against all assignments of tiny clusters."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pulp
import pytest
from clusters import all_machines, brute_force, cluster_of, random_cluster

from optsched import CostModel, Limits, MachineGroup, Request, Rules
from optsched.bounds.machine import machine_bound
from optsched.check.certificates.assignment import assignment_bound
from optsched.check.reading import UnprovedError
from optsched.model.objectives import Objective
from optsched_formulations.routing.assignment import assignment_programme, cluster_bound
from optsched_formulations.routing.speedy import ends_of_fast_machine, ends_offline

BOUNDED = (Objective.MAKESPAN, Objective.MEAN_E2E, Objective.MEAN_TTFT)


@pytest.mark.parametrize("objective", BOUNDED)
def test_no_assignment_is_below_the_bound(objective: Objective) -> None:
    rng = random.Random(objective.value)
    near = 0
    for _ in range(150):
        cluster = random_cluster(rng)
        found = cluster_bound(cluster, objective)
        assert found is not None
        best = brute_force(cluster, objective)
        assert found.value <= best
        near += 2 * found.value > best
        assert assignment_bound(all_machines(cluster), objective, found.certificate) == found.value
    assert near > 30


@pytest.mark.parametrize("objective", BOUNDED)
def test_one_machine_has_the_bound_of_one_machine(objective: Objective) -> None:
    rng = random.Random(7)
    for _ in range(20):
        cluster = random_cluster(rng)
        alone = cluster_of(cluster.machine_groups[:1], cluster.requests)
        found, known = cluster_bound(alone, objective), machine_bound(all_machines(alone)[0], objective)
        assert found is not None
        assert known is not None
        assert found.value == known.value


def test_unequal_machines_are_weighted() -> None:
    """Four requests of 12 ps each on one machine and 6 ps each on a machine of half the cost: 16 ps, not 24 / 2."""
    slow = MachineGroup(limits=Limits(4, 4, 4), rules=Rules(), cost=CostModel(base=0, token=6))
    fast = MachineGroup(limits=Limits(4, 4, 4), rules=Rules(), cost=CostModel(base=0, token=3))
    cluster = cluster_of((slow, fast), (Request(2, 1),) * 4)
    found = cluster_bound(cluster, Objective.MAKESPAN)
    assert found is not None
    # 1 / (1/12 + 1/6) = 4 ps for each of four. In whole requests the least is 18.
    assert found.value == 16
    assert brute_force(cluster, Objective.MAKESPAN) == 18


def test_the_programme_bounds_the_makespan() -> None:
    rng = random.Random(8)
    bounds = 0
    for _ in range(60):
        cluster = random_cluster(rng)
        if len({request.arrival_ps for request in cluster.requests}) > 1:
            continue
        problem = assignment_programme(cluster, unit_ps=1)
        problem.solve(pulp.HiGHS(msg=False))
        value = round(pulp.value(problem.objective))
        assert value <= brute_force(cluster, Objective.MAKESPAN)
        bounds += value > 0
    assert bounds > 10


def test_shortest_first_is_the_least_of_all_orders() -> None:
    rng = random.Random(9)
    for _ in range(100):
        needs, machines = [rng.randint(0, 9) for _ in range(rng.randint(1, 5))], rng.randint(1, 3)
        best = (
            min(
                sum(sum(sum(row[: position + 1]) for position in range(len(row))) for row in split)
                for order in itertools.permutations(needs)
                for choice in itertools.product(range(machines), repeat=len(needs))
                for split in [
                    [
                        [need for need, at in zip(order, choice, strict=True) if at == machine]
                        for machine in range(machines)
                    ]
                ]
            )
            if len(needs) <= 4
            else ends_offline(needs, machines)
        )
        assert ends_offline(needs, machines) == best


def test_the_fast_machine_by_hand() -> None:
    # Two machines, needs 3 and 4 at 0, 1 at 1: at double speed 3 is done at 1.5; it has 1 left when the need of 1
    # comes, which goes first or after it: 1.5, 2, 4, rounded up.
    assert ends_of_fast_machine([0, 0, 1], [3, 4, 1], 2) == [2, 2, 4]


def test_forged_certificates_prove_nothing() -> None:
    cluster = random_cluster(random.Random(3))
    found = cluster_bound(cluster, Objective.MAKESPAN)
    assert found is not None
    certificate, machines = found.certificate, all_machines(cluster)
    forged: list[dict[str, Any]] = [
        {**certificate, "weights": [0] * len(machines)},
        {**certificate, "weights": [-1] * len(machines)},
        {**certificate, "weights": [1] * (len(machines) + 1)},
        {**certificate, "release_ps": None},
        {**certificate, "shares": certificate["shares"][1:]},
        {**certificate, "shares": [3] * len(machines)},
        {**certificate, "kind": "volume"},
    ]
    for wrong in forged:
        with pytest.raises(UnprovedError):
            assignment_bound(machines, Objective.MAKESPAN, wrong)
    with pytest.raises(UnprovedError, match="does not bound"):
        assignment_bound(machines, Objective.MAX_E2E, certificate)
    assert assignment_bound(machines, Objective.MAKESPAN, {**certificate, "release_ps": -1}) == 0
