"""How tight every bound is, on what: the figures of docs/bounds.md, and the mathematics there from the docstrings.

    python benchmarks/bounds.py --page docs/bounds.md

A bound is drawn as a share of what the policy `planner` reaches, so that 1 is tight, and what is missing to 1 is shared
by the two. Figures go beside the page. It takes some minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from docstring import as_markdown
from optsched.bounds.alone import alone
from optsched.bounds.catalogue import BOUNDS, bound_method
from optsched.calibrate.library import cost_model
from optsched.cli import run_program
from optsched.cli.options import blaming
from optsched.methods.simulate import simulate
from optsched.model.documents import read_bytes, write_text
from optsched.model.domain import replace
from optsched.model.errors import InputError, one_of
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.report.figure import COLORS, check_plot, new_figure, save_figure
from optsched.report.section import replace_section
from optsched.traces.standin import stand_in
from optsched.traces.trace import Trace, trace_instance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROFILE = "a100-llama2-7b-nocall"
LOADS = ("1/16", "1/8", "1/4", "1/2", "3/4", "1", "3/2", "2", "4")
COUNT = 400
"""Requests of an online instance."""

Make = Callable[[Fraction], Instance]


@dataclass(frozen=True)
class Curve:
    """A bound beside the planner, over a feature of instances.

    Parameters
    ----------
    bound, objective
        What is drawn.
    label
        In the legend.
    make
        Instance of a place on the axis.
    """

    bound: str
    objective: Objective
    label: str
    make: Make


@dataclass(frozen=True)
class Panel:
    """Curves over one feature.

    Parameters
    ----------
    title, feature
        What is varied; the axis's name.
    places
        On the axis.
    curves
        What is drawn.
    share
        Whether shares of the planner's value are drawn, or both as shares of all requests.
    least
        Where the axis of shares begins.
    """

    title: str
    feature: str
    places: Sequence[str]
    curves: Sequence[Curve]
    share: bool = True
    least: float = 0.0


def conversations(load: Fraction, outputs: Fraction = Fraction(1)) -> Instance:
    """Return Azure-like conversations at a load, with outputs longer by a factor."""
    requests = tuple(
        replace(request, output=max(1, int(request.output * outputs)))
        for request in stand_in("azure-conv").requests[:COUNT]
    )
    return trace_instance(Trace(requests, ()), "conversations", cost_model(PROFILE), load=load)


def prompts(load: Fraction) -> Instance:
    """Return Azure-like completions of code at a load: long prompts, short outputs."""
    requests = tuple(stand_in("azure-code").requests[:COUNT])
    return trace_instance(Trace(requests, ()), "code", cost_model(PROFILE), load=load)


def alike(count: Fraction) -> Instance:
    """Return ``count`` requests of 64 and 256 tokens, together."""
    return Instance("alike", _LIMITS, _WHOLE, cost_model(PROFILE), (Request(64, 256),) * int(count))


def different(count: Fraction) -> Instance:
    """Return requests of lengths that differ, 64 and 256 on average, together."""
    rng = Random("different")
    requests = tuple(
        Request(1 + min(1000, int(rng.expovariate(1 / 63))), 1 + min(1500, int(rng.expovariate(1 / 255))))
        for _ in range(int(count))
    )
    return Instance("different", _LIMITS, _WHOLE, cost_model(PROFILE), requests)


def hurried(load: Fraction, factor: Fraction) -> Instance:
    """Return conversations at a load that are late after a multiple of what they take alone."""
    instance = conversations(load)
    slos = [int(factor * least) for least in alone(instance).e2e]
    requests = (replace(r, slo_e2e_ps=slo) for r, slo in zip(instance.requests, slos, strict=True))
    return replace(instance, requests=tuple(requests))


_LIMITS, _WHOLE = Limits(kv_tokens=16_384, batch_tokens=4096, prefill_tokens=4096), Rules(chunked_prefill=False)
_COUNTS = ("4", "8", "16", "32", "64", "128", "256", "512", "1024")
_FACTORS = ("1/4", "1/2", "1", "2", "4", "8")


def _over_load(*drawn: tuple[str, Objective, str], title: str = "Conversations", make: Make = conversations) -> Panel:
    curves = [Curve(bound, objective, label, make) for bound, objective, label in drawn]
    return Panel(title, "load", LOADS, curves)


def _over_outputs(load: str, *drawn: tuple[str, Objective, str]) -> Panel:
    curves = [
        Curve(bound, objective, label, partial(conversations, Fraction(load))) for bound, objective, label in drawn
    ]
    return Panel(f"Conversations at load {load}", "outputs, times as long", _FACTORS, curves)


def _over_count(*drawn: tuple[str, str, Make]) -> Panel:
    curves = [Curve(bound, Objective.MAKESPAN, label, make) for bound, label, make in drawn]
    return Panel("Offline, makespan", "requests (about 85 fit the cache)", _COUNTS, curves, least=0.8)


_E2E, _TTFT = Objective.MEAN_E2E, Objective.MEAN_TTFT
FIGURES: Mapping[str, tuple[Panel, ...]] = MappingProxyType(
    {
        "volume": (_over_count(("volume", "all alike", alike), ("volume", "lengths differ", different)),),
        "ramp": (_over_count(("volume", "volume, all alike", alike), ("ramp", "ramp, all alike", alike)),),
        "inflow": (
            Panel(
                "Conversations, makespan",
                "load",
                LOADS,
                [Curve(name, Objective.MAKESPAN, name, conversations) for name in ("inflow", "machine", "volume")],
                least=0.8,
            ),
        ),
        "alone": (
            _over_load(("alone", _TTFT, "mean TTFT"), ("alone", _E2E, "mean e2e")),
            _over_outputs("1/4", ("alone", _TTFT, "mean TTFT"), ("alone", _E2E, "mean e2e")),
        ),
        "machine": (
            _over_load(("machine", _TTFT, "mean TTFT"), ("machine", _E2E, "mean e2e")),
            _over_outputs("2", ("machine", _TTFT, "mean TTFT"), ("machine", _E2E, "mean e2e")),
        ),
        "congestion": (
            _over_load(("congestion", _E2E, "congestion"), ("machine", _E2E, "machine"), ("alone", _E2E, "alone")),
            _over_outputs("1/2", ("congestion", _E2E, "congestion"), ("alone", _E2E, "alone")),
        ),
        "waiting": (
            _over_load(
                ("waiting", _E2E, "waiting"),
                ("machine", _E2E, "machine"),
                ("alone", _E2E, "alone"),
                title="Code",
                make=prompts,
            ),
        ),
        "late": tuple(
            Panel(
                f"Conversations at load {load}",
                "SLO on e2e, times what a request takes alone",
                ("3/2", "2", "3", "4", "6", "8", "12", "16"),
                (Curve("late", Objective.SLO_MISSES, "late", partial(hurried, Fraction(load))),),
                share=False,
            )
            for load in ("1", "2")
        ),
        "percentile": tuple(
            _over_load(*(("percentile", Objective(f"p{q}_{latency}"), f"p{q}") for q in (50, 95, 99)))
            for latency in ("ttft", "e2e")
        ),
    }
)
"""Bound → panels of its figure."""


class _Values:
    """Bounds and values of instances; every one is computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Instance, Objective, str], int | None] = {}

    def bound(self, instance: Instance, objective: Objective, name: str) -> int | None:
        """Return what a bound says, None if that is nothing."""

        def found() -> int | None:
            made = bound_method(name)(instance, objective)
            return None if made is None else made.value

        return self._once(instance, objective, name, found)

    def reached(self, instance: Instance, objective: Objective) -> int | None:
        """Return what the planner reaches."""
        return self._once(instance, objective, "planner", lambda: simulate(instance, "planner", objective).value)

    def _once(
        self, instance: Instance, objective: Objective, name: str, compute: Callable[[], int | None]
    ) -> int | None:
        key = instance, objective, name
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]


