"""The tree of cached blocks, its evictors, vLLM's pool, and the cache of a machine."""

from collections.abc import Hashable, Sequence
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.cache.block_pool import BlockPool
from optsched.cache.contents import BlockNames, Piece
from optsched.cache.evictors import EVICTORS, NEVER, Belady, TailLru, evictor
from optsched.cache.index import CacheIndex
from optsched.cache.machine import BlockSequence, MachineCache
from optsched.cache.radix import RadixNode, RadixTree
from optsched.model.cluster import CacheMode
from optsched.model.errors import InputError

BLOCKS = st.lists(st.integers(0, 2), max_size=5)
"""Few values, so that sequences share leading runs."""


def held(tree: RadixTree) -> set[tuple[Hashable, ...]]:
    """Return every cached block as the run that ends with it."""
    runs: set[tuple[Hashable, ...]] = set()
    pending: list[tuple[RadixNode, tuple[Hashable, ...]]] = [(tree.root, ())]
    while pending:
        node, before = pending.pop()
        runs.update((*before, *node.blocks[:count]) for count in range(1, len(node.blocks) + 1))
        pending += [(child, (*before, *node.blocks)) for child in node.children.values()]
    return runs


@given(
    st.sampled_from(sorted(EVICTORS)),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["match", "insert", "unpin", "drop"]), BLOCKS, st.integers(1, 4)), max_size=25),
)
@settings(deadline=None)
def test_tree_holds_what_a_set_of_runs_holds(
    name: str, whole: bool, operations: list[tuple[str, list[int], int]]
) -> None:
    tree = RadixTree(evictor(name), whole)
    runs: set[tuple[int, ...]] = set()
    pins: list[tuple[RadixNode, tuple[int, ...]]] = []
    for what, blocks, count in operations:
        longest = max((n for n in range(len(blocks) + 1) if n == 0 or tuple(blocks[:n]) in runs), default=0)
        assert tree.leading(blocks) == longest
        match what:
            case "match":
                node = tree.match(blocks)
                assert node.depth == longest
                tree.pin(node)
                pins.append((node, tuple(blocks[:longest])))
            case "insert":
                before, node = tree.insert(blocks)
                assert (before, node.depth) == (longest, len(blocks))
                runs.update(tuple(blocks[:n]) for n in range(1, len(blocks) + 1))
            case "unpin" if pins:
                tree.unpin(pins.pop(count % len(pins))[0])
            case "drop":
                pinned = {run[:n] for _, run in pins for n in range(1, len(run) + 1)}
                free = len(runs) - len(pinned)
                assert (tree.droppable, tree.pinned) == (free, len(pinned))
                dropped = tree.drop(count)
                assert len(dropped) >= min(count, free)
                assert whole or len(dropped) == min(count, free)
                left = held(tree)
                assert left <= runs
                assert len(runs) - len(left) == len(dropped)
                assert pinned <= left
                runs = {run for run in runs if run in left}
        assert held(tree) == runs
        assert all(run[:-1] in runs for run in runs if len(run) > 1)
        assert tree.size == len(runs)


@given(st.lists(BLOCKS, max_size=5), BLOCKS, BLOCKS)
def test_one_block_is_dropped_if_it_is_a_leaf_without_a_pin(
    inserted: list[list[int]], pinned: list[int], last: list[int]
) -> None:
    tree = RadixTree(evictor("lru"))
    for blocks in inserted:
        tree.insert(blocks)
    tree.pin(tree.match(pinned))
    runs = held(tree)
    kept = {tuple(pinned[:n]) for n in range(len(pinned) + 1)} & runs
    possible = tuple(last) in runs - kept and not any(run[:-1] == tuple(last) for run in runs)
    assert tree.drop_last(last) == possible
    assert held(tree) == (runs - {tuple(last)} if possible else runs)


