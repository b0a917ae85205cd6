"""Formulations side by side: each begins as soon as a core is free for it, and all end with the search."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Lock, Thread, get_ident

from optsched.methods.plan import Step
from optsched.solvers.declaration import declaration_of
from optsched.solvers.formulation import Outcome
from optsched.stopwatch import STOPWATCH

Ask = Callable[[Step, int], Outcome]
"""Lets a step search with a number of cores."""
Take = Callable[[Step, Callable[[], Outcome]], None]
"""Takes what a step has found, from a function that raises what the step has raised."""

_POLL_S = 0.1
"""Seconds between two looks at the clock."""
_PATIENCE_S = 5.0
"""Seconds that a step has to end after its time; one that looks at another clock is left behind."""


class _Lane(Thread):
    """A step on cores of its own."""

    def __init__(self, step: Step, cores: int, ask: Ask, ended: Event) -> None:
        super().__init__(daemon=True)  # a process that is told to end does not wait for it
        self.step, self.cores = step, cores
        self._ask, self._ended = ask, ended
        self._ending, self._has_ended = Lock(), False
        self._outcome: Outcome | None = None
        self._raised: BaseException | None = None

    def run(self) -> None:
        """Search, and note how it went."""
        try:
            self._outcome = self._ask(self.step, self.cores)
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

    def answer(self) -> Outcome:
        """Return what it has found, or raise what it has raised."""
        if self._outcome is None:
            assert self._raised is not None
            raise self._raised
        return self._outcome


def ask_side_by_side(steps: Sequence[Step], cores: int, ask: Ask, take: Take, over: Callable[[], bool]) -> None:
    """Let steps search, in their order, as many at a time as there are cores for.

    A step whose formulation is sequential takes one core, any other all that are free. What ends is taken at once, by
    this thread. When the search is over, or at Ctrl-C, time is up for all, and what they have found by then is taken.
    """
    waiting, ended = deque(steps), Event()
    lanes: list[_Lane] = []
    try:
        while (waiting or lanes) and not over():
            free = cores - sum(lane.cores for lane in lanes)
            if waiting and free:
                step = waiting.popleft()
                lane = _Lane(step, 1 if declaration_of(step.formulation).sequential else free, ask, ended)
                lanes.append(lane)
                lane.start()
                continue
            ended.wait(_POLL_S)
            ended.clear()
            for lane in [lane for lane in lanes if not lane.is_alive()]:
                lanes.remove(lane)
                take(lane.step, lane.answer)
    finally:
        for lane in lanes:
            lane.end()
        until = time.monotonic() + _PATIENCE_S
        for lane in lanes:
            lane.join(max(0.0, until - time.monotonic()))
            if not lane.is_alive():
                take(lane.step, lane.answer)
