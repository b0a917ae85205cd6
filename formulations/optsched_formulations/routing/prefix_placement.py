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

A placement comes from best fit with splitting (`best_fit`), polished by annealing (`placement_kernel`).

Conditions
----------
`optsched.check.certificates.prefix_placement.placement_bound` computes the numbers at Z − 1 itself. Memory is left out:
offline, what a document holds can be dropped after its last request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from optsched.model.errors import InputError
from optsched.stopwatch import now_s
from optsched_formulations.routing.best_fit import best_placement
from optsched_formulations.routing.component import MOST_ENUMERATED, DocumentNeed, component_bound
from optsched_formulations.routing.placement_kernel import Forest, Placed, add, anneal
from optsched_formulations.routing.prefix_tree import PlacedRequest, PrefixTree

_TRIES = 6
"""Orders of documents that best fit is tried with."""
_MOVES, _MOST_MOVES = 15_000, 1_000_000_000
"""Moves in a round of annealing, between looks at the clock: for each request, and at most, times the requests."""
_ROUNDS = (
    (True, (1.0, 0.01, 0.0, 0.2)),
    (False, (2.0, 0.02, 0.25, 2.0)),
    (False, (6.0, 0.02, 0.25, 0.2)),
    (False, (4.0, 0.02, 0.5, 2.0)),
    (False, (0.8, 0.01, 0.25, 0.2)),
)
"""Rounds of annealing in turn: whether documents are moved as they are, and the heat of `anneal`, temperatures in
largest loads over what is moved: low ones move requests, high ones documents."""
_SECOND_SEED = 1_000_003
"""What is added to the seed for rounds after the component bound."""
_COMPONENT_SHARE, _SEARCHED = 0.5, 3
"""Share of the time for the component bound where CP-SAT searches for it; that many documents a machine at most,
requests without one among them."""


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
    deadline = now_s() + time_limit_s
    bound = recursion_bound(tree, machines)
    best = best_placement(tree, machines, bound, _TRIES, seed)
    value = max(tree.loads_ps(best, machines))
    kind: str | None = "prefix_placement"
    if value > bound:
        front = _front(tree)
        documents = len(_document_nodes(tree)) + sum(request.node == front for request in tree.requests)
        enumerated = documents <= MOST_ENUMERATED
        searched = not enumerated and documents <= _SEARCHED * machines
        share = 1 - _COMPONENT_SHARE if searched else 1.0
        until = deadline - (1 - share) * time_limit_s
        best = _polished(tree, machines, best, (bound, until, seed))
        value = max(tree.loads_ps(best, machines))
        needs = _needs(tree, machines, value - 1) if enumerated or searched else None
        if needs is not None:
            left = deadline - now_s()
            component = component_bound(*needs, machines, (bound, value), (left, workers))
            if component > bound:
                bound, kind = component, "prefix_components" if enumerated else None
        best = _polished(tree, machines, best, (bound, deadline, seed + _SECOND_SEED))
        value = max(tree.loads_ps(best, machines))
    return Placement(tuple(best), value, bound, None if kind is None else {"kind": kind, "bound": bound})


def _front(tree: PrefixTree) -> int | None:
    """Return the root that is in front of all requests, None if there is none."""
    roots = [node for node, parent in enumerate(tree.parents) if parent is None]
    return roots[0] if len(roots) == 1 and all(request.node is not None for request in tree.requests) else None


def _document_nodes(tree: PrefixTree) -> list[int]:
    """Return the nodes with which documents begin: behind the root if all requests have one, else the roots."""
    front = _front(tree)
    return [node for node, parent in enumerate(tree.parents) if parent == front]


