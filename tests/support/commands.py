"""Running the command, and programs of ``benchmarks/``, in this process."""

from __future__ import annotations

import sys
from typing import NamedTuple

import click
import pytest

from optsched.cli import main, run_program


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


def program(capsys: pytest.CaptureFixture[str], command: click.Command, name: str, *arguments: str) -> Outcome:
    """Run a program as its file does, which calls `run_program`, with these arguments."""
    capsys.readouterr()
    code: object = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *arguments])
        try:
            run_program(command, name)
        except SystemExit as ended:
            code = ended.code
    return Outcome(code, *capsys.readouterr())
