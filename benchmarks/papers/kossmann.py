"""Is the GPU Half-Empty or Half-Full? (Kossmann et al.): LARRY.

The stand-ins of the Azure traces at their sustainable rate, on Llama-2-7B on one A100.
"""

from __future__ import annotations

from collections.abc import Iterator

from optsched.library import load_instance
from papers.finding import Finding
from papers.serving import metrics_of

_CODE = (
    "The stand-in has longer bursts for its rate than the trace that the paper replays (the coefficient of variation "
    "of its arrivals is 13), so the queue is long for minutes, in which large prompts wait."
)
_CONVERSATIONS = "Memory is scarcer here for the load than in the paper, and LARRY's gain grows with the queue."


def findings() -> Iterator[Finding]:
    """Compare LARRY with the next best of its paper's policies, under load."""
    for name, cause in (("azure-conv-1", _CONVERSATIONS), ("azure-code-1", _CODE)):
        instance = load_instance(name)
        found = {policy: metrics_of(instance, policy) for policy in ("larry", "fcfs", "sarathi", "no_preempt", "trail")}
        for metric, label, share, least, most in (
            ("ttft_ps", "TTFT", "p50", 1.8, 2.1),
            ("ttft_ps", "TTFT", "p95", 1.2, 1.4),
            ("ttft_per_input_ps", "TTFT / I", "p50", 1.3, 1.5),
            ("ttft_per_input_ps", "TTFT / I", "p95", 3.3, 5.5),
        ):
            value, *others = (metrics[metric][share] for metrics in found.values())
            claim = f"LARRY: {share} of {label}, times below the next best, {name}"
            yield Finding(claim, "section 6", f"{least} to {most}", (min(others) / value,), least, most, cause)
