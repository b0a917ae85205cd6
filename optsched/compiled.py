"""Compiled functions: numba behind a typed decorator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function of numbers, arrays and named tuples of arrays to machine code, kept on disk between runs.

    It releases the interpreter's lock. The arguments decide its types; integers wrap at 64 bits.
    """
    _forget_stale(Path(function.__code__.co_filename).parent)
    return cast(Function, numba.njit(cache=True, nogil=True)(function))


@cache
def _forget_stale(folder: Path) -> None:
    """Drop compiled code that is older than a module beside it: numba looks at a function's own module only.

    Functions that it calls may have changed as well, and the old code would be run.
    """
    with suppress(OSError):
        newest = max(module.stat().st_mtime for module in folder.glob("*.py"))
        for index in (folder / "__pycache__").glob("*.nbi"):
            if index.stat().st_mtime < newest:
                index.unlink(missing_ok=True)
