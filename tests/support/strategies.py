"""Tiny random instances for hypothesis."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.objectives import Objective
from optsched.model.restrictions import FORBIDDABLE, REORDERING, Restrictions
from optsched.solvers.formulation import Task, UnsupportedError
from optsched_formulations.batching.memory_only import require_memory_only


def assume_only_memory_binds(instance: Instance, objective: Objective = Objective.MAKESPAN) -> None:
    """Leave out instances in which more than memory binds, or refills are cheaper than decode steps."""
    try:
        require_memory_only(Task(instance, objective))
    except UnsupportedError:
        assume(False)


@st.composite
def costs(draw: st.DrawFn, pieces: int = 2) -> CostModel:
    """Draw small coefficients, odd ones included: a refill may be cheaper than a decode."""
    small = st.integers(0, 9)
    return CostModel(
        base=draw(st.integers(0, 40)),
        token=draw(small),
        pieces=tuple(draw(st.lists(st.tuples(st.integers(0, 40), small), max_size=pieces))),
        decode_kv=draw(small),
        decode_req=draw(st.integers(0, 30)),
        prefill_sq=draw(st.integers(0, 3)),
        prefill_kv=draw(small),
        prefill_req=draw(small),
        swap_out_kv=draw(small),
        swap_in_kv=draw(small),
        swap_overlap=draw(st.sampled_from([0, 50, 100])),
        cpu_batch=draw(small),
    )


@st.composite
def instances(
    draw: st.DrawFn,
    *,
    chunked: bool | None = None,
    online: bool = False,
    swap: bool = False,
    most_requests: int = 3,
    most_tokens: int = 3,
) -> Instance:
    """Draw a feasible instance of a few requests and tokens, with any rules; swaps where they are asked for."""
    count = draw(st.integers(1, most_requests))
    arrival = st.integers(0, 60) if online else st.just(0)
    slo = st.none() | st.integers(0, 200)
    requests: list[Request] = []
    for _ in range(count):
        again = draw(st.booleans())
        if requests and again:
            requests.append(requests[-1])  # equal requests are where symmetry breaking can go wrong
            continue
        requests.append(
            Request(
                input=draw(st.integers(1, 4)),
                output=draw(st.integers(1, most_tokens)),
                arrival_ps=draw(arrival),
                weight=draw(st.integers(0, 3)),
                slo_ttft_ps=draw(slo),
                slo_e2e_ps=draw(slo),
            )
        )
    block = draw(st.sampled_from([1, 1, 1, 2, 3]))
    peak = max(-(-request.peak_tokens // block) * block for request in requests)
    longest = max(request.input for request in requests)
    kv = draw(st.integers(peak, peak + 8))
    tokens = draw(st.integers(longest, longest + 6))
    prefill = draw(st.integers(1, tokens))
    rules = Rules(
        hybrid=draw(st.booleans()),
        chunked_prefill=draw(st.booleans()) if chunked is None else chunked,
        eviction=draw(st.booleans()),
        swap=swap and draw(st.booleans()),
    )
    limits = Limits(kv, tokens, prefill, draw(st.none() | st.integers(1, 3)), block)
    instance = Instance("random", limits, rules, draw(costs()), tuple(requests))
    assume(not instance.infeasibilities())
    return instance


@st.composite
def memory_only(draw: st.DrawFn, *, online: bool = False, most_requests: int = 4) -> Instance:
    """Draw an instance with whole prefills in which nothing but memory binds, of at most two kinds of requests."""
    small = st.integers(1, 3)
    kinds = [Request(draw(st.integers(1, 4)), draw(small), weight=draw(st.integers(0, 3))) for _ in range(draw(small))]
    drawn = draw(st.lists(st.sampled_from(kinds[:2]), min_size=1, max_size=most_requests))
    arrival = st.integers(0, 60) if online else st.just(0)
    requests = tuple(replace(request, arrival_ps=draw(arrival)) for request in drawn)
    block = draw(st.sampled_from([1, 1, 2]))
    peak = max(-(-request.peak_tokens // block) * block for request in requests)
    limits = Limits(draw(st.integers(peak, peak + 6)), 64, 64, kv_block=block)
    rules = Rules(chunked_prefill=False, eviction=draw(st.booleans()))
    # Decodes are cheap, so that hardly ever a refill is cheaper.
    cost = replace(draw(costs(pieces=0)), decode_req=draw(st.integers(0, 3)), decode_kv=draw(st.integers(0, 1)))
    return Instance("random", limits, rules, cost, requests)


@st.composite
def restrictions(draw: st.DrawFn, instance: Instance) -> Restrictions:
    """Draw a class of schedules of the instance, perhaps all of them; `at_most` is not drawn."""
    forbid = draw(st.sets(st.sampled_from(FORBIDDABLE)))
    every: st.SearchStrategy[tuple[int, ...]] = st.permutations(range(len(instance.requests))).map(tuple)
    return Restrictions(
        forbid=tuple(name for name in FORBIDDABLE if name in forbid),
        max_evictions=draw(st.none() | st.integers(0, 2)),
        max_batch=draw(st.none() | st.integers(1, 3)),
        order=() if REORDERING in forbid else draw(st.just(()) | every),
    )
