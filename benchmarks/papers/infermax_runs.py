"""Runs of InferMax's analysis workloads (sections 4.2 to 4.6), each made once."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from optsched.calibrate.library import cost_model
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.traces.infermax import CONTEXT, GROUPS, KV_TOKENS, draw_mix
from papers.serving import metrics_of

LINEAR, PIECES = "a100-llama2-7b-linear", "a100-llama2-7b-nocall"
"""Profiles: one affine piece, which is InferMax's own model, and three."""

BASES = ("vllm", "sarathi", "sarathi_pc", "sarathi_nocp", "vllm_hy", "sarathi_nohy")
TRIO = BASES[:3]
"""The schedulers of Figures 5 and 8."""
SEEDS = (1, 2, 3)
"""Of the mixes; 1 draws those of the suites."""


@cache
def equal(
    count: int, size: int, output: int, policy: str, kv_tokens: int = KV_TOKENS, profile: str = LINEAR
) -> dict[str, Any]:
    """Return the metrics of a policy on B equal requests that arrive together."""
    requests = (Request(size, output),) * count
    limits = Limits(kv_tokens, CONTEXT, CONTEXT)
    return metrics_of(Instance("equal", limits, Rules(), cost_model(profile), requests), policy)


@cache
def mixed(mix: tuple[str, str], count: int, policy: str, seed: int = 1, profile: str = LINEAR) -> dict[str, Any]:
    """Return the metrics of a policy on B requests, half of each of two groups (section 4.6)."""
    requests = draw_mix(mix, GROUPS, count, Random(f"{seed} infermax-mix-b{count} {mix}"))
    limits = Limits(KV_TOKENS, CONTEXT, CONTEXT)
    return metrics_of(Instance("mixed", limits, Rules(), cost_model(profile), requests), policy)


def makespan(metrics: dict[str, Any]) -> int:
    """Return the paper's total latency in ps."""
    value: int = metrics["objectives"]["makespan"]
    return value


def ratio(metric: str, above: dict[str, Any], below: dict[str, Any], share: str = "mean") -> float:
    """Return a metric of one run over that of another."""
    return float(above[metric][share] / below[metric][share])
