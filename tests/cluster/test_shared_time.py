"""`alone` and `congestion` of several machines, against all assignments of tiny clusters, policies and routers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from clusters import brute_force, cluster_of, random_cluster

from optsched import CostModel, Instance, Limits, MachineGroup, Request, Restrictions, Rules, bound, replace, simulate
from optsched.bounds.alone import alone_bound, alone_bound_of_several
from optsched.bounds.congestion import congestion_bound
from optsched.check import UnprovedError, proved_bound
from optsched.model.objectives import Objective

FREE = Restrictions()
E2E = Objective.MEAN_E2E
SUMS_AND_MAXIMA = (
    *(Objective.MAKESPAN, Objective.MEAN_TTFT, Objective.MAX_TTFT, Objective.MEAN_E2E, Objective.MAX_E2E),
    *(Objective.WEIGHTED_E2E, Objective.SLO_MISSES),
)


def equal_cluster(rng: random.Random) -> Instance:
    """Return a tiny cluster whose machines are equal."""
    cluster = random_cluster(rng)
    return cluster_of((replace(cluster.machine_groups[0], count=rng.choice([1, 2, 2, 3])),), cluster.requests)


@pytest.mark.slow
@pytest.mark.parametrize("objective", SUMS_AND_MAXIMA)
def test_no_assignment_is_below_what_requests_take_alone(objective: Objective) -> None:
    rng, tight = random.Random(objective.value), 0
    for _ in range(200):
        cluster = random_cluster(rng)
        found, best = alone_bound_of_several(cluster, objective), brute_force(cluster, objective)
        assert found is not None
        assert proved_bound(cluster, FREE, objective, found.certificate) == found.value <= best
        tight += found.value == best
    assert tight > 20


def test_each_request_has_the_machine_where_it_takes_least() -> None:
    """The first machine takes 10 for a batch and has room for 4 tokens; the second 30, and room for all."""
    small = MachineGroup(limits=Limits(4, 8, 8), rules=Rules(), cost=CostModel(10, 0))
    large = MachineGroup(limits=Limits(9, 8, 8), rules=Rules(), cost=CostModel(30, 0))
    cluster = cluster_of((small, large), (Request(2, 3), Request(5, 2)))
    for objective, value in ((Objective.MEAN_E2E, 30 + 60), (Objective.MEAN_TTFT, 10 + 30), (Objective.MAKESPAN, 60)):
        found = alone_bound_of_several(cluster, objective)
        assert found is not None
        assert found.value == value == brute_force(cluster, objective)
        assert proved_bound(cluster, FREE, objective, {"kind": "alone"}) == value


def test_times_between_tokens_of_several_machines_have_no_bound() -> None:
    cluster = equal_cluster(random.Random(1))
    for objective in (Objective.MEAN_TPOT, Objective.P99_TBT):
        assert alone_bound_of_several(cluster, objective) is None
        with pytest.raises(UnprovedError, match="does not bound"):
            proved_bound(cluster, FREE, objective, {"kind": "alone"})


def random_prices(rng: random.Random, cluster: Instance) -> dict[str, Any]:
    """Return a certificate of any windows and prices, near the time of a batch."""
    one = cluster.on(0)
    single, most = one.cost.linear_ps(1), one.limits.batch_tokens
    steepest = min((one.cost.linear_ps(x) + one.cost.prefill_req) // x for x in range(1, most + 1))
    runs = [
        [rng.randint(1, 4), rng.choice([0, rng.randint(0, 64), rng.randint(0, 400)]), rng.choice([0, steepest]), kept]
        for kept in [rng.choice([0, 32, 64, rng.randint(0, 64)]) for _ in range(rng.randint(0, 5))]
    ]
    return {
        "kind": "congestion",
        "window_ps": rng.randint(1, 6 * single),
        "grain_ps": rng.randint(1, 2 * single),
        "short_ps": rng.choice([0, rng.randint(0, 4 * single)]),
        "windows": [*runs, [1, 0, rng.choice([0, steepest]), rng.choice([0, 64, rng.randint(0, 64)])]],
    }


@pytest.mark.slow
def test_whatever_prices_are_stated_no_more_than_the_best_assignment_is_proved() -> None:
    rng, near = random.Random(2), 0
    for _ in range(1000):
        cluster = equal_cluster(rng)
        best = brute_force(cluster, E2E)
        for _ in range(2):
            value = proved_bound(cluster, FREE, E2E, random_prices(rng, cluster))
            assert value <= best
            near += 2 * value > best
    assert near > 50


def test_prices_by_hand() -> None:
    """Eight requests of three tokens, in batches of 10, where each run takes 5 more.

    Without prices and with ε = 0 a prompt is worth 1 and a decode 15, if it is alone. With ε = 1, a price of 3 for 45
    ps, and none later, a request keeps 45 or runs in these. Then a prompt is worth 3 and a decode 3·(10/8 + 5) = 18.75
    by eight, less than in any batch with prompts: 40.5 together. So all pay 8·40.5 = 324, less 3·45 for each machine.
    """
    machine = MachineGroup(
        limits=Limits(24, 8, 8), rules=Rules(eviction=False), cost=CostModel(10, 0, decode_req=5, prefill_req=5)
    )
    terms = {"kind": "congestion", "window_ps": 45, "grain_ps": 1, "short_ps": 0}
    for machines, value in ((1, 324 - 135), (2, 324 - 270)):
        cluster = cluster_of((replace(machine, count=machines),), (Request(1, 3),) * 8)
        assert proved_bound(cluster, FREE, E2E, terms | {"windows": [[1, 192, 1, 64], [1, 0, 1, 64]]}) == value
        assert proved_bound(cluster, FREE, E2E, terms | {"windows": [[1, 0, 1, 0]]}) == 8 * (1 + 2 * 15)


def busy(count: int, machines: int) -> Instance:
    """Return requests that come ten to a lifetime of each machine, in batches of 10 µs and 1 µs for every run."""
    requests = tuple(
        Request(200 + 70 * i % 400, 30 + 11 * i % 31, arrival_ps=100_000_000 * i // machines) for i in range(count)
    )
    cost = CostModel(10_000_000, 20_000, decode_kv=1_000, decode_req=1_000_000, prefill_sq=50)
    return Instance("busy", Limits(20_000, 512, 512), Rules(), cost, requests, replicas=machines)


def test_more_is_proved_than_by_bounds_that_see_no_queue_and_less_than_any_router_reaches() -> None:
    cluster = busy(80, 3)
    found, alone = congestion_bound(cluster, E2E), alone_bound_of_several(cluster, E2E)
    assert found is not None
    assert alone is not None
    assert proved_bound(cluster, FREE, E2E, found.certificate) == found.value > 1.3 * alone.value
    for router in ("round_robin", "least_requests", "least_kv", "random"):
        reached = simulate(cluster, "sarathi", E2E, router=router).value
        assert reached is not None
        assert found.value <= reached
    best = bound(cluster, E2E)
    assert (best.bound, best.method) == (found.value, "congestion")


def test_one_machine_alone_proves_no_less_and_unequal_machines_are_refused() -> None:
    cluster = busy(100, 2)
    found = congestion_bound(cluster, E2E)
    assert found is not None
    # On one machine the time of the other is not there, and requests are known to be alive on it.
    assert proved_bound(cluster.on(0), FREE, E2E, found.certificate) >= found.value
    other = MachineGroup(count=1, cost=replace(cluster.cost, base=cluster.cost.base + 1))
    unequal = Instance(
        "unequal", cluster.limits, cluster.rules, cluster.cost, cluster.requests, machine_groups=(MachineGroup(), other)
    )
    assert congestion_bound(unequal, E2E) is None
    with pytest.raises(UnprovedError, match="equal machines"):
        proved_bound(unequal, FREE, E2E, found.certificate)
    with pytest.raises(UnprovedError, match="bounds mean_e2e"):
        proved_bound(cluster, FREE, Objective.MAKESPAN, found.certificate)


def test_one_machine_written_as_several_has_the_same_bound_alone() -> None:
    cluster = busy(70, 1)
    known, found = alone_bound(cluster, E2E), alone_bound_of_several(cluster, E2E)
    assert known is not None
    assert found is not None
    assert found.value == known.value
