"""What blocks hold: equal names for equal contents."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Piece = tuple[Hashable, int, int]
"""Tokens ``first`` to ``first + count − 1`` of a node: (node, first, count)."""


class BlockNames:
    """Names of blocks of b tokens.

    Two blocks have the same name if and only if they and all blocks before them hold the same tokens. Tokens are the
    same if they have the same node and position.

    Parameters
    ----------
    size
        b, tokens of a block.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._names: dict[tuple[int, tuple[Piece, ...]], int] = {}

    def of(self, tokens: Sequence[Piece]) -> list[int]:
        """Return the names of the whole blocks of a sequence of tokens; the first of all names is 1."""
        names: list[int] = []
        name, free, block = 0, self.size, list[Piece]()
        for node, start, count in tokens:
            first, left = start, count
            while left:
                taken = min(left, free)
                if block and block[-1][0] == node and block[-1][1] + block[-1][2] == first:
                    block[-1] = (node, block[-1][1], block[-1][2] + taken)
                else:
                    block.append((node, first, taken))
                first, left, free = first + taken, left - taken, free - taken
                if not free:
                    name = self._names.setdefault((name, tuple(block)), len(self._names) + 1)
                    names.append(name)
                    block, free = [], self.size
        return names
