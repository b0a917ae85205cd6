"""What commands write of results: documents, a text, and messages."""

from __future__ import annotations

import click

from optsched.cli.options import write_out
from optsched.model.documents import results_text
from optsched.model.errors import InputError, printable
from optsched.model.result import Result


def deliver(results: list[Result], out: str | None, as_json: bool, text: str) -> None:
    """Write the documents to --out if given, else print the text; print it too where --out cannot be written."""
    failure: InputError | None = None
    if as_json or out is not None:
        document = results_text(results[0] if len(results) == 1 else results)
        if out is not None:
            try:
                write_out(out, document)
            except InputError as error:
                failure = error
        if as_json and out != "-":
            click.echo(document, nl=False)
    if not as_json and out != "-":
        click.echo(text, nl=False)
    if failure is not None:
        raise failure


def warn(result: Result) -> None:
    """Print a result's message on stderr, such as the methods whose code raised."""
    if result.message is not None:
        click.echo(printable(f"optsched: {result.instance.name}: {result.message}"), err=True)