def draw(name: str, panels: Sequence[Panel], values: _Values, path: Path) -> None:
    """Draw one bound's figure."""
    figure = new_figure(4.75 * len(panels) + 1.0 * (len(panels) == 1), 3.4)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        places = list(map(Fraction, panel.places))
        for number, curve in enumerate(panel.curves):
            made = [curve.make(place) for place in places]
            bounds = [values.bound(instance, curve.objective, curve.bound) for instance in made]
            reached = [values.reached(instance, curve.objective) for instance in made]
            if panel.share:
                _line(axes, places, [_over(b, v) for b, v in zip(bounds, reached, strict=True)], number, curve.label)
            else:
                counts = [len(instance.requests) for instance in made]
                _line(axes, places, [_over(v, n) for v, n in zip(reached, counts, strict=True)], 1, "planner")
                _line(axes, places, [_over(b, n) for b, n in zip(bounds, counts, strict=True)], 0, curve.label)
        axes.set_xscale("log", base=2)
        axes.set_xticks([float(place) for place in places], panel.places)
        axes.minorticks_off()
        axes.set_ylim(panel.least, 1 + 0.03 * (1 - panel.least))
        axes.set(xlabel=panel.feature, title=panel.title)
        axes.set_ylabel("bound / planner" if panel.share else "share of requests that miss it")
        axes.grid(visible=True, color="#dddddd", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="best", frameon=False)
    save_figure(figure, path)


def _over(part: int | None, whole: int | None) -> float:
    """Return a share, not a number where there is none."""
    return float("nan") if part is None or not whole else part / whole


def _line(axes: Axes, places: Sequence[Fraction], shares: Sequence[float], number: int, label: str) -> None:
    style = ("-", "--", ":")[number]
    axes.plot(list(map(float, places)), shares, style, marker="o", ms=3.5, lw=1.6, color=COLORS[number], label=label)


def mathematics(text: str, names: Iterable[str]) -> str:
    """Put the docstrings of bounds into a page."""
    for name in names:
        docstring = getdoc(import_module(f"optsched.bounds.{name}"))
        assert docstring is not None, "every bound has its theorem"
        text = replace_section(text, name, as_markdown(docstring))
    return text


@click.command(help=__doc__)
@click.option("--page", metavar="FILE", required=True, help="The Markdown file that holds the mathematics.")
@click.option("--only", metavar="NAMES", help="Draw only these bounds' figures; names joined by commas.")
def main(page: str, only: str | None) -> None:
    """Draw and write."""
    names = list(FIGURES) if only is None else [name for name in only.split(",") if name]
    with blaming("--only"):
        for name in names:
            if name not in FIGURES:
                raise InputError("", name, one_of(name, FIGURES))
    path = Path(page)
    pictures = {name: path.parent / f"bound-{name}.svg" for name in names}
    with blaming("--page"):
        text = mathematics(read_bytes(page).decode(), ("own", *BOUNDS))
        for picture in pictures.values():
            check_plot(picture)
        write_text(page, text)
    values = _Values()
    for name, picture in pictures.items():
        draw(name, FIGURES[name], values, picture)
        click.echo(f"{picture}")


if __name__ == "__main__":
    run_program(main, "bounds.py")
