"""Compiling the few loops that profiles show: numba behind a typed decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function of numbers, arrays and named tuples of arrays to machine code, kept on disk between runs.

    It releases the interpreter's lock. Whatever it is called with decides its types; integers wrap at 64 bits.
    """
    return cast(Function, numba.njit(cache=True, nogil=True)(function))
