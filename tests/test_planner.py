"""The planner: legal whatever the rules, never below brute force, optimal where that is easily said."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
from brute_force import optimum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import FREE
from strategies import instances, restrictions

from optsched import Instance, Objective, Restrictions, check_schedule
from optsched.model.objectives import evaluate
from optsched.planner.search import Search

QUICK = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def searched(instance: Instance, objective: Objective, allowed: Restrictions = FREE, turns: int = 30) -> Search:
    """Return a search that has made its start and a few changes, every plan of which is legal and of its value."""
    search = Search(allowed.apply(instance), objective, allowed, np.random.default_rng(0))
    for found in chain(search.start(), islice(search.improve(), turns)):
        schedule = found.plan.schedule()
        assert check_schedule(instance, schedule, allowed)[0] == []
        assert evaluate(instance, schedule)["objectives"][objective.value] == found.value
    return search


@QUICK
@given(st.data(), instances(online=True), st.sampled_from(Objective))
def test_every_plan_is_legal_and_no_better_than_the_optimum(
    data: st.DataObject, instance: Instance, objective: Objective
) -> None:
    allowed = data.draw(restrictions(instance))
    best = optimum(instance, objective, restrictions=allowed)
    if best is None:
        return  # the class is empty
    search = searched(instance, objective, allowed)
    assert search.best is not None
    assert search.best.value >= best


@QUICK
@given(instances(most_requests=3), st.sampled_from(Objective))
def test_offline_too(instance: Instance, objective: Objective) -> None:
    search = searched(instance, objective)
    assert search.best is not None
    assert search.best.value >= optimum(instance, objective)
