"""Jumps and compiled policies against the plain engine, on the first requests of public traces.

    python benchmarks/jumps.py ../shared/data [--limit 2000] [--policies standard] [--traces agentic]

Every policy serves the beginning of every trace three ways, and the schedules must be the same, batch by batch and to
the picosecond, legal, and their metrics equal. Traces without arrival times arrive by a Poisson process at the
sustainable rate. KV may wait on the host, over a link of 25 GB/s. It takes 40 minutes for all policies. Exit code 1 if
anything differs.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import click
import numpy as np

from optsched.calibrate.library import cost_model
from optsched.catalogue import POLICY_GROUP, lookup
from optsched.check import check_schedule
from optsched.cli import run_program
from optsched.cli.options import read_policies
from optsched.model.domain import replace
from optsched.model.following import unrolled
from optsched.model.instance import Instance, Limits, Rules
from optsched.model.metrics import evaluate, metrics
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import Compiled, Occasion, Policy, PolicyFailureError, Preparing
from optsched.traces.sources import read_rows
from optsched.traces.trace import make_trace, trace_instance

TRACES = {
    "azure": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
    "azure-code": "azure_llm_2023/AzureLLMInferenceTrace_code_rows1-5879.csv",
    "burstgpt": "burstgpt/BurstGPT_1_rows1-400.csv",
    "mooncake": "mooncake/conversation_trace.jsonl.gz",
    "vidur": "vidur/processed_traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz",
    "sharegpt": "sharegpt_predicted/sharegpt-val-10k-predicted-len_rows1-26667.csv.gz",
    "agentic": "kv_cache_tester/agentic_coding_traces_a.jsonl.gz",
}
_LINK_PS = 21_000_000
"""Of a KV token: 2¹⁹ bytes."""
_LIMITS = Limits(kv_tokens=200_000, batch_tokens=200_000, prefill_tokens=200_000, kv_block=16)


def beginning(data: str, name: str, limit: int) -> Instance:
    """Return the first requests of a trace that fit the machine, at the sustainable rate."""
    trace = make_trace(read_rows(str(Path(data) / TRACES[name]), name.partition("-")[0]))
    fitting = tuple(request for request in trace.requests if request.peak_tokens <= _LIMITS.kv_capacity)[:limit]
    span = fitting[-1].arrival_ps
    if not span:
        gaps = np.random.default_rng(0).exponential(10**11, len(fitting))
        times = np.cumsum(gaps).astype(np.int64).tolist()
        fitting = tuple(replace(request, arrival_ps=time) for request, time in zip(fitting, times, strict=True))
    shifted = tuple(replace(request, arrival_ps=request.arrival_ps - fitting[0].arrival_ps) for request in fitting)
    cost = replace(cost_model("a100-llama2-7b-nocall"), swap_out_kv=_LINK_PS, swap_in_kv=_LINK_PS)
    instance = trace_instance(replace(trace, requests=shifted), name, cost, _LIMITS, Fraction(1))
    return replace(instance, rules=Rules(swap=True))


def difference(pair: tuple[str, str], data: str, limit: int) -> str:
    """Say how the ways differ; nothing if they do not."""
    name, policy = pair
    instance = beginning(data, name, limit)

    def ready() -> Policy:
        found: Policy | Preparing = lookup(POLICY_GROUP, policy, "policy")
        if isinstance(found, Preparing):
            return found.prepared(Occasion(instance, Objective.MEAN_E2E, Restrictions(), np.random.default_rng(0)))
        return found

    try:
        plain, jumped = (run_policy(instance, ready(), jumps=jumps) for jumps in (False, True))
    except PolicyFailureError as failure:
        return f"fails: {failure.reason}"
    if unrolled(instance, jumped) != plain:
        return "jumps change the schedule"
    violations, found = check_schedule(instance, jumped)
    if violations or found != evaluate(instance, plain):
        return f"the checker finds {violations[:1] or 'other metrics'}"
    runner = ready()
    record = runner.serve(instance) if isinstance(runner, Compiled) else None
    if record is not None and (record.schedule() != jumped or metrics(instance, record.tally()) != found):
        return "compiled it is another schedule"
    return ""


@click.command(help=__doc__)
@click.argument("data")
@click.option("--limit", type=int, default=2000, show_default=True, help="Requests of every trace.")
@click.option("--policies", multiple=True, default=("all",), show_default=True, help="all, standard, or names.")
@click.option("--traces", multiple=True, type=click.Choice(list(TRACES)), default=tuple(TRACES), help="All of them.")
def main(data: str, limit: int, policies: tuple[str, ...], traces: tuple[str, ...]) -> None:
    """Compare and report."""
    pairs = list(product(traces, read_policies(policies)))
    wrong = 0
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for (name, policy), text in zip(
            pairs, pool.map(partial(difference, data=data, limit=limit), pairs), strict=True
        ):
            click.echo(f"{name:12} {policy:16} {text or 'the same'}")
            wrong += bool(text)
    sys.exit(int(wrong > 0))


if __name__ == "__main__":
    run_program(main, "jumps.py")
