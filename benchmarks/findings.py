"""What papers report of their policies, beside what this simulator finds.

    python benchmarks/findings.py --page docs/findings.md

Takes a minute or two. Instances: the stand-ins of the Azure traces at their sustainable rate (a100-llama2-7b-nocall),
InferMax's workloads; RR-SJF's workload: half of 1,000 outputs are 1,024 tokens, the others uniform; all arrive at
once, and at most 256 requests run; and EconoServe's Table 2 with Poisson arrivals, on 15,000 KV tokens (its 12 GB) in
blocks of 32, a link of 25 GB/s (2¹⁹ bytes a token), SLOs of twice a request's time, 20 µs for each request considered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import click
import numpy as np

from optsched.calibrate.library import cost_model
from optsched.cli import run_program
from optsched.cli.options import blaming, file_option
from optsched.library import load_instance
from optsched.methods.simulate import simulate
from optsched.model.documents import read_bytes, write_text
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import tally_of
from optsched.policies.infermax import InferMax
from optsched.report.benchmark import replace_section
from optsched.report.formats import as_markdown, as_text
from optsched.report.sheet import Cell, Column, Sheet
from optsched.traces.workloads import draw_workload

Row = tuple[str, str, str]
"""What is claimed, the paper's number, ours."""

_COST = cost_model("a100-llama2-7b-nocall")
_WIDTH = 140


def metrics_of(instance: Instance, policy: str) -> dict[str, Any]:
    """Return the metrics of a policy on an instance."""
    found = simulate(instance, policy).metrics
    assert found is not None
    return found


def larry() -> Iterator[Row]:
    """Compare LARRY with the next best of its paper's policies, under load."""
    for name in ("azure-conv-1", "azure-code-1"):
        instance = load_instance(name)
        found = {policy: metrics_of(instance, policy) for policy in ("larry", "fcfs", "sarathi", "no_preempt", "trail")}
        for metric, share, paper in (
            ("ttft_ps", "p50", "1.8 to 2.1"),
            ("ttft_ps", "p95", "1.2 to 1.4"),
            ("ttft_per_input_ps", "p50", "1.3 to 1.5"),
            ("ttft_per_input_ps", "p95", "3.3 to 5.5"),
        ):
            value, *others = (metrics[metric][share] for metrics in found.values())
            label = (
                f"LARRY: {share} of {'TTFT' if metric == 'ttft_ps' else 'TTFT / I'}, times below the next best, {name}"
            )
            yield label, paper, f"{min(others) / value:.2f}"


