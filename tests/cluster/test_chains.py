"""The makespan of equal machines by chains, against all assignments of tiny clusters, and by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest
from clusters import brute_force, cluster_of, random_cluster

from optsched import CostModel, Instance, Limits, MachineGroup, Request, Restrictions, Role, Rules, bound, replace
from optsched.bounds.bound import Bound
from optsched.bounds.chains import chains_bound
from optsched.check import UnprovedError, proved_bound
from optsched.model.objectives import Objective


def equal_cluster(rng: random.Random) -> Instance:
    """Return a tiny cluster whose machines are equal."""
    cluster = random_cluster(rng)
    rules = replace(cluster.machine_groups[0].rules or Rules(), chunked_prefill=rng.random() < 0.3)
    machine = replace(cluster.machine_groups[0], count=rng.choice([1, 2, 2, 3]), rules=rules)
    return cluster_of((machine,), cluster.requests)


def chains(cluster: Instance) -> Bound:
    """Return the bound, which there is."""
    found = chains_bound(cluster.on(0), len(cluster.machines))
    assert found is not None
    return found


def test_no_assignment_is_below_the_bound() -> None:
    rng, near = random.Random(1), 0
    for _ in range(300):
        cluster = equal_cluster(rng)
        found, best = chains(cluster), brute_force(cluster, Objective.MAKESPAN)
        assert found.value <= best
        assert proved_bound(cluster, Restrictions(), Objective.MAKESPAN, found.certificate) == found.value
        near += 2 * found.value > best
    assert near > 150


MACHINES = (MachineGroup(2, limits=Limits(100, 100, 100), rules=Rules(), cost=CostModel(base=10, token=1)),)


def test_only_one_machine_has_the_longest_requests_batches() -> None:
    """Outputs of 4, 4, 1 and 1 tokens, prompts of one: in pairs 4 × 10 + 8 = 48 and 12 ps; apart 45 ps, the best.

    The machine with a request of 4 tokens has 4 batches. In 44 ps it has 4 to spare: no second request of 4 tokens,
    which is on the other machine. So both have 4 batches, and together 8 ps to spare of 10 tokens. In 45 ps all fit.
    """
    cluster = cluster_of(MACHINES, [Request(1, 4), Request(1, 4), Request(1, 1), Request(1, 1)])
    assert chains(cluster).value == 45
    assert brute_force(replace(cluster, requests=cluster.requests[1:]), Objective.MAKESPAN) == 44


@pytest.mark.parametrize(
    "changes",
    [
        {"bound": 46},
        {"bound": 0},
        {"bound": None},
        {"release_ps": 1},
        {"memory_share": [9, 8]},
        {"memory_share": [-1, 8]},
        {"memory_share": [0, 0]},
        {"piece_weights": [0]},
        {"prefill_step_ps": 1},
        {"kind": "volume"},
    ],
)
def test_forged_certificates_prove_nothing(changes: dict[str, Any]) -> None:
    cluster = cluster_of(MACHINES, [Request(1, 4), Request(1, 4), Request(1, 1), Request(1, 1)])
    certificate = chains(cluster).certificate
    assert proved_bound(cluster, Restrictions(), Objective.MAKESPAN, certificate) == 45
    with pytest.raises(UnprovedError):
        proved_bound(cluster, Restrictions(), Objective.MAKESPAN, certificate | changes)


def test_it_covers_equal_machines_and_the_makespan_only() -> None:
    cluster = cluster_of(MACHINES, [Request(1, 4)])
    certificate = chains(cluster).certificate
    with pytest.raises(UnprovedError, match="the objective is mean_e2e"):
        proved_bound(cluster, Restrictions(), Objective.MEAN_E2E, certificate)
    slower = replace(MACHINES[0], count=1, cost=CostModel(base=11, token=1))
    with pytest.raises(UnprovedError, match="equal machines"):
        proved_bound(cluster_of((*MACHINES, slower), cluster.requests), Restrictions(), Objective.MAKESPAN, certificate)
    other = cluster_of((*MACHINES, replace(MACHINES[0], role=Role.PREFILL)), cluster.requests)
    with pytest.raises(UnprovedError, match="neither roles nor moves"):
        proved_bound(other, Restrictions(), Objective.MAKESPAN, certificate)
    with pytest.raises(UnprovedError, match="no class"):
        proved_bound(cluster, Restrictions(max_batch=1), Objective.MAKESPAN, certificate)


def test_of_what_takes_no_time_it_says_nothing() -> None:
    machine = replace(MACHINES[0], cost=CostModel(base=0, token=0, decode_kv=5))
    cluster = cluster_of((machine,), [Request(3, 2), Request(3, 2)])
    assert bound(cluster, method="chains").bound is None
    assert chains_bound(cluster.on(0), 2) is None
