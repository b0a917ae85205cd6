"""Requests that a loss of machine time delays: first prices where requests queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def delayed(jobs: Sequence[tuple[int, float]], window_ps: int, windows: int) -> Floats:
    """Return how many of some jobs a loss of machine time in each window would delay, shape (windows,).

    One machine serves the least need first, of those that have arrived. A job is delayed by whatever is lost since the
    machine was last idle or served a job of more need.

    Parameters
    ----------
    jobs
        When each arrives, ascending, and what it needs, in ps.
    window_ps, windows
        Length and number of windows, from 0 on.
    """
    changes = np.zeros(windows + 1)
    waiting: list[tuple[float, float]] = []
    # Spans of service, most need first; a span is forgotten when a later one has as much.
    levels, ends = [-inf], [0.0]

    def serve(need: float, end: float) -> None:
        while levels and levels[-1] >= -need:
            levels.pop()
            ends.pop()
        levels.append(-need)
        ends.append(end)

    def window(time: float) -> int:
        return min(int(time // window_ps), windows)

    clock, arrived = 0.0, 0
    while waiting or arrived < len(jobs):
        until = jobs[arrived][0] if arrived < len(jobs) else inf
        need, left = heappop(waiting) if waiting else (inf, inf)
        if need < inf and clock + left <= until:
            clock += left
            changes[window(ends[bisect_left(levels, -need) - 1])] += 1
            changes[window(clock)] -= 1
            serve(need, clock)
            continue
        if need < inf:
            heappush(waiting, (need, left - (until - clock)))
        serve(need, until)
        clock = max(clock, until)
        heappush(waiting, (jobs[arrived][1], jobs[arrived][1]))
        arrived += 1
    return np.cumsum(changes)[:windows]
