"""Cost profiles beside independent systems: a run of vLLM, and Splitwise's measured times.

    python benchmarks/calibration.py ../shared/data --readme docs/calibration.md --plots docs

DATA is the folder with the measurements. Tables are printed; --readme puts them into a page, --plots draws into a
folder.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
from tabulate import tabulate

from optsched.calibrate.assemble import Choices, calibrate
from optsched.calibrate.columns import TableRow, read_table
from optsched.calibrate.library import Part, load_profile
from optsched.calibrate.llmservingsim import read_llmservingsim
from optsched.calibrate.shipped import LAYERS, RTX_FOLDER, RTX_KV_TOKENS, build
from optsched.calibrate.splitwise import Setting, read_settings, read_splitwise
from optsched.calibrate.timings import Measurements, SourceOptions
from optsched.cli import run_program
from optsched.cli.options import file_option
from optsched.hardware.compare.requests import PS_PER_S, RunComparison, compare_run
from optsched.hardware.compare.vllm_run import MeasuredRun, read_run
from optsched.model.cost import CostModel
from optsched.model.documents import read_bytes
from optsched.model.domain import replace
from optsched.model.profiles import profile_names
from optsched.report.calibration import RUN_HEADERS, run_rows
from optsched.report.figure import COLORS, new_figure, save_figure
from optsched.report.residual_plot import plot_residuals
from sections import write_section

RUN = "llmservingsim/RTXPRO6000/Llama-3.1-8B/vllm_run"
SPLITWISE = "splitwise_sim/perf_model_llama2-70b.csv"
PROFILE = "rtxpro6000-llama31-8b"
POLICY = "vllm_v1"
SHOWN = ("rtxpro6000-llama31-8b", "a100-llama2-7b", "a100-llama3-70b-tp2")
GPUS = tuple((gpu, parallel) for gpu in ("a100-80gb", "h100-80gb") for parallel in (2, 4, 8))
_PS_PER_MS = 10**9
_PIECES = (1, 2, 3)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown, numbers to the right."""
    found = [list(row) for row in rows]
    align = ["left", *["right"] * (len(headers) - 1)]
    return tabulate(found, headers=list(headers), tablefmt="pipe", colalign=align, disable_numparse=True) + "\n"


def percent(share: float) -> str:
    """Write a share."""
    return f"{100 * share:.1f}"


# Profiles -------------------------------------------------------------------------------------------------


def profiles() -> str:
    """Return what the shipped profiles say of their errors."""
    rows = []
    for name in profile_names():
        for part, error in load_profile(name).fit.items():
            whole = "–" if error.batch_mape is None else percent(error.batch_mape)
            shares = [percent(share) for share in (error.mape, error.cv_mape, error.worst)]
            rows.append([name, part.value.replace("_", " "), f"{error.rows:,}", f"{error.r2:.4f}", *shares, whole])
    headers = ["profile", "part", "rows", "R²", "MAPE (%)", "held out (%)", "worst (%)", "of the batch (%)"]
    return table(headers, rows)


def checks() -> str:
    """Return where the form of the cost model was put to the test."""
    rows = [
        [
            check.claim,
            f"{check.rows:,}",
            *(f"{ratio:.2f}" for ratio in (check.mean, check.low, check.high)),
            percent(check.mape),
        ]
        for check in load_profile(PROFILE).checks
    ]
    return table(["claim", "pairs", "mean ratio", "1 %", "99 %", "off by (%)"], rows)


# The run of vLLM ------------------------------------------------------------------------------------------


def agreement(found: RunComparison) -> str:
    """Return means and percentiles, measured and simulated."""
    return table(list(RUN_HEADERS), run_rows(found))


