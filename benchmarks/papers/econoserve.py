"""EconoServe (Shen and Sen).

Table 2 with Poisson arrivals: 600 requests of Alpaca at 110 requests/s (the paper's 36 leave no queue on this machine),
300 of ShareGPT at 28, 150 of BookCorpus, cut into pieces of 2,048 tokens, at 1.2; means over the three traces, unless a
row names one. It differs from the paper's set-up: Llama-2-7B on one A100 instead of OPT-13B, with the 15,000 KV tokens
that OPT-13B has in 12 GB, in blocks of 32; geometric lengths; short runs; a link of 25 GB/s (2¹⁹ bytes a token); 20 µs
for each request considered. SLOs are twice a request's time. vLLM swaps, and Sarathi's batches have the target forward
size of 329 tokens. EconoServe has the paper's parameters and prediction errors of each trace; the schedulers of section
2 know all lengths. A ratio agrees if its distance from 1 is the paper's to a fifth (or 0.03), a share or a time if it
is the paper's to a fifth. What the paper does not report are experiments that show the causes. The
tables of all schedulers are one run each, seed 1: a sample of where time and memory go, no claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace as tuned
from fractions import Fraction
from math import ceil
from operator import attrgetter
from statistics import mean

from optsched.policies.econoserve import PER_TRACE, EconoServe
from optsched.policies.predictors import Online, Padded
from optsched.report.sheet import Cell, Column, Sheet
from optsched.simulator.replica import Policy, Preparing
from papers.econoserve_experiments import experiments
from papers.econoserve_setup import (
    KV_TOKENS_175B,
    LOADS,
    OPT_175B,
    SEEDS,
    Outcome,
    family,
    outcome,
    policies,
    run,
    sustained,
    workload,
)
from papers.finding import Finding

Measure = Callable[[Outcome], float]
Values = tuple[float, ...]

_TRACES = tuple(LOADS)
_SECONDS = {"alpaca": 15, "sharegpt": 80, "bookcorpus": 160}
"""For which requests arrive, at least, where sustained rates are looked for: many times a latency."""
_TABLE_2 = {"alpaca": 36, "sharegpt": 28, "bookcorpus": 1.2}
"""Requests/s."""
_LONG = 900
"""Requests of a run in which most deadlines pass before a request starts."""

_CAPACITY = (
    "With 12 GB no schedule has more than 1.2 times vLLM's throughput (certified bounds), and exact allocation leaves "
    "40 % of the memory empty on ShareGPT, as a request fills its allocation only at its end; with four times the "
    "memory EconoServe sustains more than vLLM."
)
_ORCA = (
    "ORCA's 8 requests are no small share of what 12 GB hold: no schedule has more than 3.2 times its throughput on "
    "ShareGPT, and 1.4 times on BookCorpus (certified bounds)."
)
_SHORT = "Runs are short: with 1,200 requests of ShareGPT vLLM's share is 0.69, and Sarathi's 0.64."
_PAUSED = (
    "Most of the latency is waiting at these rates; of that after its first batch a request of vLLM pauses for a fifth."
)
_REFILL = (
    "An evicted request of Sarathi runs its tokens again in 2.5 batches (row of evicted requests), in which it is not "
    "paused; it is paused for 0.04 of its latency after the first batch."
)
_LIKE = (
    "Memory limits vLLM and Sarathi alike; held to the 8 requests of ORCA, vLLM has 0.39 times Sarathi's throughput on "
    "ShareGPT."
)
_PRICE = "20 µs for each request considered is our choice: at 80 µs MultiRes schedules for 0.36 of its latency."
_TARGET = (
    "With 12 GB memory ends a batch long before the target of 329 tokens: even vLLM, which fills it, has 41 tokens a "
    "batch on ShareGPT."
)
_QUEUE = (
    "Groups need a queue, which is short in these runs: with all requests there at once 0.62 to 0.72 of Alpaca's are "
    "in groups of four or more (figure 2: 0.61)."
)
_GROUPING = (
    "What groups save is scheduling: at 1 ms for each request considered, fifty times ours, D takes 1.06 times SD's "
    "latency."
)
_DEADLINES = (
    "The order by deadline is shortest first while deadlines have not passed, as SLOs grow with outputs: SD / SDO "
    "falls with longer runs, and is 1.05 without SLOs."
)
_GUESTS = (
    "A guest needs a finished prompt that waits where a host starts, and with a small reserve few do. Guests from the "
    "prompt queue, too, gain 1.08 times at 6 requests/s, and 1.2 at 28 if requests have no deadlines: the order by "
    "deadline, shortest first, has that gain already (rows of six draws)."
)
_STEADY = (
    "The methods choose which requests are in a batch, hardly how many: D, SD and SDO run 0.99 to 1.02 times "
    "EconoServe's tokens a batch, with 12 GB and with four times as much (rows of tokens a batch), so throughput and "
    "time between tokens are alike, too."
)
_ATTAINED = (
    "vLLM's batches of prompts alone make Alpaca's decodes wait: it meets 0.02 of the SLOs there, EconoServe 0.55."
)
_MODEL = (
    "Batches of a 7B model take 10 to 20 ms here, and on costs scaled to OPT-13B 31 ms; the rest of the paper's 141 is "
    "not in our model. None is much longer than others, as no prompt has more than 329 tokens in one."
)
_PADDING = (
    "A request that outlives its prediction takes 32 tokens more, or waits with its KV; without padding it does so for "
    "at most 0.03 of all latency (row of SyncDecoupled without padding), so padding mostly takes memory."
)
_FLAT = "The least is flat: half and twice of it change latency by less than 5 % here."
_SLO = "No request meets half of its time alone, as our SLOs count no queue, so the share rises from 0 (the next row)."
_ORACLE = (
    "Between draws of the prediction errors the share changes by more than the paper's 0.02: for the same requests "
    "EconoServe meets 0.84 to 1.19 times Oracle's SLOs on ShareGPT, and 0.67 to 0.92 times on BookCorpus (rows of six "
    "draws of the errors)."
)
_EIGHT = "ORCA's 8 requests have half of vLLM's throughput here, so nearly all of its requests queue beyond their SLOs."
_HELD = (
    "Tokens that are held count here, of which 8 requests of ShareGPT have a fifth of 15,000; the paper measures from "
    "outside what is allocated."
)
_HYBRID = (
    "Where memory is not short EconoServe's gain over vLLM is that prompts share batches with decodes, which Sarathi's "
    "do, too: their rates are equal."
)


def near(value: float) -> tuple[float, float]:
    """Return the range that agrees with a ratio: its distance from 1 may be off by a fifth, or 0.03."""
    off = max(abs(value - 1) / 5, 0.03)
    return value - off, value + off


def around(value: float) -> tuple[float, float]:
    """Return the range that agrees with an amount: it may be off by a fifth."""
    return 0.8 * value, 1.2 * value


def averaged(measure: Measure, policy: str) -> Values:
    """Return the mean over the traces, for each seed."""
    return tuple(mean(measure(outcome(trace, seed, LOADS[trace].rate, policy)) for trace in _TRACES) for seed in SEEDS)


def compared(measure: Measure, policy: str, other: str, sharegpt: float | None = None) -> Values:
    """Return the mean over the traces, or ShareGPT's at a rate, of a policy's value over another's, for each seed."""

    def ratio(trace: str, seed: int, rate: float) -> float:
        return measure(outcome(trace, seed, rate, policy)) / measure(outcome(trace, seed, rate, other))

    if sharegpt is not None:
        return tuple(ratio("sharegpt", seed, sharegpt) for seed in SEEDS)
    return tuple(mean(ratio(trace, seed, LOADS[trace].rate) for trace in _TRACES) for seed in SEEDS)


