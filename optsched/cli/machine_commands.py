"""The commands that need a machine to work on: ``profile`` and ``execute``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from optsched import library
from optsched.calibrate.library import find_profile
from optsched.check import check_schedule
from optsched.cli.completion import complete_policies, complete_profiles
from optsched.cli.group import cli
from optsched.cli.options import (
    Decorator,
    blaming,
    file_option,
    folder_to_write,
    integer_option,
    json_option,
    naming_options,
    number_option,
    out_option,
    refuse_options,
    require_policy,
    seed_option,
    write_out,
)
from optsched.cli.step_bar import StepBar
from optsched.cli.terminal import terminal_width
from optsched.cli.types import FILE, FOLDER, OneOf
from optsched.hardware.compare.execute import execute_policy, execute_schedule
from optsched.hardware.machine import DEVICES, Machine, open_machine
from optsched.hardware.transformer.shape import Shape, read_shape
from optsched.methods.policies import PolicyCrashError
from optsched.model.documents import dump
from optsched.model.domain import MAX_TOKENS, replace
from optsched.model.errors import InputError, Said, printable
from optsched.model.feasibility import require_feasible
from optsched.model.instance import Instance
from optsched.model.result import Result
from optsched.model.schedule import Schedule
from optsched.report.execution import execution_text
from optsched.report.execution_plot import plot_execution
from optsched.report.figure import check_plot
from optsched.simulator.replica import PolicyFailureError

if TYPE_CHECKING:
    from optsched.hardware.compare.batches import Execution

_ENGINES = ("torch",)
_GIB = 2**30

_shape_option: Decorator = click.option(
    "--shape",
    default="tiny",
    show_default=True,
    metavar="NAME",
    help="Shape of the transformer: tiny, llama2-7b, llama3-8b, or a .toml or .json file (docs/profiling.md).",
)
_device_option: Decorator = click.option(
    "--device", type=OneOf(DEVICES), default=DEVICES[0], show_default=True, help="Where to run."
)
_threads_option: Decorator = integer_option("--threads", 1, 1024, 1, "Threads of an operator on the CPU.")


@cli.command()
@_shape_option
@_device_option
@click.option(
    "--out",
    type=FOLDER,
    required=True,
    metavar="FOLDER",
    callback=folder_to_write,
    help="Folder for measurements.csv and environment.json; a run that was interrupted is resumed.",
)
@integer_option("--batch-tokens", 1, MAX_TOKENS, None, "Maximum number of tokens in a batch.  [default: by device]")
@integer_option(
    "--batch-requests", 1, MAX_TOKENS, None, "Maximum number of decode steps in a batch.  [default: by device]"
)
@integer_option("--context", 2, MAX_TOKENS, None, "Maximum number of tokens of a request.  [default: by device]")
@number_option(
    "--kv-budget", None, "GiB of KV cache, for the capacity M.  [default: the memory left beside the weights]"
)
@integer_option("--samples", 1, 10**6, 5, "Samples of a point in each of three rounds.")
@number_option(
    "--max-spread", 0.25, "Maximum relative difference between the medians of a point's rounds; more is refused."
)
@_threads_option
@seed_option
def profile(
    shape: str,
    device: str,
    out: str,
    batch_tokens: int | None,
    batch_requests: int | None,
    context: int | None,
    kv_budget: float | None,
    samples: int,
    max_spread: float,
    threads: int,
    seed: int,
) -> int:
    """Measure a transformer's kernels on this machine, for optsched calibrate to fit a cost profile to.

    Measurements are kept in FOLDER; after an interrupt, the same command measures only what is missing. Exits with 1,
    and writes no table, while the samples of a point spread too much.
    """
    model, machine = _opened(shape, device, threads)
    # NumPy takes a while to load.
    from optsched.calibrate.measurements import TABLE  # noqa: PLC0415  # as said
    from optsched.hardware.measure.grid import EXTENTS  # noqa: PLC0415  # as said
    from optsched.hardware.measure.profiling import Task, measure  # noqa: PLC0415  # as said

    sizes = {"batch_tokens": batch_tokens, "batch_requests": batch_requests, "context": context}
    extent = replace(EXTENTS[device], **{name: size for name, size in sizes.items() if size is not None})
    budget = None if kv_budget is None else int(kv_budget * _GIB)
    task = Task(model, extent, samples, max_spread, budget, seed)
    folder = Path(out)
    with StepBar(f"{model.name} on {device}") as bar, blaming("--out"), naming_options():
        scattered = measure(task, machine, folder, bar.show)
    for row in scattered:
        sizes_text = ",".join(map(str, row.point))
        click.echo(
            f"optsched: {sizes_text}: medians of rounds differ by {100 * row.spread:.0f} % "
            f"({row.p10_ns} to {row.p90_ns} ns)",
            err=True,
        )
    if scattered:
        click.echo(
            f"optsched: {printable(str(folder))}: {len(scattered)} points spread by more than "
            f"{100 * max_spread:g} %, so there is no table; when the machine is idle, the same command measures these "
            "again",
            err=True,
        )
        return 1
    click.echo(printable(f"{folder / TABLE}"))
    return 0


@cli.command()
@click.argument("source", metavar="SCHEDULE|INSTANCE", type=FILE)
@click.option(
    "--policy",
    metavar="NAME",
    shell_complete=complete_policies,
    help="Policy, or FILE.py:NAME, that serves INSTANCE; without it SCHEDULE is followed.",
)
@click.option("--predictor", metavar="SPEC", help="Predictor of output lengths for the policy (docs/policies.md).")
@click.option("--engine", type=OneOf(_ENGINES), default=_ENGINES[0], show_default=True, help="What runs it.")
@_shape_option
@_device_option
@click.option(
    "--profile",
    metavar="PROFILE",
    shell_complete=complete_profiles,
    help="Cost profile (name or file) to predict with.  [default: the instance's cost]",
)
@integer_option("--repeats", 1, 1000, 3, "Number of runs of every batch; the median counts.")
@_threads_option
@seed_option
@file_option("--plot", "Draw predicted and measured batch times (.svg, .png, .pdf).")
@out_option
@json_option
def execute(
    source: str,
    policy: str | None,
    predictor: str | None,
    engine: str,
    shape: str,
    device: str,
    profile: str | None,
    repeats: int,
    threads: int,
    seed: int,
    plot: str | None,
    out: str | None,
    as_json: bool,
) -> int:
    """Run a real transformer batch by batch, and compare its times with the predicted ones.

    SCHEDULE is a result document, whose batches are run in order; with --policy, which decides on every batch when the
    one before has ended, INSTANCE is served. Nothing waits in real time: the clock is the sum of measured batch times.
    """
    if plot is not None:
        with blaming("--plot"):
            check_plot(Path(plot))
    run: Callable[..., Execution]
    if policy is None:
        refuse_options("--predictor", ("predictor",), "--policy, for which it predicts")
        result, schedule = _with_schedule(source)
        violations, _ = check_schedule(result.instance, schedule, result.restrictions)
        for violation in violations:
            click.echo(printable(f"{source}: {violation}"))
        if violations:
            return 1
        method, instance = result.method, _priced(result.instance, profile)
        run = partial(execute_schedule, instance, schedule, method)
    else:
        require_policy(policy)
        method, instance = policy, _priced(library.load_instance(source), profile)
        with blaming(source=source):
            require_feasible(instance)
        run = partial(execute_policy, instance, policy, predictor=predictor, seed=seed)
    model, machine = _opened(shape, device, threads)
    from optsched.hardware.run.engine import TorchEngine  # noqa: PLC0415  # PyTorch is an extra

    with naming_options():
        runner = TorchEngine(instance, model, machine, repeats=repeats, seed=seed)
    about = machine.facts() | {
        "shape": model.document(),
        "dtype": model.dtype,
        "tensor_parallel": model.tensor_parallel,
        "repeats": repeats,
        "seed": seed,
    }
    with StepBar(f"{instance.name} on {device}") as bar, naming_options():
        try:
            execution = run(runner, about, watch=bar.advance)
        except PolicyFailureError as failure:
            reason = f"{instance.label(failure.index)} at {failure.now_ps} ps: {failure.reason}"
            click.echo(printable(f"optsched: {method}: {reason}"), err=True)
            return 1
        except PolicyCrashError as crash:
            click.echo(f"optsched: {method}: {crash}", err=True)
            return 1
    document = dump(execution.document())
    if out is not None:
        write_out(out, document)
    if plot is not None:
        plot_execution(execution, Path(plot))
    if as_json and out != "-":
        click.echo(document, nl=False)
    elif out != "-":
        click.echo(execution_text(execution, terminal_width()), nl=False)
    return 0


def _opened(shape: str, device: str, threads: int) -> tuple[Shape, Machine]:
    """Return the model's shape and the machine that the options name."""
    with naming_options():
        return read_shape(shape), open_machine(device, threads)


def _with_schedule(source: str) -> tuple[Result, Schedule]:
    """Return the only result with a schedule that a document holds, and that."""
    results = (claimed.result for claimed in library.load_results(source))
    found = [(result, result.schedule) for result in results if result.schedule is not None]
    if len(found) != 1:
        raise InputError("schedule", Said(f"{len(found)} of them"), "one result with a schedule", source)
    return found[0]


def _priced(instance: Instance, profile: str | None) -> Instance:
    """Return an instance with the cost model that is to predict."""
    if profile is None:
        return instance
    with naming_options():
        return replace(instance, cost=find_profile(profile).cost)