def variants(run: MeasuredRun, kernels: Measurements) -> str:
    """Return what the comparison would be with other choices."""
    shipped = load_profile(PROFILE).cost
    pure = calibrate(kernels, "pure", "", Choices(hybrid=False, kv_tokens=RTX_KV_TOKENS)).profile.cost
    bare = calibrate(
        dataclasses.replace(kernels, per_sequence={}), "bare", "", Choices(kv_tokens=RTX_KV_TOKENS)
    ).profile
    half = dataclasses.replace(run, limits=replace(run.limits, kv_tokens=run.limits.kv_tokens // 2))
    rows = []
    for label, measured, cost in (
        ("as shipped", run, shipped),
        ("attention fitted to pure calls only", run, pure),
        ("without LM head and sampler", run, bare.cost),
        ("half the KV memory", half, shipped),
    ):
        found = compare_run(measured, cost, POLICY)
        errors = [f"{100 * a.of_mean:+.1f}" for a in found.agreement.values()]
        rows.append([label, *errors, percent(found.agreement["e2e"].per_request), f"{found.makespan[0]:.2f}"])
    headers = ["", "TTFT (%)", "TPOT (%)", "e2e (%)", "e2e per request (%)", "last token (s)"]
    return table(headers, rows)


def decode_ticks(folder: Path, run: MeasuredRun, cost: CostModel) -> tuple[str, float]:
    """Compare seconds of the run in which nothing was prefilled: time per decode batch, measured and by the profile.

    A tick of ``timeseries.csv`` has the tokens generated in the second before it and the requests that run at its end.
    Each batch generates one token per running request, so a batch takes running / generated seconds, with running the
    mean of both ends. The KV that it reads follows from each request's first and last token.
    """
    begun = json.loads(read_bytes(folder / "meta.json"))["started_at"]
    first_arrival = json.loads(read_bytes(folder / "requests.jsonl").splitlines()[0])["arrival_time"]
    late = first_arrival - np.datetime64(begun.rstrip("Z")).astype("datetime64[us]").astype(float) / 1e6
    ticks = list(read_table(folder / "timeseries.csv"))
    rows, ratios = [], []
    for before, tick in pairwise(ticks):
        generated, prompts = float(tick.text("gen_throughput")), float(tick.text("prompt_throughput"))
        running = (tick.integer("running", 0) + before.integer("running", 0)) / 2
        if prompts or running < 2 or _prefilled(before):
            continue
        held = _held(run, float(tick.text("t")) - 0.5 - late)
        measured = running / generated
        predicted = cost.batch_ps(round(running), round(running), round(held), ()) / PS_PER_S
        ratios.append(predicted / measured)
        rows.append(
            [tick.text("t"), f"{running:g}", f"{held:,.0f}", f"{1000 * measured:.2f}", f"{1000 * predicted:.2f}"]
        )
    chosen = [*rows[:3], *rows[3::3]]
    headers = ["second", "requests", "KV tokens", "measured (ms)", "profile (ms)"]
    return table(headers, chosen), float(np.mean(ratios)) - 1


def _prefilled(tick: TableRow) -> bool:
    """Return whether a prompt may still be under way when the tick ends."""
    return tick.integer("waiting", 0) == 0 and float(tick.text("prompt_throughput")) > 0


def _held(run: MeasuredRun, moment: float) -> float:
    """Return the KV tokens that requests hold, s after the first arrival."""
    held = 0.0
    for request, first_ps, last_ps in zip(run.requests, run.first_ps, run.last_ps, strict=True):
        first, last = first_ps / PS_PER_S, last_ps / PS_PER_S
        if first <= moment < last:
            held += request.input + (request.output - 1) * (moment - first) / (last - first)
    return held


def plot_run(found: RunComparison, path: Path) -> None:
    """Draw distribution functions, and every request's e2e latency simulated over measured."""
    figure = new_figure(10, 3.2)
    *left, right = figure.subplots(1, 4)
    for axes, (name, simulated), measured in zip(
        left, found.simulated.named().items(), found.measured.named().values(), strict=True
    ):
        for values, label, color, style in (
            (measured, "vLLM", COLORS[0], "-"),
            (simulated, "simulated", COLORS[1], "--"),
        ):
            axes.plot(
                np.sort(values), np.arange(1, len(values) + 1) / len(values), style, color=color, label=label, lw=1.6
            )
        axes.set(xlabel=f"{name} (s)", title=f"{name}: mean {100 * found.agreement[name].of_mean:+.1f} %")
    left[0].set_ylabel("share of requests")
    left[0].legend(frameon=False, loc="lower right")
    right.scatter(found.measured.e2e, found.simulated.e2e, s=8, color=COLORS[2], linewidths=0)
    ends = [min(found.measured.e2e), max(found.measured.e2e)]
    right.plot(ends, ends, color="#000000", lw=0.8)
    right.set(xlabel="measured e2e (s)", ylabel="simulated e2e (s)", title="each request")
    for axes in (*left, right):
        axes.grid(visible=True, color="#dddddd", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


# Splitwise ------------------------------------------------------------------------------------------------


def predicted(cost: CostModel, setting: Setting) -> tuple[float, float, float]:
    """Return the time of the prompts, of a mean decode batch, and of all, in ps."""
    batch, prompt, later = setting.batch, setting.prompt, setting.output - 1
    prompts = cost.batch_ps(batch * prompt, 0, 0, [(prompt, 0)] * batch)
    decodes = cost.repeated_ps(batch, batch * prompt, later)
    return prompts, decodes / later, prompts + decodes


def beside_splitwise(settings: Sequence[Setting], cost: CostModel) -> str:
    """Return every setting beside what a profile says."""
    rows = []
    for setting in settings:
        cells = []
        for ours, theirs in zip(
            predicted(cost, setting), (setting.prompt_ps, setting.token_ps, setting.e2e_ps), strict=True
        ):
            cells += [f"{theirs / _PS_PER_MS:,.1f}", f"{100 * (ours / theirs - 1):+.1f}"]
        rows.append([f"{setting.batch} × ({setting.prompt} + {setting.output})", *cells])
    return table(["requests × (prompt + output)", "prompt (ms)", "%", "token (ms)", "%", "e2e (ms)", "%"], rows)


def mean_errors(pairs: Iterable[tuple[tuple[float, float, float], Setting]]) -> list[float]:
    """Return the mean relative errors of prompt, token and e2e."""
    errors = [
        [abs(p / m - 1) for p, m in zip(found, (s.prompt_ps, s.token_ps, s.e2e_ps), strict=True)] for found, s in pairs
    ]
    means: list[float] = np.mean(errors, axis=0).tolist()
    return means


def held_out_errors(measured: Measurements, settings: Sequence[Setting], pieces: int) -> list[float]:
    """Return the errors of fits that have seen neither the setting nor its prompt or decode batch in another."""
    batches = measured.batches
    if batches is None:
        raise TypeError("no whole batches")
    pairs = []
    for setting in settings:
        prompt = (batches.prefills == setting.batch) & (batches.tokens == setting.batch * setting.prompt)
        held = setting.batch * (setting.prompt + setting.output / 2)
        token = (batches.decodes == setting.batch) & (np.abs(batches.decode_kv - held) < 1)
        rest = dataclasses.replace(measured, batches=batches[~(prompt | token)])
        cost = calibrate(rest, "rest", "", Choices(pieces=pieces)).profile.cost
        pairs.append((predicted(cost, setting), setting))
    return mean_errors(pairs)


def fitted_to_splitwise(path: Path) -> str:
    """Return the errors of profiles fitted to Splitwise's own rows, by GPU and pieces."""
    rows = []
    for gpu, parallel in GPUS:
        measured = read_splitwise(str(path), SourceOptions(hardware=gpu, tensor_parallel=parallel))
        settings = read_settings(path, gpu, parallel)
        for pieces in _PIECES:
            found = calibrate(measured, "fit", "", Choices(pieces=pieces)).profile
            seen = mean_errors((predicted(found.cost, setting), setting) for setting in settings)
            unseen = held_out_errors(measured, settings, pieces)
            error = found.fit[Part.BATCH]
            shares = [percent(share) for share in (error.mape, error.cv_mape, *seen, *unseen)]
            rows.append([f"{gpu}, {parallel} GPUs, {pieces} pieces", *shares])
    headers = [
        "",
        "batches",
        "held out",
        "prompt",
        "token",
        "e2e",
        "prompt, held out",
        "token, held out",
        "e2e, held out",
    ]
    return table(headers, rows)


@click.command(help=__doc__)
@click.argument("data")
@file_option("--readme", "Put the tables into this Markdown file.")
@click.option("--plots", metavar="FOLDER", help="Draw residuals and the run into this folder.")
def main(data: str, readme: str | None, plots: str | None) -> None:
    """Compare and report."""
    place = Path(data)
    run = read_run(place / RUN, RTX_KV_TOKENS)
    cost = load_profile(PROFILE).cost
    found = compare_run(run, cost, POLICY)
    ticks, off = decode_ticks(place / RUN, run, cost)
    simulated, measured = found.makespan
    kernels = read_llmservingsim(str(place / RTX_FOLDER), SourceOptions(layers=LAYERS))
    settings = read_settings(place / SPLITWISE, "a100-80gb", 2)
    nearest = load_profile("a100-llama3-70b-tp2").cost
    errors = mean_errors((predicted(nearest, setting), setting) for setting in settings)
    sections = {
        "profiles": profiles(),
        "checks": checks(),
        "run": agreement(found)
        + f"\nLast token after {measured:.2f} s, simulated {simulated:.2f} s; {found.batches:,} batches; at most "
        f"{found.peak_kv_tokens:,} KV tokens held.\n",
        "ticks": ticks + f"\nOver all such seconds the profile is {100 * off:+.1f} % off in the mean.\n",
        "variants": variants(run, kernels),
        "splitwise": beside_splitwise(settings, nearest)
        + "\nMean errors: prompt {} %, token {} %, e2e {} %.\n".format(*map(percent, errors)),
        "splitwise-fits": fitted_to_splitwise(place / SPLITWISE),
    }
    for name, body in sections.items():
        click.echo(f"{name}\n{body}")
        write_section("--readme", readme, name, body)
    if plots is not None:
        plot_run(found, Path(plots) / "calibration-run.svg")
        for name in SHOWN:
            plot_residuals(build(name, place), Path(plots) / f"calibration-{name}.svg")


if __name__ == "__main__":
    run_program(main, "calibration.py")
