"""Length distributions of the papers' workloads; for arrivals see `arrivals`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from types import MappingProxyType

from optsched.model.errors import InputError, one_of
from optsched.traces.infermax import GROUPS, MIXES, draw_mix
from optsched.traces.lengths import Draw, geometric, lognormal
from optsched.traces.rows import Rows, TraceRow
from optsched.traces.statistics import draw_lengths, shipped_statistics


@dataclass(frozen=True)
class Workload:
    """Requests as a paper describes them.

    Parameters
    ----------
    source
        Paper and section.
    draw
        Draws a number of requests, all arriving at 0.
    """

    source: str
    draw: Callable[[int, Random], list[TraceRow]]


def draw_workload(name: str, count: int, seed: int) -> Rows:
    """Draw requests of the workload of that name; an unknown one raises `InputError`."""
    if name not in WORKLOADS:
        raise InputError("workload", name, one_of(name, WORKLOADS))
    return Rows(tuple(WORKLOADS[name].draw(count, Random(f"{seed} {name}"))), bad=())


def _independent(inputs: Draw, outputs: Draw) -> Callable[[int, Random], list[TraceRow]]:
    """Draw input and output of a request one after the other; their dependence is not published."""
    return lambda count, rng: [TraceRow(0, inputs(rng), outputs(rng)) for _ in range(count)]


def _econoserve(trace: str, inputs: Draw, outputs: Draw) -> Workload:
    """Table 2 has mean, minimum and maximum; between them the lengths are `geometric`."""
    return Workload(f"EconoServe, Table 2: {trace}", _independent(inputs, outputs))


def _preble(workload: str, inputs: Draw, outputs: Draw) -> Workload:
    """Table 1 has mean and standard deviation; the lengths are `lognormal`."""
    return Workload(f"Preble, Table 1: {workload}", _independent(inputs, outputs))


def _azure(name: str, count: int, rng: Random) -> list[TraceRow]:
    """Draw from the shipped quantiles of Azure's trace, which is what Kossmann et al. run (Figure 6)."""
    statistics = shipped_statistics(name)
    return [TraceRow(0, *draw_lengths(statistics, rng)) for _ in range(count)]


_PIECE = 2048


def _bookcorpus(count: int, rng: Random) -> list[TraceRow]:
    """Cut prompts into pieces of 2,048 tokens (section 2.1), each a request of its own, the last with what is left."""
    inputs, outputs = geometric(18, 1952.11, 461_000), geometric(32, 681.2, 1041)
    rows: list[TraceRow] = []
    while len(rows) < count:
        prompt = inputs(rng)
        rows += [TraceRow(0, min(_PIECE, prompt - begin), outputs(rng)) for begin in range(0, prompt, _PIECE)]
    return rows[:count]


_MOST_OUTPUT = 1024


def _rr_sjf(short: Draw, count: int, rng: Random) -> list[TraceRow]:
    """Draw requests of sections 3.1 and 4.3: outputs of 4 to 1024 tokens, half of them cut off at 1024.

    The paper gives neither the other outputs, which are ``short`` here, nor inputs, which are geometric with mean 64.
    """
    prompt = geometric(1, 64, _MOST_OUTPUT)
    return [TraceRow(0, prompt(rng), _MOST_OUTPUT if rng.random() < 0.5 else short(rng)) for _ in range(count)]


def _uniform(rng: Random) -> int:
    return rng.randint(4, _MOST_OUTPUT - 1)


_FITTED = geometric(4, 190, _MOST_OUTPUT - 1)
"""Short outputs with which RR-SJF's 25th percentile of latency is as far below RR's as in Figure 4, nearly."""


def _rr_sjf_noise(deviation: float, count: int, rng: Random) -> list[TraceRow]:
    """Predict outputs with the normal noise of section 3.5, at least 1 token and at most 1024."""
    return [
        replace(row, predicted=min(max(round(rng.gauss(row.output, deviation)), 1), _MOST_OUTPUT))
        for row in _rr_sjf(_uniform, count, rng)
    ]


def _mix(mix: tuple[str, str], count: int, rng: Random) -> list[TraceRow]:
    requests = draw_mix(mix, GROUPS, count + count % 2, rng)[:count]
    return [TraceRow(0, request.input, request.output) for request in requests]


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "econoserve-alpaca": _econoserve("Alpaca", geometric(9, 19.31, 2470), geometric(13, 58.41, 292)),
        "econoserve-sharegpt": _econoserve("ShareGPT", geometric(16, 161.31, 3200), geometric(19, 337.99, 991)),
        "econoserve-bookcorpus": Workload("EconoServe, Table 2: BookCorpus, in pieces of 2,048 tokens", _bookcorpus),
        "preble-toolbench": _preble("Toolbench", lognormal(1835, 742), lognormal(43, 16)),
        "preble-embodied-agent": _preble("Embodied Agent", lognormal(2285, 471), lognormal(16, 13)),
        "preble-programming": _preble("Programming", lognormal(3871, 1656), lognormal(190, 343)),
        "preble-video-qa": _preble("Video QA", lognormal(9865, 5976), lognormal(4, 1.5)),
        "preble-loogle": _preble("LooGLE", lognormal(23474, 6105), lognormal(16, 9.9)),
        "sw-chat": Workload("Kossmann et al., Figure 6: SW-Chat", partial(_azure, "azure-conv")),
        "sw-code": Workload("Kossmann et al., Figure 6: SW-Code", partial(_azure, "azure-code")),
        "rr-sjf": Workload("RR-SJF, sections 3.1 and 4.3", partial(_rr_sjf, _uniform)),
        "rr-sjf-fitted": Workload("RR-SJF, short outputs fitted to Figure 4", partial(_rr_sjf, _FITTED)),
        "rr-sjf-noise25": Workload("RR-SJF, section 3.5, σ = 25", partial(_rr_sjf_noise, 25)),
        **{f"infermax-mix-{'+'.join(mix)}": Workload("InferMax, section 4.6", partial(_mix, mix)) for mix in MIXES},
    }
)
"""Name → workload."""
