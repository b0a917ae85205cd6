"""Which block of which request has the same content as which: the tree of blocks, compressed to runs of them."""

from __future__ import annotations

from typing import NamedTuple

from optsched.model.cluster import CacheMode
from optsched.model.instance import Instance


class Segment(NamedTuple):
    """The blocks ``first``, …, ``end − 1`` of every sequence whose path contains a node.

    A block belongs to the node that contains its last position. ``node`` is the node's number, or for private blocks
    the number of nodes plus the request's index.
    """

    node: int
    first: int
    end: int


class Contents:
    """Segments of requests, in blocks of b tokens.

    With e the end of a node in tokens, its path has ⌊e/b⌋ blocks that end on it or before. So the segments of a
    request, in the order of its path, follow one another without a gap, and the private one begins at ⌊e/b⌋ of the
    whole path.

    Parameters
    ----------
    instance
        The requests and the tree.
    block
        b.
    mode
        What is cached; segments of other blocks are left out.
    """

    def __init__(self, instance: Instance, block: int, mode: CacheMode) -> None:
        self.block, self._mode = block, mode
        self._requests = instance.requests
        self._names = [node.name for node in instance.prefixes.nodes]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._tokens = [node.tokens for node in instance.prefixes.nodes]
        self._found: dict[int, tuple[Segment, ...]] = {}

    def segments(self, request: int) -> tuple[Segment, ...]:
        """Return the segments of a request that have a block which may be cached."""
        found = self._found.get(request)
        if found is None:
            found = self._found[request] = tuple(self._segments(request))
        return found

    def _segments(self, request: int) -> list[Segment]:
        found: list[Segment] = []
        if self._mode is CacheMode.NONE:
            return found
        tokens = first = 0
        for name in self._requests[request].prefix:
            number = self._numbers[name]
            tokens += self._tokens[number]
            end = tokens // self.block
            if end > first:
                found.append(Segment(number, first, end))
            first = end
        whole = (self._requests[request].input + self._requests[request].output) // self.block
        if self._mode is CacheMode.ALL and whole > first:
            found.append(Segment(len(self._names) + request, first, whole))
        return found

    def named(self, segment: int) -> str:
        """Name a segment's node, or the request whose private blocks it has."""
        if segment < len(self._names):
            return f"node {self._names[segment]}"
        return f"request {segment - len(self._names)}"
