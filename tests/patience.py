"""Waiting for what a slow or busy machine needs longer for: tests wait for events and results, not for the clock."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Found = TypeVar("Found")

PATIENCE_S = 600.0
"""Longer than anything takes that is waited for; what takes as long hangs."""


def with_time_enough(attempt: Callable[[float], Found], enough: Callable[[Found], bool], seconds: float) -> Found:
    """Return what an attempt finds within the first of ever longer time limits that are enough for it.

    The limits are ``seconds`` and four, 16 and 64 times as many. What the last one finds is returned in any case.
    """
    found = attempt(seconds)
    for factor in (4, 16, 64):
        if enough(found):
            break
        found = attempt(factor * seconds)
    return found


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


@contextmanager
def interrupts(delay_s: float, again_s: float = 0.0) -> Iterator[Callable[[object], None]]:
    """Give a progress callback; from its first call on it takes ``delay_s`` until Ctrl-C comes, and comes again.

    So the search has begun, however long what stands before it takes.
    """
    armed: list[object] = []

    def progress(event: object) -> None:
        if not armed:
            armed.append(event)
            signal.setitimer(signal.ITIMER_REAL, delay_s, again_s)

    former = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield progress
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
