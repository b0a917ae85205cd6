"""What papers report of their policies, beside what this simulator finds: a section for each paper.

    python benchmarks/findings.py --page docs/findings.md

Two processes, under 15 minutes on two cores. Give papers' names to measure only these; other sections of the page stay
as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from inspect import cleandoc
from statistics import median

import click

from optsched.cli import run_program
from optsched.cli.options import blaming, file_option
from optsched.model.documents import read_bytes, write_text
from optsched.report.benchmark import replace_section
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Cell, Column, Sheet
from papers.finding import Finding

PAPERS = ("kossmann", "rr_sjf", "infermax", "econoserve")
"""Modules of `papers`, in the order of the page."""
_WIDTH = 180


def measured(paper: str) -> list[Finding]:
    """Return the findings of a paper; runs in a process of its own."""
    found: list[Finding] = list(import_module(f"papers.{paper}").findings())
    return found


def shown(value: float) -> str:
    """Write a value with at least three digits."""
    return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3}f}"


def ours(finding: Finding) -> str:
    """Write the median over the seeds, and the least and the greatest value."""
    values, middle = finding.values, shown(median(finding.values))
    return middle if len(values) == 1 else f"{middle} ({shown(min(values))}–{shown(max(values))})"


def sheet(paper: str, found: Sequence[Finding]) -> Sheet:
    """Lay out the findings of a paper, with the causes below for those that are outside the paper's range."""
    causes = list(dict.fromkeys(finding.cause for finding in found if not finding.within))
    rows = [
        (
            finding.claim,
            finding.source,
            finding.paper,
            ours(finding),
            "within" if finding.within else f"outside ({causes.index(finding.cause) + 1})",
        )
        for finding in found
    ]
    columns = [
        Column(header, header, tuple(Cell(row[place], row[place]) for row in rows), key=not place, left=not place)
        for place, header in enumerate(("claim", "source", "paper", "ours", "agreement"))
    ]
    title, _, setup = cleandoc(import_module(f"papers.{paper}").__doc__ or "").partition("\n")
    agree = sum(finding.within for finding in found)
    common = f"{setup.strip()}\n\n{len(found)} claims, {agree} within the paper's range."
    notes = tuple(f"({number}) {cause}" for number, cause in enumerate(causes, 1))
    return Sheet(title.removesuffix("."), common, tuple(columns), notes)


@click.command(help=__doc__)
@click.argument("papers", nargs=-1, type=click.Choice(PAPERS), metavar="[PAPER]...")
@file_option("--page", "Markdown file whose sections, one for each paper, are replaced.")
def main(papers: tuple[str, ...], page: str | None) -> None:
    """Measure and report."""
    chosen = papers or PAPERS
    with ProcessPoolExecutor(2) as pool:
        for paper, found in zip(chosen, pool.map(measured, chosen), strict=True):
            table = sheet(paper, found)
            click.echo(as_text(table, _WIDTH))
            if page is not None:
                with blaming("--page"):
                    write_text(page, replace_section(read_bytes(page).decode(), paper, as_markdown(table)))


if __name__ == "__main__":
    run_program(main, "findings.py")
