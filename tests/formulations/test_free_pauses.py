"""Free pauses: the relaxation equal to trying everything, its bound below every optimum, its schedules legal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as changed
from itertools import chain, combinations
from typing import Any

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import legal_value
from strategies import assume_only_memory_binds, memory_only

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, replace, solve
from optsched.check import UnprovedError, proved_bound
from optsched.model.cost import CostModel
from optsched.model.result import Badge, Status
from optsched.solvers.formulation import ProgressEvent, Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.free_pauses import FreePauses

LADDER = {instance.name: instance for instance in ladder("a100-llama2-7b-linear").instances}
TEN = CostModel(base=10, token=0)
WHOLE = Rules(chunked_prefill=False)


def relaxed(instance: Instance) -> int:
    """Return the least makespan if requests that do not run hold nothing, by trying every set of them in every batch.

    A batch begins when the one before has ended or at an arrival after that; nothing else is taken from the search.
    """
    requests, cost, limits = instance.requests, instance.cost, instance.limits
    ends = [request.output for request in requests]

    def own(r: int, k: int) -> int:
        tokens = requests[r].input + k - 1
        return cost.batch_ps(tokens, 0, 0, ((tokens, 0),)) if k == 1 else cost.batch_ps(1, 1, tokens - 1, ())

    base = cost.affine[0][0]
    layer, best = {(tuple(0 for _ in requests), instance.start_ps)}, None
    while layer:
        following = set()
        for at, clock in layer:
            if list(at) == ends:
                best = clock if best is None else min(best, clock)
                continue
            for start in {clock, *(request.arrival_ps for request in requests if request.arrival_ps > clock)}:
                there = [r for r, q in enumerate(requests) if q.arrival_ps <= start and at[r] < ends[r]]
                for number in range(1, len(there) + 1):
                    for run in combinations(there, number):
                        if sum(limits.blocks(requests[r].input + at[r]) for r in run) <= limits.kv_blocks:
                            after = tuple(k + (r in run) for r, k in enumerate(at))
                            time = base + sum(own(r, after[r]) - base for r in run)
                            following.add((after, start + time))
        least: dict[tuple[int, ...], set[int]] = {}
        for at, clock in following:
            least.setdefault(at, set()).add(clock)
        # The earliest of each: what is there sooner can wait.
        layer = {(at, min(clocks)) for at, clocks in least.items()}
    assert best is not None
    return best - instance.start_ps


def held(instance: Instance) -> int:
    """Return the least makespan if requests that pause hold their prompts or are evicted, at a price that takes time.

    Everything is tried: sets to evict, sets to run, and when. Nothing is taken from the search but the price.
    """
    requests, cost, limits = instance.requests, instance.cost, instance.limits
    ends = tuple(request.output for request in requests)

    def step(tokens: int, fill: bool) -> int:
        whole = cost.batch_ps(tokens, 0, 0, ((tokens, 0),)) if fill else cost.batch_ps(1, 1, tokens - 1, ())
        return whole - cost.affine[0][0]

    def price(r: int) -> int:
        sizes = [requests[r].input + k - 1 for k in range(2, ends[r] + 1)]
        return min(step(tokens, True) - step(tokens, False) for tokens in sizes)

    def subsets(members: list[int]) -> Iterator[tuple[int, ...]]:
        return chain.from_iterable(combinations(members, number) for number in range(len(members) + 1))

    first = (tuple(0 for _ in requests), frozenset[int]())
    layer, best = {first: instance.start_ps}, None
    while layer:
        following: dict[tuple[tuple[int, ...], frozenset[int]], int] = {}
        for (at, resident), clock in layer.items():
            if at == ends:
                best = clock if best is None else min(best, clock)
                continue
            for evicted in subsets(sorted(resident)) if instance.rules.eviction else [()]:
                now = clock + sum(price(r) for r in evicted)
                kept = resident - set(evicted)
                for start in {now, *(request.arrival_ps for request in requests if request.arrival_ps > now)}:
                    there = [r for r, q in enumerate(requests) if q.arrival_ps <= start and at[r] < ends[r]]
                    for run in subsets([r for r in there if r not in evicted]):
                        blocks = sum(limits.blocks(requests[r].input + at[r]) for r in run)
                        blocks += sum(limits.blocks(requests[r].input) for r in kept.difference(run))
                        if not run or blocks > limits.kv_blocks:
                            continue
                        after = tuple(k + (r in run) for r, k in enumerate(at))
                        time = cost.affine[0][0] + sum(step(requests[r].input + at[r], at[r] == 0) for r in run)
                        state = after, frozenset(r for r in kept.union(run) if after[r] < ends[r])
                        following[state] = min(following.get(state, start + time), start + time)
        layer = following
    assert best is not None
    return best - instance.start_ps


def covered(instance: Instance) -> None:
    """Leave out instances that it refuses."""
    assume(not instance.offline)
    assume_only_memory_binds(instance)


def ask(instance: Instance, *, hold: bool = True, **more: Any) -> tuple[Any, list[ProgressEvent]]:
    events: list[ProgressEvent] = []
    task = Task(instance, Objective.MAKESPAN, progress=events.append)
    return FreePauses(hold).solve(changed(task, **more)), events


QUICK = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@st.composite
def tight(draw: st.DrawFn) -> Instance:
    """Draw instances where memory binds, refills cost little and arrivals coincide with ends of batches."""
    number, base = draw(st.integers(2, 4)), draw(st.sampled_from((0, 1, 3, 10)))
    token, fill = draw(st.integers(0, 1)), draw(st.integers(0, 3))
    requests = tuple(
        Request(draw(st.integers(1, 3)), draw(st.integers(1, 3)), arrival_ps=draw(st.integers(0, 3)) * (base + token))
        for _ in range(number)
    )
    most = max(request.peak_tokens for request in requests)
    cost = CostModel(base=base, token=token, prefill_req=fill, decode_req=draw(st.integers(0, fill)))
    limits = Limits(draw(st.integers(most, most + 4)), 99, 99)
    return Instance("tight", limits, Rules(chunked_prefill=False, eviction=draw(st.booleans())), cost, requests)


def proved(instance: Instance, bound: object, steps: object = 1_000_000, **changes: object) -> int:
    certificate = {"kind": "free_pauses", "bound": bound, "steps": steps, **changes}
    return proved_bound(instance, Restrictions(), Objective.MAKESPAN, certificate)


@QUICK
@given(st.one_of(tight(), memory_only(online=True, most_requests=4)))
def test_the_checker_proves_what_the_relaxation_takes_and_no_more(instance: Instance) -> None:
    covered(instance)
    least = relaxed(instance)
    assert least <= optimum(instance)
    if least > 0:
        assert proved(instance, least) == least
    with pytest.raises(UnprovedError, match=f"all requests may end at {least}, below the bound"):
        proved(instance, least + 1)


TWO = Instance("two", Limits(4, 9, 9), WHOLE, TEN, (Request(1, 2), Request(1, 2, arrival_ps=15)))


def test_the_checker_by_hand() -> None:
    """The first request runs at 0, both at 15, and the second at 25. Without the wait it would end at 20 + 2·10."""
    assert proved(TWO, 35) == 35 == optimum(TWO)
    with pytest.raises(UnprovedError, match="all requests may end at 35"):
        proved(TWO, 36)


@pytest.mark.parametrize(
    ("instance", "terms", "message"),
    [
        (TWO, {"bound": 0}, "bound is 0"),
        (TWO, {"bound": 35.0}, "bound is 35.0"),
        (TWO, {"bound": 35, "steps": 0}, "steps is 0"),
        (TWO, {"bound": 35, "steps": 10**9}, "steps is 1000000000"),
        (TWO, {"bound": 35, "steps": 1}, "more than 1 steps"),
        (replace(TWO, rules=Rules()), {"bound": 35}, "needs whole prefills"),
        (replace(TWO, rules=Rules(hybrid=False, chunked_prefill=False)), {"bound": 35}, "hybrid batches"),
        (replace(TWO, limits=Limits(4, 3, 3)), {"bound": 35}, "batch_tokens"),
        (replace(TWO, limits=Limits(4, 9, 9, 1)), {"bound": 35}, "batches of all 2 requests"),
        (replace(TWO, cost=CostModel(10, 0, decode_req=5)), {"bound": 35}, "refills that take no less time"),
        (replace(TWO, rules=Rules(chunked_prefill=False, swap=True)), {"bound": 35}, "does not cover swapping"),
    ],
)
def test_the_checker_refuses(instance: Instance, terms: dict[str, Any], message: str) -> None:
    with pytest.raises(UnprovedError, match=message):
        proved(instance, **terms)


def test_solve_certifies_what_it_proves() -> None:
    found = solve(LADDER["ladder-n08-SILO+LISO-k8-poisson"], "makespan", time_limit=20, workers=1)
    assert (found.status, found.badge) == (Status.OPTIMAL, Badge.CERTIFIED)


@pytest.mark.slow
@QUICK
@given(st.one_of(tight(), memory_only(online=True, most_requests=4)))
def test_the_relaxation_equals_trying_everything(instance: Instance) -> None:
    covered(instance)
    outcome, events = ask(instance, hold=False)
    assert outcome.bound == relaxed(instance)
    bounds = [event.bound for event in events if event.bound is not None]
    assert bounds == sorted(bounds)
    assert outcome.badge == Badge.SOLVER_CLAIMED
    if outcome.schedule is not None:
        value = legal_value(instance, outcome.schedule)
        assert value >= outcome.bound
        assert (outcome.termination == Termination.OPTIMAL) == (value == outcome.bound)


@pytest.mark.slow
@QUICK
@given(st.one_of(tight(), memory_only(online=True, most_requests=3)))
def test_pauses_that_hold_equal_trying_everything(instance: Instance) -> None:
    covered(instance)
    outcome, _ = ask(instance)
    least = held(instance)
    # Where a schedule settles the first search there is no second.
    assert relaxed(instance) <= outcome.bound <= least
    assert outcome.bound == least or outcome.termination == Termination.OPTIMAL


@pytest.mark.slow
@QUICK
@given(st.one_of(tight(), memory_only(online=True, most_requests=3)), st.integers(-3, 3))
def test_the_bound_never_exceeds_the_optimum(instance: Instance, off: int) -> None:
    covered(instance)
    best = optimum(instance)
    outcome, _ = ask(instance)
    assert relaxed(instance) <= outcome.bound <= best
    if instance.rules.eviction:
        assert legal_value(instance, outcome.schedule) >= best
    if outcome.termination == Termination.OPTIMAL:
        assert legal_value(instance, outcome.schedule) == outcome.bound == best
    at_most = max(0, best + off)
    limited, _ = ask(instance, restrictions=Restrictions(at_most=at_most))
    assert limited.bound <= max(best, at_most + 1)
    if limited.termination == Termination.INFEASIBLE:
        assert best > at_most
    if limited.termination == Termination.OPTIMAL:
        assert legal_value(instance, limited.schedule) == limited.bound == best


def test_more_for_less_even_with_a_later_clock() -> None:
    """A batch with more in it ends later, and wastes no more.

    Base 10, 4 a prefill. A (1, 2) and B (1, 1) at 0, C (1, 1) at 14. A alone ends its first token at 14, where C can
    join: A and C until 14 + 10 + 4, then B until 42. A and B until 18, A and C until 32: later than 14, earlier done.
    """
    cost = CostModel(base=10, token=0, prefill_req=4)
    requests = (Request(1, 2), Request(1, 1), Request(1, 1, arrival_ps=14))
    instance = Instance("more", Limits(9, 99, 99), WHOLE, cost, requests)
    outcome, _ = ask(instance)
    assert outcome.termination == Termination.OPTIMAL
    assert outcome.bound == legal_value(instance, outcome.schedule) == optimum(instance) == relaxed(instance) == 32


def test_it_may_pay_to_wait() -> None:
    """A of one token at 0, B of one at 3: together they end at 13, one after the other at 20."""
    instance = Instance("wait", Limits(9, 99, 99), WHOLE, TEN, (Request(1, 1), Request(1, 1, arrival_ps=3)))
    outcome, _ = ask(instance)
    assert outcome.termination == Termination.OPTIMAL
    assert outcome.bound == legal_value(instance, outcome.schedule) == 13


def test_a_pause_that_costs_is_below_the_optimum() -> None:
    """Where the cache holds one, KV that pauses is lost: the relaxation has it for free, the bound says no more."""
    cost = CostModel(base=10, token=0, prefill_req=3)
    requests = (Request(1, 2), Request(1, 2, arrival_ps=5), Request(2, 2, arrival_ps=25))
    instance = Instance("pause", Limits(5, 99, 99), Rules(chunked_prefill=False, eviction=False), cost, requests)
    assert ask(instance)[0].bound == relaxed(instance) <= optimum(instance) == 48


@pytest.mark.parametrize("name", ["n12-SILO+LISO-k8-poisson", "n16-SILO+LISO-k8-poisson"])
def test_ladder_instances_that_it_solves_alone(name: str) -> None:
    instance = LADDER[f"ladder-{name}"]
    outcome, _ = ask(instance)
    assert outcome.termination == Termination.OPTIMAL
    assert legal_value(instance, outcome.schedule) == outcome.bound


def test_without_time_the_first_bound_holds() -> None:
    outcome, events = ask(LADDER["ladder-n12-SILO+LISO-k8-poisson"], time_limit_s=0.0)
    assert outcome.termination == Termination.LIMIT
    assert outcome.bound == 0
    assert events == []


def test_what_it_does_not_cover_is_refused() -> None:
    online = Instance("two", Limits(9, 99, 99), WHOLE, TEN, (Request(1, 1), Request(1, 1, arrival_ps=3)))
    cheap = CostModel(base=10, token=0, decode_req=5)
    for instance, more in (
        (replace(online, requests=(Request(1, 1),) * 2), {}),
        (online, {"objective": Objective.MEAN_E2E}),
        (online, {"restrictions": Restrictions(order=(0, 1))}),
        (replace(online, rules=Rules()), {}),
        (replace(online, limits=Limits(9, 1, 1)), {}),
        (replace(online, cost=cheap, requests=(Request(1, 2), Request(1, 2, arrival_ps=3))), {}),
        (replace(online, limits=Limits(999, 999, 999), requests=(Request(1, 128), Request(1, 1, arrival_ps=3))), {}),
        (replace(online, requests=(Request(1, 1), Request(1, 1, arrival_ps=1 << 61))), {}),
    ):
        with pytest.raises(UnsupportedError):
            ask(instance, **more)
