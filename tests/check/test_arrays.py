"""The checker on arrays says what the readable one says, of right and of wrong schedules."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import accumulate
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from playing import ready
from strategies import instances

from optsched.check import check_schedule
from optsched.check.problem import problem_of
from optsched.check.schedule import check
from optsched.check.schedule.arrays import replay_tables
from optsched.check.schedule.metrics import metrics_of
from optsched.check.schedule.tables import tables_of
from optsched.model.batch_documents import batch_documents
from optsched.model.cost import CostModel
from optsched.model.documents import dump
from optsched.model.domain import replace
from optsched.model.instance import Instance, Limits, Request, Rules
from optsched.model.restrictions import Restrictions
from optsched.model.schedule import Batch, Schedule
from optsched.model.table import BatchTable
from optsched.policies.infermax import SARATHI, VLLM
from optsched.simulator.engine import run_policy
from optsched.simulator.replica import PolicyFailureError

ANY = Restrictions()


def table_of(batches: Sequence[Batch]) -> BatchTable:
    """Write batches as a table."""
    return BatchTable(
        np.array([batch.start_ps for batch in batches], np.int64),
        np.array([batch.end_ps for batch in batches], np.int64),
        np.array([batch.repeat for batch in batches], np.int64),
        np.array([*accumulate((len(batch.run) for batch in batches), initial=0)], np.int64),
        np.array([index for batch in batches for index, _ in batch.run], np.int32),
        np.array([tokens for batch in batches for _, tokens in batch.run], np.int32),
        np.array([*accumulate((len(batch.evict) for batch in batches), initial=0)], np.int64),
        np.array([index for batch in batches for index in batch.evict], np.int32),
    )


def in_tables(batches: Sequence[Batch], length: int) -> list[BatchTable]:
    return [table_of(batches[first : first + length]) for first in range(0, len(batches), length)]


def agree(instance: Instance, batches: Sequence[Batch], length: int, restrictions: Restrictions = ANY) -> bool:
    """Compare both forms; return whether the schedule is legal."""
    violations, metrics = check_schedule(instance, Schedule(tuple(batches)), restrictions)
    problem = problem_of(instance, restrictions)
    found = replay_tables(problem, in_tables(batches, length))
    assert (found is None) == bool(violations)
    assert found is None or metrics_of(problem, found) == metrics
    return not violations


def later(batches: Sequence[Batch], number: int, delay: int) -> list[Batch]:
    """Start batches from one on later, and earlier for a negative delay."""
    moved = [replace(b, start_ps=b.start_ps + delay, end_ps=b.end_ps + delay) for b in batches[number:]]
    return [*batches[:number], *moved]


def mutated(rng: Random, instance: Instance, batches: Sequence[Batch]) -> list[Batch]:
    """Change one thing somewhere, so that the schedule is illegal, or, as after a pause, another one."""
    found, number = list(batches), rng.randrange(len(batches))
    batch = found[number]
    run, place, index = list(batch.run), rng.randrange(len(batch.run)), rng.randrange(len(instance.requests) + 1)
    match rng.randrange(12):
        case 0:
            return later(found, number, 7)
        case 1:
            return later(found, number, -min(1, batch.start_ps))
        case 2:
            found[number] = replace(batch, end_ps=batch.end_ps + 1)
        case 3:
            run[place] = run[place][0], run[place][1] + 1
        case 4:
            run[place] = run[place][0], max(run[place][1] - 1, 1)
        case 5:
            run[place] = index, run[place][1]
        case 6:
            del run[place]
        case 7:
            run.append((index, 1))
        case 8:
            found[number] = replace(batch, evict=(*batch.evict, index))
        case 9:
            found[number] = replace(batch, evict=batch.evict[1:], repeat=batch.repeat + 1)
        case 10:
            found[number] = replace(batch, repeat=max(batch.repeat - 1, 1))
        case _:
            del found[number]
    if tuple(run) != batch.run:
        found[number] = replace(batch, run=tuple(run))
    return found


@settings(max_examples=65, deadline=None)
@given(
    instances(online=True, most_requests=4, most_tokens=6),
    st.sampled_from(["vllm", "sarathi", "vllm_ef", "larry"]),
    st.booleans(),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_both_forms_agree(instance: Instance, policy: str, jumps: bool, length: int, rng: Random) -> None:
    runner = ready(policy, instance)
    try:
        batches = run_policy(instance, runner, jumps=jumps).batches
    except PolicyFailureError:
        assume(False)
    assert agree(instance, batches, length)
    for _ in range(8):
        agree(instance, mutated(rng, instance, batches), length)
    for restrictions in (Restrictions(max_evictions=0), Restrictions(max_batch=1), Restrictions(forbid=("hybrid",))):
        agree(instance, batches, length, restrictions)


def two(cost: CostModel, **limits: int) -> Instance:
    return Instance("two", Limits(100, 50, 50, **limits), Rules(), cost, (Request(3, 4), Request(2, 2, 5)))


def test_a_schedule_by_hand() -> None:
    """Batches take 10 ps and 1 ps for each token that decodes read: 3 + 4 + 5 cached, of the second 2."""
    instance = two(CostModel(base=10, token=0, decode_kv=1))
    batches = [Batch(0, 10, ((0, 3),)), Batch(10, 23, ((0, 1), (1, 2))), Batch(23, 39, ((0, 1), (1, 1)))]
    batches.append(Batch(39, 54, ((0, 1),)))
    found = replay_tables(problem_of(instance, ANY), in_tables(batches, 3))
    assert found is not None
    assert [(state.first_token_ps, state.last_token_ps) for state in found.states] == [(10, 54), (23, 39)]
    # From 10 to 23, 39 and 54, and from 23 to 39.
    assert found.gaps == {13: 1, 16: 2, 15: 1}
    # 3 tokens are held, then 4 + 2, 5 + 3, and 6 of the first alone.
    assert found.totals.block_time == 3 * 10 + 6 * 13 + 8 * 16 + 6 * 15
    assert (found.totals.most_blocks, found.totals.resident, found.end_ps) == (8, 6, 54)
    assert agree(instance, batches, 1)


@pytest.mark.parametrize("cost", [CostModel(base=2**62, token=0), CostModel(base=1, token=0, decode_kv=2**60)])
def test_numbers_that_might_not_fit_are_left_to_the_readable_form(cost: CostModel) -> None:
    instance = replace(two(cost), requests=(Request(1, 1),))
    end = cost.batch_ps(1, 0, 0, ((1, 0),))
    assert replay_tables(problem_of(instance, ANY), [table_of([Batch(0, end, ((0, 1),))])]) is None
    assert check_schedule(instance, Schedule((Batch(0, end, ((0, 1),)),)))[0] == []


@pytest.mark.parametrize("runner", [VLLM, SARATHI])
def test_a_compiled_schedule_is_checked_as_it_is_and_becomes_objects_when_asked(runner: object) -> None:
    rng = Random(1)
    requests = tuple(Request(rng.randint(1, 60), rng.randint(1, 90), rng.randint(0, 50_000)) for _ in range(300))
    cost = CostModel(base=90, token=1, decode_kv=1, prefill_kv=1)
    instance = Instance("many", Limits(700, 120, 100, 40, 4), Rules(), cost, requests)
    record = runner.serve(instance)  # type: ignore[attr-defined]
    schedule, batches = record.schedule(), run_policy(instance, runner).batches  # type: ignore[arg-type]
    assert any(batch.evict for batch in batches)
    assert any(batch.repeat > 1 for batch in batches)
    found = check_schedule(instance, schedule)
    assert found == check_schedule(instance, Schedule(batches))
    assert found[0] == []
    assert dump(batch_documents(record.schedule())) == dump(batch_documents(Schedule(batches)))
    assert pickle.loads(pickle.dumps(record.schedule())) == schedule == Schedule(batches)
    assert replace(record.schedule(), routes=()).batches == batches
    assert agree(instance, batches, 100)


def test_long_schedules_are_checked_as_tables_and_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong is named as in short ones."""
    rng = Random(2)
    requests = tuple(Request(rng.randint(1, 60), rng.randint(1, 90), rng.randint(0, 50_000)) for _ in range(60))
    cost = CostModel(base=90, token=1, decode_kv=1, prefill_kv=1)
    instance = Instance("many", Limits(700, 120, 100, 40, 4), Rules(), cost, requests)
    batches = run_policy(instance, VLLM).batches
    found = [check_schedule(instance, Schedule(each)) for each in (batches, batches[:-1])]
    changed = [tuple(mutated(rng, instance, batches)) for _ in range(40)]
    named = [check_schedule(instance, Schedule(each)) for each in changed]
    assert found[0][0] == [] != found[1][0]
    assert sum(bool(violations) for violations, _ in named) > 20
    monkeypatch.setattr(check, "_MANY_RUNS", 0)
    assert [check_schedule(instance, Schedule(each)) for each in (batches, batches[:-1])] == found
    assert [check_schedule(instance, Schedule(each)) for each in changed] == named


