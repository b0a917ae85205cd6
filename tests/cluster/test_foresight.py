"""What the evictor `belady` knows of the requests to come, and what machines share of it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from cache_rules import random_cached
from cluster_draws import drawn_cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import ready

from optsched import InfeasibleInstanceError, Instance, Limits, Schedule, replace
from optsched.cache.blocks import CacheSetting, uses_of
from optsched.cache.evictors import NEVER
from optsched.cache.foresight import BlockUses, Foresight
from optsched.methods.routing import find_router
from optsched.simulator.cluster import run_cluster
from optsched.simulator.replica import PolicyFailureError

BELADY = CacheSetting("belady")


@given(rng=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=76)
def test_the_next_use_is_by_the_first_request_that_has_not_started(rng: Random) -> None:
    """Two machines, one after the other, with one table: each beside a search of all requests."""
    instance = random_cached(rng)
    uses, block = BlockUses(instance), instance.limits.kv_block
    count = len(instance.requests)
    order = sorted(range(count), key=lambda index: instance.requests[index].arrival_ps)
    names = [uses.sequences.of(index).names for index in range(count)]
    on_paths = {name for index in order for name in names[index][: uses.sequences.of(index).path_blocks]}
    for machine in (Foresight(uses), Foresight(uses)):
        # Of each request its tokens, and whether it is expected; blocks that may be cached here.
        tokens, expected, known = [request.input for request in instance.requests], [True] * count, set(on_paths)
        for _ in range(20):
            index = rng.randrange(count)
            if expected[index]:
                machine.starts(index)
            else:
                tokens[index] = rng.randint(tokens[index], instance.requests[index].peak_tokens)
                machine.again(index, tokens[index])
            expected[index] = not expected[index]
            known |= set(names[index])
            for name in rng.sample(sorted(known, key=str), min(len(known), 4)):
                using = (
                    rank
                    for rank, other in enumerate(order)
                    if expected[other] and name in names[other][: (tokens[other] - 1) // block]
                )
                assert machine(name) == next(using, NEVER)


def test_machines_with_blocks_of_one_size_share_one_table() -> None:
    instance = random_cached(Random(1))
    other = replace(instance, limits=Limits(96, 96, 96, kv_block=8))
    first, second, third = uses_of([instance, instance, other], BELADY)
    assert first is second
    assert third is not None
    assert third is not first
    assert uses_of([instance], CacheSetting("lru")) == [None]


@pytest.mark.parametrize("router", ["round_robin", "e2"])
def test_schedules_are_those_of_machines_that_share_nothing(router: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = 0
    for seed in range(30):
        instance = drawn_cluster(seed)
        shared = _run(instance, router)
        with monkeypatch.context() as patched:
            patched.setattr("optsched.simulator.routed.uses_of", _nothing_shared)
            assert _run(instance, router) == shared
        dropped += shared is not None and any(batch.drop for batch in shared.batches)
    assert dropped > 5


def _nothing_shared(instances: Sequence[Instance], setting: CacheSetting) -> list[None]:
    return [None] * len(instances)


def _run(instance: Instance, router: str) -> Schedule | None:
    try:
        return run_cluster(instance, lambda alone: ready("vllm_v1", alone), find_router(router), setting=BELADY)
    except (InfeasibleInstanceError, PolicyFailureError):
        return None
