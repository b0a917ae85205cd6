"""Best fit with splitting: documents whole on the fullest machine where they fit, else request by request."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from optsched_formulations.routing.prefix_tree import PrefixTree


@dataclass(frozen=True)
class Document:
    """Requests whose prefixes begin with the same node, the one behind the root if there is one root.

    Parameters
    ----------
    requests
        The requests, those with short prefixes first, of equal ones the longest first.
    front_ps, total_ps
        Load of the document on one machine: of what stands in front of it, and without that.
    """

    requests: tuple[int, ...]
    front_ps: int
    total_ps: int


def documents(tree: PrefixTree) -> list[Document]:
    """Return the documents of a tree."""
    roots = [node for node, parent in enumerate(tree.parents) if parent is None]
    level = 1 if len(roots) == 1 else 0
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    paths = [tree.path(request.node) for request in tree.requests]
    for request, path in enumerate(paths):
        # A request without a document of its own is one.
        groups[(0, path[level]) if len(path) > level else (1, request)].append(request)
    found = []
    for group in groups.values():
        behind = {node for request in group for node in paths[request][level:]}
        front = sum(tree.node_ps[node] for node in paths[group[0]][:level])
        total = sum(tree.node_ps[node] for node in behind) + sum(tree.requests[r].own_ps for r in group)
        group.sort(key=lambda request: (len(paths[request]), -tree.requests[request].own_ps))
        found.append(Document(tuple(group), front, total))
    return found


def best_fit(tree: PrefixTree, order: Sequence[Document], machines: int, most_ps: int) -> list[int] | None:
    """Place documents in this order with no load beyond ``most_ps``; None if that fails."""
    loads = [0] * machines
    held = [set[int]() for _ in range(machines)]
    machine_of = [-1] * len(tree.requests)

    def added(request: int, machine: int) -> int:
        time, node = tree.requests[request].own_ps, tree.requests[request].node
        while node is not None and node not in held[machine]:
            time += tree.node_ps[node]
            node = tree.parents[node]
        return time

    def put(request: int, machine: int, time: int) -> None:
        loads[machine] += time
        node = tree.requests[request].node
        while node is not None and node not in held[machine]:
            held[machine].add(node)
            node = tree.parents[node]
        machine_of[request] = machine

    for document in order:
        whole = [document.total_ps + (document.front_ps if not held[machine] else 0) for machine in range(machines)]
        fitting = [machine for machine in range(machines) if loads[machine] + whole[machine] <= most_ps]
        rest = list(document.requests)
        if fitting:
            machine = max(fitting, key=loads.__getitem__)
            for request in rest:
                put(request, machine, added(request, machine))
            continue
        while rest:
            machine, left = loads.index(min(loads)), []
            for request in rest:
                time = added(request, machine)
                if loads[machine] + time <= most_ps:
                    put(request, machine, time)
                else:
                    left.append(request)
            if len(left) == len(rest):
                return None
            rest = left
    return machine_of


def best_placement(tree: PrefixTree, machines: int, bound: int, tries: int, seed: int) -> list[int]:
    """Return the best placement of best fit, the largest load bisected, for several orders of documents."""
    generator = random.Random(seed)
    found = documents(tree)
    best = [0] * len(tree.requests)
    most = max(tree.loads_ps(best, machines))
    for attempt in range(tries):
        noise = [1 + 0.3 * generator.random() if attempt else 1.0 for _ in found]
        pairs = sorted(zip(noise, found, strict=True), key=lambda pair: -pair[0] * pair[1].total_ps)
        order = [document for _, document in pairs]
        low, high = bound, most
        while high - low > bound // 10_000:
            middle = (low + high) // 2
            placed = best_fit(tree, order, machines, middle)
            if placed is None:
                low = middle + 1
            else:
                high = max(tree.loads_ps(placed, machines))
                if high < most:
                    best, most = placed, high
    return best
