"""Schedules without pauses and evictions: as few batches as a search over all first batches finds."""

from __future__ import annotations

from dataclasses import replace as changed
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from outcomes import legal_value

from optsched import Instance, Limits, Objective, Request, Rules, load_instance
from optsched.model.cost import CostModel
from optsched.model.result import Badge
from optsched.solvers.cpsat import CpSatAnswer
from optsched.solvers.formulation import Outcome, Task, Termination, UnsupportedError
from optsched_formulations.batching.unbroken import Unbroken

# Ten a batch, so that the makespan counts batches.
TEN = CostModel(base=10, token=0)


def ask(instance: Instance, **more: Any) -> Outcome:
    return Unbroken().solve(changed(Task(instance, Objective.MAKESPAN, time_limit_s=20), **more))


def fewest(instance: Instance) -> int:
    """Return the fewest batches, by all first batches of all requests, as the rules of the problem say."""
    requests, limits = instance.requests, instance.limits
    total = sum(request.output for request in requests)
    best = total
    for begins in product(*(range(total - request.output + 1) for request in requests)):
        last = max(begin + request.output for begin, request in zip(begins, requests, strict=True))
        if last < best and all(fits(list(zip(begins, requests, strict=True)), batch, limits) for batch in range(last)):
            best = last
    return best


def fits(begins: list[tuple[int, Request]], batch: int, limits: Limits) -> bool:
    """Return whether what runs in a batch keeps to M, C, P and N."""
    there = [(request, batch - begin) for begin, request in begins if 0 <= batch - begin < request.output]
    blocks = sum(-(-(request.input + k) // limits.kv_block) for request, k in there)
    eager = sum(request.input for request, k in there if k == 0)
    tokens = eager + sum(k > 0 for _, k in there)
    return (
        blocks <= limits.kv_tokens // limits.kv_block
        and tokens <= limits.batch_tokens
        and eager <= limits.prefill_tokens
        and len(there) <= (limits.batch_requests or len(there))
    )


@st.composite
def few_requests(draw: st.DrawFn) -> Instance:
    """Return an instance of which all first batches can be tried."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4))
    memory, tokens, prefill = draw(st.integers(4, 10)), draw(st.integers(4, 7)), draw(st.integers(4, 6))
    together, block = draw(st.sampled_from((None, 1, 2))), draw(st.sampled_from((1, 2)))
    limits = Limits(memory, tokens, min(prefill, tokens), together, block)
    rules = Rules(chunked_prefill=draw(st.booleans()))
    instance = Instance("few", limits, rules, TEN, tuple(Request(*shape) for shape in shapes))
    assume(not instance.infeasibilities())
    return instance


EXAMPLES = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@EXAMPLES
@given(few_requests())
def test_it_finds_the_fewest_batches_of_all_first_batches(instance: Instance) -> None:
    outcome = ask(instance)
    assert outcome.termination == Termination.LIMIT
    assert (outcome.bound, outcome.badge) == (None, Badge.HEURISTIC)
    assert legal_value(instance, outcome.schedule) == 10 * fewest(instance)


@EXAMPLES
@given(few_requests(), st.integers(0, 9))
def test_so_does_the_walk_alone(instance: Instance, seed: int) -> None:
    least = 10 * fewest(instance)
    undecided = CpSatAnswer(Termination.LIMIT, None, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optsched_formulations.batching.search.beginnings.minimize_cpsat", lambda *_: undecided)
        outcome = ask(instance, bound=least, seed=seed)
    assert legal_value(instance, outcome.schedule) == least


@pytest.mark.slow
def test_the_walk_finds_what_takes_cpsat_minutes() -> None:
    """Requests hold 13,528 tokens in all, memory 410: 33 batches at least, 32.995 without what is left over."""
    instance = load_instance("ladder-n32-LILO+LISO-k8")
    outcome = ask(instance, time_limit_s=120)
    assert outcome.schedule is not None
    assert len(outcome.schedule.batches) == 34
    assert outcome.schedule.evictions == 0


def test_a_schedule_that_is_known_is_kept_or_beaten() -> None:
    # Three of 1 + 2 tokens, memory for 4: all together would hold 3, then 6. One begins, and two a batch later: they
    # hold 1, then 2 + 1 + 1, then 4.
    instance = Instance("three", Limits(4, 9, 9), Rules(), TEN, (Request(1, 2),) * 3)
    found = ask(instance)
    assert legal_value(instance, found.schedule) == 30
    again = ask(instance, incumbent=found.schedule, incumbent_value=30)
    assert again.schedule == found.schedule


def test_few_batches_of_many_requests() -> None:
    """`layer_search` proves that 16 requests need 24 batches (the ledger has it); from nothing they are found too."""
    outcome = ask(load_instance("ladder-n16-LILO+SISO-k8"), workers=2, time_limit_s=120)
    assert outcome.schedule is not None
    assert len(outcome.schedule.batches) == 24


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": Objective.MEAN_E2E}, "objective mean_e2e"),
        ({"deterministic_limit": 1.0}, "a deterministic limit"),
        ({"instance": Instance("late", Limits(9, 9, 9), Rules(), TEN, (Request(1, 1), Request(1, 1, 5)))}, "over time"),
        ({"instance": Instance("kind", Limits(9, 9, 9), Rules(hybrid=False), TEN, (Request(1, 1),))}, "of one kind"),
        ({"instance": Instance("long", Limits(9, 9, 2), Rules(), TEN, (Request(3, 1),))}, "no batch holds whole"),
        (
            {"instance": Instance("large", Limits(10**6, 999, 999), Rules(), TEN, (Request(1, 800), Request(2, 800)))},
            "a model of",
        ),
    ],
)
def test_it_says_what_it_is_not_for(changes: dict[str, Any], message: str) -> None:
    instance = Instance("one", Limits(9, 9, 9), Rules(), TEN, (Request(1, 1),))
    with pytest.raises(UnsupportedError, match=message):
        ask(changes.pop("instance", instance), **changes)
