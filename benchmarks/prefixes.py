"""How near prefixes are placed and cached to the best there is, on Preble's workloads and on traces of sessions.

    python benchmarks/prefixes.py placement --requests 200 --seconds 20
    python benchmarks/prefixes.py caches --format mooncake ../shared/data/mooncake/conversation_trace.jsonl.gz
    python benchmarks/prefixes.py caches --format agentic ../shared/data/kv_cache_tester/*.jsonl.gz
    python benchmarks/prefixes.py routed prefix-mooncake-500 prefix-coding-5 --page docs/routing-tables.md

``caches`` are those of one machine that serves requests in the order of their arrival; every value, bound and distance
holds for this order only. Coding sessions have no common clock: they start at random within 8 hours. ``routed`` takes
the order of first tokens of each simulated run.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import click

from optsched import CostModel, Objective, cost_model, load_instance, simulate
from optsched.check.certificates.prefix_cache import Service, hits_violations, largest_load_bound, saved_bound
from optsched.cli import run_program
from optsched.cli.options import file_option
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.errors import DefectError
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Cell, Column, Sheet
from optsched.traces.clusters import prefixed_instance
from optsched.traces.preble import draw_prefixed
from optsched.traces.prefixed import PrefixedRows
from optsched.traces.rows import SECOND_PS
from optsched.traces.sessions import read_coding_prefixes, read_mooncake_prefixes
from optsched_formulations.eviction.pooled import pooled_use
from optsched_formulations.eviction.prefix_cache import most_saved
from optsched_formulations.eviction.service import BlockValue, ServiceOrder, served_in, time_value, token_value
from optsched_formulations.routing.models import order_of
from optsched_formulations.routing.prefix_placement import place
from optsched_formulations.routing.prefixed import placement_of
from sections import write_section

WORKLOADS = ("toolbench", "embodied-agent", "programming", "video-qa", "loogle")
_READERS = {
    "mooncake": (read_mooncake_prefixes, 512, (250, 1000, 4000, 16_000, 64_000)),
    "agentic": (read_coding_prefixes, 64, (14_000, 28_000, 56_000, 112_000, 224_000)),
}
"""Format → its reader, tokens of a block, and sizes of caches in blocks."""
_STARTS_PS = 8 * 3600 * SECOND_PS
"""Before this time all coding sessions have started."""
_ROUTERS = ("round_robin", "e2", "cache_aware", "prefix_hash", "dynamo_kv", "lmetric")
_EVICTORS = ("lru", "belady")
_HEADERS = ("router", "evictor", "found", "at most", "share", "largest load (s)", "at least (s)", "more")


@click.group()
def cli() -> None:
    """Placement and caches of prefixes beside their bounds."""


@cli.command()
@click.option("--requests", type=int, default=200, show_default=True, help="Requests of each workload.")
@click.option("--machines", type=int, default=8, show_default=True, help="Machines.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Time for each placement.")
def placement(requests: int, machines: int, seconds: float) -> None:
    """Place the requests of Preble's workloads, and print value, bound and gap."""
    cost = cost_model("a100-llama2-7b-nocall")
    for name in WORKLOADS:
        rows = draw_prefixed(f"preble-{name}", requests, 0, 1)
        tree = placement_of(prefixed_instance(name, rows, cost, machines))
        found = place(tree, machines, time_limit_s=seconds)
        gap = (found.value - found.bound) / found.value
        click.echo(f"{name}: value {found.value / 1e12:.4f} s, bound {found.bound / 1e12:.4f} s, gap {gap:.3%}")


@cli.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--format", "style", type=click.Choice(list(_READERS)), required=True, help="Format of the trace.")
def caches(file: Path, style: str) -> None:
    """Print what a cache of each of five sizes leaves to recompute, at least and by LRU: tokens, and prefills alone."""
    read, block, sizes = _READERS[style]
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    rows = read(text.decode())
    if style == "agentic":
        rows = _started(rows)
    cost = cost_model("a100-llama2-7b-linear")
    order, _ = order_of(_alone(rows, cost, block))
    warm = order.warm
    longest = max(order.occupied)
    totals = {
        "tokens": sum(row.input for row in rows.rows),
        "time": sum(cost.batch_ps(row.input, 0, 0, [(row.input, 0)]) for row in rows.rows),
    }
    click.echo(
        f"{len(rows.rows):,} requests in the order of arrival, {warm:,} warm references, longest {longest} blocks"
    )
    for size in sizes:
        for what, value in (("tokens", token_value(block)), ("time", time_value(cost, block))):
            _row(order, size, what, value, totals[what], lru=_lru(order, size))


@cli.command()
@click.argument("names", metavar="INSTANCE...", nargs=-1, required=True)
@file_option("--page", "Write the tables into this page.")
def routed(names: Sequence[str], page: str | None) -> None:
    """Print what runs behind routers find in caches, beside the most that is possible for their order of service."""
    for name in names:
        instance = load_instance(name)
        rows = [_routed_row(instance, router, evictor) for router in _ROUTERS for evictor in _EVICTORS]
        columns = [
            Column(header, header, tuple(Cell(text, text) for text in texts), left=place < 2)
            for place, (header, texts) in enumerate(zip(_HEADERS, zip(*rows, strict=True), strict=True))
        ]
        tokens = sum(request.input for request in instance.requests)
        sheet = Sheet(f"{name}: {tokens:,} prompt tokens on {len(instance.machines)} machines", "", tuple(columns), ())
        click.echo(as_text(sheet, 140))
        write_section("--page", page, f"routed {name}", as_markdown(sheet))


