"""Runs that are paused at any time, and asked what they would do next, end like those that are not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import instances, problem, ready

from optsched import Assignment, InputError, Instance, NoBatchError, Request, policy_names, replace
from optsched.model.metrics import evaluate, metrics
from optsched.model.schedule import Schedule
from optsched.policies.fcfs import FCFS
from optsched.policies.grouped import GroupedPolicy, Margins
from optsched.policies.infermax import SARATHI, SARATHI_EF, VLLM, VLLM_EF
from optsched.policies.vllm import VLLM_V1
from optsched.simulator.engine import PolicyRun, arrival_order, run_policy
from optsched.simulator.replica import PolicyFailureError, Replica

PLAIN = (VLLM, VLLM_EF, SARATHI, SARATHI_EF, replace(FCFS, batch_tokens=5, margins=Margins(residents=2)), VLLM_V1)


def paused(instance: Instance, policy: str, rng: Random, *, jumps: bool) -> Schedule:
    """Run a policy with pauses, also within jumps; submit requests at their arrivals, or all of them first."""
    run = PolicyRun(instance, ready(policy, instance), jumps=jumps)
    order, ahead, asks = arrival_order(instance), rng.random() < 0.3, rng.random() < 0.5
    for index in order if ahead else ():
        run.submit(index)
    for index in order:
        arrival = instance.requests[index].arrival_ps
        for until in sorted(rng.randrange(arrival + 1) for _ in range(rng.randrange(3))):
            run.advance(until)
        run.advance(arrival)
        if not ahead:
            run.submit(index)
    for _ in range(rng.randrange(30)):
        length = len(run.schedule().batches)
        told = run.upcoming() if asks else None
        run.advance(run.now_ps + rng.randrange(1, 60))
        if told is not None:
            # A batch that goes on where a pause has cut it short is one with what came before.
            start, assignment = told
            now = run.schedule().batches[max(length - 1, 0) :]
            assert any(
                batch.start_ps <= start <= batch.end_ps and batch.assignment.run == tuple(assignment.run)
                for batch in now
            )
    run.advance()
    assert run.unfinished == 0
    return run.schedule()


Outcome = Schedule | tuple[int, int, str]


def tried(instance: Instance, policy: str, rng: Random | None, *, jumps: bool) -> Outcome:
    try:
        if rng is None:
            return run_policy(instance, ready(policy, instance), jumps=jumps)
        return paused(instance, policy, rng, jumps=jumps)
    except PolicyFailureError as failure:
        return failure.index, failure.now_ps, failure.reason


@pytest.mark.slow
@pytest.mark.parametrize("policy", policy_names())
@given(instances(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=8)
def test_a_paused_run_is_the_same(policy: str, instance: Instance, rng: Random, jumps: bool) -> None:
    assert tried(instance, policy, rng, jumps=jumps) == tried(instance, policy, None, jumps=jumps)


@pytest.mark.slow
@pytest.mark.parametrize("policy", PLAIN)
@given(instances(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=36)
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


class Counting:
    """Lets the first request that is there decode or fill, and counts how often it is asked."""

    asked = 0

    def next_batch(self, replica: Replica) -> Assignment:
        self.asked += 1
        job = (replica.running or replica.waiting)[0]
        return Assignment([(job.index, job.missing)], [])


def test_what_would_be_next_is_decided_once() -> None:
    instance = problem(Request(2, 2), Request(2, 1, arrival_ps=15))
    policy = Counting()
    run = PolicyRun(instance, policy)
    assert run.upcoming() is None  # nothing has been submitted
    run.submit(0)
    assert run.upcoming() == run.upcoming() == (0, Assignment([(0, 2)], []))
    assert policy.asked == 1
    run.advance(10)  # a batch takes 10 ps
    assert (run.now_ps, run.unfinished, policy.asked) == (10, 1, 1)
    assert run.upcoming() == (10, Assignment([(0, 1)], []))
    with pytest.raises(InputError, match=r"requests\[0\].arrival_ps: got 0, expected an arrival at 11 ps or later"):
        run.submit(0)
    run.submit(1)
    run.advance()
    assert [(batch.start_ps, batch.run) for batch in run.schedule().batches] == [
        (0, ((0, 2),)),
        (10, ((0, 1),)),
        (20, ((1, 2),)),
    ]
    assert run.upcoming() is None
    assert policy.asked == 3


class Shy:
    """Runs nothing before two requests are there."""

    def next_batch(self, replica: Replica) -> Assignment:
        if len(replica.waiting) < 2:
            raise NoBatchError(replica.waiting[0].index, replica.now_ps, "alone")
        return Assignment([(job.index, job.missing) for job in replica.waiting], [])


def test_a_machine_without_a_batch_waits_for_more_requests() -> None:
    instance = problem(Request(2, 1), Request(2, 1, arrival_ps=15))
    run = PolicyRun(instance, Shy())
    run.submit(0)
    run.advance(100)
    assert (run.now_ps, run.unfinished, run.upcoming()) == (0, 1, None)
    run.submit(1)
    assert run.upcoming() == (15, Assignment([(0, 2), (1, 2)], []))
    run.advance()
    alone = PolicyRun(instance, Shy())
    alone.submit(0)
    with pytest.raises(NoBatchError):
        alone.advance()


def test_jumps_are_cut_and_joined() -> None:
    # One prefill of 10 ps, then nine decode steps of 10 ps each, which are one decision.
    instance = problem(Request(2, 10))
    run = PolicyRun(instance, ready("vllm", instance))
    run.submit(0)
    run.advance(35)
    assert [(batch.start_ps, batch.end_ps, batch.repeat) for batch in run.schedule().batches] == [
        (0, 10, 1),
        (10, 40, 3),
    ]
    run.advance(36)
    assert run.now_ps == 40
    run.advance()
    assert [(batch.start_ps, batch.end_ps, batch.repeat) for batch in run.schedule().batches] == [
        (0, 10, 1),
        (10, 100, 9),
    ]
    compiled = VLLM.compiled_run(instance)
    assert compiled is not None
    compiled.submit([0])
    compiled.advance(35)
    assert compiled.record() is None  # not all have ended
    compiled.advance()
    record = compiled.record()
    assert record is not None
    assert record.schedule() == run.schedule()
