"""What several caches find at most, against all assignments and all ways to fill tiny caches."""

from __future__ import annotations

import itertools
import random

import pytest
from test_prefix_cache import Paths, random_paths

from optsched import CostModel, InputError
from optsched.check.certificates.prefix_cache import Service, largest_load_bound, saved_bound
from optsched.check.reading import UnprovedError
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.prefixes import PrefixNode, PrefixTree
from optsched_formulations.eviction.pooled import pooled_use
from optsched_formulations.eviction.prefix_cache import most_saved
from optsched_formulations.eviction.service import BlockValue, served_in, service_order, token_value

Kept = frozenset[int]


def all_savings(paths: Paths, capacities: tuple[int, ...], value: BlockValue) -> set[tuple[int, ...]]:
    """What each machine can save, for all assignments and all sets of blocks kept after every request."""
    parent = {block: path[depth - 1] if depth else None for path in paths for depth, block in enumerate(path)}
    states = {(tuple(Kept() for _ in capacities), tuple(0 for _ in capacities))}
    for path in paths:
        following = set()
        for (kept, saved), machine in itertools.product(states, range(len(capacities))):
            if len(path) > capacities[machine]:
                continue
            hits = 0
            while hits < len(path) and path[hits] in kept[machine]:
                hits += 1
            gained = (*saved[:machine], saved[machine] + value.of(hits), *saved[machine + 1 :])
            others = [block for block in kept[machine] if block not in path]
            for size in range(min(capacities[machine] - len(path), len(others)) + 1):
                for chosen in itertools.combinations(others, size):
                    after = frozenset(chosen) | frozenset(path)
                    if all(parent[block] is None or parent[block] in after for block in after):
                        following.add(((*kept[:machine], after, *kept[machine + 1 :]), gained))
        states = following
    return {saved for _, saved in states}


@pytest.mark.parametrize("value", [token_value(16), BlockValue(3, 1)], ids=["tokens", "time"])
def test_no_assignment_finds_more_and_some_machine_has_the_load(value: BlockValue) -> None:
    rng = random.Random(1)
    tight = tight_loads = 0
    for _ in range(150):
        paths = random_paths(rng, 5, rng.randint(3, 5))
        longest = max(map(len, paths))
        capacities = tuple(longest + rng.randint(0, 1) for _ in range(2))
        total = sum(value.of(len(path)) for path in paths)
        found = pooled_use(service_order(paths), capacities, value, total)
        lengths = list(map(len, paths))
        pooled = Service(paths, lengths, lengths, sum(capacities), value.linear, value.square)
        assert saved_bound(pooled, found.use.certificate) == found.use.bound
        assert largest_load_bound(pooled, total, 2, found.use.certificate) == found.largest_load
        most = max(map(sum, all_savings(paths, capacities, value)))
        assert most <= found.use.bound
        tight += most == found.use.bound
        # Every assignment's loads: what a machine's prompts take on nothing, less what it finds of them.
        least = least_largest_load(paths, capacities, value)
        assert found.largest_load <= least
        tight_loads += found.largest_load == least
    assert tight > 60
    assert tight_loads > 5


def least_largest_load(paths: Paths, capacities: tuple[int, ...], value: BlockValue) -> int:
    """The least largest load over all assignments, each machine by itself with its requests in order."""
    best = None
    for assigned in itertools.product(range(len(capacities)), repeat=len(paths)):
        loads = []
        for machine, capacity in enumerate(capacities):
            own = [path for path, chosen in zip(paths, assigned, strict=True) if chosen == machine]
            most = max((saved[0] for saved in all_savings(own, (capacity,), value)), default=0)
            loads.append(sum(value.of(len(path)) for path in own) - most)
        best = max(loads) if best is None else min(best, max(loads))
    assert best is not None
    return best


def test_by_hand() -> None:
    # Three prompts of one path of two blocks, two machines of two blocks: if one of them serves all, the second and the
    # third find both blocks, 4 of 6; one of the two has a load of at least 1.
    order = service_order([[0, 1]] * 3)
    found = pooled_use(order, (2, 2), token_value(1), 6)
    assert (found.use.saved, found.use.bound, found.recomputed, found.largest_load) == (4, 4, 2, 1)
    # With one machine it is `most_saved`.
    assert pooled_use(order, (2,), token_value(1), 6).use == most_saved(order, 2, token_value(1))
    # Two paths in turn: one cache of two blocks finds nothing, one of four finds each path twice.
    order = service_order([[0, 1], [2, 3]] * 3)
    assert pooled_use(order, (2,), token_value(1), 12).use.bound == 0
    assert pooled_use(order, (2, 2), token_value(1), 12).use.bound == 8


def test_requests_are_in_the_order_that_is_given() -> None:
    tree = PrefixTree((PrefixNode("s", 8), PrefixNode("a", 24, "s")))
    requests = (Request(40, 3, prefix=("s", "a")), Request(9, 3, prefix=("s",)), Request(31, 1, prefix=("s", "a")))
    limits, cache = Limits(64, 64, 64, kv_block=4), CacheRules(CacheMode.PREFIX)
    cluster = Instance("two", limits, Rules(), CostModel(1, 1), requests, replicas=2, prefixes=tree, cache=cache)
    order = served_in(cluster, (2, 0, 1))
    # The path has 32 tokens. 31 tokens have 7 blocks of it, 40 + 3 - 1 all 8, and 9 its first two.
    assert [len(path) for path in order.paths] == [7, 8, 2]
    assert order.occupied == (8, 11, 3)
    # The second of them finds the 7 blocks that the first has used, the third 2.
    assert [sum(run.count for run in runs) for runs in order.runs] == [0, 7, 2]


def test_what_is_wrong_is_refused() -> None:
    order = service_order([[0, 1]])
    with pytest.raises(InputError, match="capacities: got 'no machine'"):
        pooled_use(order, (), token_value(1), 2)
    with pytest.raises(InputError, match="capacity: got 1, expected at least 2 blocks"):
        pooled_use(order, (1,), token_value(1), 2)
    with pytest.raises(UnprovedError, match="0 machines"):
        largest_load_bound(Service([], [], [], 0, 1, 0), 0, 0, {"kind": "prefix_cache", "prices": []})
