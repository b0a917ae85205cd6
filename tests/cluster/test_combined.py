"""Routers, policies, evictors, views, roles and moves in random combinations, on random clusters.

    PYTHONPATH=tests/support python tests/cluster/test_combined.py 0 2000

plays as many clusters as asked for, from the first seed on.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from brute_cluster import judged
from cluster_draws import drawn_cluster
from judging import assert_same
from tiny_clusters import mutated

from optsched import Instance, Objective, Schedule, check_schedule
from optsched.cache.blocks import EVICTOR_NAMES, CacheSetting
from optsched.methods.policies import policy_names, policy_of, ready_policy
from optsched.model.cluster_metrics import cluster_metrics
from optsched.model.restrictions import Restrictions
from optsched.routers import ROUTERS, find_router
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting
from optsched.simulator.cluster import run_cluster
from optsched.simulator.replica import Policy, PolicyFailureError
from optsched.simulator.routed import DecisionRecord

SHAKY = "shaky"
NAMES = (*[SHAKY] * 8, *(name for name in ROUTERS if name != "direct"))


class Shaky(Router):
    """Routes and moves at random, and lets requests migrate all the time."""

    rebalance_ps = 5

    def __init__(self, setting: RouterSetting) -> None:
        self._rng = setting.rng

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        return self._rng.choice(views).machine

    def move(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        return self._rng.choice(views).machine

    def rebalance(self, views: Sequence[MachineView]) -> Sequence[tuple[int, int]]:
        pairs = [self._rng.sample(range(len(views)), 2) for _ in range(2)]
        return [(source, target) for source, target in pairs]


class Game:
    """What plays a cluster: a router, a policy and an evictor, chosen at random."""

    def __init__(self, instance: Instance, seed: int, rng: Random) -> None:
        self.instance, self.seed = instance, seed
        self.router, self.policy = rng.choice(NAMES), rng.choice(policy_names())
        if self.router == "e2_code" and len({(each.limits, each.cost) for each in instance.machines}) > 1:
            self.router = "e2"
        evictor = rng.choice(EVICTOR_NAMES) if instance.is_cached else "lru"
        self.setting = CacheSetting(evictor, whole_nodes=evictor != "vllm" and rng.random() < 0.3)
        self.routers = rng.choice([1, 1, 2])

    def __repr__(self) -> str:
        return f"seed {self.seed}: {self.router}, {self.policy}, {self.setting.name}, {self.routers} routers"

    def played(self, *, jumps: bool = True, record: DecisionRecord | None = None) -> Schedule | None:
        """Return the schedule; None where the policy cannot serve this."""
        runner, _ = policy_of(self.policy, None)

        def made(alone: Instance) -> Policy:
            return ready_policy(copy.deepcopy(runner), alone, Objective.MAKESPAN, Restrictions(), self.seed)

        router = Shaky if self.router == SHAKY else find_router(self.router)
        try:
            return run_cluster(
                self.instance, made, router, setting=self.setting, seed=self.seed, routers=self.routers, jumps=jumps,
                record=record,
            )  # fmt: skip
        except PolicyFailureError:
            return None


def play(seed: int) -> Counter[str]:
    """Play a cluster four times, and count what was seen; fails where two disagree."""
    seen: Counter[str] = Counter()
    instance, rng = drawn_cluster(seed), Random(seed)
    if instance.infeasibilities():
        return seen
    for _ in range(4):
        game = Game(instance, seed, rng)
        schedule, single = game.played(), game.played(jumps=False)
        assert (schedule is None) == (single is None), game
        if schedule is None or single is None:
            seen["failures"] += 1
            continue
        violations, metrics = check_schedule(instance, schedule)
        assert violations == [], game
        assert metrics is not None
        assert cluster_metrics(instance, schedule) == metrics, game
        assert check_schedule(instance, single) == ([], metrics), game
        replayed = judged(instance, single)
        assert not isinstance(replayed, str), (game, replayed)
        assert_same(metrics, replayed)
        # A record of decisions, for which all machines are looked at now, changes nothing.
        recorded = game.played(record=DecisionRecord([]))
        assert recorded is not None, game
        assert check_schedule(instance, recorded) == ([], metrics), game
        seen["schedules"] += 1
        seen["moves"] += metrics["moves"]
        seen["aborted"] += sum(move.aborted for move in single.moves)
        seen["hits"] += metrics["hit_tokens"] > 0
        seen["recomputed"] += metrics["recomputed_tokens"] > 0
        seen["drops for moves"] += any(move.drop for move in single.moves)
        changed = mutated(single, rng, instance)
        verdict, (found, _) = judged(instance, changed), check_schedule(instance, changed)
        assert isinstance(verdict, str) == bool(found), (game, verdict, found)
        seen["refused"] += isinstance(verdict, str)
    return seen


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_combinations(first: int) -> None:
    seen = sum((play(seed) for seed in range(first, first + 20)), Counter[str]())
    assert seen["schedules"] > seen["failures"]
    assert min(seen["moves"], seen["hits"], seen["recomputed"], seen["refused"]) > 0


if __name__ == "__main__":
    begin, count = map(int, sys.argv[1:3])
    totals = sum(map(play, range(begin, begin + count)), Counter[str]())
    sys.stdout.write(", ".join(f"{amount} {name}" for name, amount in totals.items()) + "\n")
