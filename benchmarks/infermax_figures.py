"""Draw InferMax's Figures 4 to 6 and 8 to 12 from its workloads.

    python benchmarks/infermax_figures.py docs

Writes infermax-low.svg, infermax-high.svg, infermax-free.svg, infermax-memory.svg and infermax-mixes.svg into the
folder: Llama-2-7B on one A100 with the paper's one-piece cost model. Some minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from optsched.cli import run_program
from optsched.report.figure import COLORS, check_plot, new_figure, save_figure
from optsched.traces.infermax import KV_TOKENS, LENGTHS, MIXES, SWEPT_KV_TOKENS
from papers.infermax_runs import BASES, TRIO, equal, makespan, mixed

Metrics = dict[str, Any]
Quantity = Callable[[Metrics], float]
ROWS: dict[str, Quantity] = {
    "latency (s)": lambda found: makespan(found) / 1e12,
    "TPS": lambda found: float(found["output_tokens_per_s"]),
    "mean TTFT (s)": lambda found: float(found["ttft_ps"]["mean"] / 1e12),
    "mean TPOT (ms)": lambda found: float(found["tpot_ps"]["mean"] / 1e9),
    "evictions": lambda found: float(found["evictions"]),
    "KV in use (%)": lambda found: float(100 * found["kv_utilisation"]),
    "requests that hold KV": lambda found: float(found["mean_resident_requests"]),
}
"""Row of panels → what its curves show."""
COUNTS = (16, 32, 64, 128, 256, 512, 1024)
"""B of section 4.6."""
_FREE = tuple(name for policy in TRIO for name in (policy, f"{policy}_ef"))


@dataclass(frozen=True)
class Figure:
    """A grid of panels.

    Parameters
    ----------
    file, title
        Where it goes, and what it shows.
    rows
        Names of `ROWS`.
    columns
        What a column of panels has in common.
    along
        The quantity on the x axis, and its values for each column.
    policies
        A curve each.
    run
        Returns the metrics of a policy, in a column, at a place on the x axis.
    """

    file: str
    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    along: tuple[str, Sequence[Sequence[int]]]
    policies: Sequence[str]
    run: Callable[[str, int, int], Metrics]


def _figures() -> list[Figure]:
    shown, memory = (32, 256, 1024), sorted({*SWEPT_KV_TOKENS, KV_TOKENS})
    outputs = [f"O = {output:,}" for output in shown]
    fitting = [[size for size in LENGTHS if size + 31 <= tokens] for tokens in memory]
    return [
        Figure(
            "infermax-low",
            "Figure 4: B = 32",
            list(ROWS)[:4],
            outputs,
            ("I", [LENGTHS] * 3),
            ("vllm", "sarathi", BASES[-1]),
            lambda policy, column, size: equal(32, size, shown[column], policy),
        ),
        Figure(
            "infermax-high",
            "Figures 5 and 6: B = 1,024",
            list(ROWS)[:6],
            outputs,
            ("I", [LENGTHS] * 3),
            TRIO,
            lambda policy, column, size: equal(1024, size, shown[column], policy),
        ),
        Figure(
            "infermax-free",
            "Figure 8: O = B = 1,024, with and without evictions",
            [*list(ROWS)[1:4], "requests that hold KV"],
            ["O = 1,024"],
            ("I", [LENGTHS]),
            _FREE,
            lambda policy, _, size: equal(1024, size, 1024, policy),
        ),
        Figure(
            "infermax-memory",
            "Figure 9: O = 32, B = 1,024",
            [*list(ROWS)[1:4], "KV in use (%)"],
            [f"M = {tokens:,}" for tokens in memory],
            ("I", fitting),
            _FREE,
            lambda policy, column, size: equal(1024, size, 32, policy, memory[column]),
        ),
        Figure(
            "infermax-mixes",
            "Figures 10 to 12: mixes",
            ["latency (s)", "mean TTFT (s)", "mean TPOT (ms)"],
            ["+".join(mix) for mix in MIXES],
            ("B", [COUNTS] * len(MIXES)),
            ("rank_org", "rank_i", "rank_o"),
            lambda policy, column, count: mixed(MIXES[column], count, policy),
        ),
    ]


def draw(shown: Figure, folder: Path) -> None:
    """Run what a figure needs, and draw it."""
    down, across = len(shown.rows), len(shown.columns)
    figure = new_figure(max(2.6 * across + 0.8, 5), 1.9 * down + 1.2)
    grid = figure.subplots(down, across, squeeze=False)
    name, places = shown.along
    for column, title in enumerate(shown.columns):
        for order, policy in enumerate(shown.policies):
            found = [shown.run(policy, column, place) for place in places[column]]
            free = policy.endswith("_ef")
            color = COLORS[(order // 2 if len(shown.policies) > len(TRIO) else order) % len(COLORS)]
            for row, quantity in enumerate(shown.rows):
                grid[row][column].plot(
                    places[column],
                    [ROWS[quantity](metrics) for metrics in found],
                    color=color,
                    linestyle="--" if free else "-",
                    marker="o",
                    markersize=2.5,
                    lw=1.1,
                    label=policy,
                )
        grid[0][column].set_title(title, fontsize=9)
        grid[-1][column].set_xlabel(name, fontsize=8)
    for row, quantity in enumerate(shown.rows):
        grid[row][0].set_ylabel(quantity, fontsize=8)
        for axes in grid[row]:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
            if quantity in {"evictions", "KV in use (%)", "requests that hold KV"}:
                axes.set_ylim(bottom=0)
            else:
                axes.set_yscale("log")
            axes.tick_params(which="both", labelsize=7)
            axes.grid(visible=True, color="#dddddd", lw=0.6)
            axes.spines[["top", "right"]].set_visible(False)
    curves, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        curves, labels, loc="outside lower center", ncols=min(len(labels), 2 * across + 1), fontsize=8, frameon=False
    )
    figure.suptitle(shown.title, fontsize=11)
    save_figure(figure, folder / f"{shown.file}.svg")


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", type=click.Choice([figure.file for figure in _figures()]), help="Draw this one alone.")
def main(folder: Path, only: str | None) -> None:
    """Draw all figures, or one."""
    for figure in _figures():
        if only in {None, figure.file}:
            check_plot(folder / f"{figure.file}.svg")
            draw(figure, folder)
            click.echo(figure.file)


if __name__ == "__main__":
    run_program(main, "infermax_figures.py")