_E2E, _THROUGHPUT, _KV = attrgetter("e2e"), attrgetter("throughput"), attrgetter("kv")
_FORWARD, _TBT, _ATTAINMENT = attrgetter("forward"), attrgetter("tbt"), attrgetter("attained")


def findings() -> Iterator[Finding]:
    """Compare what the paper says of EconoServe, its parts and its baselines."""
    yield from schedulers()
    yield from groups()
    yield from sweet_spots()
    yield from rates()
    yield from services()
    yield from steps()
    yield from scales()
    yield from experiments()


def schedulers() -> Iterator[Finding]:
    """Section 2.2, figure 1."""
    source = "figure 1"
    for policy, value in (("vLLM", 0.74), ("Sarathi", 0.67)):
        claim = f"{policy}: share of the requests that memory fails"
        found = averaged(attrgetter("failing"), policy)
        yield Finding(claim, source, str(value), found, *around(value), _SHORT)
    for policy, value, cause in (("vLLM", 0.2, _PAUSED), ("Sarathi", 0.165, _REFILL)):
        claim = f"{policy}: share of e2e in which a request is preempted"
        yield Finding(claim, source, str(value), averaged(attrgetter("paused"), policy), *around(value), cause)
    for what, measure, value in (
        ("KV utilisation", _KV, 1.2),
        ("throughput", _THROUGHPUT, 0.59),
        ("forward size", _FORWARD, 0.73),
        ("mean e2e", _E2E, 1.29),
    ):
        found = compared(measure, "vLLM", "Sarathi")
        yield Finding(f"vLLM: {what}, times Sarathi's", source, str(value), found, *near(value), _LIKE)
    for what, measure, value in (
        ("throughput", _THROUGHPUT, 1.1),
        ("forward size", _FORWARD, 1.05),
        ("mean e2e", _E2E, 0.65),
    ):
        found = compared(measure, "MultiRes", "Sarathi")
        yield Finding(f"MultiRes: {what}, times Sarathi's", source, str(value), found, *near(value), _CAPACITY)
    found = compared(_KV, "MultiRes", "Sarathi")
    yield Finding("MultiRes: KV utilisation, times Sarathi's", source, "similar", found, 0.9, 1.1, _CAPACITY)
    found = compared(_E2E, "MultiRes", "vLLM")
    yield Finding("MultiRes: mean e2e, times vLLM's", source, "0.574", found, *near(0.574), _CAPACITY)
    found = averaged(attrgetter("failing"), "MultiRes")
    yield Finding("MultiRes: share of the requests that memory fails", source, "0", found, 0, 0, _CAPACITY)
    for policy, value in (("MultiRes", 0.34), ("FastServe", 0.17), ("SyncCoupled", 0.0214)):
        found = averaged(attrgetter("scheduling"), policy)
        yield Finding(f"{policy}: scheduling, share of e2e", source, str(value), found, *around(value), _PRICE)
    for what, measure, value in (("throughput", _THROUGHPUT, 1.31), ("mean e2e", _E2E, 0.65)):
        found = compared(measure, "SyncDecoupled", "SyncCoupled")
        yield Finding(f"SyncDecoupled: {what}, times SyncCoupled's", source, str(value), found, *near(value), _TARGET)
    found = averaged(_KV, "SyncDecoupled")
    yield Finding("SyncDecoupled: KV utilisation", source, "0.63 to 0.79", found, 0.63, 0.79, _CAPACITY)
    found = averaged(_FORWARD, "SyncDecoupled")
    yield Finding("SyncDecoupled: forward size, tokens", source, "target (329)", found, 0.9 * 329, None, _TARGET)
    for policy in ("ORCA", "SRTF", "FastServe"):
        for what, measure in (("throughput", _THROUGHPUT), ("KV utilisation", _KV), ("forward size", _FORWARD)):
            found = compared(measure, policy, "vLLM")
            yield Finding(f"{policy}: {what}, times vLLM's", source, "< 1", found, None, 1, _LIKE)
        yield Finding(
            f"{policy}: mean e2e, times vLLM's", source, "> 1", compared(_E2E, policy, "vLLM"), 1, None, _LIKE
        )


