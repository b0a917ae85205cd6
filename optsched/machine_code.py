"""Machine code by numba, which takes longer to load than small questions take: it is there once a loop has run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.event import Event, Listener, install_recorder, register
from numba.extending import register_jitable

from optsched.stopwatch import STOPWATCH


class _Compiler(Listener):
    """Tells the stopwatch when numba compiles; loading what is kept on disk is no event.

    Meanwhile no garbage is collected: the compiler makes millions of objects that it keeps, and looking through them
    again and again would take a tenth of its time.
    """

    def __init__(self) -> None:
        self._collected: list[bool] = []

    def on_start(self, event: Event) -> None:
        """Stop it."""
        self._collected.append(gc.isenabled())
        gc.disable()
        STOPWATCH.compiling()

    def on_end(self, event: Event) -> None:
        """Let it run again."""
        STOPWATCH.compiled()
        if self._collected.pop():
            gc.enable()


register("numba:compile", _Compiler())  # type: ignore[no-untyped-call]


def dispatcher_of(function: Callable[..., object]) -> Any:
    """Return what compiles a function for the types that it is called with, or loads what is kept, and runs it."""
    _forget_stale(Path(function.__code__.co_filename).parent)
    kept = is_kept(function)
    return numba.njit(cache=kept, nogil=True, no_cfunc_wrapper=True)(function)  # type: ignore[call-overload]  # not in stubs


def let_loops_call(function: Callable[..., object], **options: object) -> None:
    """Let compiled functions call a function, compiled with options of numba's."""
    register_jitable(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function)


def is_kept(function: Callable[..., object]) -> bool:
    """Return whether a function's machine code can be kept: beside it, in the user's cache, or in NUMBA_CACHE_DIR."""
    try:
        FunctionCache(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no such folder may be written
        return False
    return True


def compiled_during(work: Callable[[], object]) -> frozenset[str]:
    """Do some work, and return the names, with modules, of the functions that it has compiled and kept on disk."""
    with install_recorder("numba:compile") as recorder:
        work()
    dispatchers = {event.data["dispatcher"] for _, event in recorder.buffer}
    # Parts, and numba's own functions, are compiled into others.
    kept = [each.py_func for each in dispatchers if each.stats.cache_path is not None]
    return frozenset(f"{function.__module__}.{function.__qualname__}" for function in kept)


@cache
def _forget_stale(folder: Path) -> None:
    """Drop compiled code that is older than a module beside it or beside this one: numba looks at the function's only.

    Functions that it calls may have changed as well, and the old code would be run.
    """
    with suppress(OSError):
        modules = (*folder.glob("*.py"), *Path(__file__).parent.glob("*.py"))
        newest = max(module.stat().st_mtime for module in modules)
        for index in (folder / "__pycache__").glob("*.nbi"):
            if index.stat().st_mtime < newest:
                index.unlink(missing_ok=True)
