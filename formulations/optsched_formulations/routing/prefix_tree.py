"""Requests with prefixes in a tree, to be placed on equal machines: what `prefix_placement` works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from optsched.model.errors import InputError


@dataclass(frozen=True)
class PlacedRequest:
    """A request.

    Parameters
    ----------
    node
        The last node of its prefix; None if it has none.
    own_ps
        What it takes beside its prefix.
    """

    node: int | None
    own_ps: int


@dataclass(frozen=True)
class PrefixTree:
    """Prefixes in a tree, and the requests that have them.

    A machine that serves a request computes each node of its prefix once, however many requests share it.

    Parameters
    ----------
    parents
        The node in front of every node, None for a root.
    node_ps
        What computing every node takes, after those in front of it.
    requests
        The requests.
    """

    parents: tuple[int | None, ...]
    node_ps: tuple[int, ...]
    requests: tuple[PlacedRequest, ...]

    def __post_init__(self) -> None:
        if len(self.node_ps) != len(self.parents):
            raise InputError("node_ps", f"{len(self.node_ps)} times", f"one for each of {len(self.parents)} nodes")
        for node, (parent, time) in enumerate(zip(self.parents, self.node_ps, strict=True)):
            if parent is not None and not 0 <= parent < len(self.parents):
                raise InputError(f"parents[{node}]", parent, f"a node below {len(self.parents)}, or null")
            if time < 0:
                raise InputError(f"node_ps[{node}]", time, "a time ≥ 0")
        if not self.requests:
            raise InputError("requests", "none", "at least one")
        for index, request in enumerate(self.requests):
            if request.node is not None and not 0 <= request.node < len(self.parents):
                raise InputError(f"requests[{index}].node", request.node, f"a node below {len(self.parents)}, or null")
            if request.own_ps < 0:
                raise InputError(f"requests[{index}].own_ps", request.own_ps, "a time ≥ 0")
        if not nx.is_directed_acyclic_graph(self.graph):
            cycle = [tail for tail, _ in nx.find_cycle(self.graph)]
            raise InputError(
                f"parents[{cycle[0]}]", self.parents[cycle[0]], f"no cycle, as of the nodes {sorted(cycle)}"
            )

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The tree, or trees, as a graph with an edge from every node to those behind it."""
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(self.parents)))
        graph.add_edges_from((parent, node) for node, parent in enumerate(self.parents) if parent is not None)
        return graph

    @cached_property
    def front_first(self) -> tuple[int, ...]:
        """All nodes, each after the one in front of it."""
        return tuple(nx.topological_sort(self.graph))

    @cached_property
    def path_ps(self) -> tuple[int, ...]:
        """What computing every node takes, together with those in front of it."""
        times = list(self.node_ps)
        for node in self.front_first:
            parent = self.parents[node]
            if parent is not None:
                times[node] += times[parent]
        return tuple(times)

    def path(self, node: int | None) -> list[int]:
        """Return the nodes from a root to this one."""
        found = []
        while node is not None:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def loads_ps(self, machine_of: Sequence[int], machines: int) -> list[int]:
        """Return the load of every machine if request r goes to ``machine_of[r]``."""
        loads, held = [0] * machines, [set[int]() for _ in range(machines)]
        for request, machine in zip(self.requests, machine_of, strict=True):
            loads[machine] += request.own_ps
            node = request.node
            while node is not None and node not in held[machine]:
                held[machine].add(node)
                loads[machine] += self.node_ps[node]
                node = self.parents[node]
        return loads
