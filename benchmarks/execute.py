"""How far predicted batch times are from real ones: profile, fit, execute, on this machine.

    python benchmarks/execute.py FOLDER --readme benchmarks/README.md --plot benchmarks/execute.svg
    python benchmarks/execute.py FOLDER --shape llama3-8b --device cuda

Kernels and whole batches are measured into FOLDER (resumed if something is there), and a cost model is fitted to the
batches (`optsched.calibrate`). Then the engine serves a mix
of requests with each policy, short of memory, and every batch counts: none of them has been fitted to. Targets: mean
error at most 12 % on an idle CPU; at most 5.5 %, and 12 % at worst, on a GPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import click

from optsched.calibrate.assemble import Choices, calibrate
from optsched.calibrate.measurements import read_measurements
from optsched.calibrate.timings import SourceOptions
from optsched.cli import run_program
from optsched.cli.options import blaming, file_option
from optsched.cli.step_bar import StepBar
from optsched.hardware.compare.batches import ALL, Execution
from optsched.hardware.compare.execute import execute_policy
from optsched.hardware.machine import Machine, open_machine
from optsched.hardware.measure.grid import EXTENTS, Extent
from optsched.hardware.measure.profiling import Task, measure
from optsched.hardware.run.engine import TorchEngine
from optsched.hardware.transformer.shape import Shape, read_shape
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.report.execution_plot import plot_execution
from optsched.report.figure import check_plot
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Cell, Column, Sheet
from sections import write_section

POLICIES = ("sarathi", "sarathi_nocp", "vllm", "vllm_hy", "srtf")
_WIDTH = 120
_HEADERS = ("policy", "batches", "number", "mean", "p50", "p95", "worst", "all", "e2e")
_MOST_REQUESTS = 64


def fit_cost(folder: Path) -> CostModel:
    """Fit a cost model to the whole batches of a table of measurements."""
    measured = read_measurements(str(folder), SourceOptions())
    return calibrate(measured, folder.name, "This machine.", Choices()).profile.cost


def workload(extent: Extent, cost: CostModel, seed: int) -> Instance:
    """Draw requests of all lengths that the table covers, with a cache too small for all that may run."""
    rng = Random(f"{seed} workload")
    count = min(2 * extent.batch_requests, _MOST_REQUESTS)
    requests = tuple(
        Request(
            input=max(1, round(extent.context * 2 ** rng.uniform(-6, -1.5))),
            output=max(2, round(extent.context * 2 ** rng.uniform(-6, -3))),
        )
        for _ in range(count)
    )
    longest = max(request.peak_tokens for request in requests)
    total = sum(request.peak_tokens for request in requests)
    limits = Limits(
        max(total // 4, longest + 16), extent.batch_tokens, extent.batch_tokens, extent.batch_requests, kv_block=16
    )
    return Instance("mix", limits, Rules(), cost, requests)


def run(shape: Shape, machine: Machine, instance: Instance, policy: str, repeats: int) -> Execution:
    """Let a policy serve the requests."""
    engine = TorchEngine(instance, shape, machine, repeats=repeats)
    return execute_policy(instance, policy, engine, machine.facts() | {"shape": shape.document(), "dtype": shape.dtype})


def sheet(executions: list[Execution]) -> Sheet:
    """Put the errors of every policy and kind of batch into a table."""
    rows: list[list[str]] = []
    for execution in executions:
        predicted, measured = execution.request_metrics()["mean e2e"]
        for kind, errors in execution.batch_errors().items():
            shares = (errors.mean, errors.p50, errors.p95, errors.worst)
            seen = f"{100 * (predicted / measured - 1):+.1f}" if kind == ALL else ""
            texts = [f"{100 * share:.1f}" for share in shares]
            rows.append([execution.method, kind, str(errors.batches), *texts, f"{100 * errors.total:+.1f}", seen])
    pooled = [abs(p - t) / t for execution in executions for p, t in execution.pairs]
    mean, worst = 100 * sum(pooled) / len(pooled), 100 * max(pooled)
    engine = executions[0].engine
    return Sheet(
        title=f"Predicted batch times of {engine['shape']['name']} ({engine['dtype']})",
        common=f"{len(pooled)} batches, mean error {mean:.1f} %, worst {worst:.1f} %.",
        columns=tuple(
            Column(header, header, tuple(Cell(text, text) for text in texts), key=header in {"policy", "batches"})
            for header, texts in zip(_HEADERS, zip(*rows, strict=True), strict=True)
        ),
        notes=(
            "Errors |predicted − measured| / measured in %; all: of the sum of all batches, e2e: of the mean latency, "
            "with sign.",
            f"{engine['device']}, {engine['threads']} thread(s), torch {engine['versions']['torch']}.",
            f"Load average of the last 5 minutes: {os.getloadavg()[1]:.1f}.",
        ),
    )


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--shape", default="tiny", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("--extent", type=(int, int, int), help="Tokens and requests of a batch, tokens of a request.")
@click.option("--policies", default=",".join(POLICIES), show_default=True)
@click.option("--repeats", type=int, default=3, show_default=True, help="Runs of every batch.")
@click.option("--max-spread", type=float, default=0.25, show_default=True)
@file_option("--readme", "Put the table into this Markdown file.")
@click.option("--plot", "picture", metavar="FILE", help="Draw the batches of the first policy (.svg, .png, .pdf).")
def main(
    folder: Path,
    shape: str,
    device: str,
    threads: int,
    extent: tuple[int, int, int] | None,
    policies: str,
    repeats: int,
    max_spread: float,
    readme: str | None,
    picture: str | None,
) -> None:
    """Measure and report."""
    if picture is not None:
        with blaming("--plot"):
            check_plot(Path(picture))
    model, machine = read_shape(shape), open_machine(device, threads)
    task = Task(model, EXTENTS[device] if extent is None else Extent(*extent), samples=5, max_spread=max_spread)
    with StepBar("profile") as bar:
        noisy = measure(task, machine, folder, bar.show)
    if noisy:
        text = f"{len(noisy)} points spread by more than {100 * max_spread:g} %; the same command measures them again"
        raise click.ClickException(text)
    instance = workload(task.extent, fit_cost(folder), task.seed)
    executions = []
    for policy in policies.split(","):
        executions.append(run(model, machine, instance, policy, repeats))
        errors = executions[-1].batch_errors()[ALL]
        click.echo(f"{policy}: {errors.batches} batches, mean error {100 * errors.mean:.1f} %", err=True)
    table = sheet(executions)
    click.echo(as_text(table, _WIDTH))
    if picture is not None:
        plot_execution(executions[0], Path(picture))
    write_section("--readme", readme, "execute", as_markdown(table))


if __name__ == "__main__":
    run_program(main, "execute.py")
