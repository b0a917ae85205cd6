"""`solve` and `bound` for several machines, from Python and on the command line, against all assignments."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from clusters import MAXIMA, brute_force, cluster_of, random_cluster
from commands import optsched

from optsched import (
    Badge,
    CostModel,
    InputError,
    Instance,
    Limits,
    MachineGroup,
    Objective,
    Request,
    Restrictions,
    Rules,
    Status,
    all_bounds,
    bound,
    check_result,
    load_result,
    replace,
    save_instance,
    solve,
)

SUMS = (Objective.MEAN_TTFT, Objective.MEAN_E2E, Objective.WEIGHTED_E2E, Objective.SLO_MISSES)
PAIRED = Instance(
    "paired",
    Limits(100, 100, 100),
    Rules(),
    CostModel(base=10, token=1),
    (Request(1, 4), Request(1, 4), Request(1, 1), Request(1, 1)),
    replicas=2,
)
"""Two machines: each with a long and a short request it is 4 × 10 + 5 = 45 ps."""


@pytest.mark.parametrize("objective", [*MAXIMA, *SUMS])
def test_optima_are_those_of_all_assignments(objective: Objective) -> None:
    rng, proved = random.Random(objective.value), 0
    for _ in range(8):
        cluster = random_cluster(rng)
        found, best = solve(cluster, objective, time_limit=60), brute_force(cluster, objective)
        assert check_result(found).violations == ()
        assert found.value is not None
        assert found.bound is not None
        assert found.bound <= best <= found.value
        assert (found.status is Status.OPTIMAL) == (found.value == found.bound)
        proved += found.status is Status.OPTIMAL
    assert proved >= 6


def test_bounds_have_certificates_that_the_checker_proves() -> None:
    found = bound(PAIRED)
    assert (found.status, found.badge, found.bound) == (Status.BOUND_ONLY, Badge.CERTIFIED, 45)
    assert check_result(found).violations == ()
    assert [each.method for each in all_bounds(PAIRED)] == ["alone", "assignment", "chains", "worth", "congestion"]
    assert check_result(replace(found, bound=46)).violations != ()


def test_unequal_machines_have_no_chains() -> None:
    fast = MachineGroup(cost=CostModel(base=1, token=1))
    unequal = cluster_of(
        (MachineGroup(limits=PAIRED.limits, rules=PAIRED.rules, cost=PAIRED.cost), fast), PAIRED.requests
    )
    # Four batches of one token on the fast machine, 2 ps each; by shares of both machines less.
    assert (bound(unequal).method, bound(unequal).bound) == ("alone", 8)
    assert bound(unequal, method="chains").status is Status.UNKNOWN


def test_the_commands_write_what_check_confirms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    instance, answer = tmp_path / "paired.json", tmp_path / "answer.json"
    save_instance(PAIRED, instance)
    outcome = optsched(capsys, "solve", str(instance), "--time-limit", "60", "--out", str(answer))
    assert outcome.code == 0
    result = load_result(answer).result
    assert (result.status, result.value, result.bound) == (Status.OPTIMAL, 45, 45)
    assert result.schedule is not None
    assert sorted(result.schedule.routes) == [0, 0, 1, 1]
    assert {batch.replica for batch in result.schedule.batches} == {0, 1}
    assert optsched(capsys, "check", str(answer)).code == 0
    outcome = optsched(capsys, "bound", str(instance), "--json")
    assert (outcome.code, json.loads(outcome.out)["bound"]) == (0, 45)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "p99_e2e"}, "objective: got 'p99_e2e', expected for several machines one of makespan"),
        ({"restrictions": Restrictions(max_batch=2)}, "max_batch: got 2, expected no restrictions"),
        ({"deterministic_limit": 1.0}, "deterministic_limit: got 1.0, expected none for several machines"),
        ({"method": "token_cpsat"}, "machines: got 2 machines, expected one machine"),
    ],
)
def test_what_is_not_covered_is_refused_in_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        solve(PAIRED, **arguments)  # type: ignore[arg-type]
    assert str(error.value).startswith(message)
    assert len(str(error.value).splitlines()) == 1


def test_a_request_that_fits_no_machine_is_infeasible() -> None:
    large = replace(PAIRED, requests=(Request(101, 1),))
    for found in (solve(large), bound(large)):
        assert found.status is Status.INFEASIBLE
        assert check_result(found).violations == ()
