"""Predicted beside measured batch times as a picture; needs matplotlib (``pip install 'optsched[plot]'``)."""

from __future__ import annotations

from pathlib import Path

from optsched.hardware.compare.batches import ALL, Execution
from optsched.hardware.run.following import BatchKind
from optsched.report.figure import COLORS, check_plot, new_figure, save_figure

_MARKERS = ("s", "o", "^")
_BINS = 30


def plot_execution(execution: Execution, path: Path) -> None:
    """Draw every batch by its predicted and measured time, and how the relative errors are spread.

    Equal executions give equal bytes.
    """
    check_plot(path)
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter  # noqa: PLC0415  # an extra

    figure = new_figure(9.5, 4.2)
    scatter, histogram = figure.subplots(1, 2)
    pairs = [(predicted / 1e9, measured / 1e9) for predicted, measured in execution.pairs]
    members: dict[BatchKind, list[tuple[float, float]]] = {}
    for batch, pair in zip(execution.followed.batches, pairs, strict=True):
        members.setdefault(batch.kind, []).append(pair)
    kinds = [kind for kind in BatchKind if kind in members]
    colors = dict(zip(BatchKind, COLORS, strict=False))
    for kind, marker in zip(BatchKind, _MARKERS, strict=True):
        if kind in members:
            predicted, measured = zip(*members[kind], strict=True)
            look = {"s": 14, "alpha": 0.5, "linewidths": 0}
            label = f"{kind} ({len(measured)})"
            scatter.scatter(measured, predicted, marker=marker, color=colors[kind], label=label, **look)
    low, high = 0.9 * min(map(min, pairs)), 1.1 * max(map(max, pairs))
    scatter.plot([low, high], [low, high], color="#000000", lw=0.8)
    scatter.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    scatter.set(xlabel="measured batch time (ms)", ylabel="predicted batch time (ms)")
    for axis in (scatter.xaxis, scatter.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(lambda number, _: f"{number:g}")
        axis.set_minor_formatter(NullFormatter())
    scatter.legend(frameon=False, loc="upper left")
    errors = [[100 * (predicted / measured - 1) for predicted, measured in members[kind]] for kind in kinds]
    histogram.hist(errors, bins=_BINS, stacked=True, color=[colors[kind] for kind in kinds])
    histogram.yaxis.set_major_locator(MaxNLocator(integer=True))
    histogram.axvline(0, color="#000000", lw=0.8)
    histogram.set(xlabel="predicted − measured, % of measured", ylabel="batches")
    overall = execution.batch_errors()[ALL]
    histogram.set_title(f"mean {100 * overall.mean:.1f} %, worst {100 * overall.worst:.1f} %")
    for axes in (scatter, histogram):
        axes.grid(visible=True, color="#dddddd", lw=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    engine = execution.engine
    about = f"{execution.method} on {execution.instance.name}: {engine['shape']['name']} on {engine['device']}"
    figure.suptitle(about)
    save_figure(figure, path)
