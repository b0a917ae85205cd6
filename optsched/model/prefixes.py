"""Prefixes that requests share: a tree of nodes with lengths, and paths in it (docs/problem.md, several machines).

The sequence of a request, I + O tokens, starts with a path from a root. The path may be empty, end inside the prompt,
cover it, or go on into the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from optsched.model.domain import MAX_REQUESTS, Name, Tokens, domain
from optsched.model.errors import InputError, Said, did_you_mean

Path = tuple[str, ...]
"""Names of nodes, from a root on."""
_NAMED = 4
"""Nodes of a cycle that a message names at most."""


@domain
class PrefixNode:
    """A run of tokens that requests share.

    Parameters
    ----------
    name
        What paths call it.
    tokens
        Its length, at least 1.
    parent
        The node before it; None for a root.
    """

    name: Name
    tokens: Tokens
    parent: Name | None = None


@domain
class PrefixTree:
    """Nodes that form one or more trees.

    Parameters
    ----------
    nodes
        In any order.

    Raises
    ------
    InputError
        If two nodes have one name, a parent does not exist, or the parents form a cycle.
    """

    nodes: Annotated[tuple[PrefixNode, ...], Field(max_length=MAX_REQUESTS)] = ()

    def __post_init__(self) -> None:
        by_name: dict[str, PrefixNode] = {}
        for node in self.nodes:
            if node.name in by_name:
                raise InputError(node.name, Said("two nodes"), "one node of this name, with one parent")
            by_name[node.name] = node
        listed: set[str] = set()
        front_first = True
        for node in self.nodes:
            if node.parent is not None and node.parent not in listed:
                front_first = False
                if node.parent not in by_name:
                    expected = f"the name of a node{did_you_mean(node.parent, by_name)}"
                    raise InputError(f"{node.name}.parent", node.parent, expected)
            listed.add(node.name)
        # Nodes that are all behind one listed earlier form no cycle; we write them so.
        if not front_first:
            _require_no_cycle(self.nodes)

    def by_name(self) -> Mapping[str, PrefixNode]:
        """Return the nodes by name."""
        return {node.name: node for node in self.nodes}

    def document(self) -> dict[str, dict[str, object]]:
        """Return the tree as instance documents have it: name → tokens and parent."""
        return {node.name: {"tokens": node.tokens, "parent": node.parent} for node in self.nodes}


def _require_no_cycle(nodes: Sequence[PrefixNode]) -> None:
    """Raise `InputError` for a node that is behind itself."""
    import networkx as nx  # noqa: PLC0415  # 0.1 s, and trees are hardly ever listed in another order

    graph = nx.DiGraph((node.name, node.parent) for node in nodes if node.parent is not None)
    if nx.is_directed_acyclic_graph(graph):
        return
    cyclic = {
        name
        for names in nx.strongly_connected_components(graph)
        for name in names
        if len(names) > 1 or graph.has_edge(name, name)
    }
    first = next(node for node in nodes if node.name in cyclic)
    names = [name for name, _ in nx.find_cycle(graph, first.name)]
    # A few say where to look: trees of traces have 100,000 nodes.
    cycle = " → ".join([*names[:_NAMED], "…"] if len(names) > _NAMED else [*names, first.name])
    expected = f"a node that is not behind this one (a cycle: {cycle})"
    raise InputError(f"{first.name}.parent", first.parent, expected)


def read_prefixes(document: object, field: str = "prefixes") -> PrefixTree:
    """Read a tree as instance documents have it: name → ``{"tokens": …, "parent": …}``.

    Raises
    ------
    InputError
        If it is no such tree; the message names the node.
    """
    if not isinstance(document, Mapping):
        raise InputError(field, document, "an object: name → tokens and parent")
    nodes = []
    for name, entry in document.items():
        where = f"{field}.{name}"
        if not isinstance(entry, Mapping):
            raise InputError(where, entry, "an object: tokens and parent")
        if "name" in entry:
            raise InputError(f"{where}.name", entry["name"], "no field of this name")
        if isinstance(entry.get("parent"), list | Mapping):
            raise InputError(f"{where}.parent", entry["parent"], "the name of one node, or null: a node has one parent")
        try:
            nodes.append(PrefixNode(name=name, **entry))
        except InputError as error:
            raise error.within(where) from None
    try:
        return PrefixTree(tuple(nodes))
    except InputError as error:
        raise error.within(field) from None


def path_tokens(nodes: Mapping[str, PrefixNode], path: Sequence[str], most: int, field: str = "prefix") -> int:
    """Check a path, and return its tokens.

    Parameters
    ----------
    nodes
        The nodes of the tree by name.
    path
        Names, from a root on.
    most
        I + O of its request.
    field
        What the path is called in messages.

    Raises
    ------
    InputError
        If a node is unknown, is not behind the one before it, or the path is longer than ``most``.
    """
    total, before = 0, None
    for place, name in enumerate(path):
        node = nodes.get(name)
        if node is None:
            raise InputError(f"{field}[{place}]", name, f"the name of a node of prefixes{did_you_mean(name, nodes)}")
        if node.parent != before:
            if before is None:
                expected = f"a root; the parent of this node is {node.parent}"
            else:
                expected = f"a node behind {before}; the parent of this node is {node.parent or 'none'}"
            raise InputError(f"{field}[{place}]", name, expected)
        total, before = total + node.tokens, name
    if total > most:
        raise InputError(field, Said(f"{total} tokens"), f"at most input + output = {most}")
    return total
