"""Bounds that get better for long, found in a process of their own: threads of one process take turns to compute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import cast

from optsched.bounds.bound import Bound
from optsched.failures import FAILURES, failure_text
from optsched.model.instance import Instance
from optsched.model.objectives import Objective

_Bounds = Callable[[Instance, Objective], Iterator[Bound | None]]


class BoundsApart:
    """A process that goes through bounds, and sends what it finds.

    Parameters
    ----------
    target
        ``module:function`` that yields a bound that is better than those before, or None, for every round.
    instance, objective
        What is bounded.

    Attributes
    ----------
    best
        The last bound so far, not checked; None if there is none.
    rounds
        Rounds so far.
    has_ended
        Whether there will be no more.
    failure
        Why it has failed; empty if it has not.
    """

    def __init__(self, target: str, instance: Instance, objective: Objective) -> None:
        self.best: Bound | None = None
        self.rounds, self.has_ended, self.failure = 0, False, ""
        self._connection, theirs = Pipe()
        with theirs:
            # In a session of its own Ctrl-C does not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self._connection.send((target, instance, objective))
        except BaseException:
            self.end()
            raise

    def look(self, seconds: float = 0.0) -> None:
        """Take what has come, and wait for it so long if there is nothing."""
        while not self.has_ended and self._connection.poll(seconds):
            seconds = 0.0
            try:
                found = self._connection.recv()
            except (EOFError, OSError):
                found = "its process has ended"
            if isinstance(found, str):
                self.has_ended, self.failure = True, found
            else:
                self.rounds += 1
                self.best = found or self.best

    def end(self) -> None:
        """End the process."""
        self.has_ended = True
        self._process.kill()
        self._process.wait()
        self._connection.close()


def main() -> None:
    """Send bounds to standard input, which is a socket; at last a text, empty if nothing has failed."""
    connection = Connection(os.dup(sys.stdin.fileno()))
    with suppress(OSError):  # what started it has ended
        try:
            target, instance, objective = connection.recv()
            module, _, name = target.partition(":")
            for found in cast(_Bounds, getattr(import_module(module), name))(instance, objective):
                connection.send(found)
        except FAILURES as error:
            connection.send(failure_text(error))
        else:
            connection.send("")