def _routed_row(instance: Instance, router: str, evictor: str) -> tuple[str, ...]:
    """Return a row: found tokens, the most and the share; the largest load, the least it can be, and how much more."""
    cost, block, machines = cost_model("a100-llama2-7b-linear"), instance.limits.kv_block, instance.machines
    served = simulate(instance, "vllm_v1", Objective.MEAN_TTFT, router=router, evictor=evictor).requests()
    order = served_in(instance, [each.request for each in sorted(served, key=lambda each: each.first_token_ps)])
    # Hits of fills after an eviction, of what the request itself has left, are more than its first one can find.
    hits = [min(each.hit_tokens, each.input - 1) // block for each in served]
    alone = [cost.batch_ps(each.input, 0, 0, [(each.input, 0)]) for each in served]
    totals = {"tokens": sum(each.input for each in served), "time": sum(alone)}
    capacities = [machine.limits.kv_blocks for machine in machines]
    values = {"tokens": token_value(block), "time": time_value(cost, block)}
    found = {}
    for what, value in values.items():
        found[what] = pooled_use(order, capacities, value, totals[what])
        service = _service(order, sum(capacities), value)
        certified = largest_load_bound(service, totals[what], len(machines), found[what].use.certificate)
        if certified != found[what].largest_load:
            raise DefectError(f"{instance.name}, {router}, {evictor}: the certificate of {what} proves {certified}")
    loads = [0] * len(machines)
    for each, time_ps, hit in zip(served, alone, hits, strict=True):
        loads[each.routed_to] += time_ps - values["time"].of(hit)
    kept, most, least = block * sum(hits), found["tokens"].use.bound, found["time"].largest_load
    share = f"{kept / most:.1%}" if most else ""
    seconds = f"{max(loads) / 1e12:.1f}", f"{least / 1e12:.1f}"
    return router, evictor, f"{kept:,}", f"{most:,}", share, *seconds, f"{max(loads) / least - 1:+.1%}"


def _started(sessions: PrefixedRows) -> PrefixedRows:
    """Return sessions that start at random, instead of all at once."""
    generator = Random(1)
    numbers = dict.fromkeys(row.conversation for row in sessions.rows)
    starts = {number: generator.randrange(_STARTS_PS) for number in numbers}
    rows = tuple(replace(row, arrival_ps=row.arrival_ps + starts[row.conversation]) for row in sessions.rows)
    return replace(sessions, rows=rows)


def _alone(rows: PrefixedRows, cost: CostModel, block: int) -> Instance:
    requests = tuple(
        Request(row.input, row.output, arrival_ps=row.arrival_ps, prefix=path)
        for row, path in zip(rows.rows, rows.paths, strict=True)
    )
    most = max(request.peak_tokens for request in requests)
    limits = Limits(-(-most // block) * block, most, most, kv_block=block)
    return Instance("trace", limits, Rules(), cost, requests, prefixes=rows.tree, cache=CacheRules(CacheMode.PREFIX))


def _row(order: ServiceOrder, capacity: int, what: str, value: BlockValue, total: int, lru: list[int]) -> None:
    started = time.perf_counter()
    found = most_saved(order, capacity, value)
    seconds = time.perf_counter() - started
    service = _service(order, capacity, value)
    certified = saved_bound(service, found.certificate) == found.bound and not any(hits_violations(service, found.hits))
    gap = (found.bound - found.saved) / (total - found.saved)
    line = f"{capacity:,} blocks, {what}: recomputed {total - found.saved:,}, gap {gap:.3%}, {seconds:.1f} s"
    line += ", certified" if certified else ", NOT CERTIFIED"
    kept = sum(value.of(hits) for hits in lru)
    click.echo(f"{line}; LRU {(found.saved - kept) / (total - found.saved):.2%} more")


def _service(order: ServiceOrder, capacity: int, value: BlockValue) -> Service:
    """Return the same as the checker takes it."""
    paths = [path.tolist() for path in order.paths]
    findable = [runs[-1].end if runs else 0 for runs in order.runs]
    return Service(paths, findable, order.occupied, capacity, value.linear, value.square)


def _lru(order: ServiceOrder, capacity: int) -> list[int]:
    """Return what requests find if the block used longest ago is dropped first, the deepest one of a path."""
    used: dict[int, None] = {}
    found = []
    for path, occupied, runs in zip(order.paths, order.occupied, order.runs, strict=True):
        blocks, most = path.tolist(), runs[-1].end if runs else 0
        found.append(next((depth for depth in range(most) if blocks[depth] not in used), most))
        for block in reversed(blocks):
            used.pop(block, None)
        # The oldest go first; of a path the root is youngest.
        while len(used) + occupied > capacity:
            used.pop(next(iter(used)))
        for block in reversed(blocks):
            used[block] = None
    return found


if __name__ == "__main__":
    run_program(cli, "prefixes.py")
