"""The radix tree of cached blocks.

Each node holds one or more blocks that follow each other; the blocks from the root to a node are a leading run of some
sequence. So a cached block never lacks one before it. A node is split where a match or an insertion ends inside it, so
all blocks of a node have been used alike: the tree of nodes (SGLang's view, which drops whole leaves) and the pool of
blocks (vLLM's view, which drops single blocks) are one structure.

A block is any hashable value that identifies its content *and* all before it or, like a page of tokens, for its content
alone; both work, as blocks are compared along paths only.

Times are ticks of a counter of this tree: one for each match and insertion, and one for each node made in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from itertools import count

from optsched.cache.evictors import Evictor, Key, alike


class RadixNode:
    """A run of blocks.

    Attributes
    ----------
    blocks
        The node's blocks; empty only for the root.
    parent, children
        The node before (None for the root), and those behind it by their first block.
    depth
        Blocks from the root to the end of this node.
    pins
        How many pins lie on this node or behind it.
    last_access, created, hits, priority, longest
        See `optsched.cache.evictors.Leaf`.
    """

    __slots__ = (
        "blocks",
        "children",
        "created",
        "depth",
        "hits",
        "last_access",
        "longest",
        "number",
        "parent",
        "pins",
        "priority",
    )

    def __init__(self, blocks: list[Hashable], parent: RadixNode | None, now: int, priority: int = 0) -> None:
        self.blocks = blocks
        self.parent = parent
        self.children: dict[Hashable, RadixNode] = {}
        self.depth: int = len(blocks) + (parent.depth if parent else 0)
        self.pins = 0
        self.last_access = now
        self.created = now
        self.hits = 0
        self.priority = priority
        self.longest = self.depth
        self.number = 0
        """Counts the entries of this node in the heap; only the newest is valid."""


class RadixTree:
    """Cached blocks, with pins and an order of eviction.

    A match or an insertion of n blocks takes time proportional to n, a pin to the nodes on its path, a drop to the
    logarithm of the number of leaves for each node or block that is dropped.

    Parameters
    ----------
    evictor
        Which leaf goes first.
    whole_nodes
        `drop` drops whole leaves, and so perhaps more than it is asked for; otherwise single blocks.
    """

    def __init__(self, evictor: Evictor, whole_nodes: bool = False) -> None:
        self.root = RadixNode([], None, 0)
        self.size = 0
        """Cached blocks."""
        self.pinned = 0
        """Cached blocks with a pin."""
        self._evictor = evictor
        self._alike = alike(evictor)
        self._whole_nodes = whole_nodes
        self._now = 0
        self._order: list[tuple[Key, int, RadixNode]] = []
        self._count = 0
        """Nodes but the root."""
        self._entries = count(1)

    @property
    def droppable(self) -> int:
        """Cached blocks without a pin: all of them can be dropped."""
        return self.size - self.pinned

    def leading(self, blocks: Sequence[Hashable], start: RadixNode | None = None) -> int:
        """Return the number of leading blocks that are cached; nothing changes.

        ``start`` is a node at which a leading run of them ends, from which to go on; the root if there is none.
        """
        return sum(shared for _, shared in self._run(blocks, start or self.root)) + (start.depth if start else 0)

    def unpinned(self, blocks: Sequence[Hashable]) -> int:
        """Return how many of these blocks, which are a leading run, are cached without a pin."""
        return sum(shared for node, shared in self._run(blocks, self.root) if not node.pins)

    @staticmethod
    def _run(blocks: Sequence[Hashable], node: RadixNode) -> Iterator[tuple[RadixNode, int]]:
        """Yield the nodes of the longest cached leading run behind a node, and how many blocks of each are in it."""
        found = node.depth
        while found < len(blocks) and (child := node.children.get(blocks[found])) is not None:
            shared = _common(child.blocks, blocks, found)
            yield child, shared
            if shared < len(child.blocks):
                return
            found, node = found + shared, child

    def match(self, blocks: Sequence[Hashable], hit: bool = False) -> RadixNode:
        """Return the node at which the longest cached leading run ends, and refresh those on the way.

        The node in which the run ends is split there. Its part behind is refreshed, too, as in SGLang, where a match is
        no hit: only insertions are counted, unless ``hit``.
        """
        if not blocks:
            return self.root
        now = self._tick()
        node = self.root
        while node.depth < len(blocks) and (child := node.children.get(blocks[node.depth])) is not None:
            child.last_access = now
            shared = _common(child.blocks, blocks, node.depth)
            if shared < len(child.blocks):
                child = self._split(child, shared)
            node = child
            node.hits += hit
            self._queue(node)
        return node

    def insert(
        self, blocks: Sequence[Hashable], priority: int = 0, start: RadixNode | None = None
    ) -> tuple[int, RadixNode]:
        """Cache blocks; return how many were cached before, and the node of the last one.

        Those behind the leading run become one new node. What is up to ``start`` (`leading`) is neither refreshed nor
        counted again.
        """
        now = self._tick()
        node = start or self.root
        while node.depth < len(blocks) and (child := node.children.get(blocks[node.depth])) is not None:
            child.last_access = now
            shared = _common(child.blocks, blocks, node.depth)
            part = shared < len(child.blocks)
            node = self._split(child, shared) if part else child
            node.priority = max(node.priority, priority)
            node.longest = max(node.longest, len(blocks))
            node.hits += 1
            self._queue(node)
            if part:
                break
        before = node.depth
        if before < len(blocks):
            child = RadixNode(list(blocks[before:]), node, self._tick(), priority)
            child.hits = 1
            node.children[blocks[before]] = child
            self._count += 1
            self.size += len(child.blocks)
            self._queue(child)
            node = child
        return before, node

    def extend(self, node: RadixNode, blocks: Sequence[Hashable]) -> None:
        """Cache blocks behind a node without children as a part of it: they share its pins and what is known of it."""
        assert not node.children
        node.blocks += blocks
        node.depth += len(blocks)
        node.longest = max(node.longest, node.depth)
        self.size += len(blocks)
        if node.pins:
            self.pinned += len(blocks)
        self._queue(node)

    def pin(self, node: RadixNode, above: RadixNode | None = None) -> None:
        """Pin a node and all before it, up to one that stays as it is."""
        for each in self._path(node):
            if each is above:
                return
            if not each.pins:
                self.pinned += len(each.blocks)
            each.pins += 1

    def unpin(self, node: RadixNode) -> None:
        """Take back one pin of a node and of all before it."""
        for each in self._path(node):
            each.pins -= 1
            if not each.pins:
                self.pinned -= len(each.blocks)
                self._queue(each)

    def drop(self, wanted: int) -> list[Hashable]:
        """Drop blocks without a pin until ``wanted`` are dropped or none is left; return them in this order.

        No block is dropped before those behind it.
        """
        dropped: list[Hashable] = []
        while len(dropped) < wanted and self._order:
            _, number, node = heapq.heappop(self._order)
            if number == node.number and not node.children and not node.pins:
                size = len(node.blocks)
                each = size if self._whole_nodes else min(wanted - len(dropped), size) if self._alike else 1
                dropped += self._cut(node, each)
        return dropped

    def drop_last(self, blocks: Sequence[Hashable]) -> bool:
        """Drop the last of ``blocks`` if it is cached, has no pin, and no block is behind it; return whether it was."""
        node = self.root
        while node.depth < len(blocks) and (child := node.children.get(blocks[node.depth])) is not None:
            if _common(child.blocks, blocks, node.depth) < len(child.blocks):
                return False
            node = child
        if node.depth != len(blocks) or node.parent is None or node.children or node.pins:
            return False
        self._cut(node, 1)
        return True

    def nodes(self) -> Iterator[RadixNode]:
        """Iterate over all nodes but the root, each before those behind it."""
        pending = list(self.root.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending += node.children.values()

    def _tick(self) -> int:
        self._now += 1
        return self._now

    @staticmethod
    def _path(node: RadixNode) -> Iterator[RadixNode]:
        """Iterate from a node up to the root, which is left out."""
        while node.parent is not None:
            yield node
            node = node.parent

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Split a node after ``length`` blocks; return the new node, which holds those and is before it."""
        parent = node.parent
        assert parent is not None
        head = RadixNode(node.blocks[:length], parent, self._tick(), node.priority)
        head.hits, head.pins, head.longest = node.hits, node.pins, node.longest
        parent.children[head.blocks[0]] = head
        del node.blocks[:length]
        head.children[node.blocks[0]] = node
        node.parent = head
        self._count += 1
        self._queue(node)
        return head

    def _cut(self, node: RadixNode, count: int) -> list[Hashable]:
        """Drop the last blocks of a leaf; return them, the last one first."""
        first = node.blocks[0]
        dropped = node.blocks[: -count - 1 : -1]
        del node.blocks[-count:]
        node.depth -= count
        self.size -= count
        if node.blocks:
            self._queue(node)
        elif node.parent is not None:
            node.number = 0
            self._count -= 1
            del node.parent.children[first]
            self._queue(node.parent)
        return dropped

    def _queue(self, node: RadixNode) -> None:
        """Enter a node into the order of eviction anew if it can be dropped."""
        if node.children or node.pins or node.parent is None:
            return
        node.number = next(self._entries)
        heapq.heappush(self._order, (self._evictor(node), node.number, node))
        if len(self._order) > 64 + 4 * self._count:
            self._order = [entry for entry in self._order if entry[1] == entry[2].number]
            heapq.heapify(self._order)


def _common(run: list[Hashable], blocks: Sequence[Hashable], start: int) -> int:
    """Return how many leading blocks of ``run`` are ``blocks[start]`` and those that follow."""
    part = list(blocks[start : start + len(run)])
    if part == run:
        return len(run)
    # Lists are compared much faster than their elements one by one.
    low, high = 0, len(part)
    while low < high:
        middle = (low + high + 1) // 2
        if part[low:middle] == run[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
