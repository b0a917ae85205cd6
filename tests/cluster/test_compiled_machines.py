"""Machines in machine code beside the engine: the same schedules, notices and views, to the byte."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import numpy as np
import pytest

from optsched import CostModel, Instance, Limits, Request, Rules
from optsched.cache.blocks import CacheSetting
from optsched.check import check_schedule
from optsched.check.cluster.arrays import replay_machines
from optsched.methods.simulate import simulate
from optsched.model.batch_documents import batch_documents
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.cluster_metrics import cluster_metrics
from optsched.model.documents import dump
from optsched.model.domain import replace
from optsched.model.prefixes import PrefixNode, PrefixTree
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule
from optsched.policies.vllm import VLLM_V1, VLLM_V1_UNRESERVED
from optsched.routers import ROUTERS, find_router
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterFactory, RouterSetting
from optsched.simulator.engine import arrival_order
from optsched.simulator.routed import RoutedCluster

POLICIES = {"vllm_v1": VLLM_V1, "unreserved": VLLM_V1_UNRESERVED}


def drawn(seed: int) -> Instance:
    """A cluster with little memory, so that blocks are dropped and requests evicted; long outputs, so that it jumps."""
    rng = Random(seed)
    nodes = [PrefixNode(f"n{number}", rng.randint(1, 12)) for number in range(2)]
    for number in range(2, 9):
        nodes.append(PrefixNode(f"n{number}", rng.randint(1, 12), rng.choice(nodes).name))
    parents = {node.name: node.parent for node in nodes}
    tokens = {node.name: node.tokens for node in nodes}

    def path(name: str | None) -> tuple[str, ...]:
        return () if name is None else (*path(parents[name]), name)

    block, requests = rng.choice([1, 2, 4]), []
    for _ in range(rng.randint(5, 30)):
        prefix = path(rng.choice([None, *tokens]))
        prompt, output = rng.randint(1, 24), rng.choice([1, rng.randint(2, 5), rng.randint(10, 40)])
        output += max(0, sum(tokens[name] for name in prefix) - prompt - output)
        requests.append(Request(prompt, output, arrival_ps=rng.randrange(1 + 4000 * rng.randint(0, 1)), prefix=prefix))
    longest = max(request.peak_tokens for request in requests)
    rules = Rules(hybrid=rng.random() < 0.8, chunked_prefill=rng.random() < 0.8)
    least = 1 if rules.chunked_prefill else max(request.input + request.output for request in requests)
    batch = least + rng.randint(3, 40)
    limits = Limits(
        (longest // block + 1) * block + rng.choice([0, rng.randint(0, 60), 400]),
        batch,
        max(least, batch - rng.randint(0, 4)),
        rng.choice([None, 3]),
        block,
    )
    cost = CostModel(rng.randint(1, 20), rng.randint(0, 3), ((rng.randint(0, 30), 1),), rng.randint(0, 1), 1, 1, 1, 2)
    mode = rng.choice([CacheMode.PREFIX, CacheMode.ALL])
    cache = CacheRules(mode, rng.random() < 0.5)
    return Instance(
        "drawn", limits, rules, cost, tuple(requests), rng.randint(2, 3), prefixes=PrefixTree(tuple(nodes)), cache=cache
    )


def run(instance: Instance, policy: str, router: RouterFactory, seed: int, *, compiled: bool) -> tuple[Schedule, bool]:
    """Return the schedule, and whether machine code made it."""

    cluster = RoutedCluster(
        instance,
        lambda _: copy.deepcopy(POLICIES[policy]),
        router,
        CacheSetting(),
        seed=seed,
        routers=1,
        jumps=True,
        compiled=compiled,
    )
    schedule = cluster.run(arrival_order(instance))
    return schedule, schedule.machine_tables is not None


class Noting(Router):
    """Sends requests to machines at random; writes down all that it can see, and all that it is notified of."""

    def __init__(self, setting: RouterSetting, seen: list[tuple[object, ...]], looks: Random) -> None:
        self._machines, self._rng, self._seen, self._looks = setting.machines, setting.rng, seen, looks

    def route(self, request: RoutedRequest, views: list[MachineView]) -> int:  # type: ignore[override]
        for view in views:
            # Whether a router has asked for a prompt decides by which request dropped blocks are called.
            if self._looks.random() < 0.5:
                self._seen.append((request.index, view.machine, view.cached(request)))
            if self._looks.random() < 0.5:
                numbers = view.waiting, view.running, view.queued_tokens, view.filling_tokens, view.pending_tokens
                self._seen.append((*numbers, view.kv_used, view.kv_capacity, view.work_ps))
        return self._rng.randrange(self._machines)

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:
        self._seen.append(("first", request.index, machine, now_ps, hit))

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        self._seen.append(("last", request.index, machine, now_ps, ttft_ps, tpot_ps))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_router_sees_the_same_and_the_schedules_are_the_same(policy: str) -> None:
    happened = {"drops": 0, "evictions": 0, "hits": 0, "repeats": 0}
    for seed in range(60):
        instance = drawn(seed)
        if instance.infeasibilities():
            continue
        found = []
        for compiled in (True, False):
            seen: list[tuple[object, ...]] = []

            def noting(setting: RouterSetting, seen: list[tuple[object, ...]] = seen, seed: int = seed) -> Router:
                return Noting(setting, seen, Random(seed))

            schedule, is_compiled = run(instance, policy, noting, seed, compiled=compiled)
            assert is_compiled == compiled
            found.append((seen, schedule.routes, schedule.batches, schedule.length, schedule.evictions))
        assert found[0] == found[1]
        for batch in found[0][2]:
            happened["drops"] += len(batch.drop)
            happened["evictions"] += len(batch.evict)
            happened["hits"] += len(batch.hits)
            happened["repeats"] += batch.repeat > 1
    assert min(happened.values()) > 40, happened


@pytest.mark.parametrize("router", sorted(set(ROUTERS) - {"direct"}))
def test_all_routers_decide_the_same(router: str) -> None:
    for seed in range(300, 312):
        instance = drawn(seed)
        if not instance.infeasibilities():
            fast, _ = run(instance, "vllm_v1", find_router(router), seed, compiled=True)
            slow, _ = run(instance, "vllm_v1", find_router(router), seed, compiled=False)
            assert (fast.routes, fast.batches) == (slow.routes, slow.batches)


def test_all_say_the_same_of_tables_as_of_batches() -> None:
    """The checker, the metrics and documents."""
    checked = 0
    for seed in range(500, 560):
        instance = drawn(seed)
        if instance.infeasibilities():
            continue
        schedule, _ = run(instance, "vllm_v1", find_router("round_robin"), seed, compiled=True)
        tables = schedule.machine_tables
        assert tables is not None
        checked += replay_machines(instance, tables, schedule.routes, Restrictions()) is not None
        plain = Schedule(schedule.batches, schedule.routes)
        assert check_schedule(instance, schedule) == check_schedule(instance, plain)
        assert cluster_metrics(instance, schedule) == cluster_metrics(instance, plain)
        assert dump(batch_documents(schedule)) == dump(batch_documents(plain))
    assert checked > 40


def _later(column: np.ndarray[tuple[int], np.dtype[np.int64]], rng: Random, change: int) -> None:
    column[rng.randrange(len(column))] += change


def _copied(column: Any) -> Any:
    """Return a copy with the same layout: for another one the loop would be compiled again."""
    return column.copy() if column.flags.c_contiguous else np.repeat(column, 2)[::2]


def test_tables_that_are_changed_are_refused_as_the_readable_form_refuses_them() -> None:
    """What the array form says yes to, the readable form does."""
    refused = 0
    for seed in range(700, 760):
        rng, instance = Random(seed), drawn(seed)
        if instance.infeasibilities():
            continue
        schedule, _ = run(instance, "vllm_v1", find_router("round_robin"), seed, compiled=True)
        assert schedule.machine_tables is not None
        for column in (
            "start_ps",
            "end_ps",
            "repeat",
            "request",
            "tokens",
            "evict",
            "hit",
            "hit_tokens",
            "drop",
            "drop_number",
        ):
            tables = [table._replace(**{column: _copied(getattr(table, column))}) for table in schedule.machine_tables]
            changeable = [table for table in tables if len(getattr(table, column))]
            if not changeable:
                continue
            _later(getattr(rng.choice(changeable), column), rng, rng.choice([-1, 1]))
            if any(
                (table.request < 0).any() or (table.tokens < 1).any() or (table.repeat < 1).any() for table in tables
            ):
                continue
            found = replay_machines(instance, tables, schedule.routes, Restrictions())
            if found is None:
                refused += 1
                continue
            violations, _ = check_schedule(
                instance, Schedule(Schedule.of_machines(tables, ()).batches, schedule.routes)
            )
            assert not violations, column
    assert refused > 200


def test_a_large_instance_is_simulated_on_tables_and_a_policy_that_is_not_known_by_the_engine() -> None:
    """50,000 output tokens and more are worth loading compiled code."""
    requests = tuple(Request(10 + number % 7, 1000, arrival_ps=1000 * number) for number in range(60))
    instance = Instance(
        "large", Limits(6400, 64, 64, None, 16), Rules(), CostModel(5, 1), requests, 2, cache=CacheRules(CacheMode.ALL)
    )

    def is_table(schedule: Schedule | None) -> bool:
        return schedule is not None and schedule.machine_tables is not None

    assert is_table(simulate(instance, "vllm_v1", router="round_robin").schedule)
    assert not is_table(simulate(instance, "lpm", router="round_robin").schedule)
    assert not is_table(simulate(instance, "vllm_v1", router="round_robin", evictor="fifo").schedule)
    assert not is_table(simulate(replace(instance, requests=requests[:20]), "vllm_v1", router="round_robin").schedule)
