r"""Belady's rule on a prefix tree, and integer prices that prove it optimal.

Theorem
-------
Let all blocks be worth the same, and let every request be free to find all of its path. Among all ways to fill a cache
without bypass, the one that drops the blocks of farthest next use, the deepest of them first, finds the most blocks. It
never leaves a cached block behind one that it drops.

Proof
-----
A block is kept from one use to the next or it is not worth keeping. While request j is served, at most :math:`R_j`
other blocks fit beside those that it occupies. So with :math:`x_s` the number of blocks kept of run s, which was used
by i and is used next by k,

.. math:: \max \sum_s x_s \quad \text{s.t.} \sum_{s:\, i < j < k} x_s ≤ R_j \;\forall j, \quad 0 ≤ x_s ≤ c_s .

Each column has consecutive ones: the matrix is totally unimodular, and the greedy rule solves it: where too many are
kept at j, exchange any of them that an optimal solution drops there for one whose next use is farthest. The blocks of
one next use are on one path; dropping the deepest of them first leaves a leading run of it. An ancestor's next use is
no later than that of the blocks behind it, so it is dropped no earlier. ∎

*Prices.* By duality there are integers :math:`λ_j ≥ 0` with :math:`\sum_s x_s = \sum_j λ_j R_j + \sum_s c_s \max(0, 1 -
\sum_{i<j<k} λ_j)`. With :math:`P_j = \sum_{l<j} λ_l` complementary slackness is a system of differences: P never falls;
:math:`P_{j+1} = P_j` where room is left at j; :math:`P_k - P_{i+1}` is at least 1 for runs of which blocks were dropped
and at most 1 for those of which blocks were kept. It is solvable as x is optimal; its least solution is integer, and
Bellman and Ford's rounds find it.

Source: Belady 1966 (IBM Systems Journal 5); intervals on one resource: Carlisle and Lloyd 1995 (Discrete Applied
Mathematics 59).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from optsched_formulations.eviction.service import Blocks, ServiceOrder


def belady(order: ServiceOrder, rooms: Blocks) -> list[int]:
    """Return how many leading blocks every request finds if blocks of farthest next use are dropped first."""
    next_uses: list[list[tuple[int, int]]] = [[] for _ in order.runs]
    for request, runs in enumerate(order.runs):
        for run in runs:
            next_uses[run.last].append((request, run.count))
    kept: dict[int, int] = {}
    farthest: list[int] = []
    held, found = 0, []
    for request, room in enumerate(rooms.tolist()):
        hits = kept.pop(request, 0)
        held -= hits
        found.append(hits)
        while held > room:
            count = kept.get(-farthest[0], 0)
            dropped = min(count, held - room)
            held -= dropped
            if dropped == count:
                kept.pop(-heapq.heappop(farthest), None)
            else:
                kept[-farthest[0]] = count - dropped
        for following, count in next_uses[request]:
            if following not in kept:
                heapq.heappush(farthest, -following)
            kept[following] = kept.get(following, 0) + count
            held += count
    return found


def unit_prices(order: ServiceOrder, rooms: Blocks, hits: Sequence[int]) -> list[int]:
    """Return the integer prices of rooms that prove Belady's ``hits`` optimal (see the module's theorem)."""
    requests = len(order.runs)
    held = [0] * (requests + 1)
    longer: list[list[int]] = [[] for _ in range(requests + 1)]
    shorter: list[list[int]] = [[] for _ in range(requests + 1)]
    for request, (runs, found) in enumerate(zip(order.runs, hits, strict=True)):
        for run in runs:
            if run.last + 1 == request:
                continue
            kept = min(max(found - run.depth, 0), run.count)
            held[run.last + 1] += kept
            held[request] -= kept
            if kept < run.count:
                longer[request].append(run.last + 1)
            if kept:
                shorter[run.last + 1].append(request)
    for point in range(requests):
        held[point + 1] += held[point]
    slack = [held[point] < room for point, room in enumerate(rooms.tolist())]
    sums = [0] * (requests + 1)
    changed = True
    while changed:
        changed = False
        for point in range(1, requests + 1):
            least = max([sums[point - 1], *(sums[begin] + 1 for begin in longer[point])])
            if least > sums[point]:
                sums[point], changed = least, True
        for point in range(requests - 1, -1, -1):
            least = max([sums[point + 1] if slack[point] else 0, *(sums[end] - 1 for end in shorter[point])])
            if least > sums[point]:
                sums[point], changed = least, True
    return [after - before for before, after in pairwise(sums)]
