r"""Placement of prefixes on R equal machines: which machine serves which request, the largest load least.

Node v of a prefix tree takes :math:`c_v` on each machine that serves a request behind it; request q takes
:math:`u_q` on its machine. Preble (Srivatsa et al. 2025) calls the problem NP-hard and assigns greedily.

Theorem
-------
Let :math:`P_v` be the sum of c from the root to v, v included. If some placement has no load beyond Z, then, from the
leaves on, for every node v with a request behind it

.. math:: S_v = \sum_{q\, \text{at}\, v} u_q + \sum_{w\, \text{child of}\, v} T_w, \qquad
          Y_v = \max\Bigl(1, \max_w Y_w, \Bigl\lceil \frac{S_v}{Z - P_v} \Bigr\rceil\Bigr), \qquad
          T_v = c_v Y_v + S_v

satisfy :math:`P_v + u_q ≤ Z` for each q at v, :math:`Z > P_v` where :math:`S_v > 0`, :math:`Y_v ≤ R`, and the sum of T
over the roots, and of u over requests without a prefix, is at most R Z.

Proof
-----
By induction: v is computed on at least :math:`Y_v` machines, and what all machines spend on requests behind v and on
nodes from v on is at least :math:`T_v`. All machines together spend at least :math:`S_v` on requests at v and on what
is behind its children. Each of the machines that spend some of it holds v, for which and for what is in front of it it
spends :math:`P_v`; at most :math:`Z - P_v` is left. A machine that holds a child holds v. So at least :math:`Y_v`
machines compute v. What is spent in all is the sum over the roots. ∎

The bound is the least Z with these properties, by bisection: at :math:`Z - 1` one fails. *Tight* where many requests
share a prefix, or loads are small against Z. *Loose* where a few documents have to be split: the theorem lets machines
be filled to the brim with parts of requests.

*Component bound* (`component_bound`). The graph of documents and the machines that hold them falls into components;
one with k documents and r machines has at least k + r − 1 edges, each of which is a document computed once. So
documents are grouped, each group with r machines of its own and r − 1 further copies of its documents (`component`,
with the proof). All groups are listed where documents are few; with more, CP-SAT searches, and the bound is a solver's
word. It is better with few, large documents.

A placement comes from best fit with splitting (`best_fit`), polished by annealing (`placement_kernel`), and, if asked
for, by CP-SAT with the placement as a hint.

Conditions
----------
`optsched.check.certificates.prefix_placement.placement_bound` computes the numbers at Z − 1 itself. Memory is left out:
offline, what a document holds can be dropped after its last request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from optsched.model.errors import InputError
from optsched_formulations.routing.best_fit import best_placement
from optsched_formulations.routing.component import MOST_ENUMERATED, DocumentNeed, component_bound
from optsched_formulations.routing.placement_kernel import Forest, Placed, add, anneal
from optsched_formulations.routing.prefix_tree import PrefixTree

_TRIES = 6
"""Orders of documents that best fit is tried with."""
_MOVES, _MOST_MOVES = 7_500, 1_000_000_000
"""Moves in a round of annealing, between looks at the clock: for each request, and at most, times the requests."""
_HEAT = ((0.8, 0.01), (2.0, 0.02), (6.0, 0.02))
"""First and last temperatures of rounds in turn, in largest loads over requests: low ones move requests, high ones
documents."""
_PARTS = (0.25, 0.5)
"""How often only part of a group is moved, by rounds in turn."""
_COMPONENT_SHARE, _SEARCHED = 0.3, 3
"""Share of the time for the component bound where CP-SAT searches for it; that many documents a machine at most."""


@dataclass(frozen=True)
class Placement:
    """A placement and what it is worth.

    Parameters
    ----------
    machine_of
        The machine of every request.
    value
        Its largest load, ps.
    bound
        No placement has a smaller one.
    certificate
        What `optsched.check.certificates.prefix_placement` recomputes the bound from; None for one of CP-SAT.
    """

    machine_of: tuple[int, ...]
    value: int
    bound: int
    certificate: dict[str, Any] | None


def recursion_bound(tree: PrefixTree, machines: int) -> int:
    """Return the least load that the module's theorem does not refute."""
    low, high = 0, sum(tree.node_ps) + sum(request.own_ps for request in tree.requests)
    while low < high:
        middle = (low + high) // 2
        if _numbers(tree, machines, middle) is not None:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True)
class _Numbers:
    """The theorem's numbers: by node what all machines spend on it and what is behind it, and on how many it is."""

    spent: list[int]
    copies: list[int]


