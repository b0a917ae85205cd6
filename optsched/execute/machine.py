"""The device that work runs on, and its clock; everything that asks for PyTorch asks here first."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from optsched.model.errors import InputError, Said

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda")


class Clock(Protocol):
    """Tells how long work takes."""

    def time(self, work: Callable[[], object]) -> int:
        """Do the work, wait until it is done, and return how long it took, in ns."""
        ...


class WallClock:
    """For work that is done when the call returns."""

    def time(self, work: Callable[[], object]) -> int:
        """Do the work, and return how long it took, in ns."""
        begin = time.perf_counter_ns()
        work()
        return time.perf_counter_ns() - begin


class DeviceClock:
    """For work that the host only hands to a CUDA device: the device's own events around it."""

    def time(self, work: Callable[[], object]) -> int:
        """Do the work, and return how long the device took from its begin to its end, in ns."""
        import torch  # noqa: PLC0415

        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return round(begin.elapsed_time(end) * 10**6)


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
        """Memory that nobody uses, as the system says."""
        if self.device.type == "cuda":
            import torch  # noqa: PLC0415

            return int(torch.cuda.mem_get_info()[0])
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def facts(self) -> dict[str, Any]:
        """Return what a measurement should say of the device: name, driver, versions, threads."""
        import torch  # noqa: PLC0415

        versions = {name: version(name) for name in ("optsched", "torch")} | {"python": platform.python_version()}
        if self.device.type == "cuda":
            name, driver = torch.cuda.get_device_name(), _nvidia_driver()
            versions |= {"cuda": str(torch.version.cuda), "triton": version("triton")}
        else:
            name, driver = _processor(), None
        return {"device": name, "driver": driver, "versions": versions, "threads": self.threads}


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
        raise InputError("device", device, f"one of {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device", device, "a CUDA device that PyTorch can use; here is none")
    torch.set_num_threads(threads)
    return Machine(torch.device(device), DeviceClock() if device == "cuda" else WallClock(), threads)


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
