"""Several machines: what papers report of routers, beside what this simulator finds; a section for each paper.

    python benchmarks/cluster_findings.py --page docs/findings-clusters.md

Two processes, under 15 minutes on two cores. Give papers' names to measure only these; other sections of the page stay
as they are.
"""

from __future__ import annotations

import click

from findings import report
from optsched.cli import run_program
from optsched.cli.options import file_option

PAPERS = ("sal", "e2", "distserve", "lag")
"""Modules of `papers.routing`, in the order of the page."""
_LONGEST_FIRST = ("e2", "sal", "distserve", "lag")


@click.command(help=__doc__)
@click.argument("papers", nargs=-1, type=click.Choice(PAPERS), metavar="[PAPER]...")
@file_option("--page", "Markdown file whose sections, one for each paper, are replaced.")
def main(papers: tuple[str, ...], page: str | None) -> None:
    """Measure and report."""
    chosen = papers or PAPERS
    modules = {paper: f"routing.{paper}" for paper in _LONGEST_FIRST if paper in chosen}
    report(chosen, modules, page)


if __name__ == "__main__":
    run_program(main, "cluster_findings.py")
