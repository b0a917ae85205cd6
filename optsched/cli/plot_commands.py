"""The commands that draw: ``optsched plot``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optsched import library
from optsched import plot as figures
from optsched.check import check_schedule
from optsched.cli.group import cli
from optsched.cli.options import Decorator, blaming, fraction_option, naming_options, write_out
from optsched.cli.types import FILE, OneOf
from optsched.model.errors import InputError, Said
from optsched.report.figure import check_plot, new_figure

if TYPE_CHECKING:
    from fractions import Fraction

    from matplotlib.axes import Axes

    from optsched.model.result import Result

_WIDTH, _NARROW, _TALL = 7.2, 3.5, 0.62
_TWO_ROWS = 0.45
"""Inches of a legend of two rows."""
_results_argument: Decorator = click.argument("results", nargs=-1, required=True, metavar="RESULT...", type=FILE)
_out_option: Decorator = click.option(
    "--out",
    type=FILE,
    required=True,
    metavar="FILE",
    help="Figure to write: .svg, .png or .pdf (needs optsched[plot]).",
)
_width_option = fraction_option(
    "--width",
    f"Width in inches: {_WIDTH} for both columns of a paper, {_NARROW} for one.  [default: {_WIDTH}]",
    (1, 100),
)
_label_option: Decorator = click.option(
    "--label", "labels", multiple=True, metavar="TEXT", help="What to call a result, once for each.  [default: method]"
)


@cli.group()
def plot() -> None:
    """Draw results (documents of solve, bound, simulate; - is standard input)."""


def _figure_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command results to read, a file to write, which is refused before anything is read, and a width."""

    @wraps(command)
    def read(results: Sequence[str], out: str, width: Fraction | None, **others: Any) -> Any:
        with blaming("--out"):
            check_plot(Path(out))
        return command(_read(results), out, float(width or _WIDTH), **others)

    complete: Callable[..., Any] = read
    for option in (_width_option, _out_option, _results_argument):
        complete = option(complete)
    return complete


def _read(sources: Sequence[str]) -> list[Result]:
    """Return the results of all files; raise `InputError` for a schedule that breaks a rule."""
    found: list[Result] = []
    for source in sources:
        for claimed in library.load_results(source):
            result = claimed.result
            found.append(result)
            plain = not result.instance.is_distributed and not result.instance.is_cached
            if result.schedule is None or not plain:
                continue
            violations, _ = check_schedule(result.instance, result.schedule)
            if violations:
                expected = "a legal schedule (optsched check says more)"
                raise InputError("schedule", Said(violations[0]), expected, source)
    return found


def _axes(width: float) -> Axes:
    return new_figure(width, max(2.7, _TALL * width)).subplots()


def _save(drawn: Axes, out: str) -> None:
    """Save a figure of one pair of axes, higher by what a legend of more than two rows takes."""
    legend, figure = drawn.get_legend(), drawn.get_figure(root=True)
    if legend is not None and figure is not None:
        more = legend.get_window_extent().height / figure.dpi - _TWO_ROWS
        figure.set_figheight(figure.get_figheight() + max(0.0, more))
    figures.save(drawn, out)


@plot.command()
@_figure_options
@click.option("--axis", type=OneOf(("time", "batch")), default="time", show_default=True, help="What is to the right.")
@click.option("--title", default="", metavar="TEXT", help="Title above everything.")
@_label_option
def gantt(results: list[Result], out: str, width: float, axis: str, title: str, labels: tuple[str, ...]) -> None:
    """Draw schedules: what each request does in every batch, and the KV cache below."""
    with naming_options():
        figures.save(figures.gantt_figure(results, axis=axis, width=width, title=title, labels=labels), out)


@plot.command()
@_figure_options
@click.option("--latency", type=OneOf(("ttft", "e2e", "tpot")), default="e2e", show_default=True, help="Which one.")
@_label_option
def cdf(results: list[Result], out: str, width: float, latency: str, labels: tuple[str, ...]) -> None:
    """Draw how a latency is spread over the requests of each schedule."""
    with naming_options():
        _save(figures.cdf(results, latency=latency, ax=_axes(width), labels=labels), out)


@plot.command()
@_figure_options
@click.option(
    "--over",
    type=OneOf(("requests", "input", "output", "kv", "kappa")),
    default="requests",
    show_default=True,
    help="The size of an instance.",
)
def gap(results: list[Result], out: str, width: float, over: str) -> None:
    """Draw each method's gap over the size of the instances; a bar where the optimum is not known."""
    with naming_options():
        _save(figures.gap(results, over=over, ax=_axes(width)), out)


@plot.command()
@_figure_options
def performance(results: list[Result], out: str, width: float) -> None:
    """Draw the share of instances on which each method is within a factor of the best value."""
    with naming_options():
        _save(figures.performance(results, ax=_axes(width)), out)


@plot.command()
@_figure_options
@_label_option
def pareto(results: list[Result], out: str, width: float, labels: tuple[str, ...]) -> None:
    """Draw mean TTFT and TPOT of schedules of one instance, and what is proved impossible."""
    with naming_options():
        _save(figures.pareto(results, ax=_axes(width), labels=labels), out)


@plot.command("map")
@_figure_options
def router_map(results: list[Result], out: str, width: float) -> None:
    """Draw on which machine each request was over time, and its moves; one result of several machines."""
    from optsched.plot.common import axes_of  # noqa: PLC0415  # matplotlib is an extra

    lanes = len(results[0].instance.machines)
    with naming_options():
        figures.save(figures.router_map(results, ax=axes_of(None, 0.6 + min(0.9, 5 / lanes) * lanes, width)), out)


@plot.command()
@click.argument("history", type=FILE)
@click.option("--label", default="objective", show_default=True, metavar="TEXT", help="Name of the objective.")
@_width_option
@_out_option
def bounds(history: str, label: str, width: Fraction | None, out: str) -> None:
    """Draw incumbent and bound over time; HISTORY is what solve --history wrote."""
    with naming_options():
        figures.save(figures.bounds(figures.History.read(history), ax=_axes(float(width or _WIDTH)), label=label), out)


@plot.command("trace")
@_results_argument
@click.option("--out", type=FILE, metavar="FILE", help="File to write; - is standard output.")
def trace_events(results: tuple[str, ...], out: str | None) -> None:
    """Write schedules as Chrome trace events (JSON), which ui.perfetto.dev shows."""
    write_out(out, json.dumps(figures.trace_events(_read(results)), ensure_ascii=False) + "\n")
