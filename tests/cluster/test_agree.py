"""Simulated clusters: legal for the checker and for the plainest replay, and never better than the best of all."""

from __future__ import annotations

import copy
import random
from collections import Counter

import pytest
from brute_cluster import TooManyError, best, judged
from judging import assert_same
from tiny_clusters import random_tiny

from optsched import CacheRules, Instance, Objective, Role, Schedule, check_schedule, replace
from optsched.methods.policies import policy_of, ready_policy
from optsched.model.restrictions import Restrictions
from optsched.routers import ROUTERS, find_router
from optsched.simulator.cluster import run_cluster
from optsched.simulator.replica import Policy, PolicyFailureError

OBJECTIVES = ("makespan", "mean_ttft", "max_ttft", "mean_e2e", "weighted_e2e", "slo_misses", "p50_e2e", "max_load")
POLICIES = ("fcfs", "vllm", "sarathi", "srtf", "lpm")
NAMES = tuple(name for name in ROUTERS if name != "direct")


def drawn(seed: int, *, caches: bool, moves: bool) -> Instance:
    """Return two machines: with caches or not, and with roles, links and migration, or without moves."""
    rng = random.Random(seed)
    while True:
        # All schedules can be tried of small ones only; memory is short for larger ones.
        searched = seed % 3 > 0
        instance = random_tiny(rng, requests=2 if searched else 3, longest=2 if searched else 5)
        if not instance.is_distributed:
            continue
        groups = []
        for machine in instance.machine_groups:
            rules, limits = machine.rules or instance.rules, machine.limits or instance.limits
            cache, role = machine.cache, machine.role
            if caches:
                limits = limits if searched else replace(limits, kv_tokens=8)
            else:
                cache = CacheRules()
            if not moves:
                rules, role = replace(rules, migration=False), Role.BOTH
            groups.append(replace(machine, role=role, rules=rules, limits=limits, cache=cache))
        requests = instance.requests
        if searched:
            requests = tuple(replace(request, arrival_ps=0) for request in requests)
        instance = replace(instance, machine_groups=tuple(groups), requests=requests)
        if not instance.infeasibilities():
            return instance


def alike(instance: Instance) -> Instance:
    """Return the instance with machines that differ in neither limits nor cost; `e2_code` takes no others."""
    first, second = instance.machine_groups
    return replace(instance, machine_groups=(first, replace(second, limits=first.limits, cost=first.cost)))


def schedule_of(instance: Instance, router: str, policy: str, seed: int, *, jumps: bool) -> Schedule | None:
    """Return what a router and a policy do; None where the policy cannot serve this."""
    runner, _ = policy_of(policy, None)

    def made(alone: Instance) -> Policy:
        return ready_policy(copy.deepcopy(runner), alone, Objective.MAKESPAN, Restrictions(), seed)

    try:
        return run_cluster(instance, made, find_router(router), seed=seed, jumps=jumps)
    except PolicyFailureError:
        return None


@pytest.mark.parametrize(("caches", "moves"), [(True, False), (False, True), (True, True)])
def test_simulated_clusters_are_legal_and_never_better_than_the_best(*, caches: bool, moves: bool) -> None:
    """Every router, with each policy in turn."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        instance = drawn(seed, caches=caches, moves=moves)
        objective, optimum = OBJECTIVES[seed % len(OBJECTIVES)], None
        if seed % 3:
            try:
                world = best(instance, objective, 1500)
            except TooManyError:
                pass
            else:
                _, metrics = check_schedule(instance, world.schedule())
                assert metrics is not None
                optimum = metrics["objectives"][objective]
                seen["searches"] += 1
        for number, router in enumerate(NAMES):
            policy = POLICIES[(seed + number) % len(POLICIES)]
            where = (seed, router, policy)
            played = alike(instance) if router == "e2_code" else instance
            if played.infeasibilities():
                continue
            schedule = schedule_of(played, router, policy, seed, jumps=True)
            single = schedule_of(played, router, policy, seed, jumps=False)
            assert (schedule is None) == (single is None), where
            if schedule is None or single is None:
                seen["failures"] += 1
                continue
            violations, metrics = check_schedule(played, schedule)
            assert violations == [], where
            assert metrics is not None
            replayed = judged(played, single)
            assert not isinstance(replayed, str), (where, replayed)
            assert_same(metrics, replayed)
            seen["schedules"] += 1
            seen["hits"] += sum(bool(batch.hits) for batch in single.batches)
            seen["drops"] += sum(bool(batch.drop) for batch in single.batches)
            seen["moves"] += len(single.moves)
            seen["repeats"] += any(batch.repeat > 1 for batch in schedule.batches)
            if optimum is not None and played is instance:
                value = metrics["objectives"][objective]
                assert value >= optimum, where
                seen["compared"] += 1
                seen["as good"] += value == optimum
    assert seen["searches"] >= (12 if caches and moves else 14)
    assert seen["schedules"] > 20 * seen["failures"]
    assert min(seen["repeats"], seen["compared"] - seen["as good"]) > 50
    assert not caches or min(seen["hits"], seen["drops"]) >= 20
    assert not moves or seen["moves"] >= 200
