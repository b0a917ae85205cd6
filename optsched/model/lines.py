"""Files of one JSON document a line that only grow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from filelock import lock_descriptor

from optsched.model.errors import InputError, Said


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Append lines by a single write that is on disk when this returns; the file is made if it is not there.

    Lines that are there are kept. Lines that several processes append do not mix.
    """
    if not lines:
        return
    try:
        with path.open("a+b", buffering=0) as file:
            # Without the lock another process's write may be half done: a line without its end. Closing unlocks.
            lock_descriptor(file.fileno())
            data = "".join(f"{line}\n" for line in lines).encode()
            if os.fstat(file.fileno()).st_size > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    data = b"\n" + data
            while data:  # a single write unless the disk is full
                data = data[file.write(data) :]
            os.fsync(file.fileno())
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
    """Return the error of a line that was parsed alone, said to be in its file."""
    return InputError(error.field.removeprefix("line 1 "), error.value, error.expected, f"{path}:{number}")
