"""What papers report of their policies, beside what this simulator finds: a section for each paper.

    python benchmarks/findings.py --page docs/findings.md

Two processes, under 15 minutes on two cores. Give papers' names to measure only these; other sections of the page stay
as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from inspect import cleandoc
from statistics import median

import click

from optsched.cli import run_program
from optsched.cli.options import file_option
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Sheet
from papers.finding import Finding
from sections import text_columns, write_section

PAPERS = ("kossmann", "rr_sjf", "infermax", "econoserve", "preble")
"""Modules of `papers`, in the order of the page."""
_LONGEST_FIRST = ("econoserve", "infermax", "kossmann", "rr_sjf", "preble")
"""In the order in which they are begun, so that two processes end at about the same time."""
_WIDTH = 180


def measured(paper: str) -> tuple[list[Finding], list[Sheet]]:
    """Return the findings of a paper, and the tables that its module has besides; runs in a process of its own."""
    module = import_module(f"papers.{paper}")
    return list(module.findings()), list(module.tables()) if hasattr(module, "tables") else []


def shown(value: float) -> str:
    """Write a value with at least three digits, a count without a fraction."""
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3}f}"


def ours(finding: Finding) -> str:
    """Write the median over the seeds, and the least and the greatest value."""
    values, middle = finding.values, shown(median(finding.values))
    return middle if len(values) == 1 else f"{middle} ({shown(min(values))}–{shown(max(values))})"


def compared(finding: Finding) -> bool:
    """Say whether the paper has a number to compare with."""
    return finding.least is not None or finding.most is not None


def sheet(paper: str, found: Sequence[Finding]) -> Sheet:
    """Lay out the findings of a paper, with the causes below for those that are outside the paper's range."""
    causes = list(dict.fromkeys(finding.cause for finding in found if not finding.within))
    rows = [
        (
            finding.claim,
            finding.source,
            finding.paper,
            ours(finding),
            "–"
            if not compared(finding)
            else "within"
            if finding.within
            else f"outside ({causes.index(finding.cause) + 1})",
        )
        for finding in found
    ]
    columns = text_columns(("claim", "source", "paper", "ours", "agreement"), rows, keys=1)
    title, _, setup = cleandoc(import_module(f"papers.{paper}").__doc__ or "").partition("\n")
    claims = [finding for finding in found if compared(finding)]
    agree = sum(finding.within for finding in claims)
    common = f"{setup.strip()}\n\n{len(claims)} claims, {agree} within the paper's range."
    notes = tuple(f"({number}) {cause}" for number, cause in enumerate(causes, 1))
    return Sheet(title.removesuffix("."), common, columns, notes)


def report(papers: Sequence[str], modules: Mapping[str, str], page: str | None) -> None:
    """Measure papers in two processes, print their tables, and write their sections of a page.

    Parameters
    ----------
    papers
        In the order of the page.
    modules
        Their modules of `papers`, in the order in which they are begun.
    page
        Markdown file; None for none.
    """
    with ProcessPoolExecutor(2) as pool:
        running = {paper: pool.submit(measured, module) for paper, module in modules.items()}
        for paper in papers:
            found, more = running[paper].result()
            tables = [sheet(modules[paper], found), *more]
            click.echo("\n\n".join(as_text(table, _WIDTH) for table in tables))
            write_section("--page", page, paper, "\n".join(map(as_markdown, tables)))


@click.command(help=__doc__)
@click.argument("papers", nargs=-1, type=click.Choice(PAPERS), metavar="[PAPER]...")
@file_option("--page", "Markdown file whose sections, one for each paper, are replaced.")
def main(papers: tuple[str, ...], page: str | None) -> None:
    """Measure and report."""
    chosen = papers or PAPERS
    report(chosen, {paper: paper for paper in _LONGEST_FIRST if paper in chosen}, page)


if __name__ == "__main__":
    run_program(main, "findings.py")
