"""Cores with fillers in the room left: they never prove more than the optimum; what completes them is a schedule."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import exact
from strategies import assume_only_memory_binds, memory_only

from optsched import Instance, Limits, Request, Rules, check_schedule
from optsched.bounds.volume import volume_bound
from optsched.model.cost import CostModel
from optsched.model.metrics import evaluate
from optsched.model.schedule import one_after_another
from optsched.stopwatch import now_s
from optsched.traces.ladder import ladder
from optsched_formulations.batching.layer_search import LayerSearch
from optsched_formulations.batching.layers.completion import completed, rooms_left
from optsched_formulations.batching.layers.core import Core, Master, core_of, core_with
from optsched_formulations.batching.layers.fillers import Fillers
from optsched_formulations.batching.layers.graph import merged_graph
from optsched_formulations.batching.layers.graph_layers import GraphRelaxation
from optsched_formulations.batching.layers.joint_prices import JointPrices
from optsched_formulations.batching.layers.search import search_layers
from optsched_formulations.batching.layers.two_sided import Reach, TwoSided, arcs_back
from optsched_formulations.batching.layers.walks import Walks
from optsched_formulations.batching.memory_only import Classes
from optsched_formulations.batching.search.naming import schedule_of_steps
from optsched_formulations.batching.search.state_steps import FILL, RUN

LADDER = {instance.name: instance for instance in ladder("a100-llama2-7b-linear").instances}
QUICK = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def covered(instance: Instance) -> Classes:
    """Leave out instances that are not covered, or have one class."""
    assume_only_memory_binds(instance)
    classes = Classes(instance)
    assume(instance.cost.base > 0 and len(classes.kinds) > 1)
    return classes


def never() -> bool:
    """Return that time is not over."""
    return False


def priced_core(core: Core, batches: int, tokens: np.ndarray, few_places: int = 1_000_000) -> GraphRelaxation:
    """Return the relaxation of a core, with prices of tokens in units."""
    walks = Walks(core.graph, 1, batches, few_places, core.fillers.filled(np.asarray(tokens, dtype=np.int64)))
    return GraphRelaxation(core.graph, walks, 0)


@pytest.mark.slow
@QUICK
@given(memory_only(), st.data())
def test_no_core_proves_more_than_the_optimum(instance: Instance, data: st.DataObject) -> None:
    """At any prices of tokens, and of waiting, the least cost of the core's schedules over all numbers of batches.

    A search from both ends finds the same one. What completes its schedules is one of all requests that costs as much
    as it says.
    """
    classes, best = covered(instance), optimum(instance)
    kinds = data.draw(st.lists(st.integers(0, len(classes.kinds) - 1), min_size=1, unique=True))
    assume(len(kinds) < len(classes.kinds))
    core, budget = core_with(instance, classes, kinds), best + 1 - classes.constant_ps
    base, items = classes.base_ps, len(core.fillers.requests)
    master, least = Master(core, budget // base, 1, 0), budget
    for batches in range(1, (budget - 1) // base + 1):
        linear = master.prices(batches, now_s() + 60)
        assert linear is not None
        drawn = data.draw(st.lists(st.integers(-base, 2 * base), min_size=items, max_size=items))
        bounds = [0]
        for tokens in (np.array(drawn), np.rint(linear[1] * base)):
            relaxation = priced_core(core, batches, tokens, data.draw(st.sampled_from([0, 1_000_000])))
            price = np.tile(linear[0], (batches + 1, 1))
            if data.draw(st.booleans()):
                price = relaxation.raised(price, batches, budget / base, 20, never)
            priced = relaxation.priced(price, batches)
            found = search_layers(priced.space(), batches, budget, None, never)
            assert found.complete
            assert min(priced.bound, budget) <= found.bound <= budget
            assert bool(found.steps) == (found.bound < budget)
            if priced.bound < budget:
                ends = TwoSided(relaxation, arcs_back(core.graph), priced)
                apart = ends.search(Reach(1 << 40, 1 << 40), budget, never)
                assert (apart.complete, apart.bound, bool(apart.steps)) == (True, found.bound, bool(found.steps))
            bounds.append(found.bound)
            if found.steps:
                steps = completed(core, found.steps, batches, 1, budget, seed=0, over=never)
                if steps:
                    schedule = schedule_of_steps(instance, classes, steps)
                    assert check_schedule(instance, schedule)[0] == []
                    assert evaluate(instance, schedule)["objectives"]["makespan"] == best
        least = min(least, max(bounds))
    assert least + classes.constant_ps <= best


@pytest.mark.slow
@QUICK
@given(memory_only())
def test_with_cores_it_is_exact(instance: Instance) -> None:
    covered(instance)
    assert exact(LayerSearch(), instance) == optimum(instance)


@QUICK
@given(st.data())
def test_fillers_are_worth_what_the_best_set_is(data: st.DataObject) -> None:
    """Against all sets: of class c any ``requests`` of its items, or fewer."""
    kinds = data.draw(
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3, unique=True), label="I, O"
    )
    numbers = data.draw(st.lists(st.integers(1, 2), min_size=len(kinds), max_size=len(kinds)))
    requests = tuple(Request(*kind) for kind, number in zip(kinds, numbers, strict=True) for _ in range(number))
    limits, rules = Limits(9, 99, 99), Rules(chunked_prefill=False)
    fillers = Fillers(classes := Classes(Instance("f", limits, rules, CostModel(base=1, token=0), requests)))
    price = np.array(data.draw(st.lists(st.integers(-3, 9), min_size=len(classes.size), max_size=len(classes.size))))
    sets = []
    for number, members in enumerate(classes.members):
        items = [item for item, owner in enumerate(classes.owner) if owner == number]
        sets.append([c for k in range(len(members) + 1) for c in combinations_with_replacement(items, k)])
    every = [[item for part in parts for item in part] for parts in product(*sets)]
    rooms = np.arange(10)
    filled = fillers.filled(price)
    worth, counts = fillers.best(price.astype(np.float64), rooms)
    for room in rooms.tolist():
        best = max(sum(price[i] for i in one) for one in every if sum(classes.size[i] for i in one) <= room)
        assert filled.worth[room] == worth[room] == best
        assert counts[room] @ np.array(classes.size) <= room
        assert counts[room] @ price == best
    assert filled.pays == sum(price[item] * len(classes.members[owner]) for item, owner in enumerate(classes.owner))


def test_a_core_by_hand() -> None:
    """Five blocks, a request of 4 + 2 tokens and three of 1 + 1: a base of 10 and a ps for a token.

    The core's request runs alone in its second batch, as it holds 5 blocks then, and leaves one block in its first.
    Tokens of the three at 4 ps: a batch costs 10 less 4 for each of them that fits, so that two batches of the core and
    J − 2 of up to three others cost 10 − 4, 10 and 10 − 12 each; all three pay 12.
    """
    requests = (Request(4, 2), *[Request(1, 1)] * 3)
    cost = CostModel(base=10, token=1)
    instance = Instance("hand", Limits(5, 99, 99), Rules(chunked_prefill=False), cost, requests)
    classes = Classes(instance)
    core = core_of(instance, classes, 100)
    assert core is not None
    assert core.graph.classes.kinds == [(4, 2, 0)]
    for batches, cost_of_all in ((2, 6 + 10 + 12), (3, 6 + 10 - 2 + 12), (4, 6 + 10 - 2 - 2 + 12)):
        relaxation = priced_core(core, batches, np.array([4]))
        priced = relaxation.priced(np.zeros((batches + 1, 2)), batches)
        found = search_layers(priced.space(), batches, 99, None, never)
        assert priced.bound <= found.bound == cost_of_all
        # With the core's request in the first two batches, or after others.
        assert sorted(rooms_left(core, found.steps, batches).tolist()) == [0, 1, *[5] * (batches - 2)]
    # The three fit with one another, or one of them with the other's first token: 3 batches.
    prices = Master(core, 4, 1, 0).prices(3, math.inf)
    assert prices is not None
    steps = [(FILL, 0), (RUN, -1), (RUN, -1)]
    full = completed(core, steps, 3, 1, 31, seed=0, over=never)
    assert sum(step == RUN for step, _ in full) == 3
    assert completed(core, steps, 2, 1, 31, seed=0, over=never) == []
    schedule = schedule_of_steps(instance, classes, full)
    assert evaluate(instance, schedule)["objectives"]["makespan"] == 3 * 10 + classes.constant_ps


@pytest.mark.slow
def test_prices_of_a_core_prove_as_much_of_all_items() -> None:
    """A filler on the graph pays, from token to token, what it pays as a filler."""
    instance = LADDER["ladder-n06-LILO+SISO-k2"]
    classes = Classes(instance)
    core = core_of(instance, classes, 100)
    assert core is not None
    prices = Master(core, 60, 1, 0).prices(30, now_s() + 60)
    assert prices is not None
    base = classes.base_ps
    with_fillers = priced_core(core, 30, np.rint(prices[1] * base)).priced(np.tile(prices[0], (31, 1)), 30)
    graph = merged_graph(classes, 100_000)
    every = GraphRelaxation(graph, Walks(graph, 1, 30), 0, core.prices(*prices))
    assert every.priced(every.first_prices(30), 30).bound >= with_fillers.bound - 1000
    assert with_fillers.bound > 30 * base


@pytest.mark.slow
@QUICK
@given(memory_only())
def test_with_prices_of_all_tokens_it_is_exact(instance: Instance) -> None:
    """Where the graph of all requests is refused, a core comes first, at prices found together with its fillers'."""
    covered(instance)
    assert exact(LayerSearch(most_nodes=0, cores=()), instance) == optimum(instance)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n06-LILO+SISO-k2", "n08-LILO+SISO-k2", "n08-SILO+LISO-k8"])
