"""Patterns against brute force and class flows: bounds, certificates, schedules, and what the parts promise."""

from __future__ import annotations

import time
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import legal_value
from patience import PATIENCE_S, interrupts, with_time_enough
from scipy.optimize import linprog
from strategies import instances, restrictions

from optsched import Instance, Limits, Request, Restrictions, Rules, replace, simulate, solve
from optsched.bounds.volume import volume_bound
from optsched.catalogue import POLICY_GROUP, entries
from optsched.check.certificates.patterns import patterns_bound
from optsched.check.problem import problem_of
from optsched.model.cost import CostModel
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Status
from optsched.solvers.formulation import Outcome, ProgressEvent, Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.costs import interchangeable
from optsched_formulations.batching.flow.model import FlowModel, find_packing
from optsched_formulations.batching.packing import HeldClass, Packing
from optsched_formulations.batching.pattern.cuts import violated_packings
from optsched_formulations.batching.pattern.dive import dive
from optsched_formulations.batching.pattern.master import Duals, LinearMaster, Shape
from optsched_formulations.batching.pattern.network import Network, Pattern, Shortest
from optsched_formulations.batching.pattern.search import in_step, patterns_of, schedule_of
from optsched_formulations.batching.pattern_cg import PatternCg

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
LADDER = {entry.name: entry for entry in ladder("a100-llama2-7b-linear").instances}
FREE = Restrictions()

# Two requests of two tokens that hold 2 blocks, then 3, of 4. A fill of 2 takes 20 + 7 = 27, a decode 10 + 5 = 15 and a
# refill of 3 takes 30 + 7 = 37, 22 more. Both start, one is evicted and refilled: 3 batches and 22. Without evictions
# they take turns: 4 batches.
PAIR = Instance(
    "pair",
    Limits(4, 100, 100),
    Rules(chunked_prefill=False),
    CostModel(base=100, token=10, decode_req=5, prefill_req=7),
    (Request(2, 2), Request(2, 2)),
)


def proved(instance: Instance, outcome: Outcome, allowed: Restrictions = FREE) -> int:
    """Return the bound of an outcome, which the checker must recompute exactly."""
    assert outcome.badge == Badge.CERTIFIED
    assert outcome.certificate is not None
    assert outcome.certificate["kind"] == "patterns"
    found = patterns_bound(problem_of(instance, allowed), Objective.MAKESPAN, outcome.certificate)
    assert found == outcome.bound
    return found


def bounded(instance: Instance, allowed: Restrictions = FREE, **start: Any) -> tuple[int, Outcome]:
    """Return the bound on an instance and everything else, checked."""
    outcome = PatternCg().solve(Task(allowed.apply(instance), Objective.MAKESPAN, allowed, **start))
    return proved(instance, outcome, allowed), outcome


# Bounds and schedules ---------------------------------------------------------------------------------------


def test_the_pair_is_solved() -> None:
    """2·(27 + 15) + 3·100 + 22 = 406, and 2·42 + 400 = 484 without evictions."""
    for instance, best in ((PAIR, 406), (replace(PAIR, rules=Rules(chunked_prefill=False, eviction=False)), 484)):
        assert optimum(instance) == best
        bound, outcome = bounded(instance)
        assert outcome.termination == Termination.OPTIMAL
        assert bound == legal_value(instance, outcome.schedule) == best


@pytest.mark.slow
@settings(SLOW, max_examples=60)
@given(instances(chunked=False))
def test_bounds_and_schedules_enclose_the_optimum(instance: Instance) -> None:
    best = optimum(instance)
    bound, outcome = bounded(instance)
    assert volume_bound(instance).value <= bound <= best
    value = legal_value(instance, outcome.schedule)
    assert value >= best
    assert outcome.termination == (Termination.OPTIMAL if value == bound else Termination.LIMIT)


@settings(SLOW, max_examples=30)
@given(st.data())
def test_policy_classes(data: st.DataObject) -> None:
    """Bounds stay below the optimum of the class; what is not covered is refused."""
    instance = data.draw(instances(chunked=False))
    allowed = replace(data.draw(restrictions(instance)), max_evictions=None)
    best = optimum(instance, restrictions=allowed)
    assert best is not None
    try:
        bound, outcome = bounded(instance, allowed)
    except UnsupportedError:
        assert allowed.first_runs(instance)
        assert len(interchangeable(Task(instance, Objective.MAKESPAN, allowed))) > 1
        return
    assert bound <= best
    if outcome.schedule is not None:
        assert legal_value(instance, outcome.schedule, allowed=allowed) >= best


