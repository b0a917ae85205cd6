"""Compiled functions: typed decorators. Numba is loaded when one is first called (`optsched.machine_code`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from threading import RLock
from types import FunctionType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])


class _Parts:
    """The functions that compiled ones may call, until numba knows of them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[..., object], dict[str, object]]] = []
        self._lock = RLock()  # a loop's parts are loops, too

    def add(self, function: Callable[..., object], **options: object) -> None:
        """Take a function, with options of numba's."""
        self._waiting.append((function, options))

    def loop(self, function: Callable[..., object]) -> Any:
        """Return numba's dispatcher of a function, which may call all parts that are there by now."""
        with self._lock:
            from optsched.machine_code import dispatcher_of, let_loops_call  # noqa: PLC0415  # loads numba

            while self._waiting:
                part, options = self._waiting[-1]
                let_loops_call(part, **options)
                self._waiting.pop()  # only now: Ctrl-C may come before
            return dispatcher_of(function)


_PARTS = _Parts()


class Loop:
    """A function that is compiled, or loaded, when it is called, also by others that are.

    Parameters
    ----------
    function
        The function as Python runs it.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        update_wrapper(self, function)

    @cached_property
    def dispatcher(self) -> Any:
        """What numba makes of it."""
        return _PARTS.loop(self.function)

    @property
    def _numba_type_(self) -> Any:
        """Numba asks for it when it compiles a function that calls this one."""
        return self.dispatcher._numba_type_

    def __call__(self, *arguments: object) -> object:
        """Run it as machine code."""
        return self.dispatcher(*arguments)


def compiled(function: Function) -> Function:
    """Compile a function of numbers, arrays and named tuples of arrays to machine code, kept on disk if it can be.

    It releases the interpreter's lock. The arguments decide its types; integers wrap at 64 bits. It has no entry for C,
    which nothing calls and which would have to be compiled as well.
    """
    return cast(Function, Loop(cast(FunctionType, function)))


def uncompiled(function: Function) -> Function:
    """Return a compiled function as Python runs it, for so little work that compiling, or loading, would take longer.

    numpy then warns where integers wrap.
    """
    return cast(Function, cast(Loop, function).function)


def compiled_part(function: Function) -> Function:
    """Let compiled functions call a function that allocates nothing, compiled into them; from Python it runs as it is.

    So a loop in many parts is as fast as one long function and takes no longer to compile: no wrappers, no counting of
    references to arrays, and no arguments to pass.
    """
    _PARTS.add(function, forceinline=True, _nrt=False)
    return function


def compiled_helper(function: Function) -> Function:
    """Let compiled functions call a function that may allocate; from Python it runs as it is."""
    _PARTS.add(function)
    return function