def dropped_in_order(name: str) -> str:
    """Insert a, b, c with priorities 2, 0, 1; use c twice more and a once; then drop all."""
    tree = RadixTree(evictor(name))
    for block, priority in (("a", 2), ("b", 0), ("c", 1)):
        tree.insert(block, priority)
    tree.insert("c")
    tree.insert("c")
    tree.insert("a")
    return "".join(map(str, tree.drop(3)))


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("lru", "bca"),  # last used in the order b, c, a
        ("mru", "acb"),
        ("fifo", "abc"),  # made in the order a, b, c
        ("filo", "cba"),
        ("lfu", "bac"),  # 1, 2 and 3 hits
        ("slru", "bca"),  # b has one hit and is not protected; then the least recently used
        ("priority", "bca"),  # 0, 1, 2
    ],
)
def test_evictors_by_hand(name: str, order: str) -> None:
    assert dropped_in_order(name) == order


def test_tail_lru_drops_what_the_next_prompt_can_lose() -> None:
    # 2 blocks may be computed in time, so of "xyz" 1 suffices and of the younger "abcd" 2: first go z, y, d and c, then
    # what is the least recently used. Of whole leaves none can be lost: the older goes first.
    for whole, order in ((False, "zydcxba"), (True, "zyxdcba")):
        tree = RadixTree(TailLru(threshold=2, whole_nodes=whole), whole)
        tree.insert("xyz")
        tree.insert("abcd")
        assert tree.drop(7) == list(order)


def test_an_unknown_evictor_is_named() -> None:
    with pytest.raises(InputError, match=r"evictor: got 'lruu', expected one of lru.*did you mean lru\?"):
        evictor("lruu")


def fewest_computed(requests: tuple[tuple[int, ...], ...], capacity: int) -> int:
    """Try every set of drops that leaves no block behind a dropped one; requests are served one after another."""

    @cache
    def best(index: int, cached: frozenset[tuple[int, ...]]) -> int:
        if index == len(requests):
            return 0
        runs = frozenset(requests[index][:n] for n in range(1, len(requests[index]) + 1))
        new = len(runs - cached)

        def choices(left: frozenset[tuple[int, ...]]) -> int:
            if len(left) <= capacity:
                return best(index + 1, left)
            leaves = [run for run in left - runs if not any(other[:-1] == run for other in left)]
            return min(choices(left - {leaf}) for leaf in leaves)

        return new + choices(cached | runs)

    return best(0, frozenset())


def computed_by_belady(requests: tuple[tuple[int, ...], ...], capacity: int) -> int:
    """Serve the requests with the evictor; its blocks are runs, so that they know what is before them."""
    served = 0

    def next_use(block: Hashable) -> int:
        assert isinstance(block, tuple)
        later = (place for place in range(served, len(requests)) if requests[place][: len(block)] == block)
        return next(later, NEVER)

    tree, computed = RadixTree(Belady(next_use)), 0
    for request in requests:
        served += 1
        runs = [request[:n] for n in range(1, len(request) + 1)]
        before, node = tree.insert(runs)
        computed += len(runs) - before
        tree.pin(node)
        tree.drop(tree.size - capacity)
        tree.unpin(node)
    return computed


@pytest.mark.parametrize("seed", range(60))
def test_belady_computes_the_fewest_blocks(seed: int) -> None:
    rng = Random(seed)
    capacity = rng.randint(2, 4)
    requests = tuple(
        tuple(rng.randrange(2) for _ in range(rng.randint(1, min(3, capacity)))) for _ in range(rng.randint(3, 8))
    )
    assert computed_by_belady(requests, capacity) == fewest_computed(requests, capacity)


PIECES = st.lists(st.tuples(st.integers(0, 1), st.just(0), st.integers(1, 5)), max_size=4)


def spelled(pieces: Sequence[Piece]) -> list[tuple[Hashable, int]]:
    return [(node, first + offset) for node, first, count in pieces for offset in range(count)]


@given(PIECES, PIECES, st.integers(1, 4))
def test_blocks_have_one_name_if_they_and_all_before_are_equal(
    left: list[Piece], right: list[Piece], size: int
) -> None:
    names = BlockNames(size)
    first, second = names.of(left), names.of(right)
    assert len(first) == len(spelled(left)) // size
    for place in range(min(len(first), len(second))):
        end = (place + 1) * size
        assert (first[place] == second[place]) == (spelled(left)[:end] == spelled(right)[:end])


