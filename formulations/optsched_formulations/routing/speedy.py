"""Completions that no assignment to R machines undercuts: shortest first offline, a machine R times as fast online."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def ends_offline(needs: Sequence[int], machines: int) -> int:
    """Return the least sum of completions on R machines that begin together: the k-th largest counts ⌈k / R⌉ times."""
    return sum((position // machines + 1) * need for position, need in enumerate(sorted(needs, reverse=True)))


def ends_of_fast_machine(arrivals: Sequence[int], needs: Sequence[int], machines: int) -> list[int]:
    """Return the completions on a machine that is R times as fast, least work left first; ascending, rounded up."""
    jobs = sorted((arrival * machines, need) for arrival, need in zip(arrivals, needs, strict=True))
    waiting: list[int] = []
    ends, clock, coming = [], 0, 0
    while waiting or coming < len(jobs):
        if not waiting:
            clock = max(clock, jobs[coming][0])
        while coming < len(jobs) and jobs[coming][0] <= clock:
            heapq.heappush(waiting, jobs[coming][1])
            coming += 1
        left = heapq.heappop(waiting)
        until = jobs[coming][0] if coming < len(jobs) else clock + left
        if clock + left <= until:
            clock += left
            ends.append(-(-clock // machines))
        else:
            heapq.heappush(waiting, left - (until - clock))
            clock = until
    return ends
