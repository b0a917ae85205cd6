"""Decisions of routers per second of CPU time, on one of Preble's workloads.

    python benchmarks/routers.py [--router e2 --router sal] [--requests 20000] [--machines 4] [--kept 20]

Requests end in the order in which they came, 64 after they have been routed. The first number is of the first half of
the requests, the second of the second: a router whose decisions cost more and more is slower in the second.
With ``--kept N`` a machine drops its own part of a prompt when N other requests have ended there, and whole keys
half as often: routers are told, as of a cache that is full.
"""

from __future__ import annotations

import time
from collections import deque
from random import Random

import click

from optsched.cli import run_program
from optsched.routers import ROUTERS, find_router
from optsched.routers.router import RoutedRequest, Router, RouterSetting
from optsched.routers.views import Snapshot
from optsched.traces.preble import PREFIX_WORKLOADS, draw_prefixed

_IN_FLIGHT = 64
_TOKEN_PS = 100_000_000
"""Prefill time of a token."""
_DECODE_PS = 30 * 10**9
_CAPACITY = 200_000


def requests_of(workload: str, count: int) -> list[RoutedRequest]:
    """Draw requests as a router sees them."""
    drawn = draw_prefixed(workload, count, seed=0, rate=8)
    tokens = {node.name: node.tokens for node in drawn.tree.nodes}
    requests = []
    for index, (row, path) in enumerate(zip(drawn.rows, drawn.paths, strict=True)):
        prompt, left = [], row.input
        for name in path:
            prompt.append((name, 0, min(tokens[name], left)))
            left -= prompt[-1][2]
        if left:
            prompt.append((f"own{index}", 0, left))
        requests.append(RoutedRequest(index, row.input, row.output, tuple(prompt), None, row.arrival_ps))
    return requests


def run(
    router: Router, requests: list[RoutedRequest], views: list[Snapshot], kept: int | None = None
) -> tuple[float, float]:
    """Return the decisions per second in both halves, notifications included."""
    in_flight: deque[tuple[RoutedRequest, int]] = deque()
    cached: list[deque[RoutedRequest]] = [deque() for _ in views]
    rates = []
    half = len(requests) // 2
    for part in (requests[:half], requests[half:]):
        started = time.process_time()
        for request in part:
            in_flight.append((request, router.route(request, views)))
            if len(in_flight) > _IN_FLIGHT:
                ended, machine = in_flight.popleft()
                now_ps = request.arrival_ps
                router.first_token(ended, machine, now_ps, 0)
                router.finished(ended, machine, now_ps, (now_ps - ended.arrival_ps) // 4, _DECODE_PS)
                cached[machine].append(ended)
                if kept is not None and len(cached[machine]) > kept:
                    gone = cached[machine].popleft()
                    own = len(gone.prompt) - 1 - gone.index % 2
                    router.dropped(machine, gone.prompt, sum(piece[2] for piece in gone.prompt[:own]), now_ps)
        rates.append(len(part) / (time.process_time() - started))
    return rates[0], rates[1]


@click.command(help=__doc__)
@click.option("--router", "names", multiple=True, type=click.Choice(sorted(ROUTERS)), help="A router.  [default: all]")
@click.option("--workload", type=click.Choice(sorted(PREFIX_WORKLOADS)), default="preble-toolbench-zipf")
@click.option("--requests", "count", type=click.IntRange(min=2), default=20_000, help="Number of requests.")
@click.option("--machines", type=click.IntRange(min=1), default=4, help="Number of machines.")
@click.option("--kept", type=click.IntRange(min=0), help="Requests whose prompts a machine keeps.  [default: all]")
def main(names: tuple[str, ...], workload: str, count: int, machines: int, kept: int | None) -> None:
    """Measure each router."""
    requests = requests_of(workload, count)
    views = [
        Snapshot(machine, waiting=machine, kv_used=1000 * machine, kv_capacity=_CAPACITY) for machine in range(machines)
    ]
    for name in names or sorted(ROUTERS):
        setting = RouterSetting(
            machines,
            Random(0),
            _CAPACITY,
            batch_tokens=8192,
            prefill_ps=lambda new, _: new * _TOKEN_PS,
            decode_ps=_DECODE_PS,
            block=16,
            requests=requests,
            chosen=[0] * len(requests),
        )
        first, second = run(find_router(name)(setting), requests, views, kept)
        click.echo(f"{name}: {first:,.0f} decisions/s, then {second:,.0f}")


if __name__ == "__main__":
    run_program(main, "routers.py")
