"""The prompts of requests that have not ended, and how many different blocks they have."""

from __future__ import annotations

from collections.abc import Sequence

from optsched.cache.prompt_tree import PromptTree
from optsched.routers.router import Piece


class ActivePrompts:
    """Prompts on one machine.

    Parameters
    ----------
    block
        b, tokens of a block; only full blocks of prompts count.
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._tree: PromptTree[list[int]] = PromptTree(new=lambda: [0], split=list)
        self.blocks = 0
        """Different full blocks of all prompts."""

    def more(self, prompt: Sequence[Piece], tokens: int) -> int:
        """Return how many full blocks of a prompt of ``tokens`` tokens no other has."""
        _, shared = self._tree.find(prompt)
        return tokens // self._block - shared // self._block

    def add(self, prompt: Sequence[Piece], tokens: int) -> None:
        """Add a prompt."""
        self.blocks += self.more(prompt, tokens)
        node, _ = self._tree.insert(prompt)
        while node.parent is not None:
            node.data[0] += 1
            node = node.parent

    def remove(self, prompt: Sequence[Piece], tokens: int) -> None:
        """Remove a prompt that was added."""
        node, _ = self._tree.find(prompt)
        while node.parent is not None:
            node.data[0] -= 1
            if not node.data[0]:
                self._tree.remove(node)
            node = node.parent
        self.blocks -= self.more(prompt, tokens)
