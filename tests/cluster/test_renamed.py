"""Equal machines under other names: the schedule changes by the names only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as changed
from functools import partial
from random import Random
from typing import Any

import pytest
from playing import ready

from optsched import (
    CacheMode,
    CacheRules,
    CostModel,
    Instance,
    Limits,
    Link,
    PrefixNode,
    PrefixTree,
    Request,
    Rules,
    Schedule,
    ViewAge,
    replace,
)
from optsched.methods.routing import find_router
from optsched.routers import ROUTERS
from optsched.routers.router import MachineView, Piece, RoutedRequest, Router, RouterFactory, RouterSetting
from optsched.simulator.cluster import run_cluster

MACHINES = 3


class Named:
    """A machine under another name."""

    def __init__(self, view: MachineView, machine: int) -> None:
        self._view, self.machine = view, machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


class Renamed(Router):
    """A router that knows machine ``names[k]`` as k; so ties, too, are decided as if that were its index."""

    def __init__(self, router: Router, names: Sequence[int]) -> None:
        self._router, self._names = router, names

    def _shown(self, views: Sequence[MachineView]) -> list[MachineView]:
        return [Named(views[name], place) for place, name in enumerate(self._names)]

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        return self._names[self._router.route(request, self._shown(views))]

    @property
    def rebalance_ps(self) -> int:
        return self._router.rebalance_ps

    def rebalance(self, views: Sequence[MachineView]) -> Sequence[tuple[int, int]]:
        pairs = self._router.rebalance(self._shown(views))
        return [(self._names[source], self._names[target]) for source, target in pairs]

    def first_token(self, request: RoutedRequest, machine: int, now_ps: int, hit: int) -> None:
        self._router.first_token(request, self._names.index(machine), now_ps, hit)

    def finished(self, request: RoutedRequest, machine: int, now_ps: int, ttft_ps: int, tpot_ps: int | None) -> None:
        self._router.finished(request, self._names.index(machine), now_ps, ttft_ps, tpot_ps)

    def dropped(self, machine: int, prompt: Sequence[Piece], kept: int, now_ps: int) -> None:
        self._router.dropped(self._names.index(machine), prompt, kept, now_ps)


def renamed(factory: RouterFactory, names: Sequence[int]) -> RouterFactory:
    def make(setting: RouterSetting) -> Router:
        return Renamed(factory(setting), names)

    return make


def in_order(schedule: Schedule, names: Sequence[int]) -> tuple[Any, ...]:
    """Return routes, batches and moves with machine k called ``names[k]``, in an order of their own."""
    batches = [changed(batch, replica=names[batch.replica]) for batch in schedule.batches]
    moves = [changed(move, source=names[move.source], target=names[move.target]) for move in schedule.moves]
    return (
        [names[route] for route in schedule.routes],
        sorted(batches, key=lambda batch: (batch.replica, batch.start_ps)),
        sorted(moves, key=lambda move: (move.start_ps, move.request)),
    )


def drawn(seed: int) -> Instance:
    """Three equal machines, with caches, migration, or both."""
    rng = Random(seed)
    paths = (), ("a",), ("a", "b"), ("c",)
    requests = tuple(
        Request(rng.randint(10, 20), rng.randint(1, 20), rng.randrange(600), prefix=rng.choice(paths))
        for _ in range(14)
    )
    cost = CostModel(base=rng.randint(5, 20), token=rng.randint(1, 3), decode_kv=rng.randint(0, 1))
    instance = Instance(
        "equal",
        Limits(rng.randint(45, 60), 64, 64, kv_block=rng.choice([1, 2])),
        Rules(migration=seed % 2 > 0),
        cost,
        requests,
        MACHINES,
        links=Link(rng.randint(0, 5), rng.randint(0, 2), exclusive=rng.random() < 0.5),
        prefixes=PrefixTree((PrefixNode("a", 5), PrefixNode("b", 4, "a"), PrefixNode("c", 8))),
        view=rng.choice([ViewAge(), ViewAge(every_ps=40), ViewAge(delay_ps=25)]),
    )
    return replace(instance, cache=CacheRules(CacheMode.ALL)) if seed % 3 else instance


class Shuffling(Router):
    """Migrates from the machine with the most requests to that with the fewest."""

    rebalance_ps = 41

    def route(self, request: RoutedRequest, views: Sequence[MachineView]) -> int:
        return min(views, key=lambda view: (view.waiting + view.running, -view.kv_used)).machine

    def rebalance(self, views: Sequence[MachineView]) -> Sequence[tuple[int, int]]:
        order = sorted(views, key=lambda view: view.waiting + view.running)
        return [(order[-1].machine, order[0].machine)]


@pytest.mark.parametrize("name", [*sorted(set(ROUTERS) - {"direct"}), "shuffling"])
def test_other_names_of_equal_machines_change_nothing_but_names(name: str) -> None:
    factory: RouterFactory = (lambda _: Shuffling()) if name == "shuffling" else find_router(name)
    policies = "vllm_v1", "sarathi", "rr"
    moves = 0
    for seed in range(6):
        instance, policy = drawn(seed), partial(ready, policies[seed % 3])
        plain = run_cluster(instance, policy, factory, seed=seed)
        moves += len(plain.moves)
        for names in ((1, 2, 0), (2, 1, 0)):
            other = run_cluster(instance, policy, renamed(factory, names), seed=seed)
            assert in_order(other, range(MACHINES)) == in_order(plain, names), (seed, names)
    assert (moves > 0) == (name == "shuffling")
