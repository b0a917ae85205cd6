"""The command that checks result documents."""

from __future__ import annotations

import click

from optsched import library
from optsched.check import check_result
from optsched.cli.group import cli
from optsched.cli.types import FILE
from optsched.model.errors import printable


@cli.command()
@click.argument("result", type=FILE)
def check(result: str) -> int:
    """Verify schedules, values and certificates of a result document, independently of what made them."""
    failed = False
    documents = library.load_results(result)
    for position, claimed in enumerate(documents):
        report = check_result(claimed)
        content = claimed.result
        name = f"{result}[{position}]" if len(documents) > 1 else result
        for violation in report.violations:
            click.echo(printable(f"{name}: {violation}"))
        verdict = "every claim holds" if report.ok else f"{len(report.violations)} violations"
        what = f"{content.method} on {content.instance.name}, {content.status.value}, bound {content.badge.value}"
        click.echo(printable(f"{name}: {what}: {verdict}"))
        failed |= not report.ok
    return int(failed)