@settings(SLOW, max_examples=30)
@given(instances(chunked=False), st.integers(-2, 2))
def test_at_most(instance: Instance, slack: int) -> None:
    """Whether a schedule is as good as asked: never refused wrongly, and the answer is as good."""
    best = optimum(instance)
    asked = max(best + slack, 0)
    bound, outcome = bounded(instance, Restrictions(at_most=asked))
    if outcome.termination == Termination.INFEASIBLE:
        assert asked < bound <= best
    elif outcome.schedule is not None:
        assert best <= legal_value(instance, outcome.schedule) <= asked


@pytest.mark.slow
@settings(SLOW, max_examples=5)
@given(instances(chunked=False))
def test_from_an_optimum_it_stays_there(instance: Instance) -> None:
    task = Task(instance, Objective.MAKESPAN)
    # Most policies make one of a few schedules.
    for schedule in {simulate(instance, name).schedule for name in entries(POLICY_GROUP)} - {None}:
        assert schedule is not None
        members = interchangeable(task)
        patterns = patterns_of(instance, members, schedule)
        value = legal_value(instance, schedule)
        # A schedule is its patterns, but for names and the moment of evictions.
        assert legal_value(instance, schedule_of(instance, members, patterns)) == value
        bound, outcome = bounded(instance, incumbent=schedule, incumbent_value=value)
        assert bound <= legal_value(instance, outcome.schedule) <= value


@settings(SLOW, max_examples=25)
@given(instances(chunked=False, most_tokens=2), st.data())
def test_more_room_and_less_time_never_raise_the_optimum_below_a_bound(instance: Instance, data: st.DataObject) -> None:
    """Whatever makes schedules easier has an optimum that is no more than the harder instance's; so have bounds."""
    bound, outcome = bounded(instance)
    assert outcome.certificate is not None
    easier = replace(
        instance, limits=replace(instance.limits, kv_tokens=instance.limits.kv_tokens + data.draw(st.integers(1, 3)))
    )
    # The same prices are a proof for it as well, of something else.
    again = patterns_bound(problem_of(easier, FREE), Objective.MAKESPAN, outcome.certificate)
    assert again <= optimum(easier)
    shuffled = replace(instance, requests=tuple(data.draw(st.permutations(instance.requests))))
    assert patterns_bound(problem_of(shuffled, FREE), Objective.MAKESPAN, outcome.certificate) == bound
    twice = replace(instance, requests=instance.requests * 2)
    assert bounded(twice)[0] >= bound


def test_times_scale() -> None:
    cost = replace(PAIR.cost, base=100 * 10**9, token=10**10, decode_req=5 * 10**9, prefill_req=7 * 10**9)
    assert bounded(replace(PAIR, cost=cost))[0] == 406 * 10**9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ladder-n06-I4-O8-k8", "ladder-n08-I4-O8-k2", "ladder-n08-LILO+SISO-k8"])
def test_bounds_on_the_ladder(name: str) -> None:
    result = with_time_enough(
        lambda limit: solve(LADDER[name], method="pattern_cg", time_limit=limit, workers=1),
        lambda result: result.found_by["bound"] == "pattern_cg",
        1.5,
    )
    assert result.found_by["bound"] == "pattern_cg"
    assert result.status in {Status.FEASIBLE, Status.OPTIMAL}
    assert result.bound is not None
    assert result.certificate is not None
    assert patterns_bound(problem_of(LADDER[name], FREE), Objective.MAKESPAN, result.certificate) == result.bound
    assert result.bound > volume_bound(LADDER[name]).value


@pytest.mark.slow
def test_a_time_limit_keeps_a_bound() -> None:
    instance = LADDER["ladder-n16-I4-O8-k2"]
    start = simulate(instance, "vllm").schedule
    value = legal_value(instance, start)
    seen: list[ProgressEvent] = []
    bound, outcome = bounded(instance, incumbent=start, incumbent_value=value, time_limit_s=0.5, progress=seen.append)
    assert volume_bound(instance).value <= bound < value
    assert legal_value(instance, outcome.schedule) <= value
    bounds = [event.bound for event in seen if event.bound is not None]
    assert bounds == sorted(bounds)


