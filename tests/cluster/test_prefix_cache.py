"""The most that a prefix cache saves, against all ways to fill tiny caches and against Mooncake's trace."""

from __future__ import annotations

import gzip
import itertools
import json
import random

import networkx as nx
import pulp
import pytest
from shared_data import HERE, SHARED

from optsched import CostModel, InputError
from optsched.check.certificates.prefix_cache import Service, hits_violations, saved_bound
from optsched.check.reading import UnprovedError
from optsched_formulations.eviction.exact import cache_programme, exact_saved
from optsched_formulations.eviction.prefix_cache import CacheUse, most_saved
from optsched_formulations.eviction.service import BlockValue, service_order, time_value, token_value

Paths = list[list[int]]


def random_paths(rng: random.Random, blocks: int, requests: int) -> Paths:
    parents: list[int | None] = [None]
    parents += [rng.choice([None, *range(block)]) for block in range(1, blocks)]

    def path(block: int | None) -> list[int]:
        return [] if block is None else [*path(parents[block]), block]

    return [path(rng.randrange(blocks)) for _ in range(requests)]


def brute_force(paths: Paths, capacity: int, value: BlockValue, findable: list[int]) -> int:
    """All sets of blocks that can be kept after every request."""
    parent = {block: path[depth - 1] if depth else None for path in paths for depth, block in enumerate(path)}
    states = {frozenset[int](): 0}
    for path, most in zip(paths, findable, strict=True):
        following: dict[frozenset[int], int] = {}
        for kept, saved in states.items():
            hits = 0
            while hits < most and path[hits] in kept:
                hits += 1
            others = [block for block in kept if block not in path]
            for size in range(min(capacity - len(path), len(others)) + 1):
                for chosen in itertools.combinations(others, size):
                    after = frozenset(chosen) | frozenset(path)
                    if all(parent[block] is None or parent[block] in after for block in after):
                        following[after] = max(following.get(after, 0), saved + value.of(hits))
        states = following
    return max(states.values())


def checked(paths: Paths, capacity: int, value: BlockValue, findable: list[int]) -> CacheUse:
    found = most_saved(service_order(paths, findable=findable), capacity, value)
    service = Service(paths, findable, list(map(len, paths)), capacity, value.linear, value.square)
    assert list(hits_violations(service, found.hits)) == []
    assert sum(map(service.worth, found.hits)) == found.saved
    assert saved_bound(service, found.certificate) == found.bound
    return found


def test_equal_values_are_exact_on_all_tiny_caches() -> None:
    rng = random.Random(1)
    for _ in range(600):
        paths = random_paths(rng, 7, rng.randint(3, 6))
        lengths = list(map(len, paths))
        capacity = max(lengths) + rng.randint(0, 3)
        found = checked(paths, capacity, token_value(16), lengths)
        best = brute_force(paths, capacity, token_value(16), lengths)
        assert found.saved == found.bound == best
        assert exact_saved(service_order(paths), capacity, token_value(16)) == best


def test_time_is_bounded_from_both_sides_on_tiny_caches() -> None:
    rng = random.Random(2)
    met = 0
    for _ in range(250):
        paths = random_paths(rng, 7, rng.randint(3, 6))
        findable = [rng.randint(max(len(path) - 1, 0), len(path)) for path in paths]
        capacity = max(map(len, paths)) + rng.randint(0, 3)
        value = BlockValue(rng.randint(0, 3), rng.randint(1, 4))
        found = checked(paths, capacity, value, findable)
        order = service_order(paths, findable=findable)
        best = brute_force(paths, capacity, value, findable)
        assert found.saved <= best <= found.bound
        assert exact_saved(order, capacity, value) == best
        met += found.saved == best
    # Rounding is rarely off: it is no heuristic that happens to be legal.
    assert met > 200


def test_the_programme_has_the_optimum() -> None:
    rng = random.Random(3)
    for _ in range(25):
        paths = random_paths(rng, 7, 6)
        capacity, value = max(map(len, paths)) + rng.randint(0, 2), BlockValue(2, 3)
        problem = cache_programme(service_order(paths), capacity, value)
        problem.solve(pulp.HiGHS(msg=False))
        best = brute_force(paths, capacity, value, list(map(len, paths)))
        assert round(pulp.value(problem.objective) or 0) == best


def test_equal_values_are_a_minimum_cost_flow() -> None:
    """Blocks travel along the order of service: through rooms, or by being kept from one use to the next."""
    rng = random.Random(4)
    for _ in range(60):
        paths = random_paths(rng, 8, rng.randint(4, 9))
        capacity = max(map(len, paths)) + rng.randint(0, 3)
        order = service_order(paths)
        rooms = order.rooms(capacity).tolist()
        graph = nx.MultiDiGraph()
        free = 0
        for point, (room, before) in enumerate(zip([*rooms, 0], [0, *rooms], strict=True)):
            graph.add_node(point, demand=before - room)
        for point, room in enumerate(rooms):
            graph.add_edge(point, point + 1, capacity=room, weight=0)
        for request, runs in enumerate(order.runs):
            for run in runs:
                if run.last + 1 == request:
                    free += run.count
                else:
                    graph.add_edge(run.last + 1, request, capacity=run.count, weight=-1)
        cost, _ = nx.network_simplex(_split(graph))
        assert most_saved(order, capacity, BlockValue(1)).saved == free - cost


