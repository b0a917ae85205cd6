"""Views of machines with given numbers: a snapshot of some moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from optsched.model.cluster import ViewAge
from optsched.routers.router import RoutedRequest


def nothing_cached(_: RoutedRequest) -> int:
    """No prompt has a cached token."""
    return 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A `MachineView` whose numbers are given; see there.

    Parameters
    ----------
    cached
        Leading prompt tokens of a request that are cached there.
    until_ps
        When the batch under way ends, whose time is part of `work_ps`; 0 for none.
    """

    machine: int
    waiting: int = 0
    running: int = 0
    queued_tokens: int = 0
    pending_tokens: int = 0
    kv_used: int = 0
    kv_capacity: int = 0
    work_ps: int = 0
    filling_tokens: int = 0
    cached: Callable[[RoutedRequest], int] = nothing_cached
    until_ps: int = 0


class SnapshotHistory:
    """The snapshots of one machine, of which a router sees the last one that is old enough.

    From one snapshot to the next only time passes, which makes the batch under way shorter.

    Parameters
    ----------
    first
        What is seen before anything else.
    age
        How old what is seen is.
    """

    def __init__(self, first: Snapshot, age: ViewAge) -> None:
        self._age = age
        self._seen, self._since_ps = first, 0
        self._later: deque[tuple[int, Snapshot]] = deque()

    def record(self, now_ps: int, snapshot: Snapshot) -> None:
        """Record the state of the machine after what happened at ``now_ps``; times never decrease."""
        self._later.append((now_ps, snapshot))

    def seen(self, now_ps: int) -> Snapshot:
        """Return what the router sees at ``now_ps``; times never decrease."""
        moment = self._age.moment(now_ps)
        while self._later and self._later[0][0] <= moment:
            self._since_ps, self._seen = self._later.popleft()
        passed = min(moment, self._seen.until_ps) - self._since_ps
        if passed > 0:
            self._seen, self._since_ps = replace(self._seen, work_ps=self._seen.work_ps - passed), moment
        return self._seen