def groups() -> Iterator[Finding]:
    """Section 2.2, figure 2."""

    def sizes(trace: str, seed: int) -> tuple[int, ...]:
        return outcome(trace, seed, LOADS[trace].rate, "SyncCoupled").groups

    for trace, least, value in (("alpaca", 12, 0.2), ("sharegpt", 12, 0.23), ("bookcorpus", 2, 0.22)):
        found = tuple(mean(size >= least for size in sizes(trace, seed)) for seed in SEEDS)
        claim = f"SyncCoupled: share of the groups with at least {least} requests, {trace}"
        yield Finding(claim, "figure 2", str(value), found, *around(value), _QUEUE)
    for trace, value in (("alpaca", 0.61), ("sharegpt", 0.59)):
        found = tuple(sum(size for size in sizes(trace, seed) if size >= 4) / sum(sizes(trace, seed)) for seed in SEEDS)
        claim = f"SyncCoupled: share of the requests in groups of at least 4, {trace}"
        yield Finding(claim, "figure 2", str(value), found, *around(value), _QUEUE)


def sweet_spots() -> Iterator[Finding]:
    """Figures 4 and 15: half and twice of what the paper found best are worse."""
    for trace, padding, reserve, buffer in (("alpaca", 10, 2, 15), ("sharegpt", 15, 3, 15), ("bookcorpus", 20, 4, 10)):
        full = PER_TRACE[trace]
        assert not isinstance(full.predictor, Online)
        decoupled = tuned(full, ordered=False, piped=False)
        for factor in (0, 2):
            # The rates of the predictor hold with the padding.
            changed = Padded((100 + factor * padding) / (100 + padding) - 1, full.predictor)
            found = _changed(trace, "SD", tuned(decoupled, predictor=changed))
            claim = f"SyncDecoupled: mean e2e with {factor} times the padding, times that with {padding} %, {trace}"
            yield Finding(claim, "figure 4", "> 1", found, 1, None, _PADDING)
        for share in (Fraction(1, 2), Fraction(2)):
            found = _changed(trace, "EconoServe", tuned(full, buffer=share * full.buffer))
            claim = f"Mean e2e with {float(share):g} times the buffer, times that with {buffer} %, {trace}"
            yield Finding(claim, "figure 15d", "> 1", found, 1, None, _FLAT)
        settings = [tuned(full, reserved=factor * Fraction(reserve, 100)) for factor in (Fraction(1, 2), 1, 2)]
        less, best, more = (_latencies(trace, setting) for setting in settings)
        for much, latencies in (("half", less), ("twice", more)):
            found = tuple(one / other for one, other in zip(latencies, best, strict=True))
            claim = f"Mean e2e with {much} the reserve, times that with {reserve} %, {trace}"
            yield Finding(claim, "figure 15c", "> 1", found, 1, None, _FLAT)


