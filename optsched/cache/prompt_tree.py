"""The tree of the prompts that were seen, whether their KV is cached anywhere or not.

A radix tree over tokens whose runs are written in pieces of the instance's prefix tree, so that a prompt of a few
thousand tokens is a few pieces. Each node carries data of its user's own, which are copied when a node is split.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from optsched.cache.contents import Piece

D = TypeVar("D")


class PromptNode(Generic[D]):
    """A run of tokens.

    Attributes
    ----------
    pieces
        The run; empty only for the root.
    parent, children
        The node before (None for the root), and those behind by the node and position of their first token.
    tokens
        Tokens of the run.
    end
        Tokens from the root to the end of the run.
    data
        What its user keeps here.
    """

    __slots__ = ("children", "data", "end", "parent", "pieces", "tokens")

    def __init__(self, pieces: list[Piece], parent: PromptNode[D] | None, data: D) -> None:
        self.pieces = pieces
        self.parent = parent
        self.children: dict[tuple[Hashable, int], PromptNode[D]] = {}
        self.tokens = sum(count for _, _, count in pieces)
        self.end: int = self.tokens + (parent.end if parent else 0)
        self.data = data

    @property
    def before(self) -> int:
        """Tokens from the root to the start of the run."""
        return self.end - self.tokens


class PromptTree(Generic[D]):
    """Prompts, as a radix tree.

    Parameters
    ----------
    new
        Makes the data of a new node.
    split
        Makes the data of the head of a node that is split, from the node's own.
    """

    def __init__(self, new: Callable[[], D], split: Callable[[D], D]) -> None:
        self.root: PromptNode[D] = PromptNode([], None, new())
        self._new = new
        self._split = split

    def find(self, prompt: Sequence[Piece]) -> tuple[PromptNode[D], int]:
        """Return the deepest node that holds a token of the longest common leading run, and that run's tokens."""
        node, rest = self.root, _Rest(prompt)
        while (key := rest.key()) is not None and (child := node.children.get(key)) is not None:
            shared = rest.take(child.pieces)
            if shared < child.tokens:
                return child, node.end + shared
            node = child
        return node, node.end

    def insert(self, prompt: Sequence[Piece]) -> tuple[PromptNode[D], tuple[PromptNode[D], PromptNode[D]] | None]:
        """Insert a prompt; return the node at whose end it ends, and the head and tail of a node that was split."""
        node, rest = self.root, _Rest(prompt)
        divided = None
        while (key := rest.key()) is not None:
            child = node.children.get(key)
            if child is None:
                child = PromptNode(rest.pieces(), node, self._new())
                node.children[key] = child
                return child, divided
            shared = rest.take(child.pieces)
            if shared < child.tokens:
                divided = self.divide(child, shared), child
                child = divided[0]
            node = child
        return node, divided

    def remove(self, node: PromptNode[D]) -> None:
        """Take a node without children out of the tree."""
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.pieces[0][:2]]

    def divide(self, node: PromptNode[D], length: int) -> PromptNode[D]:
        """Split a node after ``length`` tokens; return the new node, which holds those and is before it."""
        assert node.parent is not None
        before, behind = _cut(node.pieces, length)
        head = PromptNode(before, node.parent, self._split(node.data))
        node.parent.children[before[0][:2]] = head
        node.pieces, node.parent = behind, head
        node.tokens -= length
        head.children[behind[0][:2]] = node
        return head


class _Rest:
    """What is left of a prompt on the way down."""

    def __init__(self, prompt: Sequence[Piece]) -> None:
        self._prompt = prompt
        self._index = 0
        self._used = 0

    def key(self) -> tuple[Hashable, int] | None:
        """Return node and position of the next token; None at the end."""
        if self._index == len(self._prompt):
            return None
        name, first, _ = self._prompt[self._index]
        return name, first + self._used

    def take(self, run: Sequence[Piece]) -> int:
        """Go on by the leading tokens that are those of ``run``; return how many."""
        taken = 0
        for name, first, count in run:
            left = count
            while left:
                if self.key() != (name, first + count - left):
                    return taken
                step = min(left, self._prompt[self._index][2] - self._used)
                taken += step
                left -= step
                self._used += step
                if self._used == self._prompt[self._index][2]:
                    self._index, self._used = self._index + 1, 0
        return taken

    def pieces(self) -> list[Piece]:
        """Return what is left."""
        if not self._used:
            return list(self._prompt[self._index :])
        name, first, count = self._prompt[self._index]
        return [(name, first + self._used, count - self._used), *self._prompt[self._index + 1 :]]


def _cut(pieces: Sequence[Piece], length: int) -> tuple[list[Piece], list[Piece]]:
    """Cut pieces after ``length`` tokens."""
    before: list[Piece] = []
    for index, (name, first, count) in enumerate(pieces):
        if length < count:
            head: list[Piece] = [(name, first, length)] if length else []
            return before + head, [(name, first + length, count - length), *pieces[index + 1 :]]
        before.append((name, first, count))
        length -= count
    return before, []
