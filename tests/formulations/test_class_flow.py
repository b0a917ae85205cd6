"""Class flows against brute force, other formulations and themselves: CP-SAT and MIP, free and fixed J."""

from __future__ import annotations

from itertools import product

import pytest
from brute_force import optimum
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import FREE, exact_value, legal_value
from strategies import instances, restrictions

from optsched import Instance, Limits, Request, Restrictions, Rules, replace, simulate, solve
from optsched.bounds.volume import volume_bound
from optsched.catalogue import POLICY_GROUP, entries
from optsched.model.cost import CostModel
from optsched.model.objectives import Objective
from optsched.model.result import Badge, Status
from optsched.model.schedule import Assignment, timed
from optsched.solvers.formulation import Formulation, Outcome, ProgressEvent, Task, Termination, UnsupportedError
from optsched.traces.ladder import ladder
from optsched_formulations.batching.class_flow import ClassFlow, ClassFlowMip
from optsched_formulations.batching.flow import minimize
from optsched_formulations.batching.flow.engines import Answer, minimize_with_cpsat, minimize_with_highs
from optsched_formulations.batching.flow.model import FlowModel, find_packing, pauses_may_pay
from optsched_formulations.batching.packing import HeldClass, packing

SLOW = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
BOTH: tuple[Formulation, ...] = (ClassFlow(), ClassFlowMip())
LADDER = {entry.name: entry for entry in ladder("a100-llama2-7b-linear").instances}


@st.composite
def memory_only(draw: st.DrawFn) -> Instance:
    """Draw an instance that the reduced model covers."""
    drawn = draw(instances(chunked=False, most_tokens=4))
    limits = Limits(drawn.limits.kv_tokens, 99, 99, None, drawn.limits.kv_block)
    cost = replace(drawn.cost, pieces=(), decode_req=draw(st.integers(0, 3)), decode_kv=draw(st.integers(0, 1)))
    instance = replace(drawn, limits=limits, rules=replace(drawn.rules, hybrid=True), cost=cost)
    assume(not pauses_may_pay(Task(instance, Objective.MAKESPAN)))
    return instance


@pytest.mark.slow
@SLOW
@given(st.data())
def test_policy_classes_equal_brute_force(data: st.DataObject) -> None:
    instance = data.draw(instances(chunked=False) | memory_only())
    allowed = data.draw(restrictions(instance))
    restricted = allowed.apply(instance)
    best = optimum(instance, restrictions=allowed)
    assert best is not None
    for formulation in BOTH:
        outcome = formulation.solve(Task(restricted, Objective.MAKESPAN, allowed))
        assert exact_value(instance, outcome, allowed=allowed) == best
        # Started from an optimum, it stays there.
        again = Task(restricted, Objective.MAKESPAN, allowed, outcome.schedule, best, bound=best)
        assert exact_value(instance, formulation.solve(again), allowed=allowed) == best
        # The decision version, on both sides of the optimum.
        decided = formulation.solve(Task(restricted, Objective.MAKESPAN, replace(allowed, at_most=best)))
        assert exact_value(instance, decided, allowed=allowed) == best
        if best:
            refused = Task(restricted, Objective.MAKESPAN, replace(allowed, at_most=best - 1))
            assert formulation.solve(refused) == Outcome(Termination.INFEASIBLE, None, best, Badge.SOLVER_CLAIMED)


@settings(SLOW, max_examples=15)
@given(instances(chunked=False, most_tokens=2) | memory_only())
def test_the_best_fixed_number_of_batches_is_the_free_optimum(instance: Instance) -> None:
    task = Task(instance, Objective.MAKESPAN)
    best = exact_value(instance, ClassFlow().solve(task))
    everything = sum(request.output for request in instance.requests)
    for engine in (minimize_with_cpsat, minimize_with_highs):
        values = []
        for batches in range(volume_bound(instance).batches, everything + 1):
            answer = engine(FlowModel(task, batches, batches, find_packing(task, 1.0)), task, 10**6)
            if not answer.infeasible:
                assert answer.schedule is not None
                assert len(answer.schedule.batches) == batches
                values.append(legal_value(instance, answer.schedule))
                assert values[-1] == answer.bound
        assert min(values) == best


