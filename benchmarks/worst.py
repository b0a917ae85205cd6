"""Worst cases of policies: those of the suite worst-known, solved, and the largest gaps over a whole grid, proved.

    python benchmarks/worst.py --page docs/worst-cases.md

A few minutes on one core. `optsched worst` finds such instances.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from optsched.calibrate.library import cost_model
from optsched.cli import run_program
from optsched.cli.options import file_option
from optsched.library import load_suite
from optsched.methods.policies import standard_policies
from optsched.model.instance import Instance, Rules
from optsched.model.objectives import Objective
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Sheet
from optsched.study.grid import Grid, largest_gaps
from optsched.study.worst import Search, requests_text, worst_case
from optsched.traces.worst_known import KNOWN
from sections import text_columns, write_section

_PROFILE = "a100-llama2-7b-nocall"
_GRID = Grid((1, 4), (1, 3), 3, cost_model(_PROFILE), Rules())
_SOLVED_S = 30.0
_WIDTH = 160


def _sheet(title: str, rows: Sequence[Sequence[str]], headers: Sequence[str], notes: tuple[str, ...]) -> Sheet:
    return Sheet(title, "", text_columns(headers, rows, left=2), notes)


def _milliseconds(instance: Instance, objective: Objective, value: int) -> str:
    return f"{value / objective.mean_count(instance.requests) / 1e9:.2f}"


def known_sheet() -> Sheet:
    """Return the instances of the suite with policy, best schedule and bound, and what binds."""
    rows, notes = [], []
    for known, instance in zip(KNOWN, load_suite("worst-known").instances, strict=True):
        search = Search(known.policy, known.objective, len(instance.requests), instance.cost, instance.rules)
        case = worst_case(search, instance, _SOLVED_S)
        assert case.policy.value is not None, "it serves all of the suite"
        times = (
            "–" if value is None else _milliseconds(instance, known.objective, value)
            for value in (case.policy.value, case.value, case.best.bound)
        )
        gap = f"{100 * case.gap:.1f}"
        rows.append([known.name, requests_text(instance), str(instance.limits.kv_tokens), *times, gap])
        notes.append(f"{known.name}: {case.explanation}")
    headers = ("policy, objective", "(I, O) in order", "M", "policy (ms)", "best (ms)", "bound (ms)", "gap (%)")
    return _sheet("worst-known", rows, headers, tuple(notes))


def grid_rows(policies: Sequence[str]) -> Iterator[list[str]]:
    """Yield the largest gap of each policy over the grid."""
    for largest in largest_gaps(_GRID, policies):
        if largest.instance is not None:
            yield [
                largest.policy,
                requests_text(largest.instance),
                str(largest.instance.limits.kv_tokens),
                f"{100 * largest.gap:.2f}",
                str(largest.solved),
                largest.badge.value.replace("_", " "),
            ]


def grid_sheet(policies: Sequence[str]) -> Sheet:
    """Return the largest gaps over the grid."""
    headers = ("policy", "(I, O) in order", "M", "largest gap (%)", "solved", "backed by")
    count = sum(1 for _ in _GRID.instances())
    lengths = f"I in {{{', '.join(map(str, _GRID.inputs))}}}, O in {{{', '.join(map(str, _GRID.outputs))}}}"
    title = f"Makespan, all {count:,} instances of up to {_GRID.most_requests} requests with {lengths}, every M"
    note = "Solved: how many of them had to be, until the bounds of all others left no larger gap."
    return _sheet(title, list(grid_rows(policies)), headers, (note,))


@click.command(help=__doc__)
@file_option("--page", "The page whose sections are written anew.")
def main(page: str | None) -> None:
    """Print both tables, and write them."""
    for name, sheet in (("worst-known", known_sheet()), ("worst-grid", grid_sheet(standard_policies()))):
        write_section("--page", page, name, as_markdown(sheet))
        click.echo(as_text(sheet, _WIDTH))


if __name__ == "__main__":
    run_program(main, "worst.py")
