"""Stand-ins for traces that we may not ship: requests with a trace's statistics and none of its rows.

Lengths and times between arrivals are spread evenly over the tables of `statistics`, so that the seed changes
their order, and little of their sizes. Every band's outputs are shuffled among its inputs, then all requests; the times
between arrivals are shuffled within their band, each of which makes a block, then the blocks.

What is lost is the order beyond that: in a trace the lengths of neighbours are correlated, and rate and lengths
drift over an hour.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate, chain
from random import Random

from optsched.calibrate.library import cost_model
from optsched.model.documents import Suite
from optsched.model.instance import Request
from optsched.traces.statistics import BANDS, BLOCK, Statistics, parts, shipped_statistics, spread
from optsched.traces.trace import DEFAULT_LIMITS, Trace, trace_instance

COUNT = BANDS * BLOCK
"""Requests of a stand-in: its blocks have the length of the measured ones."""
LOADS = ("0.5", "1", "2")
"""Multiples of the sustainable rate (`trace_instance`), as in the instances' names."""


def draw(statistics: Statistics, count: int, rng: Random) -> Trace:
    """Draw requests that have a trace's statistics (see the module)."""
    lengths: list[tuple[int, int]] = []
    for inputs, table in zip(parts(spread(statistics.input, count), BANDS), statistics.output, strict=True):
        outputs = spread(table, len(inputs))
        rng.shuffle(outputs)
        lengths += zip(inputs, outputs, strict=True)
    rng.shuffle(lengths)
    sizes = map(len, parts(range(count - 1), BANDS))
    blocks = [spread(table, size) for table, size in zip(statistics.gap_ps, sizes, strict=True)]
    for block in blocks:
        rng.shuffle(block)
    rng.shuffle(blocks)
    gaps = chain.from_iterable(blocks)
    arrivals = accumulate(gaps, initial=0)
    requests = (Request(*pair, arrival_ps=arrival) for pair, arrival in zip(lengths, arrivals, strict=True))
    return Trace(tuple(requests), bad=())


def stand_in(name: str, seed: int = 1) -> Trace:
    """Return the stand-in for the trace called ``name``; ``seed`` shuffles."""
    return draw(shipped_statistics(name), COUNT, Random(f"{seed} {name}"))


def stand_in_suite(name: str, profile: str) -> Suite:
    """Return the stand-in for the trace called ``name`` at three loads, on a cost profile."""
    trace, cost, limits = stand_in(name), cost_model(profile), DEFAULT_LIMITS
    description = (
        f"Stand-in for {shipped_statistics(name).description}: {COUNT:,} requests with its lengths and its times "
        f"between arrivals, scaled to {', '.join(LOADS[:-1])} and {LOADS[-1]} times the sustainable rate; "
        f"M = {limits.kv_tokens:,}, C = P = {limits.batch_tokens:,}, all rules allowed."
    )
    instances = (trace_instance(trace, f"{name}-{load}", cost, limits, Fraction(load)) for load in LOADS)
    return Suite(name, description, tuple(instances))
