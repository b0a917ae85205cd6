"""Running the command in this process."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from optsched.cli import main


class Outcome(NamedTuple):
    """What a command leaves: its exit code, and what it says."""

    code: object
    out: str
    err: str


def optsched(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """Run the command with these arguments."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return Outcome(ended.value.code, *capsys.readouterr())
