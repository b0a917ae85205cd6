"""The cache of a machine in machine code, dropped least recently used first.

Blocks are never written down one by one. A node of the instance's prefixes, or what a request has of its own, is a
*segment*: a stretch of blocks that follow one another in all sequences that have any of them. A sequence is a path of
segments, and a node of the tree of cached blocks a stretch of one sequence, so that two are compared segment by
segment. What comes behind a node is found without a search: one node at most begins inside the segment in which it
ends, and one at most where a segment begins.

For speed it says again what other modules say, to which it has to correspond:

===================================================  ===========================================================
here                                                 there
===================================================  ===========================================================
`Paths`, ``owner``                                   `optsched.cache.sequences.BlockSequences`
`leading` … `drop`                                   `optsched.cache.radix.RadixTree` with `evictors.lru`
`found`, `takes`, `match`, `step`, `end`, `release`  `optsched.cache.machine.MachineCache`, `cache.blocks.TreeBlocks`
===================================================  ===========================================================

Which of equal blocks of one batch is the first and which a copy does not matter: a run that may find what earlier runs
of its batch complete finds it either way. So one count is kept of both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optsched.compiled import compiled_helper, compiled_part
from optsched.model.ints import Ints

ShortInts = npt.NDArray[np.int32]


class Paths(NamedTuple):
    """Sequences in blocks.

    Parameters
    ----------
    first, size
        Of every segment: its first place in a sequence, and how many blocks it has.
    begin, segment
        The segments of each request in turn, empty ones left out; it has those from its entry up to the next.
    """

    first: Ints
    size: Ints
    begin: Ints
    segment: ShortInts


class Cache(NamedTuple):
    """What one machine caches, and what its requests hold.

    Parameters
    ----------
    sums
        See the names below.
    node
        A row for each node of the tree; the first is the root.
    heap
        Last access, entry and node: what may be dropped, the first one first; entries may be out of date.
    head
        The node that begins where a segment does; 0 for none.
    owner
        The request that a segment's blocks are called by; -1 for none.
    fresh, refreshed
        How many blocks of a segment the batch has completed, where later runs may find them; and which those are.
    news, renewed
        From which block on the latest batch has cached a segment, counted from 1; and which those are.
    grown
        Requests whose counted blocks are not all in the tree.
    """

    sums: Ints
    node: Ints
    heap: Ints
    head: ShortInts
    owner: ShortInts
    fresh: ShortInts
    refreshed: ShortInts
    news: ShortInts
    renewed: ShortInts
    grown: ShortInts


SIZE, PINNED, OWN, COMPLETED, NODES, TOP, SPARE, ENTRIES, HEAP, TICK, GROWN, FRESH, NEWS, BLOCKS = range(14)
"""Cached blocks, those of them with a pin, blocks that only one request has, and those that the batch completes; nodes
but the root, rows of nodes ever used, the first unused one of these, entries and rows of the heap, the clock of the
tree, and lengths of lists; the blocks that there are."""
CACHE_SUMS = 14

PARENT, OF, DEPTH, LENGTH, PINS, LAST, ENTRY, NEXT, KIDS, PLACE = range(10)
"""A node: the one before, whose sequence it is a stretch of, blocks from the root to its end, its own blocks, pins,
last access, its entry, the node that begins in the segment in which it ends, how many are behind it, and at which of
its path's segments it begins."""
NODE_COLUMNS = 10


class Held(NamedTuple):
    """What requests hold where they are.

    Parameters
    ----------
    most
        How many leading blocks of each may be cached.
    tokens, counted
        m, as far as blocks know of it, and the leading blocks that are counted as cached or completed.
    node, alone
        What it pins, and whether it has made that itself.
    """

    most: Ints
    tokens: Ints
    counted: Ints
    node: Ints
    alone: Ints


# The tree ---------------------------------------------------------------------------------------------------------


@compiled_part
def _segment_at(paths: Paths, request: int, place: int, block: int) -> int:
    """Return which segment of a request, from a place of its path on, has a block."""
    at = paths.begin[request] + place
    while paths.first[paths.segment[at]] + paths.size[paths.segment[at]] <= block:
        at += 1
    return int(at - paths.begin[request])


@compiled_part
def _behind(paths: Paths, cache: Cache, node: int, request: int, place: int) -> int:
    """Return the node behind another with the next block of a request, which is in its segment at a place."""
    segment = paths.segment[paths.begin[request] + place]
    if paths.first[segment] == cache.node[node, DEPTH]:
        return int(cache.head[segment])
    return int(cache.node[node, NEXT])


