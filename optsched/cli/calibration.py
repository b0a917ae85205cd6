"""The command that fits cost profiles: read the arguments, call the package, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from optsched.calibrate.library import Profile, load_profile, render_profile
from optsched.cli.completion import complete_policies
from optsched.cli.group import cli
from optsched.cli.options import blaming, integer_option, naming_options, out_option, require_policy, write_out
from optsched.cli.terminal import terminal_width
from optsched.cli.types import FILE, OneOf
from optsched.hardware.compare.requests import compare_run
from optsched.hardware.compare.vllm_run import is_run, read_run
from optsched.model.domain import MAX_TOKENS
from optsched.model.errors import InputError, Said
from optsched.model.profiles import profile_names
from optsched.report.calibration import batch_report, profile_list, profile_report, run_report
from optsched.report.figure import check_plot
from optsched.report.residual_plot import plot_residuals

if TYPE_CHECKING:
    from optsched.calibrate.timings import SourceOptions

_FORMATS = ("measurements", "vidur", "llmservingsim", "splitwise", "times")
_FITS = ("batches", "kernels")
_POLICY = "vllm_v1"


@cli.command()
@click.argument("source", required=False, type=FILE)
@click.option("--list", "listed", is_flag=True, help="List the shipped profiles and leave.")
@click.option(
    "--format", "style", type=OneOf(_FORMATS), default=_FORMATS[0], show_default=True, help="Format of SOURCE."
)
@click.option("--name", help="Name of the profile.  [default: the source's name]")
@integer_option("--pieces", 1, None, 3, "Affine pieces of the token term.")
@click.option(
    "--fit",
    "fitted",
    type=OneOf(_FITS),
    help="What to fit to.  [default: batches where SOURCE has them, else kernels]",
)
@click.option("--pure", is_flag=True, help="Fit attention to pure calls only, not to hybrid ones.")
@integer_option(
    "--layers", 1, MAX_TOKENS, None, "Layers of the model, where a table has the times of one (vidur, llmservingsim)."
)
@integer_option(
    "--tensor-parallel",
    1,
    1024,
    1,
    "Tensor parallelism: use the rows measured with this number of GPUs (vidur, splitwise).",
)
@click.option("--attention", type=FILE, metavar="FILE", help="vidur: attention.csv, beside SOURCE = mlp.csv.")
@click.option("--network", type=FILE, metavar="FILE", help="vidur: all_reduce.csv, for several GPUs.")
@click.option("--cpu", type=FILE, metavar="FILE", help="vidur: cpu_overheads.csv, of --model.")
@click.option("--hardware", metavar="NAME", help="GPU (splitwise: as named in the table).")
@click.option("--model", metavar="NAME", help="Model (vidur: as named in the table).")
@integer_option(
    "--kv-tokens",
    1,
    MAX_TOKENS,
    None,
    "M: leave out attention calls on more tokens; also the KV capacity of the run of --against.",
)
@click.option(
    "--against",
    type=FILE,
    metavar="RUN",
    help="Compare with held-out measurements: whole batches (a folder of measurements), or a vLLM run's requests.",
)
@click.option(
    "--policy",
    default=_POLICY,
    show_default=True,
    shell_complete=complete_policies,
    help="Policy that serves the requests of --against.",
)
@click.option("--plot", type=FILE, metavar="FILE", help="Draw residuals (.svg, .png, .pdf; extra plot).")
@out_option
def calibrate(
    source: str | None,
    listed: bool,
    style: str,
    name: str | None,
    pieces: int,
    fitted: str | None,
    pure: bool,
    layers: int | None,
    tensor_parallel: int,
    attention: str | None,
    network: str | None,
    cpu: str | None,
    hardware: str | None,
    model: str | None,
    kv_tokens: int | None,
    against: str | None,
    policy: str,
    plot: str | None,
    out: str | None,
) -> None:
    """Fit a cost profile to measured times, and report its errors.

    SOURCE is a folder that optsched profile has written; Vidur's mlp.csv; a folder of LLMServingSim's profiler;
    Splitwise's perf_model.csv; or, as times, a CSV of tokens, cached and time_ms of batches (docs/calibration.md).
    """
    if listed:
        click.echo(profile_list([load_profile(known) for known in profile_names()], terminal_width()), nl=False)
        return
    # SciPy takes longer to load than other commands take to run.
    from optsched.calibrate.assemble import Choices  # noqa: PLC0415  # as said
    from optsched.calibrate.assemble import calibrate as fit  # noqa: PLC0415  # as said
    from optsched.calibrate.sources import READERS  # noqa: PLC0415  # as said
    from optsched.calibrate.timings import SourceOptions  # noqa: PLC0415  # as said

    if source is None:
        raise InputError("SOURCE", Said("nothing"), "measurements to fit, or --list")
    require_policy(policy)
    if plot is not None:
        with blaming("--plot"):
            check_plot(Path(plot))
    options = SourceOptions(layers, tensor_parallel, attention, network, cpu, hardware, model)
    with blaming(source=source), naming_options():
        measured = READERS[style](source, options)
        title = name or Path(source).name.partition(".")[0]
        whole = fitted != "kernels"
        if fitted == "batches" and measured.batches is None:
            raise InputError("fit", fitted, "kernels: it has no whole batches")
        choices = Choices(pieces=pieces, hybrid=not pure, whole=whole, kv_tokens=kv_tokens)
        found = fit(measured, title, f"Fitted to {source} by optsched calibrate.", choices)
    if out is not None:
        write_out(out, render_profile(found.profile))
    if plot is not None:
        plot_residuals(found, Path(plot))
    text = profile_report(found.profile, terminal_width())
    if against is not None:
        seen = whole and measured.batches is not None
        if seen and Path(against).resolve() == Path(source).resolve():
            expected = "batches that were held out: another folder, or --fit kernels; held-out errors are printed above"
            raise InputError("--against", against, expected)
        with blaming(source=against), naming_options():
            text += "\n" + _compare(found.profile, against, style, options, kv_tokens, policy)
    if out != "-":
        click.echo(text, nl=False)


def _compare(
    profile: Profile, against: str, style: str, options: SourceOptions, kv_tokens: int | None, policy: str
) -> str:
    """Print the profile's errors on whole batches, or on the requests of a run."""
    from optsched.calibrate.assemble import errors_of  # noqa: PLC0415  # SciPy takes a while to load
    from optsched.calibrate.sources import READERS  # noqa: PLC0415  # NumPy, too

    if is_run(Path(against)):
        if kv_tokens is None:
            raise InputError("kv_tokens", Said("nothing"), "M, the engine's KV capacity: a run does not record it")
        run = read_run(Path(against), kv_tokens)
        return run_report(compare_run(run, profile.cost, policy), policy, against, terminal_width())
    batches = READERS[style](against, options).batches
    if batches is None:
        raise InputError(
            "--against",
            Said("no whole batches"),
            "held-out measurements; held-out errors of its own rows are printed above",
        )
    return batch_report(errors_of(profile.cost, batches), against, terminal_width())
