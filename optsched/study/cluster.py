"""Clusters by the engines that people have: Dask, and so Slurm and others through dask-jobqueue, and Ray.

Both get native tasks, one for each trial. A task hands the trial to a process beside the engine's own
(`optsched.study.worker`), which stays alive between tasks; so the limits of time and memory are the same everywhere.
"""

from __future__ import annotations

import atexit
import threading
from concurrent.futures import Future
from functools import cache
from typing import Any

from optsched.failures import FAILURES
from optsched.model.errors import InputError, Said
from optsched.study.execute import Outcome, received, sent
from optsched.study.record import Ended
from optsched.study.runner import Futures, Processes, Runner
from optsched.study.trial import Trial
from optsched.study.worker import Allowance, Worker

DASK, RAY = "dask", "ray"
_FORMS = f"processes, {DASK}:ADDRESS, {RAY}:ADDRESS, or {DASK}:local and {RAY}:local"


def run_remotely(trial: Trial, allowance: Allowance) -> Outcome:
    """Carry out a trial in the process beside this thread; what an engine's task does."""
    return sent(_worker_beside(threading.get_ident(), allowance).run(trial))


@cache
def _worker_beside(thread: int, allowance: Allowance) -> Worker:
    worker = Worker(allowance)
    atexit.register(worker.close)
    return worker


class _Cluster(Futures):
    """Runs trials as tasks of an engine, which itself tries a task three times again whose worker is lost."""

    def _outcome(self, future: Future[Any]) -> Outcome:
        try:
            return received(future.result())
        except FAILURES as error:
            return Outcome(Ended.LOST, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


class Dask(_Cluster):
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
        super().__init__()
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
        self._executor = self._client.get_executor(pure=False)

    @property
    def slots(self) -> int:
        """Twice the cluster's threads, so that none waits for us."""
        threads: int = sum(self._client.nthreads().values())
        return max(1, 2 * threads)

    def start(self, trial: Trial) -> None:
        """Submit a trial."""
        self._running[self._executor.submit(run_remotely, trial, self._allowance)] = trial

    def close(self) -> None:
        """Cancel what still runs."""
        self._executor.shutdown(wait=False)
        if self._own:
            self._client.close()


class Ray(_Cluster):
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
        super().__init__()
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

    @property
    def slots(self) -> int:
        """Twice the cluster's processors, so that none waits for us."""
        return max(1, 2 * int(self._library.cluster_resources().get("CPU", 1)))

    def start(self, trial: Trial) -> None:
        """Submit a trial, which takes as many processors as it has workers."""
        task = self._task.options(num_cpus=trial.workers or 1)
        self._running[task.remote(trial, self._allowance).future()] = trial

    def close(self) -> None:
        """Cancel what still runs."""
        for future in self._running:
            self._library.cancel(future.object_ref, force=True)  # type: ignore[attr-defined]  # Ray puts it there
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