@compiled_part
def _attach(paths: Paths, cache: Cache, node: int, known: int) -> None:
    """Let a node be found, or another one (0: none) in its place."""
    segment = paths.segment[paths.begin[cache.node[node, OF]] + cache.node[node, PLACE]]
    if paths.first[segment] == cache.node[node, DEPTH] - cache.node[node, LENGTH]:
        cache.head[segment] = known
    else:
        cache.node[cache.node[node, PARENT], NEXT] = known


@compiled_part
def _common(paths: Paths, cache: Cache, node: int, request: int, most: int) -> int:
    """Return where the blocks of a node and those of a request part, which have at least the first in common."""
    depth, of = cache.node[node, DEPTH], cache.node[node, OF]
    if of == request:
        return int(min(depth, most))
    ours, theirs = paths.begin[request] + cache.node[node, PLACE], paths.begin[of] + cache.node[node, PLACE]
    last_ours, last_theirs = paths.begin[request + 1], paths.begin[of + 1]
    end = 0
    while ours < last_ours and theirs < last_theirs and paths.segment[ours] == paths.segment[theirs]:
        end = paths.first[paths.segment[ours]] + paths.size[paths.segment[ours]]
        if end >= depth:
            break
        ours, theirs = ours + 1, theirs + 1
    return int(min(depth, end, most))


@compiled_helper
def leading(paths: Paths, cache: Cache, request: int, most: int) -> int:
    """Return how many of the first blocks of a request, at most ``most``, are cached."""
    node = place = 0
    while cache.node[node, DEPTH] < most:
        place = _segment_at(paths, request, place, cache.node[node, DEPTH])
        child = _behind(paths, cache, node, request, place)
        if child == 0:
            break
        end = _common(paths, cache, child, request, most)
        if end < cache.node[child, DEPTH]:
            return end
        node = child
    return int(cache.node[node, DEPTH])


@compiled_helper
def _unpinned(paths: Paths, cache: Cache, request: int, most: int) -> int:
    """Return how many of the first ``most`` blocks of a request are cached without a pin."""
    node = place = free = 0
    while cache.node[node, DEPTH] < most:
        place = _segment_at(paths, request, place, cache.node[node, DEPTH])
        child = _behind(paths, cache, node, request, place)
        if child == 0:
            break
        end = _common(paths, cache, child, request, most)
        if cache.node[child, PINS] == 0:
            free += end - cache.node[node, DEPTH]
        if end < cache.node[child, DEPTH]:
            break
        node = child
    return int(free)


@compiled_part
def _new_node(cache: Cache) -> int:
    sums = cache.sums
    node = sums[SPARE]
    if node:
        sums[SPARE] = cache.node[node, NEXT]
    else:
        sums[TOP] += 1
        node = sums[TOP]
    for column in range(NODE_COLUMNS):
        cache.node[node, column] = 0
    sums[NODES] += 1
    return int(node)


@compiled_helper
def _split(paths: Paths, cache: Cache, node: int, at: int) -> int:
    """Split a node before a block; return the new node, which is before it."""
    head = _new_node(cache)
    rows, sums = cache.node, cache.sums
    sums[TICK] += 1
    rows[head, PARENT], rows[head, OF], rows[head, PLACE] = rows[node, PARENT], rows[node, OF], rows[node, PLACE]
    rows[head, DEPTH], rows[head, LENGTH] = at, at - rows[node, DEPTH] + rows[node, LENGTH]
    rows[head, PINS], rows[head, LAST], rows[head, KIDS] = rows[node, PINS], sums[TICK], 1
    _attach(paths, cache, node, head)
    rows[node, LENGTH] -= rows[head, LENGTH]
    rows[node, PARENT] = head
    rows[node, PLACE] = _segment_at(paths, rows[node, OF], rows[node, PLACE], at)
    _attach(paths, cache, node, node)
    _queue(cache, node)
    return head


@compiled_helper
def _matched(paths: Paths, cache: Cache, request: int, most: int) -> int:
    """Return the node at which the longest cached run of a request's first blocks ends, and refresh those before."""
    if most == 0:
        return 0
    rows = cache.node
    cache.sums[TICK] += 1
    now = cache.sums[TICK]
    node = place = 0
    while rows[node, DEPTH] < most:
        place = _segment_at(paths, request, place, rows[node, DEPTH])
        child = _behind(paths, cache, node, request, place)
        if child == 0:
            break
        rows[child, LAST] = now
        end = _common(paths, cache, child, request, most)
        node = child if end == rows[child, DEPTH] else _split(paths, cache, child, end)
        _queue(cache, node)
    return node


