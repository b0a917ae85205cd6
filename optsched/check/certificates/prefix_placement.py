"""Placement of prefixes on equal machines: the load of a placement, and certificates that no load is smaller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from optsched.check.reading import UnprovedError, shown

_MOST_DOCUMENTS = 14
"""Documents whose groups the checker is ready to list."""


@dataclass(frozen=True)
class Placing:
    """The problem.

    Parameters
    ----------
    parents, node_ps
        Of every node, the one in front of it, None for a root, and what computing it takes.
    requests
        Of every request, the last node of its prefix, None for none, and what it takes beside that.
    machines
        R.
    """

    parents: Sequence[int | None]
    node_ps: Sequence[int]
    requests: Sequence[tuple[int | None, int]]
    machines: int

    def path(self, node: int | None) -> list[int]:
        """Return the nodes from this one to a root."""
        found: list[int] = []
        while node is not None:
            if len(found) > len(self.parents):
                raise UnprovedError("the prefixes have a cycle")
            found.append(node)
            node = self.parents[node]
        return found


def largest_load(placing: Placing, machine_of: Sequence[int]) -> int:
    """Return the largest load of a placement."""
    if len(machine_of) != len(placing.requests):
        raise UnprovedError(f"{len(machine_of)} requests are placed, expected {len(placing.requests)}")
    largest = 0
    for machine in range(placing.machines):
        mine = [request for request, at in zip(placing.requests, machine_of, strict=True) if at == machine]
        nodes = {node for last, _ in mine for node in placing.path(last)}
        largest = max(largest, sum(placing.node_ps[node] for node in nodes) + sum(own for _, own in mine))
    if not all(0 <= machine < placing.machines for machine in machine_of):
        raise UnprovedError(f"machines are {shown(sorted(set(machine_of)))}, expected from 0 to {placing.machines - 1}")
    return largest


def placement_bound(placing: Placing, certificate: Mapping[str, Any]) -> int:
    """Return the ``bound`` of a ``prefix_placement`` or ``prefix_components`` certificate if no load is smaller.

    Suppose that some placement has no load beyond ``bound`` − 1. Each machine that computes a node also computes those
    in front of it, and has only what is left for requests and nodes behind it: so from the leaves on, a node is
    computed on at least as many machines as this takes, and at least as many as any behind it. That refutes the
    placement if a request does not fit, a node needs more than all machines, or all machines together are too few
    (kind ``prefix_placement``).

    Else documents, which begin behind the common root, or with a root, are joined by machines that compute several of
    them; a request without a document is one. Machines and documents that hang together are in a tree at least, and
    each edge beyond those that the documents need anyway is a copy of one of them: of one with more requests than edges
    that it needs, as each of its machines serves one of these. Kind ``prefix_components`` lists all groups of
    documents, and how few machines each fits; no way to group them may fit all machines.
    """
    kind, bound = certificate.get("kind"), certificate.get("bound")
    if kind not in ("prefix_placement", "prefix_components"):
        raise UnprovedError(f"kind is {shown(kind)}, expected prefix_placement or prefix_components")
    if type(bound) is not int:
        raise UnprovedError(f"bound is {shown(bound)}, expected an integer")
    if any(time < 0 for time in (*placing.node_ps, *(own for _, own in placing.requests))):
        raise UnprovedError("a time is below 0")
    if bound <= 0:
        return bound
    spent, copies = _least_spent(placing, bound - 1)
    if spent is None:
        return bound
    if kind == "prefix_placement":
        raise UnprovedError(f"loads of {bound - 1} are not refuted")
    _require_no_grouping(placing, bound - 1, spent, copies)
    return bound


def _least_spent(placing: Placing, most: int) -> tuple[dict[int, int] | None, dict[int, int]]:
    """Return what all machines spend from every node on, and on how many it is; None if loads are refuted."""
    depth = {node: len(placing.path(node)) for node in range(len(placing.parents))}
    spent, copies = dict.fromkeys(depth, 0), dict.fromkeys(depth, 0)
    loose = 0
    for last, own in placing.requests:
        if own + sum(placing.node_ps[node] for node in placing.path(last)) > most:
            return None, copies
        if last is None:
            loose += own
        else:
            spent[last] += own
            copies[last] = 1
    for node in sorted(depth, key=lambda node: -depth[node]):
        left = most - sum(placing.node_ps[front] for front in placing.path(node))
        if spent[node] and left <= 0:
            return None, copies
        if spent[node]:
            copies[node] = max(copies[node], ceil(Fraction(spent[node], left)))
        if copies[node] > placing.machines:
            return None, copies
        spent[node] += copies[node] * placing.node_ps[node]
        parent = placing.parents[node]
        if parent is not None:
            spent[parent] += spent[node]
            copies[parent] = max(copies[parent], copies[node])
    total = loose + sum(spent[node] for node, parent in enumerate(placing.parents) if parent is None)
    return (None if total > placing.machines * most else spent), copies


def _require_no_grouping(placing: Placing, most: int, spent: dict[int, int], copies: dict[int, int]) -> None:
    roots = [node for node, parent in enumerate(placing.parents) if parent is None]
    common = roots[0] if len(roots) == 1 and all(last is not None for last, _ in placing.requests) else None
    room = most - (0 if common is None else placing.node_ps[common])
    served = Counter(node for last, _ in placing.requests for node in placing.path(last))
    needs = [
        (spent[node], copies[node] - 1, placing.node_ps[node] if served[node] > copies[node] else None)
        for node, parent in enumerate(placing.parents)
        if copies[node] and node != common and parent == common
    ]
    needs += [(own, 0, None) for last, own in placing.requests if last == common]
    if len(needs) > _MOST_DOCUMENTS:
        raise UnprovedError(f"there are {len(needs)} documents, at most {_MOST_DOCUMENTS} are listed")
    fewest = {frozenset[int](): 0}
    alone: dict[frozenset[int], int] = {}
    for code in range(1, 1 << len(needs)):
        group = frozenset(index for index in range(len(needs)) if code >> index & 1)
        own, spare = sum(needs[index][0] for index in group), sum(needs[index][1] for index in group)
        further = [copy for index in group if (copy := needs[index][2]) is not None]
        alone[group] = placing.machines + 1
        for count in range(1, placing.machines + 1):
            missing = max(0, count - 1 - spare)
            if (further or not missing) and own + missing * min(further, default=0) <= count * room:
                alone[group] = count
                break
    for group in sorted(alone, key=len):
        first = min(group)
        others = sorted(group - {first})
        best = alone[group]
        for code in range(1, 1 << len(others)):
            rest = frozenset(index for position, index in enumerate(others) if code >> position & 1)
            best = min(best, alone[group - rest] + fewest[rest])
        fewest[group] = best
    if fewest[frozenset(range(len(needs)))] <= placing.machines:
        raise UnprovedError(f"loads of {most} are not refuted")
