"""What papers report of their policies comes out of the simulator, too; docs/findings.md has the numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from optsched import Instance, Limits, Request, Rules, load_instance, simulate
from optsched.calibrate.library import cost_model
from optsched.model.domain import replace as replaced
from optsched.model.metrics import tally_of
from optsched.policies.fcfs import FCFS_HY
from optsched.policies.grouped import Margins
from optsched.traces.workloads import draw_workload

pytestmark = pytest.mark.slow

COST = cost_model("a100-llama2-7b-nocall")


@cache
def chat(policy: str) -> dict[str, Any]:
    """Return metrics of conversations at the sustainable rate."""
    found = simulate(load_instance("azure-conv-1"), policy).metrics
    assert found is not None
    return found


@pytest.mark.parametrize(("metric", "share", "least"), [("ttft_ps", "p50", 1.8), ("ttft_per_input_ps", "p95", 3.3)])
def test_larry_has_lower_ttft_than_the_next_best(metric: str, share: str, least: float) -> None:
    """Kossmann et al., section 6: 1.8 to 2.1 times, and 3.3 to 5.5 times; here 2.07 and 4.97."""
    others = [chat(policy)[metric][share] for policy in ("trail", "ltr", "fcfs", "no_preempt")]
    assert min(others) / chat("larry")[metric][share] > least


@cache
def at_once(policy: str, predictor: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return TTFT and e2e latencies, in s, of 300 requests at once of which 64 may run; half have 1,024 outputs."""
    rng = np.random.default_rng(3)
    outputs = rng.permutation([1024] * 150 + [int(length) for length in rng.integers(4, 1024, 150)])
    requests = tuple(Request(40, int(output)) for output in outputs)
    instance = Instance("rr-sjf", Limits(600_000, 4096, 4096, 64), Rules(), COST, requests)
    # vLLM's cap is the number that may run.
    runner = replace(FCFS_HY, margins=Margins(residents=64)) if policy == "fcfs" else policy
    schedule = simulate(instance, runner, predictor=predictor).schedule
    assert schedule is not None
    tally = tally_of(instance, schedule)
    return np.array(tally.first) / 1e12, np.array(tally.last) / 1e12


def test_rr_sjf_has_low_ttft_and_pays_with_the_largest_latency() -> None:
    """RR-SJF, section 3.4: a median TTFT 9 times below FCFS, the largest 5 times below FCFS and SJF."""
    (fcfs, fcfs_end), (rr, rr_end), (ours, ours_end) = (at_once(policy) for policy in ("fcfs", "rr", "rr_sjf"))
    assert np.median(fcfs) / np.median(ours) > 3
    assert fcfs.max() / ours.max() > 3
    assert np.percentile(rr_end, 25) / np.percentile(ours_end, 25) > 1.5
    assert ours_end.max() >= max(fcfs_end.max(), rr_end.max())
    assert rr.max() > ours.max()


def test_rr_sjf_does_not_mind_noise() -> None:
    """Section 3.5."""
    exact, _ = at_once("rr_sjf")
    noisy, _ = at_once("rr_sjf", "gaussian:100")
    assert abs(noisy.mean() / exact.mean() - 1) < 0.1
    assert abs(np.median(noisy) / np.median(exact) - 1) < 0.1


def econoserve_alpaca(rate: float) -> Instance:
    """Return 600 requests of EconoServe's Alpaca (Table 2) on 15,000 KV tokens in blocks of 32."""
    rng, now, requests = Random(7), 0, []
    for row in draw_workload("econoserve-alpaca", 600, 1).rows:
        now += round(rng.expovariate(rate) * 10**12)
        slo = 2 * (25 + 20 * row.output) * 10**9
        requests.append(Request(row.input, row.output, arrival_ps=now, slo_e2e_ps=slo))
    cost = replaced(COST, swap_out_kv=21_000_000, swap_in_kv=21_000_000, swap_overlap=100)
    return Instance("alpaca", Limits(15_008, 4096, 4096, kv_block=32), Rules(swap=True), cost, tuple(requests))


def test_econoserve_beats_what_it_is_made_of_and_vllm() -> None:
    """EconoServe, section 4: 1.13 to 2.14 times vLLM's rate on Alpaca; D > SD > SDO > EconoServe in latency."""
    many = econoserve_alpaca(120)
    family = [f"econoserve{part}" for part in ("", "_sdo", "_sd", "_d")]
    found = {policy: simulate(many, policy, predictor="truth").metrics for policy in [*family, "vllm", "vllm_swap"]}
    e2e = {policy: metrics["e2e_ps"]["mean"] for policy, metrics in found.items() if metrics is not None}
    full, ordered, synced, decoupled = (e2e[policy] for policy in family)
    assert full <= ordered < 0.9 * synced
    assert synced <= decoupled
    assert full < 0.9 * min(e2e["vllm"], e2e["vllm_swap"])
    # At 1.3 times the rate it has lower latencies than vLLM.
    more = simulate(econoserve_alpaca(1.3 * 80), "econoserve", predictor="truth").metrics
    less = simulate(econoserve_alpaca(80), "vllm").metrics
    assert more is not None
    assert less is not None
    assert more["e2e_per_output_ps"]["mean"] < less["e2e_per_output_ps"]["mean"]


@pytest.mark.parametrize("policy", ["vllm", "sarathi"])
def test_evictions_raise_throughput_where_memory_is_tiny_and_not_where_it_is_large(policy: str) -> None:
    """InferMax, figure 9: up to twice at M = 100; here 1.60."""

    def gain(tokens: int) -> float:
        instance = load_instance(f"infermax-m-M{tokens}-I32")
        with_evictions, without = (simulate(instance, name).value for name in (policy, f"{policy}_ef"))
        assert with_evictions is not None
        assert without is not None
        return without / with_evictions

    assert gain(100) > 1.5
    assert gain(10_000) < 1
    assert gain(1_000_000) == 1