@compiled_helper
def _insert(paths: Paths, cache: Cache, request: int, whole: int, start: int) -> tuple[int, int]:
    """Cache the first blocks of a request behind a node; return how many were cached, and the node of the last one."""
    rows, sums = cache.node, cache.sums
    sums[TICK] += 1
    now = sums[TICK]
    node, place = start, rows[start, PLACE]
    while rows[node, DEPTH] < whole:
        place = _segment_at(paths, request, place, rows[node, DEPTH])
        child = _behind(paths, cache, node, request, place)
        if child == 0:
            break
        rows[child, LAST] = now
        end = _common(paths, cache, child, request, whole)
        part = end < rows[child, DEPTH]
        node = _split(paths, cache, child, end) if part else child
        _queue(cache, node)
        if part:
            break
    before = rows[node, DEPTH]
    if before < whole:
        child = _new_node(cache)
        sums[TICK] += 1
        rows[child, PARENT], rows[child, OF], rows[child, DEPTH] = node, request, whole
        rows[child, LENGTH], rows[child, LAST] = whole - before, sums[TICK]
        rows[child, PLACE] = _segment_at(paths, request, place, before)
        rows[node, KIDS] += 1
        _attach(paths, cache, child, child)
        sums[SIZE] += whole - before
        _queue(cache, child)
        node = child
    return before, node


@compiled_helper
def _pin(cache: Cache, last: int, above: int) -> None:
    """Pin a node and all before it, up to one that stays as it is."""
    rows, node = cache.node, last
    while node and node != above:
        if rows[node, PINS] == 0:
            cache.sums[PINNED] += rows[node, LENGTH]
        rows[node, PINS] += 1
        node = rows[node, PARENT]


@compiled_helper
def _unpin(cache: Cache, last: int) -> None:
    """Take back one pin of a node and of all before it."""
    rows, node = cache.node, last
    while node != 0:
        rows[node, PINS] -= 1
        if rows[node, PINS] == 0:
            cache.sums[PINNED] -= rows[node, LENGTH]
            _queue(cache, node)
        node = rows[node, PARENT]


@compiled_helper
def _queue(cache: Cache, node: int) -> None:
    """Enter a node into the order of eviction anew if it can be dropped."""
    rows, sums, heap = cache.node, cache.sums, cache.heap
    if node == 0 or rows[node, KIDS] or rows[node, PINS]:
        return
    sums[ENTRIES] += 1
    rows[node, ENTRY] = sums[ENTRIES]
    if sums[HEAP] == len(heap):
        kept = 0
        for i in range(sums[HEAP]):
            if heap[i, 1] == rows[heap[i, 2], ENTRY]:
                heap[kept, 0], heap[kept, 1], heap[kept, 2] = heap[i, 0], heap[i, 1], heap[i, 2]
                kept += 1
                _rise(heap, kept - 1)
        sums[HEAP] = kept
    last = sums[HEAP]
    heap[last, 0], heap[last, 1], heap[last, 2] = rows[node, LAST], sums[ENTRIES], node
    sums[HEAP] += 1
    _rise(heap, last)


@compiled_part
def _before(heap: Ints, one: int, other: int) -> bool:
    return bool(heap[one, 0] < heap[other, 0] or (heap[one, 0] == heap[other, 0] and heap[one, 1] < heap[other, 1]))


@compiled_part
def _swap(heap: Ints, one: int, other: int) -> None:
    for column in range(3):
        heap[one, column], heap[other, column] = heap[other, column], heap[one, column]