def test_block_pool_takes_unnamed_blocks_first_then_the_oldest() -> None:
    # Three blocks: x and y are named, the third is not. Released together, y comes before x (the tail first), and the
    # third before both; so the next three that are taken are the third, y, x.
    pool = BlockPool(3)
    blocks, lost = pool.take(3)
    assert (blocks, lost, pool.free) == ([0, 1, 2], [], 0)
    pool.name(0, "x")
    pool.name(1, "y")
    pool.release(blocks)
    assert (pool.leading("xyz"), pool.cached, pool.free) == ([0, 1], 2, 3)
    assert pool.take(2) == ([2, 1], ["y"])
    assert pool.leading("xy") == [0]
    pool.hold([0])
    assert (pool.free, pool.unused([0])) == (0, 0)


def test_block_pool_keeps_two_copies() -> None:
    pool = BlockPool(2)
    pool.take(2)
    pool.name(1, "x")
    pool.name(0, "x")
    pool.release([0])
    pool.release([1])
    pool.begin()
    assert (pool.leading("x"), pool.cached) == ([1], 1)
    assert pool.take(1) == ([0], ["x"])
    # The other copy is still found: nothing was dropped. In the next batch it is taken and computed again: dropped.
    assert (pool.leading("x"), pool.cached, pool.dropped()) == ([1], 1, [])
    pool.begin()
    assert pool.take(1) == ([1], ["x"])
    pool.name(1, "x")
    assert pool.dropped() == ["x"]


def test_a_prompt_that_is_cached_runs_its_last_tokens_again() -> None:
    # b = 4, prompt of 8 tokens: 2 blocks. The second request finds 1 block, floor(7/4), runs 4 tokens, and completes
    # the other block again: a second copy in this batch, one afterwards.
    machine = MachineCache(4, CacheMode.ALL, evictor("lru"))
    prompt = BlockSequence(names=("a", "b"))
    assert machine.match(0, prompt, 8) == 0
    machine.step(0, 8)
    assert machine.used == 2
    machine.end()
    machine.release(0)
    assert (machine.used, machine.tree.droppable) == (2, 2)
    assert machine.match(1, prompt, 8) == 4
    machine.step(1, 4)
    assert machine.used == 3
    machine.end()
    assert (machine.used, machine.tokens(1), machine.tree.pinned) == (2, 8, 2)


@pytest.mark.parametrize(("shared", "found", "used"), [(False, 0, 6), (True, 8, 4)])
def test_equal_prompts_in_one_batch(shared: bool, found: int, used: int) -> None:
    # Two prompts of 9 tokens, b = 4: blocks a and b, and one token more each. With sharing the second finds both
    # blocks: a, b and 2 partial blocks = 4. Without, its own a and b are second copies: 6.
    machine = MachineCache(4, CacheMode.ALL, evictor("lru"), share_in_batch=shared)
    prompt = BlockSequence(names=("a", "b"))
    machine.match(0, prompt, 9)
    machine.step(0, 9)
    assert machine.match(1, prompt, 9) == found
    machine.step(1, 9 - found)
    assert machine.used == used
    machine.end()
    assert (machine.used, machine.tree.size) == (4, 2)


def test_modes_cache_no_path_or_all_blocks() -> None:
    # 12 tokens, b = 4, of which the first 4 are on the path: none, 1 or 3 cached blocks; all take 3 blocks.
    for mode, cached in ((CacheMode.NONE, 0), (CacheMode.PREFIX, 1), (CacheMode.ALL, 3)):
        machine = MachineCache(4, mode, evictor("lru"))
        machine.match(0, BlockSequence(("a", "b", "c"), path_blocks=1), 12)
        machine.step(0, 12)
        machine.end()
        assert (machine.tree.size, machine.used) == (cached, 3)
        machine.release(0)
        assert machine.used == cached


