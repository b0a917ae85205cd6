"""How fast the simulator is: compiled policies beside the plain engine, and how their cost grows.

    python benchmarks/simulate.py --readme benchmarks/README.md --plot benchmarks/simulate.svg [--trace TRACE.csv]

Requests of 128 + 128 tokens that all arrive at once, and conversations at half the sustainable rate: the Azure trace
(--trace, repeated hour after hour if there are not enough), or its stand-in. Memory is the peak of a process that
does nothing else; the plain engine, which lets the policy decide on every batch, serves what it can in a minute.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import groupby, islice
from multiprocessing import get_context
from pathlib import Path

import click
import numpy as np

from optsched.calibrate.library import cost_model
from optsched.cli import run_program
from optsched.cli.options import blaming, file_option
from optsched.model.documents import read_bytes
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import metrics, tally_of
from optsched.policies.infermax import SARATHI, VLLM, VLLM_EF
from optsched.report.figure import COLORS, check_plot, new_figure, save_figure
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Cell, Column, Sheet
from optsched.simulator.engine import run_policy
from optsched.traces.standin import stand_in
from optsched.traces.trace import Trace, read_trace, trace_instance
from sections import write_section

POLICIES = {"vllm": VLLM, "sarathi": SARATHI, "vllm_ef": VLLM_EF}
COST = cost_model("a100-llama2-7b-nocall")
_PLAIN_MOST = 10_000
_WIDTH = 120
_KIB = 1024
_SIZES = (1_000, 10_000, 100_000, 1_000_000)
_COLD = """
from optsched import Instance, Limits, Request, Rules
from optsched.calibrate.library import cost_model
from optsched.policies.infermax import VLLM
requests = (Request(128, 128),) * 10
VLLM.serve(Instance("ten", Limits(100_000, 4096, 4096), Rules(), cost_model("a100-llama2-7b-nocall"), requests)).tally()
"""


@dataclass(frozen=True)
class Measured:
    """One run: requests, seconds with the metrics, batches, and MiB of memory; None where it was not run."""

    workload: str
    policy: str
    requests: int
    seconds: float
    batches: int
    peak_mib: int
    plain_seconds: float | None
    plain_peak_mib: int | None


def uniform(count: int) -> Instance:
    """Return requests of 128 + 128 tokens, all there at once."""
    return Instance("128+128", Limits(100_000, 4096, 4096), Rules(), COST, (Request(128, 128),) * count)


def conversations(trace: Trace, count: int, load: str) -> Instance:
    """Return the first conversations at a multiple of the sustainable rate, hour after hour if there are not enough."""
    hour = trace_instance(trace, f"conversations at {load}", COST, load=Fraction(load))
    hours = -(-count // len(hour.requests))
    span = hour.requests[-1].arrival_ps * len(hour.requests) // (len(hour.requests) - 1)
    later = (
        replace(request, arrival_ps=request.arrival_ps + number * span)
        for number in range(hours)
        for request in hour.requests
    )
    return replace(hour, requests=tuple(islice(later, count)))


def measure(instance: Instance, policy: str) -> Measured:
    """Serve an instance with a compiled policy and, if it is small, with the plain engine after that."""
    runner, count = POLICIES[policy], len(instance.requests)
    runner.serve(uniform(10))
    start = time.perf_counter()
    record = runner.serve(instance)
    assert record is not None
    found = metrics(instance, record.tally())
    seconds, peak = time.perf_counter() - start, _peak_mib()
    plain = None
    if count <= _PLAIN_MOST:
        start = time.perf_counter()
        assert metrics(instance, tally_of(instance, run_policy(instance, runner, jumps=False))) == found
        plain = time.perf_counter() - start
    plain_peak = None if plain is None else _peak_mib()
    return Measured(instance.name, policy, count, seconds, found["batches"], peak, plain, plain_peak)


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // _KIB


def measure_all(trace: Trace, most: int) -> Iterator[Measured]:
    """Measure every workload, policy and size, each in a process of its own."""
    sizes = [size for size in _SIZES if size <= most]
    for workload in (uniform, partial(conversations, trace, load="1/2"), partial(conversations, trace, load="2")):
        for policy in POLICIES:
            for size in sizes:
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    yield pool.submit(_measure, workload, size, policy).result()


def _measure(workload: Callable[[int], Instance], size: int, policy: str) -> Measured:
    return measure(workload(size), policy)


def cold_start_s() -> float:
    """Return how long a fresh process takes to serve ten requests, compiled code loaded from disk."""
    command = [sys.executable, "-c", _COLD]
    subprocess.run(command, check=True)
    start = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - start


def growth(runs: list[Measured]) -> float:
    """Return the power of the number of requests with which time grows, from the second size on."""
    runs = runs[1:]
    return float(np.polyfit(np.log([run.requests for run in runs]), np.log([run.seconds for run in runs]), 1)[0])


def sheet(runs: list[Measured], cold_s: float) -> Sheet:
    """Lay the runs out, one a row."""

    def column(header: str, name: str, value: Callable[[Measured], float | None], form: str) -> Column:
        values = [value(run) for run in runs]
        cells = tuple(Cell("–" if found is None else format(found, form), found) for found in values)
        return Column(header, name, cells)

    powers = [
        f"{workload}, {policy}: n^{growth(same):.2f}"
        for (workload, policy), found in groupby(runs, lambda run: (run.workload, run.policy))
        if len(same := list(found)) > 2
    ]
    notes = [f"A fresh process serves its first ten requests after {cold_s:.2f} s."]
    notes += [f"Time grows as follows: {'; '.join(powers)}."] if powers else []
    return Sheet(
        "Simulator: one core, metrics included",
        "",
        (
            Column(
                "workload", "workload", tuple(Cell(run.workload, run.workload) for run in runs), key=True, left=True
            ),
            Column("policy", "policy", tuple(Cell(run.policy, run.policy) for run in runs), key=True, left=True),
            column("requests", "requests", lambda run: run.requests, ","),
            column("batches", "batches", lambda run: run.batches, ","),
            column("time (s)", "seconds", lambda run: run.seconds, ".3f"),
            column("requests/s", "requests_per_s", lambda run: run.requests / run.seconds, ",.0f"),
            column("peak (MiB)", "peak_mib", lambda run: run.peak_mib, ","),
            column("plain engine (s)", "plain_s", lambda run: run.plain_seconds, ".2f"),
            column(
                "times as fast",
                "ratio",
                lambda run: None if run.plain_seconds is None else run.plain_seconds / run.seconds,
                ".0f",
            ),
            column("its peak (MiB)", "plain_peak_mib", lambda run: run.plain_peak_mib, ","),
        ),
        tuple(notes),
    )


def plot(runs: list[Measured], path: Path) -> None:
    """Draw time over requests."""
    figure = new_figure(9.5, 3.6)
    workloads = list(dict.fromkeys(run.workload for run in runs))
    panels = figure.subplots(1, len(workloads), sharex=True, sharey=True, squeeze=False)[0]
    for axes, workload in zip(panels, workloads, strict=True):
        for policy, color in zip(POLICIES, COLORS, strict=False):
            found = [run for run in runs if (run.workload, run.policy) == (workload, policy)]
            axes.plot([run.requests for run in found], [run.seconds for run in found], "o-", color=color, label=policy)
            plain = [run for run in found if run.plain_seconds is not None]
            axes.plot([run.requests for run in plain], [run.plain_seconds for run in plain], "o:", color=color, ms=3)
        axes.set(xscale="log", yscale="log", title=workload, xlabel="requests")
        axes.grid(visible=True, color="#dddddd", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("time (s); dotted: plain engine")
    panels[0].legend(frameon=False)
    save_figure(figure, path)


@click.command(help=__doc__)
@click.option("--trace", "file", metavar="FILE", help="The Azure conversation trace; its stand-in otherwise.")
@click.option("--most", type=int, default=_SIZES[-1], show_default=True, help="The most requests.")
@file_option("--readme", "Put the table into this Markdown file.")
@click.option("--plot", "picture", metavar="FILE", help="Draw time over requests (.svg, .png, .pdf).")
def main(file: str | None, most: int, readme: str | None, picture: str | None) -> None:
    """Measure and report."""
    if picture is not None:
        with blaming("--plot"):
            check_plot(Path(picture))
    if file is None:
        trace = stand_in("azure-conv")
    else:
        with blaming(source=file):
            trace = read_trace(read_bytes(file).decode(), "azure")
    runs = []
    for run in measure_all(trace, most):
        runs.append(run)
        click.echo(f"{run.workload}, {run.policy}, {run.requests}: {run.seconds:.3f} s", err=True)
    table = sheet(runs, cold_start_s())
    click.echo(as_text(table, _WIDTH))
    if picture is not None:
        plot(runs, Path(picture))
    write_section("--readme", readme, "simulate", as_markdown(table))


if __name__ == "__main__":
    run_program(main, "simulate.py")