def rr_sjf_workload(count: int = 1000, running: int = 256) -> Instance:
    """Return requests like those of RR-SJF's section 3.1; prompts are made up."""
    rng = Random("RR-SJF")
    requests = [
        Request(min(max(int(rng.lognormvariate(3.5, 0.9)), 4), 1000), 1024 if half else rng.randint(4, 1023))
        for half in (True, False)
        for _ in range(count // 2)
    ]
    rng.shuffle(requests)
    return Instance("rr-sjf", Limits(600_000, 4096, 4096, running), Rules(), _COST, tuple(requests))


def latencies(instance: Instance, policy: str, predictor: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return all TTFT and e2e latencies in s, of requests that arrive at 0."""
    schedule = simulate(instance, policy, predictor=predictor).schedule
    assert schedule is not None
    tally = tally_of(instance, schedule)
    return np.array(tally.first) / 1e12, np.array(tally.last) / 1e12


def round_robin() -> Iterator[Row]:
    """Compare RR-SJF with its baselines."""
    instance = rr_sjf_workload()
    ttft, e2e = {}, {}
    for policy in ("fcfs", "sjf", "rr", "rr_sjf"):
        ttft[policy], e2e[policy] = latencies(instance, policy)
    median = np.median(ttft["fcfs"]) / np.median(ttft["rr_sjf"])
    yield "RR-SJF: median TTFT, times below FCFS", "9", f"{median:.1f}"
    for policy, paper in (("fcfs", "5"), ("sjf", "5"), ("rr", "1.5")):
        ratio = ttft[policy].max() / ttft["rr_sjf"].max()
        yield f"RR-SJF: largest TTFT, times below {policy.upper()}", paper, f"{ratio:.1f}"
    quarter = np.percentile(e2e["rr"], 25) / np.percentile(e2e["rr_sjf"], 25)
    yield "RR-SJF: 25th percentile of e2e, times below RR", "9", f"{quarter:.1f}"
    largest = e2e["rr_sjf"].max() / max(e2e[policy].max() for policy in ("fcfs", "sjf", "rr"))
    yield "RR-SJF: largest e2e, times that of the next largest", "> 1", f"{largest:.2f}"
    for policy, paper in (("rr_sjf", "nearly 1"), ("sjf", "more")):
        noisy, _ = latencies(instance, policy, "gaussian:200")
        changed = noisy.mean() / ttft[policy].mean()
        yield f"{policy.upper()}: mean TTFT with σ = 200, times that without noise", paper, f"{changed:.2f}"


def infermax() -> Iterator[Row]:
    """InferMax's ranks, evictions at small M, and its own policy."""
    mix = load_instance("infermax-mix-b1024-LILO+SISO")
    ends = {policy: simulate(mix, policy).value or 0 for policy in ("rank_i", "rank_o")}
    yield "Rank_I: makespan of LILO+SISO, times below Rank_O", "up to 1.3", f"{ends['rank_o'] / ends['rank_i']:.3f}"
    for tokens, paper_vllm, paper_sarathi in (
        (100, "up to 1.9", "up to 2"),
        (1000, "up to 1.3", "up to 1.1"),
        (10_000, "down to 1/1.5", "down to 1/1.5"),
    ):
        for policy, paper in (("vllm", paper_vllm), ("sarathi", paper_sarathi)):
            gains = []
            for size in (1, 32):
                instance = load_instance(f"infermax-m-M{tokens}-I{size}")
                with_evictions, without = (simulate(instance, name).value for name in (policy, f"{policy}_ef"))
                assert with_evictions is not None
                assert without is not None
                gains.append(without / with_evictions)
            shown = f"{min(gains):.2f} to {max(gains):.2f}"
            yield f"Evictions: throughput gain of {policy} at M = {tokens:,}, I = 1, 32", paper, shown
    chat = load_instance("azure-conv-2")
    value = simulate(chat, InferMax(histogram=False)).value or 0
    for policy in ("vllm", "vllm_ef", "sarathi", "infermax"):
        shown = f"{(simulate(chat, policy).value or 0) / value:.3f}"
        yield f"InferMax without its histogram: makespan of azure-conv-2, times below {policy}", "7/6 for vllm", shown


_LINK_PS = 2**19 * 10**12 // (25 * 10**9)
"""Of a KV token of Llama-2-7B at 25 GB/s."""
_ECONOSERVE = replace(_COST, swap_out_kv=_LINK_PS, swap_in_kv=_LINK_PS, swap_overlap=100, cpu_request=20_000_000)
_FAMILY = ("econoserve_d", "econoserve_sd", "econoserve_sdo", "econoserve")


def econoserve_workload(name: str, rate: float, count: int = 1000) -> Instance:
    """Return requests of EconoServe's Table 2 at a rate in requests/s."""
    rows, rng, now = draw_workload(name, count, 1).rows, Random(f"EconoServe {name}"), 0
    prompt = sum(row.input for row in rows) // count
    first = _ECONOSERVE.batch_ps(prompt, 0, 0, [(prompt, 0)])
    token = _ECONOSERVE.batch_ps(30, 30, 10_000, [])
    requests = []
    for row in rows:
        now += round(rng.expovariate(rate) * 10**12)
        slo = 2 * (first + token * row.output)
        requests.append(Request(row.input, row.output, arrival_ps=now, slo_e2e_ps=slo))
    limits = Limits(15_008, 4096, 4096, kv_block=32)
    return Instance(name, limits, Rules(swap=True), _ECONOSERVE, tuple(requests))


def sustained(makes: Callable[[float], Instance], policy: str, most: float) -> float:
    """Return the largest rate, to 2 %, at which normalised latency is 50 ms a token at most."""
    low, high = most / 20, most
    while high / low > 1.02:
        rate = (low + high) / 2
        if metrics_of(makes(rate), policy)["e2e_per_output_ps"]["mean"] <= 50 * 10**9:
            low = rate
        else:
            high = rate
    return low


def econoserve() -> Iterator[Row]:
    """Compare EconoServe with what it is made of, and with vLLM."""
    for name, rate, most, paper in (("alpaca", 110, 200, "1.13 to 2.14"), ("sharegpt", 6, 12, "2.5 to 4")):
        instance = econoserve_workload(f"econoserve-{name}", rate)
        e2e = {policy: metrics_of(instance, policy)["e2e_ps"]["mean"] for policy in ("multires", *_FAMILY)}
        for policy, reported in zip(_FAMILY, ("1.19", "1.07", "1.29"), strict=False):
            label = f"{policy}: mean e2e, times that of EconoServe, {name}, {rate} requests/s"
            yield label, reported, f"{e2e[policy] / e2e['econoserve']:.2f}"

        def made(rate: float, name: str = name) -> Instance:
            return econoserve_workload(f"econoserve-{name}", rate)

        rates = {policy: sustained(made, policy, most) for policy in ("vllm", "vllm_swap", "sarathi", "econoserve")}
        for policy, reported in (("vllm", paper), ("vllm_swap", paper), ("sarathi", "1.2 to 2.3")):
            label = f"EconoServe: sustained rate of {name}, times that of {policy}"
            yield label, reported, f"{rates['econoserve'] / rates[policy]:.2f}"


def sheet(rows: Sequence[Row]) -> Sheet:
    """Lay the rows out."""
    columns = [
        Column(header, header, tuple(Cell(row[place], row[place]) for row in rows), key=not place, left=not place)
        for place, header in enumerate(("finding", "paper", "ours"))
    ]
    return Sheet("Findings of the papers", "", tuple(columns), ())


@click.command(help=__doc__)
@file_option("--page", "Put the table into this Markdown file.")
def main(page: str | None) -> None:
    """Measure and report."""
    table = sheet([row for part in (larry, round_robin, infermax, econoserve) for row in part()])
    click.echo(as_text(table, _WIDTH))
    if page is not None:
        with blaming("--page"):
            write_text(page, replace_section(read_bytes(page).decode(), "findings", as_markdown(table)))


if __name__ == "__main__":
    run_program(main, "findings.py")
