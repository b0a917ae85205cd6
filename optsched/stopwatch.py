"""The clock of time limits, which stops while functions are compiled, once on a machine."""

from __future__ import annotations

import logging
import time

_LOG = logging.getLogger(__name__)


class Stopwatch:
    """Time that searches have had.

    A process has one, `STOPWATCH`, as it has one compiler (`optsched.compiled` tells it); the compiler lets one thread
    in at a time, and may call itself. When it starts for the first time, the log of this module says so (level INFO).
    """

    def __init__(self) -> None:
        self._compiled_s = 0.0
        self._since_s = 0.0
        self._depth = 0
        self._told = False

    def now_s(self) -> float:
        """Return the seconds of ``time.perf_counter`` that were not spent compiling."""
        return (self._since_s if self._depth else time.perf_counter()) - self._compiled_s

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


STOPWATCH = Stopwatch()
now_s = STOPWATCH.now_s
