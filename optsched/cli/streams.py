"""Standard output that ends early, is full, or is in another encoding than documents."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from optsched.model.errors import printable


def use_utf_8() -> None:
    """Print documents in UTF-8 whatever the locale; a file name that is no text can still be printed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def discard_output() -> None:
    """Keep the interpreter from complaining when it flushes what could not be written."""
    with suppress(io.UnsupportedOperation):  # a caller in this process may have put something else there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Announcer(logging.Handler):
    """Prints what the log says to a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line on stderr."""
        if sys.stderr.isatty():
            click.echo(printable(f"optsched: {record.getMessage()}"), err=True)


@contextmanager
def announcing() -> Iterator[None]:
    """Let what optsched logs, such as that functions are compiled, reach the terminal."""
    log, announcer = logging.getLogger("optsched"), _Announcer()
    former = log.level
    log.addHandler(announcer)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(announcer)
        log.setLevel(former)