def test_a_move_pins_what_its_target_holds_and_lands() -> None:
    # The target caches a; 10 tokens move, b = 4: h = 4, and 2 more blocks (4 + 2 tokens) are the request's own.
    machine = MachineCache(4, CacheMode.ALL, evictor("lru"))
    machine.tree.insert(("a",))
    assert machine.reserve(0, BlockSequence(("a", "b", "c")), 10) == 4
    assert (machine.used, machine.tree.size, machine.tree.pinned) == (3, 1, 1)
    machine.land(0)
    assert (machine.used, machine.tree.size, machine.tree.pinned) == (3, 2, 2)


@given(st.randoms(use_true_random=False), st.sampled_from(CacheMode), st.booleans(), st.integers(1, 3))
@settings(deadline=None, max_examples=150)
def test_machine_counts_memory_as_the_contract_does(rng: Random, mode: CacheMode, shared: bool, size: int) -> None:
    """Random batches beside the contract's own words: sets of contents, counted block by block."""
    names = BlockNames(size)
    paths = {"s": 5, "t": 4}
    sequences: list[tuple[list[Piece], int]] = []
    for index in range(6):
        path: list[Piece] = [(name, 0, paths[name]) for name in ("s", "t")[: rng.randint(1, 2)]]
        on_path = sum(count for _, _, count in path)
        sequences.append(([*path, (("own", index), 0, rng.randint(1, 6))], on_path))
    machine = MachineCache(size, mode, evictor("lru"), share_in_batch=shared)
    cached: set[int] = set()
    tokens: dict[int, int] = {}

    def cacheable(index: int, count: int) -> list[int]:
        pieces, on_path = sequences[index]
        limit = {CacheMode.NONE: 0, CacheMode.PREFIX: min(on_path, count), CacheMode.ALL: count}[mode]
        return names.of(pieces)[: limit // size]

    def whole(index: int) -> int:
        return sum(count for _, _, count in sequences[index][0])

    for _ in range(8):
        for index in [each for each in tokens if rng.random() < 0.2]:
            machine.release(index)
            del tokens[index]
        completed: set[int] = set()
        copies = 0
        ran = []
        pinned = {name for index, count in tokens.items() for name in cacheable(index, count)}
        for index in rng.sample(range(6), rng.randint(1, 4)):
            if tokens.get(index) == whole(index):
                continue
            if index not in tokens:
                visible = cached | (completed if shared else set())
                most = cacheable(index, whole(index))[: (whole(index) - 1) // size]
                run = next((place for place, name in enumerate(most) if name not in visible), len(most))
                sequence = BlockSequence(names.of(sequences[index][0]), sequences[index][1] // size)
                assert machine.match(index, sequence, whole(index)) == run * size
                tokens[index] = run * size
                pinned.update(most[:run])
            step = rng.randint(1, whole(index) - tokens[index])
            machine.step(index, step)
            for name in cacheable(index, tokens[index] + step)[len(cacheable(index, tokens[index])) :]:
                copies += name in cached or name in completed
                completed.add(name)
            tokens[index] += step
            ran.append(index)
        own = sum(-(-count // size) - len(cacheable(index, count)) for index, count in tokens.items())
        assert machine.used == len(cached | completed) + copies + own
        dropped = machine.drop(rng.randint(0, 2))
        assert not pinned & set(dropped)
        cached -= set(dropped)
        known = set(cached)
        cached |= {name for index in ran for name in cacheable(index, tokens[index])}
        new = machine.end()
        assert (set(new), len(new)) == (cached - known, len(cached - known))
        assert machine.tree.size == len(cached)


def test_an_index_knows_of_events_when_they_arrive() -> None:
    # a and b are cached at 10, b is dropped at 15; events take 3.
    index = CacheIndex(delay_ps=3)
    index.cached(10, "ab")
    index.dropped(15, "b")
    assert [index.leading(now, "abc") for now in (12, 13, 17, 18)] == [0, 2, 2, 1]
