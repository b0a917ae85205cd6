"""Round-robin with shortest job first (RR-SJF).

Half of 1,000 outputs are 1,024 tokens, the others uniform; prompts are made up. All arrive at once, and at most 256
requests run.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np

from optsched.methods.simulate import simulate
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import tally_of
from papers.finding import Finding
from papers.serving import COST

_MACHINE = (
    "The paper gives neither its prompts nor the outputs below 1,024 tokens, and runs a 1B model on an L4, where a "
    "batch of 256 costs little more than a small one, and a refill less."
)


def workload(count: int = 1000, running: int = 256) -> Instance:
    """Return requests like those of section 3.1."""
    rng = Random("RR-SJF")
    requests = [
        Request(min(max(int(rng.lognormvariate(3.5, 0.9)), 4), 1000), 1024 if half else rng.randint(4, 1023))
        for half in (True, False)
        for _ in range(count // 2)
    ]
    rng.shuffle(requests)
    return Instance("rr-sjf", Limits(600_000, 4096, 4096, running), Rules(), COST, tuple(requests))


def latencies(instance: Instance, policy: str, predictor: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return all TTFT and e2e latencies in s, of requests that arrive at 0."""
    schedule = simulate(instance, policy, predictor=predictor).schedule
    assert schedule is not None
    tally = tally_of(instance, schedule)
    return np.array(tally.first) / 1e12, np.array(tally.last) / 1e12


def findings() -> Iterator[Finding]:
    """Compare RR-SJF with its baselines."""
    instance = workload()
    ttft, e2e = {}, {}
    for policy in ("fcfs", "sjf", "rr", "rr_sjf"):
        ttft[policy], e2e[policy] = latencies(instance, policy)
    median = float(np.median(ttft["fcfs"]) / np.median(ttft["rr_sjf"]))
    yield Finding("Median TTFT, times below FCFS", "section 3.4", "9", (median,), 8, 10, _MACHINE)
    for policy, paper, least, most in (("fcfs", "5", 4.5, 5.5), ("sjf", "5", 4.5, 5.5), ("rr", "1.5", 1.35, 1.65)):
        ratio = ttft[policy].max() / ttft["rr_sjf"].max()
        claim = f"Largest TTFT, times below {policy.upper()}"
        yield Finding(claim, "section 3.4", paper, (ratio,), least, most, _MACHINE)
    quarter = float(np.percentile(e2e["rr"], 25) / np.percentile(e2e["rr_sjf"], 25))
    yield Finding("25th percentile of e2e, times below RR", "section 3.4", "9", (quarter,), 8, 10, _MACHINE)
    largest = e2e["rr_sjf"].max() / max(e2e[policy].max() for policy in ("fcfs", "sjf", "rr"))
    yield Finding("Largest e2e, times that of the next largest", "section 3.4", "> 1", (largest,), 1)
    ranges: dict[str, tuple[str, float, float | None]] = {
        "rr_sjf": ("nearly 1", 0.95, 1.05),
        "sjf": ("more", 1.05, None),
    }
    for policy, (paper, low, high) in ranges.items():
        noisy, _ = latencies(instance, policy, "gaussian:200")
        changed = float(noisy.mean() / ttft[policy].mean())
        claim = f"{policy.upper()}: mean TTFT with σ = 200, times that without noise"
        cause = "Half of the outputs are equal and stay last whatever the noise, and a mean hides the others."
        yield Finding(claim, "section 3.5", paper, (changed,), low, high, cause)
