"""Runs of InferMax's analysis workloads (sections 4.2 to 4.6), each made once."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random
from typing import Any

from optsched.calibrate.library import cost_model
from optsched.model.cost import CostModel
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.policies.infermax import InferMax
from optsched.traces.infermax import CONTEXT, GROUPS, KV_TOKENS, LENGTHS, MIXES, draw_mix
from papers.serving import metrics_of

LINEAR = cost_model("a100-llama2-7b-linear")
"""One affine piece, which is InferMax's own model."""

BASES = ("vllm", "sarathi", "sarathi_pc", "sarathi_nocp", "vllm_hy", "sarathi_nohy")
TRIO = BASES[:3]
"""The schedulers of Figures 5 and 8."""
LOW, HIGH = 32, 1024
"""B: low and high contention."""
PAIRS = tuple(product(LENGTHS, LENGTHS))
"""All (I, O)."""


@cache
def equal(
    count: int,
    size: int,
    output: int,
    policy: str | InferMax,
    kv_tokens: int = KV_TOKENS,
    cost: CostModel = LINEAR,
) -> dict[str, Any]:
    """Return the metrics of a policy on B equal requests that arrive together."""
    return metrics_of(equal_requests(count, size, output, kv_tokens, cost), policy)


def equal_requests(
    count: int, size: int, output: int, kv_tokens: int = KV_TOKENS, cost: CostModel = LINEAR
) -> Instance:
    """Return B equal requests that arrive together."""
    limits = Limits(kv_tokens, CONTEXT, CONTEXT)
    return Instance("equal", limits, Rules(), cost, (Request(size, output),) * count)


@cache
def mixed(mix: tuple[str, str], count: int, policy: str | InferMax, seed: int = 1) -> dict[str, Any]:
    """Return the metrics of a policy on B requests, half of each of two groups (section 4.6)."""
    requests = draw_mix(mix, GROUPS, count, Random(f"{seed} infermax-mix-b{count} {mix}"))
    limits = Limits(KV_TOKENS, CONTEXT, CONTEXT)
    return metrics_of(Instance("mixed", limits, Rules(), LINEAR, requests), policy)


def makespan(metrics: dict[str, Any]) -> int:
    """Return the paper's total latency in ps."""
    value: int = metrics["objectives"]["makespan"]
    return value


def ratio(metric: str, above: dict[str, Any], below: dict[str, Any], share: str = "mean") -> float:
    """Return a metric of one run over that of another."""
    return float(above[metric][share] / below[metric][share])


def over_analysis_workloads(policy: str, base: str | InferMax) -> list[float]:
    """Return the latencies of a policy over those of another on workloads of sections 4.3, 4.5 and 4.6."""
    runs = [(size, output, KV_TOKENS) for size in LENGTHS for output in (32, 128)]
    runs += [(size, 32, tokens) for tokens in (1000, 10_000) for size in LENGTHS if size + 31 <= tokens]
    found = [
        makespan(equal(HIGH, size, output, policy, tokens)) / makespan(equal(HIGH, size, output, base, tokens))
        for size, output, tokens in runs
    ]
    return found + [makespan(mixed(mix, HIGH, policy)) / makespan(mixed(mix, HIGH, base)) for mix in MIXES]
