"""Waiting for events and results instead of the clock, so that tests pass on slow and busy machines too."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Found = TypeVar("Found")

PATIENCE_S = 600.0
"""Upper limit of every wait: what takes this long hangs."""


def with_time_enough(attempt: Callable[[float], Found], enough: Callable[[Found], bool], seconds: float) -> Found:
    """Repeat an attempt with growing time limits until it finds enough; return what it has found last.

    The limits are ``seconds`` and 4, 16 and 64 times as many.
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
def interrupts(delay_s: float) -> Iterator[Callable[[object], None]]:
    """Give a progress callback that sends Ctrl-C ``delay_s`` after its first call.

    The search has begun then, however long imports and model building take.
    """
    armed: list[object] = []

    def progress(event: object) -> None:
        if not armed:
            armed.append(event)
            signal.setitimer(signal.ITIMER_REAL, delay_s)

    former = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield progress
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
