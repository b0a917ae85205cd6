"""Runs that are paused at any time, and asked what they would do next, end like those that are not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import instances, ready

from optsched import Instance, policy_names, replace
from optsched.model.metrics import evaluate, metrics
from optsched.model.schedule import Schedule
from optsched.policies.grouped import GroupedPolicy
from optsched.policies.infermax import SARATHI, SARATHI_EF, VLLM, VLLM_EF
from optsched.simulate.engine import PolicyRun, arrival_order, run_policy
from optsched.simulate.replica import PolicyFailureError

PLAIN = (VLLM, VLLM_EF, SARATHI, SARATHI_EF)


def paused(instance: Instance, policy: str, rng: Random, *, asks: bool, jumps: bool) -> Schedule:
    """Run a policy with pauses at random times and at arrivals; requests are submitted when they arrive."""
    run = PolicyRun(instance, ready(policy, instance), jumps=jumps)
    for index in arrival_order(instance):
        arrival = instance.requests[index].arrival_ps
        for until in sorted(rng.randrange(arrival + 1) for _ in range(rng.randrange(3))):
            run.advance(until)
            if asks and run.now_ps > arrival:
                # What a batch that starts later does may depend on this request.
                continue
        run.advance(arrival)
        run.submit(index)
    while run.unfinished:
        if asks:
            told = run.upcoming()
            assert told is None or told[0] == run.now_ps
        if rng.randrange(8) == 0:
            break
        run.advance(run.now_ps + rng.randrange(1, 60))
        if run.upcoming() is None:
            break
    run.advance()
    return run.schedule()


Outcome = Schedule | tuple[int, int, str]


def tried(instance: Instance, policy: str, rng: Random | None, *, jumps: bool) -> Outcome:
    try:
        if rng is None:
            return run_policy(instance, ready(policy, instance), jumps=jumps)
        return paused(instance, policy, rng, asks=rng.random() < 0.5, jumps=jumps)
    except PolicyFailureError as failure:
        return failure.index, failure.now_ps, failure.reason


@pytest.mark.parametrize("policy", policy_names())
@given(instances(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=12)
def test_a_paused_run_is_the_same(policy: str, instance: Instance, rng: Random, jumps: bool) -> None:
    assert tried(instance, policy, rng, jumps=jumps) == tried(instance, policy, None, jumps=jumps)


@pytest.mark.parametrize("policy", PLAIN)
@given(instances(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=100)
def test_a_paused_compiled_run_is_the_same(policy: GroupedPolicy, instance: Instance, rng: Random, ahead: bool) -> None:
    instance = replace(instance, cost=replace(instance.cost, cpu_request=0))
    run = policy.compiled_run(instance)
    assert run is not None
    now, order = 0, arrival_order(instance)
    if ahead:
        run.submit(order)
    for index in order:
        arrival = instance.requests[index].arrival_ps
        for until in sorted(rng.randrange(arrival + 1) for _ in range(rng.randrange(3))):
            run.advance(until)
        run.advance(arrival)
        if not ahead:
            run.submit([index])
    for _ in range(rng.randrange(20)):
        now += rng.randrange(1, 60)
        run.advance(now)
    run.advance()
    record, whole = run.record(), policy.serve(instance)
    assert (record is None) == (whole is None)
    if record is not None and whole is not None:
        schedule = run_policy(instance, policy)
        assert record.schedule() == whole.schedule() == schedule
        assert metrics(instance, record.tally()) == metrics(instance, whole.tally()) == evaluate(instance, schedule)