@compiled_helper
def _rise(heap: Ints, place: int) -> None:
    """Let a row of a heap go up to where it belongs."""
    at = place
    while at > 0 and _before(heap, at, (at - 1) // 2):
        _swap(heap, at, (at - 1) // 2)
        at = (at - 1) // 2


@compiled_helper
def _sink(heap: Ints, size: int) -> None:
    """Let the first row of a heap go down to where it belongs."""
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _before(heap, child + 1, child):
            child += 1
        if not _before(heap, child, at):
            return
        _swap(heap, at, child)
        at = child


@compiled_helper
def _drop(paths: Paths, cache: Cache, wanted: int, dropped: ShortInts, done: int) -> int:
    """Drop blocks without a pin until ``wanted`` are dropped or none is left.

    Note the request that each is called by, and its place, behind ``done`` others; return how many there are then.
    """
    rows, sums, heap = cache.node, cache.sums, cache.heap
    noted, most = done, done + wanted
    while noted < most and sums[HEAP] > 0:
        entry, node = heap[0, 1], heap[0, 2]
        sums[HEAP] -= 1
        _swap(heap, 0, sums[HEAP])
        _sink(heap, sums[HEAP])
        if rows[node, ENTRY] != entry or rows[node, KIDS] or rows[node, PINS]:
            continue
        count = min(most - noted, rows[node, LENGTH])
        block = rows[node, DEPTH] - 1
        of = rows[node, OF]
        at = paths.begin[of] + _segment_at(paths, of, rows[node, PLACE], block)
        for _ in range(count):
            if block < paths.first[paths.segment[at]]:
                at -= 1
            dropped[noted, 0], dropped[noted, 1] = cache.owner[paths.segment[at]], block
            noted, block = noted + 1, block - 1
        rows[node, DEPTH] -= count
        rows[node, LENGTH] -= count
        sums[SIZE] -= count
        if rows[node, LENGTH] > 0:
            _queue(cache, node)
        else:
            parent = rows[node, PARENT]
            _attach(paths, cache, node, 0)
            rows[node, ENTRY], rows[node, NEXT] = 0, sums[SPARE]
            sums[SPARE] = node
            sums[NODES] -= 1
            rows[parent, KIDS] -= 1
            _queue(cache, parent)
    return noted


# Memory of a batch ------------------------------------------------------------------------------------------------


@compiled_part
def in_use(sums: Ints) -> int:
    """Return the blocks of memory after the steps so far."""
    return int(sums[SIZE] + sums[COMPLETED] + sums[OWN])


@compiled_part
def free_blocks(sums: Ints) -> int:
    """Return the blocks that runs may take."""
    return int(sums[BLOCKS] - sums[PINNED] - sums[COMPLETED] - sums[OWN])


@compiled_part
def ask(paths: Paths, cache: Cache, request: int) -> None:
    """Call blocks by a request that are called by none; whatever asks for its sequence does so."""
    for at in range(paths.begin[request], paths.begin[request + 1]):
        if cache.owner[paths.segment[at]] < 0:
            cache.owner[paths.segment[at]] = request


@compiled_helper
def found(paths: Paths, cache: Cache, held: Held, block: int, request: int, tokens: int) -> int:  # noqa: PLR0917 - compiled
    """Return how many of the first blocks of a request with ``tokens`` tokens it would find."""
    most = min((tokens - 1) // block, held.most[request])
    blocks = leading(paths, cache, request, most)
    if cache.sums[FRESH] > 0 and blocks < most:
        at = paths.begin[request] + _segment_at(paths, request, 0, blocks)
        while blocks < most:
            segment = paths.segment[at]
            upto = paths.first[segment] + cache.fresh[segment]
            if upto <= blocks:
                break
            blocks = min(most, upto)
            if upto < paths.first[segment] + paths.size[segment]:
                break
            at += 1
    return int(blocks)


@compiled_helper
def takes(paths: Paths, cache: Cache, block: int, request: int, whole: int, tokens: int) -> int:  # noqa: PLR0917 - compiled
    """Return how much less is free if a request that finds ``whole`` blocks runs ``tokens`` tokens more."""
    return (tokens + block - 1) // block + _unpinned(paths, cache, request, whole)


@compiled_helper
def match(paths: Paths, cache: Cache, held: Held, block: int, request: int, whole: int) -> None:  # noqa: PLR0917 - compiled
    """Let a request without KV pin the ``whole`` blocks that it finds."""
    node = _matched(paths, cache, request, whole)
    _pin(cache, node, 0)
    held.tokens[request], held.counted[request] = whole * block, whole
    held.node[request], held.alone[request] = node, 0
    if cache.node[node, DEPTH] < whole:
        cache.grown[cache.sums[GROWN]] = request
        cache.sums[GROWN] += 1


@compiled_helper
def step(  # noqa: PLR0917 - compiled functions take positions
    paths: Paths,
    cache: Cache,
    held: Held,
    block: int,
    share: bool,
    request: int,
    after: int,
    dropped: ShortInts,
    done: int,
) -> int:
    """Let a request hold ``after`` tokens, and drop what memory is short of (`_drop`)."""
    sums, before = cache.sums, held.tokens[request]
    held.tokens[request] = after
    sums[OWN] += (after + block - 1) // block - (before + block - 1) // block
    whole, known = min(after // block, held.most[request]), held.counted[request]
    if whole > known:
        sums[COMPLETED] += whole - known
        sums[OWN] -= whole - known
        held.counted[request] = whole
        if cache.node[held.node[request], DEPTH] == known:
            cache.grown[sums[GROWN]] = request
            sums[GROWN] += 1
        if share:
            _refresh(paths, cache, request, known, whole)
    over = in_use(sums) - sums[BLOCKS]
    return done if over <= 0 else _drop(paths, cache, over, dropped, done)


@compiled_helper
def _refresh(paths: Paths, cache: Cache, request: int, known: int, whole: int) -> None:
    """Let later runs find what a run has completed."""
    at = paths.begin[request] + _segment_at(paths, request, 0, known)
    while at < paths.begin[request + 1]:
        segment = paths.segment[at]
        upto = min(whole - paths.first[segment], paths.size[segment])
        if upto <= 0:
            break
        if cache.fresh[segment] == 0:
            cache.refreshed[cache.sums[FRESH]] = segment
            cache.sums[FRESH] += 1
        cache.fresh[segment] = max(cache.fresh[segment], upto)
        at += 1


@compiled_helper
def forget_news(cache: Cache) -> None:
    """Forget what the latest batch has cached."""
    for i in range(cache.sums[NEWS]):
        cache.news[cache.renewed[i]] = 0
    cache.sums[NEWS] = 0


@compiled_helper
def end(paths: Paths, cache: Cache, held: Held) -> None:
    """End a batch: what its steps completed is cached, and pinned by those that ran."""
    sums = cache.sums
    forget_news(cache)
    for i in range(sums[GROWN]):
        request = cache.grown[i]
        node, whole = held.node[request], held.counted[request]
        before = cache.node[node, DEPTH]
        if before == whole:
            continue
        if held.alone[request] and cache.node[node, KIDS] == 0 and cache.node[node, PINS] == 1:
            cache.node[node, DEPTH] = whole
            cache.node[node, LENGTH] += whole - before
            sums[SIZE] += whole - before
            sums[PINNED] += whole - before
        else:
            before, last = _insert(paths, cache, request, whole, node)
            held.node[request] = last
            _pin(cache, last, node)
            held.alone[request] = before < whole
        if before < whole:
            _renew(paths, cache, request, before, whole)
    for i in range(sums[FRESH]):
        cache.fresh[cache.refreshed[i]] = 0
    sums[GROWN] = sums[COMPLETED] = sums[FRESH] = 0


@compiled_helper
def _renew(paths: Paths, cache: Cache, request: int, before: int, whole: int) -> None:
    """Remember what a batch has cached."""
    at = paths.begin[request] + _segment_at(paths, request, 0, before)
    while at < paths.begin[request + 1] and paths.first[paths.segment[at]] < whole:
        segment = paths.segment[at]
        since = max(before - paths.first[segment], 0) + 1
        if cache.news[segment] == 0:
            cache.renewed[cache.sums[NEWS]] = segment
            cache.sums[NEWS] += 1
            cache.news[segment] = since
        cache.news[segment] = min(cache.news[segment], since)
        at += 1


@compiled_helper
def release(paths: Paths, cache: Cache, held: Held, block: int, request: int) -> None:
    """Take the pins of a request away, which is evicted or has ended, and free what is not cached."""
    cache.sums[OWN] -= (held.tokens[request] + block - 1) // block - held.counted[request]
    _matched(paths, cache, request, held.counted[request])
    _unpin(cache, held.node[request])
    held.tokens[request] = held.counted[request] = 0


@compiled_helper
def known(paths: Paths, cache: Cache, held: Held, block: int, request: int, tokens: int, under_way: bool) -> int:  # noqa: PLR0917 - compiled
    """Return how many tokens of a prompt are cached; while a batch is under way, not what it completes."""
    blocks = found(paths, cache, held, block, request, tokens)
    if under_way and cache.sums[NEWS] > 0:
        for at in range(paths.begin[request], paths.begin[request + 1]):
            segment = paths.segment[at]
            if paths.first[segment] >= blocks:
                break
            if cache.news[segment] > 0:
                return int(min(blocks, paths.first[segment] + cache.news[segment] - 1) * block)
    return int(blocks * block)