def test_what_patterns_do_not_cover_is_refused() -> None:
    instance = LADDER["ladder-n04-LILO+SISO-k2"]
    online = replace(instance, requests=(*instance.requests, Request(1, 1, arrival_ps=5)))
    for task, reason in (
        (Task(instance, Objective.MEAN_E2E), "objective mean_e2e"),
        (Task(replace(instance, rules=Rules()), Objective.MAKESPAN), "chunked prefill"),
        (Task(online, Objective.MAKESPAN), "arrive at different times"),
        (Task(instance, Objective.MAKESPAN, Restrictions(max_evictions=1)), "number of evictions"),
        (Task(instance, Objective.MAKESPAN, Restrictions(("reordering",))), "order of first runs"),
        (Task(instance, Objective.MAKESPAN, deterministic_limit=1.0), "deterministic"),
        (Task(replace(PAIR, cost=CostModel(base=1, token=2**58)), Objective.MAKESPAN), "64 bits"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            PatternCg().solve(task)


# The linear programme ---------------------------------------------------------------------------------------


def relaxation(model: FlowModel) -> float:
    """Return the optimum of the linear relaxation of class flows in ps, J fixed.

    Without what patterns do not say: that every batch runs something (those rows have no upper side), and how often a
    variable fits into a batch alone.
    """
    program = model.program
    cost = np.zeros(len(program.lower))
    for factor, x in program.objective:
        cost[x] += factor
    rows: list[list[float]] = []
    right: list[float] = []
    for row in program.rows:
        dense = np.zeros(len(cost))
        for factor, x in row.terms:
            dense[x] += factor
        for sign, side in ((1.0, row.upper), (-1.0, row.lower)):
            if side is not None and row.upper is not None:
                rows.append(list(sign * dense))
                right.append(sign * side)
    bounds = [(low, most if low else None) for low, most in zip(program.lower, program.upper, strict=True)]
    found = linprog(cost, A_ub=np.array(rows), b_ub=np.array(right), bounds=bounds, method="highs")
    assert found.fun is not None
    return model.constant + model.scale * float(found.fun)


def converged(network: Network, fewest: int, most: int) -> float:
    """Return the optimum of the master over all patterns, in ps."""
    master = LinearMaster(Shape(network, fewest, most), 1, 0)
    known: set[Pattern] = set()
    new = [
        Pattern(c, tuple(range(kind.output)), (True, *(False,) * (kind.output - 1)))
        for c, kind in enumerate(network.kinds)
    ]
    while True:
        master.add(new)
        known.update(new)
        duals = master.solve(60.0)
        assert duals is not None
        prices, scale = network.whole(duals.shares)
        shortest = [Shortest(network, c, prices, scale) for c in range(len(network.kinds))]
        new = [
            one for found in shortest for one in found.patterns(np.flatnonzero(found.cost < 2**60)) if one not in known
        ]
        if not new:
            return duals.objective + network.work


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["ladder-n04-I4-O8-k2", "ladder-n06-I4-O8-k8", "ladder-n04-LISO+SISO-k2"])
def test_the_master_is_the_relaxation_of_class_flows(name: str, packed: bool) -> None:
    """Every flow is an average of patterns: the two programmes have one value for a fixed number of batches."""
    # Tokens bind, so that flows have idle arcs too.
    tight = replace(LADDER[name].limits, batch_tokens=36, prefill_tokens=36)
    task = Task(replace(LADDER[name], limits=tight), Objective.MAKESPAN)
    packing = find_packing(task, 5.0) if packed else None
    network = Network(task.instance, interchangeable(task), 0, [] if packing is None else [packing])
    assert [row.name for row in network.rows if row.name != "packing"] == ["memory", "tokens", "prefill_tokens"]
    for batches in (network.fewest + 5, network.fewest + 9):
        flows = relaxation(FlowModel(task, batches, batches, packing))
        assert converged(network, batches, batches) == pytest.approx(flows, rel=1e-6)


# Parts ------------------------------------------------------------------------------------------------------


def every_pattern(output: int, batches: int, refill: list[bool]) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Return every pattern of a request, by trying all."""
    found = []
    for when in product(range(batches), repeat=output):
        for ways in product((False, True), repeat=output):
            gaps = [after - before for before, after in pairwise(when)]
            if ways[0] and all(
                gap >= 1 and (not way or (allowed and gap >= 2))
                for gap, way, allowed in zip(gaps, ways[1:], refill[1:], strict=True)
            ):
                found.append((when, ways))
    return found


@settings(SLOW, max_examples=40)
@given(instances(chunked=False, most_requests=2), st.data())
def test_shortest_lives_are_the_cheapest_of_all(instance: Instance, data: st.DataObject) -> None:
    members = interchangeable(Task(instance, Objective.MAKESPAN))
    network = Network(instance, members, 0)
    batches = 5
    small = st.lists(st.integers(0, 9), min_size=batches, max_size=batches)
    prices = np.array([data.draw(small) for _ in network.rows])
    for c, kind in enumerate(network.kinds):
        shortest = Shortest(network, c, prices, 2)

        def cost(pattern: Pattern) -> int:
            rows, when, amounts = network.taken(pattern)
            return 2 * network.extra(pattern) + int((prices[rows, when] * amounts).sum())

        refill = [bool(extra >= 0) for extra in kind.fill_extra]
        patterns = [Pattern(c, *one) for one in every_pattern(kind.output, batches, refill)]
        for end in range(batches):
            costs = [cost(one) for one in patterns if one.batches[-1] == end]
            if not costs:
                assert shortest.cost[end] >= 2**60
                continue
            (best,) = shortest.patterns(np.array([end]))
            assert best in patterns
            assert best.batches[-1] == end
            assert shortest.cost[end] == cost(best) == min(costs)


def test_dives_end_in_schedules_or_fail() -> None:
    """Four batches are enough for the pair, two are not, and without time there is nothing."""
    members = interchangeable(Task(PAIR, Objective.MAKESPAN))
    network = Network(PAIR, members, 0)
    start = [Pattern(0, (0, 1), (True, False))]

    def patterns(batches: int, deadline: float) -> list[Pattern]:
        def offered(duals: Duals, known: set[Pattern]) -> list[Pattern]:
            prices, scale = network.whole(duals.shares)
            found = Shortest(network, 0, prices, scale).patterns(np.arange(1, batches))
            return [one for one in found if one not in known]

        return dive(LinearMaster(Shape(network, batches, batches), 1, 0), start, offered, 2, deadline)

    assert legal_value(PAIR, schedule_of(PAIR, members, patterns(4, np.inf))) in {406, 484}
    assert patterns(2, np.inf) == patterns(4, 0.0) == []


def test_evictions_keep_a_batch_of_their_own() -> None:
    """Without the second batch, in which no request runs, a refill would follow at once."""
    gap = Pattern(0, (0, 2), (True, True))
    assert not in_step([gap])
    assert in_step([gap, Pattern(0, (1, 3), (True, False))])


@pytest.mark.slow
def test_an_interrupt_keeps_bound_and_schedule() -> None:
    """Ctrl-C as it comes: between two instructions, or while HiGHS runs."""
    for delay in (0.3, 0.9):
        with interrupts(delay) as progress:
            began = time.perf_counter()
            bound, outcome = bounded(LADDER["ladder-n16-I4-O8-k2"], time_limit_s=2 * PATIENCE_S, progress=progress)
            assert time.perf_counter() - began < PATIENCE_S
        assert bound >= volume_bound(LADDER["ladder-n16-I4-O8-k2"]).value
        legal_value(LADDER["ladder-n16-I4-O8-k2"], outcome.schedule)


def test_packing_inequalities_are_violated_and_hold() -> None:
    """Two of three blocks each: half of three requests and a bit more is too much for a batch."""
    cache = [HeldClass(3, [2, 2])], 3
    (cut,) = violated_packings(*cache, {(0, 1): np.array([1.0, 0.7]), (0, 2): np.array([0.0, 0.8])}, 9, np.inf)
    assert cut == Packing({(0, 1): 10_000, (0, 2): 10_000}, 10_000, 6)
    assert violated_packings(*cache, {(0, 1): np.array([1.0])}, 9, np.inf) == []
    assert violated_packings(*cache, {(0, 1): np.array([2.0])}, 9, 0.0) == []
