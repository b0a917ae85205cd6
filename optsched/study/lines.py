"""Files of one JSON document a line that only grow."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from optsched.model.errors import InputError, Said


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Append lines by a single write that is on disk when this returns; the file is made if it is not there.

    What stands in the file stays as it is. Lines that several processes append do not mix.
    """
    if not lines:
        return
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            # Another process's write may be seen half done, as a line without its end.
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            unended = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            data = ("\n" if unended else "").encode() + "".join(f"{line}\n" for line in lines).encode()
            while data:  # a single write unless the disk is full
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise InputError("", Said(error.strerror or str(error)), "a file to append to", str(path)) from None


def drop_unended_line(path: Path) -> None:
    """Cut off a last line that a crash left without its end."""
    try:
        with path.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    except OSError as error:
        raise InputError("", Said(error.strerror or str(error)), "a file to append to", str(path)) from None


def line_error(error: InputError, path: Path, number: int) -> InputError:
    """Return the error of a line that was parsed alone, said to stand in its file."""
    return InputError(error.field.removeprefix("line 1 "), error.value, error.expected, f"{path}:{number}")
