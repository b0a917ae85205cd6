"""Standard output that ends early, is full, or is in another encoding than documents."""

from __future__ import annotations

import io
import os
import sys


def use_utf_8() -> None:
    """Print documents in UTF-8 whatever the locale; a file name that is no text can still be printed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def discard_output() -> None:
    """Keep the interpreter from complaining when it flushes what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
