"""Compiling all loops in several processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module

from optsched.ahead.catalogue import WARM_UPS
from optsched.machine_code import compiled_during


def compile_all(workers: int) -> Generator[frozenset[str]]:
    """Run all warm-ups; yield for each, when it ends, the names of the loops that it has compiled.

    What was compiled before is loaded. An end before the last one keeps what is compiled by then.
    """
    context = multiprocessing.get_context("spawn")  # a fork of what has threads may hang
    with ProcessPoolExecutor(min(workers, len(WARM_UPS)), context, _leave_interrupts) as pool:
        try:
            for done in as_completed([pool.submit(_compile, target) for target in WARM_UPS.values()]):
                yield done.result()
        except BaseException:
            # Machine code is written in one go, function by function.
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _compile(target: str) -> frozenset[str]:
    """Run the warm-up ``module:function``, and return the names of the loops that it has compiled."""
    module, _, function = target.partition(":")
    return compiled_during(getattr(import_module(module), function))


def _leave_interrupts() -> None:
    """Leave Ctrl-C to the process that has started this one, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
