"""Assignment × batches, verbatim in PuLP and for CP-SAT, beside all assignments and batches, and `joint`."""

from __future__ import annotations

import random

import pulp
import pytest
from clusters import brute_force, cluster_of, random_cluster

from optsched import Instance, Request, replace
from optsched.model.objectives import Objective
from optsched.solvers.formulation import UnsupportedError
from optsched_formulations.routing.joint import solve_jointly
from optsched_formulations.routing.joint_models import least_sum_of_latencies, makespan_programme


def random_plain(rng: random.Random) -> Instance:
    """Return a tiny cluster whose requests are all there from the start, without evictions."""
    drawn = random_cluster(rng)
    groups = tuple(
        replace(group, rules=replace(group.rules or drawn.rules, eviction=False, hybrid=True))
        for group in drawn.machine_groups[:2]
    )
    return cluster_of(groups, [replace(request, arrival_ps=0) for request in drawn.requests])


@pytest.mark.slow
def test_both_models_and_joint_agree_with_all_schedules() -> None:
    rng = random.Random(1)
    for _ in range(15):
        cluster = random_plain(rng)
        problem = makespan_programme(cluster)
        problem.solve(pulp.HiGHS(msg=False))
        best = brute_force(cluster, Objective.MAKESPAN)
        assert round(pulp.value(problem.objective)) == best == solve_jointly(cluster, Objective.MAKESPAN).value
        best = brute_force(cluster, Objective.MEAN_E2E)
        assert least_sum_of_latencies(cluster, 60.0) == best == solve_jointly(cluster, Objective.MEAN_E2E).value


def test_what_the_models_do_not_cover_is_said() -> None:
    cluster = random_plain(random.Random(2))
    with pytest.raises(UnsupportedError, match="arrivals"):
        makespan_programme(replace(cluster, requests=(Request(1, 1), Request(1, 1, 5))))
    group = cluster.machine_groups[0]
    assert group.rules is not None
    with pytest.raises(UnsupportedError, match="eviction"):
        least_sum_of_latencies(
            cluster_of([replace(group, rules=replace(group.rules, eviction=True))], cluster.requests), 1
        )