def _split(graph: nx.MultiDiGraph) -> nx.DiGraph:
    """Parallel edges through nodes of their own, which network simplex needs."""
    simple = nx.DiGraph()
    simple.add_nodes_from(graph.nodes(data=True))
    for number, (tail, head, data) in enumerate(graph.edges(data=True)):
        simple.add_edge(tail, ("via", number), capacity=data["capacity"], weight=data["weight"])
        simple.add_edge(("via", number), head, capacity=data["capacity"], weight=0)
    return simple


def test_what_is_found_by_hand() -> None:
    # The cache has 3 blocks. [0, 1] is used, then [2], beside which one of the two fits besides: two rooms, both fit.
    assert most_saved(service_order([[0, 1], [2], [0, 1]]), 3, BlockValue(1)).hits == (0, 0, 2)
    # Of 2 blocks only one fits beside [2]; it is the root.
    assert most_saved(service_order([[0, 1], [2], [0, 1]]), 2, BlockValue(1)).hits == (0, 0, 1)
    # The last token of a prompt of whole blocks always runs.
    assert most_saved(service_order([[0, 1], [0, 1]], findable=[1, 1]), 2, BlockValue(1)).hits == (0, 1)
    # What is private occupies room: nothing fits beside the second request.
    assert most_saved(service_order([[0], [1], [0]], occupied=[1, 2, 1]), 2, BlockValue(1)).hits == (0, 0, 0)


def test_values_of_time() -> None:
    cost = CostModel(base=5, token=7, prefill_sq=3, prefill_kv=2)
    value = time_value(cost, 4)
    alone = cost.batch_ps(10, 0, 0, [(10, 0)])
    assert alone - cost.batch_ps(2, 0, 0, [(2, 8)]) == value.of(2)


@pytest.mark.parametrize(
    ("paths", "options", "message"),
    [
        ([[0, 1], [2, 1]], {}, "paths[1][1]: got 1, expected a block that stands behind the same blocks"),
        ([[0, 1, 0]], {}, "paths[0][0]"),
        ([[0, -1]], {}, "blocks by integers ≥ 0"),
        ([[0, 1]], {"findable": [3]}, "findable[0]: got 3, expected from 0 to the 2 blocks of its path"),
        ([[0, 1]], {"occupied": [1]}, "occupied[0]: got 1, expected at least the 2 blocks of its path"),
        ([[0, 1]], {"occupied": []}, "one for each of 1 requests"),
    ],
)
def test_wrong_input_is_one_line(paths: Paths, options: dict[str, list[int]], message: str) -> None:
    with pytest.raises(InputError) as error:
        service_order(paths, **options)
    assert message in str(error.value)


def test_a_request_that_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match="at least 2 blocks, which request 1 occupies"):
        most_saved(service_order([[0], [0, 1]]), 1, BlockValue(1))


def test_forged_certificates_prove_nothing() -> None:
    service = Service([[0], [1], [0]], [1, 1, 1], [1, 1, 1], 1, 1, 0)
    assert saved_bound(service, {"kind": "prefix_cache", "prices": [0, 1, 0]}) == 0
    # A negative price would "prove" that less than nothing is saved.
    for prices in ([0, -1, 0], [0, True, 0], [0, 0], None):
        with pytest.raises(UnprovedError):
            saved_bound(service, {"kind": "prefix_cache", "prices": prices})
    assert list(hits_violations(service, [0, 0, 1])) == ["request 1 occupies 1 blocks beside 1 others, the cache has 1"]
    assert list(hits_violations(service, [1, 0, 0])) == ["request 0 finds a block at depth 0 that was never used"]
    # 1 stands behind 0, which was dropped and recomputed while 1 was kept.
    hole = Service([[0, 1], [0], [0, 1]], [2, 1, 2], [2, 1, 2], 2, 1, 0)
    assert list(hits_violations(hole, [0, 0, 2])) == [
        "request 2 finds a block at depth 1 that was kept behind a dropped one"
    ]


@HERE
@pytest.mark.slow
def test_mooncake_conversations_are_solved() -> None:
    """Recomputed tokens with gap 0, and time within half a percent; the order of service is that of arrival."""
    block, paths, prompts = 512, [], []
    with gzip.open(SHARED / "mooncake" / "conversation_trace.jsonl.gz", "rt") as lines:
        for line in lines:
            request = json.loads(line)
            prompts.append(request["input_length"])
            paths.append(request["hash_ids"][: prompts[-1] // block])
    findable = [min(len(path), (prompt - 1) // block) for path, prompt in zip(paths, prompts, strict=True)]
    order = service_order(paths, findable=findable)
    assert order.warm == 105_592
    for capacity in (250, 4000, 64000):
        found = checked(paths, capacity, token_value(block), findable)
        assert found.saved == found.bound
    value = BlockValue(63_653_312 * block, 3_893 * block**2)  # Llama-2-7B on one A100
    found = checked(paths, 1000, value, findable)
    total = sum(63_653_312 * prompt + 3_893 * prompt**2 for prompt in prompts)
    assert 1000 * (found.bound - found.saved) <= 5 * (total - found.saved)
