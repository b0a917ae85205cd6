"""Requests that move: examples by hand, and what holds of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random

import pytest
from playing import ready

from optsched import CostModel, Instance, Limits, MachineGroup, Request, Rules, replace, simulate
from optsched.check import check_schedule
from optsched.methods.routing import find_router
from optsched.model.cluster import Link, Role, ViewAge
from optsched.model.schedule import Assignment, Batch, Move
from optsched.routers.llumnix import Llumnix
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting
from optsched.simulator.cluster import run_cluster
from optsched.simulator.replica import Replica

COST = CostModel(base=10, token=1)
APART = MachineGroup(role=Role.PREFILL), MachineGroup(role=Role.DECODE)


def apart(*requests: Request, links: Link, groups: tuple[MachineGroup, ...] = APART) -> Instance:
    return Instance("apart", Limits(100, 100, 100), Rules(), COST, requests, machine_groups=groups, links=links)


THREE = Request(3, 3), Request(2, 2), Request(4, 1, arrival_ps=1)


def test_prefill_and_decode_apart_over_an_exclusive_link() -> None:
    instance = apart(*THREE, links=Link(base_ps=5, kv_ps=2, exclusive=True))
    result = simulate(instance, "vllm_v1", "mean_e2e", router="disaggregated")
    assert result.schedule is not None, result.message
    # Both prompts take 10 + 5. Request 0 moves in 5 + 2 × 3, and then request 1 in 5 + 2 × 2; request 2, 10 + 4, has
    # one token and stays. Request 0 decodes alone once, 10 + 1, and then both, 10 + 2.
    assert result.schedule.moves == (Move(0, 0, 1, 15, 26), Move(1, 0, 1, 26, 35))
    assert result.schedule.batches == (
        Batch(0, 15, ((0, 3), (1, 2))),
        Batch(15, 29, ((2, 4),)),
        Batch(26, 37, ((0, 1),), replica=1),
        Batch(37, 49, ((0, 1), (1, 1)), replica=1),
    )
    assert result.value == 49 + 49 + 28
    assert result.metrics is not None
    assert (result.metrics["moves"], result.metrics["moved_tokens"]) == (2, 5)
    rows = result.requests()
    assert [(row.routed_to, row.machine, row.moves, row.evictions) for row in rows] == [(0, 1, 1, 0)] * 2 + [
        (0, 0, 0, 0)
    ]
    assert [(row.ttft_ps, row.e2e_ps, row.tpot_ps) for row in rows] == [(15, 49, 17), (15, 49, 34), (28, 28, None)]
    assert result.metrics["load_ps"] == [15 + 14, 11 + 12]


@pytest.mark.parametrize(
    ("kv", "moves"),
    [
        # Both prompts are computed in 10 + 5. That hides 2 x 3 and 2 x 2, and the base is left.
        (2, (Move(0, 0, 1, 15, 20), Move(1, 0, 1, 15, 20))),
        # 5 + 9 x 3 - 15 and 5 + 9 x 2 - 15.
        (9, (Move(0, 0, 1, 15, 32), Move(1, 0, 1, 15, 23))),
    ],
)
def test_prefills_hide_what_is_copied_layer_by_layer(kv: int, moves: tuple[Move, ...]) -> None:
    instance = apart(*THREE, links=Link(base_ps=5, kv_ps=kv, layerwise=True))
    result = simulate(instance, "vllm_v1", router="disaggregated")
    assert result.schedule is not None, result.message
    assert result.schedule.moves == moves


def test_all_chunks_of_a_prefill_hide_a_copy() -> None:
    limits, link = Limits(100, 100, 4), Link(base_ps=5, kv_ps=6, layerwise=True)
    instance = replace(apart(Request(6, 2), links=link), limits=limits)
    result = simulate(instance, "sarathi", router="disaggregated")
    assert result.schedule is not None, result.message
    # 4 tokens take 10 + 4, and 2 take 10 + 2: 26 in all. The copy takes 5 + 6 x 6 - 26.
    assert result.schedule.moves == (Move(0, 0, 1, 26, 41),)


def test_a_decode_step_ends_what_a_prefill_hides() -> None:
    # The request leaves machine 0 at 40 with 43 tokens after 3 decode steps, not layer by layer: in 43.
    links = Link(kv_ps=1, layerwise=True)
    rules, cost = Rules(migration=True), CostModel(base=10, token=0)
    instance = Instance("late", Limits(100, 100, 100), rules, cost, (Request(40, 9),), replicas=2, links=links)
    result = simulate(instance, "vllm_v1", router=lambda _: OffTheFirst())
    assert result.schedule is not None, result.message
    assert result.schedule.moves == (Move(0, 0, 1, 40, 83),)


def test_two_moves_at_a_time() -> None:
    instance = apart(*THREE, links=Link(base_ps=5, kv_ps=2))
    result = simulate(instance, "vllm_v1", router="disaggregated")
    assert result.schedule is not None
    # Request 1 comes first, at 15 + 5 + 4, and has its last token at 35; request 0 comes during that.
    assert result.schedule.moves == (Move(0, 0, 1, 15, 26), Move(1, 0, 1, 15, 24))
    assert result.schedule.batches[-3:] == (
        Batch(15, 29, ((2, 4),)),
        Batch(24, 35, ((1, 1),), replica=1),
        Batch(35, 57, ((0, 1),), replica=1, repeat=2),
    )


def test_a_move_waits_for_room() -> None:
    limits = Limits(8, 100, 100)
    groups = (MachineGroup(role=Role.PREFILL), MachineGroup(role=Role.DECODE, limits=limits))
    requests = Request(4, 3), Request(4, 2)
    result = simulate(apart(*requests, links=Link(), groups=groups), "vllm_v1", router="splitwise")
    assert result.schedule is not None, result.message
    # Both have their first tokens at 18. Request 0 takes 4 + 1 of 8 tokens at once; it ends at 18 + 11 + 11 = 40.
    assert result.schedule.moves == (Move(0, 0, 1, 18, 18), Move(1, 0, 1, 40, 40))
    assert result.schedule.batches[-1] == Batch(40, 51, ((1, 1),), replica=1)


class AllOnTheFirst(Llumnix):
    """Rebalances only."""

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        return 0


def llumnix_on_the_first(_: RouterSetting) -> Router:
    return AllOnTheFirst()


def test_migration_from_the_fuller_machine() -> None:
    # Batches take 0.3 s. In the fourth one, at 1 s, the requests hold 8 + 3 and 7 + 3 of 22 tokens: (22 - 21) / 2 is
    # less than 3 steps, and machine 1 is empty. So request 1, the shorter one, leaves at 1.2 s with 10 tokens; it has 4
    # of 5 tokens then.
    slow, unit = CostModel(base=3 * 10**11, token=0), 10**9
    rules, links = Rules(migration=True), Link(kv_ps=unit)
    requests = Request(8, 5), Request(7, 5)
    instance = Instance("migration", Limits(22, 100, 100), rules, slow, requests, replicas=2, links=links)
    result = simulate(instance, "vllm_v1", router=llumnix_on_the_first)
    assert result.schedule is not None, result.message
    assert result.schedule.moves == (Move(1, 0, 1, 1200 * unit, 1210 * unit),)
    assert result.schedule.batches[-2:] == (
        Batch(1200 * unit, 1500 * unit, ((0, 1),)),
        Batch(1210 * unit, 1510 * unit, ((1, 1),), replica=1),
    )


WITH_RECORDS = (
    "rr",
    "rr_sjf",
    "fastserve",
    "fastserve_max",
    "multires",
    "sync_coupled",
    "econoserve_d",
    "econoserve_sd",
    "econoserve_sdo",
    "econoserve",
)
"""Policies that keep records of requests and memory."""


def drawn(seed: int) -> Instance:
    """A small cluster with roles, migration or both."""
    rng = Random(seed)
    requests = tuple(
        Request(rng.randint(1, 20), rng.randint(1, 25), arrival_ps=rng.randrange(900))
        for _ in range(rng.randint(3, 16))
    )
    migration = rng.random() < 0.5
    limits = Limits(rng.randint(46, 90), 64, 64, rng.choice([None, 3]), rng.choice([1, 2, 4]))
    cost = CostModel(base=rng.randint(0, 20), token=rng.randint(1, 3), decode_kv=rng.randint(0, 1))
    groups = (
        MachineGroup(rng.randint(1, 2), role=Role.PREFILL),
        MachineGroup(rng.randint(1, 2), role=Role.DECODE),
        MachineGroup(1, limits=replace(limits, kv_tokens=limits.kv_tokens + 9)),
    )
    links = Link(rng.randint(0, 9), rng.randint(0, 3), exclusive=rng.random() < 0.5, live=rng.random() < 0.5, stages=3)
    links = replace(links, layerwise=seed % 2 > 0)
    view = rng.choice([ViewAge(), ViewAge(50, 0), ViewAge(0, 30), ViewAge(40, 25)])
    rules = Rules(migration=migration, eviction=rng.random() < 0.8)
    return Instance(
        "drawn", limits, rules, cost, requests, machine_groups=groups[: rng.randint(2, 3)], links=links, view=view
    )


ROUTERS = ("disaggregated", "splitwise", "llumnix", "round_robin", "sal", "dynamo_kv")


@pytest.mark.parametrize(
    ("router", "policy"),
    [
        *product(ROUTERS, ["vllm_v1", "sarathi", "vllm_ef", "sarathi_ef"]),
        *product(["disaggregated", "llumnix", "shuffling"], WITH_RECORDS),
    ],
)
def test_moves_are_legal_with_jumps_or_without(router: str, policy: str) -> None:
    make = always_moving if router == "shuffling" else find_router(router)
    for seed in range(6):
        instance = drawn(seed)
        result = simulate(instance, policy, router=make, seed=seed)
        if not instance.rules.eviction and result.schedule is None:
            continue
        assert result.schedule is not None, result.message
        steps = run_cluster(instance, partial(ready, policy, seed=seed), make, seed=seed, jumps=False)
        assert (steps.routes, steps.moves) == (result.schedule.routes, result.schedule.moves)
        violations, metrics = check_schedule(instance, steps)
        assert not violations
        assert metrics == result.metrics


class OffTheFirst(AllOnTheFirst):
    """Requests are to leave machine 0 every 37 ps."""

    rebalance_ps = 37

    def rebalance(self, views: Sequence[MachineView]) -> Sequence[tuple[int, int]]:
        return [(0, 1)]


@pytest.mark.parametrize(
    ("output", "move", "batches"),
    [
        # Batches take 10. The request runs until 40 and has 43 tokens, which take 43. It runs on until 80; the batch
        # after that would not end by 83. Then the 4 new tokens follow, and it goes on at 87 with 8 of 9 tokens.
        (9, Move(0, 0, 1, 40, 87, stages_ps=(83, 87)), (Batch(87, 97, ((0, 1),), replica=1),)),
        # It has its last token at 60.
        (6, Move(0, 0, 1, 40, 60, aborted=True), ()),
        # It ends as the first stage does not: at 80.
        (8, Move(0, 0, 1, 40, 80, aborted=True), ()),
    ],
)
def test_a_live_move(output: int, move: Move, batches: tuple[Batch, ...]) -> None:
    links = Link(kv_ps=1, live=True)
    rules, cost = Rules(migration=True), CostModel(base=10, token=0)
    instance = Instance("live", Limits(100, 100, 100), rules, cost, (Request(40, output),), replicas=2, links=links)
    result = simulate(instance, "vllm_v1", router=lambda _: OffTheFirst())
    assert result.schedule is not None, result.message
    assert result.schedule.moves == (move,)
    assert tuple(batch for batch in result.schedule.batches if batch.replica == 1) == batches
    assert max(batch.end_ps for batch in result.schedule.batches if batch.replica == 0) <= 80


class AlwaysMoving(Llumnix):
    """Moves requests from any machine to any other, every 37 ps."""

    rebalance_ps = 37

    def __init__(self) -> None:
        self._rng = Random(7)

    def rebalance(self, views: Sequence[MachineView]) -> Sequence[tuple[int, int]]:
        return [tuple(self._rng.sample(range(len(views)), 2)) for _ in range(2)]  # type: ignore[misc]


def always_moving(_: RouterSetting) -> Router:
    return AlwaysMoving()


def test_live_moves_and_aborts_are_legal() -> None:
    stages, aborted = set[int](), 0
    for seed in range(60):
        rng = Random(seed)
        requests = tuple(Request(rng.randint(1, 40), rng.randint(1, 60), rng.randrange(400)) for _ in range(12))
        limits = Limits(rng.randint(110, 200), 64, 64, kv_block=rng.choice([1, 2]))
        links = Link(rng.randint(0, 20), rng.randint(0, 9), rng.random() < 0.5, live=True, stages=rng.randint(1, 3))
        view = rng.choice([ViewAge(), ViewAge(50, 0), ViewAge(0, 30)])
        cost = CostModel(base=rng.randint(1, 20), token=1)
        instance = Instance("live", limits, Rules(migration=True), cost, requests, 3, links=links, view=view)
        result = simulate(instance, ("vllm_v1", "sarathi")[seed % 2], router=always_moving)
        assert result.schedule is not None, (seed, result.message)
        stages.update(len(move.stages_ps) for move in result.schedule.moves if not move.aborted)
        aborted += sum(move.aborted for move in result.schedule.moves)
    assert stages == {1, 2, 3}
    assert aborted > 10


@dataclass(frozen=True)
class Keeping:
    """Counts its decisions, and says that it keeps records."""

    keeps_records = True

    def next_batch(self, replica: Replica) -> Assignment:
        job = (replica.running or replica.waiting)[0]
        return Assignment([(job.index, job.missing)], [])


def test_a_policy_of_records_that_is_told_nothing_is_refused() -> None:
    result = simulate(apart(*THREE, links=Link()), Keeping())
    assert result.message is not None
    assert "keeps records of requests or a plan, and cannot be notified" in result.message


@pytest.mark.parametrize("policy", WITH_RECORDS)
def test_policies_with_records_go_on_with_what_comes(policy: str) -> None:
    # Both prompts take 10 + 6. The requests move one after the other in 5 + 2 x 3. The first decodes once alone, until
    # 38 in 10 + 1, both once until 50 in 10 + 2, and the second once alone.
    instance = apart(Request(3, 3), Request(3, 3), links=Link(base_ps=5, kv_ps=2, exclusive=True))
    result = simulate(instance, policy, "mean_e2e", router="disaggregated")
    assert result.schedule is not None, result.message
    assert [(move.start_ps, move.end_ps) for move in result.schedule.moves] == [(16, 27), (27, 38)]
    assert result.value == 50 + 61


def test_a_policy_with_a_plan_is_refused() -> None:
    result = simulate(apart(*THREE, links=Link()), "planner")
    assert result.message is not None
    assert "keeps records of requests or a plan, and cannot be notified" in result.message
