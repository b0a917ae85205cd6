"""EconoServe (Shen and Sen).

Its Table 2 with Poisson arrivals, on Llama-2-7B on one A100 with 15,000 KV tokens (its 12 GB) in blocks of 32, a link
of 25 GB/s (2¹⁹ bytes a token), SLOs of twice a request's time, 20 µs for each request considered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.traces.workloads import draw_workload
from papers.finding import Finding
from papers.serving import COST, metrics_of

_LINK_PS = 2**19 * 10**12 // (25 * 10**9)
"""Of a KV token of Llama-2-7B at 25 GB/s."""
_COST = replace(COST, swap_out_kv=_LINK_PS, swap_in_kv=_LINK_PS, swap_overlap=100, cpu_request=20_000_000)
_FAMILY = ("econoserve_d", "econoserve_sd", "econoserve_sdo", "econoserve")

_STEPS = "Groups are mostly of one request here, since predictions are exact, and guests are few."
_MEMORY = (
    "Memory is short, and exact allocation leaves 40 % of it empty, as a request fills its allocation only at its end; "
    "vLLM's evictions cost little on this machine."
)


def workload(name: str, rate: float, count: int = 1000) -> Instance:
    """Return requests of Table 2 at a rate in requests/s."""
    rows, rng, now = draw_workload(name, count, 1).rows, Random(f"EconoServe {name}"), 0
    prompt = sum(row.input for row in rows) // count
    first = _COST.batch_ps(prompt, 0, 0, [(prompt, 0)])
    token = _COST.batch_ps(30, 30, 10_000, [])
    requests = []
    for row in rows:
        now += round(rng.expovariate(rate) * 10**12)
        slo = 2 * (first + token * row.output)
        requests.append(Request(row.input, row.output, arrival_ps=now, slo_e2e_ps=slo))
    limits = Limits(15_008, 4096, 4096, kv_block=32)
    return Instance(name, limits, Rules(swap=True), _COST, tuple(requests))


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


def findings() -> Iterator[Finding]:
    """Compare EconoServe with what it is made of, and with vLLM."""
    for name, rate, most, low, high in (("alpaca", 110, 200, 1.13, 2.14), ("sharegpt", 6, 12, 2.5, 4)):
        instance = workload(f"econoserve-{name}", rate)
        e2e = {policy: metrics_of(instance, policy)["e2e_ps"]["mean"] for policy in ("multires", *_FAMILY)}
        for policy, reported in zip(_FAMILY, (1.19, 1.07, 1.29), strict=False):
            claim = f"{policy}: mean e2e, times that of EconoServe, {name}, {rate} requests/s"
            value = e2e[policy] / e2e["econoserve"]
            yield Finding(
                claim, "section 4", str(reported), (value,), 1 + 0.8 * (reported - 1), 1 + 1.2 * (reported - 1), _STEPS
            )

        def made(rate: float, name: str = name) -> Instance:
            return workload(f"econoserve-{name}", rate)

        rates = {policy: sustained(made, policy, most) for policy in ("vllm", "vllm_swap", "sarathi", "econoserve")}
        for policy, least, greatest in (("vllm", low, high), ("vllm_swap", low, high), ("sarathi", 1.2, 2.3)):
            claim = f"Sustained rate of {name}, times that of {policy}"
            value = rates["econoserve"] / rates[policy]
            yield Finding(claim, "section 4", f"{least} to {greatest}", (value,), least, greatest, _MEMORY)
