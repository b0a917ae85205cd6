"""Every number of batches by itself: equal to brute force and to known optima; what prices prove never exceeds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from itertools import count, cycle, repeat

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import exact
from strategies import assume_only_memory_binds, memory_only

from optsched import Instance, Limits, Objective, Request, Restrictions, Rules, check_schedule, replace, simulate
from optsched.compiled import uncompiled
from optsched.model.cost import CostModel
from optsched.model.metrics import evaluate
from optsched.solvers.formulation import Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.layer_search import LayerSearch
from optsched_formulations.batching.layers.arc_programme import (
    EVICTED,
    FILLED,
    RUNS,
    ArcProgramme,
    beyond_least,
    tightened,
)
from optsched_formulations.batching.layers.bundle import Cut, Floats, _balance, maximise
from optsched_formulations.batching.layers.climb_kernel import Begin
from optsched_formulations.batching.layers.graph import MergedGraph, merged_graph
from optsched_formulations.batching.layers.graph_kernel import DONE
from optsched_formulations.batching.layers.graph_layers import GraphRelaxation
from optsched_formulations.batching.layers.looks import maximise_by_near_walks
from optsched_formulations.batching.layers.near_kernel import Floats32, Near, NearWalks, least_near_walk, near_walks
from optsched_formulations.batching.layers.outputs import by_output, prices_by_input, prices_by_size
from optsched_formulations.batching.layers.pattern_layers import PatternRelaxation
from optsched_formulations.batching.layers.search import Found, search_layers
from optsched_formulations.batching.layers.two_sided import Reach, TwoSided, arcs_back
from optsched_formulations.batching.layers.walk_kernel import close, steps_of, walk_back
from optsched_formulations.batching.layers.walks import Walks
from optsched_formulations.batching.memory_only import Alike, Classes
from optsched_formulations.batching.search.naming import schedule_of_steps
from optsched_formulations.batching.search.resident_graph import TooLargeError
from optsched_formulations.batching.search.state_steps import EVICT, FILL, RUN

SEARCH, WITHOUT_GRAPH = LayerSearch(cores=()), LayerSearch(most_nodes=0, cores=(), large_core=0)
NEAR_WALKS = LayerSearch(few_places=0, cores=())
LADDER = {instance.name: instance for instance in ladder("a100-llama2-7b-linear").instances}
QUICK = settings(
    deadline=None, max_examples=90, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
BY_EVICTIONS = ("n06-I32-O8-k2", 140_434_422_812, 7), ("n06-SILO+SISO-k2", 88_254_215_943, 5)
"""Makespan and evictions of optima."""
SHORT_OF_BATCHES = {"n06-SILO+SISO-k2": 21, "n08-SILO+SISO-k2": 25}
"""With so few there have to be refills."""
NONE = np.float32(1e9)
FEWER = settings(QUICK, max_examples=30)
TURNS = Instance(
    "turns",
    Limits(4, 99, 99),
    Rules(chunked_prefill=False),
    CostModel(base=10, token=1, decode_kv=2, prefill_req=5),
    (Request(3, 2),) * 2,
)


def covered(instance: Instance) -> None:
    """Leave out instances that have refills cheaper than decode steps, or batches without a base."""
    assume_only_memory_binds(instance)
    assume(instance.cost.base > 0)


@pytest.mark.slow
@QUICK
@given(memory_only(), st.data())
def test_no_prices_prove_more_than_the_optimum(instance: Instance, data: st.DataObject) -> None:
    """The least bound over all numbers of batches, at any prices that never fall, is one of the makespan.

    Nothing is rounded up.
    """
    covered(instance)
    classes, best = Classes(instance, alike=data.draw(st.sampled_from(Alike))), optimum(instance)
    most, items = (best - classes.constant_ps) // classes.base_ps, len(classes.size)
    relaxation = GraphRelaxation(
        graph := merged_graph(classes, 100_000),
        Walks(graph, 1, most, few_places=data.draw(st.sampled_from([0, 1_000_000]))),
        0,
    )
    drawn = np.array(data.draw(st.lists(st.floats(-1, 2), min_size=items, max_size=items)))
    rises = data.draw(st.lists(st.sampled_from([0.0, 0.0, 0.3, 1.0]), min_size=items, max_size=items))
    start: Floats = drawn + np.array(rises) * (most - np.arange(most + 1))[:, None]
    same = np.tile(drawn, (most + 1, 1))
    better = relaxation.improved(same, most, math.inf, 20, lambda: False)
    raised = relaxation.raised(better, most, math.inf, 20, lambda: False)
    together = relaxation.raised_together(min(1, most), most, math.inf, 20, lambda: False)
    for price in (start, same, better, raised, together):
        bounds = [relaxation.priced(price, batches).bound for batches in range(most + 1)]
        assert min(bounds) + classes.constant_ps <= best
        every = relaxation.priced(price, most)
        assert [every.of(batches).bound for batches in range(most + 1)] == bounds
        assert relaxation.walks.proved(price, most) == bounds


@pytest.mark.slow
@QUICK
@given(memory_only(), st.data())
def test_no_prices_of_blocks_prove_more_than_the_optimum(instance: Instance, data: st.DataObject) -> None:
    covered(instance)
    classes, best = Classes(instance), optimum(instance)
    most = (best - classes.constant_ps) // classes.base_ps
    relaxation = PatternRelaxation(classes, 1, best + 1, 0)
    drawn = np.array(data.draw(st.lists(st.floats(0, 2), min_size=most + 1, max_size=most + 1)))
    better = relaxation.improved(drawn, most, math.inf, 20, lambda: False)
    for price in (drawn, better):
        bounds = [relaxation.priced(price, batches).bound for batches in range(most + 1)]
        assert min(bounds) + classes.constant_ps <= best


@pytest.mark.slow
@QUICK
@given(memory_only(), st.data())
def test_packing_arcs_is_exact(instance: Instance, data: st.DataObject) -> None:
    """At any prices: the least over all numbers of batches is the optimum or the budget; what is found is one."""
    covered(instance)
    classes, best = Classes(instance), optimum(instance)
    most = (best - classes.constant_ps) // classes.base_ps
    drawn = np.array(data.draw(st.lists(st.floats(0, 0.2), min_size=most + 1, max_size=most + 1)))
    for budget in (best + 1 - classes.constant_ps, best - classes.constant_ps):
        relaxation = PatternRelaxation(classes, 1, budget, 0)
        bounds, found = [budget], []
        for batches in range(1, most + 1):
            start = relaxation.priced(drawn, batches)
            priced = tightened(start, budget, 9, 0)
            assert priced.bound >= start.bound
            bounds.append(priced.bound)
            for prices in (start, priced):
                if prices.bound < budget:
                    packed = ArcProgramme(prices, budget).pack(9, 0)
                    bounds[-1] = max(bounds[-1], packed.bound)
                    found += [packed.steps] if packed.steps else []
        assert min(bounds) + classes.constant_ps == best
        assert bool(found) == (budget + classes.constant_ps > best)
        for steps in found:
            schedule = schedule_of_steps(instance, classes, steps)
            assert check_schedule(instance, schedule)[0] == []
            assert evaluate(instance, schedule)["objectives"]["makespan"] == best


@pytest.mark.slow
@QUICK
@given(memory_only(), st.integers(0, 12), st.integers(0, 3))
def test_what_is_found_beside_need_not_be_found_again(instance: Instance, looks: int, more: int) -> None:
    covered(instance)
    best, asked = optimum(instance), count()
    assert best is not None
    task = Task(
        instance, Objective.MAKESPAN, value_beside=lambda: best + more if next(asked) >= looks else None, workers=1
    )
    outcome = SEARCH.solve(task)
    assert outcome.bound == best
    found = outcome.schedule is not None and evaluate(instance, outcome.schedule)["objectives"]["makespan"] == best
    assert (outcome.termination == Termination.OPTIMAL) == found
    assert found or more == 0


@pytest.mark.slow
@QUICK
@given(memory_only())
def test_as_where_graphs_are_large_it_is_exact(instance: Instance) -> None:
    covered(instance)
    assert exact(WITHOUT_GRAPH, instance) == exact(NEAR_WALKS, instance) == optimum(instance)


def from_both_ends(
    classes: Classes, budget: int, share: int, further: Iterator[int], *, rise: bool
) -> tuple[int, list[Found]]:
    """Search every number of batches from both ends, or from one, further and further; return bound and schedules.

    ``share`` of two parts of what a search goes further is that of the search forward. The budget is one without the
    constant work; prices may ``rise`` from batch to batch.
    """
    most, fewest = (budget - 1) // classes.base_ps, max(output for _, output, _ in classes.kinds)
    graph = merged_graph(classes, 100_000)
    relaxation, bounds, found = GraphRelaxation(graph, Walks(graph, 1, most), 0), [budget], []
    for batches in range(fewest, most + 1):
        start = relaxation.first_prices(batches)
        price = relaxation.improved(start, batches, budget / classes.base_ps, 30, lambda: False)
        if rise:
            price = relaxation.raised(price, batches, budget / classes.base_ps, 30, lambda: False)
        priced, reach = relaxation.priced(price, batches), Reach(1, 1)
        search, bound = TwoSided(relaxation, arcs_back(graph), priced), priced.bound
        while bound < budget:
            more = next(further)
            reach = Reach(reach.forward + share * more, reach.backward + (2 - share) * more)
            one = search.search(reach, budget, lambda: False)
            assert one.complete
            assert one.bound == min(budget, priced.bound + sum(reach)) or one.steps
            bound = one.bound
            if one.steps:
                found.append(one)
                break
        bounds.append(bound)
    return min(bounds), found


@pytest.mark.slow
@FEWER
@pytest.mark.parametrize("share", [0, 1, 2])
@given(
    instance=memory_only(),
    further=st.lists(st.integers(1, 10), min_size=1, max_size=3),
    rise=st.booleans(),
    by_input=st.booleans(),
)
def test_from_both_ends_it_is_exact(
    share: int, instance: Instance, further: list[int], *, rise: bool, by_input: bool
) -> None:
    """However far each end is searched: no bound exceeds the optimum, and in the end one is found."""
    covered(instance)
    classes, best = Classes(instance, alike=Alike.INPUT if by_input else Alike.OUTPUT), optimum(instance)
    parts = cycle(-(-classes.base_ps * part // 4) for part in further)
    bound, found = from_both_ends(classes, best + 1 - classes.constant_ps, share, parts, rise=rise)
    assert bound + classes.constant_ps == best
    assert found
    for one in found:
        steps = by_output(classes, Classes(instance), one.steps)
        schedule = schedule_of_steps(instance, Classes(instance), steps)
        assert check_schedule(instance, schedule)[0] == []
        assert evaluate(instance, schedule)["objectives"]["makespan"] == one.bound + classes.constant_ps


@pytest.mark.parametrize(("share", "rise"), [(0, False), (1, True), (2, False)])
@pytest.mark.parametrize(("name", "best", "evictions"), BY_EVICTIONS)
@pytest.mark.parametrize("by_input", [False, True])
def test_from_both_ends_it_finds_what_takes_evictions(
    name: str, best: int, evictions: int, share: int, *, rise: bool, by_input: bool
) -> None:
    """Forward, backward and half by half; what is known comes from `state_search`, and is certified."""
    instance = LADDER[f"ladder-{name}"]
    classes = Classes(instance, alike=Alike.INPUT if by_input else Alike.OUTPUT)
    further = repeat(classes.base_ps // 4)
    bound, found = from_both_ends(classes, best + 1 - classes.constant_ps, share, further, rise=rise)
    assert bound + classes.constant_ps == best
    assert [sum(kind == EVICT for kind, _ in one.steps) for one in found] == [evictions]
    steps = by_output(classes, Classes(instance), found[0].steps)
    schedule = schedule_of_steps(instance, Classes(instance), steps)
    assert check_schedule(instance, schedule)[0] == []
    assert evaluate(instance, schedule)["objectives"]["makespan"] == best


def test_requests_that_leave_no_room_run_first() -> None:
    """M = 4: one with a prompt of 4 and two with I = 3, O = 2 as below, none of which fits beside another.

    That takes 10 + 4 + 5, the two others 70.
    """
    lonely = replace(TURNS, requests=(*TURNS.requests, Request(4, 1)))
    outcome = SEARCH.solve(Task(lonely, Objective.MAKESPAN))
    assert outcome.bound == 10 + 4 + 5 + 70
    assert outcome.schedule is not None
    assert check_schedule(lonely, outcome.schedule)[0] == []
    small = replace(lonely, requests=(*lonely.requests, Request(1, 3), Request(1, 2)))
    assert exact(SEARCH, small) == optimum(small)


@pytest.mark.slow
@FEWER
@given(memory_only())
def test_with_requests_that_leave_no_room_it_is_exact(instance: Instance) -> None:
    """With a cache as large as the largest need there are often some."""
    tight = replace(
        instance,
        limits=replace(instance.limits, kv_tokens=max(request.peak_tokens for request in instance.requests)),
    )
    assume(tight.limits.kv_block == 1)
    covered(tight)
    assert exact(SEARCH, tight) == exact(WITHOUT_GRAPH, tight) == optimum(tight)


def test_refills_that_cannot_be_are_not_added_up() -> None:
    """Without eviction nothing is filled twice: decodes of some 10¹⁸ ps, which prefills undercut by far, are no matter.

    Each request fills the cache in its second batch: 2 prefills of 10 + 3 + 5 ps, 2 decodes of 10 + 1 + 3 · 10¹⁸.
    """
    slow = replace(TURNS, rules=replace(TURNS.rules, eviction=False), cost=replace(TURNS.cost, decode_kv=10**18))
    assert exact(WITHOUT_GRAPH, slow) == 2 * 18 + 2 * (11 + 3 * 10**18)


def test_prices_of_blocks_by_hand() -> None:
    """As below: a price of 9 in both of two batches makes the 3 + 4 blocks of each request cost 2 · 63, of 2 · 4 · 9.

    So two batches cost 20 + 126 − 72 and more with every unit of the price: there is no such schedule. Of three, with a
    price of 9 in the middle one, each request had better leave it out, and pay 2 more for a refill: 30 + 4 − 36; and of
    four, where the prices of the two in the middle are 1, too: 3 + 1 · 4 blocks there, or a refill: 40 + 4 − 8.
    """
    relaxation = PatternRelaxation(Classes(TURNS), 1, 100, 0)

    def bound(*prices: int) -> int:
        return relaxation.priced(np.array([0, *prices]) / 10, len(prices)).bound

    assert bound(9, 9) == 20 + 126 - 72
    assert bound(0, 9, 0) == 30 + 4 - 36
    assert bound(0, 1, 1, 0) == 40 + 4 - 8


def test_what_arcs_cost_beyond_the_least_by_hand() -> None:
    """As below: a request is filled with 3 tokens, then with 4; to wait in between costs a refill of 2 more.

    Three batches of which the middle one has a price of 9 for each block: the least is to leave it out, at 2. To be
    filled in it costs 27, in all 25 more, and so does to run in it, at 36, 34 more; in other batches that costs as
    much as the way through the middle that it is part of. Evicted in it, and filled in the last: 0 more.
    """
    relaxation = PatternRelaxation(Classes(TURNS), 1, 100, 0)
    beyond = beyond_least(relaxation.priced(np.array([0, 0, 9, 0]) / 10, 3))
    first, second = beyond[:, 1:, 0].T.tolist(), beyond[:, 1:, 1].T.tolist()
    assert [fill for _, fill, _ in first[:2]] == [0, 25]
    assert [step[RUNS] for step in second[1:]] == [34, 25]
    assert second[1][EVICTED] == second[2][FILLED] == 0
    # A first token cannot be evicted or decoded, and one in the last batch leaves no time for the second.
    assert min(beyond[[RUNS, EVICTED], :, 0].min(), beyond[FILLED, 3, 0], beyond[:, :2, 1].min()) > 1 << 49


def test_requests_of_equal_prompts_need_their_outputs_only_at_the_end() -> None:
    """Prompts of 3, outputs 1, 2 and 3, M = 9: as columns there are exits after 1 and 2 tokens, 1 for each batch.

    All three are filled in the first batch, and run on as far as they go: 3 batches.
    """
    instance = replace(
        TURNS, limits=replace(TURNS.limits, kv_tokens=9), requests=(Request(3, 1), Request(3, 2), Request(3, 3))
    )
    classes = Classes(instance)
    programme = ArcProgramme(PatternRelaxation(classes, 1, 31, 0).priced(np.zeros(4), 3), 31)
    packed = programme.pack(9, 0)
    # Runs of 2 and 3 tokens, fills of one, and what follows: refills would cost 2 and more.
    assert packed.bound == 30
    schedule = schedule_of_steps(instance, classes, packed.steps)
    assert check_schedule(instance, schedule)[0] == []
    assert schedule.length == 3


def test_batches_in_which_nothing_runs_are_left_out() -> None:
    """A core's search may leave batches to the others, which there need not be: seed 120 of the trial's ``optima``."""
    instance = replace(TURNS, requests=(Request(1, 3),))
    empty = [(FILL, 0), (RUN, -1), (EVICT, 1), (RUN, -1), (FILL, 1), (RUN, -1), (RUN, -1), (RUN, -1)]
    schedule = schedule_of_steps(instance, Classes(instance), empty)
    assert check_schedule(instance, schedule)[0] == []
    assert [(batch.run, batch.evict) for batch in schedule.batches] == [(((0, 1),), ())] * 3


def test_turns_by_hand() -> None:
    """Two requests with I = 3, O = 2 and M = 4: each fills the cache in its second batch, so they take turns.

    Base 10, token 1, decode 2 per KV token, prefill 5 per request: a prefill takes 3 + 5, a decode 1 + 3 · 2. Four
    batches: 40 + 2 (8 + 7) = 70. Starting the second with the first would need 6 tokens of memory.
    """
    assert exact(SEARCH, TURNS) == exact(WITHOUT_GRAPH, TURNS) == 70


def test_the_merged_graph_by_hand() -> None:
    """There are 3 nodes: none, a first token, and a second one due; a fill of a second token takes 4 tokens, too.

    Each of the two full nodes is reached by a fill; the first runs into the second, which runs into the empty one, and
    a second token that is due may be evicted. A first one may not: there is nothing to lose.
    """
    graph = merged_graph(Classes(TURNS), 3)
    arcs = graph.arcs
    assert graph.nodes == 3
    assert (len(arcs.fill_head), len(arcs.evict_head), arcs.evict_item.tolist()) == (2, 1, [1])
    first, second = arcs.fill_head.tolist()
    assert arcs.run_head[[first, second]].tolist() == [second, 0]
    with pytest.raises(TooLargeError):
        merged_graph(Classes(TURNS), 2)


@QUICK
@given(memory_only())
def test_nodes_are_counted_before_they_are_enumerated(instance: Instance) -> None:
    """As many as fit are too many for one less, at once; nodes that only evict come on top."""
    classes = Classes(instance)
    fitting = int(merged_graph(classes, 100_000).arcs.fits.sum())
    with pytest.raises(TooLargeError):
        merged_graph(classes, fitting - 1, -math.inf)


def test_what_ends_early_is_taken_only_if_it_is_better() -> None:
    """One request of one token takes one batch, 10 without the constant work, and no schedule costs less.

    At a price of 25 a second batch, in which it is filled again, costs less than nothing.
    """
    instance = Instance("once", Limits(2, 9, 9), Rules(chunked_prefill=False), CostModel(10, 0), (Request(1, 1),))
    graph = merged_graph(Classes(instance), 99)
    priced = GraphRelaxation(graph, Walks(graph, 1, 2), 0).priced(np.full((3, 1), 2.5), 2)
    assert priced.bound < 0
    for budget, better in ((11, True), (10, False)):
        found = search_layers(priced.space(), 2, budget, None, lambda: False)
        assert found.complete
        assert bool(found.steps) is better
        assert found.budget == 10


def test_the_bundle_finds_the_top_of_a_roof() -> None:
    """The least of 3 − x − y, 1 + x and 2 + y is greatest where all are equal: at x = 1, y = 0, where it is 2."""
    slopes, at_zero = np.array([[-1.0, -1.0], [1.0, 0.0], [0.0, 1.0]]), np.array([3.0, 1.0, 2.0])

    def roof(point: Floats) -> tuple[float, Floats]:
        values = at_zero + slopes @ point
        return float(values.min()), slopes[values.argmin()]

    for known in ([], [Cut(constant, slope) for constant, slope in zip(at_zero, slopes, strict=True)]):
        value, point = maximise(roof, np.array([-5.0, 9.0]), known, math.inf, 300, 1e-6, lambda: False)
        assert value == pytest.approx(2.0, abs=1e-4)
        assert point == pytest.approx([1.0, 0.0], abs=1e-3)


@given(st.data())
def test_the_bundle_weighs_cuts_as_no_other_weights_do_better(data: st.DataObject) -> None:
    """Where a quadratic programme over weights that add up to 1 ends: cuts with weight gain the same, others no more.

    Slopes that are alike, that are sums of others and that are more than there are prices, too.
    """
    prices, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    slopes = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=count * prices, max_size=count * prices)), float)
    slopes = slopes.reshape(count, prices)
    excess = np.array(data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)), float)
    weight = np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), float)
    step = data.draw(st.sampled_from([0.01, 1.0, 50.0]))
    uncompiled(_balance)(slopes @ slopes.T, excess, weight, step)
    assert weight.min() >= 0
    assert weight.sum() == pytest.approx(1)
    gain = excess + step * slopes @ (weight @ slopes)
    assert gain[weight > 0].max() <= gain.min() + 1e-6


def _priced_walks(graph: MergedGraph, batches: int) -> tuple[Callable[[Floats], tuple[float, Floats]], Walks]:
    """Return the function of prices that is to be maximised, by a look at all walks, and the walks.

    Prices are those of all batches.
    """
    walks = Walks(graph, 1, batches)
    least = np.full((batches + 1, graph.nodes), NONE)
    composing = least.copy()

    def evaluate(at: Floats) -> tuple[float, Floats]:
        fill, evict = (walks.extra / walks.base - at).astype(np.float32), (at * graph.arcs.change).astype(np.float32)
        fill, evict = np.tile(fill, (batches + 1, 1)), np.tile(evict, (batches + 1, 1))
        close(graph.arcs, evict[0], NONE, least[0])
        run, balance = np.ones(graph.nodes, dtype=np.float32), np.zeros(fill.shape, dtype=np.int64)
        walk_back(graph.arcs, fill, evict, run, NONE, least, composing, batches)
        ran = np.zeros(batches + 1, dtype=np.int64)
        steps_of(graph.arcs, fill, evict, run, least, composing, batches, 0, balance, ran)
        slope = (walks.fresh + balance.sum(axis=0)).astype(np.float64)
        return float(at @ walks.fresh) + float(least[batches, 0]), slope

    return evaluate, walks


@pytest.mark.parametrize(("name", "batches"), [("n06-SILO+SISO-k2", 23), ("n06-I32-O8-k2", 28)])
@pytest.mark.parametrize("alike", Alike)
def test_prices_by_near_walks_prove_as_much_as_by_all(name: str, batches: int, alike: Alike) -> None:
    """The bundle method on all walks is stopped by its own promise that less than 0.0005 batches are left."""
    graph = merged_graph(Classes(LADDER[f"ladder-{name}"], alike=alike), 100_000)
    evaluate, walks = _priced_walks(graph, batches)
    start, begin = walks.first_prices(batches), Begin(0, walks.fresh, batches, batches)
    best, _ = maximise(evaluate, start[0], [], math.inf, 2_000, 5e-4, lambda: False)
    near = Walks(graph, 1, batches, few_places=0)
    found, price = near.improved(start, begin, math.inf, 400, lambda: False)
    assert found == pytest.approx(best, abs=2e-3)
    assert evaluate(price[0])[0] == pytest.approx(found, abs=1e-4)


def test_walks_are_near_the_least_one_of_the_last_look() -> None:
    """Near walks promise more the further away, where all looks find less."""
    looked: list[float] = []
    asked = 0

    def look(prices: Floats) -> tuple[float, Floats]:
        looked.append(float(prices[0]))
        return -abs(looked[-1]), -np.sign(prices)

    def near(prices: Floats, value: float, slack: float) -> tuple[Callable[[Floats], tuple[float, Floats]], float]:
        nonlocal asked
        asked += 1
        assert (looked[-1], -abs(looked[-1])) == (prices[0], value)
        return (lambda there: (float(there[0]), np.ones(1))), slack

    value, prices = maximise_by_near_walks(look, near, np.zeros(1), 9.0, 30, over=lambda: False)
    assert (value, prices[0]) == (0.0, 0.0)
    assert asked > 2


@pytest.mark.parametrize(("few_places", "name"), [(0, "n06-SILO+SISO-k2"), (1_000_000, "n08-SILO+SISO-k2")])
def test_prices_that_rise_prove_more(few_places: int, name: str) -> None:
    """Where the best prices that are the same in all batches let walks refill what they evict later on."""
    graph, batches = merged_graph(Classes(LADDER[f"ladder-{name}"]), 100_000), SHORT_OF_BATCHES[name]
    walks = Walks(graph, 1, batches, few_places=few_places)
    begin = Begin(0, walks.fresh, batches, batches)
    same, price = walks.improved(walks.first_prices(batches), begin, math.inf, 400, lambda: False)
    found, price = walks.raised(price, begin, same + 0.5, 400, lambda: False)
    assert found > same + 0.02
    assert (np.diff(price[1:], axis=0) <= 0).all()
    table = walks.table(price, batches)
    exact_one = int(table.least[batches, 0]) + int(table.price[batches] @ walks.fresh)
    assert exact_one / walks.base == pytest.approx(found, abs=1e-3)


def test_prices_of_several_numbers_of_batches_at_once() -> None:
    """The least of what they prove of each is what they prove; no prices of one number alone prove less of it."""
    graph = merged_graph(Classes(LADDER["ladder-n06-SILO+SISO-k2"]), 100_000)
    relaxation = GraphRelaxation(graph, Walks(graph, 1, 24, few_places=0), 0)
    price = relaxation.raised_together(21, 24, math.inf, 30, lambda: False)
    bounds = [relaxation.priced(price, batches).bound for batches in range(21, 25)]
    value = relaxation.walks.bound(price, Begin(0, relaxation.walks.fresh, 21, 24))
    assert min(bounds) / relaxation.walks.base == pytest.approx(value, abs=1e-3)
    first = relaxation.priced(relaxation.first_prices(24), 24)
    assert min(bounds) > min(first.of(batches).bound for batches in range(21, 25))
    for batches, bound in zip(range(21, 25), bounds, strict=True):
        alone = relaxation.raised(price, batches, math.inf, 20, lambda: False)
        assert relaxation.priced(alone, batches).bound >= bound - relaxation.walks.base * 1e-3


@pytest.mark.parametrize("name", ["n06-SILO+SISO-k2", "n08-LILO+SISO-k2", "n12-SILO+LISO-k2"])
def test_requests_of_one_input_are_one_class(name: str) -> None:
    """As many begin, generate each token, and end after each output, as of the classes that are told apart."""
    instance = LADDER[f"ladder-{name}"]
    classes, every = Classes(instance, alike=Alike.INPUT), Classes(instance)
    assert len(classes.kinds) < len(every.kinds)
    assert classes.constant_ps == every.constant_ps
    generated = {(prompt, k): 0 for prompt, output, _ in classes.kinds for k in range(1, output + 1)}
    for (prompt, output, _), members in zip(every.kinds, every.members, strict=True):
        for k in range(1, output + 1):
            generated[prompt, k] += len(members)
    tokens = range(classes.tokens)
    assert {
        (classes.kinds[classes.owner[item]][0], classes.token[item]): classes.reach[item] for item in tokens
    } == generated
    assert sum(classes.fresh[item] for item in tokens) == len(instance.requests)
    for end, item in enumerate(classes.ends, start=classes.tokens):
        assert classes.reach[item - 1] == classes.reach[item] + classes.fresh[end]
    assert len(classes.ends) == len(every.kinds) - len(classes.kinds)


def test_prices_by_output_prove_as_much_by_input() -> None:
    """Requests that pay for each token of theirs: those by input pay for the longest output, and ends give back.

    So walks of the two graphs cost the same.
    """
    instance = LADDER["ladder-n06-SILO+SISO-k2"]
    every, classes = Classes(instance), Classes(instance, alike=Alike.INPUT)
    price = np.zeros(every.tokens)
    for item in reversed(range(every.tokens)):
        after = every.following[item]
        price[item] = 1.5 * every.size[item] / every.capacity + (price[after] if after >= 0 else 0.0)
    proved = []
    for one, at in ((every, price), (classes, prices_by_input(classes, every, price))):
        graph = merged_graph(one, 100_000)
        proved.append(Walks(graph, 1, 24).proved(np.tile(at, (25, 1)), 24)[20:])
    assert proved[0] == pytest.approx(proved[1], rel=1e-9)


@QUICK
@given(memory_only(), st.data())
def test_by_size_no_more_is_proved_than_by_input(instance: Instance, data: st.DataObject) -> None:
    """Of the same prices: every walk by input is one by size, and costs as much."""
    covered(instance)
    classes, sizes = Classes(instance, alike=Alike.INPUT), Classes(instance, alike=Alike.SIZE)
    items = len(sizes.owner)
    price = np.array(data.draw(st.lists(st.floats(-1, 2), min_size=items, max_size=items)))
    most = max(output for _, output, _ in classes.kinds) + 2
    proved = []
    for one, at in ((sizes, price), (classes, prices_by_size(classes, sizes, price))):
        walks = Walks(merged_graph(one, 100_000), 1, most)
        proved.append([one.constant_ps + each for each in walks.proved(np.tile(at, (most + 1, 1)), most)])
    rounding = len(instance.requests) * (most + 1) * 4
    for less, more in zip(*proved, strict=True):
        assert less <= more + rounding


def test_of_several_sizes_first_fills_are_paid_for_twice() -> None:
    """I = 1, O = 3 and I = 2, O = 1 share the size 2, at which the second begins and the first may be refilled.

    A fill of it costs 2 + 5, a decode 1 + 2 · 1: the difference of 4 is charged for the first fill of the second, too,
    and off the constant work of 6 + 3 + 5 and 7.
    """
    instance = replace(TURNS, requests=(Request(1, 3), Request(2, 1)))
    sizes = Classes(instance, alike=Alike.SIZE)
    assert sizes.kinds == [(1, 3, 0)]
    assert [sizes.extra_ps(item) for item in range(sizes.tokens)] == [0, 4, 3 + 5 - 5]
    assert sizes.constant_ps == 6 + 3 + 5 + 7 - 4
    assert (sizes.reach[: sizes.tokens], sizes.fresh) == ([2, 2, 1], [1, 1, 0, 1])
    assert sizes.ends == [2]


@given(data=st.data())
@settings(deadline=None, max_examples=20)
@pytest.mark.parametrize("alike", Alike)
def test_near_walks_are_those_that_cost_little_more(data: st.DataObject, alike: Alike) -> None:
    """Their least cost is that of all at prices near by, never less at others, and the same if all walks are near."""
    graph, batches = merged_graph(Classes(LADDER["ladder-n04-LILO+SILO-k2"], alike=alike), 100_000), 30
    evaluate, walks = _priced_walks(graph, batches)
    items = len(walks.fresh)
    here, other = (
        walks.first_prices(batches)[0]
        + np.array(data.draw(st.lists(st.floats(-0.1, 0.1), min_size=items, max_size=items)))
        for _ in range(2)
    )

    def cost_of(at: Floats) -> Floats32:
        evict = at * graph.arcs.change
        row = np.concatenate([walks.extra / walks.base - at, evict, [0.0, 1.0]]).astype(np.float32)
        return np.tile(row, (batches + 1, 1))

    def costs(at: Floats) -> tuple[Floats32, Floats32]:
        least = np.full((batches + 1, graph.nodes), NONE)
        composing = least.copy()
        cost = cost_of(at)
        close(graph.arcs, cost[0, items:-2], NONE, least[0])
        run = np.ones(graph.nodes, dtype=np.float32)
        walk_back(graph.arcs, cost[:, :items], cost[:, items:-2], run, NONE, least, composing, batches)
        return least, composing

    least, composing = costs(here)
    for slack, all_near in ((0.2, False), (1e6, True)):
        near = Near(np.empty(400_000, np.int32), np.empty(2_000_000, np.int32), np.empty(2_000_000, np.int32))
        counts, starts = np.zeros(2, dtype=np.int64), np.zeros(batches + 1, dtype=np.int64)
        start = np.full(batches + 1, float(NONE))
        start[batches] = 0.0
        most = float(least[batches, 0]) + slack
        label, cost = np.full(graph.nodes, 2 * items + 1, dtype=np.int32), cost_of(here)
        done = near_walks(graph.arcs, items, label, cost, least, composing, 0, start, NONE, most, near, starts, counts)
        assert done == DONE
        left = np.empty(counts[0] + 1, dtype=np.float32)
        for at in (here, other):
            balance = np.zeros((batches + 1, items), dtype=np.int64)
            among = NearWalks(near, graph.arcs.change, starts, int(counts[0]), left, NONE)
            ran = np.zeros(batches + 1, dtype=np.int64)
            found, number = least_near_walk(among, cost_of(at).ravel(), start, balance, ran)
            assert number == batches
            exact_one = float(costs(at)[0][batches, 0])
            assert found > exact_one - 1e-3
            if at is here or all_near:
                assert found == pytest.approx(exact_one, abs=1e-3)
            if all_near:
                assert float(at @ walks.fresh) + found == pytest.approx(evaluate(at)[0], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "best"), [("n04-LILO+SILO-k2", 125_900_247_314), ("n24-I32-O8-k8", 174_694_819_092)])
def test_on_the_ladder_it_proves_what_is_known(name: str, best: int) -> None:
    assert exact(SEARCH, LADDER[f"ladder-{name}"]) == best


@pytest.mark.parametrize(("name", "best"), [("n08-LILO+LISO-k8", 93_726_630_299), ("n08-LILO+SISO-k8", 86_972_124_989)])
def test_without_a_graph_it_proves_what_is_known_of_large_caches(name: str, best: int) -> None:
    assert exact(WITHOUT_GRAPH, LADDER[f"ladder-{name}"]) == best


@pytest.mark.slow
def test_stopped_by_the_clock_it_keeps_a_bound_and_a_schedule() -> None:
    instance = LADDER["ladder-n16-SILO+SISO-k2"]
    start = simulate(instance, "vllm")
    task = Task(instance, Objective.MAKESPAN, incumbent=start.schedule, incumbent_value=start.value, time_limit_s=3)
    outcome = SEARCH.solve(task)
    assert outcome.termination == Termination.LIMIT
    assert outcome.schedule is not None
    assert outcome.bound is not None
    assert check_schedule(instance, outcome.schedule)[0] == []
    # The optimum is not above what `auto` once found.
    assert outcome.bound <= 242_727_000_000
    assert outcome.bound < evaluate(instance, outcome.schedule)["objectives"]["makespan"]


def test_asked_for_less_than_the_optimum_it_says_that_there_is_none() -> None:
    for at_most in (0, 69):
        outcome = SEARCH.solve(Task(TURNS, Objective.MAKESPAN, Restrictions(at_most=at_most)))
        assert outcome.termination == Termination.INFEASIBLE
    assert SEARCH.solve(Task(TURNS, Objective.MAKESPAN, Restrictions(at_most=70))).bound == 70


def test_what_it_does_not_cover_is_refused() -> None:
    task = Task(TURNS, Objective.MAKESPAN)
    refused = [
        changed(task, objective=Objective.MEAN_E2E),
        changed(task, deterministic_limit=1.0),
        changed(task, instance=replace(TURNS, requests=(Request(3, 2), Request(3, 2, arrival_ps=7)))),
        changed(task, instance=replace(TURNS, cost=replace(TURNS.cost, base=0))),
        changed(task, instance=replace(TURNS, cost=replace(TURNS.cost, base=1 << 57))),
        changed(task, instance=replace(TURNS, rules=Rules(chunked_prefill=True))),
    ]
    for other in refused:
        with pytest.raises(UnsupportedError):
            SEARCH.solve(other)