def _latencies(trace: str, policy: Policy | Preparing, count: int | None = None) -> Values:
    return tuple(run(workload(trace, seed, count=count), policy, seed).e2e for seed in SEEDS)


def _changed(trace: str, best: str, other: EconoServe) -> Values:
    """Return the mean e2e latency of another setting over that of the paper's, for each seed."""
    usual = (outcome(trace, seed, LOADS[trace].rate, best).e2e for seed in SEEDS)
    return tuple(one / base for one, base in zip(_latencies(trace, other), usual, strict=True))


_SUSTAINED: dict[str, dict[str, float]] = {
    "alpaca": {"EconoServe": 100, "vLLM": 50, "Sarathi": 70, "ORCA": 7},
    "sharegpt": {"EconoServe": 4.8, "vLLM": 5.5, "Sarathi": 5.2, "ORCA": 1.6},
    "bookcorpus": {"EconoServe": 0.9, "vLLM": 1.05, "Sarathi": 1.05, "ORCA": 0.85},
}
"""About what is sustained, where the search begins."""


def rates() -> Iterator[Finding]:
    """Section 4, figure 9: rates that are sustained."""
    ranges = {
        "alpaca": {"vLLM": (1.13, 2.14), "Sarathi": (1.2, 1.24), "ORCA": (5.6, 9)},
        "sharegpt": {"vLLM": (2.5, 4), "Sarathi": (1.25, 2.25), "ORCA": (22, 64)},
        "bookcorpus": {"vLLM": (2.5, 2.8), "Sarathi": (1.88, 2.33), "ORCA": (12.5, 13)},
    }
    ratios: dict[str, list[Values]] = {"vLLM": [], "Sarathi": [], "ORCA": []}
    for trace, policy_ranges in ranges.items():
        found = {policy: _rates(trace, policy) for policy in ("EconoServe", *policy_ranges)}
        for policy, (least, most) in policy_ranges.items():
            values = tuple(ours / theirs for ours, theirs in zip(found["EconoServe"], found[policy], strict=True))
            ratios[policy].append(values)
            cause = _ORCA if policy == "ORCA" else _CAPACITY
            claim = f"Sustained rate, times that of {policy}, {trace}"
            yield Finding(claim, "section 4", f"{least} to {most}", values, least, most, cause)
        for policy in ("EconoServe", "vLLM"):
            claim = f"{policy}: sustained rate, requests/s, {trace}, of the {_TABLE_2[trace]} that arrive in the paper"
            yield Finding(claim, "table 2", "not reported", tuple(found[policy]))
    for policy, most in (("vLLM", 2.33), ("Sarathi", 2.33), ("ORCA", 25)):
        values = tuple(max(seed) for seed in zip(*ratios[policy], strict=True))
        claim = f"OPT-13B: sustained rate, times that of {policy}, the largest of the traces"
        cause = _ORCA if policy == "ORCA" else _CAPACITY
        yield Finding(claim, "section 4", str(most), values, *near(most), cause)
    large = {policy: _rates_175b(policy) for policy in ("EconoServe", "vLLM", "Sarathi")}
    for policy, least, most in (("vLLM", 1.28, 2), ("Sarathi", 1.2, 2.25)):
        values = tuple(ours / theirs for ours, theirs in zip(large["EconoServe"], large[policy], strict=True))
        claim = f"Costs and memory scaled to OPT-175B: sustained rate, times that of {policy}, sharegpt"
        yield Finding(claim, "section 4", f"{least} to {most}", values, least, most, _HYBRID)


