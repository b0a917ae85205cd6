"""Views of machines with given numbers: a snapshot of some moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """

    machine: int
    waiting: int = 0
    running: int = 0
    queued_tokens: int = 0
    pending_tokens: int = 0
    kv_used: int = 0
    kv_capacity: int = 0
    work_ps: int = 0
    cached: Callable[[RoutedRequest], int] = nothing_cached
