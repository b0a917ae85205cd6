"""Methods side by side: each begins as soon as a core is free for it, and all end with the search."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread, get_ident
from typing import Any, Generic, TypeVar

from optsched.stopwatch import STOPWATCH

Answer = TypeVar("Answer")

_POLL_S = 0.1
"""Seconds between two looks at the clock."""
_PATIENCE_S = 5.0
"""Seconds that a job has to end after its time; one that looks at another clock is left behind."""
_AT_EXIT_S = 60.0
"""Seconds that the end of the process then waits for it: Python ends threads in the middle of what they run, which a
solver's own code ends by `abort`."""


@dataclass(frozen=True)
class Job(Generic[Answer]):
    """A method that searches beside others.

    Parameters
    ----------
    sequential
        Whether it uses one core; any other takes all that are free.
    search
        Lets it search with a number of cores.
    take
        Takes what it has found, from a function that raises what it has raised.
    """

    sequential: bool
    search: Callable[[int], Answer]
    take: Callable[[Callable[[], Answer]], None]


class _Lane(Thread, Generic[Answer]):
    """A job on cores of its own."""

    def __init__(self, job: Job[Answer], free: int, ended: Event) -> None:
        super().__init__(daemon=True)  # a process that is told to end does not wait for it
        self.cores = 1 if job.sequential else free
        self._job, self._ended = job, ended
        self._ending, self._has_ended = Lock(), False
        self._found: list[Answer] = []
        self._raised: BaseException | None = None

    def run(self) -> None:
        """Search, and note how it went."""
        try:
            self._found.append(self._job.search(self.cores))
        except BaseException as error:
            self._raised = error
        finally:
            with self._ending:
                STOPWATCH.forget(get_ident())
                self._has_ended = True
            self._ended.set()

    def end(self) -> None:
        """Let time be up for it."""
        with self._ending:
            if self.ident is not None and not self._has_ended:
                STOPWATCH.end(self.ident)

    def take(self) -> None:
        """Let what it has found, or raised, be taken."""
        self._job.take(self._answer)

    def _answer(self) -> Answer:
        if self._raised is not None:
            raise self._raised
        return self._found[0]


def are_left_behind() -> bool:
    """Return whether jobs still run whose time is up, for which the end of the process waits."""
    return any(isinstance(thread, _Lane) for thread in threading.enumerate())


def search_side_by_side(jobs: Sequence[Job[Any]], cores: int, over: Callable[[], bool]) -> None:
    """Let jobs search, in their order, as many at a time as there are cores for.

    What ends is taken at once, by this thread. When the search is over, or at Ctrl-C, time is up for all, and what they
    have found by then is taken.
    """
    waiting, ended = deque(jobs), Event()
    lanes: list[_Lane[Any]] = []
    try:
        while (waiting or lanes) and not over():
            free = cores - sum(lane.cores for lane in lanes)
            if waiting and free:
                lane = _Lane(waiting.popleft(), free, ended)
                lanes.append(lane)
                lane.start()
                continue
            ended.wait(_POLL_S)
            ended.clear()
            for lane in [lane for lane in lanes if not lane.is_alive()]:
                lanes.remove(lane)
                lane.take()
    finally:
        for lane in lanes:
            lane.end()
        until = time.monotonic() + _PATIENCE_S
        for lane in lanes:
            lane.join(max(0.0, until - time.monotonic()))
            if lane.is_alive():
                atexit.register(lane.join, _AT_EXIT_S)
            else:
                lane.take()
