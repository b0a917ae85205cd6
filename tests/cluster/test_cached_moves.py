"""Requests that move between machines that cache: by hand, and what holds of every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from playing import ready

from optsched import (
    CacheMode,
    CacheRules,
    CostModel,
    Instance,
    Limits,
    Link,
    MachineGroup,
    PrefixNode,
    PrefixTree,
    Request,
    Role,
    Rules,
    Schedule,
    ViewAge,
    check_schedule,
    replace,
    simulate,
)
from optsched.cache.blocks import EVICTOR_NAMES, CacheSetting
from optsched.methods.routing import find_router
from optsched.model.schedule import Batch, Move
from optsched.routers.router import MachineView, RoutedRequest, Router, RouterSetting
from optsched.simulator.cluster import run_cluster

COST = CostModel(base=10, token=1)
APART = MachineGroup(role=Role.PREFILL), MachineGroup(role=Role.DECODE)
TREE = PrefixTree((PrefixNode("a", 4), PrefixNode("b", 2, "a"), PrefixNode("c", 3)))


def apart(*requests: Request, capacity: int = 100, mode: CacheMode = CacheMode.PREFIX) -> Instance:
    """One machine that prefills and one that decodes, each with a cache; a copy takes 5 + 2 a token."""
    groups = APART[0], replace(APART[1], limits=Limits(capacity, 100, 100, kv_block=2))
    return Instance(
        "apart",
        Limits(100, 100, 100, kv_block=2),
        Rules(),
        COST,
        requests,
        machine_groups=groups,
        links=Link(5, 2),
        prefixes=TREE,
        cache=CacheRules(mode),
    )


def schedule_of(instance: Instance) -> Schedule:
    result = simulate(instance, "vllm_v1", router="disaggregated")
    assert result.schedule is not None, result.message
    return result.schedule


def test_what_the_target_holds_is_not_copied() -> None:
    first, second = Request(5, 2, prefix=("a",)), Request(7, 2, 40, prefix=("a", "b"))
    schedule = schedule_of(apart(first, second))
    # Request 0 has its first token at 10 + 5 and moves in 5 + 2 × 5. When it has come, blocks 0 and 1 are cached. Its
    # second token takes 10 + 1. Request 1 finds them on machine 0, too, so that it runs 3 of 7 tokens, 10 + 3. It moves
    # with 7 tokens, 4 of which are there: 5 + 2 × 3.
    assert schedule.batches == (
        Batch(0, 15, ((0, 5),)),
        Batch(30, 41, ((0, 1),), replica=1),
        Batch(40, 53, ((1, 3),), hits=((1, 4),)),
        Batch(64, 75, ((1, 1),), replica=1),
    )
    assert schedule.moves == (Move(0, 0, 1, 15, 30), Move(1, 0, 1, 53, 64))
    result = simulate(apart(first, second), "vllm_v1", router="disaggregated")
    assert result.metrics is not None
    assert (result.metrics["moved_tokens"], result.metrics["hit_tokens"]) == (5 + 3, 4)


def test_what_a_batch_under_way_completes_is_not_held_yet() -> None:
    # Both take 10 + 5 + 5 together (request 1 finds nothing, as request 0 completes in the same batch), and both move
    # in 5 + 2 × 5, as neither has come when the other starts.
    same = Request(5, 3, prefix=("a",))
    schedule = schedule_of(apart(same, same))
    assert schedule.moves == (Move(0, 0, 1, 20, 35), Move(1, 0, 1, 20, 35))
    # With `all`, the request that has come first completes its block of tokens 4 and 5 in the batch from 35 on; that is
    # its own. In mode `all` the third request finds 4 tokens.
    late = Request(5, 3, arrival_ps=21, prefix=("a",))
    schedule = schedule_of(apart(same, same, late, mode=CacheMode.ALL))
    # It finds 4 tokens on machine 0, runs one, and moves at 21 + 11 = 32, when none has come; it copies 5.
    assert schedule.moves[2] == Move(2, 0, 1, 32, 47)


def test_a_move_drops_what_its_target_has_no_room_for() -> None:
    # 8 tokens, 4 blocks, at machine 1. Request 0 leaves blocks 0 and 1 of node a there. Request 1 needs 3 + 1 tokens, 2
    # blocks, for which there is room; request 2 needs 6 + 1 tokens, 4 blocks, and drops what is left.
    requests = Request(4, 2, prefix=("a",)), Request(3, 2, 50, prefix=("c",)), Request(6, 2, 150)
    schedule = schedule_of(apart(*requests, capacity=8))
    # Request 1: 10 + 3 to 63, 5 + 6 to 74, 11 to 85. Block 0 of node c is cached then, tokens 0 and 1. Request 2: 10 +
    # 6 to 166, 5 + 12 to 183. It copies 6 tokens into 3 blocks; cached are 3 of 4 blocks. Used last is node c.
    assert schedule.moves == (
        Move(0, 0, 1, 14, 27),
        Move(1, 0, 1, 63, 74),
        Move(2, 0, 1, 166, 183, drop=((0, 1), (0, 0))),
    )
    # The next token takes the fourth block, for which block 0 of node c is dropped.
    assert schedule.batches[-1] == Batch(183, 194, ((2, 1),), replica=1, drop=((1, 0),))


def drawn(seed: int) -> Instance:
    """Machines with roles, migration, caches, short memory, and requests that share prefixes."""
    rng = Random(seed)
    nodes = PrefixNode("a", 6), PrefixNode("b", 5, "a"), PrefixNode("c", 3, "a"), PrefixNode("d", 7)
    paths = (), ("a",), ("a", "b"), ("a", "c"), ("d",)
    requests = []
    for _ in range(rng.randint(3, 16)):
        request = Request(rng.randint(11, 20), rng.randint(1, 20), rng.randrange(700), prefix=rng.choice(paths))
        requests.append(request)
    migration = rng.random() < 0.5
    limits = Limits(rng.randint(44, 70), 64, 64, rng.choice([None, 3]), rng.choice([1, 2, 4]))
    cost = CostModel(base=rng.randint(0, 20), token=rng.randint(1, 3), decode_kv=rng.randint(0, 1))

    def group(role: Role, count: int) -> MachineGroup:
        cache = CacheRules(rng.choice([CacheMode.PREFIX, CacheMode.ALL, CacheMode.ALL]), rng.random() < 0.5)
        if rng.random() < 0.1:
            cache = CacheRules()
        return MachineGroup(count, role, replace(limits, kv_tokens=rng.randint(44, 70)), cache=cache)

    groups = group(Role.PREFILL, rng.randint(1, 2)), group(Role.DECODE, rng.randint(1, 2)), group(Role.BOTH, 1)
    links = Link(rng.randint(0, 9), rng.randint(0, 3), exclusive=rng.random() < 0.5, live=rng.random() < 0.3)
    links = replace(links, layerwise=seed % 3 > 1)
    view = rng.choice([ViewAge(), ViewAge(50, 0), ViewAge(0, 30), ViewAge(40, 25)])
    rules = Rules(migration=migration, eviction=rng.random() < 0.8)
    return Instance(
        "drawn",
        limits,
        rules,
        cost,
        tuple(requests),
        machine_groups=groups[: rng.randint(2, 3)],
        links=links,
        view=view,
        prefixes=PrefixTree(nodes),
    )


class Shuffling(Router):
    """Routes to the fewest tokens that are not cached, and moves requests all the time."""

    rebalance_ps = 37

    def __init__(self, setting: RouterSetting) -> None:
        self._rng = setting.rng

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        return min(views, key=lambda view: view.kv_used - view.cached(request)).machine

    def rebalance(self, views: Sequence[MachineView]) -> Sequence[tuple[int, int]]:
        source, target = self._rng.sample(range(len(views)), 2)
        return [(source, target)]


@pytest.mark.parametrize("router", ["disaggregated", "llumnix", "e2", "e2_code", "shuffling"])
@pytest.mark.parametrize("policy", ["vllm_v1", "sarathi", "vllm_ef", "lpm"])
def test_moves_between_caches_are_legal_with_jumps_or_without(router: str, policy: str) -> None:
    seen: Counter[str] = Counter()
    make = Shuffling if router == "shuffling" else find_router(router)
    for seed in range(7):
        instance, evictor = drawn(seed), EVICTOR_NAMES[seed % len(EVICTOR_NAMES)]
        if router == "e2_code":
            # It takes machines that differ in neither limits nor cost.
            groups = tuple(replace(group, limits=None) for group in instance.machine_groups)
            instance = replace(instance, machine_groups=groups)
        if instance.infeasibilities():
            continue
        # It is checked there, and the metrics are compared.
        result = simulate(instance, policy, router=make, evictor=evictor, seed=seed)
        if not instance.rules.eviction and result.schedule is None:
            continue
        assert result.schedule is not None, (seed, result.message)
        setting = CacheSetting(evictor)
        steps = run_cluster(instance, lambda alone: ready(policy, alone), make, setting=setting, seed=seed, jumps=False)
        assert (steps.routes, steps.moves) == (result.schedule.routes, result.schedule.moves), seed
        violations, metrics = check_schedule(instance, steps)
        assert not violations
        assert metrics == result.metrics
        assert metrics is not None
        seen["moves"] += metrics["moves"]
        seen["drops"] += sum(bool(move.drop) for move in steps.moves)
        # Each copies the prompt at least, but for what is there.
        links = instance.links
        whole = [links.base_ps + links.kv_ps * instance.requests[move.request].input for move in steps.moves]
        seen["shorter"] += sum(
            move.end_ps - move.start_ps < least for move, least in zip(steps.moves, whole, strict=True)
        )
    assert min(seen["moves"], seen["drops"], seen["shorter"]) > 0, seen
