"""Suites of several machines: Preble's mix on Azure's arrivals, and DistServe beside equal machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from random import Random

from optsched.calibrate.library import cost_model
from optsched.model.cluster import CacheMode, CacheRules, Link, Role
from optsched.model.cost import CostModel
from optsched.model.documents import Suite
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, MachineGroup, Request, Rules
from optsched.model.prefixes import Path, PrefixNode, PrefixTree
from optsched.traces.preble import draw_prefixed
from optsched.traces.prefixed import PrefixedRows
from optsched.traces.standin import stand_in
from optsched.traces.trace import with_deadlines
from optsched.traces.workloads import draw_workload

MIX_COUNT = 1000
MIX_GAPS = (Fraction(7, 10), Fraction(7, 5), Fraction(14, 5))
"""Times between arrivals, as multiples of Azure's; the first is the paper's."""
PREBLE_LIMITS = Limits(kv_tokens=198_528, batch_tokens=8192, prefill_tokens=8192, batch_requests=256, kv_block=16)
"""Of each machine: the capacity of Preble's program, in whole blocks."""
_MACHINES = 4


def prefixed_instance(name: str, found: PrefixedRows, cost: CostModel, machines: int = _MACHINES) -> Instance:
    """Return requests with prefixes on equal machines that cache all blocks."""
    requests = tuple(
        Request(row.input, row.output, arrival_ps=row.arrival_ps, prefix=path)
        for row, path in zip(found.rows, found.paths, strict=True)
    )
    cache = CacheRules(CacheMode.ALL)
    return Instance(name, PREBLE_LIMITS, Rules(), cost, requests, replicas=machines, prefixes=found.tree, cache=cache)


def azure_mix(gaps: Fraction, seed: int = 1, count: int = MIX_COUNT) -> PrefixedRows:
    """Return tools where Azure's code arrives, and videos where its conversations do (Preble, section 5.3, Figure 8).

    Parameters
    ----------
    gaps
        Factor of all times between arrivals.
    seed
        Of the order of the stand-ins, and of the requests.
    count
        How many requests, the first to arrive.
    """
    arrivals = sorted(
        (request.arrival_ps, workload)
        for trace, workload in (("azure-code", "preble-toolbench"), ("azure-conv", "preble-video-qa"))
        for request in stand_in(trace, seed).requests
    )[:count]
    rows, paths, nodes = {}, dict[int, Path](), list[PrefixNode]()
    for workload in ("preble-toolbench", "preble-video-qa"):
        places = [place for place, (_, chosen) in enumerate(arrivals) if chosen == workload]
        drawn = draw_prefixed(workload, len(places), seed, rate=1)
        prefix = workload.removeprefix("preble-")
        nodes += [
            PrefixNode(f"{prefix} {node.name}", node.tokens, node.parent and f"{prefix} {node.parent}")
            for node in drawn.tree.nodes
        ]
        for place, row, path in zip(places, drawn.rows, drawn.paths, strict=True):
            rows[place] = dataclasses.replace(row, arrival_ps=int(arrivals[place][0] * gaps))
            paths[place] = tuple(f"{prefix} {name}" for name in path)
    order = range(len(arrivals))
    return PrefixedRows(
        tuple(rows[place] for place in order), tuple(paths[place] for place in order), PrefixTree(tuple(nodes))
    )


def preble_azure_mix(profile: str) -> Suite:
    """Return Preble's mix at several rates on four machines."""
    cost, shown = cost_model(profile), [f"{float(gaps):g}" for gaps in MIX_GAPS]
    instances = (
        prefixed_instance(f"preble-azure-mix-{label}", azure_mix(gaps), cost)
        for label, gaps in zip(shown, MIX_GAPS, strict=True)
    )
    description = (
        f"Preble's Figure 8: Toolbench for Azure's code and Video QA for its conversations, {MIX_COUNT:,} requests "
        f"with the stand-ins' arrivals, times between them multiplied by {', '.join(shown[:-1])} or {shown[-1]} "
        f"(0.7 in the paper), on {_MACHINES} machines that cache all blocks of 16 tokens; "
        f"M = {PREBLE_LIMITS.kv_tokens:,} each."
    )
    return Suite("preble-azure-mix", description, tuple(instances))


PAIRS = 4
"""Prefill machines, and as many decode machines, of DistServe's cluster."""
RATES = (4, 8, 16, 24)
"""Requests per second."""
_COUNT = 300
_ETHERNET = Link(kv_ps=2**19 * 10**12 // (125 * 10**8))
"""100 Gb/s for the 2¹⁹ bytes of a token of Llama-2-7B."""
_LIMITS = Limits(kv_tokens=15_008, batch_tokens=4096, prefill_tokens=4096, kv_block=32)


def distserve_figure_12(profile: str) -> Suite:
    """Return DistServe's cluster, and 1, 2, … equal machines, for the same requests of ShareGPT at several rates."""
    cost = cost_model(profile)
    description = (
        f"EconoServe's Figure 12, machines for the goodput of DistServe: {_COUNT} requests of ShareGPT at "
        f"{', '.join(map(str, RATES[:-1]))} and {RATES[-1]} requests/s with SLOs of twice a request's time, on "
        f"DistServe's {PAIRS} prefill and {PAIRS} decode machines over 100 Gb/s, and on 1 to {2 * PAIRS} equal "
        f"machines; M = {_LIMITS.kv_tokens:,} each."
    )
    instances = (instance for rate in RATES for instance in figure_12(rate, 1, cost))
    return Suite("econoserve-fig12", description, tuple(instances))


def figure_12(rate: int, seed: int, cost: CostModel) -> Iterator[Instance]:
    """Yield DistServe's cluster, and then 1, 2, … equal machines, for the same requests."""
    rng, now = Random(f"{seed} Figure 12"), 0.0
    requests = []
    for row in draw_workload("econoserve-sharegpt", _COUNT, seed).rows:
        now += rng.expovariate(rate)
        requests.append(Request(row.input, row.output, arrival_ps=round(now * 10**12)))
    name = f"econoserve-fig12-{rate}"
    alone = Instance(name, _LIMITS, Rules(), cost, tuple(requests), links=_ETHERNET)
    alone = with_deadlines(alone, Fraction(2))
    groups = MachineGroup(PAIRS, Role.PREFILL), MachineGroup(PAIRS, Role.DECODE)
    yield replace(alone, name=f"{name}-distserve", machine_groups=groups)
    for machines in range(1, 2 * PAIRS + 1):
        yield replace(alone, name=f"{name}-{machines}", replicas=machines)