def test_what_no_table_says_is_left_to_the_readable_form() -> None:
    plain = Batch(0, 11, ((0, 3),))
    said = [replace(plain, **{name: ((0, 1),)}) for name in ("hits", "drop")]
    said += [replace(plain, **{name: (0,)}) for name in ("swap_out", "swap_in")]
    said += [replace(plain, replica=1), replace(plain, considered=1)]
    said += [replace(plain, run=((2**31, 3),)), replace(plain, evict=(2**31,))]
    assert [tables_of(Schedule((plain, each))) for each in said] == [None] * len(said)
    assert tables_of(Schedule((plain,), routes=(0,))) is None
    (table,) = tables_of(Schedule((plain,))) or []
    assert [column.tolist() for column in table] == [[0], [11], [1], [0, 1], [0], [3], [0, 0], []]


def test_a_wrong_table_is_named_by_the_readable_form() -> None:
    instance = two(CostModel(base=10, token=0))
    tables = in_tables([Batch(0, 11, ((0, 3),))], 1)
    violations, metrics = check_schedule(instance, Schedule.of_tables(tables))
    assert violations[0] == "batch 0: ends at 11 ps, but it starts at 0 ps and takes 10 ps, so it must end at 10 ps"
    assert metrics is None


@pytest.mark.parametrize(
    "batches",
    [
        # The second request arrives at 5.
        [Batch(0, 10, ((0, 3), (1, 2))), Batch(10, 20, ((0, 1), (1, 1))), Batch(20, 40, ((0, 1),), repeat=2)],
        # An eviction cannot be repeated.
        [
            Batch(0, 10, ((0, 3),)),
            Batch(10, 20, ((1, 2),)),
            Batch(20, 40, ((0, 1),), (1,), repeat=2),
            Batch(40, 50, ((0, 1), (1, 3))),
        ],
    ],
)
def test_wrong_schedules_by_hand(batches: list[Batch]) -> None:
    """All else is right: both requests end, and every batch, of 10 ps, at its time."""
    instance = two(CostModel(base=10, token=0))
    assert not agree(instance, batches, 9)