def _numbers(tree: PrefixTree, machines: int, most: int) -> _Numbers | None:
    """Return the theorem's numbers for loads of at most ``most``; None if they refute it."""
    count = len(tree.parents)
    spent, copies = [0] * count, [0] * count
    total = 0
    for request in tree.requests:
        front = 0 if request.node is None else tree.path_ps[request.node]
        if front + request.own_ps > most:
            return None
        if request.node is None:
            total += request.own_ps
        else:
            spent[request.node] += request.own_ps
            copies[request.node] = 1
    for node in reversed(tree.front_first):
        parent = tree.parents[node]
        if spent[node]:
            room = most - tree.path_ps[node]
            if room <= 0:
                return None
            copies[node] = max(copies[node], -(-spent[node] // room))
        if copies[node] > machines:
            return None
        spent[node] += tree.node_ps[node] * copies[node]
        if parent is None:
            total += spent[node]
        else:
            spent[parent] += spent[node]
            copies[parent] = max(copies[parent], copies[node])
    return _Numbers(spent, copies) if total <= machines * most else None


def place(tree: PrefixTree, machines: int, *, time_limit_s: float = 10.0, workers: int = 1, seed: int = 0) -> Placement:
    """Place requests so that the largest load is small, and bound it; search until the bound is met or time is up."""
    if machines < 1:
        raise InputError("machines", machines, "at least 1")
    deadline = time.perf_counter() + time_limit_s
    bound = recursion_bound(tree, machines)
    best = best_placement(tree, machines, bound, _TRIES, seed)
    value = max(tree.loads_ps(best, machines))
    kind: str | None = "prefix_placement"
    if value > bound:
        documents = len(_document_nodes(tree))
        enumerated = documents <= MOST_ENUMERATED
        searched = not enumerated and documents <= _SEARCHED * machines
        share = 1 - _COMPONENT_SHARE if searched else 1.0
        until = deadline - (1 - share) * time_limit_s
        best = _polished(tree, machines, best, (bound, until, seed))
        value = max(tree.loads_ps(best, machines))
        needs = _needs(tree, machines, value - 1) if enumerated or searched else None
        if needs is not None:
            left = deadline - time.perf_counter()
            component = component_bound(*needs, machines, (bound, value), (left, workers))
            if component > bound:
                bound, kind = component, "prefix_components" if enumerated else None
    return Placement(tuple(best), value, bound, None if kind is None else {"kind": kind, "bound": bound})


def _document_nodes(tree: PrefixTree) -> list[int]:
    """Return the nodes with which documents begin: behind the root if all requests have one, else the roots."""
    roots = [node for node, parent in enumerate(tree.parents) if parent is None]
    if len(roots) > 1 or any(request.node is None for request in tree.requests):
        return roots
    return [node for node, parent in enumerate(tree.parents) if parent is not None and parent == roots[0]]


def _needs(tree: PrefixTree, machines: int, most: int) -> tuple[list[DocumentNeed], int] | None:
    """Return what documents need if loads are at most ``most``, and the time of what is in front of all of them.

    A request without a document is one that takes nothing to copy. None if the theorem refutes such loads.
    """
    numbers = _numbers(tree, machines, most)
    if numbers is None:
        return None
    nodes = _document_nodes(tree)
    needs = [
        DocumentNeed(numbers.spent[node], numbers.copies[node], tree.node_ps[node])
        for node in nodes
        if numbers.copies[node]
    ]
    front = tree.parents[nodes[0]] if nodes else None
    needs += [DocumentNeed(request.own_ps, 1, 0) for request in tree.requests if request.node == front]
    return needs, 0 if front is None else tree.node_ps[front]


def _polished(tree: PrefixTree, machines: int, start: list[int], limits: tuple[int, float, int]) -> list[int]:
    """Anneal round after round, each from the best placement so far; ``limits`` are bound, deadline and seed."""
    bound, deadline, seed = limits
    forest, order = _forest(tree)
    best = np.array(start, dtype=np.int64)[order]
    least, round_number = max(tree.loads_ps(start, machines)), 0
    found = np.empty_like(best)
    moves = min(_MOVES * len(best), _MOST_MOVES // len(best))
    while least > bound and time.perf_counter() < deadline:
        placed = Placed(
            np.full(len(best), -1, dtype=np.int64),
            np.zeros((machines, len(tree.parents)), dtype=np.int32),
            np.zeros(machines, dtype=np.int64),
        )
        for request, machine in enumerate(best.tolist()):
            add(forest, placed, request, machine)
        hot, cold = _HEAT[round_number % len(_HEAT)]
        heat = hot * least / len(best), cold * least / len(best), _PARTS[round_number % len(_PARTS)]
        reached = anneal(forest, placed, found, heat, (moves, seed + round_number))
        round_number += 1
        if reached < least:
            least = reached
            best[:] = found
    machine_of = np.empty_like(best)
    machine_of[order] = best
    return [int(machine) for machine in machine_of]


def _forest(tree: PrefixTree) -> tuple[Forest, list[int]]:
    """Return a tree for the compiled loops, and its requests in the order that they have there."""
    children: list[list[int]] = [[] for _ in tree.parents]
    at: list[list[int]] = [[] for _ in tree.parents]
    order: list[int] = []
    for index, request in enumerate(tree.requests):
        (order if request.node is None else at[request.node]).append(index)
    for node, parent in enumerate(tree.parents):
        if parent is not None:
            children[parent].append(node)
    first, after = np.zeros(len(children), dtype=np.int64), np.zeros(len(children), dtype=np.int64)
    stack = [(node, False) for node, parent in enumerate(tree.parents) if parent is None]
    while stack:
        node, done = stack.pop()
        if done:
            after[node] = len(order)
        else:
            first[node] = len(order)
            order += at[node]
            stack.append((node, True))
            stack += [(child, False) for child in children[node]]
    requests = [tree.requests[index] for index in order]
    forest = Forest(
        np.array([-1 if parent is None else parent for parent in tree.parents], dtype=np.int64),
        np.array(tree.node_ps, dtype=np.int64),
        first,
        after,
        np.array([-1 if request.node is None else request.node for request in requests], dtype=np.int64),
        np.array([request.own_ps for request in requests], dtype=np.int64),
    )
    return forest, order
