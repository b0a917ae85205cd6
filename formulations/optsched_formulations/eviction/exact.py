r"""The most that a prefix cache can save, exactly, for a few blocks and requests; and as a programme for other solvers.

*Search.* A state after request j is the set of blocks kept: with a block the one in front of it. Requests are taken in
their order; each finds the leading run of its path that was kept, and then any set of blocks is kept that fits beside
what the next one occupies. Keeping less never helps while there is room, so of two sets with equal savings only the
larger, if it contains the smaller, stays; and only blocks that are used again are kept.

*Programme.* With :math:`x_{kd} ∈ \{0, 1\}` for "request k finds the block at depth d", last used by :math:`i_{kd}`,

.. math::
    \max \sum_{k, d} v_d\, x_{kd} \quad \text{s.t.} \quad x_{k,d+1} ≤ x_{kd}, \qquad
    \sum_{(k, d):\, i_{kd} < j < k} x_{kd} ≤ R_j \;\forall j, \qquad x_{kd} ≤ x_{k',d-1},

the last for all requests k' strictly between :math:`i_{kd}` and k that use the block in front, at depth d − 1 of both
paths: while a block is kept, so is the one in front of it.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import pulp

from optsched_formulations.eviction.service import Blocks, BlockValue, ServiceOrder

_Kept = frozenset[int]


def exact_saved(order: ServiceOrder, capacity: int, value: BlockValue) -> int:
    """Return the most that a cache of that number of blocks saves; the work grows exponentially with the blocks."""
    rooms = order.rooms(capacity).tolist()
    parent = {
        int(block): int(path[depth - 1]) if depth else None for path in order.paths for depth, block in enumerate(path)
    }
    needed: list[_Kept] = [frozenset()]
    for path in reversed(order.paths[1:]):
        needed.append(needed[-1] | frozenset(path.tolist()))
    states: dict[_Kept, int] = {frozenset(): 0}
    for path, runs, room, later in zip(order.paths, order.runs, rooms, reversed(needed), strict=True):
        used, most = path.tolist(), runs[-1].end if runs else 0
        following: dict[_Kept, int] = {}
        for kept, saved in states.items():
            hits = next((depth for depth in range(most) if used[depth] not in kept), most)
            for others in _closed_subsets(kept - frozenset(used), room, frozenset(used), parent):
                after = (others | frozenset(used)) & later
                following[after] = max(following.get(after, 0), saved + value.of(hits))
        states = {
            kept: saved
            for kept, saved in following.items()
            if not any(kept < other and saved <= most for other, most in following.items())
        }
    return max(states.values(), default=0)


def _closed_subsets(blocks: _Kept, room: int, used: _Kept, parent: dict[int, int | None]) -> list[_Kept]:
    """Return the subsets of at most ``room`` blocks in which no block is left behind a dropped one."""
    chosen = (
        frozenset(subset) for size in range(min(room, len(blocks)), -1, -1) for subset in combinations(blocks, size)
    )
    return [kept for kept in chosen if all(parent[block] in kept | used | {None} for block in kept)]


def cache_programme(order: ServiceOrder, capacity: int, value: BlockValue) -> pulp.LpProblem:
    """Return the programme of this module; its objective is what is saved.

    Its ``writeLP`` and ``writeMPS`` write it for other solvers.
    """
    problem = pulp.LpProblem("prefix_cache", pulp.LpMaximize)
    rooms: Blocks = order.rooms(capacity)
    finds: dict[tuple[int, int], pulp.LpVariable] = {}
    beside: defaultdict[int, list[pulp.LpVariable]] = defaultdict(list)
    users: defaultdict[int, list[int]] = defaultdict(list)
    behind: list[tuple[pulp.LpVariable, tuple[int, int]]] = []
    for request, (path, runs) in enumerate(zip(order.paths, order.runs, strict=True)):
        for run in runs:
            for depth in range(run.depth, run.end):
                found = problem.add_variable(f"finds_{request}_{depth}", 0, 1, pulp.LpBinary)
                finds[request, depth] = found
                for between in range(run.last + 1, request):
                    beside[between].append(found)
                if depth:
                    behind.append((found, (request, depth - 1)))
                    uses = users[int(path[depth - 1])]
                    behind += [(found, (user, depth - 1)) for user in uses if user > run.last]
        for block in path.tolist():
            users[block].append(request)
    problem += pulp.lpSum((value.of(depth + 1) - value.of(depth)) * found for (_, depth), found in finds.items())
    for request, others in beside.items():
        problem += pulp.lpSum(others) <= int(rooms[request]), f"room_{request}"
    for number, (found, front) in enumerate(behind):
        problem += found <= finds.get(front, 0), f"behind_{number}"
    return problem
