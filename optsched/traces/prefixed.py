"""Requests that share prefixes: rows of a trace, each with its path in a tree."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from optsched.cache.evictors import fifo
from optsched.cache.radix import RadixNode, RadixTree
from optsched.model.prefixes import Path, PrefixNode, PrefixTree
from optsched.traces.rows import Rows, TraceRow

Chunk = tuple[Hashable, int]
"""Tokens that are shared as a whole or not at all: what they are, and how many."""


@dataclass(frozen=True)
class PrefixedRows:
    """Requests and the tree of their prefixes.

    Parameters
    ----------
    rows
        The requests.
    paths
        The path of each.
    tree
        The tree.
    """

    rows: tuple[TraceRow, ...]
    paths: tuple[Path, ...]
    tree: PrefixTree

    def as_rows(self) -> Rows:
        """Return the rows with their paths."""
        rows = (replace(row, prefix=path) for row, path in zip(self.rows, self.paths, strict=True))
        return Rows(tuple(rows), (), self.tree)

    def in_order(self) -> PrefixedRows:
        """Return the same requests in the order of their arrival."""
        order = sorted(range(len(self.rows)), key=lambda index: self.rows[index].arrival_ps)
        return PrefixedRows(
            tuple(self.rows[index] for index in order), tuple(self.paths[index] for index in order), self.tree
        )


def share(rows: Sequence[TraceRow], sequences: Sequence[Sequence[Chunk]]) -> PrefixedRows:
    """Return rows with paths in the smallest tree in which equal leading chunks are the same nodes.

    Parameters
    ----------
    rows
        The requests.
    sequences
        The chunks that each begins with.
    """
    radix = RadixTree(fifo)
    ends = [radix.insert(sequence)[1] for sequence in sequences]
    names: dict[RadixNode, str] = {radix.root: ""}
    nodes = list[PrefixNode]()
    for node in radix.nodes():
        names[node] = f"p{len(nodes)}"
        tokens = sum(tokens for _, tokens in _chunks(node))
        assert node.parent is not None
        nodes.append(PrefixNode(names[node], tokens, names[node.parent] or None))
    paths = tuple(tuple(names[node] for node in _from_root(end)) for end in ends)
    return PrefixedRows(tuple(rows), paths, PrefixTree(tuple(nodes)))


def _chunks(node: RadixNode) -> Iterator[tuple[Hashable, int]]:
    for block in node.blocks:
        assert isinstance(block, tuple)
        yield block


def _from_root(node: RadixNode) -> list[RadixNode]:
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]
