"""Other simulators beside ours, as whole commands on the same trace, one after the other.

    python benchmarks/peers.py ../shared/data/mooncake/conversation_trace.jsonl.gz --dynamo PYTHON

A trace of Mooncake's with its prefixes on 4 and 16 machines of 1,048,576 KV tokens in blocks of 64, batches of at most
8,192 tokens and 256 requests: `optsched simulate` with `vllm_v1`, and NVIDIA's AISimulate (`pip install
ai-dynamo-runtime`) in the Python that `--dynamo` names. Each has its own batch times, so that mean latencies are of the
same order at most; what each says is printed. Elapsed time is of the command from its start to its end, processor time
of all its processes; reading the trace is in both, for ours as an instance document. What is not installed is left out,
with the reason.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from optsched.calibrate.library import cost_model
from optsched.cli import run_program
from optsched.cli.options import file_option
from optsched.model.cluster import CacheMode, CacheRules
from optsched.model.documents import dump, instance_document, read_text
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Sheet
from optsched.traces.sessions import read_mooncake_prefixes
from sections import text_columns, write_section

LIMITS = Limits(1_048_576, 8192, 8192, batch_requests=256, kv_block=64)
ROUTERS = {"round_robin": "round_robin", "dynamo_kv": "kv_router"}
"""Ours → AISimulate's."""
MACHINES = (4, 16)
_COST = cost_model("a100-llama2-7b-nocall")
_WIDTH = 120
_FAILED = 300
"""Last characters of what a failed command says."""

_OPTSCHED = "from optsched.cli import main; main()"
_REPLAY = """
import json, sys
from dynamo._core import run_mocker_trace_replay
file, router, workers, blocks, block, tokens, requests = sys.argv[1:]
engine = dict(num_gpu_blocks=int(blocks), block_size=int(block), max_num_batched_tokens=int(tokens),
              max_num_seqs=int(requests))
result = run_mocker_trace_replay([file], extra_engine_args={"engine": engine}, num_workers=int(workers),
                                 router_mode=router, trace_block_size=512)
summary = result.summary() if callable(result.summary) else result.summary
print(json.dumps({"e2e": summary["mean_e2e_latency_ms"] / 1000, "requests": summary["completed_requests"]}))
"""


@dataclass(frozen=True)
class Run:
    """One command.

    Parameters
    ----------
    program, router, machines
        What was run.
    seconds, processor
        Elapsed and processor time in s.
    rate
        Requests per elapsed second.
    e2e
        Mean latency that it says, in s.
    """

    program: str
    router: str
    machines: int
    seconds: float
    processor: float
    rate: float
    e2e: float


def timed(command: Sequence[str]) -> tuple[str, float, float] | str:
    """Run a command; return its output, elapsed and processor time in s, or why it failed."""
    before, start = os.times(), time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    seconds, after = time.perf_counter() - start, os.times()
    if done.returncode:
        return done.stderr.strip()[-_FAILED:]
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout, seconds, processor


def instance_of(text: str, name: str) -> Instance:
    """Return the requests of a trace, with prefixes, on a machine that caches all blocks."""
    found = read_mooncake_prefixes(text).in_order()
    requests = tuple(
        Request(row.input, row.output, arrival_ps=row.arrival_ps, prefix=path)
        for row, path in zip(found.rows, found.paths, strict=True)
    )
    return Instance(name, LIMITS, Rules(), _COST, requests, prefixes=found.tree, cache=CacheRules(CacheMode.ALL))


def ours(instance: Path, router: str, machines: int) -> Run | str:
    """Run `optsched simulate`."""
    command = [sys.executable, "-c", _OPTSCHED, "simulate", str(instance), "--policy", "vllm_v1", "--router", router]
    command += ["--machines", str(machines), "--objective", "mean_e2e", "--format", "csv"]
    found = timed(command)
    if isinstance(found, str):
        return f"optsched, {router}, {machines} machines: {found}"
    (said,) = csv.DictReader(found[0].splitlines())
    count, value = int(said["requests"]), float(said["value_s"])
    return Run("optsched", router, machines, *found[1:], count / found[1], value)


def aisimulate(python: str, trace: Path, router: str, machines: int) -> Run | str:
    """Run AISimulate."""
    sizes = (LIMITS.kv_capacity // LIMITS.kv_block, LIMITS.kv_block, LIMITS.batch_tokens, LIMITS.batch_requests)
    command = [python, "-c", _REPLAY, str(trace), ROUTERS[router], str(machines), *map(str, sizes)]
    found = timed(command)
    if isinstance(found, str):
        return f"AISimulate, {router}, {machines} machines: {found}"
    said = json.loads(found[0].splitlines()[-1])
    return Run("AISimulate", router, machines, *found[1:], said["requests"] / found[1], said["e2e"])


def missing(python: str, module: str) -> str | None:
    """Return why a module cannot be used in a Python; None if it can."""
    found = timed([python, "-c", f"import {module}"])
    return found.splitlines()[-1] if isinstance(found, str) else None


def table(runs: Sequence[Run], skipped: Sequence[str], count: int) -> Sheet:
    """Lay out runs, with what was left out below."""
    rows = [
        (
            run.program,
            run.router,
            str(run.machines),
            f"{run.seconds:.1f}",
            f"{run.processor:.1f}",
            f"{run.rate:,.0f}",
            f"{run.e2e:.2f}",
        )
        for run in runs
    ]
    headers = ("program", "router", "machines", "elapsed (s)", "processor (s)", "requests/s", "mean e2e (s)")
    columns = text_columns(headers, rows, left=2, keys=2)
    return Sheet("Other simulators", f"{count:,} requests.", columns, tuple(skipped))


def measure(trace: Path, instance: Path, dynamo: str) -> Iterator[Run | str]:
    """Run everything, one command after the other; text says what was left out."""
    reason = missing(dynamo, "dynamo._core")
    for router in ROUTERS:
        for machines in MACHINES:
            yield ours(instance, router, machines)
            if reason is None:
                yield aisimulate(dynamo, trace, router, machines)
    if reason is not None:
        yield f"AISimulate is left out: {reason}"


@click.command(help=__doc__)
@click.argument("trace", type=click.Path(exists=True, dir_okay=False))
@click.option("--requests", type=click.IntRange(min=1), help="Only the first requests.  [default: all]")
@click.option("--dynamo", default=sys.executable, help="Python that has ai-dynamo-runtime.  [default: this one]")
@file_option("--readme", "Markdown file whose section of peers is replaced.")
def main(trace: str, requests: int | None, dynamo: str, readme: str | None) -> None:
    """Measure and report."""
    lines = read_text(Path(trace)).splitlines()[:requests]
    with tempfile.TemporaryDirectory() as folder:
        rows, document = Path(folder) / "trace.jsonl", Path(folder) / "trace.json"
        rows.write_text("\n".join(lines) + "\n")
        document.write_text(dump(instance_document(instance_of(rows.read_text(), Path(trace).name.partition(".")[0]))))
        found = list(measure(rows, document, dynamo))
    sheet = table(
        [run for run in found if isinstance(run, Run)], [text for text in found if isinstance(text, str)], len(lines)
    )
    click.echo(as_text(sheet, _WIDTH))
    write_section("--readme", readme, "peers", as_markdown(sheet))


if __name__ == "__main__":
    run_program(main, "peers.py")
