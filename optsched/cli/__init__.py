"""The command ``optsched``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import click

from optsched.cli.group import cli
from optsched.cli.streams import announcing, discard_output, use_utf_8
from optsched.model.errors import DefectError, InfeasibleInstanceError, InputError, printable

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> None:
    """Run ``optsched`` and exit: 0 done, 1 a claim or the program failed, 2 bad input, 130 interrupted.

    1 means: a check failed, an instance is infeasible, memory ran out, or optsched has a defect.
    Errors go to stderr, on one line.
    """
    use_utf_8()
    # Looking for plugins goes through all that is installed, and the documents here have none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        with _sigterm_as_interrupt(), announcing():
            code = cli.main(arguments, prog_name="optsched", standalone_mode=False)
    except InputError as error:
        _say(str(error))
        code = BAD_INPUT
    except InfeasibleInstanceError as error:
        _say(f"infeasible: {error}")
        code = FAILED
    except DefectError as error:
        _say(f"defect of optsched: {error}")
        code = FAILED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        _say(f"Missing command. (see: {_command(error)} --help)")
        code = BAD_INPUT
    except click.ClickException as error:
        _say(f"{' '.join(error.format_message().split())} (see: {_command(error)} --help)")
        code = BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted; what was finished is kept")
        code = INTERRUPTED
    except MemoryError:
        _say("out of memory")
        code = FAILED
    except OSError as error:
        discard_output()
        _say(f"{error.filename or 'standard output'}: got {error.strerror or error}, expected to read or write it")
        code = BAD_INPUT
    if arguments is None:
        _leave_behind(code or OK)
    sys.exit(code or OK)


def _leave_behind(code: int) -> None:
    """End the process at once if it would wait for a method that was left behind."""
    lanes = sys.modules.get("optsched.methods.lanes")
    if lanes is not None and lanes.are_left_behind():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)


def run_program(command: click.Command, name: str) -> None:
    """Run another program, of ``benchmarks/``; errors go to stderr on one line, with the same exit codes."""
    try:
        with _sigterm_as_interrupt():
            command.main(prog_name=name, standalone_mode=False)
    except InputError as error:
        message, code = str(error), BAD_INPUT
    except DefectError as error:
        message, code = f"defect of optsched: {error}", FAILED
    except click.ClickException as error:
        message, code = error.format_message(), BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        message, code = "interrupted; what was finished is kept", INTERRUPTED
    else:
        return
    click.echo(printable(f"{name}: {message}"), err=True)
    sys.exit(code)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Take SIGTERM, which batch systems send before they end a process, for Ctrl-C: what was finished is kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Shells start background jobs with Ctrl-C ignored.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _say(message: str) -> None:
    """Print one line on stderr, whatever names the message quotes."""
    click.echo(printable(f"optsched: {message}"), err=True)


def _command(error: click.ClickException) -> str:
    """Return the command whose help would answer a usage error."""
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "optsched"
