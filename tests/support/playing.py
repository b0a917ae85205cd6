"""Playing policies: the engine, step by step and with jumps, and what is compiled, must agree."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from optsched.catalogue import POLICY_GROUP, lookup
from optsched.check import check_schedule
from optsched.model.cost import CostModel
from optsched.model.following import unrolled
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.metrics import evaluate, metrics
from optsched.model.objectives import Objective
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Schedule
from optsched.model.timeline import timeline
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import Compiled, Occasion, Policy, PolicyFailureError, Preparing

# Non-attention time of x tokens: max(100 + 10 x, 40 x); the second piece counts from x = 4 on.
# Decode attention on m cached tokens: m + 5. Prefill attention: 2 (c² + 2 m c) + 3 m + 7.
COST = CostModel(
    base=100,
    token=10,
    pieces=((0, 40),),
    decode_kv=1,
    decode_req=5,
    prefill_sq=2,
    prefill_kv=3,
    prefill_req=7,
)
TEN = CostModel(base=10, token=0)
"""Every batch takes 10 ps."""

Decision = tuple[list[tuple[int, int]], list[int]]
"""``(runs, evictions)`` of one batch."""


def problem(
    *requests: Request,
    kv: int = 1000,
    budget: int = 1000,
    prefill: int | None = None,
    runs: int | None = None,
    block: int = 1,
    rules: Rules = Rules(),  # noqa: B008 - frozen
    cost: CostModel = TEN,
) -> Instance:
    limits = Limits(kv, budget, budget if prefill is None else prefill, runs, block)
    return Instance("test", limits, rules, cost, requests)


def ready(runner: str | Policy | Preparing, instance: Instance, seed: int = 0) -> Policy:
    """Return a policy for one run."""
    found: Policy | Preparing = lookup(POLICY_GROUP, runner, "policy") if isinstance(runner, str) else runner
    if isinstance(found, Preparing):
        return found.prepared(Occasion(instance, Objective.MAKESPAN, Restrictions(), np.random.default_rng(seed)))
    return found


def served(instance: Instance, runner: str | Policy | Preparing) -> Schedule:
    """Run a policy batch by batch; it must be legal, evaluated alike twice, and the same with jumps and compiled."""
    schedule = run_policy(instance, ready(runner, instance), jumps=False)
    jumped = run_policy(instance, ready(runner, instance))
    assert_jumps_change_nothing(instance, schedule, jumped)
    assert_compiled_the_same(instance, ready(runner, instance), jumped)
    return schedule


def assert_compiled_the_same(instance: Instance, runner: Policy, jumped: Schedule) -> None:
    if isinstance(runner, Compiled) and (record := runner.serve(instance)) is not None:
        assert record.schedule() == jumped
        # The same counted three times: by the run, in its tables, and of objects.
        assert metrics(instance, record.tally()) == evaluate(instance, record.schedule()) == evaluate(instance, jumped)


def assert_jumps_change_nothing(instance: Instance, plain: Schedule, schedule: Schedule) -> None:
    assert unrolled(instance, schedule) == plain
    assert schedule.length == plain.length
    violations, found = check_schedule(instance, schedule)
    assert violations == []
    assert found == evaluate(instance, schedule) == evaluate(instance, plain)
    assert check_schedule(instance, plain) == ([], found)
    assert timeline(instance, schedule) == timeline(instance, plain)


def decisions(instance: Instance, runner: str | Policy | Preparing) -> list[Decision]:
    return [(list(batch.run), list(batch.evict)) for batch in served(instance, runner).batches]


def refused(instance: Instance, runner: str | Policy | Preparing) -> PolicyFailureError:
    with pytest.raises(PolicyFailureError) as failure:
        run_policy(instance, ready(runner, instance))
    return failure.value


def whole(runs: Iterable[list[tuple[int, int]]]) -> list[Decision]:
    """Give decisions without evictions."""
    return [(run, []) for run in runs]


Failure = tuple[int, int, str]
"""Request, time and reason."""


def outcome(instance: Instance, runner: str | Policy | Preparing, *, jumps: bool = False) -> Schedule | Failure:
    try:
        return run_policy(instance, ready(runner, instance), jumps=jumps)
    except PolicyFailureError as failure:
        return failure.index, failure.now_ps, failure.reason


small = st.integers(0, 3)


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    cost = CostModel(
        base=draw(st.integers(0, 20)),
        token=draw(small),
        pieces=tuple(draw(st.lists(st.tuples(small, small), max_size=2))),
        decode_kv=draw(small),
        decode_req=draw(small),
        prefill_sq=draw(small),
        prefill_kv=draw(small),
        prefill_req=draw(small),
        swap_out_kv=draw(small),
        swap_in_kv=draw(small),
        swap_overlap=draw(st.sampled_from([0, 50, 100])),
        cpu_batch=draw(small),
        cpu_request=draw(st.sampled_from([0, 0, 0, 2])),
    )
    slo = st.none() | st.integers(0, 60)
    requests = st.builds(
        Request,
        input=st.integers(1, 8),
        output=st.integers(1, 6),
        arrival_ps=st.just(0) | st.integers(0, 120),
        weight=small,
        slo_ttft_ps=slo,
        slo_e2e_ps=slo,
    )
    chosen = draw(st.lists(requests, min_size=1, max_size=6))
    block = draw(st.integers(1, 4))
    # Tight, but mostly feasible.
    most = max(-(-request.peak_tokens // block) * block for request in chosen)
    prefill = draw(st.integers(1, 10))
    instance = problem(
        *chosen,
        kv=most + draw(st.integers(0, 2 * most)),
        budget=draw(st.integers(prefill, 12)),
        prefill=prefill,
        runs=draw(st.none() | st.integers(1, 4)),
        block=block,
        rules=Rules(draw(st.booleans()), draw(st.booleans()), draw(st.booleans()), draw(st.booleans())),
        cost=cost,
    )
    assume(not instance.infeasibilities())
    return instance
