"""Clusters by the engines that people have: Dask, and so Slurm and others through dask-jobqueue, and Ray.

Both get native tasks, one for each trial. A task hands the trial to a process beside the engine's own
(`optsched.study.worker`), which stays alive between tasks; so the limits of time and memory are the same everywhere.
"""

from __future__ import annotations

import atexit
import threading
from functools import cache
from typing import Any

from optsched.model.errors import InputError, Said
from optsched.study.execute import Outcome, pack, unpack
from optsched.study.record import Ended
from optsched.study.runner import Processes, Runner
from optsched.study.trial import Trial, read_trial
from optsched.study.worker import Allowance, Worker

DASK, RAY = "dask", "ray"
_FORMS = f"processes, {DASK}:ADDRESS, {RAY}:ADDRESS, or {DASK}:local and {RAY}:local"


def run_remotely(document: bytes, allowance: Allowance) -> bytes:
    """Carry out a trial in the process beside this thread; what an engine's task does."""
    return pack(_worker_beside(threading.get_ident(), allowance).run(read_trial(document)))


@cache
def _worker_beside(thread: int, allowance: Allowance) -> Worker:
    worker = Worker(allowance)
    atexit.register(worker.close)
    return worker


def _lost(error: BaseException) -> Outcome:
    return Outcome(Ended.LOST, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


class Dask:
    """Runs trials on a cluster of Dask (package ``distributed``).

    Parameters
    ----------
    address
        The scheduler's, such as ``tcp://host:8786``; ``local`` for processes of this machine; or a client.
    allowance
        What each trial may use.
    slots
        Processes of a local cluster; None for one per core.
    """

    def __init__(self, address: Any, allowance: Allowance | None = None, slots: int | None = None) -> None:
        try:
            import distributed  # noqa: PLC0415 - an extra
        except ImportError:
            raise missing(DASK, "distributed") from None
        self._library = distributed
        self._allowance = allowance or Allowance()
        self._own = isinstance(address, str)
        if address == "local":
            self._client = distributed.Client(n_workers=slots, threads_per_worker=1, dashboard_address=None)
        elif self._own:
            try:
                self._client = distributed.Client(address, timeout=_CONNECT_S)
            except (OSError, TimeoutError, ValueError) as error:
                raise InputError("runner", address, f"the address of a Dask scheduler ({error})") from None
        else:
            self._client = address
        self._running: dict[Any, Trial] = {}

    @property
    def slots(self) -> int:
        """Twice the cluster's threads, so that none waits for us."""
        threads: int = sum(self._client.nthreads().values())
        return max(1, 2 * threads)

    def start(self, trial: Trial) -> None:
        """Submit a trial."""
        future = self._client.submit(run_remotely, trial.document, self._allowance, pure=False)
        self._running[future] = trial

    def finished(self, timeout_s: float) -> list[tuple[Trial, Outcome]]:
        """Return what has ended, also with the loss of its worker, which Dask itself has tried three times again."""
        if not self._running:
            return []
        try:
            done = self._library.wait(list(self._running), timeout=timeout_s, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            return []
        found = []
        for future in done:
            trial, error = self._running.pop(future), future.exception()
            found.append((trial, unpack(future.result()) if error is None else _lost(error)))
        return found

    def close(self) -> None:
        """Cancel what still runs."""
        self._client.cancel(list(self._running), force=True)
        if self._own:
            self._client.close()


class Ray:
    """Runs trials on a cluster of Ray.

    Parameters
    ----------
    address
        The cluster's, ``auto`` for the one that this machine is part of, ``local`` for a new one on this machine.
    allowance
        What each trial may use.
    slots
        Processors of a local cluster; None for all.
    """

    def __init__(self, address: str, allowance: Allowance | None = None, slots: int | None = None) -> None:
        try:
            import ray  # noqa: PLC0415 - an extra
        except ImportError:
            raise missing(RAY, "ray") from None
        self._library = ray
        self._allowance = allowance or Allowance()
        self._own = not ray.is_initialized()
        if self._own:
            where = {"num_cpus": slots} if address == "local" else {"address": address}
            try:
                ray.init(**where, log_to_driver=False, include_dashboard=False, logging_level="error")
            except (ConnectionError, ValueError) as error:
                raise InputError("runner", address, f"the address of a Ray cluster ({error})") from None
        self._task = ray.remote(max_retries=3)(run_remotely)
        self._running: dict[Any, Trial] = {}

    @property
    def slots(self) -> int:
        """Twice the cluster's processors, so that none waits for us."""
        return max(1, 2 * int(self._library.cluster_resources().get("CPU", 1)))

    def start(self, trial: Trial) -> None:
        """Submit a trial, which takes as many processors as it has workers."""
        task = self._task.options(num_cpus=trial.workers or 1)
        self._running[task.remote(trial.document, self._allowance)] = trial

    def finished(self, timeout_s: float) -> list[tuple[Trial, Outcome]]:
        """Return what has ended, also with the loss of its worker, which Ray itself has tried three times again."""
        if not self._running:
            return []
        done, _ = self._library.wait(list(self._running), timeout=timeout_s)
        found = []
        for reference in done:
            trial = self._running.pop(reference)
            try:
                found.append((trial, unpack(self._library.get(reference))))
            except self._library.exceptions.RayError as error:
                found.append((trial, _lost(error)))
        return found

    def close(self) -> None:
        """Cancel what still runs."""
        for reference in self._running:
            self._library.cancel(reference, force=True)
        if self._own:
            self._library.shutdown()


_CONNECT_S = 10


def missing(extra: str, package: str) -> InputError:
    """Return the error that an extra is not installed."""
    return InputError("runner", Said(f"{extra} without the package {package}"), f"pip install 'optsched[{extra}]'")


def runner_of(text: str, allowance: Allowance, slots: int | None) -> Runner:
    """Return the runner that is asked for: ``processes``, or an engine and the address of its cluster."""
    engine, _, address = text.partition(":")
    if text == "processes":
        return Processes(slots, allowance)
    if engine == DASK and address:
        return Dask(address, allowance, slots)
    if engine == RAY and address:
        return Ray(address, allowance, slots)
    raise InputError("runner", text, _FORMS)