def test_prices_of_all_tokens_prove_what_those_of_the_linear_programme_do(name: str) -> None:
    """Walks may prove more than flows do, and the bundle method ends below the best prices by little.

    Of a number of batches that no schedule has prices may prove any cost, and rounding says where either ends; both
    refute it then. What is more than a schedule costs counts as that.
    """
    instance = LADDER[f"ladder-{name}"]
    core = core_of(instance, Classes(instance), 300)
    assert core is not None
    base, fewest = core.classes.base_ps, volume_bound(instance).batches
    known = evaluate(instance, one_after_another(instance))["objectives"]["makespan"] - core.classes.constant_ps
    for batches in (fewest, fewest + 3):
        linear = Master(core, batches, 1, 0).prices(batches, now_s() + 60)
        assert linear is not None
        joint = JointPrices(core, batches, batches).improved(math.inf, 300, never)
        proved = [
            priced_core(core, batches, np.rint(tokens * base)).priced(np.tile(waiting, (batches + 1, 1)), batches).bound
            for waiting, tokens in (linear, joint)
        ]
        assert min(proved[1], known) > min(proved[0], known) - 0.01 * base


@pytest.mark.slow
def test_cores_prove_what_nothing_else_did() -> None:
    """`layer_search` alone; of this instance 1.0 % were left before there were cores."""
    assert exact(LayerSearch(), LADDER["ladder-n12-LILO+SISO-k2"]) == 275_103_557_788
