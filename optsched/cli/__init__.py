"""The command ``optsched``."""

from __future__ import annotations

import os
import sys

import click

from optsched.cli.commands import cli
from optsched.model.errors import InfeasibleInstanceError, InputError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> None:
    """Run ``optsched`` and exit: 0 done, 1 check failed or infeasible, 2 bad input, 130 interrupted.

    What is wrong goes to stderr on one line.
    """
    try:
        code = cli.main(arguments, prog_name="optsched", standalone_mode=False)
    except InputError as error:
        _say(str(error))
        code = BAD_INPUT
    except InfeasibleInstanceError as error:
        _say(f"infeasible: {error}")
        code = FAILED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = BAD_INPUT
    except click.ClickException as error:
        _say(_one_line(error))
        code = BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted; what was finished is kept")
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; keep the interpreter from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = OK
    sys.exit(code or OK)


def _say(message: str) -> None:
    click.echo(f"optsched: {message}", err=True)


def _one_line(error: click.ClickException) -> str:
    """Say a usage error on one line, with the command whose help would answer it."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "optsched"
    return f"{' '.join(error.format_message().split())} (see: {where} --help)"
