"""Mean e2e latency of a few requests with coarse tokens, solved: is the planner or the bound far from the optimum?

    python benchmarks/shrunk.py --page benchmarks/README.md

Some ten minutes. Of the stand-ins for Azure's conversations consecutive requests are taken with their arrivals, and
with a token for every 32 of theirs: a batch stands for 32 batches, so that load and latencies stay about the same.
Prefills run whole and batches have one piece of the cost model, so that exact methods cover them.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from optsched import Instance, Objective, Request, Rules, load_instance, replace, solve
from optsched.bounds.alone import alone_bound
from optsched.bounds.machine import machine_bound
from optsched.cli import run_program
from optsched.cli.options import file_option
from optsched.model.cost import CostModel
from optsched.model.instance import Limits
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Sheet
from sections import text_columns, write_section

_SOURCES = ("azure-conv-0.5", "azure-conv-1", "azure-conv-2")
_TOKENS, _PIECE = 32, 1
"""Tokens that one stands for, and the piece of the batch time that is kept: that of some hundred tokens."""
_PLANNER_S = 5.0
_WIDTH = 160
_HEADERS = (
    "instance",
    "O",
    "best (s)",
    "proved (s)",
    "gap (%)",
    "planner (%)",
    "alone (%)",
    "machine (%)",
)


def shrunk(source: str, first: int, number: int) -> Instance:
    """Return requests of an instance from the ``first`` on, with coarse tokens and times from its arrival on."""
    whole = load_instance(source)
    base, token = whole.cost.affine[_PIECE]
    chosen = whole.requests[first : first + number]
    memory = whole.limits.kv_tokens // _TOKENS
    return replace(
        whole,
        name=f"{source}, {first} to {first + number - 1}",
        limits=Limits(memory, memory, memory),
        rules=Rules(chunked_prefill=False),
        cost=CostModel(
            base=base * _TOKENS,
            token=token * _TOKENS,
            decode_kv=whole.cost.decode_kv * _TOKENS**2,
            decode_req=whole.cost.decode_req * _TOKENS,
            prefill_sq=whole.cost.prefill_sq * _TOKENS**2,
            prefill_req=whole.cost.prefill_req,
        ),
        requests=tuple(
            Request(
                -(-request.input // _TOKENS),
                max(1, round(request.output / _TOKENS)),
                arrival_ps=request.arrival_ps - chosen[0].arrival_ps,
            )
            for request in chosen
        ),
    )


def _rows(number: int, seconds: float) -> Iterator[tuple[str, ...]]:
    """Yield a row for each instance; percentages are of the best schedule."""
    goal = Objective.MEAN_E2E
    for source in _SOURCES:
        for first in (100, 400):
            instance = shrunk(source, first, number)
            found = solve(instance, goal, time_limit=seconds)
            planned = solve(instance, goal, method="planner", time_limit=_PLANNER_S)
            assert found.value is not None
            assert found.bound is not None
            assert planned.value is not None
            best = min(found.value, planned.value)
            bounds = alone_bound(instance, goal), machine_bound(instance, goal)
            yield (
                instance.name,
                str(sum(request.output for request in instance.requests)),
                *(f"{value / number / 1e12:.3f}" for value in (best, found.bound)),
                f"{100 * (best - found.bound) / best:.1f}",
                f"{100 * (planned.value - best) / best:+.1f}",
                *("–" if bound is None else f"{100 * (bound.value - best) / best:+.1f}" for bound in bounds),
            )


@click.command()
@click.option("--requests", default=8, show_default=True, help="Requests of an instance.")
@click.option("--seconds", default=60.0, show_default=True, help="Time limit of the exact methods for each.")
@file_option("--page", "Put the table into this Markdown file.")
def main(requests: int, seconds: float, page: str | None) -> None:
    """Solve few requests with coarse tokens; set planner and bounds beside the optimum."""
    rows = list(_rows(requests, seconds))
    columns = text_columns(_HEADERS, rows)
    note = "Planner and bounds: by how much above or below the best schedule."
    sheet = Sheet(f"{requests} requests with coarse tokens, mean e2e latency", "", columns, (note,))
    click.echo(as_text(sheet, _WIDTH), nl=False)
    write_section("--page", page, "shrunk", as_markdown(sheet))


if __name__ == "__main__":
    run_program(main, "shrunk.py")