def _needs(tree: PrefixTree, machines: int, most: int) -> tuple[list[DocumentNeed], int] | None:
    """Return what documents need if loads are at most ``most``, and the time of what is in front of all of them.

    A request without a document is one by itself. None if the theorem refutes such loads.
    """
    numbers = _numbers(tree, machines, most)
    if numbers is None:
        return None
    nodes = _document_nodes(tree)
    behind = [0] * len(tree.parents)
    for request in tree.requests:
        for node in tree.path(request.node):
            behind[node] += 1
    needs = [
        DocumentNeed(numbers.spent[node], numbers.copies[node], tree.node_ps[node], behind[node])
        for node in nodes
        if numbers.copies[node]
    ]
    front = _front(tree)
    needs += [DocumentNeed(request.own_ps, 1, 0, 1) for request in tree.requests if request.node == front]
    return needs, 0 if front is None else tree.node_ps[front]


def _polished(tree: PrefixTree, machines: int, start: list[int], limits: tuple[int, float, int]) -> list[int]:
    """Anneal round after round, each from the best placement so far; ``limits`` are bound, deadline and seed."""
    bound, deadline, seed = limits
    prepared = _forest(tree)
    best, least, round_number = start, max(tree.loads_ps(start, machines)), 0
    while least > bound and now_s() < deadline:
        whole, heat = _ROUNDS[round_number % len(_ROUNDS)]
        if whole:
            pieces, piece_of = _pieces(tree, best)
            at = [0] * len(pieces.requests)
            for request, piece in enumerate(piece_of):
                at[piece] = best[request]
            moved = _annealed(_forest(pieces), at, (least, machines), (heat, seed + round_number))
            found = [moved[piece] for piece in piece_of]
        else:
            found = _annealed(prepared, best, (least, machines), (heat, seed + round_number))
        round_number += 1
        reached = max(tree.loads_ps(found, machines))
        if reached < least:
            best, least = found, reached
    return best


def _pieces(tree: PrefixTree, machine_of: list[int]) -> tuple[PrefixTree, list[int]]:
    """Return what each machine has of each document as one request, and which of them every request is in."""
    numbers: dict[tuple[int, int], int] = {}
    own_ps: list[int] = []
    piece_of = []
    counted: set[tuple[int, int]] = set()
    front = _front(tree)
    for index, (request, machine) in enumerate(zip(tree.requests, machine_of, strict=True)):
        path = [node for node in tree.path(request.node) if node != front]
        # A request without a document is one by itself.
        piece = numbers.setdefault((path[0], machine) if path else (-1 - index, machine), len(numbers))
        if piece == len(own_ps):
            own_ps.append(0)
        own_ps[piece] += request.own_ps
        for node in path:
            if (node, machine) not in counted:
                counted.add((node, machine))
                own_ps[piece] += tree.node_ps[node]
        piece_of.append(piece)
    at = None if front is None else 0
    pieces = PrefixTree(
        () if front is None else (None,),
        () if front is None else (tree.node_ps[front],),
        tuple(PlacedRequest(at, own) for own in own_ps),
    )
    return pieces, piece_of


def _annealed(
    prepared: tuple[Forest, list[int]],
    start: list[int],
    loads: tuple[int, int],
    how: tuple[tuple[float, float, float, float], int],
) -> list[int]:
    """Return the best placement of a round; ``loads`` are the largest and their number, ``how`` is heat and seed."""
    (forest, order), (largest, machines), ((hot, cold, part, mean), seed) = prepared, loads, how
    count = len(order)
    placed = Placed(
        np.full(count, -1, dtype=np.int64),
        np.zeros((machines, len(forest.parent)), dtype=np.int32),
        np.zeros(machines, dtype=np.int64),
    )
    for position, request in enumerate(order):
        add(forest, placed, position, start[request])
    found = np.empty(count, dtype=np.int64)
    unit = largest / count
    moves = min(_MOVES * count, _MOST_MOVES // count)
    anneal(forest, placed, found, (hot * unit, cold * unit, part, mean), (moves, seed))
    machine_of = np.empty(count, dtype=np.int64)
    machine_of[order] = found
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
