"""Optimizing LLM Inference for Database Systems (Kim et al.): InferMax.

Its analysis workloads, and a stand-in of the Azure conversations at its sustainable rate, on Llama-2-7B on one A100.
"""

from __future__ import annotations

from collections.abc import Iterator

from optsched.library import load_instance
from optsched.methods.simulate import simulate
from optsched.policies.infermax import InferMax
from papers.finding import Finding

_REFILLS = "A third of the requests are evicted once, and their refills are a few percent of the work."


def findings() -> Iterator[Finding]:
    """InferMax's ranks, evictions at small M, and its own policy."""
    mix = load_instance("infermax-mix-b1024-LILO+SISO")
    ends = {policy: simulate(mix, policy).value or 0 for policy in ("rank_i", "rank_o")}
    claim = "Rank_I: makespan of LILO+SISO, times below Rank_O"
    yield Finding(claim, "section 4.6", "up to 1.3", (ends["rank_o"] / ends["rank_i"],), 1.04, 1.36, _REFILLS)
    for tokens, of_vllm, of_sarathi in ((100, 1.9, 2.0), (1000, 1.3, 1.1), (10_000, 1 / 1.5, 1 / 1.5)):
        for policy, paper in (("vllm", of_vllm), ("sarathi", of_sarathi)):
            gains = []
            for size in (1, 32):
                instance = load_instance(f"infermax-m-M{tokens}-I{size}")
                with_evictions, without = (simulate(instance, name).value for name in (policy, f"{policy}_ef"))
                assert with_evictions is not None
                assert without is not None
                gains.append(without / with_evictions)
            gain = max(gains) if paper > 1 else min(gains)
            claim = f"Evictions: throughput gain of {policy} at M = {tokens:,}, I = 1, 32"
            cause = "The largest gain over two prompt lengths only; the paper draws all from 1 to 1,024."
            shown = f"up to {paper}" if paper > 1 else "down to 1/1.5"
            yield Finding(claim, "section 4.5", shown, (gain,), paper * 0.9, paper * 1.1, cause)
    chat = load_instance("azure-conv-2")
    value = simulate(chat, InferMax(histogram=False)).value or 0
    gain = (simulate(chat, "vllm").value or 0) / value
    claim = "InferMax without its histogram: makespan of azure-conv-2, times below vllm"
    yield Finding(claim, "section 6", "7/6", (gain,), 1.1, 1.25)
