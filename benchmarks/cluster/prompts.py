"""Prompts in pieces as an instance has them: a tree of prefixes, and a path in it for each."""

from __future__ import annotations

from collections.abc import Sequence

from optsched.cache.contents import Piece
from optsched.cache.prompt_tree import PromptNode, PromptTree
from optsched.model.prefixes import Path, PrefixNode, PrefixTree


def prefix_tree(prompts: Sequence[Sequence[Piece]]) -> tuple[PrefixTree, list[Path]]:
    """Return the tree in which equal leading tokens are the same nodes, and the path of each prompt."""
    tree: PromptTree[None] = PromptTree(lambda: None, lambda _: None)
    for prompt in prompts:
        tree.insert(prompt)
    paths: dict[PromptNode[None], Path] = {tree.root: ()}
    nodes: list[PrefixNode] = []
    pending = list(tree.root.children.values())
    while pending:
        node = pending.pop()
        assert node.parent is not None
        before = paths[node.parent]
        name = f"p{len(nodes)}"
        nodes.append(PrefixNode(name, node.tokens, before[-1] if before else None))
        paths[node] = (*before, name)
        pending += node.children.values()
    return PrefixTree(tuple(nodes)), [paths[tree.find(prompt)[0]] for prompt in prompts]
