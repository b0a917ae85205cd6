"""The clock of time limits, which stops while functions are compiled, once on a machine."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident, local

_LOG = logging.getLogger(__name__)
_BEYOND_S = 1e9
"""Later than every deadline, and small enough to be added and subtracted exactly to the microsecond."""


class _Own(local):
    """When time is up for a thread."""

    until_s = math.inf


class Stopwatch:
    """Time that searches have had.

    A process has one, `STOPWATCH`, as it has one compiler (`optsched.machine_code` tells it); the compiler lets one
    thread in at a time, and may call itself. When it starts for the first time, the log of this module says so (level
    INFO).
    """

    def __init__(self) -> None:
        self._compiled_s = 0.0
        self._since_s = 0.0
        self._depth = 0
        self._told = False
        self._over = set[int]()
        self._own = _Own()

    def now_s(self) -> float:
        """Return the seconds of ``time.perf_counter`` that were not spent compiling; in a thread that is over, more."""
        return self._clock_s() + (_BEYOND_S if self.is_over() else 0.0)

    def is_over(self) -> bool:
        """Return whether time is up for this thread, by `end` or by `limited`."""
        return get_ident() in self._over or self.left_s() < 0

    def left_s(self) -> float:
        """Return the seconds that this thread has left by `limited`, less than 0 if they are over."""
        return self._own.until_s - self._clock_s()

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Let time be up for what this thread does in a block that takes longer; blocks may be in one another."""
        former = self._own.until_s
        self._own.until_s = min(former, self._clock_s() + seconds)
        try:
            yield
        finally:
            self._own.until_s = former

    def end(self, thread: int) -> None:
        """Let time be up for what a thread does, by its ``ident``, whatever the limit is that it looks at."""
        self._over.add(thread)

    def forget(self, thread: int) -> None:
        """Take note that a thread has ended; another may get its ``ident``."""
        self._over.discard(thread)

    def compiling(self) -> None:
        """Take note that the compiler starts."""
        if not self._told:
            self._told = True
            _LOG.info("compiling once on this machine, 10 to 30 s")
        if not self._depth:
            self._since_s = time.perf_counter()
        self._depth += 1

    def compiled(self) -> None:
        """Take note that it has ended."""
        self._depth -= 1
        if not self._depth:
            self._compiled_s += time.perf_counter() - self._since_s

    def _clock_s(self) -> float:
        return (self._since_s if self._depth else time.perf_counter()) - self._compiled_s


STOPWATCH = Stopwatch()
now_s = STOPWATCH.now_s
