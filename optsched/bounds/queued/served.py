"""Dual prices of mean busy times: first prices where prompts queue."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from optsched.bounds.queued.worths import Floats
from optsched.model.ints import Ints


def jobs_of(arrival: Ints, needs: Sequence[int]) -> list[tuple[float, float]]:
    """Return arrival and need > 0 of each request, by arrival."""
    return sorted((float(begin), float(max(need, 1))) for begin, need in zip(arrival, needs, strict=True))


def busy_prices(jobs: Sequence[tuple[float, float]], window_ps: int, windows: int) -> Floats:
    """Return mean prices of the time of one machine, in jobs, by windows from 0 on; the last does not end.

    The sum of the jobs' mean busy times is least if the job of least need goes first, with preemption. In the linear
    program of this the price of time falls with slope 1/need while a job of that need is served, whichever stretch of
    service it is: a loss in one stretch puts off work to the next one of the same job, or to what follows its last.

    Parameters
    ----------
    jobs
        Arrival and need > 0 of each, by arrival.
    window_ps, windows
        Length and number of windows.
    """
    prices, level = np.zeros(windows), np.zeros(len(jobs))
    known = np.zeros(len(jobs), np.bool_)
    price, next_begin = 0.0, -1.0
    for begin, end, job in reversed(_stretches(jobs)):
        if next_begin > end:
            price = 0.0
        need = jobs[job][1]
        if not known[job]:
            level[job], known[job] = price + end / need, True
        time = begin
        while time < end:
            window = min(int(time // window_ps), windows - 1)
            until = min(end, (window + 1.0) * window_ps) if window < windows - 1 else end
            middle = (time + until) / 2
            prices[window] += (level[job] - middle / need) * (until - time) / window_ps
            time = until
        price, next_begin = level[job] - begin / need, begin
    prices[-1] = 0
    return np.maximum(prices, 0)


def _stretches(jobs: Sequence[tuple[float, float]]) -> list[tuple[float, float, int]]:
    """Return begin, end and job of every stretch of service, the least need first."""
    waiting: list[tuple[float, int]] = []
    left = [need for _, need in jobs]
    clock, arrived, found = 0.0, 0, []
    while waiting or arrived < len(jobs):
        if not waiting:
            clock = max(clock, jobs[arrived][0])
        while arrived < len(jobs) and jobs[arrived][0] <= clock:
            heappush(waiting, (jobs[arrived][1], arrived))
            arrived += 1
        job = waiting[0][1]
        end = clock + left[job]
        if arrived < len(jobs) and jobs[arrived][0] < end:
            end = jobs[arrived][0]
        else:
            heappop(waiting)
        left[job] -= end - clock
        if end > clock:
            found.append((clock, end, job))
        clock = end
    return found