def _rates_175b(policy: str) -> list[float]:
    """Return the sustained rate of ShareGPT on costs and memory scaled to OPT-175B, for each seed."""

    def searched(seed: int) -> float:
        return sustained(
            lambda rate: workload("sharegpt", seed, rate, cost=OPT_175B, kv_tokens=KV_TOKENS_175B),
            policies("sharegpt")[policy],
            seed,
            4,
        )

    return [searched(seed) for seed in SEEDS]


def _rates(trace: str, policy: str) -> list[float]:
    """Return the sustained rate for each seed."""

    def searched(seed: int) -> float:
        return sustained(
            lambda rate: workload(trace, seed, rate, count=max(LOADS[trace].count, ceil(_SECONDS[trace] * rate))),
            policies(trace)[policy],
            seed,
            _SUSTAINED[trace][policy],
        )

    return [searched(seed) for seed in SEEDS]


def services() -> Iterator[Finding]:
    """Section 4, figures 10 and 11: SLOs met, memory used, time between tokens, time to schedule."""
    full = averaged(_ATTAINMENT, "EconoServe")
    for policy, value in (("Sarathi", 1.42), ("vLLM", 1.83), ("ORCA", 1.93), ("Oracle", 0.98)):
        others = averaged(_ATTAINMENT, policy)
        found = tuple(ours / theirs for ours, theirs in zip(full, others, strict=True))
        claim = f"Share of SLOs met, times {policy}'s"
        cause = {"ORCA": _EIGHT, "Oracle": _ORACLE}.get(policy, _ATTAINED)
        yield Finding(claim, "figure 10", str(value), found, *near(value), cause)
        found = compared(_ATTAINMENT, "EconoServe", policy, 6)
        claim = f"Share of SLOs met, times {policy}'s, sharegpt, 6 requests/s"
        cause = {"ORCA": _EIGHT, "Oracle": _ORACLE}.get(policy, _CAPACITY)
        yield Finding(claim, "figure 10", str(value), found, *near(value), cause)
    for policy, value in (("Sarathi", 1.18), ("vLLM", 1.27), ("ORCA", 1.39)):
        each = [compared(_KV, "EconoServe", policy, rate) for rate in (3, 6, 28)]
        found = tuple(mean(seed) for seed in zip(*each, strict=True))
        claim = f"KV utilisation, times {policy}'s, sharegpt, mean of 3, 6 and 28 requests/s"
        cause = _HELD if policy == "ORCA" else _CAPACITY
        yield Finding(claim, "figure 11", str(value), found, *near(value), cause)
    yield Finding(
        "Mean time between tokens, ms", "section 4", "141", averaged(_TBT, "EconoServe"), *around(141), _MODEL
    )
    found = averaged(lambda run: run.tbt_p95 / run.tbt, "EconoServe")
    claim = "95th percentile of time between tokens, times its mean"
    yield Finding(claim, "section 4", "1.57", found, *near(1.57), _MODEL)
    shares = zip(
        averaged(attrgetter("scheduling"), "EconoServe"), averaged(attrgetter("scheduling"), "vLLM"), strict=True
    )
    found = tuple(ours - theirs for ours, theirs in shares)
    yield Finding("Scheduling, share of e2e, more than vLLM's", "figure 14", "0.0293", found, *around(0.0293), _PRICE)


