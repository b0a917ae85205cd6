"""Ctrl-C while a solver runs: it stops, and what it has found is kept.

Python delivers Ctrl-C in its main thread, and only between two of its own instructions. So a solver runs in another
thread while the main one waits. As a formulation may catch the interrupt to return its result so far, the caller
records the signal separately.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib.machinery import ExtensionFileLoader
from itertools import count
from types import FrameType

from optsched.stopwatch import STOPWATCH

_SPARED = 4
"""How many times Ctrl-C may come after the first and raise nothing: a result may be read then, or checked."""
_UNHEARD = frozenset(
    {"__del__", "_raw_object_cache_notify", "_raw_object_cache_getbuffer", "_numba_unpickle", "_promote_fields"}
)
"""Functions whose callers are not told what is raised in them: Python prints it where an object is finalised, and goes
on, as it does with what is called before and after garbage is collected (`gc.callbacks`), and when numba has compiled a
function; its compiled code, which loads the type of an array so, and numpy, which compares rows so, raise another error
instead."""
_EXTENSION = frozenset({ExtensionFileLoader.create_module.__code__, ExtensionFileLoader.exec_module.__code__})
"""What starts an extension module, which may make an `ImportError` of what is raised by imports of its own, as
OR-Tools' does."""
_UNHEARD_S = 0.01
"""Time after which Ctrl-C is sent again that came in one of these."""


def wait_interruptibly(run: Callable[[], object], stop: Callable[[], None]) -> None:
    """Run a solver in a thread of its own until it ends by itself or, at Ctrl-C or when time is up for this one, early.

    Parameters
    ----------
    run
        Starts the solver and returns when it has ended; what it raises is raised here.
    stop
        Asks the solver to end soon; called from then on until it does.
    """
    raised: list[BaseException] = []
    done, asked = threading.Event(), threading.Event()

    def guarded() -> None:
        try:
            run()
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=guarded, daemon=True)

    def wait() -> None:
        thread.start()
        while not done.wait(0.1):
            if asked.is_set() or STOPWATCH.is_over():
                stop()
        thread.join()

    # Ctrl-C must raise nothing here: the thread would keep running without its caller.
    _noting(asked, lambda _: False, wait)
    if raised:
        raise raised[0]


def until_interrupted(block: Callable[[threading.Event], object]) -> bool:
    """Run a block that Ctrl-C ends early, and return whether it came.

    The block is given an event, set at Ctrl-C, which is noticed also if something in the block catches the
    `KeyboardInterrupt`. What does so returns what it has found, and the next few Ctrl-C (`_SPARED`) do not disturb it;
    a later one ends the block after all. None is noticed outside of the main thread, nor where Ctrl-C is ignored or
    ends the process at once.

    It is no context manager: Ctrl-C between its handler's start and the first line of a ``with`` block would raise
    where nothing catches it.
    """
    came = threading.Event()
    try:
        _noting(came, lambda times: times == 1 or times > 1 + _SPARED, lambda: block(came))
    except KeyboardInterrupt:
        came.set()
    return came.is_set()


def _noting(came: threading.Event, raises: Callable[[int], bool], block: Callable[[], object]) -> None:
    """Run a block; at Ctrl-C set an event and call the handler there was, which may raise the times ``raises`` says."""
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        block()
        return

    times, over = count(1), False
    unsent, sending = threading.Event(), threading.Lock()

    def send() -> None:
        with sending:
            if unsent.is_set():
                unsent.clear()
                _interrupt_main_thread()

    def note(number: int, frame: FrameType | None) -> None:
        came.set()
        if not over and raises(1) and _is_unheard(frame):
            unsent.set()
            later = threading.Timer(_UNHEARD_S, send)
            later.daemon = True
            later.start()
            return
        with nullcontext() if not over and raises(next(times)) else suppress(KeyboardInterrupt):
            former(number, frame)

    # Ctrl-C may come at any of these lines; whenever it does, the former handler is put back.
    try:
        try:
            signal.signal(signal.SIGINT, note)
            block()
        finally:
            over = True
    finally:
        # What has not been sent again by now is the former handler's.
        with sending:
            signal.signal(signal.SIGINT, former)
        send()


def _interrupt_main_thread() -> None:
    """Send Ctrl-C to the main thread, which also ends a wait where the system can do so."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


def _is_unheard(frame: FrameType | None) -> bool:
    """Return whether a function is running out of which no exception comes."""
    silent = _EXTENSION.union(getattr(callback, "__code__", None) for callback in gc.callbacks)
    while frame is not None and frame.f_code.co_name not in _UNHEARD and frame.f_code not in silent:
        frame = frame.f_back
    return frame is not None
