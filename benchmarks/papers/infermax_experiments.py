"""Experiments that show why InferMax's numbers come out as they do here; not claims of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from optsched.library import load_suite
from optsched.methods.bound import bound
from optsched.methods.solve import solve
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.policies.infermax import SARATHI_PC, InferMax
from optsched.traces.infermax import KV_TOKENS, LENGTHS
from papers.finding import Finding
from papers.infermax_runs import HIGH, LINEAR, PAIRS, equal, equal_requests, makespan, over_analysis_workloads, ratio
from papers.serving import COST


def experiments() -> Iterator[Finding]:
    """Return them all."""
    yield from fixed_costs()
    yield from evictions()
    yield from optimum()
    yield from trade_off()
    least = min(over_analysis_workloads("vllm", InferMax(base=SARATHI_PC)))
    yield _experiment("Analysis workloads: latency of vLLM over that of InferMax with P = C, least", least)


def _experiment(claim: str, value: float) -> Finding:
    return Finding(claim, "experiment", "not reported", (value,))


def _with_base(share: Fraction) -> CostModel:
    """Return the linear model with a share of the fixed cost of a batch."""
    return replace(LINEAR, base=int(share * LINEAR.base))


def fixed_costs() -> Iterator[Finding]:
    """Vary the fixed costs of a batch and of a prefill step (sections 4.3 and 4.4).

    Sarathi's latency is the farthest above vLLM's where vLLM does not evict, at small O.
    """
    excess = max(
        100 * (makespan(equal(HIGH, *pair, "sarathi", cost=COST)) / makespan(equal(HIGH, *pair, "vllm", cost=COST)) - 1)
        for pair in PAIRS
        if pair[1] <= 32
    )
    yield _experiment("Three pieces, B = 1,024, O ≤ 32: Sarathi's latency above vLLM's in %, largest", excess)
    free = replace(LINEAR, base=0, prefill_req=0)
    below = max(
        ratio("tpot_ps", equal(HIGH, size, 32, "vllm", cost=free), equal(HIGH, size, 32, "sarathi", cost=free))
        for size in LENGTHS
    )
    yield _experiment(
        "No base, no prefill_req, B = 1,024, O = 32: Sarathi's mean TPOT, times below vLLM's, largest", below
    )
    steps = replace(LINEAR, prefill_req=0)
    first = ratio("ttft_ps", equal(HIGH, 1, 1024, "vllm_ef", cost=steps), equal(HIGH, 1, 1024, "vllm", cost=steps))
    yield _experiment("No prefill_req, I = 1: EF vllm's mean TTFT, times its base's", first)
    for share in (Fraction(1, 2), Fraction(0)):
        gain = max(100 * (_avoided("sarathi", size, 1024, _with_base(share)) - 1) for size in (1, 32))
        claim = f"{float(share):g} of the base, I = 1 or 32: EF sarathi: TPS above its base in %"
        yield _experiment(claim, gain)


def _avoided(policy: str, size: int, output: int, cost: CostModel, kv_tokens: int = KV_TOKENS) -> float:
    """Return TPS without evictions over that with them."""
    base, free = (equal(HIGH, size, output, name, kv_tokens, cost) for name in (policy, f"{policy}_ef"))
    return makespan(base) / makespan(free)


def evictions() -> Iterator[Finding]:
    """Section 4.5 with the fixed cost of the profile with three pieces, 9 ms."""

    def gains(policy: str, tokens: int) -> list[float]:
        return [_avoided(policy, size, 32, COST, tokens) for size in LENGTHS if size + 31 <= tokens]

    for policy, tokens in (("vllm", 100), ("sarathi", 100), ("vllm_hy", 1000)):
        claim = f"Three pieces, M = {tokens:,}: TPS of {policy}, times that of its EF variant, largest over I"
        yield _experiment(claim, 1 / min(gains(policy, tokens)))
    claim = "Three pieces, M = 10,000: TPS of EF vllm, times its base's, largest over I"
    yield _experiment(claim, max(gains("vllm", 10_000)))


def optimum() -> Iterator[Finding]:
    """Section 5.1 with a quarter of the fixed cost of a batch."""
    shipped = next(one for one in load_suite("infermax-fig15-chunked").instances if one.requests[0].input == 1)
    instance = replace(shipped, cost=replace(shipped.cost, base=shipped.cost.base // 4))
    values = []
    for restrictions in (Restrictions(), Restrictions(forbid=("eviction",))):
        result = solve(instance, restrictions=restrictions, time_limit=120, workers=1)
        assert result.bound == result.value is not None
        values.append(result.value)
    best, without = values
    yield _experiment("A quarter of the base, I = 1: latency saved by evictions in %", 100 * (1 - best / without))


def trade_off() -> Iterator[Finding]:
    """Sections 4.3 and 4.4: TTFT against TPOT, each beside what no schedule can go below (certified bounds)."""
    size, output = 32, 1024
    instance = equal_requests(HIGH, size, output)
    for objective, label in ((Objective.MEAN_TTFT, "mean TTFT"), (Objective.MEAN_TPOT, "mean TPOT")):
        least = bound(instance, objective=objective).bound
        assert least is not None
        for policy in ("vllm", "sarathi", "vllm_ef", "sarathi_ef"):
            value = equal(HIGH, size, output, policy)["objectives"][objective.value]
            claim = f"I = 32, O = 1,024: {label} of {policy}, times the bound of any schedule's (certified)"
            yield _experiment(claim, value / least)
