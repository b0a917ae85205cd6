"""Documents of false claims that were found from outside, and documents that crashed the checker: all refused."""

from __future__ import annotations

import pytest
from brute_force import optimum
from checkout import DATA
from commands import optsched

from optsched import load_instance, solve
from optsched.library import load_results
from optsched.model.result import Status

DEFECTS = DATA / "defects"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hole1", "takes 999999999 ps less by a refill"),
        ("hole2", "too large to be verified in 64 bits"),
        ("crash_index", "too large to be verified in 64 bits"),
        ("crash_overflow", "too large to be verified in 64 bits"),
    ],
)
def test_forged_certificates_are_refused(capsys: pytest.CaptureFixture[str], name: str, reason: str) -> None:
    found = optsched(capsys, "check", str(DEFECTS / f"{name}.json"))
    assert found.code == 1
    assert reason in found.out + found.err


@pytest.mark.parametrize("name", ["wrongopt_auto", "wrongopt_last_arrivals", "wrongopt_token_cpsat"])
@pytest.mark.parametrize("method", ["auto", "last_arrivals", "token_cpsat"])
def test_where_refills_are_cheap_no_method_says_optimal_of_what_is_not(name: str, method: str) -> None:
    [claimed] = load_results(DEFECTS / f"{name}.json")
    instance = claimed.result.instance
    # The late request is filled at 100,000 and refilled at 100,022 (11 + 11 later), the early one runs between them:
    # 12 more for two tokens. Its decode would take a billion.
    assert optimum(instance) == 100_034
    found = solve(instance, method=method, time_limit=10)
    assert found.bound is not None
    assert found.bound <= 100_034 <= (found.value or 100_034)
    assert (found.status is Status.OPTIMAL) == (found.value == 100_034 == found.bound)


def test_a_schedule_that_evicts_in_turn_refutes_the_bound_of_the_last_arrivals() -> None:
    instance = load_instance(DEFECTS / "auto_false.json")
    # The late request, (1, 3) at 10^13, needs three fills of 1, 2 and 3 tokens with a batch between each two; 40 early
    # ones are there to run. What is claimed is 10,002 s, two decodes of 10^9 after the late fill.
    found = solve(instance, time_limit=1)
    assert found.bound is not None
    assert found.bound <= 10**13 + 114
    assert found.status is not Status.OPTIMAL or (found.value is not None and found.value <= 10**13 + 114)
