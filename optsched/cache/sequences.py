"""The blocks of an instance's requests on one machine, by number: equal numbers for equal contents.

Blocks that end on a node of the instance's prefixes are the same for all requests whose paths contain it; all others
belong to one request (docs/problem.md, Several machines, Prefixes). So a node and a request have stretches of numbers
of their own, and nothing need be compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from optsched.cache.machine import BlockSequence
from optsched.model.instance import Instance


class BlockSequences:
    """The sequences of an instance's requests, in blocks of its machine; made when they are asked for.

    Parameters
    ----------
    instance
        Prefixes, requests, and b.

    Attributes
    ----------
    block
        b.
    """

    def __init__(self, instance: Instance) -> None:
        self._requests, self._nodes = instance.requests, instance.prefixes.by_name()
        self.block = instance.limits.kv_block
        self._of_nodes: dict[str, list[int]] = {}
        self._made: dict[int, BlockSequence] = {}
        self._private: dict[int, int] = {}
        self._next = 1
        # Where each stretch of numbers begins, whose it is, and the place of its first block there.
        self._firsts: list[int] = []
        self._owners: list[tuple[int, int]] = []

    def of(self, index: int) -> BlockSequence:
        """Return the sequence of a request."""
        if index not in self._made:
            self._made[index] = self._sequence(index)
        return self._made[index]

    def forget(self, index: int) -> None:
        """Free the memory of a sequence that will hardly be asked for again; its names stay what they are."""
        self._made.pop(index, None)

    def owners(self, names: Iterable[int]) -> list[tuple[int, int]]:
        """Return for each block a request that has it, the first that was asked for, and its place there."""
        found = []
        first = end = index = place = 0
        for name in names:
            if not first <= name < end:
                stretch = bisect_right(self._firsts, name) - 1
                first = self._firsts[stretch]
                end = self._firsts[stretch + 1] if stretch + 1 < len(self._firsts) else self._next
                index, place = self._owners[stretch]
            found.append((index, place + name - first))
        return found

    def _sequence(self, index: int) -> BlockSequence:
        request, size = self._requests[index], self.block
        names: list[int] = []
        tokens = 0
        for node in request.prefix:
            tokens += self._nodes[node].tokens
            if node not in self._of_nodes:
                count = tokens // size - len(names)
                first = self._stretch(index, len(names), count)
                self._of_nodes[node] = list(range(first, first + count))
            names += self._of_nodes[node]
        on_path = len(names)
        count = (request.input + request.output) // size - on_path
        if index not in self._private:
            self._private[index] = self._stretch(index, on_path, count)
        names += range(self._private[index], self._private[index] + count)
        return BlockSequence(names, on_path)

    def _stretch(self, index: int, place: int, count: int) -> int:
        """Return the first of so many new numbers, for blocks of a request from a place on."""
        first = self._next
        if count:
            self._next += count
            self._firsts.append(first)
            self._owners.append((index, place))
        return first