@pytest.mark.slow
@settings(SLOW, max_examples=11)
@given(instances(chunked=False) | memory_only())
def test_legal_schedules_are_solutions_of_the_same_value(instance: Instance) -> None:
    """Also with a batch to spare, and with the inequality on what batches hold."""
    task = Task(instance, Objective.MAKESPAN)
    packing = find_packing(task, 1.0)
    for name in entries(POLICY_GROUP):
        schedule = simulate(instance, name).schedule
        if schedule is None:
            continue
        model = FlowModel(task, 1, schedule.length + 1, packing)
        flows = model.flows_of(schedule)
        if flows is None:
            assert not pauses_may_pay(task)
            continue
        program = model.program
        assert all(low <= flow <= most for low, flow, most in zip(program.lower, flows, program.upper, strict=True))
        for row in program.rows:
            total = sum(factor * flows[x] for factor, x in row.terms)
            assert row.lower is None or row.lower <= total
            assert row.upper is None or total <= row.upper
        objective = sum(factor * flows[x] for factor, x in program.objective)
        value = legal_value(instance, schedule)
        assert model.to_value(objective) == value
        assert legal_value(instance, model.schedule(flows.__getitem__)) == value


def test_schedules_that_the_model_lacks_have_no_flows() -> None:
    """A pause in the reduced model, and more batches than it has."""
    instance = Instance(
        "pair", Limits(9, 9, 9), Rules(chunked_prefill=False), CostModel(1, 0), (Request(1, 2), Request(2, 1))
    )
    paused = timed(instance, [Assignment([(0, 1)], []), Assignment([(1, 2)], []), Assignment([(0, 1)], [])])
    task = Task(instance, Objective.MAKESPAN)
    assert FlowModel(task, 1, 3, None).flows_of(paused) is None
    ordered = replace(task, restrictions=Restrictions(order=(0, 1)))
    assert FlowModel(ordered, 1, 3, None).flows_of(paused) is not None
    assert FlowModel(ordered, 1, 2, None).flows_of(paused) is None


def test_an_order_of_equal_requests_is_a_matter_of_names() -> None:
    requests = (Request(3, 3),) * 3
    instance = Instance("equal", Limits(8, 99, 99), Rules(chunked_prefill=False), CostModel(9, 1), requests)
    allowed = Restrictions(order=(2, 0, 1))
    task = Task(instance, Objective.MAKESPAN, allowed)
    assert not pauses_may_pay(task)
    for formulation in BOTH:
        assert exact_value(instance, formulation.solve(task), allowed=allowed) == optimum(instance)


def test_pauses_pay_where_batches_are_of_one_kind() -> None:
    """Prefill one, prefill the other while the first pauses, decode both twice: 4 batches. Without a pause 6."""
    instance = Instance(
        "kinds",
        Limits(99, 3, 3),
        Rules(hybrid=False, chunked_prefill=False),
        CostModel(10, 0),
        (Request(3, 3), Request(3, 3)),
    )
    task = Task(instance, Objective.MAKESPAN)
    assert pauses_may_pay(task)
    for formulation in BOTH:
        assert exact_value(instance, formulation.solve(task)) == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "ladder-n04-I4-O8-k8",
        "ladder-n04-I32-O8-k8",
        "ladder-n04-LILO+SISO-k8",
        "ladder-n04-SILO+LISO-k2",
        "ladder-n04-LISO+SISO-k2",
        "ladder-n04-LILO+LISO-k2",
        "ladder-n06-LISO+SISO-k2",
    ],
)
def test_flows_agree_with_tokens_on_the_ladder(name: str) -> None:
    tokens = solve(LADDER[name], method="token_cpsat", workers=1)
    flows = solve(LADDER[name], method="class_flow", workers=1)
    mip = solve(LADDER[name], method="class_flow_mip", workers=1)
    assert tokens.status == flows.status == mip.status == Status.OPTIMAL
    assert tokens.value == flows.value == mip.value


