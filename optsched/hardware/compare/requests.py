"""A measured run of a serving engine beside our simulation of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from optsched.hardware.compare.vllm_run import MeasuredRun
from optsched.methods.simulate import simulate
from optsched.model.cost import CostModel
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance, Rules
from optsched.model.metrics import tally_of
from optsched.model.objectives import percentile

PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of every request, in s: time to first token, time per output token after it, end to end.

    Requests of one output token have no time per output token and are left out there.
    """

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    e2e: tuple[float, ...]

    def named(self) -> Mapping[str, tuple[float, ...]]:
        """Return them by the names that papers use."""
        return {"TTFT": self.ttft, "TPOT": self.tpot, "e2e": self.e2e}


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a simulated quantity is from the measured one.

    Parameters
    ----------
    simulated, measured
        Means, s.
    p50, p99
        Simulated and measured percentiles, s.
    of_mean
        ``simulated / measured − 1`` of the means.
    per_request
        Mean of ``|simulated / measured − 1|`` over requests.
    """

    simulated: float
    measured: float
    p50: tuple[float, float]
    p99: tuple[float, float]
    of_mean: float
    per_request: float


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A simulation beside the run: latencies of both, how well they agree, and the last token's time of both, s."""

    simulated: Latencies
    measured: Latencies
    agreement: Mapping[str, Agreement]
    makespan: tuple[float, float]
    batches: int
    peak_kv_tokens: int


def compare_run(run: MeasuredRun, cost: CostModel, policy: str) -> RunComparison:
    """Simulate the requests of a run under the engine's limits, and compare.

    Raises
    ------
    InputError
        If the policy cannot serve them.
    """
    instance = Instance("run", run.limits, Rules(), cost, run.requests)
    result = simulate(instance, policy)
    if result.schedule is None:
        raise InputError("policy", policy, "a policy that serves this run", Said(result.message or result.status.value))
    tally = tally_of(instance, result.schedule)
    ours = _latencies(run, tally.first, tally.last)
    theirs = _latencies(run, run.first_ps, run.last_ps)
    agreement = {
        name: _agreement(simulated, measured)
        for (name, simulated), measured in zip(ours.named().items(), theirs.named().values(), strict=True)
    }
    makespan = (max(tally.last) / PS_PER_S, max(run.last_ps) / PS_PER_S)
    return RunComparison(ours, theirs, agreement, makespan, tally.batches, tally.peak)


def _latencies(run: MeasuredRun, first: list[int] | tuple[int, ...], last: list[int] | tuple[int, ...]) -> Latencies:
    rows = list(zip(run.requests, first, last, strict=True))
    return Latencies(
        tuple((first - request.arrival_ps) / PS_PER_S for request, first, _ in rows),
        tuple((last - first) / (request.output - 1) / PS_PER_S for request, first, last in rows if request.output > 1),
        tuple((last - request.arrival_ps) / PS_PER_S for request, _, last in rows),
    )


def _agreement(simulated: tuple[float, ...], measured: tuple[float, ...]) -> Agreement:
    ours, theirs = sorted(simulated), sorted(measured)
    return Agreement(
        simulated=fmean(ours),
        measured=fmean(theirs),
        p50=(percentile(ours, 50), percentile(theirs, 50)),
        p99=(percentile(ours, 99), percentile(theirs, 99)),
        of_mean=fmean(ours) / fmean(theirs) - 1,
        per_request=fmean(abs(a / b - 1) for a, b in zip(simulated, measured, strict=True)),
    )
