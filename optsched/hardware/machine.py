"""The device that work runs on, and its clock; everything that asks for PyTorch asks here first."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from optsched.model.errors import InputError, Said, one_of
from optsched.uncollected import uncollected

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda")


Work = Callable[[], object]


def _nothing() -> None:
    pass


class Clock(Protocol):
    """Tells how long work takes."""

    def times(self, work: Work, count: int, before: Work = _nothing) -> list[int]:
        """Do the work ``count`` times, wait each time until it is done, and return how long it took each time, in ns.

        Doing the work again must change nothing. ``before`` is done before each time, and does not count.
        """
        ...


class HostClock:
    """For work that is done when the call returns.

    Of one thread, its time on a core counts: like the device's time on a GPU, it leaves out what else the machine does
    meanwhile, and is the time that passes if it does nothing else. Of several threads, the time that passes counts.

    Parameters
    ----------
    threads
        How many do the work.
    """

    def __init__(self, threads: int) -> None:
        self._now = time.thread_time_ns if threads == 1 else time.perf_counter_ns

    def times(self, work: Work, count: int, before: Work = _nothing) -> list[int]:
        """Do the work ``count`` times, and return how long it took each time, in ns (see `Clock`)."""
        taken = []
        with uncollected():
            for _ in range(count):
                before()
                begin = self._now()
                work()
                taken.append(self._now() - begin)
        return taken


class DeviceClock:
    """For work that the host hands to a CUDA device.

    The work is recorded once as a CUDA graph, which is then played, with the device's own events around it: so what
    counts is the device's time, as in serving systems, whose host works ahead or plays graphs, too.
    """

    def times(self, work: Work, count: int, before: Work = _nothing) -> list[int]:
        """Do the work ``count`` times, and return how long the device took each time, in ns (see `Clock`)."""
        import torch  # noqa: PLC0415  # an extra

        work()  # whatever loads or compiles cannot be recorded
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        taken = []
        for _ in range(count):
            before()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            taken.append(round(begin.elapsed_time(end) * 10**6))
        return taken


@dataclass(frozen=True)
class Machine:
    """A device.

    Parameters
    ----------
    device
        PyTorch's name of it.
    clock
        Its clock.
    threads
        Threads of an operator on the CPU.
    """

    device: torch.device
    clock: Clock
    threads: int

    @property
    def free_bytes(self) -> int:
        """Free memory, as the system says."""
        if self.device.type == "cuda":
            import torch  # noqa: PLC0415  # an extra

            return int(torch.cuda.mem_get_info()[0])
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def facts(self) -> dict[str, Any]:
        """Return what a measurement should say of the device: name, driver, versions, threads, and what is timed."""
        import torch  # noqa: PLC0415  # an extra

        versions = {"python": platform.python_version()}
        for name in ("optsched", "torch", "triton"):
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
        if self.device.type == "cuda":
            name, driver, clock = torch.cuda.get_device_name(), _nvidia_driver(), "device"
            versions["cuda"] = str(torch.version.cuda)
        else:
            name, driver, clock = _processor(), None, "thread" if self.threads == 1 else "wall"
        return {"device": name, "driver": driver, "versions": versions, "threads": self.threads, "clock": clock}


def open_machine(device: str, threads: int = 1) -> Machine:
    """Return a device, ready to work.

    Operators of small models gain nothing from more threads than one, and one is disturbed least by what else runs.

    Raises
    ------
    InputError
        If PyTorch is not installed, or has no such device.
    """
    try:
        import torch  # noqa: PLC0415  # it takes seconds, and is an extra
    except ImportError:
        raise InputError("", Said("no PyTorch"), "it installed: pip install 'optsched[profile]'") from None
    if device not in DEVICES:
        raise InputError("device", device, one_of(device, DEVICES))
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device", device, "a CUDA device that PyTorch can use; here is none")
    torch.set_num_threads(threads)
    return Machine(torch.device(device), DeviceClock() if device == "cuda" else HostClock(threads), threads)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _nvidia_driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return found[0] if found else None
