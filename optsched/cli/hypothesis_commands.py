"""Hypotheses: claims decided over families of instances."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path

import click

from optsched.cli.group import cli
from optsched.cli.options import blaming, file_option, integer_option
from optsched.cli.step_bar import StepBar
from optsched.cli.stores import open_store
from optsched.cli.terminal import terminal_width
from optsched.cli.types import FILE
from optsched.model.documents import results_text, write_text
from optsched.model.errors import InputError, Said, printable
from optsched.report.formats import simple_table
from optsched.report.summary import objective_text
from optsched.study.hypotheses.hypothesis import (
    CONFIDENCE,
    Case,
    Finding,
    Hypothesis,
    Verdict,
    decide,
    read_hypothesis,
    shipped,
)
from optsched.study.runner import Here, Processes

_ALL = "all"
_SHOWN = 10
"""Most open cases that are named."""


@cli.command()
@click.argument("source", metavar="HYPOTHESIS", required=False, type=FILE)
@integer_option("--slots", 1, 1024, 1, "Trials at once.")
@click.option("--store", type=FILE, metavar="FILE", help="Take results from this store, and keep them there.")
@file_option("--out", "Write the documents of the smallest counterexample.")
@click.option("--plots", metavar="FOLDER", help="Draw the schedules of each smallest counterexample as NAME.svg there.")
def hypothesis(source: str | None, slots: int, store: str | None, out: str | None, plots: str | None) -> None:
    """Decide a claim over a family of instances (docs/study.md).

    HYPOTHESIS is a file (.toml), the name of a shipped one, or `all`; without it the shipped ones are listed.
    """
    if source is None:
        rows = [[name, _read(name).claim] for name in shipped()]
        click.echo(simple_table(["name", "claim"], rows, terminal_width(), left=(0, 1)), nl=False)
        return
    with (
        open_store(Path(store)) if store is not None else nullcontext() as kept,
        closing(Here() if slots == 1 else Processes(slots)) as runner,
    ):
        for name in shipped() if source == _ALL else (source,):
            asked = _read(name)
            with StepBar(name) as bar, blaming(source=name):
                found = decide(asked, runner, kept, bar.show)
            click.echo(printable(f"{name}: {found.verdict.value}: {asked.claim} ({asked.source})"))
            for line in _lines(asked, found):
                click.echo(printable(f"  {line}"))
            if out is not None and found.counterexample is not None:
                document = results_text(list(found.counterexample.results.values()))
                with blaming("--out"):
                    write_text(out, document)
            if plots is not None and found.counterexample is not None:
                with blaming("--plots"):
                    _draw(asked, found.counterexample, Path(plots) / f"{Path(name).stem}.svg")


def _read(name: str) -> Hypothesis:
    with blaming(source=name):
        return read_hypothesis(name)


def _draw(asked: Hypothesis, case: Case, target: Path) -> None:
    """Draw the schedules of a case, one above the other, named after the sides."""
    from optsched.plot.common import save  # noqa: PLC0415  # plots load matplotlib, an extra
    from optsched.plot.gantt import gantt_figure  # noqa: PLC0415  # only --plots draws

    drawn = {name: result for name, result in case.results.items() if result.schedule is not None}
    if drawn:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                "", Said(error.strerror or str(error)), "a folder to write to", str(target.parent)
            ) from None
        labels = [f"{name}: {result.method}" for name, result in drawn.items()]
        save(
            gantt_figure(
                list(drawn.values()), title=f"{case.instance.name}: counterexample to {asked.says}", labels=labels
            ),
            target,
        )


def _lines(asked: Hypothesis, found: Finding) -> list[str]:
    """Return what there is to say of a verdict."""
    lines = []
    failed = f"; {found.failed} without a result of each side" if found.failed else ""
    if found.mean is not None:
        low, high = (None if end is None else float(end) for end in (found.mean.low, found.mean.high))
        ends = " to ".join("∞" if end is None else f"{end:.4f}" for end in (low, high))
        lines.append(f"mean from {ends} with {CONFIDENCE:.0%} confidence, n = {len(found.cases)}{failed}")
    else:
        counts = ", ".join(f"{name} in {found.count(truth)}" for name, truth in _TRUTHS.items())
        condition = f" where {asked.where}" if asked.where is not None else ""
        condition += f", else {asked.otherwise}" if asked.otherwise is not None else ""
        lines.append(f"{asked.says}{condition}: {counts} of {len(found.cases)} cases{failed}")
    if found.verdict is Verdict.NOT_REFUTED and found.mean is None:
        lines.append(f"fails in at most {found.most_failing:.1%} of such cases with {CONFIDENCE:.0%} confidence")
    if found.counterexample is not None:
        lines.append(f"smallest counterexample: {_shown(found.counterexample)}")
    if found.verdict is Verdict.OPEN:
        undecided = [case for case in found.cases if case.truth is None]
        lines += [f"open: {_shown(case)}" for case in sorted(undecided, key=lambda case: case.size)[:_SHOWN]]
        lines += [f"and {len(undecided) - _SHOWN} more"] if len(undecided) > _SHOWN else []
    if found.badge is not None:
        lines.append(f"weakest badge of a bound: {found.badge.value}")
    return lines


_TRUTHS = {"true": True, "false": False, "open": None}


def _shown(case: Case) -> str:
    """Return a case on a line: the instance, and what is known of each side."""
    sides = []
    for name, result in case.results.items():
        value = objective_text(result.objective, case.instance.requests, result.value)
        bound = objective_text(result.objective, case.instance.requests, result.bound)
        known = value if result.bound is None or result.bound == result.value else f"{bound} to {value}"
        sides.append(f"{name} = {known}")
    return f"{case.instance.name}, {', '.join(sides)}"
