"""Ctrl-C while a solver runs: it stops, and what it has found is kept.

Python delivers Ctrl-C in its main thread, and only between two of its own instructions. So a solver runs in another
thread while the main one waits. As a formulation may catch the interrupt to return its result so far, the caller
records the signal separately.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from types import FrameType

_SPARED = 4
"""How many times Ctrl-C may come after the first and raise nothing: a result may be read then, or checked."""


def wait_interruptibly(run: Callable[[], object], stop: Callable[[], None]) -> None:
    """Run a solver in a thread of its own until it ends by itself or, asked to at Ctrl-C, early.

    Parameters
    ----------
    run
        Starts the solver and returns when it has ended; what it raises is raised here.
    stop
        Asks the solver to end soon; called from Ctrl-C on until it does.
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
    # Ctrl-C must raise nothing here: the thread would keep running without its caller.
    with _noting(asked, lambda _: False):
        thread.start()
        while not done.wait(0.1):
            if asked.is_set():
                stop()
        thread.join()
    if raised:
        raise raised[0]


@contextmanager
def until_interrupted() -> Iterator[threading.Event]:
    """Run a block that Ctrl-C ends early, and give an event that is then set.

    It is set also if something in the block catches the `KeyboardInterrupt`. What does so returns what it has found,
    and the next few Ctrl-C (`_SPARED`) do not disturb it; a later one ends the block after all. The event is never set
    outside of the main thread, nor where Ctrl-C is ignored or ends the process at once.
    """
    came = threading.Event()
    try:
        with _noting(came, lambda times: times == 1 or times > 1 + _SPARED):
            yield came
    except KeyboardInterrupt:
        came.set()


@contextmanager
def _noting(came: threading.Event, raises: Callable[[int], bool]) -> Iterator[None]:
    """Set an event at Ctrl-C, and call the previous signal handler; ``raises`` says of which time it may raise."""
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        yield
        return

    times = count(1)

    def note(number: int, frame: FrameType | None) -> None:
        came.set()
        with nullcontext() if raises(next(times)) else suppress(KeyboardInterrupt):
            former(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