@settings(SLOW, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.lists(st.integers(1, 6), min_size=1, max_size=3)), min_size=1, max_size=3)
)
def test_no_pattern_is_heavier_than_a_packing_says(drawn: list[tuple[int, list[int]]]) -> None:
    classes = [HeldClass(count, sorted(blocks)) for count, blocks in drawn]
    capacity = 7
    found = packing(classes, capacity, 9.0)
    assert found is not None
    names = [c for c, held in enumerate(classes) for _ in range(held.count)]
    heaviest = 0
    for chosen in product(*(range(len(classes[c].blocks) + 1) for c in names)):
        held = [(c, k) for c, k in zip(names, chosen, strict=True) if k]
        if sum(classes[c].blocks[k - 1] for c, k in held) <= capacity:
            heaviest = max(heaviest, sum(found.weights.get(item, 0) for item in held))
    assert heaviest == found.most
    total = sum(classes[c].count * weight for (c, _), weight in found.weights.items())
    assert found.batches == -(-total // found.most)
    # Never worse than memory itself.
    volume = sum(held.count * sum(held.blocks) for held in classes)
    assert found.batches >= -(-volume // capacity)


def test_a_packing_sees_what_does_not_go_together() -> None:
    """Two of three blocks: six blocks of memory are enough for three requests by volume, three batches by packing."""
    found = packing([HeldClass(3, [2])], 3, 9.0)
    assert found is not None
    assert found.batches == 3
    assert packing([HeldClass(3, [2])], 3, 0.0) is None
    assert packing([HeldClass(1000, [1] * 100)], 10**6, 9.0) is None


def test_what_flows_do_not_cover_is_refused() -> None:
    instance = LADDER["ladder-n04-I4-O8-k2"]
    chunked = replace(instance, rules=Rules())
    online = replace(instance, requests=(*instance.requests, Request(1, 1, arrival_ps=5)))
    long = replace(instance, requests=(Request(1, 1000),), limits=Limits(10**6, 10**6, 10**6))
    for formulation, task in product(
        BOTH,
        (
            Task(instance, Objective.MEAN_E2E),
            Task(chunked, Objective.MAKESPAN),
            Task(online, Objective.MAKESPAN),
            Task(long, Objective.MAKESPAN),
        ),
    ):
        with pytest.raises(UnsupportedError):
            formulation.solve(task)
    with pytest.raises(UnsupportedError, match="deterministic"):
        ClassFlowMip().solve(Task(instance, Objective.MAKESPAN, deterministic_limit=1.0))
    huge = replace(instance, cost=CostModel(base=2**56, token=0, decode_kv=1))
    with pytest.raises(UnsupportedError, match="adds numbers"):
        ClassFlow().solve(Task(huge, Objective.MAKESPAN))


def test_a_solver_that_denies_what_is_known_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless less is asked for than is known, there is a schedule."""
    monkeypatch.setattr(minimize, "minimize_with_cpsat", lambda *_: Answer(True, None, None))
    instance = LADDER["ladder-n04-I4-O8-k2"]
    start = simulate(instance, "vllm").schedule
    value = legal_value(instance, start)
    unknown = Outcome(Termination.LIMIT, None, None, Badge.HEURISTIC)
    for task in (
        Task(instance, Objective.MAKESPAN),
        Task(instance, Objective.MAKESPAN, FREE, start, value),
        Task(instance, Objective.MAKESPAN, Restrictions(at_most=value), start, value),
    ):
        assert ClassFlow().solve(task) == unknown
    better = Task(instance, Objective.MAKESPAN, Restrictions(at_most=value - 1), start, value)
    assert ClassFlow().solve(better) == Outcome(Termination.INFEASIBLE, None, value, Badge.SOLVER_CLAIMED)


@pytest.mark.slow
@pytest.mark.parametrize("formulation", BOTH)
def test_a_time_limit_keeps_schedule_and_bound(formulation: Formulation) -> None:
    """Out of reach in two seconds: what is there then is legal, and reported on the way."""
    instance = LADDER["ladder-n12-LILO+SILO-k2"]
    start = simulate(instance, "vllm").schedule
    seen: list[ProgressEvent] = []
    value = legal_value(instance, start)
    low = volume_bound(instance).value
    task = Task(instance, Objective.MAKESPAN, Restrictions(), start, value, low, 2.0, progress=seen.append)
    outcome = formulation.solve(task)
    assert outcome.termination == Termination.LIMIT
    assert outcome.bound is not None
    assert low <= outcome.bound < value
    assert outcome.schedule is None or legal_value(instance, outcome.schedule) <= value
    bounds = [event.bound for event in seen if event.bound is not None]
    assert bounds == sorted(bounds)
