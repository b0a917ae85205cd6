"""Stand-ins beside the traces that they stand in for.

    python benchmarks/standins.py ../shared/data --readme docs/azure.md --plot docs/azure.svg

DATA is the folder with the traces. The table is printed; --readme and --plot write it and a figure. It takes minutes:
a policy serves the stand-in and every stretch of the trace that is as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp, spearmanr

from optsched.bounds.volume import busy_ps
from optsched.calibrate.library import cost_model
from optsched.cli import run_program
from optsched.cli.options import blaming, file_option
from optsched.methods.simulate import simulate
from optsched.model.documents import read_bytes
from optsched.model.domain import replace
from optsched.model.instance import Instance
from optsched.model.objectives import Objective
from optsched.report.figure import COLORS, check_plot, new_figure, save_figure
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Cell, Column, Sheet
from optsched.traces.standin import COUNT, LOADS, stand_in
from optsched.traces.statistics import shipped_statistics
from optsched.traces.suites import SUITES
from optsched.traces.trace import Trace, read_trace, trace_instance
from sections import write_section

NAMES = ("azure-conv", "azure-code")
POLICY = "sarathi_pc"
_SECOND = 10**12
_WIDTH = 120

Values = NDArray[np.float64]
_QUANTITIES: dict[str, Callable[[Trace], Values]] = {
    "I": lambda trace: np.array([float(request.input) for request in trace.requests]),
    "O": lambda trace: np.array([float(request.output) for request in trace.requests]),
    "V": lambda trace: np.array([float(request.kv_volume) for request in trace.requests]),
    "time between arrivals (s)": lambda trace: np.array(
        [(later.arrival_ps - earlier.arrival_ps) / _SECOND for earlier, later in pairwise(trace.requests)]
    ),
}


def _instance(trace: Trace, name: str, load: str) -> Instance:
    return trace_instance(trace, name, cost_model(SUITES[name].profile), load=Fraction(load))


def _sustainable(trace: Trace, name: str) -> float:
    """Return the rate that a load is a multiple of, in requests per second."""
    return len(trace.requests) * _SECOND / busy_ps(_instance(trace, name, "1"))


def _dispersion(trace: Trace, mean: int) -> float:
    """Return variance over mean of the arrivals in windows in which ``mean`` are expected; 1 in a Poisson process."""
    times = np.array([request.arrival_ps / _SECOND for request in trace.requests])
    counts, _ = np.histogram(times, np.arange(0, times[-1], mean * times[-1] / (len(times) - 1)))
    return float(counts.var() / counts.mean())


def describe(trace: Trace, whole: Trace, name: str) -> dict[str, float]:
    """Return what a trace is like, and how far it is from the whole one that is measured."""
    found = {quantity: values(trace) for quantity, values in _QUANTITIES.items()}
    inputs, outputs, volumes, gaps = found.values()
    figures = {"requests": float(len(trace.requests))}
    for quantity, values in (("I", inputs), ("O", outputs)):
        figures[f"mean {quantity}"] = float(values.mean())
        figures |= {
            f"p{q} of {quantity}": float(np.quantile(values, q / 100, method="inverted_cdf")) for q in (50, 90, 99)
        }
    figures["mean V"] = float(volumes.mean())
    figures["rank correlation of I and O"] = float(spearmanr(inputs, outputs).statistic)
    figures["mean time between arrivals (s)"] = float(gaps.mean())
    figures["its coefficient of variation"] = float(gaps.std() / gaps.mean())
    figures |= {f"dispersion of arrivals, windows of {mean}": _dispersion(trace, mean) for mean in (10, 100)}
    figures["sustainable rate (requests/s)"] = _sustainable(trace, name)
    if trace is not whole:
        figures |= {
            f"KS distance, {quantity}": float(ks_2samp(found[quantity], values(whole)).statistic)
            for quantity, values in _QUANTITIES.items()
        }
        figures |= {f"mean e2e of {POLICY} at load {load} (s)": _mean_e2e(trace, name, load) for load in LOADS}
    return figures


def _mean_e2e(trace: Trace, name: str, load: str) -> float:
    served = simulate(_instance(trace, name, load), POLICY, Objective.MEAN_E2E)
    assert served.value is not None, served.message
    return served.value / len(trace.requests) / _SECOND


def stretches(trace: Trace) -> Iterator[Trace]:
    """Yield disjoint stretches of a trace, as long as a stand-in."""
    for start in range(0, len(trace.requests) - COUNT + 1, COUNT):
        part = trace.requests[start : start + COUNT]
        first = part[0].arrival_ps
        yield Trace(tuple(replace(request, arrival_ps=request.arrival_ps - first) for request in part), bad=())


def sheet(name: str, whole: Trace) -> Sheet:
    """Lay the trace, the stand-in and the stretches side by side."""
    measured, drawn = describe(whole, whole, name), describe(stand_in(name), whole, name)
    parts = [describe(part, whole, name) for part in stretches(whole)]
    labels = tuple(drawn)

    def one(figures: dict[str, float]) -> tuple[Cell, ...]:
        values = [figures.get(label) for label in labels]
        return tuple(Cell("–" if value is None else _shown(value), value) for value in values)

    def several(label: str) -> Cell:
        ends = [_shown(end([part[label] for part in parts])) for end in (min, max)]
        return Cell(" to ".join(dict.fromkeys(ends)), None)

    return Sheet(
        f"{name}: {shipped_statistics(name).description}",
        "",
        (
            Column("of all requests", "figure", tuple(Cell(label, label) for label in labels), key=True, left=True),
            Column("trace", "trace", one(measured)),
            Column("stand-in", "stand_in", one(drawn)),
            Column(f"{len(parts)} stretches of the trace", "stretches", tuple(map(several, labels))),
        ),
        (),
    )


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def plot(wholes: dict[str, Trace], path: Path) -> None:
    """Draw the distribution functions of lengths and times between arrivals."""
    figure = new_figure(9.5, 5)
    shares = np.linspace(0, 1, 101)
    shown = [quantity for quantity in _QUANTITIES if quantity != "V"]
    for row, (name, whole) in zip(figure.subplots(len(wholes), len(shown), sharey=True), wholes.items(), strict=True):
        for axes, quantity in zip(row, shown, strict=True):
            for trace, label, color, style in (
                (whole, "trace", COLORS[0], "-"),
                (stand_in(name), "stand-in", COLORS[1], "--"),
            ):
                values = np.quantile(_QUANTITIES[quantity](trace), shares, method="inverted_cdf")
                axes.plot(values, shares, label=label, color=color, linestyle=style, lw=1.6)
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.set(xlabel=quantity, title=name)
            axes.grid(visible=True, color="#dddddd", lw=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("share of requests")
        row[0].legend(loc="upper left", frameon=False)
    save_figure(figure, path)


@click.command(help=__doc__)
@click.argument("data")
@file_option("--readme", "Put the tables into this Markdown file.")
@click.option("--plot", "picture", metavar="FILE", help="Draw the distributions (.svg, .png, .pdf).")
def main(data: str, readme: str | None, picture: str | None) -> None:
    """Measure and report."""
    if picture is not None:
        with blaming("--plot"):
            check_plot(Path(picture))
    wholes = {
        name: read_trace(read_bytes(Path(data) / shipped_statistics(name).source.file).decode(), "azure")
        for name in NAMES
    }
    if picture is not None:
        plot(wholes, Path(picture))
    for name, whole in wholes.items():
        table = sheet(name, whole)
        click.echo(as_text(table, _WIDTH))
        write_section("--readme", readme, name, as_markdown(table))


if __name__ == "__main__":
    run_program(main, "standins.py")
