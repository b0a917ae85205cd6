"""Bounds where machines prefill or decode only, beside all schedules of tiny clusters, and cases worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest
from brute_cluster import TooManyError, best
from clusters import cluster_of
from tiny_clusters import random_tiny

from optsched import CacheRules, CostModel, Instance, Limits, Link, MachineGroup, Request, Role, Rules, replace
from optsched.check.certificates.roles import roles_bound as proved_bound
from optsched.check.reading import UnprovedError
from optsched.methods.bound import bound
from optsched.methods.simulate import simulate
from optsched.methods.solve import solve
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Status
from optsched_formulations.routing.roles import POOLS, roles_bound

SEARCHED = (Objective.MAKESPAN, Objective.MEAN_TTFT, Objective.MEAN_E2E)


def drawn(rng: random.Random) -> Instance:
    """Return a tiny cluster with roles, without caches and the rule migration; sometimes with two equal machines."""
    while True:
        tiny = random_tiny(rng, requests=2, longest=4)
        if not tiny.has_roles:
            continue
        groups = tuple(
            replace(
                group,
                cache=CacheRules(),
                rules=replace(group.rules or Rules(), migration=False),
                count=2 if rng.random() < 0.15 else 1,
            )
            for group in tiny.machine_groups
        )
        requests = tuple(replace(request, prefix=(), slo_e2e_ps=None) for request in tiny.requests)
        found = replace(tiny, machine_groups=groups, requests=requests)
        if not found.infeasibilities():
            return found


@pytest.mark.parametrize("objective", SEARCHED)
def test_no_schedule_is_below_the_bound(objective: Objective) -> None:
    rng = random.Random(objective.value)
    tried = tight = pooled = 0
    while tried < 30:
        cluster = drawn(rng)
        try:
            least = best(cluster, objective.value, 1_500).metrics()["objectives"][objective.value]
        except TooManyError:
            continue
        found = roles_bound(cluster, objective)
        assert found is not None
        assert found.value <= least
        assert proved_bound(cluster, objective, found.certificate) == found.value
        tried += 1
        tight += found.value == least
        pooled += "shares" in found.certificate
    assert tight > 8
    assert pooled > 0


def pair(*, link: Link, prefills: int = 1, decodes: int = 1, requests: tuple[Request, ...]) -> Instance:
    """Return machines with batches of 4 ps and 1 ps a token, whose cache holds 4 tokens."""
    limits, rules, cost = Limits(4, 4, 4), Rules(eviction=False), CostModel(base=4, token=1)
    groups = [
        MachineGroup(count, role, limits, rules, cost)
        for role, count in ((Role.PREFILL, prefills), (Role.DECODE, decodes))
    ]
    return replace(cluster_of(groups, requests), links=link)


def test_one_request_takes_its_prefill_its_move_and_its_decodes() -> None:
    """Prefill of 2 tokens 4 + 2 ps, move 3 + 2 × 5 ps, two decodes of 4 + 1 ps: 6 + 13 + 10 = 29."""
    cluster = pair(link=Link(base_ps=3, kv_ps=5), requests=(Request(2, 3),))
    for objective, value in ((Objective.MAX_E2E, 29), (Objective.MEAN_TTFT, 6), (Objective.MAKESPAN, 29)):
        found = roles_bound(cluster, objective)
        assert found is not None
        assert found.value == value
        assert best(cluster, objective.value).metrics()["objectives"][objective.value] == value


def test_a_request_with_one_token_does_not_move() -> None:
    cluster = pair(link=Link(base_ps=1000), requests=(Request(2, 1),))
    found = roles_bound(cluster, Objective.MAX_E2E)
    assert found is not None
    assert found.value == 6


def test_prefills_wait_for_each_other() -> None:
    """Prompts of 3 tokens fill the cache of 4: each has a batch, 7 ps; 3/4 of the base of 4, and 3, count for each.

    Five take ⌈5 × (3 + 3)⌉ = 30 ps of the one machine, after which the last one moves, 1 ps, and decodes, 5 ps. Alone
    all of it takes 13 ps.
    """
    cluster = pair(link=Link(base_ps=1), requests=(Request(3, 2),) * 5)
    found = roles_bound(cluster, Objective.MAKESPAN)
    assert found is not None
    assert (found.value, found.certificate["pool"], found.certificate["tail_ps"]) == (36, "first", 6)
    # On two machines 15 ps, and the same after it, if there are machines enough to decode.
    wide = pair(link=Link(base_ps=1), prefills=2, decodes=5, requests=(Request(3, 2),) * 5)
    found = roles_bound(wide, Objective.MAKESPAN)
    assert found is not None
    assert found.value == 21


def test_decodes_wait_for_each_other() -> None:
    """Each of 12 requests decodes 2 tokens, with 2 and 3 of the 4 blocks: 5/4 × 4 + 2 = 7 ps, rounded to 6."""
    cluster = pair(link=Link(), prefills=12, requests=(Request(1, 3),) * 12)
    found = roles_bound(cluster, Objective.MAKESPAN)
    assert found is not None
    # None decodes before 5 ps, when the first prefill has ended.
    assert (found.value, found.certificate["pool"]) == (5 + 12 * 6, "later")


@pytest.mark.parametrize("objective", SEARCHED)
def test_every_run_of_routers_is_above_the_bound(objective: Objective) -> None:
    rng = random.Random(3)
    for _ in range(10):
        requests = tuple(
            Request(rng.randint(1, 60), rng.randint(1, 20), arrival_ps=rng.randint(0, 400)) for _ in range(30)
        )
        limits, cost = Limits(200, 64, 64), CostModel(base=9, token=1, decode_kv=0, prefill_req=2)
        groups = [MachineGroup(rng.randint(1, 3), role, limits, Rules(), cost) for role in Role]
        cluster = replace(cluster_of(groups, requests), links=Link(base_ps=2, kv_ps=1))
        found = roles_bound(cluster, objective)
        assert found is not None
        assert proved_bound(cluster, objective, found.certificate) == found.value
        for router in ("disaggregated", "splitwise"):
            value = simulate(cluster, "vllm", objective, router=router).value
            assert value is not None
            assert found.value <= value


def test_solve_proves_what_a_router_reaches() -> None:
    cluster = pair(link=Link(base_ps=3, kv_ps=5), requests=(Request(2, 3), Request(2, 3, arrival_ps=100)))
    found = solve(cluster, "mean_e2e", time_limit=5)
    assert (found.status, found.badge, found.value) == (Status.OPTIMAL, Badge.CERTIFIED, 58)
    # 6 ps for the first token of each.
    assert bound(cluster, "mean_ttft").bound == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": "second"}, "pool is 'second', expected one of first, later, all"),
        ({"pool": None}, "pool is None"),
        ({"release_ps": 0.5}, "release_ps and tail_ps are"),
        ({"tail_ps": -1}, "release_ps and tail_ps are"),
        ({"shares": []}, "shares are \\[\\], expected one for each of 2 machines"),
        ({"shares": [1, 2]}, "shares\\[0\\] is 1, expected an object"),
    ],
)
def test_what_is_no_certificate_is_refused(change: dict[str, Any], message: str) -> None:
    cluster = pair(link=Link(base_ps=1), requests=(Request(3, 2),) * 5)
    found = roles_bound(cluster, Objective.MAKESPAN)
    assert found is not None
    with pytest.raises(UnprovedError, match=message):
        proved_bound(cluster, Objective.MAKESPAN, {**found.certificate, **change})


def test_a_certificate_that_claims_more_proves_no_more() -> None:
    """A later release, a longer tail or another pool proves what is true of it, never more than the least makespan."""
    cluster = pair(link=Link(base_ps=1), requests=(Request(3, 2), Request(3, 2, arrival_ps=4)))
    least = best(cluster, "makespan").metrics()["objectives"]["makespan"]
    shares = [{"piece_weights": [1], "share_weights": {"memory": 1, "tokens": 0, "runs": 0}, "prefill_step_ps": 0}] * 2
    for pool in POOLS:
        for release in range(40):
            for tail in range(20):
                certificate = {"shares": shares, "pool": pool, "release_ps": release, "tail_ps": tail}
                assert proved_bound(cluster, Objective.MAKESPAN, certificate) <= least