def steps() -> Iterator[Finding]:
    """Section 4, figure 13: what each method is worth, beside what remains when it is added."""
    causes = {"D": _GROUPING, "SD": _DEADLINES, "SDO": _GUESTS}
    pairs = (("D", "SD", 1.19), ("SD", "SDO", 1.07), ("SDO", "EconoServe", 1.29))
    long = {name: _latencies("sharegpt", policy, _LONG) for name, policy in family(PER_TRACE["sharegpt"]).items()}
    for part, more, value in pairs:
        several = (
            ("", compared(_E2E, part, more)),
            (", sharegpt, 6 requests/s", compared(_E2E, part, more, 6)),
            (
                f", sharegpt, 28 requests/s, {_LONG} requests",
                tuple(a / b for a, b in zip(long[part], long[more], strict=True)),
            ),
        )
        for where, found in several:
            claim = f"{part}: mean e2e, times {more}'s{where}"
            yield Finding(claim, "figure 13", str(value), found, *near(value), causes[part])
    for (part, more, _), less in zip(pairs, (0.17, 0.05, 0.21), strict=True):
        found = compared(_TBT, more, part)
        claim = f"{more}: mean time between tokens, times {part}'s"
        yield Finding(claim, "figure 13", f"{1 - less:.2f}", found, *near(1 - less), _STEADY)
    for part, met, served in (("D", 0.84, 0.64), ("SD", 0.79, 0.83), ("SDO", 0.83, 0.38)):
        found = compared(_ATTAINMENT, part, "EconoServe")
        cause = _GUESTS if part == "SDO" else _DEADLINES
        yield Finding(f"{part}: share of SLOs met, times EconoServe's", "figure 13", str(met), found, *near(met), cause)
        found = compared(_THROUGHPUT, part, "EconoServe")
        yield Finding(
            f"{part}: throughput, times EconoServe's", "figure 13", str(served), found, *near(served), _STEADY
        )


def scales() -> Iterator[Finding]:
    """Figure 15a: the scale of SLOs."""
    rises, least, ratios = [], [], []
    for seed in SEEDS:
        loose, tight = (
            [run(workload(trace, seed, slo_scale=scale), PER_TRACE[trace], seed) for trace in _TRACES]
            for scale in (2.5, 0.5)
        )
        least.append(mean(map(_ATTAINMENT, tight)))
        rises.append(mean(map(_ATTAINMENT, loose)) - least[-1])
        ratios.append(mean(one.e2e / other.e2e for one, other in zip(loose, tight, strict=True)))
    claim = "Share of SLOs met, scale of 2.5 less that of 0.5"
    yield Finding(claim, "figure 15a", "0.23", tuple(rises), *around(0.23), _SLO)
    yield Finding("Share of SLOs met, scale of 0.5", "experiment", "not reported", tuple(least))
    claim = "Mean e2e, scale of 2.5, times that of 0.5"
    yield Finding(claim, "figure 15a", "about 1", tuple(ratios), 0.9, 1.1, _DEADLINES)


def tables() -> Iterator[Sheet]:
    """Lay out all schedulers on each trace, seed 1."""
    for trace, load in LOADS.items():
        found = {policy: outcome(trace, SEEDS[0], load.rate, policy) for policy in policies(trace)}
        columns = [Column("scheduler", "scheduler", tuple(Cell(name, name) for name in found), key=True, left=True)]
        for header, name in (
            ("requests/s", "throughput"),
            ("e2e, s", "e2e"),
            ("ms/token", "per_token"),
            ("SLOs met", "attained"),
            ("tokens a batch", "forward"),
            ("memory fails", "failing"),
            ("waiting", "waiting"),
            ("paused", "paused"),
            ("scheduling", "scheduling"),
            ("KV", "kv"),
            ("KV, p50", "kv_median"),
            ("KV, p99", "kv_p99"),
        ):
            values = [getattr(one, name) for one in found.values()]
            columns.append(Column(header, name, tuple(Cell(f"{value:.3g}", value) for value in values)))
        common = (
            "Shares of requests (SLOs met, memory fails), of the e2e latency of all (waiting before the first batch, "
            "paused after it, scheduling in both), and of the cache (KV: mean over batches, percentiles over time)."
        )
        yield Sheet(f"All schedulers, {trace}, {load.rate:g} requests/s, seed 1", common, tuple(columns), ())
