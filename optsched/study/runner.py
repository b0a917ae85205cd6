"""Where trials run: in this process, in processes of this machine, or on a cluster, behind one small protocol."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from optsched.model.instance import Instance
from optsched.solvers.formulation import Progress, silent
from optsched.study.execute import Outcome, execute
from optsched.study.trial import Trial
from optsched.study.worker import Allowance, Worker


class Runner(Protocol):
    """Carries out trials; each that is started is returned once by `finished`, whatever becomes of it."""

    @property
    def slots(self) -> int:
        """How many trials are worth starting at once."""
        ...

    def start(self, trial: Trial) -> None:
        """Start a trial."""
        ...

    def finished(self, timeout_s: float) -> list[tuple[Trial, Outcome]]:
        """Return trials that have ended and their outcomes, after waiting for one at most ``timeout_s``."""
        ...

    def close(self) -> None:
        """End what still runs."""
        ...


class Here:
    """Runs a trial in this process, when it is asked what has finished; nothing is started, and nothing limited.

    Parameters
    ----------
    watch
        Returns what is called with the progress of the search on an instance.
    """

    slots = 1

    def __init__(self, watch: Callable[[Instance], Progress] = lambda _: silent) -> None:
        self._watch = watch
        self._waiting: list[Trial] = []

    def start(self, trial: Trial) -> None:
        """Keep a trial for `finished`."""
        self._waiting.append(trial)

    def finished(self, timeout_s: float) -> list[tuple[Trial, Outcome]]:
        """Carry out the trial that was started."""
        trials, self._waiting = self._waiting, []
        return [(trial, execute(trial, self._watch(trial.instance))) for trial in trials]

    def close(self) -> None:
        """End nothing: nothing runs between calls."""


class Futures:
    """Runs trials as futures, of whatever executor a subclass starts them with."""

    def __init__(self) -> None:
        self._running: dict[Future[Any], Trial] = {}

    def finished(self, timeout_s: float) -> list[tuple[Trial, Outcome]]:
        """Return what has ended."""
        done, _ = wait(self._running, timeout_s, FIRST_COMPLETED)
        return [(self._running.pop(future), self._outcome(future)) for future in done]

    def _outcome(self, future: Future[Any]) -> Outcome:
        outcome: Outcome = future.result()
        return outcome


class Processes(Futures):
    """Runs trials in processes of this machine, which stay alive between them.

    Parameters
    ----------
    slots
        How many; None for one per core.
    allowance
        What each trial may use.
    """

    def __init__(self, slots: int | None = None, allowance: Allowance | None = None) -> None:
        super().__init__()
        self.slots = slots or os.cpu_count() or 1
        self._workers = [Worker(allowance or Allowance()) for _ in range(self.slots)]
        self._idle = list(self._workers)
        self._pool = ThreadPoolExecutor(self.slots)

    def start(self, trial: Trial) -> None:
        """Start a trial as soon as a process is idle."""
        self._running[self._pool.submit(self._run, trial)] = trial

    def _run(self, trial: Trial) -> Outcome:
        worker = self._idle.pop()  # as many as threads
        try:
            return worker.run(trial)
        finally:
            self._idle.append(worker)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.kill()
        self._pool.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
